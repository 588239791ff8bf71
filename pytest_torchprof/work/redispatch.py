"""Choose which of several nested operators with FLOPs actually ran.

Usually the outermost covers everything, and the nested ones are its parts: a convolution and its
library's kernel. But an operator may only redispatch its call, and then its operands are not those
of the work that ran: a `DTensor` has the shape of all ranks, and under `torch.func.vmap` the shape
is that of one sample. The call that did the work is nested, with the real shapes, so it counts
instead:

- what ran inside ``PythonSubclass``, the marker of ``__torch_dispatch__``. A mode that is entered
  in there (``PythonDispatchMode``) works on fake tensors, to compute a shape;
- inside an operator of the same name or family: a batching rule turns `mm` into `bmm`. Where both
  have the same number, the outer one counts.

In forward mode, an operator's derivatives run nested in it, after ``_fw_primal``: they are treated
as its siblings.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from pytest_torchprof.trace import nesting
from pytest_torchprof.work.flops import FORMULAS

if TYPE_CHECKING:
    from pytest_torchprof.trace.nesting import Bools, Ints

#: Markers of torch's dispatcher. Source: aten/src/ATen/core/PythonFallbackKernel.cpp.
_SUBCLASS: Final = "PythonSubclass"
_MODE: Final = "PythonDispatchMode"
#: … and of dynamo, which compiles with fake tensors. Source: torch/_dynamo/utils.py.
_COMPILING: Final = "(dynamo_timed)"
#: What forward mode calls on each input after the operator itself is done.
#: Source: tools/autograd/gen_variable_type.py, ``FW_DERIVATIVE_TEMPLATE``.
_FORWARD_MODE: Final = "aten::_fw_primal"

#: Products may be made of one another (`addmm` of `mm`, `mv` of `addmv_`, `bmm` of many `addmm_`),
#: and so may convolutions.
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
#: Operator -> the operators it may redispatch to, besides its own name.
_HANDED_TO: Final = {
    **dict.fromkeys(_PRODUCTS, _PRODUCTS),
    **dict.fromkeys(_CONVOLUTIONS, _CONVOLUTIONS),
    # Batched, the gradient of a weight is a convolution with one group per sample.
    "aten::convolution_backward": {"aten::convolution"},
}


class Ran(NamedTuple):
    """``counts``: the events whose FLOPs count; of events nested by ``parent``, at most one.

    ``fake``: those that worked on fake tensors, for a tensor subclass or a compiler.
    """

    counts: Bools
    parent: Ints
    fake: Bools

    def part(self, selection: Bools) -> Ran:
        """The same for a part that cuts no operator."""
        return self._replace(counts=self.counts & selection)


class Dispatch(NamedTuple):
    """How torch's dispatcher handed calls on.

    ``parent``: the nesting that decides what counts; ``subclass``: the events in which a tensor
    subclass took over; ``fake``: as in `Ran`.
    """

    parent: Ints
    subclass: Ints
    fake: Bools

    @classmethod
    def of(cls, name: Ints, names: Sequence[str], parent: Ints) -> Dispatch:
        """``names[name[i]]`` is the name of event ``i``, ``parent[i]`` that around it, or -1."""
        parent = _beside(name, names, parent)
        subclass = _events(_SUBCLASS, name, names)
        compiling = [known for known in names if known.endswith(_COMPILING)]
        around = np.concatenate([subclass, *(_events(one, name, names) for one in compiling)])
        return cls(parent, subclass, _fake(around, _events(_MODE, name, names), parent))


def ran(flops: Ints, name: Ints, names: Sequence[str], dispatch: Dispatch) -> Ran:
    """Which events count, and the nesting used to decide that.

    ``flops[i]`` is the number of event ``i``, -1 for none; ``names[name[i]]`` its name.
    """
    parent, subclass, fake = dispatch
    real = (flops >= 0) & ~fake
    if not real.any():
        return Ran(real, parent, fake)
    if len(handed := _handed_on(real, subclass, name, names, parent)):
        trial = real.copy()
        trial[handed] = False
        inside = sums(handed, _outermost(trial, parent), flops, parent)
        # If both have the same number, the outer one counts: its name says more.
        real[handed[inside != flops[handed]]] = False
    return Ran(_outermost(real, parent), parent, fake)


#: What a checkpoint's hook calls on an operand that it saves.
_KEEPING: Final = frozenset({"aten::detach", "detach"})


def broken_off(
    rows: Ints, call: Ints, name: Ints, names: Sequence[str], parent: Ints, signs: Ints
) -> Bools:  # fmt: skip
    """Which of these events raised before they did any work, like the last one of a recomputation.

    A checkpoint recomputes until it has what the gradients need. Then it raises, out of the
    operator that was about to start. Such an event contains only the saving of its operands, and
    shows no sign of work where another event with the same ``call`` (a number for name and
    operands) does. ``signs`` are the events that called a device's runtime or allocated memory
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
    """FLOPs of the counted events within each root."""
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


def _events(wanted: str, name: Ints, names: Sequence[str]) -> Ints:
    if wanted not in names:
        return np.zeros(0, np.int64)
    numbers = [i for i, known in enumerate(names) if known == wanted]
    return np.flatnonzero(nesting.among(name, numbers))


def _beside(name: Ints, names: Sequence[str], parent: Ints) -> Ints:
    """Parents, with forward-mode derivatives as siblings of the operator they derive."""
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
    while (moved := out[of] != out[later]).any():  # such operators can be nested
        out[later[moved]] = out[of[moved]]
    return out


def _fake(around: Ints, mode: Ints, parent: Ints) -> Bools:
    """What ran on fake tensors: in a mode entered by a subclass's handler or by dynamo."""
    fake = np.zeros(len(parent), bool)
    if not (len(around) and len(mode)):
        return fake
    handler = fake.copy()
    handler[around] = True
    inner = mode[nesting.below(handler, parent, mode)]
    fake[inner] = True
    above = parent[inner]  # the operator that the mode intercepted
    fake[above[~handler[above]]] = True
    every = np.flatnonzero(parent >= 0)
    fake[every[nesting.below(fake, parent, every)]] = True
    return fake


def _handed_on(
    real: Bools, subclass: Ints, name: Ints, names: Sequence[str], parent: Ints
) -> Ints:  # fmt: skip
    """Events that were redispatched to another one, nested in them."""
    rows = real.nonzero()[0]
    rows = rows[nesting.below(real, parent, rows)]
    if not len(rows):
        return rows
    own, kind = _present(name[rows], len(names))
    others, kind_of = _present(name[real], len(names))
    name_of = names.__getitem__
    may = _may_hand_on(tuple(map(name_of, others.tolist())), tuple(map(name_of, own.tolist())))
    if not (len(subclass) or may.any()):
        return rows[:0]
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
        handed[outer[crossed[inner] | may[kind_of[name[outer]], kind[name[rows[inner]]]]]] = True
        at[todo] = parent[here]
        todo = todo[at[todo] >= 0]
    return np.flatnonzero(handed)


@lru_cache(maxsize=100)
def _may_hand_on(outermost: tuple[str, ...], inner: tuple[str, ...]) -> Bools:
    """For each outer name and each inner one, whether the first may be redispatched to the other.

    Cached, as runs of a test and similar tests call the same operators; not to be written to.
    """
    families = [{one, *_HANDED_TO.get(one, ())} for one in outermost]
    found = [[name in family for name in inner] for family in families]
    return np.array(found, bool).reshape(len(outermost), len(inner))


def _present(name: Ints, count: int) -> tuple[Ints, Ints]:
    """The distinct numbers among these, in order, and for each number its place among them."""
    there = np.zeros(count, bool)
    there[name] = True
    return there.nonzero()[0], np.cumsum(there) - 1
