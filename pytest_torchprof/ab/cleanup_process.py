"""The process of `cleanup`: waits until the controller is gone, then removes everything.

Standard library only and nothing of this package: it is started as a file, without site-packages,
so that it starts in a few milliseconds and cannot import the code under test. On Windows the
cleanup is limited: processes are ended without a grace period, and files that are still open stay.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

FOLDER_PREFIX = "torchprof-ab-"
GRACE_S = 2.0
_POLL_S = 0.02
_TRIES = 25  # to remove a folder that is still written to, over about 5 s


def started(pid: int) -> str | None:
    """When the process started, in ticks since boot; None if it is gone or a zombie.

    "" where the start is unknown: then the pid may have been reused.
    >>> started(os.getpid()) is None
    False
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        if Path("/proc/self/stat").exists():
            return None
        return "" if _is_there(pid) else None
    state, *rest = text.rpartition(")")[2].split()  # proc(5): the name may contain any character
    return None if state in "ZX" else rest[18]


def _is_there(pid: int) -> bool:
    if sys.platform == "win32":
        return True  # os.kill would end it: Windows has no harmless signal
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def end(processes: Mapping[int, str | None]) -> None:
    """End these processes (pid → when it started) and all of their process groups."""
    left = {pid: born for pid, born in processes.items() if started(pid) in {born, None}}
    if sys.platform == "win32":
        for pid in left:
            with suppress(OSError):
                os.kill(pid, signal.SIGTERM)
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        alive = [pid for pid, born in left.items() if _signal(pid, born, number)]
        deadline = time.monotonic() + GRACE_S
        while alive and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            alive = [pid for pid in alive if _group_is_there(pid) or _runs(pid, left[pid])]


def _runs(pid: int, born: str | None) -> bool:
    return born is not None and started(pid) == born


def _signal(pid: int, born: str | None, number: signal.Signals) -> bool:
    """Signal the group that the process leads or led, else the process; whether there was one."""
    if sys.platform == "win32":
        return False
    now = started(pid)
    if now is not None and now != born:
        return False  # the pid was reused, so the group is gone too
    with suppress(ProcessLookupError, PermissionError):
        # A group keeps its leader's pid after the leader's end, so the pid cannot have been reused.
        os.killpg(pid, number)
        return True
    if now is None:
        return False
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
        return True
    return False


def _group_is_there(leader: int) -> bool:
    if sys.platform == "win32":
        return False
    proc = Path("/proc")
    try:
        os.killpg(leader, 0)
    except (ProcessLookupError, PermissionError):
        return False
    if not (proc / "self" / "stat").exists():
        return True
    for entry in proc.iterdir():  # zombies do not count: their parent may reap them late
        if entry.name.isdigit():
            with suppress(OSError):
                text = (entry / "stat").read_text("utf-8", "replace")
                state, _, group = text.rpartition(")")[2].split()[:3]
                if int(group) == leader and state not in "ZX":
                    return True
    return False


def clear(folder: str, repositories: Iterable[str]) -> bool:
    """Remove the folder, and git's records of worktrees in it; whether all of it is gone.

    ``repositories`` are git's common folders (``.git``). Other worktrees' records stay, which ``git
    worktree prune`` would not guarantee.
    """
    for attempt in range(_TRIES):
        if not os.path.lexists(folder):
            break
        if attempt:
            time.sleep(0.2)
        _remove(folder)
    for repository in repositories:
        for entry in _entries(repository, folder):
            _remove(entry)
    return not os.path.lexists(folder)


def _entries(repository: str, folder: str) -> list[str]:
    """Git's records of worktrees that are in our folder."""
    found = []
    with suppress(OSError):
        for entry in os.scandir(os.path.join(repository, "worktrees")):
            with suppress(OSError, ValueError):
                gitdir = Path(entry.path, "gitdir").read_bytes().rstrip(b"\r\n")
                place = os.path.normpath(Path(entry.path, os.fsdecode(gitdir)))
                if Path(folder) in Path(place).parents:
                    found.append(entry.path)
    return found


def _remove(folder: str) -> None:
    def unlock(again: Callable[[str], object], path: str, _: object) -> None:
        with suppress(OSError):  # a read-only file on Windows, a read-only folder elsewhere
            for locked in (str(Path(path).parent), path):
                if not Path(locked).is_symlink():
                    Path(locked).chmod(stat.S_IRWXU)
            again(path)

    if sys.version_info >= (3, 12):
        shutil.rmtree(folder, onexc=unlock)
    else:
        shutil.rmtree(folder, onerror=unlock)


def clean_up(parent: str) -> int:
    """Make a folder in ``parent``, print its path, obey lines of stdin, clean up at their end.

    Returns 0 if all was removed. Lines are ``watch PID``, ``forget PID``, ``repository PATH`` and
    ``clean`` (now, as at the end); paths in JSON.
    """
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):  # it must not end before the controller
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    try:
        folder = tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=parent)
    except OSError as error:
        print(json.dumps({"error": str(error)}), flush=True)  # noqa: T201 - to the controller
        return 1
    processes: dict[int, str | None] = {}
    repositories: list[str] = []
    with suppress(OSError):  # already gone, as the end of stdin will tell
        print(json.dumps({"folder": folder}), flush=True)  # noqa: T201 - to the controller
        for line in sys.stdin:
            word, _, rest = line.strip().partition(" ")
            if word == "clean":
                break
            if word == "watch":
                processes[int(rest)] = started(int(rest))
            elif word == "forget":
                processes.pop(int(rest), None)
            elif word == "repository":
                repositories.append(json.loads(rest))
    end(processes)
    return 0 if clear(folder, repositories) else 1


if __name__ == "__main__":
    sys.exit(clean_up(sys.argv[1]))
