"""--torchprof-history: one document a run, and a session that never fails for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.histories import Repository, git
from support.sessions import ADD, run

from pytest_torchprof.session.reports import ci_job

REGIONS = """
    import torch

    X = torch.ones(4)

    def test_add(torchprof):
        with torchprof("part"):
            X + X
        torchprof.record("rate", 2.5, unit="1/s", better="higher", compare="time")

    def test_fails():
        assert X is None
"""


@pytest.fixture
def repository(pytester: pytest.Pytester) -> Repository:
    """A repository around the inner tests."""
    return Repository(pytester.path)


def documents(pytester: pytest.Pytester, folder: str = "runs") -> list[dict[str, Any]]:
    """What the history has."""
    paths = sorted((pytester.path / folder).glob("*"))
    assert all(path.name.endswith(".run.json") for path in paths)
    return [json.loads(path.read_text("utf-8")) for path in paths]


def test_a_run_is_one_document(pytester: pytest.Pytester, repository: Repository) -> None:
    pytester.makepyfile(test_it=REGIONS)
    commit = repository.commit()
    ran = run(pytester, "--torchprof", "--torchprof-history=runs")
    (document,) = documents(pytester)
    assert ("torchprof-run/1", commit, [], "main", False) == tuple(
        document[key] for key in ("schema", "commit", "parents", "branch", "dirty")
    )
    assert ran.report["environment"] == document["environment"]
    assert {"torchprof", "python", "torch", "numpy", "pytest"} <= document["versions"].keys()
    tests = {test["nodeid"].partition("::")[2]: test for test in document["tests"]}
    known = {name: m["value"] for name, m in ran.tests["test_add"]["metrics"].items()
             if m["value"] is not None}  # fmt: skip
    assert known == tests["test_add"]["metrics"]
    part = ran.tests["test_add"]["regions"]["part"]["metrics"]
    known = {name: m["value"] for name, m in part.items() if m["value"] is not None}
    assert {"laps": 1, "metrics": known} == tests["test_add"]["regions"]["part"]
    assert {"rate": {"unit": "1/s", "class": "time", "better": "higher"}} == tests["test_add"][
        "own"
    ]
    assert 16 == len(tests["test_add"]["source"])
    assert ("failed", "not_profiled") == (
        tests["test_fails"]["outcome"], tests["test_fails"]["status"],
    )  # fmt: skip
    ran.result.stdout.fnmatch_lines(
        [f"history: *-{commit[:12]}-*.run.json in {pytester.path}/runs"]
    )


def test_runs_are_added_and_never_replaced(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=ADD)
    for _ in range(2):
        run(pytester, "--torchprof", "--torchprof-history=runs")
    assert 2 == len(documents(pytester))


def test_without_git_the_commit_is_unknown_and_that_is_said_once(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(pytester.path.parent))
    pytester.makepyfile(test_it=ADD)
    ran = run(pytester, "--torchprof", "--torchprof-history=runs")
    (document,) = documents(pytester)
    assert {None} == {document[key] for key in ("repository", "commit", "parents", "dirty")}
    assert 0 == ran.ret
    assert 1 == ran.out.count("without a commit")
    ran.result.stdout.fnmatch_lines(["history: * without a commit: *: not in a git repository"])
    assert "fatal" not in ran.out + ran.err


def test_the_ini_names_a_folder_below_the_root(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makeini("[pytest]\ntorchprof_history = runs\n")
    inner = pytester.mkdir("inner")
    (inner / "test_it.py").write_text("import torch\ndef test_add(): torch.ones(1) + 1\n")
    monkeypatch.chdir(inner)
    run(pytester, "--torchprof")
    assert 1 == len(documents(pytester))


def test_the_ini_alone_profiles_nothing(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ntorchprof_history = runs\n")
    pytester.makepyfile(test_it=ADD)
    assert 0 == run(pytester).ret
    assert not (pytester.path / "runs").exists()


def test_the_option_needs_profiling(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=ADD)
    error = run(pytester, "--torchprof-history=runs").usage_error()
    assert "--torchprof-history does nothing without --torchprof" in error


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("address", ["file/runs", "nowhere://bucket"])
def test_a_history_that_cannot_be_written_is_a_warning_and_changes_no_outcome(
    pytester: pytest.Pytester, address: str, fails: bool
) -> None:
    pytester.makepyfile(test_it=ADD + ("        assert False" if fails else ""))
    (pytester.path / "file").write_text("x")
    ran = run(pytester, "--torchprof", f"--torchprof-history={address}")
    assert int(fails) == ran.ret
    lines = [line for line in ran.out.splitlines() if line.startswith("WARNING: ")]
    assert 1 == len(lines)
    assert "history" in lines[0]
    assert "Traceback" not in ran.out + ran.err


def test_an_error_of_git_changes_no_outcome(
    pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(test_it=ADD)
    program = pytester.mkdir("bin") / "git"
    program.write_text("#!/bin/sh\necho 'fatal: dubious ownership' >&2\nexit 128\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    ran = run(pytester, "--torchprof", "--torchprof-history=runs")
    assert 0 == ran.ret
    ran.result.stdout.fnmatch_lines(["history: * without a commit: *fatal: dubious ownership"])
    assert documents(pytester)[0]["commit"] is None


def test_a_session_without_tests_adds_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=ADD)
    run(pytester, "--torchprof", "--torchprof-history=runs", "-k", "nothing")
    run(pytester, "--torchprof", "--torchprof-history=runs", "--collect-only")
    assert not (pytester.path / "runs").exists()


def test_an_interrupted_session_adds_what_it_measured(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=ADD + "\n    def test_stops(): raise KeyboardInterrupt\n")
    run(pytester, "--torchprof", "--torchprof-history=runs")
    (document,) = documents(pytester)
    assert document["interrupted"]
    assert 1 == document["tests"][0]["metrics"]["ops"]


@pytest.mark.thorough
def test_accepting_keeps_the_tree_clean_and_the_source_the_same(
    pytester: pytest.Pytester, repository: Repository
) -> None:
    pytester.makepyfile(
        test_it="""
        import torch

        def test_add(torchprof):
            with torchprof:
                torch.ones(4) + 1
            torchprof.assert_expected_inline('''''')
    """
    )
    run(pytester, "--accept")
    (pytester.path / ".gitignore").write_text("report.json\n")
    repository.commit()
    for _ in range(2):
        run(pytester, "--accept", "--torchprof-history=runs")
    assert [False, False] == [document["dirty"] for document in documents(pytester)]
    git(pytester.path, "checkout", "-q", "--", ".")
    text = (pytester.path / "test_it.py").read_text()
    (pytester.path / "test_it.py").write_text(text.replace("ops", "ops "))
    run(pytester, "--accept", "--torchprof-history=runs")
    first, _, last = documents(pytester)
    assert first["tests"][0]["source"] == last["tests"][0]["source"]


@pytest.mark.thorough
def test_with_workers_the_controller_writes_one(
    pytester: pytest.Pytester, repository: Repository
) -> None:
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    pytester.makepyfile(test_it=ADD + "\n    def test_more(): X + X\n")
    commit = repository.commit()
    run(pytester, "--torchprof", "--torchprof-history=runs", "-n2", needs=("xdist",),
        subprocess=True)  # fmt: skip
    (document,) = documents(pytester)
    assert (commit, 2, 2) == (document["commit"], document["workers"], len(document["tests"]))
    assert "cpu" in document["environment"]["key"] or document["environment"]["accelerator"]
    assert all(len(test["source"]) == 16 for test in document["tests"])


@pytest.mark.thorough
def test_a_url_is_written_through_fsspec(pytester: pytest.Pytester) -> None:
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    pytester.makepyfile(test_it=ADD)
    system = fsspec.filesystem("memory")
    system.store.clear()
    run(pytester, "--torchprof", "--torchprof-history=memory://bucket/runs")
    (path,) = system.store
    assert path.startswith("/bucket/runs/")
    assert "torchprof-run/1" == json.loads(system.store[path].getvalue())["schema"]
    system.store.clear()


@pytest.mark.thorough
def test_without_the_option_nothing_of_it_is_loaded(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=ADD)
    pytester.makeconftest("""
        import sys

        def pytest_unconfigure():
            names = [n for n in sys.modules if n.startswith("pytest_torchprof.history")]
            print("\\nloaded:", names)
    """)
    ran = run(pytester, "--torchprof", "-s", subprocess=True)
    assert "loaded: []" in ran.out


@pytest.mark.parametrize(
    ("environ", "job"),
    [
        ({}, None),
        ({"CI": "true"}, {"service": "other", "url": None}),
        (
            {
                "GITHUB_ACTIONS": "true",
                "GITHUB_SERVER_URL": "https://github.com",
                "GITHUB_REPOSITORY": "o/n",
                "GITHUB_RUN_ID": "7",
            },
            {"service": "github", "url": "https://github.com/o/n/actions/runs/7"},
        ),
        ({"GITHUB_ACTIONS": "true"}, {"service": "github", "url": None}),
        ({"GITLAB_CI": "1", "CI_JOB_URL": "u"}, {"service": "gitlab", "url": "u"}),
        ({"JENKINS_URL": "x", "BUILD_URL": "u"}, {"service": "jenkins", "url": "u"}),
    ],
)
def test_the_job_is_what_the_service_says(
    environ: dict[str, str], job: dict[str, str | None] | None
) -> None:
    assert job == ci_job(environ)
