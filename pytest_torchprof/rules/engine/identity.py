"""Which tensors operators took and made, if a capture identifies them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Trace
    from pytest_torchprof.trace.nesting import Ints
    from pytest_torchprof.trace.tensors import Taken


def taken(trace: Trace, rows: Ints) -> list[tuple[Taken, ...]] | None:
    """The tensors that each operator's arguments are, see `events.Tensors`.

    None if the trace does not identify tensors: a rule then goes by shapes, and requests a capture
    that does (`Matches.wants_tensors`).
    """
    if trace.tensors is None:
        return None
    return trace.tensors.taken(trace.ts[rows].tolist(), _names(trace, rows))


def made(trace: Trace, rows: Ints) -> list[frozenset[int]] | None:
    """The tensors whose memory was allocated within each operator; None as above.

    Only tensors that something took later; others do not matter.
    """
    if trace.tensors is None:
        return None
    return trace.tensors.made(trace.ts[rows].tolist(), _names(trace, rows))


def objects(trace: Trace, rows: Ints) -> list[int] | None:
    """The object that each operator's first argument is; None as above.

    A tensor's views are separate objects. A deleted object's number may be reused.
    """
    if trace.tensors is None:
        return None
    return trace.tensors.objects(trace.ts[rows].tolist(), _names(trace, rows))


def wanted(trace: Trace) -> bool:
    """Whether another capture of the test could identify tensors."""
    return trace.tensors is None and trace.region is not None


def _names(trace: Trace, rows: Ints) -> list[str]:
    return [trace.names[number] for number in trace.name[rows].tolist()]
