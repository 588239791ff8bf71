"""The controller's end of the process that cleans up after `torchprof ab`."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO, cast

from pytest_torchprof.ab import cleanup_process
from pytest_torchprof.core.errors import AbError

_CLEANING_S = 60.0


class Cleanup:
    """A small process in its own session that makes our temporary folder, and removes it.

    It waits for the end of a pipe that the controller holds. Then it ends the processes that it was
    told to `watch`, and removes the folder with its contents and git's records of worktrees in it.
    That works if the controller ends normally, by an exception, or by any signal; a Ctrl-C of the
    terminal does not reach the process. So every end cleans up in the same way.
    """

    def __init__(self) -> None:
        """Start it. Raises `AbError` if there is no room for a temporary folder."""
        try:
            parent = Path(tempfile.gettempdir()).resolve()
        except OSError as error:
            raise AbError("no temporary folder", str(error), "set TMPDIR") from None
        flags = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
        self._process = subprocess.Popen(  # noqa: S603 - our own file
            [sys.executable, "-I", "-S", cleanup_process.__file__, str(parent)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=parent.anchor,  # it must not block the removal of a folder
            start_new_session=True,
            creationflags=flags,
        )
        self._pipe = cast("IO[bytes]", self._process.stdin)
        self._watched: dict[int, str | None] = {}
        self._repositories: list[str] = []
        with cast("IO[bytes]", self._process.stdout) as answers:
            answer = json.loads(answers.readline() or "{}")
        if "folder" not in answer:
            self._pipe.close()
            self._process.wait()
            raise AbError(
                f"{parent}: cannot create a temporary folder here",
                answer.get("error", "the cleanup process did not start"),
                "set TMPDIR to a folder with free space",
            )
        #: An empty folder for worktrees and other files; removed when the controller ends.
        self.folder = Path(answer["folder"])

    def watch(self, pid: int) -> None:
        """End this process, and the process group that it leads, if the controller cannot.

        Call it right after the process is started. It may become the leader of its group later.
        """
        self._watched[pid] = cleanup_process.started(pid)
        self._tell(f"watch {pid}")

    def forget(self, pid: int) -> None:
        """This process has ended normally, and has been waited for."""
        self._watched.pop(pid, None)
        self._tell(f"forget {pid}")

    def worktrees_of(self, repository: Path) -> None:
        """Remove records of worktrees in `folder` from this git repository (its common folder)."""
        self._repositories.append(str(repository))
        self._tell(f"repository {json.dumps(str(repository))}")

    @property
    def held(self) -> tuple[int, ...]:
        """File descriptors for ``pass_fds`` of a process that fills `folder`.

        If the controller is killed, the process waits for such a process: otherwise files could
        appear after the cleanup.
        """
        return () if sys.platform == "win32" else (self._pipe.fileno(),)

    def close(self) -> None:
        """Clean up, and wait until that is done. Further calls do nothing."""
        if self._pipe.closed:
            return
        self._tell("clean")
        with suppress(OSError):
            self._pipe.close()
        try:
            code = self._process.wait(_CLEANING_S)
        except subprocess.TimeoutExpired:
            return  # it continues alone
        if code:  # it was killed, or a file could not be removed
            cleanup_process.end(self._watched)
            cleanup_process.clear(str(self.folder), self._repositories)

    def _tell(self, line: str) -> None:
        with suppress(OSError):  # it was killed: `close` cleans up itself
            self._pipe.write(f"{line}\n".encode())
            self._pipe.flush()
