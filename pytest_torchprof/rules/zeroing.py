"""Rules about gradients that are filled with zeros."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.rules.levels import (
    are_engine_steps,
    calls,
    frames_around,
)
from pytest_torchprof.rules.names import Names, are_named, operators_named
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, rule
from pytest_torchprof.rules.tree import are_outermost, has_frames, outermost, rows_of

if TYPE_CHECKING:
    from pytest_torchprof.events import Trace
    from pytest_torchprof.nesting import Ints

_ZERO_GRAD: Final = Names(r"Optimizer\.zero_grad#")
_ZERO_GRAD_FRAME: Final = re.compile(
    r"torch[/\\](nn[/\\]modules[/\\]module|optim[/\\]optimizer)\.py\(\d+\): zero_grad$"
)
_ACCUMULATE: Final = Names("torch::autograd::AccumulateGrad$")
_DETACH: Final = Names(r"(aten::)?detach_$")


#: What to do where torch's version is not known, and before 2.0, when zeros were the default.
_SINCE_2: Final = (
    "call zero_grad(set_to_none=True), the default since torch 2.0: gradients then become None"
)
_BY_DEFAULT: Final = "call zero_grad() without set_to_none=False: gradients then become None"


@rule(
    "grad-not-none",
    fix=_SINCE_2,
    triggers=r"aten::(_foreach_)?zero_$",
)
def grad_not_none(trace: Trace) -> Matches:
    """Gradients are filled with zeros, where they could just be dropped.

    What it does
        Counts the calls of ``zero_grad`` that filled gradients with zeros: an optimizer's, by
        torch's annotation; a module's, by the ``zero_`` calls one after the other, whose shapes
        are those of the gradients of a backward pass in the same trace, two or more. Before torch
        2.0 ``zero_grad()`` itself did so.

    Why it is slow
        Each gradient is written once to be zero, and read and added to once more in the next
        backward pass, which would else just store it. Until then its memory stays taken.

    Example
        .. code:: python

            optimizer.zero_grad(set_to_none=False)

    Use instead
        .. code:: python

            optimizer.zero_grad()  # before torch 2.0: zero_grad(set_to_none=True)
    """
    fills = rows_of(trace, "aten::zero_", "aten::_foreach_zero_")
    if not len(fills):
        return NO_MATCHES
    above = trace.parent[fills]
    optimizer = are_named(trace, above, _ZERO_GRAD)
    event = [above[optimizer]]
    cost, ends = [trace.dur[fills[optimizer]]], trace.ts + trace.dur
    done = [ends[fills[optimizer]]]
    rest = fills[~optimizer]
    rest = rest[are_outermost(trace, rest)]
    if not len(event[0]) and not len(rest):
        return NO_MATCHES
    if has_frames(trace):
        frame = frames_around(trace, _ZERO_GRAD_FRAME, rest)
        _, first, which = np.unique(frame, return_index=True, return_inverse=True)
        event.append(rest[first][which][frame >= 0])
        cost.append(trace.dur[rest[frame >= 0]])
        done.append(ends[rest[frame >= 0]])
        rest = rest[frame < 0]
    first = _like_gradients(trace, rest)
    event.append(first[first >= 0])
    cost.append(trace.dur[rest[first >= 0]])
    done.append(ends[rest[first >= 0]])
    rows, at = np.unique(np.concatenate(event), return_inverse=True)
    ns = np.bincount(at, np.concatenate(cost), len(rows)).astype(np.int64)
    last = trace.ts[rows] + trace.dur[rows]
    np.maximum.at(last, at, np.concatenate(done))
    return Matches(
        rows,
        "zero_grad fills the gradients with zeros",
        cost_ns=ns,
        fix=[_fix(trace)] * len(rows),
        span_ns=(trace.ts[rows], last),
    )


def _fix(trace: Trace) -> str:
    """What to do, by the version of torch that a live capture notes."""
    major = str(trace.facts.get("torch", "")).partition(".")[0]
    return _BY_DEFAULT if major.isdigit() and int(major) >= 2 else _SINCE_2


def _like_gradients(trace: Trace, fills: Ints) -> Ints:
    """For calls of ``zero_`` one after the other that are as many and of the same shapes as the
    gradients of a backward pass, the first of them; -1 for others.
    """
    first = np.full(len(fills), -1, np.int64)
    runs = _runs(trace, fills)
    gradients = operators_named(trace, _ACCUMULATE)
    if not runs or len(gradients) < 2 or not trace.records_shapes:
        return first
    wanted = _passes(trace, gradients)
    shapes = _shapes(trace, fills)
    for run in runs:
        for passed in wanted:
            size = passed.total()
            parts = [run[i : i + size] for i in range(0, len(run), size)]
            if all(Counter(shapes[i] for i in part.tolist()) == passed for part in parts):
                for part in parts:
                    first[part] = fills[part[0]]
                break
    return first


def _runs(trace: Trace, fills: Ints) -> list[Ints]:
    """Positions of calls that follow one upon the other, two or more."""
    called = calls(trace)
    called = called[~are_named(trace, called, _DETACH)]
    position = np.full(len(trace), -1, np.int64)
    position[called] = np.arange(len(called))
    order = np.argsort(position[fills], kind="stable")
    apart = np.diff(position[fills[order]]) != 1
    apart |= np.diff(trace.thread[fills[order]]) != 0
    return [run for run in np.split(order, np.flatnonzero(apart) + 1) if len(run) > 1]


def _shapes(trace: Trace, rows: Ints) -> list[bytes]:
    return [bytes(args.dims) for args in trace.operands(rows)]


def _passes(trace: Trace, gradients: Ints) -> list[Counter[bytes]]:
    """Shapes of the gradients of each backward pass, and of all that there are, if two or more.

    Between two passes, the user calls something.
    """
    other = outermost(trace)
    other = other[~are_engine_steps(trace, other)]
    starts = np.flatnonzero(np.diff(np.searchsorted(other, gradients))) + 1
    shapes = _shapes(trace, gradients)
    bounds = [0, *starts.tolist(), len(shapes)]
    passes = [Counter(shapes[a:b]) for a, b in pairwise(bounds)]
    passes = [Counter(dict(kind)) for kind in {frozenset(one.items()) for one in passes}]
    every = Counter[bytes]()
    for one in passes:
        every |= one
    return [one for one in (*passes, every) if one.total() > 1 and b"" not in one]
