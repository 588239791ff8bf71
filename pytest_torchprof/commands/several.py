"""One or several traces, or what was found in each, by rank or number."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Protocol, TypeVar

from pytest_torchprof.core.units import plural
from pytest_torchprof.render import escape
from pytest_torchprof.trace.ranks import short_texts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_torchprof.trace.ranks import LeftOut

#: A heading, or a note that differs, is of so many traces at most.
SHOWN = 8


class OfOneTrace(Protocol):
    """A trace, or what was found in it."""

    @property
    def path(self) -> object:
        """Its file."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was wrong with the file."""

    @property
    def selected_steps(self) -> list[int] | None:
        """The numbers of the steps that count; None for a whole trace."""


T = TypeVar("T", bound=OfOneTrace)


class Several(dict[int, T]):
    """By rank; or by number, if they are not the ranks of one job.

    ``apart`` says why they are not. Then each is named after its file, and nothing is summed.
    ``left_out``: files that could not be read. ``are_for_machines``: rows always have the whole
    name of their trace, and the rank.
    """

    apart: str = ""
    left_out: tuple[LeftOut, ...] = ()
    are_for_machines: bool = False
    _names: dict[int, str] | None = None

    @property
    def heading(self) -> str:
        """What was read: file, device, size."""
        raise NotImplementedError

    @property
    def unread(self) -> list[str]:
        """What a check could not look at: each file that may be a rank, in words."""
        names = short_texts([file.source for file in self.left_out])
        return [
            f"{name}: nothing was checked: not readable as a trace"
            for name, file in zip(names, self.left_out, strict=True)
            if file.maybe_rank
        ]

    @property
    def column(self) -> str:
        """The name of the column that distinguishes the traces."""
        return "trace" if self.apart else "rank"

    def value(self, rank: int) -> int | str:
        """This trace's value in that column."""
        return self.names[rank] if self.apart else rank

    @property
    def names(self) -> dict[int, str]:
        """The name of each file, with its folder where two have the same name."""
        if self._names is None or len(self._names) != len(self):
            names = short_texts([str(one.path) for one in self.values()])
            self._names = dict(zip(self, names, strict=True))
        return self._names

    def label(self, rank: int) -> str:
        """The prefix of a note on one of several traces."""
        return f"{self.value(rank)}" if self.apart else f"rank {rank}"


def heading_of_several(several: Several[T], described: Callable[[T], str]) -> str:
    """What was read: file, device, size."""
    lines = []
    for rank, one in list(several.items())[:SHOWN]:
        mark = f"rank {rank}: " if len(several) > 1 and not several.apart else ""
        name = several.value(rank) if several.apart else PurePath(str(one.path)).name
        lines.append(escape.line(f"{mark}{name}: {described(one)}"))
    if (more := len(several) - SHOWN) > 0:
        lines.append(f"… and {plural(more, f'more {several.column}')}")
    return "\n".join(lines)


def merge_lines(
    several: Several[T], lines: Mapping[int, Sequence[str | None]], shown: int = SHOWN
) -> list[str]:
    """Notes on each trace: once if they agree on all traces, otherwise with the trace's name.

    ``lines``: of each trace the same notes, in the same order; empty where one has nothing to say.
    Of more traces than ``shown``, the others are counted.
    """
    notes = []
    for at in range(max(map(len, lines.values()), default=0)):
        texts = {rank: text for rank, own in lines.items() if (text := own[at])}
        if len(texts) == len(several) and len(set(texts.values())) == 1:
            notes.append(next(iter(texts.values())))
            continue
        notes += [f"{several.label(rank)}: {text}" for rank, text in list(texts.items())[:shown]]
        if (more := len(texts) - shown) > 0:
            notes.append(f"… and such a note on {plural(more, f'more {several.column}')}")
    return notes
