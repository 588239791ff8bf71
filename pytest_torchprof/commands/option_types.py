"""What options of the command accept: from the text that a user typed to a value, or an error."""

from __future__ import annotations

import argparse
import reprlib
from typing import TypeVar

from pytest_torchprof.core.step_range import StepRange

R = TypeVar("R", int, float)


def _refused(text: str, wanted: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"{reprlib.repr(text)} is not {wanted}")


def _number(kind: type[R], text: str, suffix: str = "") -> R | None:
    """The finite number in a text; None for anything else."""
    try:
        value = kind(text.strip().removesuffix(suffix))
    except ValueError:
        return None
    return value if -float("inf") < value < float("inf") else None


def percent(text: str) -> float:
    """A percentage of 0 or more, with or without its sign."""
    value = _number(float, text, "%")
    if value is None or value < 0:
        raise _refused(text, "a percentage of 0 or more")
    return value


def count(text: str) -> int:
    """A whole number of 0 or more."""
    value = _number(int, text)
    if value is None or value < 0:
        raise _refused(text, "a whole number of 0 or more")
    return value


def some(text: str) -> int:
    """A whole number of 1 or more."""
    value = _number(int, text)
    if value is None or value < 1:
        raise _refused(text, "a whole number of 1 or more")
    return value


def grouping(text: str) -> str:
    """Parts of a grouping of kernels, see `parse_grouping`."""
    from pytest_torchprof.analysis.kernel_groups import parse_grouping

    try:
        parse_grouping(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def seconds(text: str) -> float:
    """Seconds above 0, with or without the unit."""
    value = _number(float, text, "s")
    if value is None or value <= 0:
        raise _refused(text, "a number of seconds above 0")
    return value


def steps(text: str) -> StepRange:
    """Steps of a trace: ``N`` or ``A:B``."""
    try:
        return StepRange.parse(text)
    except ValueError:
        raise _refused(text, "N or A:B, such as 3 or 2:5") from None


def name(text: str) -> str:
    """The name of a file, a folder, or anything else; not an empty one."""
    if not text.strip():  # an unset shell variable, not the current folder
        raise argparse.ArgumentTypeError("the name is empty; give a file or folder")
    return text


def output(text: str) -> str:
    """The name of the only file that a command writes; ``-`` is standard output."""
    return "/dev/stdout" if text == "-" else name(text)


def beside(text: str) -> str:
    """The name of a file that is written beside a table; not ``-``."""
    if text == "-":
        raise argparse.ArgumentTypeError("- is standard output, which has the table; name a file")
    return name(text)
