"""Work for a test outside its trace: other processes, threads that are left, late finalizers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_torchprof.core.reasons import Reason, Why, because
from pytest_torchprof.trace.kinds import Kind
from pytest_torchprof.trace.known_names import REGION
from pytest_torchprof.trace.nesting import among

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events

_GLOO = "gloo:"


def work_elsewhere(trace: Events) -> Reason | None:
    """Why numbers of a live capture are lower bounds; None if it is complete."""
    if trace.region is None:
        return None
    if (recorded := trace.facts.elsewhere) is not None:
        return recorded
    if _left(trace):
        return because(Why.THREAD_LEFT)
    return because(Why.FINALIZERS) if _finalized(trace) else None


def is_by_chance(reason: Reason) -> bool:
    """Whether how much was counted is chance, so that it is no lower bound to compare."""
    return reason.why is Why.THREAD_LEFT


def _left(trace: Events) -> bool:
    """Whether a thread worked that had not ended when the region did, and was not idle."""
    late = trace.facts.late_threads
    if not late or trace.region is None or not trace.has(Kind.OP):
        return False
    left = trace.facts.left_threads or ()
    tids = [tid for _, tid in trace.threads]
    ops = trace.is_kind(Kind.OP)
    over = ops & (trace.ts + trace.dur > trace.region[1])
    return any(
        bool(among(trace.thread[rows], [at for at, tid in enumerate(tids) if tid in ids]).any())
        for rows, ids in ((over, late), (ops, left))
    )


def _finalized(trace: Events) -> bool:
    """Whether operators ran on the test's thread after the region, where we collect garbage."""
    if trace.region is None or not trace.has(Kind.OP):
        return False
    late = trace.is_kind(Kind.OP) & (trace.ts >= trace.region[1])
    if not late.any():
        return False
    mine = trace.thread[trace.is_kind(Kind.ANNOTATION) & trace.named(REGION)]
    return bool(among(trace.thread[late], mine).any())


def frees_unseen(trace: Events) -> bool:
    """Whether gloo's threads worked, which free tensors: torch's profiler may not see those frees.

    Measured on 20 runs of one step of DDP: the last use of a bucket or of a work's result is now
    and then on such a thread, and its bytes then look live for ever.
    """
    return any(name.startswith(_GLOO) for name in trace.names)
