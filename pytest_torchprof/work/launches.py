"""How many kernels an operator call launches, and when it makes the host wait for a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from math import ceil, prod
from typing import Any, Final

from pytest_torchprof.core.process import late
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.work.bytes import TRAFFIC
from pytest_torchprof.work.dispatch import COMPOSITES, IDLE, VIEWS, aten
from pytest_torchprof.work.flops import work_of
from pytest_torchprof.work.operands import TRUTH, Operands, Tensor, UnknownOperandError, category

# ---- How many kernels an operator on lists of tensors starts: one for each chunk of the lists.

#: From the operands of a call to the kernels it starts; raises if it cannot tell.
LaunchRule = Callable[[Operands], int]

#: A launch takes so many tensors, by the number of lists, and so many chunks of so many elements.
#: With CUDA 13 it takes more of them. Source: aten/src/ATen/native/cuda/MultiTensorApply.cuh.
_MOST_TENSORS: Final = (110, 64, 48, 36, 30)
_MOST_CHUNKS: Final = 320
_CHUNK: Final = 65_536


def chunked(sizes: list[int], lists: int) -> int:
    """Launches for a list of tensors of these numbers of elements, and ``lists`` such lists.

    >>> chunked([10] * 110, 1), chunked([10] * 111, 1), chunked([65_536 * 321], 2)
    (1, 2, 2)
    """
    most = _MOST_TENSORS[min(max(lists, 1), len(_MOST_TENSORS)) - 1]
    launches = tensors = chunks = 0
    for size in filter(None, sizes):
        left = ceil(size / _CHUNK)
        tensors += 1
        if chunks + left >= _MOST_CHUNKS:
            more, chunks = divmod(chunks + left, _MOST_CHUNKS)
            launches, tensors = launches + more, int(chunks > 0)
        else:
            chunks += left
        if tensors == most:
            launches, chunks, tensors = launches + 1, 0, 0
    return launches + (chunks > 0)


def _sizes(call: Operands, at: int = 0) -> list[int]:
    """Elements of each tensor of a list; torch records lists of up to 30."""
    shapes = call.dims[at]
    if not shapes or not isinstance(shapes[0], list):
        raise UnknownOperandError
    return [prod(shape) for shape in shapes]


def foreach(written: int) -> LaunchRule:
    """One pass over the lists; ``written``: 1 if the results are lists of their own."""

    def rule(call: Operands) -> int:
        sizes = _sizes(call)
        if is_host_count(call):
            return 0
        lists = sum(1 for shapes in call.dims if shapes and isinstance(shapes[0], list))
        return chunked(sizes, lists + written)

    return rule


def is_host_count(call: Operands) -> bool:
    """Whether it adds a tensor to counters of steps, which optimizers keep on the host."""
    shapes = call.dims[0]
    plain = all(shape == [] for shape in shapes) and len(call.dims) == 3
    return plain and call.types[1] != "Scalar" and call.dims[1] == []


def is_long_list(name: str, call: Operands) -> bool:
    """Whether it works on a list of more tensors than torch records."""
    if not name.startswith(("aten::_foreach_", "aten::_fused_")):
        return False
    types = call.types if isinstance(call.types, list) else []
    dims = call.dims if isinstance(call.dims, list) else []
    return types[:1] == ["TensorList"] and dims[:1] == [[]]


def count_long_list(name: str, call: Operands, shapes: list[Any]) -> int:
    """Launches for such a list, with the shapes of the tensors; of fused ones only their number."""
    lists = call.types[: _lists_of(name)].count("TensorList")
    if name.startswith("aten::_fused_"):
        return chunked([1] * len(shapes), lists)
    try:
        sizes = [prod(shape) for shape in shapes]
        counters = not any(shapes) and len(call.types) == 3
        if counters and call.types[1] not in {"Scalar", "TensorList"}:
            return 0  # an optimizer's counters, on the host
        if name == "aten::_foreach_norm":
            return chunked(sizes, 1) + 2
        return max(chunked(sizes, lists + (not name.endswith("_"))), 1)
    except TypeError:
        return 1


def foreach_norm(call: Operands) -> int:
    """Zeros, the parts of each norm, and their sums."""
    return chunked(_sizes(call), 1) + 2


def fused(most: int) -> LaunchRule:
    """One pass over the lists of a fused optimizer, up to ``most``: its counters are apart."""

    def rule(call: Operands) -> int:
        lists = sum(1 for shapes in call.dims[:most] if shapes and isinstance(shapes[0], list))
        return chunked(_sizes(call), lists)

    return rule


def _lists_of(name: str) -> int:
    """How many lists a launch may take: of Adagrad, without its counters of steps."""
    return 3 if "adagrad" in name else len(_MOST_TENSORS)


# ---- Which operators move bytes of their own, if they are not in the table of `work.bytes`.

#: Made of views, or of nothing at all where no operator is nested in them.
_NOTHING: Final = IDLE | aten(
    "empty empty_like empty_strided new_empty new_empty_strided empty_quantized empty_permuted "
    "resize_ meshgrid broadcast_tensors item"
)
#: Common operators that torch's dispatcher makes of others (``CompositeImplicitAutograd`` and
#: ``CompositeExplicitAutograd``, without a kernel of their own).
_COMPOSED: Final = aten(
    "_batch_norm_impl_index batch_norm binary_cross_entropy_with_logits constant_pad_nd "
    "cosine_similarity cross_entropy_loss dropout dropout_ embedding_backward full full_like "
    "group_norm index_put_ instance_norm l1_loss layer_norm log_softmax masked_fill max_pool1d "
    "max_pool2d max_pool3d new_full new_ones new_zeros nll_loss nll_loss_nd one_hot ones ones_like "
    "pad rand rand_like randint randn randn_like repeat rms_norm softmax zeros zeros_like"
)
#: Of the operators without arithmetic, those that copy or fill, by parts of their names.
_COPIES: Final = late(
    r"copy|cast|arange|range|linspace|logspace|eye|ones|zeros|full|fill|masked_select|pin_memory"
    r"|sparse|dense|coalesce|mkldnn|reorder|pack|convert|compress|quantize|int_repr|scatter|clone"
    r"|padded|jagged|nested_tensor_from|scalar_tensor|_backward|chunk_cat|to_cpu|from_file"
)


def is_composed(name: str) -> bool:
    """Whether operators nested in this one, if there are any, do all of its work.

    >>> is_composed("aten::linear"), is_composed("aten::index")
    (True, False)
    """
    return name in _COMPOSED or work_of(name) == "parts"


@lru_cache(maxsize=10_000)
def may_move(name: str) -> bool:
    """Whether this operator may move bytes that no operator nested in it moves.

    >>> may_move("aten::view"), may_move("aten::empty"), may_move("aten::index")
    (False, False, True)
    >>> may_move("MulBackward0"), may_move("mylib::step")
    (False, True)
    """
    if name in TRAFFIC:
        return True
    if name in _NOTHING:
        return False
    work = work_of(name)
    return work != "around" and (work != "idle" or _COPIES.search(name) is not None)


# ---- How many kernels eager execution on an accelerator starts for an operator, from its
# operands.
#
# A count is taken at the outermost operator at which the implementations for the CPU and for
# accelerators part; what is nested in it on the CPU does not matter. Most start one kernel. Those
# that start several, or none, have a row in `LAUNCHES`, with the source of the number: a file of
# PyTorch's ``aten/src/ATen/native/cuda``, or public traces of GPUs. The numbers are the fewest
# that an ordinary call starts: a library may add kernels that change a layout, split a product,
# or search for the fastest algorithm. Copies and memsets are no kernels.


class Launches(Frozen, frozen=True):
    """What one call starts: a number or a rule; ``source`` says where that is known from.

    ``nested``: kernels of operators nested in the call are added.
    """

    count: int | LaunchRule
    source: str
    nested: bool = False


# ------------------------------------------------------------------------- rules


def _copy(call: Operands) -> int:
    """Same dtype and layout, without gaps: one copy by the driver, which is no kernel."""
    to, source = call.tensor(0), call.tensor(1)
    same = to.dtype == source.dtype and to.shape == source.shape and to.strides == source.strides
    return int(not (same and _is_dense(to)))


def _is_dense(tensor: Tensor) -> bool:
    """Whether the elements fill a block of memory; false where strides are unknown."""
    if tensor.strides is None:
        return False
    axes = [(n, s) for n, s in zip(tensor.shape, tensor.strides, strict=True) if n > 1]
    return 1 + sum((n - 1) * s for n, s in axes) == prod(tensor.shape) == tensor.distinct


def _dropout(call: Operands) -> int:
    """`dropout(x, p, train)`: without training, or with a p of 0, the tensor itself."""
    return int(call.flag(2) and float(call.text(1)) > 0)


def _with_bias(at: int) -> LaunchRule:
    """The product, and one kernel that adds the bias."""
    return lambda call: 1 + call.has_tensor(at)


def _gradients(call: Operands) -> int:
    """One kernel for each gradient that the mask, the last argument, requests."""
    return max(sum(_mask(call)), 1)


def _mask(call: Operands) -> list[bool]:
    """The last argument that is a list of truth values; out-variants append outputs."""
    if not call.concrete:
        return [True] * 3  # traces before 2022
    for value in reversed(call.concrete):
        if isinstance(value, str) and value[:1] == "[" and ("True" in value or "False" in value):
            return [TRUTH[item.strip()] for item in value[1:-1].split(",")]
    raise UnknownOperandError


def _sum(call: Operands) -> int:
    """Small integers are summed in 64 bits, and cast before."""
    x = call.tensor(0)
    return 1 + (category(x.dtype) < 2 and x.dtype != "long")


def _norm_gradients(call: Operands) -> int:
    """One kernel for the input's gradient, one for those of weight and bias together."""
    inside, *scales = _mask(call)
    return max(inside + any(scales), 1)


def _group_norm(call: Operands) -> int:
    """Moments, then the result; with a scale and several places, its parameters in between."""
    return 3 if call.integers(5)[0] > 1 and (call.has_tensor(1) or call.has_tensor(2)) else 2


def _group_norm_gradients(call: Operands) -> int:
    inside, *scales = _mask(call)
    return 1 + 2 * inside + any(scales)


def _scan(call: Operands) -> int:
    """Along the only axis: an initialization and the scan."""
    x = call.tensor(0)
    return 2 if x.shape and max(x.shape) == prod(x.shape) > 1 else 1


#: A reduction of more elements than a block reduces at once takes two kernels.
#: Source: cub's ``DeviceReducePolicy`` for 32-bit numbers: 256 threads with 16 elements each.
_ONE_TILE: Final = 4096


def _nonzero_of(x: Tensor) -> int:
    """Count, compact (two kernels), and for several axes split the positions."""
    count = prod(x.shape)
    return 3 + (count > _ONE_TILE) + (len(x.shape) > 1) if count else 0


def _nonzero(call: Operands) -> int:
    return _nonzero_of(call.tensor(0))


def _where(call: Operands) -> int:
    """`where(condition)` alone asks for positions."""
    return _nonzero_of(call.tensor(0)) if len(call) == 1 else 1


def _masked_select(call: Operands) -> int:
    """The positions of the mask, and the lookup."""
    return _nonzero_of(call.tensor(1)) + 1


def _topk(call: Operands) -> int:
    """The largest, and if asked for their order."""
    return 1 + (call.flag(4) and call.integers(1)[0] > 1)


def _reduced_loss(at: int) -> LaunchRule:
    """The differences, and unless all are wanted their mean or sum."""
    return lambda call: 1 + (call.integers(at)[0] != 0)


def _embedding_backward(call: Operands) -> int:
    """Zeros, and for few indices one kernel; many are sorted first."""
    return 2 if prod(call.tensor(1).shape) <= 3072 else 9


def _index_put(call: Operands) -> int:
    """`(x, indices, values, accumulate, ...)`: with accumulation, the indices are sorted."""
    return 6 if call.flag(3) else 1


def _repeats(call: Operands) -> int:
    """Only the form without a tensor to repeat has a kernel."""
    return int(not call.has_tensor(1))


def _power(call: Operands) -> int:
    """`pow(x, 1)`, as in the gradient of a square, is a copy."""
    return int(call.has_tensor(1) or float(call.text(1)) != 1)


def _sparse_mask(call: Operands) -> int:
    """Of a dense tensor: ones at the mask's places, the lookup, and their product."""
    return 1 if call.is_sparse(0) else 3


def _one_hot(call: Operands) -> int:
    """Zeros and ones, and the largest class where it is not given."""
    return 2 + (call.integers(1)[0] < 0)


def _normal(call: Operands) -> int:
    """With tensors, one draw beside what is nested; with numbers, that is nested, too."""
    return int(call.has_tensor(0) or call.has_tensor(1))


def _draws(call: Operands) -> int:
    """`multinomial(x, samples, replacement)`: what takes no arg max has a kernel of its own."""
    return int(call.flag(2) and call.integers(1)[0] > 1)


def _histogram(call: Operands) -> int:
    """Zeros, the histogram, and without bounds the least and the largest value."""
    return 4 if call.text(2) == call.text(3) else 2


def _compares_all(call: Operands) -> bool:
    """Whether `isin(elements, test)` compares all pairs, and does not sort.

    Source: aten/src/ATen/native/TensorCompare.cpp.
    """
    elements, test = (float(prod(call.tensor(at).shape)) for at in (0, 1))
    return bool(test < 10 * elements**0.145)


def _isin(call: Operands) -> int:
    """All pairs compared, and any of them; else it is what is nested: sorts and the like."""
    return 2 if _compares_all(call) else 0


def _cat(call: Operands) -> int:
    """None of a single tensor that is not empty; torch records lists of up to 30."""
    shapes = call.dims[0]
    known = isinstance(shapes, list) and shapes and all(isinstance(one, list) for one in shapes)
    return int(not known or sum(0 not in one for one in shapes) > 1)


def _conj(call: Operands) -> int:
    """Of real numbers, `conj_physical` is the tensor itself."""
    return int("complex" in call.tensor(0).dtype)


# ------------------------------------------------------------------------- the table

_TRACES: Final = "public traces of V100, A100, H100 and MI300X"


def _rows(names: str, count: int | LaunchRule, source: str, *, nested: bool = False) -> Any:
    return dict.fromkeys(aten(names), Launches(count, source, nested))


LAUNCHES: Final[Mapping[str, Launches]] = {
    **_rows("copy_", _copy, "Copy.cu: copy_device_to_device"),
    **_rows("dropout dropout_", _dropout, "../Dropout.cpp: native_dropout on accelerators"),
    # Convolutions
    **_rows(
        "convolution _convolution convolution_overrideable cudnn_convolution miopen_convolution "
        "miopen_depthwise_convolution mkldnn_convolution thnn_conv2d _slow_conv2d_forward "
        "slow_conv3d slow_conv3d_forward slow_conv_dilated2d slow_conv_dilated3d "
        "_conv_depthwise2d conv_depthwise3d _nnpack_spatial_convolution",
        _with_bias(2),
        f"../Convolution.cpp adds a bias by itself; {_TRACES}",
    ),
    **_rows(
        "convolution_backward convolution_backward_overrideable cudnn_convolution_backward "
        "miopen_convolution_backward mkldnn_convolution_backward _slow_conv2d_backward "
        "_convolution_double_backward",
        _gradients,
        "../Convolution.cpp: one product for each gradient",
    ),
    # Norms
    **_rows(
        "_batch_norm_impl_index _batch_norm_impl_index_backward native_batch_norm "
        "_native_batch_norm_legit _native_batch_norm_legit_no_training _batch_norm_with_update "
        "_batch_norm_no_update",
        1,
        "public traces of V100 and A100 (cuDNN); PyTorch's own kernels on MI300X are three",
    ),
    **_rows("native_layer_norm_backward _fused_rms_norm_backward", _norm_gradients,
            "layer_norm_kernel.cu: LayerNormBackwardKernelImplInternal"),
    **_rows("native_group_norm", _group_norm, "group_norm_kernel.cu: GroupNormKernelImplInternal"),
    **_rows("native_group_norm_backward", _group_norm_gradients,
            "group_norm_kernel.cu: GroupNormBackwardKernelImplInternal"),
    # Sums, losses, pools, tables
    **_rows("sum prod", _sum, f"../ReduceOpsUtils.h: make_reduction_from_out_ty; {_TRACES}"),
    **_rows("nll_loss_backward nll_loss2d_backward", 2, "Loss.cu, NLLLoss2d.cu: zeros, then one"),
    **_rows("mse_loss smooth_l1_loss", _reduced_loss(2), f"../Loss.cpp; {_TRACES}"),
    **_rows("huber_loss", _reduced_loss(2), "../Loss.cpp"),
    **_rows("binary_cross_entropy", _reduced_loss(3), "Loss.cu: binary_cross_entropy_out_cuda"),
    **_rows("mse_loss_backward smooth_l1_loss_backward huber_loss_backward", 2,
            f"../Loss.cpp: zeros, then one; {_TRACES}"),
    **_rows("max_pool2d_with_indices_backward max_pool3d_with_indices_backward", 2,
            f"DilatedMaxPool2d.cu: zeros, then one; {_TRACES}"),
    **_rows("embedding_dense_backward", _embedding_backward, "Embedding.cu, "
            "EmbeddingBackwardKernel.cu"),
    # Attention
    **_rows("_flash_attention_backward _scaled_dot_product_flash_attention_backward "
            "_scaled_dot_product_flash_attention_for_cpu_backward", 3,
            "flash_attn/flash_bwd_launch_template.h: run_flash_bwd"),
    **_rows("_efficient_attention_backward _scaled_dot_product_efficient_attention_backward", 3,
            "transformers/cuda/attention_backward.cu: a product, its sum, then one; a trace of "
            "H200"),
    # Orders, scans, positions
    **_rows("cumsum cumprod logcumsumexp", _scan, f"ScanUtils.cuh: scan_dim; {_TRACES}"),
    **_rows("sort", 2, f"Sort.cpp: positions, then the sort; {_TRACES}"),
    **_rows("topk", _topk, f"TensorTopK.cu: launch_gather_topk_kernel; {_TRACES}"),
    **_rows("nonzero", _nonzero, f"Nonzero.cu; {_TRACES}"),
    **_rows("where", _where, "../TensorCompare.cpp"),
    **_rows("masked_select", _masked_select, "IndexKernel.cpp: masked_select_out_cuda_impl"),
    **_rows("index _unsafe_index", 1, f"IndexKernel.cu; {_TRACES}", nested=True),
    **_rows("_index_put_impl_", _index_put, f"Indexing.cu; {_TRACES}", nested=True),
    **_rows("repeat_interleave", _repeats, "Repeat.cu: compute_cuda", nested=True),
    **_rows("one_hot", _one_hot, "../Onehot.cpp"),
    **_rows("equal", 2, "Equal.cpp: a comparison and its reduction"),
    **_rows("pow", _power, "../Pow.cpp: pow_tensor_scalar"),
    **_rows("_coalesce", 6, "../sparse/cuda/SparseCUDATensor.cu: two transforms, a sort, two for "
            "the unique indices, and the sums; a trace of H200"),
    **_rows("sparse_mask", _sparse_mask, "../sparse/SparseTensor.cpp; a trace of H200"),
    **_rows("sparse_coo_tensor _sparse_coo_tensor_unsafe _sparse_coo_tensor_with_dims_and_tensors "
            "is_coalesced _coalesced_", 0, "../sparse/SparseTensor.cpp: no values", nested=True),
    **_rows("bincount", 4, "SummaryOps.cu: extremes, zeros, counts"),
    **_rows("_unique _unique2 unique_dim unique_consecutive", 3,
            "Unique.cu: at least a sort and a scan"),
    **_rows("histc", _histogram, "SummaryOps.cu: _histc_cuda_template"),
    # One implementation for all devices, which calls others, besides kernels of its own
    **_rows("normal", _normal, "../DistributionTemplates.h: normal_out_impl", nested=True),
    **_rows("multinomial", _draws, "../Distributions.cpp: multinomial_out", nested=True),
    **_rows("isin", _isin, "../TensorCompare.cpp; TensorCompare.cu", nested=True),
    **_rows("segment_reduce", 1, "../SegmentReduce.cpp: segment_reduce_kernel", nested=True),
    **_rows("to_sparse _to_sparse to_sparse_csr _to_sparse_csr to_sparse_csc _to_sparse_csc "
            "to_sparse_bsr _to_sparse_bsr to_sparse_bsc _to_sparse_bsc", 0,
            "../TensorConversions.cpp", nested=True),
    **_rows("_nested_tensor_from_mask_left_aligned", 0, "../nested/NestedTensorMath.cpp",
            nested=True),
    **_rows("feature_dropout feature_dropout_ alpha_dropout alpha_dropout_ feature_alpha_dropout "
            "feature_alpha_dropout_", 0, "../Dropout.cpp: _dropout_impl", nested=True),
    **_rows("einsum cartesian_prod sum_to_size to_dense", 0,
            "../Linear.cpp, ../TensorShape.cpp: views alone are none", nested=True),
    **_rows("cat", _cat, "Shape.cu: a copy by the driver of a single tensor"),
    **_rows("conj_physical", _conj, "../UnaryOps.cpp"),
    **_rows("lstm_cell gru_cell", 3, "../RNN.cpp: two products and _thnn_fused_lstm_cell, or "
            "_thnn_fused_gru_cell"),
    **_rows("_thnn_fused_lstm_cell _thnn_fused_gru_cell", 1, "RNN.cu"),
    # Lists of tensors, optimizers
    **_rows("_amp_foreach_non_finite_check_and_unscale_", foreach(0), "AmpKernels.cu"),
    **_rows("_foreach_norm", foreach_norm, "ForeachReduceOp.cu"),
    **_rows("_fused_adam_ _fused_adamw_ _fused_sgd_", fused(5), "FusedAdamKernel.cu"),
    **_rows("_fused_adagrad_", fused(3), "FusedAdagradKernel.cu"),
    # What the host asks for, or what asks the host
    **_rows("_local_scalar_dense", 0, "CUDAScalar.cu: a copy"),
    **_rows("_assert_async", 1, "TensorCompare.cu"),
    **_rows("randperm", 1, "Randperm.cu"),
}  # fmt: skip

_FOREACH_IN_PLACE: Final = Launches(foreach(0), "MultiTensorApply.cuh")
_FOREACH: Final = Launches(foreach(1), "MultiTensorApply.cuh")
_ONE: Final = Launches(1, "one kernel, as most")
_NONE: Final = Launches(0, "a view, an allocation, or a question")

#: Recurrent layers, for which cuDNN and MIOpen start a number of kernels of their own.
RECURRENT: Final = aten(
    "lstm gru rnn_tanh rnn_relu _cudnn_rnn _cudnn_rnn_backward miopen_rnn miopen_rnn_backward "
    "mkldnn_rnn_layer mkldnn_rnn_layer_backward"
)
#: These call libraries that start a number of kernels of their own: at least one.
SEVERAL: Final = RECURRENT | aten("linalg_lstsq linalg_eigvals sspaddmm")


def is_part(name: str) -> bool:
    """Whether only what is nested in this operator counts, if there is anything."""
    if name in LAUNCHES or name in SEVERAL:
        return False
    return name in COMPOSITES or work_of(name) in {"around", "parts"}


def launches_of(name: str) -> Launches | None:
    """The row for an operator by its name; None if nobody knows, as of other libraries' own.

    >>> launches_of("aten::view").count, launches_of("aten::relu").count
    (0, 1)
    >>> launches_of("mylib::step") is None
    True
    """
    row = LAUNCHES.get(name)
    if row is not None:
        return row
    if name.startswith("aten::_foreach_"):
        return _FOREACH_IN_PLACE if name.endswith("_") else _FOREACH
    if name in VIEWS or not may_move(name):
        return _NONE
    if name.startswith("aten::"):
        return None if name in SEVERAL or work_of(name) == "computes" else _ONE
    return None


def count_launches(row: Launches, call: Operands) -> int:
    """Kernels of one call; one where the trace lacks what the rule needs.

    A call on empty tensors starts none.
    """
    if isinstance(row.count, int):
        return 0 if row.count and _is_empty(call) else row.count
    try:
        return 0 if _is_empty(call) else max(row.count(call), 0)
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError):
        return 1


def _is_empty(call: Operands) -> bool:
    """Whether its first tensor has no elements."""
    first = call.dims[0] if isinstance(call.dims, list) and call.dims else None
    return isinstance(first, list) and 0 in first


# ---- Operators that make the host wait for a device, if their tensors are there, and how often.
#
# They give a value to the host, or a result whose shape depends on values. A count is of one
# call; operators nested in a call on the CPU do not matter, as for `work.launches`. Sources:
# files of PyTorch's ``aten/src/ATen/native``, beside each row.

#: From the operands of a call to its reads; raises if it cannot tell.
ReadRule = Callable[["Operands"], int]


class HostRead(Frozen, frozen=True):
    """What the host waits for in a call: ``count`` times, for ``what``, by ``source``."""

    count: int | ReadRule
    what: str
    source: str


def _classes(call: Operands) -> int:
    """`one_hot(x, classes)`: without a number, the largest one is read."""
    return int(call.integers(1)[0] < 0)


def _range(call: Operands) -> int:
    """`histc(x, bins, min, max)`: without bounds, the least and the largest value."""
    return 2 * (call.text(2) == call.text(3))


_SHAPE: Final = "the size of its result"
_VALUE: Final = "a value"

READS: Final[Mapping[str, HostRead]] = {
    "aten::_local_scalar_dense": HostRead(1, _VALUE, "cuda/CUDAScalar.cu"),
    "aten::nonzero": HostRead(1, _SHAPE, "cuda/Nonzero.cu"),
    "aten::masked_select": HostRead(1, _SHAPE, "cuda/IndexKernel.cpp"),
    "aten::_unique2": HostRead(1, _SHAPE, "cuda/Unique.cu"),
    "aten::_unique": HostRead(1, _SHAPE, "cuda/Unique.cu"),
    "aten::unique_dim": HostRead(1, _SHAPE, "cuda/Unique.cu"),
    "aten::unique_consecutive": HostRead(1, _SHAPE, "cuda/Unique.cu"),
    "aten::unique_dim_consecutive": HostRead(1, _SHAPE, "cuda/Unique.cu"),
    "aten::equal": HostRead(1, _VALUE, "cuda/Equal.cpp"),
    "aten::bincount": HostRead(2, _SHAPE, "cuda/SummaryOps.cu"),
    "aten::histc": HostRead(_range, _VALUE, "cuda/SummaryOps.cu"),
    "aten::_coalesce": HostRead(1, _SHAPE, "sparse/cuda/SparseCUDATensor.cu"),
    "aten::one_hot": HostRead(_classes, _SHAPE, "Onehot.cpp"),
}

#: These start an unknown number of kernels, and read nothing. Source: ``cuda/linalg``, cuSOLVER.
SILENT: Final = RECURRENT | aten(
    "_fft_c2c _fft_c2r _fft_r2c linalg_inv_ex _linalg_solve_ex linalg_cholesky_ex "
    "linalg_lu_factor_ex linalg_lu_solve linalg_solve_triangular triangular_solve"
)

#: What `tolist` and `numpy` call one after the other, on a tensor's values as they are.
#: Source: torch/csrc/utils/tensor_list.cpp and tensor_numpy.cpp.
TO_PYTHON: Final = ("aten::resolve_conj", "aten::resolve_neg")


def count_reads(name: str, call: Operands) -> int:
    """Reads of one call; one where the trace lacks what the rule needs."""
    count = READS[name].count
    if isinstance(count, int):
        return count
    try:
        return count(call)
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError):
        return 1
