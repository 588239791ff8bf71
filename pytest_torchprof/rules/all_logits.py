"""Rules about products with a vocabulary, whose results are the largest tensors of a model."""

from __future__ import annotations

import re
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from msgspec.structs import replace

from pytest_torchprof.analysis.breakdown import gain
from pytest_torchprof.core.process import late
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.rules.evidence.calls import sizes
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, Threshold, around, rule
from pytest_torchprof.trace.arguments import AutogradArgs, decode, decode_part
from pytest_torchprof.trace.names import Names, are_named
from pytest_torchprof.trace.tree import are_engine_steps, calls, engine_steps
from pytest_torchprof.work.operands import ELEMENT_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_torchprof.trace.arguments import OpArgs
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

_Shape = tuple[int, ...]

_PRODUCT: Final = Names(r"aten::(linear|matmul)$")
#: Operators that copy all positions, or make a view of them.
_PASSES: Final = late(
    r"aten::(to|_to_copy|float|half|double|bfloat16|contiguous|detach|alias|view_as|clone"
    r"|div_?|mul_?|true_divide_?|tanh_?|softmax|log_softmax)$"
)
_SELECT, _SLICE, _NARROW = "aten::select", "aten::slice", "aten::narrow"
_SQUEEZE: Final = "aten::squeeze"
_WHOLE: Final = 2**62
#: How many calls after a product are searched for those that take its result.
_FAR: Final = 100
#: The number of a trace's products that are checked, from the first.
_MOST: Final = 2000
#: The number of calls decoded at a time: usually the first takes all of the result.
_AT_ONCE: Final = 4
#: The position of a slice that takes everything.
_ALL: Final = -1
_LAST: Final = (
    "select the position before the product: lm_head(hidden[:, -1:]); transformers has "
    "logits_to_keep=1"
)
_OTHER: Final = "select the position before the product, as in lm_head(hidden[:, position])"


@rule(
    "all-logits",
    memory=True,
    fix=_LAST,
    triggers={r"aten::(select|slice|narrow)$": 1, _PRODUCT.pattern: 1},
    needs="shapes",
    vocabulary=Threshold(4, "1", "a layer inside a model makes at most a few times its input"),
    wasted=Threshold(2**16, "B", "computing less takes almost no time"),
)
def all_logits(trace: Events, *, vocabulary: float, wasted: float) -> Matches:
    """A product with a vocabulary is computed for all positions, and one is used.

    ## What it does

    Counts products of sequences with at least `vocabulary` (4) times as many outputs as inputs, of
    whose result only one position is taken, by an index or a slice: `logits[:, -1]`. Casts, scaling
    or a softmax of all of it may come in between. The rest of the result must be `wasted` (64 KiB)
    or more.

    Not counted: results of which anything takes more, such as a loss; one sample of a batch; and
    positions that a tensor selects.

    ## Why it is slow

    The vocabulary is the widest layer of a language model: a prompt of 1,000 tokens costs 1,000
    times as much as its last position, in time and in memory.

    ## Example

    ```python
    logits = lm_head(hidden)
    next_token = logits[:, -1].argmax(-1)
    ```

    ## Use instead

    ```python
    logits = lm_head(hidden[:, -1])
    next_token = logits.argmax(-1)
    ```
    """
    rows = calls(trace)
    rows = rows[trace.selection[rows]]
    at = np.flatnonzero(are_named(trace, rows, _PRODUCT))[:_MOST]
    if not len(at):
        return NO_MATCHES
    found: list[tuple[int, _Result]] = []
    for place, args in zip(at.tolist(), trace.operands(rows[at]), strict=True):
        made = _result(bytes(args.dims), bytes(args.types), vocabulary)
        if made is None or made.bytes < wasted:
            continue
        result = _of_one_position(trace, rows, place, made)
        if result is not None and result.wasted >= wasted:
            found.append((int(rows[place]), result))
    if not found:
        return NO_MATCHES
    event = np.array([row for row, _ in found], np.int64)
    share = np.array([1 - 1 / result.positions for _, result in found])
    begin, end = around(trace, event)
    worth = gain(trace).between(begin, end)
    return Matches(
        event,
        [
            f"logits of {result.shape[-1]:,} tokens for all positions, of which one is used"
            for _, result in found
        ],
        cost_ns=(worth * share * _backward(trace, event)).astype(np.int64),
        bytes=np.array([result.wasted for _, result in found], np.int64),
        fix=[_LAST if result.used == result.positions - 1 else _OTHER for _, result in found],
    )


def _backward(trace: Events, products: Ints) -> Ints:
    """The number of products per product: three if a backward pass includes it, else one."""
    steps = engine_steps(trace)
    if not len(steps):
        return np.ones(len(products), np.int64)
    ran = {args.sequence for args in decode(AutogradArgs, trace.args[steps])} - {-1}
    numbers = [args.sequence for args in decode(AutogradArgs, trace.args[products])]
    return np.array([3 if number in ran else 1 for number in numbers], np.int64)


class _Result(Frozen, frozen=True):
    """A product's result; its positions are along the second-to-last dimension.

    ``used``: the only position that is, once known.
    """

    shape: _Shape
    dtype: str
    used: int = -1

    @property
    def bytes(self) -> int:
        return prod(self.shape) * ELEMENT_BYTES.get(self.dtype, 2)

    @property
    def positions(self) -> int:
        return self.shape[-2]

    @property
    def wasted(self) -> int:
        """The bytes of all positions but one."""
        return self.bytes // self.positions * (self.positions - 1)


@lru_cache(maxsize=1000)
def _result(raw_dims: bytes, raw_types: bytes, vocabulary: float) -> _Result | None:
    """For a product of sequences with a vocabulary; else None.

    Cached by the operands' raw shapes and types: a model's products are few.
    """
    dims, types = decode_part(raw_dims), decode_part(raw_types)
    if not isinstance(dims, list) or not isinstance(types, list):
        return None
    known = [(sizes(d), str(t)) for d, t in zip(dims, types, strict=False)]
    matrices = [(d, t) for d, t in known if d is not None and len(d) > 1]
    if len(matrices) < 2 or len(matrices[-1][0]) != 2:
        return None
    (x, dtype), (weight, _) = matrices[-2:]
    if len(x) < 3:
        return None
    inner = x[-1]
    outputs = weight[0] if weight[1] == inner else weight[1]
    if inner not in weight or outputs < vocabulary * inner or x[-2] < 2:
        return None
    return _Result((*x[:-1], outputs), dtype)


def _of_one_position(trace: Events, rows: Ints, place: int, result: _Result) -> _Result | None:
    """The result of a product, if all its users soon after take one position of it."""
    after = rows[place + 1 : place + 1 + _FAR]
    after = after[trace.thread[after] == trace.thread[rows[place]]]
    product = trace.names[trace.name[rows[place]]]
    taken = set[int]()
    shapes = [result.shape]  # of tensors with all positions
    for name, args in _calls(trace, after):
        raw = bytes(args.dims)
        again = _result(raw, bytes(args.types), 0) if name == product else None
        if again is not None and again.shape == result.shape:
            break
        every = _shapes(raw)
        if any(list(one) in d for d in every if isinstance(d, list) for one in shapes):
            return None
        some = [one for one in shapes for _ in range(every.count(list(one)))]
        if not some or (len(some) == 1 and _PASSES.match(name)):
            continue
        (one, *others), concrete = some, decode_part(args.concrete)
        if others:
            return None
        if one[0] == 1 and len(one) > 2 and _is_first(name, concrete):
            shapes.append(one[1:])
            continue
        position = _position(name, concrete, one)
        if position is None:
            return None
        if position != _ALL:
            taken.add(position)
    return replace(result, used=taken.pop()) if len(taken) == 1 else None


@lru_cache(maxsize=1000)
def _shapes(raw_dims: bytes) -> Sequence[Any]:
    """The decoded shapes of operands, or lists of shapes."""
    dims = decode_part(raw_dims)
    return dims if isinstance(dims, list) else []


def _is_first(name: str, concrete: Any) -> bool:
    """Whether a call selects the first element of a dimension, or removes the dimension."""
    parts = [str(part) for part in concrete] if isinstance(concrete, list) else []
    return name in (_SELECT, _SQUEEZE) and parts[1:2] in ([], ["0"])


def _position(name: str, concrete: Any, shape: _Shape) -> int | None:
    """The position that a call selects; `_ALL` for all, None for anything else."""
    parts = [str(part) for part in concrete] if isinstance(concrete, list) else []
    numbers = [int(part) if re.fullmatch(r"-?\d+", part) else None for part in parts[1:4]]
    if len(numbers) < 2 or numbers[0] is None or name not in (_SELECT, _SLICE, _NARROW):
        return None
    axis = numbers[0] % len(shape)
    size = shape[axis]
    start = numbers[1]
    if name == _SELECT:
        length: int | None = 1
    elif name == _NARROW:
        length = numbers[2] if len(numbers) > 2 else None
    else:
        begin = start or 0
        stop = numbers[2] if len(numbers) > 2 and numbers[2] is not None else _WHOLE
        begin, stop = (n + size if n < 0 else min(n, size) for n in (begin, stop))
        start, length = begin, stop - begin
    if length == size:
        return _ALL
    if axis != len(shape) - 2 or length != 1 or start is None:
        return None
    return start % size


def _calls(trace: Events, rows: Ints) -> Iterator[tuple[str, OpArgs]]:
    """Names and operands, a few decoded at a time; without those of a backward pass."""
    for start in range(0, len(rows), _AT_ONCE):
        some = rows[start : start + _AT_ONCE]
        some = some[~are_engine_steps(trace, some)]
        names = [trace.names[number] for number in trace.name[some].tolist()]
        yield from zip(names, trace.operands(some), strict=True)
