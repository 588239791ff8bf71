"""Which tensor is which: what operators took and made, where a capture knows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Trace
    from pytest_torchprof.trace.nesting import Ints
    from pytest_torchprof.trace.tensors import Taken


def taken(trace: Trace, rows: Ints) -> list[tuple[Taken, ...]] | None:
    """Of each operator, which tensor each of its arguments is, see `events.Tensors`.

    None where the trace does not know: a rule then says what it can by shapes, and asks for a
    capture that does (`Matches.wants_tensors`).
    """
    if trace.tensors is None:
        return None
    return trace.tensors.taken(trace.ts[rows].tolist(), _names(trace, rows))


def made(trace: Trace, rows: Ints) -> list[frozenset[int]] | None:
    """Of each operator, which tensors got their memory within it; None as above.

    Only those that something took later on: of others, nobody needs to know.
    """
    if trace.tensors is None:
        return None
    return trace.tensors.made(trace.ts[rows].tolist(), _names(trace, rows))


def objects(trace: Trace, rows: Ints) -> list[int] | None:
    """Of each operator, the object that its first argument is; None as above.

    A tensor's views are objects of their own. One that is gone may lend its number to a later one.
    """
    if trace.tensors is None:
        return None
    return trace.tensors.objects(trace.ts[rows].tolist(), _names(trace, rows))


def wanted(trace: Trace) -> bool:
    """Whether another run of what was captured could tell which tensor is which."""
    return trace.tensors is None and trace.region is not None


def _names(trace: Trace, rows: Ints) -> list[str]:
    return [trace.names[number] for number in trace.name[rows].tolist()]
