"""Which elementwise calls in a row read what the one before wrote, by shape and dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from pytest_torchprof.trace.arguments import decode_part
from pytest_torchprof.work.operands import Operands
from pytest_torchprof.work.pointwise import is_elementwise, read, written

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints
    from pytest_torchprof.work.operands import Tensor

_COPY: Final = "aten::copy_"
_ADDS: Final = frozenset({"aten::add", "aten::add_"})


class CallKind(NamedTuple):
    """What a call reads and writes; ``alike`` is equal for calls of the same arguments.

    ``is_sum``: of two tensors of the result's shape, such as a residual.
    """

    out: Tensor | None
    inputs: Sequence[Tensor]
    shape: tuple[int, ...] | None
    is_sum: bool
    alike: Hashable


def kinds_of(trace: Events, calls: Ints) -> tuple[list[CallKind], Ints]:
    """The distinct kinds of these calls, and the number of each one's."""
    known: dict[tuple[str, bytes, bytes, bytes, bytes], int] = {}
    kinds, number = list[CallKind](), list[int]()
    for name, a in zip(trace.name[calls].tolist(), trace.operands(calls), strict=True):
        raw = (bytes(a.dims), bytes(a.types), bytes(a.strides), bytes(a.concrete))
        key = (trace.names[name], *raw)
        if key not in known:
            known[key] = len(kinds)
            dims, types, strides, concrete = map(decode_part, raw)
            kinds.append(_kind(key[0], Operands(dims, types, concrete, strides), key[:3]))
        number.append(known[key])
    return kinds, np.array(number, np.int64)


def _kind(name: str, call: Operands, alike: Hashable) -> CallKind:
    out: Tensor | None = None
    try:
        inputs = read(name, call)
        if is_elementwise(name):
            out = written(name, call)
        if name == _COPY and out is not None and out.dtype == inputs[0].dtype:
            out, inputs = None, []  # it changes the layout
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError):
        out, inputs = None, []  # malformed, or not in this trace
    if out is None:
        return CallKind(None, inputs, None, is_sum=False, alike=alike)
    is_sum = name in _ADDS and all(t.shape == out.shape for t in inputs) and len(inputs) > 1
    return CallKind(out, inputs, out.shape, is_sum, alike)


def passed_bytes(first: CallKind, second: CallKind) -> int:
    """The bytes that the second call reads of what the first one wrote; 0 for none.

    Two calls in a row that are alike are rather made on one tensor after the other.
    """
    out = first.out
    if out is None or first.alike == second.alike:
        return 0
    fits = any(t.shape == out.shape and t.dtype == out.dtype for t in second.inputs)
    return out.bytes if fits else 0


def numbered(keys: Sequence[Hashable]) -> Ints:
    """The same number for equal keys."""
    known: dict[Hashable, int] = {}
    return np.array([known.setdefault(key, len(known)) for key in keys], np.int64)


def repeats(at: Ints, first: Ints, second: Ints) -> Bools:
    """Which of these pairs end in a call like an earlier one of their chain: a loop has gone on to
    the next tensor.
    """
    found = np.zeros(len(at), bool)
    seen, last = set[int](), -2
    for i, (place, a, b) in enumerate(
        zip(at.tolist(), first.tolist(), second.tolist(), strict=True)
    ):
        if place != last + 1:
            seen = {a}
        found[i] = b in seen
        seen = {b} if found[i] else seen | {b}
        last = place
    return found
