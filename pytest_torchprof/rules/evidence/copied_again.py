"""Whether a repeated copy may be of a new tensor, by what ran since the previous copy."""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.rules.evidence.calls import sizes
from pytest_torchprof.trace.arguments import decode_part
from pytest_torchprof.work.dtypes import ELEMENT_BYTES
from pytest_torchprof.work.views import EXPANSIONS, PARTS, WHOLE, aten

if TYPE_CHECKING:
    from pytest_torchprof.trace.arguments import OpArgs

#: "bare": nothing ran that may have used the copy, except views and copies of other tensors.
#: "same": more ran, but nothing that can have made the source anew. "new": something can have.
Since = Literal["bare", "same", "new"]


class CopiedTensor(NamedTuple):
    """A tensor that is copied: its shape, its C++ type, and the type of its copy."""

    shape: tuple[int, ...]
    dtype: str
    to: str


COPIES = aten(
    "to _to_copy type_as float half double contiguous clone reshape flatten ravel copy copy_"
)
#: The same memory, or nothing of it.
SAME_MEMORY = WHOLE | EXPANSIONS | aten("result_type is_same_size")
READS = aten("item _local_scalar_dense is_nonzero equal allclose record_stream")
#: Fewer elements out than in, unless an axis has one element.
_REDUCTIONS = aten(
    "sum mean amax amin max min prod any all norm linalg_vector_norm argmax argmin var std "
    "var_mean std_mean logsumexp nansum median cross_entropy cross_entropy_loss nll_loss mse_loss "
    "l1_loss nll_loss_nd count_nonzero"
)
#: The result has the shape of the first tensor.
_LIKE_FIRST = aten(
    "softmax _softmax log_softmax layer_norm native_layer_norm rms_norm _fused_rms_norm batch_norm "
    "group_norm dropout native_dropout feature_dropout cumsum cumprod sort flip roll tril triu "
    "silu gelu celu elu selu leaky_relu hardtanh hardswish softplus masked_fill clamp clamp_min "
    "clamp_max instance_norm scaled_dot_product_attention zeros_like "
    "ones_like empty_like full_like rand_like randn_like"
)
#: The result has the shape that its tensors broadcast to.
_BROADCAST = aten(
    "add sub rsub mul div true_divide pow relu relu6 sigmoid tanh exp log sqrt rsqrt neg abs sin "
    "cos erf square reciprocal maximum minimum where eq ne lt le gt ge logical_and logical_or "
    "logical_not bitwise_and bitwise_or bitwise_not addcmul addcdiv lerp floor ceil round sign "
    "floor_divide remainder fmod atan2 log1p expm1 isnan isinf threshold mish log2 sinh"
)
_CREATORS = aten(
    "empty zeros ones full rand randn randint empty_strided new_empty new_zeros new_ones new_full"
)
_PRODUCTS = aten("mm matmul bmm linear addmm baddbmm mv addmv dot vdot")
_CONVOLUTIONS = frozenset(f"aten::conv{i}d" for i in (1, 2, 3)) | {"aten::convolution"}
#: Results that are truth values or indices, whatever the inputs.
_TESTS = aten(
    "eq ne lt le gt ge logical_and logical_or logical_not isnan isinf any all argmax argmin "
    "count_nonzero sort max min median"
)
_RAISED = _LIKE_FIRST | _REDUCTIONS | aten("pow exp expm1 log log2 log1p reciprocal rsqrt sinh")
_KEEP_TYPE = _LIKE_FIRST | _BROADCAST | _REDUCTIONS | _PRODUCTS | _CONVOLUTIONS
_INDICES = {"bool", "long", "long int"}
_LOW = {"c10::Half", "c10::BFloat16"}
_REAL = {"float", "double"} | _LOW


class OperatorCall(Frozen, frozen=True):
    """A call of an operator, decoded."""

    name: str
    dims: list[Any]
    types: list[Any]
    concrete: list[Any]

    @classmethod
    def of(cls, name: str, args: OpArgs) -> OperatorCall:
        """From the recorded arguments; empty lists for missing ones."""
        parts = [decode_part(bytes(p)) for p in (args.dims, args.types, args.concrete)]
        return cls(name, *([p if isinstance(p, list) else [] for p in parts]))

    @property
    def tensors(self) -> list[tuple[tuple[int, ...], str]]:
        """Shapes and types of the tensors among the arguments."""
        pairs = zip(self.dims, self.types, strict=False)
        found = [(sizes(d), t) for d, t in pairs if t in ELEMENT_BYTES]
        return [(d, t) for d, t in found if d is not None]

    @property
    def has_list(self) -> bool:
        """Whether there is a list of tensors, whose types no trace has."""
        return "TensorList" in self.types or any("TensorList" in str(t) for t in self.types)


def since(calls: list[OperatorCall], source: CopiedTensor) -> tuple[Since, list[int]]:
    """What the calls between two copies of such a source mean, and which of them select a part.

    If any do, "same" holds only if they select the same part again.
    """
    counts, parts = {prod(source.shape)}, []
    for i, call in enumerate(calls):
        if call.name in PARTS and call.tensors:
            shape, dtype = call.tensors[0]
            if dtype == source.dtype and prod(shape) > prod(source.shape):
                parts.append(i)
                counts.add(prod(shape))
        elif call.name in EXPANSIONS and call.tensors:
            counts.add(prod(call.tensors[0][0]))
    if any(_may_make(call, source, counts) for call in calls):
        return "new", parts
    used = any(
        call.name not in COPIES | SAME_MEMORY | PARTS or _is_back(call, source) for call in calls
    )
    return "same" if used else "bare", parts


def parts_may_be(call: OperatorCall, source: CopiedTensor) -> bool:
    """Whether the source may be, or be a view of, all of a part that this call split off."""
    if not call.tensors:
        return True
    shape, dtype = call.tensors[0]
    if dtype != source.dtype:
        return False
    name, numbers = call.name, [*map(_number, call.concrete[1:]), None, None]
    if name == "aten::unbind":
        numbers, name = [1, numbers[0]], "aten::split"
    axis = (numbers[1] or 0) + (len(shape) if (numbers[1] or 0) < 0 else 0)
    if name not in {"aten::chunk", "aten::split"} or not numbers[0] or axis >= len(shape):
        return True
    size = -(-shape[axis] // numbers[0]) if name == "aten::chunk" else numbers[0]
    rest = prod(shape[:axis]) * prod(shape[axis + 1 :])
    whole, last = divmod(shape[axis], size) if size else (0, 0)
    return prod(source.shape) in {rest * n for n, some in ((size, whole), (last, last)) if some}


def _may_make(call: OperatorCall, source: CopiedTensor, counts: set[int]) -> bool:
    """Whether the result may be the source, or what the source is a view of."""
    name, tensors = call.name, call.tensors
    if name in SAME_MEMORY | PARTS | READS:
        return False
    if name == "aten::set_":  # assigns a storage, as `copy.deepcopy` does for each tensor
        return True
    if name in COPIES and name != "aten::copy_":
        return _copy_makes(call, source, counts)
    if name.endswith("_") and not name.endswith("__"):
        # Writes to the source, or to a part of it.
        return (
            bool(tensors) and tensors[0][1] == source.dtype and prod(tensors[0][0]) <= max(counts)
        )
    if name in _CREATORS:
        size = next((s for s in map(_listed, call.concrete) if s is not None), None)
        return size is None or prod(size) in counts
    if not _may_have_type(call, source):
        return False
    if name in _CONVOLUTIONS and len(tensors) > 1 and len(source.shape) == len(tensors[0][0]):
        batch, channels = tensors[0][0][0], tensors[1][0][0]
        return not Counter([batch, channels]) - Counter(source.shape)
    count = _count(call)
    if count is None:
        return True
    return count in counts if name not in _REDUCTIONS else any(c < count for c in counts)


def _is_back(call: OperatorCall, source: CopiedTensor) -> bool:
    """Whether it casts the copy back to the source's dtype."""
    return source.dtype != source.to and call.tensors[:1] == [(source.shape, source.to)]


def _copy_makes(call: OperatorCall, source: CopiedTensor, counts: set[int]) -> bool:
    """Whether a copy of something else may be the source; the copy cast back does not count."""
    if not call.tensors:
        return True
    shape, dtype = call.tensors[0]
    if prod(shape) not in counts:
        return False
    if dtype == source.dtype:
        return source.dtype == source.to
    return dtype != source.to


def _may_have_type(call: OperatorCall, source: CopiedTensor) -> bool:
    types = {dtype for _, dtype in call.tensors}
    if source.dtype in types or call.has_list or not types:
        return True
    if source.dtype in _INDICES:
        return call.name in _TESTS or call.name not in _KEEP_TYPE
    # Under autocast, or with a requested dtype, these return float32 for any input.
    if source.dtype == "float" and call.name in _RAISED and types & _LOW:
        return True
    # Under autocast, products of floats have the lower precision.
    lowered = call.name in _PRODUCTS | _CONVOLUTIONS or "attention" in call.name
    return lowered and source.dtype in _LOW and bool(types & _REAL)


def _count(call: OperatorCall) -> int | None:
    """Elements of the result, an upper bound for a reduction; None if unknown."""
    name, shapes = call.name, [shape for shape, _ in call.tensors]
    if not shapes or call.has_list:
        return None
    if name in _LIKE_FIRST or name in _REDUCTIONS:
        return prod(shapes[0])
    if name in _BROADCAST:
        return prod(_broadcast(shapes))
    if name == "aten::embedding" and len(shapes) > 1:
        return prod(shapes[1]) * shapes[0][-1]
    if name in _PRODUCTS:
        return _product(name, shapes)
    return None


def _broadcast(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(max(axis) if 0 not in axis else 0 for axis in zip(*padded, strict=True))


def _product(name: str, shapes: list[tuple[int, ...]]) -> int | None:
    if name in {"aten::addmm", "aten::baddbmm", "aten::addmv"}:
        shapes = shapes[1:]
    if len(shapes) < 2 or not shapes[0] or not shapes[1]:
        return None
    a, b = shapes[:2]
    if name == "aten::linear":
        return prod(a[:-1]) * (b[0] if len(b) > 1 else 1)
    columns = b[-1] if len(b) > 1 else 1
    rows = a[-2] if len(a) > 1 else 1
    return prod(_broadcast([a[:-2], b[:-2]])) * rows * columns


def _number(text: Any) -> int | None:
    return int(text) if isinstance(text, str) and text.lstrip("-").isdigit() else None


def _listed(text: Any) -> tuple[int, ...] | None:
    if not isinstance(text, str) or not text.startswith("["):
        return None
    items = [item.strip() for item in text.strip("[]").split(",") if item.strip()]
    return tuple(map(int, items)) if all(i.lstrip("-").isdigit() for i in items) else None
