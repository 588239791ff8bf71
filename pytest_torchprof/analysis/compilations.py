"""Compilations and graph breaks in numbers, and kernels that depend on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pytest_torchprof.analysis.missing import memory_gap
from pytest_torchprof.core.process import late
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.core.unknown import Reason, Why, because
from pytest_torchprof.core.values import MissingValue
from pytest_torchprof.trace.names import DEVICE_KINDS, Kind, once_per_trace

if TYPE_CHECKING:
    from pytest_torchprof.core.values import Value
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.facts import CompileNote, RecompileNote


# ---- Graph breaks and recompilations, from the test itself and from earlier compilations.

EARLIER = because(
    "compiled_earlier", "the test runs code that was compiled before the test started"
)

#: torch's annotation around each run of compiled code, with the compile id, "frame/attempt".
_REGION = "Torch-Compiled Region: "


class Compiled(Frozen, frozen=True):
    """Graph breaks or recompilations, one row each.

    ``gap`` is why their number is not comparable with another run's. ``rows`` is None where they
    are unknown; otherwise a limit can still be checked.
    """

    rows: Sequence[CompileNote] | None
    gap: Reason | None = None


@once_per_trace
def regions(trace: Events) -> set[str]:
    """The ids of the compiled code that ran."""
    return {name.removeprefix(_REGION) for name in trace.names if name.startswith(_REGION)}


def first_run(trace: Events, compile_id: str | None) -> int:
    """The first selected run of this compiled code, or -1."""
    return first(trace, f"{_REGION}{compile_id}")


def first(trace: Events, name: str) -> int:
    """The first selected event of this name, or -1."""
    at = np.flatnonzero(trace.named(name) & trace.selection)
    return int(at[0]) if len(at) else -1


def graph_breaks(trace: Events) -> Compiled:
    """The first run's graph breaks, and those of earlier compilations whose code the test ran.

    A frame that dynamo had skipped earlier leaves no mark in the trace, and is not included.
    """
    own = _noted(trace, trace.facts.graph_breaks, trace.facts.breaks)
    earlier = _earlier(trace)
    if own.rows is None or not (earlier or _anew(trace)):
        return own
    known = trace.facts.earlier_breaks
    if known is None:
        return Compiled(None, EARLIER)
    more = [row for name in sorted(earlier) for row in known.get(name, ())]
    return Compiled([*own.rows, *more], EARLIER)


def recompilations(trace: Events) -> Compiled:
    """The first run's recompilations. Those of frames compiled earlier depend on other tests."""
    own = _noted(trace, trace.facts.recompiles, trace.facts.recompilations)
    if own.rows is None:
        return own
    again = _anew(trace)
    if not (again or _earlier(trace)):
        return own
    # All modules of torch's own share a frame, so whether this one was compiled before is unknown.
    shared = not all(row.users for row in again)
    return Compiled(None if shared else own.rows, EARLIER)


def work(trace: Events, what: str) -> Value:
    """A number of `CompileWork`, of the first run.

    Where it runs code that was compiled before, that code's share is unknown, and the number is a
    lower bound.
    """
    said = trace.facts.recompiles if isinstance(trace.facts.recompiles, Reason) else None
    number = getattr(trace.facts.compile_work, what, None)
    if number is None:
        no_device = trace.once(memory_gap) if what == "cudagraphs" else None
        return MissingValue(no_device or said or because(*Why.ONLY_LIVE))
    gap = said if said is not None and said.code == Why.DYNAMO_OFF.code else None
    if not number and trace.facts.compiled_calls and not regions(trace):
        gap = gap or because(*Why.RAN_UNCOMPILED)
    elif _anew(trace) or _earlier(trace):
        gap = EARLIER
    return number if gap is None else MissingValue(gap, int(number) or None, at_least=True)


def _noted(
    trace: Events, number: int | Reason | None, rows: Sequence[CompileNote] | None
) -> Compiled:
    if isinstance(number, Reason):
        return Compiled(None, number)
    if number is None or (number and rows is None):
        return Compiled(None, because(*Why.ONLY_LIVE))
    # A stance, another dispatch mode, or a failure of the compiler leaves all code to Python.
    if not number and trace.facts.compiled_calls and not regions(trace):
        return Compiled(None, because(*Why.RAN_UNCOMPILED))
    return Compiled(rows or ())


def _anew(trace: Events) -> list[RecompileNote]:
    """Recompilations of what was compiled before the test; alone, they would be the first."""
    return [row for row in trace.facts.recompilations or () if row.frame_before]


def _earlier(trace: Events) -> set[str]:
    """Compiled code that ran but was not compiled in the test."""
    own = trace.facts.compiled
    return set() if own is None else regions(trace).difference(own)


# ---- Whether the CPU's instruction set decides which operators run, and how much they allocate.

#: Operators of libraries that choose kernels and memory layouts by instruction set, and those that
#: stand in for them where there are none. Source: oneDNN's dispatcher (onednn.readthedocs.io, "CPU
#: Dispatcher Control"); seen with ONEDNN_MAX_CPU_ISA set to SSE41, AVX and AVX2.
_BY_CPU = late(r"mkldnn|onednn|nnpack|slow_conv|thnn_conv|^quantized::|^aten::_upsample_\w+_aa")
#: These do so too if they are the CPU's; a transposed one calls oneDNN under no other name.
_CONVOLUTIONS = late(r"^aten::_?convolution")
#: With operands of 16 bits, these run in oneDNN too, where the CPU has instructions for it.
_PRODUCTS = late(r"^aten::(mm|addmm|bmm|baddbmm|_scaled_dot_product_flash_attention_for_cpu)$")
_LOW = {"c10::Half", "c10::BFloat16"}


def depends_on_cpu(trace: Events) -> bool:
    """Whether counts of operators and bytes may differ on a CPU with other instructions.

    Convolutions are stored in blocks of 8 or of 16 channels, for example, which is why a backward
    pass copies more on one CPU than on another.
    """
    operators = trace.selection & trace.is_kind(Kind.OP)
    if bool((operators & trace.names_where(_BY_CPU.search)).any()):
        return True
    if trace.has(*DEVICE_KINDS):  # the others are the device's
        return False
    if bool((operators & trace.names_where(_CONVOLUTIONS.search)).any()):
        return True
    products = np.flatnonzero(operators & trace.names_where(_PRODUCTS.search))
    return any(not _LOW.isdisjoint(types) for types in trace.input_types(products))
