"""Operators that a device runs as a whole and the CPU by parts, and what only the CPU does.

What the CPU does for such a whole tells neither the kernels nor the bytes nor the blocks of a
device; and neither do the steps of the backward pass that belong to its parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.arguments import alike, decode_part
from pytest_torchprof.trace.backward import forward_of
from pytest_torchprof.trace.kinds import DEVICE_KINDS, Kind
from pytest_torchprof.trace.levels import engine_steps
from pytest_torchprof.trace.name_index import operators_named
from pytest_torchprof.work.launch_counts import RECURRENT

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

_MATH: Final = "aten::_scaled_dot_product_attention_math"
#: It frees the weights, which attention in its math form returns, too.
ATTENTION: Final = "aten::scaled_dot_product_attention"
_HEADS: Final = "aten::_native_multi_head_attention"
#: Attention in these types has a fused form on devices. Source: PyTorch's
#: ``transformers/cuda/sdp_utils.cpp``, ``can_use_mem_efficient_attention``.
_FUSED: Final = frozenset({"float", "c10::Half", "c10::BFloat16"})


class _Form(Frozen, frozen=True):
    """The fewest kernels of a whole in its forward pass, None if known elsewhere; and backward."""

    forward: int | None
    backward: int


#: By operator. Sources: ``transformers/cuda/attention.cu`` (``native_multi_head_attention_cuda``: a
#: product, attention, a product), ``attention_backward.cu``, and ``RNN.cpp``.
_FORMS: Final[Mapping[str, _Form]] = {
    **dict.fromkeys((_MATH, ATTENTION), _Form(1, 3)),
    _HEADS: _Form(3, 0),
    "aten::lstm_cell": _Form(None, 1),
    "aten::gru_cell": _Form(None, 1),
    **dict.fromkeys(RECURRENT, _Form(None, 0)),
}

#: Checks of values that only the CPU makes, by the operator around them. Source: PyTorch's
#: ``Sorting.cpp``, ``quantile_checks``; and how the CPU compares all pairs in ``isin``.
_QUANTILE: Final = ("ge", "le", "logical_and_", "all", "new_ones", "equal")
_HOST_ONLY: Final[Mapping[str, frozenset[str]]] = {
    around: frozenset(f"aten::{name}" for name in names)
    for around, names in (
        ("aten::quantile", _QUANTILE),
        ("aten::nanquantile", _QUANTILE),
        ("aten::isin", ("fill_",)),
    )
}


class Forms(Frozen, frozen=True):
    """The wholes of a trace, the steps of their backward passes, and kernels known of either.

    ``steps`` are the outermost events of the autograd engine that belong to parts of a whole;
    ``of`` is the whole of each. ``counted`` start ``launches``.
    """

    whole: Bools
    steps: Ints
    of: Ints
    counted: Ints
    launches: Ints


def ran_on_host(trace: Events) -> bool:
    """Whether the trace shows nothing of a device, so that operators ran on the CPU."""
    return not trace.has(*DEVICE_KINDS)


def forms(trace: Events) -> Forms:
    """The wholes of the whole trace, whatever is selected."""
    return trace.whole.once(_forms)


def _forms(trace: Events) -> Forms:
    rows = operators_named(trace, *(_FORMS.keys() - {ATTENTION}))
    if not ran_on_host(trace):
        # What a device ran by parts it ran by parts; but what runs below a library's own is its.
        rows = rows[trace.names_where(RECURRENT.__contains__)[rows]]
    rows = rows[~_is_unfused(trace, rows)]
    above = trace.parent[rows]
    called = trace.named(_MATH)[rows] & (above >= 0) & trace.named(ATTENTION)[above]
    rows = np.sort(np.where(called, above, rows))
    whole = np.zeros(len(trace), bool)
    whole[rows] = True
    rows = rows[~nesting.below(whole, trace.parent, rows)]
    steps, of = _backward(trace, whole, rows)
    known = {name: form for name, form in _FORMS.items() if form.forward is not None}
    forward = rows[trace.names_where(known.__contains__)[rows]]
    each = [known[trace.names[n]].forward or 0 for n in trace.name[forward].tolist()]
    wholes, first = np.unique(of, return_index=True)
    back = [_FORMS[trace.names[n]].backward for n in trace.name[wholes].tolist()]
    return Forms(
        whole,
        steps,
        of,
        np.concatenate([forward, steps[first]]),
        np.array([*each, *back], np.int64),
    )


def _is_unfused(trace: Events, rows: Ints) -> Bools:
    """Attention in a type that has no fused form."""
    found = np.zeros(len(rows), bool)
    mine = np.flatnonzero(trace.named(_MATH)[rows])
    if len(mine):
        at = rows[mine]
        kinds, firsts, _ = alike(trace.name[at], trace.args[at])
        types = [decode_part(bytes(a.types)) for a in trace.operands(at[firsts])]
        plain = [isinstance(one, list) and one[:1] and one[0] in _FUSED for one in types]
        found[mine] = ~np.array(plain, bool)[kinds]
    return found


def _backward(trace: Events, whole: Bools, rows: Ints) -> tuple[Ints, Ints]:
    """Outermost steps of the autograd engine for parts of wholes, and the whole of each."""
    none = np.zeros(0, np.int64)
    steps = engine_steps(trace)
    if not (len(rows) and len(steps)):
        return none, none
    marked = np.zeros(len(trace), bool)
    marked[steps] = True
    steps = steps[~nesting.below(marked, trace.parent, steps)]
    part = forward_of(trace, steps)
    known = part >= 0
    steps, part = steps[known], part[known]
    of = nesting.nearest(whole, trace.parent, trace.parent[part])
    return steps[of >= 0], of[of >= 0]


def host_only(trace: Events) -> Ints:
    """Operators that only the CPU runs within others."""
    around = operators_named(trace, *_HOST_ONLY)
    if not len(around):
        return around
    names = frozenset().union(*_HOST_ONLY.values())
    rows = np.flatnonzero(trace.is_kind(Kind.OP) & trace.names_where(names.__contains__))
    rows = rows[trace.parent[rows] >= 0]
    above = trace.name[trace.parent[rows]]
    fits = [
        trace.names[name] in _HOST_ONLY.get(trace.names[outer], ())
        for name, outer in zip(trace.name[rows].tolist(), above.tolist(), strict=True)
    ]
    found: Ints = rows[np.array(fits, bool)]
    return found
