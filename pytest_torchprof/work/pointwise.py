"""Compulsory bytes of everything but contractions: elementwise work, reductions, tables."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Final

from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.work.dtypes import ELEMENT_BYTES
from pytest_torchprof.work.operands import (
    Operands,
    Tensor,
    UnknownOperandError,
    broadcast,
    category,
    promoted,
)

if TYPE_CHECKING:
    from pytest_torchprof.work.operands import TrafficRule

# ------------------------------------------------------------------------- element by element


class Elementwise(Frozen, frozen=True):
    """The rule of an operator whose leading ``inputs`` operands are broadcast; the output follows.

    ``out``: the dtype of the result if it is fixed; "real" if integers give floats.
    """

    inputs: int
    out: str | None = None

    def __call__(self, name: str, call: Operands) -> int:
        """The bytes of a call."""
        return sum(t.bytes for t in self.read(call)) + self.written(name, call).bytes

    def read(self, call: Operands) -> list[Tensor]:
        """The tensors that it reads. Numbers are recorded as tensors without dimensions."""
        tensors = call.tensors(0, self.inputs)
        shape = broadcast(tensors)
        return [t for t in tensors if t.shape or not shape]

    def written(self, name: str, call: Operands) -> Tensor:
        """The tensor that it writes."""
        tensors = call.tensors(0, self.inputs)
        shape = broadcast(tensors)
        if name.endswith("_"):
            if shape != tensors[0].shape:
                raise UnknownOperandError
            return tensors[0]  # the kernel refuses an expanded output
        places = call.tensors(self.inputs)
        if places:
            return Tensor(shape, places[-1].dtype)
        return Tensor(shape, _result(call, tensors, self.inputs, self.out))


def _result(call: Operands, tensors: list[Tensor], inputs: int, out: str | None) -> str:
    if out is not None and out != "real":
        return out
    dtype = promoted(tensors, [])
    if category(dtype) < 2:  # among floats, a number does not decide
        places = range(min(inputs, len(call)))
        dtype = promoted(tensors, [call.text(i) for i in places if call.types[i] == "Scalar"])
    return "float" if out == "real" and category(dtype) < 2 else dtype


def _division(name: str, call: Operands) -> int:
    """True division turns integers into floats; a rounding division does not."""
    return _quotient(call)(name, call)


def _quotient(call: Operands) -> Elementwise:
    rounds = len(call) > 2 and bool(call.concrete) and bool(call.concrete[2])
    return Elementwise(2, None if rounds else "real")


def _where(_: str, call: Operands) -> int:
    """`where(condition, a, b)`: the condition does not affect the dtype."""
    tensors, places = call.tensors(0, 3), call.tensors(3)
    shape = broadcast(tensors)
    numbers = [call.text(i) for i in (1, 2) if call.types[i] == "Scalar"]
    dtype = places[-1].dtype if places else promoted(tensors[1:], numbers)
    return sum(t.bytes for t in tensors if t.shape or not shape) + Tensor(shape, dtype).bytes


def _loss(_: str, call: Operands) -> int:
    """`mse_loss(x, y, reduction)` and the like: a reduction of 0 keeps each difference."""
    tensors = call.tensors(0, 2)
    out = 1 if call.integers(2)[0] else prod(broadcast(tensors))
    return sum(t.bytes for t in tensors) + out * ELEMENT_BYTES[promoted(tensors, [])]


def _copy(_: str, call: Operands) -> int:
    """`copy_(to, from)`: each in its own dtype."""
    return call.tensor(0).bytes + call.tensor(1).bytes


def _cast(_: str, call: Operands) -> int:
    """`_to_copy(x, dtype, ...)`."""
    x = call.tensor(0)
    return x.bytes + prod(x.shape) * ELEMENT_BYTES[call.dtype(1, x.dtype)]


def _written(_: str, call: Operands) -> int:
    """`fill_`, `normal_` and the like: the old contents are not read."""
    return call.tensor(0).bytes + sum(t.bytes for t in call.tensors(1) if t.shape)


def _rearranged(_: str, call: Operands) -> int:
    """As many elements out as in: `clone`, `flip`, `roll` and the like."""
    x = call.tensor(0)
    return x.bytes + prod(x.shape) * x.item


def _diagonal(_: str, call: Operands) -> int:
    """`diagonal_copy(x, offset, dim1, dim2)`: only the diagonals read."""
    x = call.tensor(0)
    offset, *axes = (call.integers(at)[0] for at in (1, 2, 3))
    rows, columns = (x.shape[axis] for axis in axes)
    if x.bytes != prod(x.shape) * x.item or not rows or not columns:
        raise UnknownOperandError  # of an expanded tensor, elements coincide
    length = max(min(rows + min(offset, 0), columns - max(offset, 0)), 0)
    return 2 * length * (prod(x.shape) // (rows * columns)) * x.item


def _trace(_: str, call: Operands) -> int:
    """`trace(x)`: the diagonal read; small integers are summed in 64 bits."""
    x = call.tensor(0)
    if x.bytes != prod(x.shape) * x.item:
        raise UnknownOperandError
    out = ELEMENT_BYTES["long" if category(x.dtype) < 2 else x.dtype]
    return min(x.shape) * x.item + out


def _dropout(_: str, call: Operands) -> int:
    """`native_dropout`: the result, and the mask as one byte per element."""
    x = call.tensor(0)
    return x.bytes + prod(x.shape) * (x.item + 1)


def _dropout_backward(_: str, call: Operands) -> int:
    grad, mask = call.tensor(0), call.tensor(1)
    return grad.bytes + mask.bytes + prod(grad.shape) * grad.item


# ----------------------------------------------------------------- reductions and normalisations


def _reduction(axes: int = 1, out: str | None = None, *, outputs: int = 1) -> TrafficRule:
    """The input read, the result written. `axes`: the argument with the reduced axes; "" is all.

    `out`: the dtype of the result, or "sum" if it can be requested and small integers are summed in
    64 bits. A second output holds indices.
    """

    def rule(_: str, call: Operands) -> int:
        x = call.tensor(0)
        gone: set[int] = set()
        if len(call) > 2 and x.shape:
            gone = {axis % len(x.shape) for axis in call.integers(axes)}
        kept = prod(n for i, n in enumerate(x.shape) if i not in gone) if gone else 1
        dtype = out or x.dtype
        if out == "sum":
            dtype = call.dtype(
                3 if len(call) > 2 else 1, "long" if category(x.dtype) < 2 else x.dtype
            )
        sizes = ELEMENT_BYTES[dtype] + (8 if outputs == 2 and len(call) > 2 else 0)
        return x.bytes + kept * sizes

    return rule


def _twice(rule: TrafficRule) -> TrafficRule:
    """Two such results of the first tensor, which is read once."""
    return lambda name, call: 2 * rule(name, call) - call.tensor(0).bytes


def _extremum(name: str, call: Operands) -> int:
    """`max(x)`, `max(x, axis)` with indices, or `max(x, other)`."""
    if len(call) > 1 and call.types[1] in ELEMENT_BYTES:
        return Elementwise(2)(name, call)
    return _reduction(outputs=2)(name, call)


def _softmax(_: str, call: Operands) -> int:
    """`(x, axis, half_to_float)`."""
    x = call.tensor(0)
    single = x.dtype == "c10::Half" and call.flag(2)
    return x.bytes + prod(x.shape) * (4 if single else x.item)


def _softmax_backward(_: str, call: Operands) -> int:
    """`(grad, output, axis, input_dtype)`."""
    grad = call.tensor(0)
    return call.read(0, 2) + prod(grad.shape) * ELEMENT_BYTES[call.dtype(3, grad.dtype)]


def _statistics(dtype: str) -> int:
    """Bytes of a mean or a deviation: half precision keeps them in single."""
    return max(ELEMENT_BYTES[dtype], 4)


def _layer_norm(statistics: int) -> TrafficRule:
    """`(x, normalized_shape, weight, bias, eps)`; keeps `statistics` numbers per row."""

    def rule(_: str, call: Operands) -> int:
        x, weight = call.tensor(0), call.optional(2)
        width = prod(weight.shape if weight else call.integers(1))
        rows = prod(x.shape) // width if width else 0
        kept = statistics * rows * _statistics(x.dtype)
        return call.read(0, 4) + prod(x.shape) * x.item + kept

    return rule


def _norm_backward(x: int, weight: int, unread: tuple[int, ...] = ()) -> TrafficRule:
    """All inputs read; the gradients that the mask (or its absence) requests written."""

    def rule(_: str, call: Operands) -> int:
        inside, scale = call.tensor(x), call.optional(weight)
        mask = call.concrete[-1] if call.concrete else ""
        wanted = [item.strip() == "True" for item in mask.strip("[]").split(",")]
        wanted = wanted if len(wanted) > 1 else [True] * 3
        total = call.read() - sum(t.bytes for i in unread if (t := call.optional(i)))
        total += prod(inside.shape) * inside.item * wanted[0]
        return total + (prod(scale.shape) * scale.item * sum(wanted[1:]) if scale else 0)

    return rule


def _batch_norm(training: int | bool) -> TrafficRule:
    """`(x, weight, bias, running_mean, running_var, training, ...)`."""

    def rule(_: str, call: Operands) -> int:
        x = call.tensor(0)
        total = call.read(0, 5) + prod(x.shape) * x.item
        if training if isinstance(training, bool) else call.flag(training):
            running = sum(t.bytes for t in call.tensors(3, 5))
            total += running + 2 * x.shape[1] * _statistics(x.dtype)
        return total

    return rule


def _group_norm(_: str, call: Operands) -> int:
    """`(x, weight, bias, n, channels, places, groups, eps)`."""
    x = call.tensor(0)
    groups = call.integers(3)[0] * call.integers(6)[0]
    return call.read(0, 3) + prod(x.shape) * x.item + 2 * groups * x.item


def _cumulated(_: str, call: Operands) -> int:
    """`cumsum(x, axis, dtype)`: small integers are summed in 64 bits."""
    x = call.tensor(0)
    dtype = call.dtype(2, "long" if category(x.dtype) < 2 else x.dtype)
    return x.bytes + prod(x.shape) * ELEMENT_BYTES[dtype]


# ------------------------------------------------------------------------------------ the table

_UNARY, _BINARY, _TERNARY = (Elementwise(n) for n in (1, 2, 3))
_REAL_UNARY, _REAL_BINARY = (Elementwise(n, "real") for n in (1, 2))
_TEST, _COMPARISON = (Elementwise(n, "bool") for n in (1, 2))


def _each(rule: TrafficRule, *names: str) -> dict[str, TrafficRule]:
    """The same rule for these operators and, where they exist, their in-place forms."""
    return {f"aten::{name}{tail}": rule for n in names for name in n.split() for tail in ("", "_")}


POINTWISE: Final[Mapping[str, TrafficRule]] = {
    **_each(_UNARY, "abs neg sign relu relu6 sgn square floor ceil round trunc frac positive"),
    **_each(_UNARY, "leaky_relu elu hardtanh hardswish hardsigmoid silu mish gelu softplus"),
    **_each(_UNARY, "bitwise_not nan_to_num threshold hardshrink softshrink"),
    **_each(_REAL_UNARY, "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sigmoid tanh"),
    **_each(_REAL_UNARY, "sin cos tan asin acos atan sinh cosh erf erfc erfinv lgamma digamma"),
    **_each(_REAL_UNARY, "asinh acosh atanh logit"),
    **_each(_TEST, "logical_not isnan isinf isfinite"),
    **_each(_BINARY, "add sub rsub mul pow remainder fmod maximum minimum fmax fmin clamp_min"),
    **_each(_BINARY, "clamp_max bitwise_and bitwise_or bitwise_xor floor_divide hypot xlogy"),
    **_each(_BINARY, "threshold_backward gelu_backward silu_backward sigmoid_backward"),
    **_each(_BINARY, "tanh_backward leaky_relu_backward hardswish_backward hardtanh_backward"),
    **_each(_BINARY, "softplus_backward mish_backward hardsigmoid_backward logit_backward"),
    **_each(_BINARY, "softshrink_backward hardshrink_backward"),
    **_each(_REAL_BINARY, "true_divide atan2"),
    **_each(_division, "div"),
    **_each(_COMPARISON, "eq ne lt le gt ge logical_and logical_or logical_xor"),
    **_each(_TERNARY, "addcmul addcdiv lerp clamp"),
    "aten::masked_fill_": Elementwise(2),
    "aten::mse_loss": _loss,
    "aten::mse_loss_backward": _TERNARY,
    "aten::where": _where,
    "aten::copy_": _copy,
    "aten::_to_copy": _cast,
    "aten::clone": _rearranged,
    "aten::flip": _rearranged,
    "aten::roll": _rearranged,
    **_each(_rearranged, "tril triu"),
    "aten::diagonal_copy": _diagonal,
    "aten::trace": _trace,
    "aten::fill_": _written,
    "aten::zero_": _written,
    "aten::normal_": _written,
    "aten::uniform_": _written,
    "aten::random_": _written,
    "aten::exponential_": _written,
    "aten::bernoulli_": _written,
    "aten::native_dropout": _dropout,
    "aten::native_dropout_backward": _dropout_backward,
    "aten::sum": _reduction(out="sum"),
    "aten::prod": _reduction(out="sum"),
    "aten::mean": _reduction(out="sum"),
    "aten::amax": _reduction(),
    "aten::amin": _reduction(),
    "aten::aminmax": _twice(_reduction()),
    "aten::nansum": _reduction(out="sum"),
    "aten::max": _extremum,
    "aten::min": _extremum,
    "aten::argmax": _reduction(out="long"),
    "aten::argmin": _reduction(out="long"),
    "aten::any": _reduction(out="bool"),
    "aten::all": _reduction(out="bool"),
    "aten::var": _reduction(),
    "aten::std": _reduction(),
    "aten::var_mean": _twice(_reduction()),
    "aten::std_mean": _twice(_reduction()),
    "aten::linalg_vector_norm": _reduction(2),
    "aten::cumsum": _cumulated,
    "aten::cumprod": _cumulated,
    "aten::_softmax": _softmax,
    "aten::_log_softmax": _softmax,
    "aten::_softmax_backward_data": _softmax_backward,
    "aten::_log_softmax_backward_data": _softmax_backward,
    "aten::native_layer_norm": _layer_norm(2),
    "aten::_fused_rms_norm": _layer_norm(1),
    "aten::native_layer_norm_backward": _norm_backward(1, 5, (6,)),
    "aten::_fused_rms_norm_backward": _norm_backward(1, 4),
    "aten::native_batch_norm": _batch_norm(5),
    "aten::_native_batch_norm_legit": _batch_norm(5),
    "aten::_batch_norm_with_update": _batch_norm(training=True),
    "aten::cudnn_batch_norm": _batch_norm(5),
    "aten::miopen_batch_norm": _batch_norm(5),
    "aten::native_batch_norm_backward": _norm_backward(1, 2),
    "aten::cudnn_batch_norm_backward": _norm_backward(0, 2),
    "aten::miopen_batch_norm_backward": _norm_backward(0, 2),
    "aten::native_group_norm": _group_norm,
    "aten::native_group_norm_backward": _norm_backward(1, 4),
}

#: Reductions that read one tensor, the first operand.
REDUCTIONS: Final = frozenset(
    {"aten::sum", "aten::mean", "aten::amax", "aten::amin", "aten::var", "aten::std"}
    | {"aten::linalg_vector_norm"}
)


def is_elementwise(name: str) -> bool:
    """Whether each element that this operator writes depends on one of each tensor it reads."""
    rule = POINTWISE.get(name)
    return isinstance(rule, Elementwise) or rule in (_division, _copy, _dropout, _dropout_backward)


def written(name: str, call: Operands) -> Tensor:
    """The tensor that an elementwise operator writes; raises if the call lacks what that needs.

    >>> written("aten::gt", Operands([[4, 5], []], ["float", "Scalar"], ["", "0"]))
    Tensor(shape=(4, 5), dtype='bool', strides=None)
    """
    rule = POINTWISE[name]
    if rule is _division:
        rule = _quotient(call)
    return rule.written(name, call) if isinstance(rule, Elementwise) else call.tensor(0)


def read(name: str, call: Operands) -> list[Tensor]:
    """The tensors that an elementwise operator, or one of `REDUCTIONS`, reads; raises likewise."""
    rule = POINTWISE[name]
    if rule is _division:
        rule = _quotient(call)
    if isinstance(rule, Elementwise):
        return rule.read(call)
    if rule is _copy:
        return [call.tensor(1)]
    return call.tensors(0, 2) if rule is _dropout_backward else [call.tensor(0)]
