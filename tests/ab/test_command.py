"""`torchprof ab` on a real repository, with real workers; few runs, many assertions on each."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

PACKAGE = """
    import torch

    X = torch.ones(64, 64)

    def step(times={times}):
        for _ in range(times):
            X @ X

    def shape():
        return {size}

    def divide():
        return 1 / {divisor}
"""

TESTS = """
    import os
    import random
    from pathlib import Path

    import pytest
    import torch

    import shop

    TIMES = int(torch.randint(10, 40, ()))  # the same on both sides

    @pytest.fixture
    def factor():
        return 2.0

    def test_step(factor):
        if mark := os.environ.get("AB_MARK"):
            Path(mark).touch()
        shop.step()

    def test_steady(factor):
        for _ in range(TIMES + random.randrange(20)):  # as many on both sides
            shop.X * factor

    def test_counts():
        torch.ones(shop.shape(), 64) @ shop.X

    def test_fixed():
        shop.divide()

    @pytest.mark.skip(reason="of no use here")
    def test_skipped():
        pass

    def test_{name}():
        shop.X + shop.X
"""


@dataclass
class Project:
    """A repository with a package in src/ that is installed editable, as PYTHONPATH has it."""

    root: Path
    temporary: Path
    mark: Path
    ident: str = field(default_factory=lambda: uuid.uuid4().hex)

    @classmethod
    def make(cls, folder: Path) -> Project:
        """With one commit, tagged v1; and changes that are not committed: the step takes longer."""
        project = cls(folder / "repo", folder / "tmp", folder / "mark")
        for path in (project.root / "src" / "shop", project.root / "tests", project.temporary):
            path.mkdir(parents=True)
        (project.root / ".gitignore").write_text("__pycache__/\n")
        (project.root / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
        project.write(times=20, size=32, divisor=0, name="old")
        project.git("init", "-q", "-b", "main")
        project.git("add", "-A")
        project.git("-c", "user.name=n", "-c", "user.email=e@x", "commit", "-qm", "first")
        project.git("tag", "v1")
        project.write(times=80, size=48, divisor=1, name="new")
        return project

    def write(self, *, times: int, size: int, divisor: int, name: str) -> None:
        """Package and tests of a revision."""
        package = textwrap.dedent(PACKAGE).format(times=times, size=size, divisor=divisor)
        (self.root / "src" / "shop" / "__init__.py").write_text(package)
        tests = textwrap.dedent(TESTS).replace("{name}", name)
        (self.root / "tests" / "test_shop.py").write_text(tests)

    def git(self, *words: str) -> str:
        """What git says."""
        command = ["git", "-C", str(self.root), *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def start(
        self, *words: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """The command, in a group of its own, as a shell starts it."""
        source = str(self.root / "src")
        environment = {
            **os.environ,
            "AB_TEST": self.ident,
            "AB_MARK": str(self.mark),
            "TMPDIR": str(self.temporary),
            "PYTHONPATH": os.pathsep.join([str(ROOT), source]),
            "TORCHINDUCTOR_CACHE_DIR": str(self.temporary.parent / "inductor"),  # torch's own
            "COLUMNS": "160",
            "OMP_NUM_THREADS": "1",  # threads that wait for one another are slow on a busy machine
            **(env or {}),
        }
        environment.pop("PYTEST_ADDOPTS", None)
        return subprocess.Popen(
            [sys.executable, "-m", "pytest_torchprof", "ab", *map(str, words)],
            cwd=cwd or self.root,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *words: str | Path, **more: Any) -> tuple[int, str, str]:
        """Status, stdout, stderr of the command."""
        process = self.start(*words, **more)
        out, err = process.communicate(timeout=180)
        return process.returncode, out, err

    def left_behind(self) -> list[str]:
        """Worktrees, temporary files and processes that should not be there any more."""
        trees = self.git("worktree", "list").splitlines()[1:]
        hidden = [str(path) for path in (self.root / ".git" / "worktrees").glob("*")]
        files = [str(path) for path in self.temporary.iterdir()]
        return trees + hidden + files + [f"process {pid}" for pid in self.processes()]

    def processes(self) -> Iterator[int]:
        """Those that the command has started, and their children."""
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (folder / "environ").read_bytes()
                if f"AB_TEST={self.ident}".encode() in words:
                    yield int(folder.name)

    def assert_clean(self) -> None:
        """Soon there is nothing left."""
        eventually(lambda: not self.left_behind(), lambda: f"left behind: {self.left_behind()}")


def eventually(condition: Callable[[], bool], why: Callable[[], str], seconds: float = 30) -> None:
    """Wait for something that is to happen soon."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, why()
        time.sleep(0.05)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    if shutil.which("git") is None or not Path("/proc/self/environ").exists():
        pytest.skip("needs git, and processes that can be listed")
    return Project.make(tmp_path_factory.mktemp("ab"))


@dataclass(frozen=True)
class Ran:
    """What a run has said."""

    status: int
    document: dict[str, Any]
    report: dict[str, Any]
    err: str
    changes: tuple[str, str]

    @property
    def rows(self) -> dict[str, dict[str, Any]]:
        return {row["name"].partition("::")[2]: row for row in self.document["rows"]}


@pytest.fixture(scope="module")
def ran(project: Project) -> Ran:
    """One run from within a folder of the repository, that most tests here look at."""
    before = project.git("status", "--porcelain")
    # Between once the time and four times, so that no chance makes a test slower or another not.
    words = ["v1", "--min-time", "0.4", "--threshold", "50", "--format", "json", "--"]
    words += ["test_shop.py", "-k", "not no_such_test", "--torchprof-json=../report.json"]
    status, out, err = project.run(*words, cwd=project.root / "tests")
    file = project.root / "report.json"
    assert out, err
    report = json.loads(file.read_text("utf-8"))
    file.unlink()
    after = project.git("status", "--porcelain")
    return Ran(status, json.loads(out), report, err, (before, after))


@pytest.mark.thorough
def test_a_slower_test_is_found_and_no_other(ran: Ran) -> None:
    verdicts = {name: row["verdict"] for name, row in ran.rows.items()}
    assert "slower" == verdicts["test_step"]
    assert verdicts["test_steady"] in {"same", "unclear"}
    assert (1, "") == (ran.status, ran.err)
    step = ran.rows["test_step"]
    assert 2 < step["ratio"] < 8
    assert 1 + step["low"] < step["ratio"] < 1 + step["high"]
    assert 0 < step["wall_ms_a"] < step["wall_ms_b"]
    assert 0 < step["cpu_ms_a"]
    assert 0 < step["measured_s"] < step["spent_s"]


@pytest.mark.thorough
def test_each_test_that_cannot_be_compared_says_why(ran: Ran) -> None:
    verdicts = {
        name: ran.rows[name]["verdict"]
        for name in ("test_new", "test_old", "test_fixed", "test_skipped")
    }
    expected = {"test_new": "new", "test_old": "gone", "test_fixed": "failed"}
    assert expected | {"test_skipped": "skipped"} == verdicts
    assert ran.rows["test_fixed"]["reason"].startswith("fails in A: ")
    assert "ZeroDivisionError" in ran.rows["test_fixed"]["reason"]
    assert "of no use here" in ran.rows["test_skipped"]["reason"]


def test_exact_metrics_that_differ_are_named(ran: Ran) -> None:
    differences = {d["metric"]: d for d in ran.rows["test_counts"]["differences"]}
    flops = differences["flops"]
    assert (2 * 32 * 64 * 64, 2 * 48 * 64 * 64) == (flops["a"], flops["b"])
    assert [] == ran.rows["test_steady"]["differences"]
    tests = {test["nodeid"].partition("::")[2]: test for test in ran.report["tests"]}
    (cause,) = tests["test_counts"]["causes"]
    assert "larger_inputs" == cause["kind"]
    assert cause["message"].startswith("larger inputs of matmul")
    assert [] == tests["test_steady"]["causes"]


def test_the_sides_are_the_revision_and_the_working_tree(ran: Ran, project: Project) -> None:
    a, b = ran.document["a"], ran.document["b"]
    assert "v1" in a["label"]
    assert "uncommitted" in b["label"]
    assert (project.root, project.root / "tests") == (Path(b["root"]), Path(b["cwd"]))
    assert Path(a["cwd"]) == Path(a["root"]) / "tests"
    assert not Path(a["root"]).exists()
    assert 0.99 == ran.document["confidence"]
    assert 3 == ran.document["tests"]


def test_the_report_is_of_b_with_a_as_its_baseline(ran: Ran) -> None:
    assert "torchprof-report/1" == ran.report["schema"]
    tests = {test["nodeid"].partition("::")[2]: test for test in ran.report["tests"]}
    wall = tests["test_step"]["metrics"]["wall_ms"]
    assert "regressed" == wall["status"]
    row = ran.rows["test_step"]
    assert (row["wall_ms_b"], row["wall_ms_a"]) == (wall["value"], wall["baseline"])
    assert "slower" == tests["test_step"]["ab"]["verdict"]
    assert row["pairs"] == tests["test_step"]["ab"]["pairs"]
    assert tests["test_counts"]["metrics"]["flops"]["baseline"] == 2 * 32 * 64 * 64


def test_the_working_tree_is_as_it_was(ran: Ran, project: Project) -> None:
    before, after = ran.changes
    assert before == after
    assert not list(project.root.rglob(".pytest_cache"))
    project.assert_clean()


@pytest.mark.thorough
def test_the_same_code_twice_has_no_confirmed_change(project: Project, tmp_path: Path) -> None:
    """Two trees that are no repository, and a table."""
    (tmp_path / ".pytest_cache").mkdir()
    for name in ("one", "two"):
        shutil.copytree(project.root / "src", tmp_path / name / "src")
        shutil.copytree(project.root / "tests", tmp_path / name / "tests")
        (tmp_path / name / "pytest.ini").write_text("[pytest]\npythonpath = src\n")
    status, out, err = project.run(
        "--a", tmp_path / "one", "--b", tmp_path / "two", "--min-time", "0.2",
        "--threshold", "100", "--", "tests", "-k", "steady or counts", cwd=tmp_path / "two",
        env={"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert (0, "") == (status, err), out
    assert str(tmp_path / "one") in out.splitlines()[0]
    assert "slower" not in out
    assert "faster" not in out
    assert "exact metrics that differ" not in out
    assert "99 % confidence over 2 tests together, changes below 100 % are ignored" in out
    project.assert_clean()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("SIGINT", 130),
        pytest.param("SIGTERM", 130, marks=pytest.mark.thorough),
        pytest.param("SIGKILL", -9, marks=pytest.mark.thorough),
    ],
)
def test_an_ended_run_leaves_no_files(
    project: Project, tmp_path: Path, name: str, status: int
) -> None:
    project.mark.unlink(missing_ok=True)
    report = tmp_path / "report.json"
    words = ["v1", "--rounds", "1000000", "--", "tests", "-k", "step or old"]
    process = project.start(*words, f"--torchprof-json={report}")
    try:
        eventually(project.mark.exists, lambda: "the test did not begin")
        assert len(project.git("worktree", "list").splitlines()) == 2
        if name == "SIGINT":  # as a terminal sends it
            os.killpg(process.pid, signal.SIGINT)
        else:
            process.send_signal(getattr(signal, name))
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert status == process.returncode, err
    if name == "SIGKILL":  # what is left is removed by a later run, see test_sides.py
        eventually(lambda: not [*project.processes()], lambda: "a process lives on")
        for folder in project.temporary.iterdir():
            project.git("worktree", "remove", "--force", *map(str, folder.glob("repo")))
            shutil.rmtree(folder)
        return
    project.assert_clean()
    assert "Traceback" not in err
    interrupted = json.loads(report.read_text("utf-8"))
    assert interrupted["environment"]["interrupted"]


@pytest.mark.thorough
@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no-such-branch", "--", "tests"], "no-such-branch"),
        (["--", "tests"], "give a git revision"),
        (["tests"], "arguments for pytest go after --: REF -- tests"),
        (["--a", "no/such/folder"], "no/such/folder"),
        (["v1", "--python-b", "no-such-python"], "no-such-python"),
    ],
)
def test_a_missing_side_is_one_line(project: Project, words: list[str], message: str) -> None:
    status, out, err = project.run(*words)
    assert (2, "", 1) == (status, out, err.count("\n")), err
    assert message in err
    project.assert_clean()


def test_outside_of_a_repository_a_revision_is_refused(project: Project, tmp_path: Path) -> None:
    status, out, err = project.run("main", cwd=tmp_path)
    assert (2, "", 1) == (status, out, err.count("\n")), err
    assert "git" in err


@pytest.mark.thorough
def test_having_nothing_to_compare_is_not_a_success(project: Project) -> None:
    status, out, err = project.run("v1", "--min-time", "0.1", "--", "tests", "-k", "new")
    assert (2, 1) == (status, err.count("\n")), out + err
    assert "nothing was compared: every test is only in B" in err
    assert "test_new" in out
    project.assert_clean()


@pytest.mark.thorough
@pytest.mark.parametrize("inside", [False, True])
def test_a_folder_on_only_one_side_does_not_crash(project: Project, inside: bool) -> None:
    folder = project.root / "perf"
    folder.mkdir()
    (folder / "test_first.py").write_text("def test_first(): sum(range(9))\n", "utf-8")
    try:
        if inside:
            status, out, err = project.run("v1", cwd=folder)
        else:
            status, out, err = project.run("v1", "--", "perf")
    finally:
        shutil.rmtree(folder)
    assert (2, "torchprof: nothing was compared: every test is only in B\n") == (status, err)
    assert "test_first" in out
    project.assert_clean()
