"""The controller's end of a worker: its process and the requests to it."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from pytest_torchprof.ab.address_space import same_addresses, same_environment
from pytest_torchprof.ab.generated_files import unbuilt
from pytest_torchprof.ab.messages import Collection, End, Profiled, Turn
from pytest_torchprof.core.errors import AbError
from pytest_torchprof.core.reasons import Reason, Why, because
from pytest_torchprof.render.reason_texts import in_words

if TYPE_CHECKING:
    from pytest_torchprof.ab.cleanup import Cleanup
    from pytest_torchprof.ab.sides import Side

#: Runs in the worker. Paths first: neither the working folder nor ours may hide a module.
_START = """
import os, sys
if hasattr(os, "setsid"):
    os.setsid()
os.dup2(2, 1)
side = channel.receive()
os.chdir(side["cwd"])
sys.path[:] = [entry for entry in sys.path if entry]
given, sys.path[:] = sys.path[:], [side["tool"], *sys.path]
import pytest_torchprof
sys.path[:] = given
from pytest_torchprof.ab.worker import serve
serve(channel, side)
"""

_POLL_S = 1.0
_GOODBYE_S = 10.0


class WorkerDied(Exception):  # noqa: N818 - it is an event
    """The process is gone, or its pytest session is; the reason says how."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason


class Worker:
    """One side's process. Methods raise `WorkerDied` if the process is gone."""

    def __init__(self, side: Side, cleanup: Cleanup, number: int = 0) -> None:
        self.side = side
        self._cleanup = cleanup
        self._number = number
        self._log = tempfile.TemporaryFile("a+b")  # noqa: SIM115 - as long as the worker
        self._gateway: Any = None
        self._channel: Any = None
        self.pid = 0
        #: How it ended, once it has by itself.
        self.ended: End | None = None

    # ---------------------------------------------------------------- life

    def start(self) -> None:
        """Start the process; it collects tests in the background.

        Raises:
            AbError: there is no such interpreter, or it cannot start.
        """
        import execnet

        python = shlex.quote(re.sub("/{2,}", "/", self.side.python))
        group = execnet.Group(execmodel="main_thread_only")
        try:
            with _stderr_to(self._log.fileno()), same_addresses(), same_environment():
                spec = f"popen//python={python}//execmodel=main_thread_only"
                self._gateway = group.makegateway(spec)
        except (OSError, EOFError, AssertionError) as error:
            raise AbError(
                f"{self.side.name}: {self.side.python} does not start",
                str(error) if (why := self.complaint()) is None else in_words(why),
                "give the path of a Python that has pytest-torchprof",
            ) from None
        self._group = group
        self.pid = int(self._gateway._io.popen.pid)  # noqa: SLF001 - execnet hands it out nowhere
        self._cleanup.watch(self.pid)
        self._channel = self._gateway.remote_exec(_START)
        folder = self._cleanup.folder / f"{self.side.name}{self._number}"
        self._tell(
            {
                "name": self.side.name,
                "root": str(self.side.root),
                "cwd": str(self.side.cwd),
                "others": [str(other) for other in self.side.others],
                "args": list(self.side.args),
                "wanted": list(self.side.wanted),
                "tool": str(self.side.tool),
                "folder": str(folder),
            }
        )

    def close(self) -> None:
        """Let pytest end its session, and make sure that the process is gone."""
        if self._channel is not None and self.ended is None:
            with suppress(WorkerDied):
                self._tell(("end",))
                while self.ended is None:
                    self._receive(_GOODBYE_S)
        self.kill(gently=self.ended is not None)

    def kill(self, *, gently: bool = False) -> None:
        """End the process at once, with those that it has started."""
        if self._gateway is None:
            self._log.close()
            return
        if not gently:
            _end_group(self.pid)
        self._group.terminate(timeout=3.0)
        _end_group(self.pid)  # what tests have left behind
        self._cleanup.forget(self.pid)
        self._gateway = self._channel = None
        self._log.close()

    # ---------------------------------------------------------------- questions

    def collect(self) -> Collection:
        """Wait until it has collected its tests."""
        found = Collection.read(self._expect("collected")[1])
        errors = {place: self._explained(why) for place, why in found.errors.items()}
        return replace(found, errors=errors)

    def profile(self, nodeid: str, following: str | None) -> Profiled:
        """Run the test, and once more profiled. If it passes, `finish` must follow."""
        self._tell(("test", nodeid, following))
        return Profiled.read(self._expect("profiled", "finished")[1])

    def turn(self, calls: int, *, fresh: bool, processor: int = 0) -> Turn:
        """Call the test this many times, on new fixtures or on the existing ones."""
        self._tell(("turn", calls, fresh, processor))
        return Turn.read(self._expect("turn")[1])

    def finish(self) -> Profiled:
        """Tear the test down; return its final outcome."""
        self._tell(("done",))
        return Profiled.read(self._expect("finished")[1])

    def complaint(self) -> Reason | None:
        """The line of its output that says why it could not continue."""
        self._log.seek(0)
        line = complaint(self._log.read().decode("utf-8", "replace"))
        return None if line is None else self._explained(because(Why.ERROR, message=line))

    def _explained(self, why: Reason) -> Reason:
        """An error, or its cause if the module is built only in the other tree."""
        error = str(dict(why.data).get("message", ""))
        return unbuilt(error, self.side.root, self.side.others) or why

    # ---------------------------------------------------------------- the channel

    def _tell(self, message: Any) -> None:
        try:
            self._channel.send(message)
        except OSError:
            raise WorkerDied(self._how()) from None

    def _expect(self, *kinds: str) -> Any:
        while True:
            message = self._receive()
            if message[0] in kinds:
                return message

    def _receive(self, timeout: float | None = None) -> Any:
        """The next message. A child of the worker may hold the channel open, so check its pid."""
        import execnet

        waited = 0.0
        while True:
            try:
                message = self._channel.receive(_POLL_S)
            except execnet.TimeoutError:
                waited += _POLL_S
                if self._code() is not None or (timeout is not None and waited >= timeout):
                    raise WorkerDied(self._how()) from None
            except execnet.RemoteError as error:
                raise WorkerDied(because(Why.ERROR, message=_last(str(error)))) from None
            except (EOFError, OSError):
                raise WorkerDied(self._how()) from None
            else:
                break
        if message[0] == "ended":
            self.ended = End.read(message[1])
            raise WorkerDied(self._how())
        return message

    def _code(self) -> int | None:
        code: int | None = self._gateway._io.popen.poll()  # noqa: SLF001 - as above
        return code

    def _how(self) -> Reason:
        """How it ended."""
        if self.ended is not None:
            return self.ended.error or because(Why.PYTEST_EXITED, code=self.ended.code)
        with suppress(Exception):
            self._gateway._io.popen.wait(2.0)  # noqa: SLF001 - the end of a pipe comes first
        code = self._code()
        if code is None:
            return because(Why.WORKER_SILENT)
        if code < 0:
            with suppress(ValueError):
                return because(Why.WORKER_KILLED, signal=signal.Signals(-code).name)
        return because(Why.WORKER_EXITED, code=code)


def _last(text: str) -> str:
    """The exception of a traceback."""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "an error without a message"


def complaint(output: str) -> str | None:
    r"""The line of pytest's, or Python's, output that describes the error.

    >>> complaint("usage: pytest [options]\npytest: error: no option -z\n  rootdir: /x")
    'pytest: error: no option -z'
    """
    lines = [line.rstrip() for line in output.splitlines() if line.strip()]
    for marks in (lambda line: line.startswith("E  "), lambda line: ": error: " in line):
        if marked := [line for line in lines if marks(line)]:
            return marked[0].removeprefix("E").strip()
    errors = [line for line in lines if line.startswith(("ERROR", "INTERNALERROR>"))]
    return errors[-1] if errors else lines[-1] if lines else None


def _end_group(pid: int) -> None:
    if sys.platform == "win32":
        return
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


@contextmanager
def _stderr_to(target: int) -> Iterator[None]:
    """Redirect the stderr of a process started within, for which execnet has no option."""
    sys.stderr.flush()
    saved = os.dup(2)
    os.dup2(target, 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(saved, 2)
        os.close(saved)
