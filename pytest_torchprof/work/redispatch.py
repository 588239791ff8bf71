"""Choose which of several nested operators with FLOPs actually ran.

Mostly the outermost says it all, and what is inside are its parts: a convolution and the kernel of
its library. But an operator may only hand its call on, and then what it was called with is not what
ran: a `DTensor` has the shape of all ranks, under `torch.func.vmap` the shape is that of one
sample. What it was handed to is inside, with the shapes of the work, so that counts in its place:

- what ran inside ``PythonSubclass``, the mark of ``__torch_dispatch__``. A mode that is entered in
  there (``PythonDispatchMode``) works on fake tensors, to learn a shape;
- inside an operator of the same name, or of the same family: a batching rule makes a `bmm` of an
  `mm`. Where that comes to the same number, the outer one has it.

In forward mode, the derivatives run inside the operator that they are of, after ``_fw_primal``:
that is beside it, not within it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from pytest_torchprof.trace import nesting
from pytest_torchprof.work.flops import FORMULAS

if TYPE_CHECKING:
    import numpy.typing as npt

    from pytest_torchprof.trace.nesting import Bools, Ints

    Numbers = npt.NDArray[np.int32]

#: Marks of torch's dispatcher. Source: aten/src/ATen/core/PythonFallbackKernel.cpp.
_SUBCLASS: Final = "PythonSubclass"
_MODE: Final = "PythonDispatchMode"
#: … and of dynamo, which compiles with fake tensors. Source: torch/_dynamo/utils.py.
_COMPILING: Final = "(dynamo_timed)"
#: What forward mode takes of each input, when the operator itself is done.
#: Source: tools/autograd/gen_variable_type.py, ``FW_DERIVATIVE_TEMPLATE``.
_FORWARD_MODE: Final = "aten::_fw_primal"

#: One product is made of another (`addmm` of `mm`, `mv` of `addmv_`, `bmm` of many `addmm_`), and
#: one convolution of another.
_PRODUCTS: Final = frozenset(
    f"aten::{name}"
    for name in (
        *("mm", "addmm", "addmm_", "_addmm_activation", "bmm", "baddbmm", "baddbmm_"),
        *("mv", "addmv", "addmv_", "dot", "vdot", "_int_mm", "_grouped_mm"),
    )
)
_CONVOLUTIONS: Final = frozenset(
    name for name in FORMULAS if "conv" in name and "backward" not in name and "aten::" in name
)
#: By name: in which names, inside it, an operator can be handed on, besides its own.
_HANDED_TO: Final = {
    **dict.fromkeys(_PRODUCTS, _PRODUCTS),
    **dict.fromkeys(_CONVOLUTIONS, _CONVOLUTIONS),
    # Batched, the gradient of a weight is a convolution with as many groups as samples.
    "aten::convolution_backward": {"aten::convolution"},
}


class Ran(NamedTuple):
    """``counts``: the events whose FLOPs count; of those nested by ``parent``, at most one.

    ``fake``: those that worked on fake tensors, for a tensor subclass or a compiler.
    """

    counts: Bools
    parent: Ints
    fake: Bools


def ran(flops: Ints, name: Numbers, names: Sequence[str], parent: Ints) -> Ran:
    """Which events count, and in what they are nested for that.

    ``flops[i]`` is the number of event ``i``, -1 for none; ``names[name[i]]`` its name;
    ``parent[i]`` the event around it, or -1.
    """
    parent = _beside(name, names, parent)
    subclass = _events(_SUBCLASS, name, names)
    compiling = [known for known in names if known.endswith(_COMPILING)]
    around = np.concatenate([subclass, *(_events(one, name, names) for one in compiling)])
    fake = _fake(around, _events(_MODE, name, names), parent)
    real = (flops >= 0) & ~fake
    if not real.any():
        return Ran(real, parent, fake)
    if len(handed := _handed_on(real, subclass, name, names, parent)):
        trial = real.copy()
        trial[handed] = False
        inside = sums(handed, _outermost(trial, parent), flops, parent)
        # One that did what it was called for keeps its number: its name says more.
        real[handed[inside != flops[handed]]] = False
    return Ran(_outermost(real, parent), parent, fake)


#: What the hook of a checkpoint does with an operand that it keeps.
_KEEPING: Final = frozenset({"aten::detach", "detach"})


def broken_off(
    rows: Ints, call: Ints, name: Numbers, names: Sequence[str], parent: Ints, signs: Ints
) -> Bools:  # fmt: skip
    """Which of these events raised before they did anything, as the last of a recomputation does.

    A checkpoint recomputes until it has what the gradients need: then it raises, out of the
    operator that was about to begin. Such an event has nothing inside but what is kept of its
    operands, and shows no sign of work where another of the same ``call`` (a number for name and
    operands) does. ``signs`` are the events that called the runtime of a device or allocated memory
    themselves.
    """
    works = nesting.above(signs, parent)
    works[signs] = True
    some = np.zeros(int(call.max(initial=0)) + 1, bool)
    some[call[works[rows]]] = True
    keeping = np.fromiter((n in _KEEPING for n in names), bool, len(names))
    works[parent[(parent >= 0) & ~keeping[name]]] = True
    idle: Bools = ~works[rows] & some[call]
    return idle


def _outermost(real: Bools, parent: Ints) -> Bools:
    rows = real.nonzero()[0]
    out = real.copy()
    out[rows[nesting.below(real, parent, rows)]] = False
    return out


def sums(roots: Ints, counts: Bools, flops: Ints, parent: Ints) -> Ints:
    """FLOPs of what counts within each of the roots."""
    wanted = np.zeros(len(flops), bool)
    wanted[roots] = True
    total = np.zeros(len(flops), np.int64)
    rows = np.flatnonzero(counts)
    at = parent[rows]
    while len(rows := rows[at >= 0]):
        at = at[at >= 0]
        hit = wanted[at]
        np.add.at(total, at[hit], flops[rows[hit]])
        at = parent[at]
    sums: Ints = total[roots]
    return sums


def _events(wanted: str, name: Numbers, names: Sequence[str]) -> Ints:
    if wanted not in names:
        return np.zeros(0, np.int64)
    numbers = [i for i, known in enumerate(names) if known == wanted]
    return np.flatnonzero(np.isin(name, numbers))


def _beside(name: Numbers, names: Sequence[str], parent: Ints) -> Ints:
    """Parents, with the derivatives of forward mode beside the operator that they are of."""
    taken = _events(_FORWARD_MODE, name, names)
    if len(taken):
        taken = taken[parent[taken] >= 0]
    if not len(taken):
        return parent
    first = np.full(len(parent), len(parent), np.int64)
    np.minimum.at(first, parent[taken], taken)
    inside = np.flatnonzero(parent >= 0)
    later = inside[inside > first[parent[inside]]]
    out, of = parent.copy(), parent[later]
    while (moved := out[of] != out[later]).any():  # such operators can be within one another
        out[later[moved]] = out[of[moved]]
    return out


def _fake(around: Ints, mode: Ints, parent: Ints) -> Bools:
    """What ran on fake tensors: in a mode that a subclass's handler, or dynamo, has entered."""
    fake = np.zeros(len(parent), bool)
    if not (len(around) and len(mode)):
        return fake
    handler = fake.copy()
    handler[around] = True
    inner = mode[nesting.below(handler, parent, mode)]
    fake[inner] = True
    above = parent[inner]  # the operator that the mode took
    fake[above[~handler[above]]] = True
    every = np.flatnonzero(parent >= 0)
    fake[every[nesting.below(fake, parent, every)]] = True
    return fake


def _handed_on(
    real: Bools, subclass: Ints, name: Numbers, names: Sequence[str], parent: Ints
) -> Ints:  # fmt: skip
    """Events that another one, inside, ran in place of."""
    rows = real.nonzero()[0]
    rows = rows[nesting.below(real, parent, rows)]
    if not len(rows):
        return rows
    own, kind = np.unique(name[rows], return_inverse=True)
    others, number = np.unique(name[real], return_inverse=True)
    kind_of = np.zeros(len(real), np.int64)
    kind_of[real] = number
    may = np.array(
        [[a == b or names[b] in _HANDED_TO.get(names[a], ()) for b in own] for a in others], bool
    )
    handler = np.zeros(len(real), bool)
    handler[subclass] = True
    handed = np.zeros(len(real), bool)
    crossed = np.zeros(len(rows), bool)
    at, todo = parent[rows], np.arange(len(rows))
    while len(todo):
        here = at[todo]
        crossed[todo] |= handler[here]
        known = real[here]
        inner, outer = todo[known], here[known]
        handed[outer[crossed[inner] | may[kind_of[outer], kind[inner]]]] = True
        at[todo] = parent[here]
        todo = todo[at[todo] >= 0]
    return np.flatnonzero(handed)
