"""Two sides of `torchprof ab`: from revisions, folders and interpreters."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_torchprof import __version__
from pytest_torchprof.ab.sides import Request, Side, sides
from pytest_torchprof.ab.worker import matches, select
from pytest_torchprof.core.errors import AbError

WHO = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.org",
    "GIT_ALLOW_PROTOCOL": "file",
}


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-c", "protocol.file.allow=always", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def write(folder: Path, **files: str) -> None:
    """Files by name, with __ for a slash and .py added."""
    for name, text in files.items():
        file = folder / f"{name.replace('__', '/')}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")


def commit(folder: Path, message: str) -> str:
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", message)
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary folders are made, with a space; nothing may be left in it."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    for name, value in WHO.items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "scratch folder"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert [] == list(folder.iterdir())


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """Two commits: the first with code 1 and test_old, the second with code 2 and test_new."""
    folder = tmp_path / "my répo"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    write(folder, code="N = 1", tests__test_old="def test_x(): pass", tests__test_gone="")
    commit(folder, "first")
    git(folder, "tag", "v1")
    (folder / "tests" / "test_gone.py").unlink()
    write(folder, code="N = 2", tests__test_new="def test_y(): pass", later__test_z="")
    commit(folder, "second")
    return folder


def request(cwd: Path, ref: str | None = None, *args: str, **more: object) -> Request:
    given = {"a": None, "b": None, "python_a": None, "python_b": None} | more
    return Request(ref=ref, cwd=cwd, args=args, **given)  # type: ignore[arg-type]


def both(asked: Request) -> tuple[Side, Side]:
    """The sides, and that nothing of them is left."""
    worktrees = asked.cwd.exists() and subprocess.run(
        ["git", "worktree", "list"], cwd=asked.cwd, capture_output=True, check=False
    )
    with sides(asked) as (a, b, folder):
        assert a.root.is_dir()
    assert not folder.exists()
    after = subprocess.run(
        ["git", "worktree", "list"], cwd=asked.cwd, capture_output=True, check=False
    )
    assert worktrees
    assert worktrees.stdout == after.stdout
    return a, b


@pytest.mark.one_in(3)
@pytest.mark.parametrize("ref", ["v1", "HEAD~1", "main^", "refs/tags/v1"])
def test_a_is_the_revision_and_b_the_working_tree(repo: Path, ref: str) -> None:
    sha = git(repo, "rev-parse", "--short", "v1")
    with sides(request(repo, ref)) as (a, b, folder):
        assert "N = 1" == (a.root / "code.py").read_text("utf-8")
        assert (a.name, a.label) == ("A", f"{ref} ({sha})")
        assert (b.name, b.label, b.root, b.cwd) == ("B", "working tree", repo, repo)
        assert folder in a.root.parents
        assert repo.name == a.root.name  # which the top needs that is a package itself
        assert (a.others, b.others) == ((repo,), (a.root,))
        assert sys.executable == a.python == b.python


def test_a_sha_is_its_own_label(repo: Path) -> None:
    sha = git(repo, "rev-parse", "v1")
    a, _ = both(request(repo, sha))
    assert git(repo, "rev-parse", "--short", "v1") == a.label


@pytest.mark.one_in(3)
@pytest.mark.parametrize("change", ["modified", "untracked", "staged"])
def test_uncommitted_changes_are_part_of_b(repo: Path, change: str) -> None:
    write(repo, **{"more" if change == "untracked" else "code": "N = 3"})
    if change == "staged":
        git(repo, "add", "-A")
    before = git(repo, "status", "--porcelain")
    _, b = both(request(repo, "HEAD"))
    assert "working tree, uncommitted changes" == b.label
    assert before == git(repo, "status", "--porcelain")


def test_the_folder_that_the_user_is_in_is_found_in_the_other_tree(repo: Path) -> None:
    a, b = both(request(repo / "tests", "v1"))
    assert (a.cwd, b.cwd, a.there) == (a.root / "tests", repo / "tests", repo / "tests")
    a, b = both(request(repo / "later", "v1"))
    assert (a.cwd, a.folder, b.cwd) == (a.root, a.root / "later", repo / "later")


def test_each_linked_worktree_is_the_users_own_tree(repo: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    git(repo, "worktree", "add", "-q", "--detach", str(linked))
    a, b = both(request(linked, "v1"))
    assert (b.root, a.others) == (linked, (linked,))
    assert str(linked) in git(repo, "worktree", "list")


def test_git_variables_of_a_hook_do_not_lead_astray(
    repo: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    with sides(request(repo, "v1")) as (a, b, _):
        assert (a.root / "code.py").exists()
        assert "working tree" == b.label
    assert not (tmp_path / "index").exists()


def test_hooks_do_not_run(repo: Path, tmp_path: Path) -> None:
    hook = repo / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch '{tmp_path}/ran'\n", "utf-8")
    hook.chmod(0o755)
    both(request(repo, "v1"))
    assert not (tmp_path / "ran").exists()


def test_two_at_once_do_not_meet(repo: Path) -> None:
    with sides(request(repo, "v1")) as (first, _, _):
        with sides(request(repo, "v1")) as (second, _, _):
            assert first.root != second.root
        assert (first.root / "code.py").exists()
        assert str(first.root) in git(repo, "worktree", "list")
    assert 1 == len(git(repo, "worktree", "list").splitlines())


def test_an_exception_leaves_nothing(repo: Path) -> None:
    with pytest.raises(KeyboardInterrupt), sides(request(repo, "v1")):
        raise KeyboardInterrupt
    assert 1 == len(git(repo, "worktree", "list").splitlines())


def test_what_a_killed_run_left_is_removed_after_a_day(repo: Path, scratch: Path) -> None:
    left = {}
    for name, age_s in (
        ("torchprof-ab-old", 100_000),
        ("torchprof-ab-new", 0),
        ("theirs", 100_000),
    ):
        left[name] = scratch / name
        git(repo, "worktree", "add", "-q", "--detach", str(left[name] / "tree"), "v1")
        os.utime(left[name], (time.time() - age_s,) * 2)
    left["theirs"].rename(scratch.parent / "away")  # as on a disk that is not there now
    with sides(request(repo, "v1")):
        pass
    assert [path.name for path in scratch.iterdir()] == ["torchprof-ab-new"]
    assert len(git(repo, "worktree", "list").splitlines()) == 3
    shutil.rmtree(left["torchprof-ab-new"])


def test_read_only_folders_of_a_test_are_removed(repo: Path) -> None:
    with sides(request(repo, "v1")) as (a, _, _):
        (a.root / "locked" / "inner").mkdir(parents=True)
        (a.root / "locked" / "inner").chmod(0)
        (a.root / "locked").chmod(0o500)


# What cannot be compared


def bare(repo: Path) -> Path:
    git(repo.parent, "clone", "-q", "--bare", str(repo), "bare")
    return repo.parent / "bare"


def unborn(repo: Path) -> Path:
    git(repo.parent, "init", "-q", "empty")
    return repo.parent / "empty"


def shallow(repo: Path) -> Path:
    git(repo.parent, "clone", "-q", "--depth=1", repo.as_uri(), "shallow")
    return repo.parent / "shallow"


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    ("place", "ref", "shown"),
    [
        (lambda repo: repo, "mian", "'mian': no such revision in .*: Did you mean main"),
        (lambda repo: repo, "zzzzzzz", "no such revision in .*; git fetch"),
        (lambda repo: repo, "--help", "'--help': no such revision"),
        (lambda repo: repo, "", "'': no such revision"),
        (lambda repo: repo, "main:code.py", "no such revision"),
        (lambda repo: repo.parent, "main", "not in a git repository; .*--a and --b"),
        (lambda repo: repo / ".git", "main", "there is no working tree to compare with"),
        (bare, "main", "there is no working tree to compare with"),
        (unborn, "HEAD", "there is no commit yet"),
        (shallow, "HEAD~1", "clone is shallow.*fetch-depth"),
        (lambda repo: repo, None, "nothing to compare with; give a git revision, --a"),
    ],
)
def test_an_unknown_revision_is_reported_in_one_line(
    repo: Path, place: Callable[[Path], Path], ref: str | None, shown: str
) -> None:
    with pytest.raises(AbError, match=shown) as caught, sides(request(place(repo), ref)):
        pass
    assert "\n" not in str(caught.value)


def test_without_git_there_are_folders(
    repo: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with (
        pytest.raises(AbError, match=r"git was not found.*--a and --b"),
        sides(request(repo, "v1")),
    ):
        pass
    with sides(request(tmp_path, a=repo, b=Path("my répo/tests"))) as (a, b, _):
        assert (a.root, b.root) == (repo, repo / "tests")


# Submodules


@pytest.fixture
def parent(repo: Path, tmp_path: Path) -> Path:
    """A repository with `repo` as its submodule deps/sub, first at v1, then at main."""
    folder = tmp_path / "parent"
    git(tmp_path, "init", "-q", "-b", "main", "parent")
    git(folder, "submodule", "add", "-q", str(repo), "deps/sub")
    sub = folder / "deps" / "sub"
    git(sub, "checkout", "-q", "v1")
    commit(folder, "first")
    git(folder, "tag", "old")
    git(sub, "checkout", "-q", "main")
    commit(folder, "second")
    return folder


def test_a_submodule_is_filled_from_what_is_here(parent: Path) -> None:
    with sides(request(parent, "old")) as (a, b, _):
        assert "N = 1" == (a.root / "deps" / "sub" / "code.py").read_text("utf-8")
        assert () == a.notes + b.notes
    assert "" == git(parent, "status", "--porcelain")
    assert 1 == len(git(parent / "deps" / "sub", "worktree", "list").splitlines())


def test_a_submodule_that_is_not_here_is_a_note(parent: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", str(parent), "clone")
    a, _ = both(request(tmp_path / "clone", "old"))
    assert 1 == len(a.notes)
    assert "submodule deps/sub is empty in A: its commit" in a.notes[0]
    assert "git submodule update --init" in a.notes[0]


def test_a_submodule_has_revisions_of_its_own(parent: Path) -> None:
    sub = parent / "deps" / "sub"
    with sides(request(sub, "v1")) as (a, b, _):
        assert "N = 1" == (a.root / "code.py").read_text("utf-8")
        assert (sub, "working tree") == (b.root, b.label)
    assert 1 == len(git(sub, "worktree", "list").splitlines())


# What a build made


def test_generated_modules_are_copied_and_reported(repo: Path) -> None:
    """And neither environments nor what is compiled, nor what the revision has itself."""
    (repo / ".git" / "info" / "exclude").write_text("_*.py\nenv/\n*.so\n__pycache__", "utf-8")
    write(repo, tests___version="N = 'B'", env___more="", later___made="")
    (repo / "tests" / "_c.so").touch()
    with sides(request(repo, "v1")) as (a, _, _):
        assert "N = 'B'" == (a.root / "tests" / "_version.py").read_text("utf-8")
        found = {file.relative_to(a.root).as_posix() for file in a.root.rglob("*.py")}
        assert {
            "code.py",
            *(f"tests/{n}.py" for n in ("_version", "test_gone", "test_old")),
        } == found
    shown = "A uses tests/_version.py from the working tree, because git ignores these files"
    assert (shown,) == a.notes


# Folders and interpreters


def test_folders_are_compared_as_they_are(tmp_path: Path) -> None:
    for name in "ab":
        write(tmp_path / name, tests__test_x="")
    a, b = both(request(tmp_path / "b" / "tests", a=Path("../../a"), b=tmp_path / "b"))
    assert (a.root, a.cwd) == (tmp_path / "a", tmp_path / "a" / "tests")
    assert (b.root, b.cwd) == (tmp_path / "b", tmp_path / "b" / "tests")
    assert (a.others, b.others) == ((b.root,), (a.root,))
    a, b = both(request(tmp_path, a=Path("a"), b=Path("b")))
    assert (a.cwd, b.cwd) == (a.root, b.root)


def test_the_users_checkout_is_neither_side(repo: Path, tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    a, b = both(request(repo, a=tmp_path / "a", b=tmp_path / "b"))
    assert (a.others, b.others) == ((b.root, repo), (a.root, repo))


def test_a_folder_against_the_working_tree(repo: Path, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    a, b = both(request(repo, a=tmp_path / "a"))
    assert (a.label, a.root, b.root) == (str(tmp_path / "a"), tmp_path / "a", repo)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"ref": "v1", "a": Path()}, "side A is given twice: revision 'v1' and --a"),
        ({"a": Path("nowhere")}, "--a nowhere: no such folder"),
        ({"b": Path("code.py")}, "--b code.py: no such folder"),
        ({"python_a": "nowhere"}, "--python-a nowhere: no such interpreter"),
        ({"python_b": "tests"}, "--python-b tests: is not a virtual environment"),
        ({"python_a": "code.py"}, "--python-a code.py: does not run as Python"),
        ({"python_a": "./pretends"}, "--python-a ./pretends: does not run as Python"),
    ],
)
def test_an_invalid_side_is_reported_in_one_line(
    repo: Path, given: dict[str, object], shown: str
) -> None:
    pretends = repo / "pretends"
    pretends.write_text("#!/bin/sh\necho hello\n", "utf-8")
    pretends.chmod(0o755)
    with pytest.raises(AbError, match=shown), sides(request(repo, **given)):  # type: ignore[arg-type]
        pass


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """An environment with what a worker needs, as far as anybody asks."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    packages = next((tmp_path / "venv").glob("[lL]ib/**/site-packages"))
    for name, version in {"pytest": "8.0", "torch": "2.6", "torchprof": __version__}.items():
        info = packages / f"{name}-{version}.dist-info"
        info.mkdir()
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        (info / "METADATA").write_text(text, "utf-8")
    write(packages, pytest_torchprof=f"__version__ = {__version__!r}")
    return tmp_path / "venv"


def test_interpreters_are_compared_on_one_tree(
    repo: Path, venv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    a, b = both(request(repo, None, "tests/test_old.py::test_x", python_a=str(venv)))
    version = ".".join(map(str, sys.version_info[:3]))
    assert f"working tree, Python {version}, torch 2.6" == a.label
    assert (a.root, a.others, b.root, b.others) == (repo, (), repo, ())
    assert ("tests/test_old.py::test_x",) == a.args == b.args
    assert venv in Path(a.python).parents  # the link, not what it leads to
    assert (venv in a.tool.parents, b.python) == (True, sys.executable)


def test_an_interpreter_that_lacks_something_is_reported_with_the_remedy(
    repo: Path, venv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    own = next(venv.glob("[lL]ib/**/pytest_torchprof.py"))
    own.write_text("__version__ = '0.0.1'", "utf-8")
    asked = request(repo, python_b=str(venv))
    with (
        pytest.raises(AbError, match=r"has pytest-torchprof 0\.0\.1.*install pytest-torchprof"),
        sides(asked),
    ):
        pass
    own.unlink()
    lacks = "lacks pytest-torchprof; .*install pytest-torchprof .* there"
    with pytest.raises(AbError, match=lacks), sides(asked):
        pass


# Arguments


@pytest.mark.parametrize(
    ("given", "moved"),
    [
        ("-c {B}/code.py", "-c {A}/code.py"),
        ("--rootdir={B}", "--rootdir={A}"),
        ("--data={B}/data.toml", "--data={B}/data.toml"),
        ("{B}/tests/test_old.py::t -x tests", "{A}/tests/test_old.py::t -x tests"),
    ],
)
def test_absolute_paths_are_those_of_each_side(repo: Path, given: str, moved: str) -> None:
    (repo / "data.toml").touch()
    a, b = both(request(repo, "v1", *(word.replace("{B}", str(repo)) for word in given.split())))
    expected = [w.replace("{A}", str(a.root)).replace("{B}", str(repo)) for w in moved.split()]
    assert expected == list(a.args)
    assert [word.replace("{B}", str(repo)) for word in given.split()] == list(b.args)


@pytest.mark.parametrize(
    ("given", "in_a", "in_b"),
    [
        ("tests", "tests", "tests"),
        ("tests/test_new.py", "", "tests/test_new.py"),
        ("tests/test_gone.py tests", "tests/test_gone.py tests", "tests"),
        ("tests/test_old.py::x tests/test_old.py::z[1]", "tests/test_old.py", "tests/test_old.py"),
        ("{B}/tests/test_new.py", "", "tests/test_new.py"),
    ],
)
def test_what_one_tree_lacks_is_not_collected_there(
    repo: Path, given: str, in_a: str, in_b: str
) -> None:
    words = [word.replace("{B}", str(repo)) for word in given.split()]
    with sides(request(repo, "v1")) as (a, b, _):
        for side, expected in ((a, in_a), (b, in_b)):
            config: Any = SimpleNamespace(option=SimpleNamespace(file_or_dir=words), args=words)
            select(config, side)
            assert [str(side.root / word) for word in expected.split()] == config.args


@pytest.mark.parametrize(
    ("nodeid", "wanted", "expected"),
    [
        ("t/a.py::x", [], True),
        ("t/a.py::x", [("/r/t", "")], True),
        ("t/a.py::x", [("/r/t/a.py", "y"), ("/r/t", "")], True),
        ("t/a.py::x", [("/r/t/b.py", "y")], True),  # pytest collects what it was told to
        ("t/a.py::x[1-a]", [("/r/t/a.py", "x")], True),
        ("t/a.py::x[1-a]", [("/r/t/a.py", "x[1-a]")], True),
        ("t/a.py::x[1-b]", [("/r/t/a.py", "x[1-a]")], False),
        ("t/a.py::C::x", [("/r/t/a.py", "C")], True),
        ("t/a.py::C::x", [("/r/t/a.py", "C::x")], True),
        ("t/a.py::Cx::x", [("/r/t/a.py", "C")], False),
    ],
)
def test_the_intended_tests_are_recognized_by_their_ids(
    nodeid: str, wanted: list[tuple[str, str]], expected: bool
) -> None:
    assert expected == matches(nodeid, wanted, Path("/r"))
