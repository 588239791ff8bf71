"""Errors in three parts: what went wrong, what was found, and what to do next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_torchprof.core.unknown import Reason

#: The exit status of a command that cannot do what it was asked for.
BAD_USAGE = 2


class TorchprofError(Exception):
    """The base of every error that the user can do something about.

    >>> print(TorchprofError("no trace in out/", found="the folder is empty", next_step="run it"))
    no trace in out/: the folder is empty; run it
    """

    def __init__(self, what: str, found: str = "", next_step: str = "") -> None:
        super().__init__(what, found, next_step)  # as given, so that a copy or a pickle is equal
        self.what = what
        self.found = found
        self.next_step = next_step

    def __str__(self) -> str:
        """One line: what, then what was found, then the next step."""
        found = f": {self.found}" if self.found else ""
        next_step = f"; {self.next_step}" if self.next_step else ""
        return f"{self.what}{found}{next_step}"


class UnitError(TorchprofError):
    """A limit or a value that is not a quantity in the unit it should have."""


class BaselineError(TorchprofError):
    """A baseline file that cannot be read, understood or written."""


class SettingsError(TorchprofError):
    """An invalid option, ini value or marker argument."""


class TraceError(TorchprofError):
    """A trace file that cannot be read or is not a trace."""


class ReportError(TorchprofError):
    """A stored report that cannot be read or is not one, or reports that do not fit together."""


class HistoryError(TorchprofError):
    """A history of runs that cannot be read or written, or git that does not answer."""


class OtherJsonError(TraceError):
    """A whole JSON file that is not a trace of PyTorch, such as a configuration."""


def not_onto_itself(target: object) -> TraceError:
    """The error for an output that would overwrite its input trace."""
    return TraceError(
        f"{target}: this is the input trace",
        "the input is never overwritten",
        "give another name for the output",
    )


@contextmanager
def writing(target: object) -> Iterator[None]:
    """What a command writes.

    Raises:
        TraceError: it cannot be written.
    """
    try:
        yield
    except (OSError, ValueError) as error:
        from pytest_torchprof.core.files import system_message

        what = f"{target}: cannot be written"
        raise TraceError(what, system_message(error), "name another file") from error


def keep_others(
    path: Path,
    is_ours: Callable[[Path], bool],
    what: str,
    kind: type[TorchprofError] = SettingsError,
) -> None:
    """Reject a name for an output that is the name of another kind of file.

    Raises:
        TorchprofError: such a file exists; of this kind.
    """
    from pytest_torchprof.core.files import is_other_file

    if is_other_file(path, is_ours):
        next_step = "name another file, or remove this one first"
        raise kind(f"{path} is not replaced", f"it exists and is not {what}", next_step)


class CaptureError(TorchprofError):
    """A profiler session that recorded nothing to measure."""


class NotCapturedError(CaptureError):
    """A capture without anything to measure, for a reason that the test's report shows."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(f"no capture: {reason.code.replace('_', ' ')}")
        self.reason = reason


class StorageError(CaptureError):
    """The disk has no space for the capture; the test is not at fault."""


class AbError(TorchprofError):
    """Two sides that cannot be compared: no such revision, or code from elsewhere."""


class AbStoppedError(AbError):
    """A comparison that cannot continue; results until then are valid."""


def near(word: str, known: Iterable[str], *, listed: bool = False) -> str:
    """Finish an error about an unknown word: suggest close matches, or list the known ones.

    With ``listed``, the error has already listed them.

    >>> near("flop", ["flops", "ops"]), near("x", ["flops", "ops"])
    ('Did you mean flops?', 'Known are: flops, ops.')
    """
    import difflib

    known = list(known)
    close = difflib.get_close_matches(word, known, n=3)
    if close:
        return f"Did you mean {' or '.join(close)}?"
    return "" if listed else f"Known are: {', '.join(known)}."


def error_line(error: BaseException) -> str:
    r"""An error in one line: its type, and the first line of its text; if that is blank, the last.

    The error of another process begins with a blank line, and ends with what was raised there.

    >>> error_line(ValueError("no such key"))
    'ValueError: no such key'
    >>> error_line(RuntimeError("\n\n-- Process 1 ended:\nTraceback\nValueError: no\n"))
    'RuntimeError: ValueError: no'
    >>> error_line(KeyboardInterrupt())
    'KeyboardInterrupt'
    """
    kind = type(error).__name__
    try:
        lines = [line.strip() for line in str(error).rstrip().splitlines()] or [""]
    except Exception:  # noqa: BLE001 - somebody else's error may not have any text
        return kind
    line = lines[0] or lines[-1]
    return f"{kind}: {line}" if line else kind
