"""Which steps of a trace are asked for: one by its number, or those from one to before another."""

from __future__ import annotations

import re
from typing import Final

from pytest_torchprof.core.structs import Frozen

_ONE: Final = re.compile(r"\d{1,18}")
_SLICE: Final = re.compile(r"(\d{1,18})?:(\d{1,18})?")


class StepRange(Frozen, frozen=True):
    """Numbers of steps from ``first`` to before ``stop``; None has no limit there.

    >>> StepRange.parse("3"), StepRange.parse("2:5"), StepRange.parse(":4").stop
    (StepRange(first=3, stop=4), StepRange(first=2, stop=5), 4)
    """

    first: int | None = None
    stop: int | None = None

    @classmethod
    def parse(cls, text: str) -> StepRange:
        """From ``N`` or ``A:B``, as a slice of Python, whose ends may be missing.

        Raises:
            ValueError: another text. Numbers are those of the steps, so none is negative.
        """
        text = text.strip()
        if _ONE.fullmatch(text):
            return cls(int(text), int(text) + 1)
        if (found := _SLICE.fullmatch(text)) is None:
            raise ValueError(f"{text!r} is not N or A:B")
        first, stop = (None if end is None else int(end) for end in found.groups())
        return cls(first, stop)

    @property
    def is_one(self) -> bool:
        """Whether it is a single number."""
        return self.first is not None and self.stop == self.first + 1

    def __str__(self) -> str:
        """As it is written on the command line.

        >>> str(StepRange(3, 4)), str(StepRange(2)), str(StepRange())
        ('3', '2:', ':')
        """
        if self.is_one:
            return str(self.first)
        return ":".join("" if end is None else str(end) for end in (self.first, self.stop))


#: Every step.
ALL_STEPS: Final = StepRange()
