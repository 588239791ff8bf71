"""Nothing is left of `torchprof ab`, however its controller ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import pytest_torchprof
from pytest_torchprof.ab import cleanup_process
from pytest_torchprof.ab.worktree import Cleanup
from pytest_torchprof.core.errors import AbError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and process groups")

TOOL = str(Path(pytest_torchprof.__file__).parents[1])
PATIENCE_S = 60.0  # until a test gives up; it goes on as soon as it can

# Starts what `ab` starts; a word is printed at each moment.
CONTROLLER = f"""
import os, subprocess, sys, time
from pathlib import Path
sys.path.insert(0, {TOOL!r})
from pytest_torchprof.ab.sides import Request, sides
os.environ["CONTROLLER"] = str(os.getpid())
if sys.argv[1] == "signal":
    time.sleep(1000)
with sides(Request("HEAD", None, None, None, None, Path.cwd(), ())) as (a, b, cleanup):
    pids = []
    for script in sys.argv[2:]:
        # As those of ours: it ends by itself if its controller is killed before all is ready.
        script = "read ready || exit; " + script
        worker = subprocess.Popen(
            ["sh", "-c", script], stdin=subprocess.PIPE, cwd=a.cwd, start_new_session=True)
        cleanup.watch(worker.pid)
        worker.stdin.write(b"ready\\n")
        worker.stdin.flush()
        pids.append(worker.pid)
    print(cleanup._process.pid, *pids, flush=True)
    if sys.argv[1] == "wait":
        time.sleep(1000)
"""
OBEYS = "sleep 1000 & sleep 1000"
IGNORES = "trap '' TERM; sleep 1000 & while :; do sleep 1; done"


def until(question: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not question():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.02)


def of_group(leader: int) -> list[int]:
    """Living processes of a process group."""
    listed = subprocess.run(
        ["ps", "-eo", "pid=,pgid=,stat="], capture_output=True, text=True, check=True
    )
    rows = [line.split() for line in listed.stdout.splitlines()]
    return [int(pid) for pid, group, state in rows if int(group) == leader and state[0] != "Z"]


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "a")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "a@example.org")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    folder = tmp_path / "repo"
    folder.mkdir()
    (folder / "file.txt").write_text("text", "utf-8")
    for words in ("init -q", "add -A", "commit -qm first"):
        subprocess.run(["git", *words.split()], cwd=folder, check=True)
    return folder


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(repo: Path, scratch: Path) -> Iterator[Start]:
    """Starts a controller, leader of a group as a shell's job is; ends it at the end."""
    begun: list[subprocess.Popen[str]] = []

    def started(*words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", CONTROLLER, *words],
            cwd=repo,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        begun.append(process)
        return process

    yield started
    for process in begun:
        process.kill()
        process.communicate()


def worktrees(repo: Path) -> int:
    listed = subprocess.run(
        ["git", "worktree", "list", "--porcelain"],
        cwd=repo,
        capture_output=True,
        text=True,
        check=True,
    )
    return listed.stdout.count("worktree ")


def nothing_left(repo: Path, scratch: Path, *groups: int) -> bool:
    return (
        not any(scratch.iterdir())
        and worktrees(repo) == 1
        and not any(of_group(group) for group in groups)
    )


def pids(controller: subprocess.Popen[str]) -> list[int]:
    assert controller.stdout is not None
    return [int(word) for word in controller.stdout.readline().split()]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("number", ["SIGKILL", "SIGTERM", "SIGHUP", "SIGINT"])
def test_a_killed_controller_leaves_nothing(
    start: Start, repo: Path, scratch: Path, number: str
) -> None:
    """As Ctrl-C does, the signal goes to all of the group; our process is in its own."""
    controller = start("wait", OBEYS)
    groups = pids(controller)
    assert not nothing_left(repo, scratch, *groups)
    assert all(of_group(group) for group in groups)
    os.killpg(controller.pid, getattr(signal, number))
    until(lambda: nothing_left(repo, scratch, *groups))


@pytest.mark.thorough
def test_a_worker_that_does_not_want_to_end_is_killed_with_its_children(
    start: Start, repo: Path, scratch: Path
) -> None:
    controller = start("wait", IGNORES, OBEYS)
    groups = pids(controller)
    controller.kill()
    until(lambda: nothing_left(repo, scratch, *groups))


def test_children_of_a_dead_worker_are_ended(start: Start, repo: Path, scratch: Path) -> None:
    controller = start("wait", "sleep 1000 & exit")
    groups = pids(controller)
    assert of_group(groups[1])
    controller.kill()
    until(lambda: nothing_left(repo, scratch, *groups))


def test_a_controller_that_ends_has_cleaned_up(start: Start, repo: Path, scratch: Path) -> None:
    controller = start("end", OBEYS)
    groups = pids(controller)
    out, err = controller.communicate()
    assert (0, "", "") == (controller.returncode, out, err)
    assert nothing_left(repo, scratch, *groups)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kill", ["-9 ", "-2 ", "-2 -"])
def test_a_controller_killed_in_the_middle_of_a_checkout_leaves_nothing(
    start: Start, repo: Path, scratch: Path, kill: str
) -> None:
    """Git goes on by itself, and writes files, if only the controller is killed."""
    (repo / ".gitattributes").write_text("*.txt filter=slow\n", "utf-8")
    slow = f"kill {kill}$CONTROLLER; sleep 0.5; cat"
    for words in (
        ["add", "-A"],
        ["commit", "-qm", "filtered"],
        ["config", "filter.slow.smudge", slow],
    ):
        subprocess.run(["git", *words], cwd=repo, check=True)
    controller = start("wait")
    controller.wait()
    until(lambda: nothing_left(repo, scratch))
    until(lambda: not of_group(controller.pid))
    assert nothing_left(repo, scratch)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("delay_ms", [0, 5, 10, 20, 30, 40, 60, 80, 120])
def test_a_controller_killed_at_any_moment_leaves_nothing(
    start: Start, repo: Path, scratch: Path, delay_ms: int
) -> None:
    controller = start("wait", OBEYS)
    # Not the file by which Python tries whether it can write there.
    until(lambda: any(scratch.glob(f"{cleanup_process.FOLDER_PREFIX}*")))
    time.sleep(delay_ms / 1e3)
    controller.kill()
    out, _ = controller.communicate()
    groups = [int(word) for word in out.split()[1:]]
    until(lambda: nothing_left(repo, scratch, *groups))


def test_a_cleanup_process_that_was_killed_is_replaced_at_the_end(scratch: Path) -> None:
    cleanup = Cleanup()
    worker = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    cleanup.watch(worker.pid)
    cleanup._process.kill()
    cleanup._process.wait()
    (cleanup.folder / "file").touch()
    cleanup.forget(0)
    cleanup.close()
    assert [] == list(scratch.iterdir())
    assert -signal.SIGTERM == worker.wait()


def test_a_process_that_is_forgotten_lives(scratch: Path) -> None:
    cleanup = Cleanup()
    with subprocess.Popen(["sleep", "1000"]) as process:
        cleanup.watch(process.pid)
        cleanup.forget(process.pid)
        cleanup.close()
        cleanup.close()
        assert process.poll() is None
        process.kill()


def test_a_process_that_took_over_the_number_lives() -> None:
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as process:
        cleanup_process.end({process.pid: "1"})
        assert process.poll() is None
        process.kill()


def test_a_worker_that_leads_no_process_group_is_ended_alone(scratch: Path) -> None:
    cleanup = Cleanup()
    with subprocess.Popen(["sleep", "1000"]) as process:
        cleanup.watch(process.pid)
        cleanup.close()
        assert -signal.SIGTERM == process.wait()


def test_a_missing_temporary_folder_is_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(AbError, match=r"nowhere: cannot create a temporary folder here.*TMPDIR"):
        Cleanup()


def test_entries_of_other_worktrees_stay(repo: Path, tmp_path: Path) -> None:
    """Also one whose folder is not there just now, which `git worktree prune` would drop."""
    for name in ("ours", "ours-too", "theirs"):
        place = tmp_path / name / "tree"
        words = ["worktree", "add", "-q", "--detach", str(place)]
        subprocess.run(["git", *words], cwd=repo, check=True)
    (tmp_path / "theirs").rename(tmp_path / "away")
    assert cleanup_process.clear(str(tmp_path / "ours"), [str(repo / ".git")])
    assert 3 == worktrees(repo)
    assert not (tmp_path / "ours").exists()
    assert (tmp_path / "ours-too" / "tree").exists()
