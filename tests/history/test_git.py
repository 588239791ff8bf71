"""What git knows of the commit that is measured, and of the order of commits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.histories import Repository, git

from pytest_torchprof.history import git as module
from pytest_torchprof.history.git import Git, GitError, repository_name


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """An empty repository."""
    return Repository(tmp_path / "repo")


def clone(repository: Repository, *words: str) -> Path:
    folder = repository.folder.parent / "clone"
    git(repository.folder.parent, "clone", "-q", *words, f"file://{repository.folder}", str(folder))
    return folder


def test_the_commit_of_a_branch_has_its_parents_and_its_merge_base(repository: Repository) -> None:
    first = repository.commit(a="1")
    repository.switch("feature")
    second = repository.commit(a="2")
    third = repository.commit(a="3")
    found = Git(repository.folder).commit(repository.folder, {})
    assert ("repo", third, [second], first, "feature", False) == (
        found.repository,
        found.commit,
        found.parents,
        found.merge_base,
        found.branch,
        found.dirty,
    )


def test_a_merge_has_two_parents_and_the_first_commit_none(repository: Repository) -> None:
    first = repository.commit(a="1")
    assert [] == Git(repository.folder).commit(repository.folder, {}).parents
    repository.switch("feature")
    second = repository.commit(b="2")
    repository.switch("main")
    repository.merge("feature")
    assert [first, second] == Git(repository.folder).commit(repository.folder, {}).parents


def test_a_shallow_clone_still_knows_the_parents_of_its_commit(repository: Repository) -> None:
    first = repository.commit(a="1")
    repository.commit(a="2")
    shallow = Git(folder := clone(repository, "--depth=1"))
    assert shallow.is_shallow
    found = shallow.commit(folder, {})
    assert [first] == found.parents


@pytest.mark.parametrize(
    ("change", "dirty"),
    [
        ({}, False),
        ({"a.py": "2"}, True),
        ({"new.py": "2"}, False),  # not tracked
        ({"__torchprof__/test_a.json": "2"}, False),  # what --accept writes
        ({"sub/__torchprof__/test_a.json": "2"}, False),
        ({"history/1.run.json": "2"}, False),  # the history itself
        ({"__torchprof__/test_a.json": "2", "a.py": "2"}, True),
    ],
)
def test_a_tree_is_dirty_if_tracked_files_differ(
    repository: Repository, change: dict[str, str], dirty: bool
) -> None:
    folder = repository.folder
    for name in ("__torchprof__/test_a.json", "sub/__torchprof__/test_a.json",
                 "history/1.run.json"):  # fmt: skip
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("1")
    repository.commit(a="1")
    for name, text in change.items():
        (folder / name).write_text(text)
    ours = ["__torchprof__", str(folder / "history")]
    assert dirty == Git(folder).commit(folder, {}, ours).dirty


def test_tests_in_a_folder_of_the_repository_are_apart(repository: Repository) -> None:
    repository.commit(a="1")
    inner = repository.folder / "sub" / "project"
    inner.mkdir(parents=True)
    assert "repo//sub/project" == Git(inner).commit(inner, {}).repository


def test_a_repository_without_a_commit_is_known(repository: Repository) -> None:
    found = Git(repository.folder).commit(repository.folder, {})
    assert ("repo", None, "main") == (found.repository, found.commit, found.branch)


@pytest.mark.parametrize(
    ("environ", "branch"),
    [
        ({}, None),
        ({"GITHUB_HEAD_REF": "", "GITHUB_REF_NAME": "main"}, "main"),
        ({"GITHUB_HEAD_REF": "feature", "GITHUB_REF_NAME": "3/merge"}, "feature"),
        ({"CI_COMMIT_REF_NAME": "dev"}, "dev"),
        ({"CI_MERGE_REQUEST_SOURCE_BRANCH_NAME": "f", "CI_COMMIT_REF_NAME": "x"}, "f"),
    ],
)
def test_under_ci_the_branch_is_what_the_service_says(
    repository: Repository, environ: dict[str, str], branch: str | None
) -> None:
    commit = repository.commit(a="1")
    git(repository.folder, "checkout", "-q", commit)
    assert branch == Git(repository.folder).commit(repository.folder, environ).branch


def test_under_ci_the_merge_base_is_with_the_target(repository: Repository) -> None:
    repository.commit(a="1")
    repository.switch("release")
    second = repository.commit(a="2")
    repository.switch("feature")
    repository.commit(a="3")
    found = Git(repository.folder).commit(repository.folder, {"GITHUB_BASE_REF": "release"})
    assert second == found.merge_base


def test_a_folder_outside_of_repositories_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(GitError) as error:
        Git(tmp_path)
    assert f"{tmp_path}: not in a git repository" == str(error.value)


def test_without_git_there_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GitError, match="git was not found"):
        Git(tmp_path)


def test_a_git_that_does_not_answer_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "git"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(module, "_LIMIT_S", 0.2)
    with pytest.raises(GitError, match="took more than"):
        Git(tmp_path)


def test_variables_of_another_repository_do_not_count(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = repository.commit(a="1")
    Repository(tmp_path / "other").commit(a="1")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    assert commit == Git(repository.folder).commit(repository.folder, {}).commit


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("https://github.com/Owner/Name.git", "github.com/Owner/Name"),
        ("https://user:secret@GitHub.com/Owner/Name", "github.com/Owner/Name"),
        ("ssh://git@github.com:22/Owner/Name.git/", "github.com/Owner/Name"),
        ("git@github.com:Owner/Name.git", "github.com/Owner/Name"),
        ("git@gitlab.example.org:group/sub/name.git", "gitlab.example.org/group/sub/name"),
        ("/srv/git/name.git", "name"),
        ("../name", "name"),
        ("file:///srv/git/name", "name"),
        ("C:\\git\\name", "name"),
    ],
)
def test_a_repository_has_one_name_by_all_its_addresses(address: str, name: str) -> None:
    assert name == repository_name(address)


def test_a_fork_is_also_known_by_the_name_of_its_upstream(repository: Repository) -> None:
    repository.commit(a="1")
    git(repository.folder, "remote", "add", "upstream", "https://github.com/up/name")
    git(repository.folder, "remote", "add", "origin", "git@github.com:me/name.git")
    assert ["github.com/me/name", "github.com/up/name"] == Git(repository.folder).names()


def test_commits_come_after_their_parents(repository: Repository) -> None:
    first, second = repository.commit(a="1"), repository.commit(a="2")
    here = Git(repository.folder)
    assert [(first, []), (second, [first])] == here.ancestors([second, "f" * 40])
    assert [] == here.ancestors([])
    assert [first] == here.known([first, "f" * 40, "no commit"])
    assert {first, second} == here.first_parents(second)


def test_commits_of_branches_tags_and_worktrees_are_reachable(repository: Repository) -> None:
    commits = {}
    for name in ("main", "kept", "tagged", "gone", "checked-out"):
        repository.switch(name)
        commits[name] = repository.commit(**{name.replace("-", "_"): "1"})
    folder = repository.folder
    git(folder, "tag", "v1", commits["tagged"])
    git(folder, "worktree", "add", "-q", "--detach", str(folder.parent / "w"), commits["main"])
    git(folder, "checkout", "-q", "--detach", commits["kept"])
    for name in ("tagged", "gone", "checked-out"):
        git(folder, "branch", "-D", name)
    found = Git(folder).reachable()
    assert {commits[name] for name in ("main", "kept", "tagged")} == found


def test_words_that_look_like_options_are_no_revisions(repository: Repository) -> None:
    repository.commit(a="1")
    assert Git(repository.folder).commit_of("--all") is None
    assert Git(repository.folder).commit_of("nope") is None
