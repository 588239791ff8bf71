"""Compiled code without counted FLOPs: what inductor, AOTInductor and TorchScript leave out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.analysis.device_time import launched_ns
from pytest_torchprof.analysis.uncounted_parts import UncountedPart, by_name, named
from pytest_torchprof.core.lazy_regex import late
from pytest_torchprof.core.reasons import Why
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.kinds import Kind
from pytest_torchprof.trace.tree import operators_around, parents
from pytest_torchprof.work.compiled_graphs import key_of
from pytest_torchprof.work.counting import (
    called_graphs,
    counts_flops,
    graph_calls,
    graphs,
    work_parent,
)
from pytest_torchprof.work.redispatch import sums

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events

COMPILED: Final = "torch.compile's code"
PACKAGE: Final = "an AOTInductor package"
REGION: Final = "Torch-Compiled Region"
#: A function of TorchScript: no operator, which has a namespace, nor autograd's node, nor a mode.
SCRIPT: Final = late(r"(?!Python\w+$|\w+Backward\d*$)[\w.]+$")


def runs_compiled_code(trace: Events) -> bool:
    """Whether a name in the whole trace tells of code that torch.compile generated."""
    return trace.whole.once(_runs_compiled_code)


def _runs_compiled_code(trace: Events) -> bool:
    return any(name.startswith(("## ", REGION)) for name in trace.names)


def nothing_ran(trace: Events) -> bool:
    """Whether a live capture has neither operators nor kernels nor compiled code."""
    return (
        trace.region is not None
        and not trace.has(Kind.OP, Kind.KERNEL)
        and not runs_compiled_code(trace)
        and not trace.facts.packages
    )


def in_loops(trace: Events) -> Iterable[UncountedPart]:
    """Products that inductor wrote as loops, where the graph does not tell their size."""
    for key, events in graph_calls(trace).items():
        graph = graphs(trace)[key]
        counts = counts_flops(trace)
        shown = sums(events, counts, counts.astype(np.int64), work_parent(trace))
        hidden = events[shown < graph.products] if graph.dynamic else events[:0]
        yield from named(trace, hidden, graph.dynamic, Why.DYNAMIC_LOOPS)
        yield from named(trace, events, graph.loops, Why.LOOPS)


def of_no_graph(trace: Events) -> Iterable[UncountedPart]:
    """Calls of compiled graphs about which nothing is known."""
    if not runs_compiled_code(trace):
        return
    lost = trace.facts.lost_loops
    calls = called_graphs(trace)
    if not (calls.any() or trace.facts.marks_graphs):  # an older torch only marks the function
        calls = trace.selection & trace.names_where(lambda name: name.startswith(REGION))
        calls[nesting.above(np.flatnonzero(counts_flops(trace)), work_parent(trace))] = False
    calls &= ~trace.names_where(lambda name: key_of(name) in graphs(trace))
    events = np.flatnonzero(calls)
    if not len(events):
        return
    if lost is not None:
        yield from named(trace, events, lost, Why.LOOPS)
    elif not trace.is_live:
        silent = events[launched_ns(trace)[events] == 0]
        yield from named(trace, silent, (COMPILED,), Why.LOOPS)


def in_script(trace: Events) -> Iterable[UncountedPart]:
    """TorchScript that was optimized for inference: its oneDNN operators leave no events."""
    blocks = trace.operators("aten::to_mkldnn")
    if not len(blocks):
        return
    around = operators_around(trace, parents(trace, blocks))
    scripts = [at for at in around.tolist() if at >= 0 and SCRIPT.match(_name(trace, at))]
    yield from by_name(trace, nesting.distinct(np.array(scripts, np.int64)), lambda _: Why.NO_PARTS)


def _name(trace: Events, event: int) -> str:
    name: str = trace.names[trace.name[event]]
    return name


def packages(trace: Events) -> Iterable[UncountedPart]:
    """AOTInductor's code calls kernels without the dispatcher."""
    calls = trace.facts.packages
    if calls is not None and calls > 0:
        yield UncountedPart(PACKAGE, Why.NO_PARTS, calls, 0.0)
