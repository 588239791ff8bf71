"""Rules about matrix products that run slower on the device than they could."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from pytest_torchprof import nesting
from pytest_torchprof.analysis.attribution import FP32_KERNEL, TF32_KERNEL, is_main
from pytest_torchprof.analysis.device import launched_in
from pytest_torchprof.analysis.products import DeviceProducts, Product, device_products
from pytest_torchprof.arguments import decode_part
from pytest_torchprof.events import Kind
from pytest_torchprof.rules.chips import FUSED_TYPES, chip_of
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, Threshold, rule
from pytest_torchprof.rules.tree import rows_of

if TYPE_CHECKING:
    from pytest_torchprof.arguments import OpArgs
    from pytest_torchprof.events import Trace
    from pytest_torchprof.nesting import Bools, Ints

#: Calls that launch kernels: without one, nothing ran on a device.
LAUNCHES: Final = r"\w*(LaunchKernel|LaunchCooperativeKernel|ModuleLaunch|EnqueueKernelLaunch)"

ATTENTION: Final = "aten::scaled_dot_product_attention"
MATH_ATTENTION: Final = "aten::_scaled_dot_product_attention_math"
_FUSED_ATTENTION: Final = re.compile(
    r"aten::_scaled_dot_product_(flash|efficient|cudnn|fused)_attention(?!_for_cpu)"
)
#: Source: sdp_utils.cpp, check_head_dim_size_flash.
_LARGEST_HEAD: Final = 256

#: Kernels for products with a vector, and for outer products, that no tensor core speeds up.
_VECTOR_KERNEL: Final = re.compile(r"^(?!\w* ?gemmSN).*gemv|gemmk1|dot_kernel|reduce_1Block")
#: Single precision by its name alone; of mixed products, the name has the narrow type too.
_NAMED_SINGLE: Final = re.compile(r"sgemm(?!\w*16)|gemm_f32f32_f32f32_f32")
_NARROW: Final = re.compile(r"16|half|Half")
#: Kernels of CUTLASS and cuBLAS that load 16 bytes of 2-byte values at a time.
_WHOLE_LOADS: Final = re.compile(r"align8(?!\d)|ldg8(?!\d)")
_SHORT: Final = {
    "float": "fp32",
    "double": "fp64",
    "c10::Half": "fp16",
    "c10::BFloat16": "bf16",
    "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128",
}


@rule(
    "fp32-matmul",
    fix='torch.set_float32_matmul_precision("high"), or autocast to bf16',
    triggers=LAUNCHES,
    needs="device",
    smallest_dimension=Threshold(8, "1", "a tensor core multiplies tiles of 16 x 8 x 8"),
)
def fp32_matmul(trace: Trace, *, smallest_dimension: float) -> Matches:
    """Matrix products run in full fp32 on a device whose tensor cores could do them in TF32.

    What it does
        Counts calls of ``mm``, ``addmm``, ``bmm`` and ``baddbmm`` (``linear``, ``matmul`` and
        ``einsum`` are made of them) on fp32 matrices, on an NVIDIA device of compute capability 8.0
        or later, that ran without TF32. The names of the kernels tell; where a name says nothing,
        the flag ``torch.backends.cuda.matmul.allow_tf32`` does, which live captures note, and
        without either nothing is said. Where TF32 is on, or most fp32 products of a trace run in
        it, cuBLAS has chosen fp32 for the others itself: those are none. Nor are products with a
        dimension below ``smallest_dimension`` (8), which are products with vectors, and those of
        ``math-attention``.

    Why it is slow
        Tensor cores do TF32 products 4 to 8 times as fast as the other units do fp32. TF32 has
        fp32's range and 10 bits of its fraction, sums are in fp32, and it is off by default.

    Example
        .. code:: python

            x = torch.ones(1024, 1024, device="cuda")
            x @ x

    Use instead
        .. code:: python

            torch.set_float32_matmul_precision("high")
            x @ x
    """
    products = device_products(trace)
    allowed = trace.facts.get("allow_tf32")
    unknown = np.array([product is None for _, product in products.distinct], bool)
    single = np.array([_is_fp32(p, smallest_dimension) for _, p in products.distinct], bool)
    if allowed is True or not (unknown | single).any():
        return NO_MATCHES
    fast = products.any_kernel(trace, TF32_KERNEL.search)
    slow = products.any_kernel(trace, _is_single) & ~fast
    if allowed is False:
        slow |= products.any_kernel(trace, _may_be_single) & ~fast
    named = products.any_kernel(trace, _is_named_single)
    wanted = np.where(unknown[products.which], named, single[products.which])
    if allowed is None and (fast & wanted).sum() > (slow & wanted).sum():
        return NO_MATCHES
    found = np.flatnonzero(wanted & slow & _on_tf32_device(trace, products))
    found = found[~_in_attention(trace, products.event[found])]
    said = [
        f"{name} in fp32, not TF32" + (f": {product.shapes}" if product else "")
        for name, product in products.distinct
    ]
    return Matches(
        products.event[found],
        [said[which] for which in products.which[found].tolist()],
        cost_ns=products.kernel_ns(trace)[found] // 2,
    )


def _is_single(name: str) -> bool:
    return bool(FP32_KERNEL.search(name)) and not _VECTOR_KERNEL.search(name)


def _may_be_single(name: str) -> bool:
    return is_main(name) and not _VECTOR_KERNEL.search(name)


def _is_named_single(name: str) -> bool:
    return bool(_NAMED_SINGLE.search(name)) and not _NARROW.search(name.partition("<")[0])


def _is_fp32(product: Product | None, smallest: float) -> bool:
    if product is None:
        return False
    return product.types == ("float", "float") and min(product.sizes.values()) >= smallest


def _in_attention(trace: Trace, events: Ints) -> Bools:
    """What the math form of attention multiplies, which has a rule of its own."""
    attention = trace.is_kind(Kind.OP) & trace.named(MATH_ATTENTION)
    return nesting.below(attention, trace.parent, events)


def _on_tf32_device(trace: Trace, products: DeviceProducts) -> Bools:
    device = trace.device[products.kernel]
    able = [one for one in np.unique(device).tolist() if chip_of(trace, one).has_tf32]
    return np.bincount(products.at, np.isin(device, able), len(products)) > 0


@rule(
    "unaligned-matmul",
    fix="pad the dimension to a multiple of 8 (torch.nn.functional.pad, a larger vocabulary)",
    triggers=LAUNCHES,
    needs="shapes device",
    multiple=Threshold(8, "1", "8 values of 2 bytes are the 16 bytes of one load"),
    smallest_dimension=Threshold(2, "1", "with a dimension of 1 it is a vector's product"),
)
def unaligned_matmul(trace: Trace, *, multiple: float, smallest_dimension: float) -> Matches:
    """fp16 or bf16 matrix products have a dimension that is no multiple of 8.

    What it does
        Counts calls of ``mm``, ``addmm``, ``bmm`` and ``baddbmm`` on fp16 or bf16 matrices, on any
        accelerator, in which M, N or K is no multiple of ``multiple`` (8); the batch of ``bmm`` is
        free. A dimension that demonstrably does no harm is not counted: no matrix lies along it in
        memory (the strides tell; usually M, the number of rows or tokens), or the kernel's name
        says that it loads whole vectors all the same (``align8``, ``ldg8``). A product that has a
        dimension below ``smallest_dimension`` (2) is one with a vector, as in decoding one token,
        and is not counted.

    Why it is slow
        Tensor cores are fed with loads of 16 bytes. Rows whose length is no multiple of that begin
        anywhere, and the library takes a kernel with narrower loads, often of an older kind, at
        half the speed or less. A number of rows (M) costs no more than the rest of its last tile.

    Example
        .. code:: python

            vocabulary = 50257
            torch.nn.Linear(768, vocabulary, device="cuda", dtype=torch.bfloat16)(x)

    Use instead
        .. code:: python

            vocabulary = 50304  # the next multiple of 64; the last 47 tokens do not occur
            torch.nn.Linear(768, vocabulary, device="cuda", dtype=torch.bfloat16)(x)
    """
    products = device_products(trace)
    odd = [_odd(product, multiple, smallest_dimension) for _, product in products.distinct]
    matched = np.array([bool(names) for names in odd], bool)[products.which]
    if not matched.any():
        return NO_MATCHES
    found = np.flatnonzero(matched & ~products.any_kernel(trace, _WHOLE_LOADS.search))
    said = [
        f"{name} {_listed(product, names, multiple)}" if product else ""
        for (name, product), names in zip(products.distinct, odd, strict=True)
    ]
    return Matches(
        products.event[found],
        [said[one] for one in products.which[found].tolist()],
        cost_ns=products.kernel_ns(trace)[found] // 2,
    )


def _odd(product: Product | None, multiple: float, smallest: float) -> list[str]:
    """The dimensions that are no multiple, if one of them is long in memory."""
    if product is None or not set(product.types) <= {"c10::Half", "c10::BFloat16"}:
        return []
    if min(product.sizes.values()) < smallest:
        return []
    odd = [name for name, size in product.sizes.items() if size % multiple]
    return odd if product.leading & set(odd) else []


def _listed(product: Product, odd: list[str], multiple: float) -> str:
    sizes = ", ".join(f"{name}={product.sizes[name]}" for name in odd)
    are = "are" if len(odd) > 1 else "is"
    return f"in {_SHORT.get(product.types[0])}: {sizes} {are} no multiple of {multiple:g}"


@rule(
    "math-attention",
    fix="give the fused ones what they take: 4 dimensions, fp16 or bf16, a padded head size",
    triggers=MATH_ATTENTION + "$",
    needs="shapes device",
)
def math_attention(trace: Trace) -> Matches:
    """Attention runs as separate products and a softmax, though the device has a fused kernel.

    What it does
        Counts calls of ``scaled_dot_product_attention`` that came down to its math form, on a
        device for which torch has a fused one: an NVIDIA device of compute capability 5.0 or later
        (8.0 for bf16), AMD's MI200 and MI300, or any device that ran a fused one in the same trace.
        Inputs that no fused kernel takes, such as fp64, are not counted.

    Why it is slow
        The math form writes the scores of each query against each key to memory, reads them for
        the softmax and again for the product with the values, and computes fp16 and bf16 in fp32. A
        fused kernel keeps them on the chip, so memory grows with the length of the sequence and
        not with its square.

    Example
        .. code:: python

            # 3 dimensions: the fused kernels want (batch, heads, length, size)
            q = k = v = torch.rand(8, 1024, 64, device="cuda", dtype=torch.bfloat16)
            torch.nn.functional.scaled_dot_product_attention(q, k, v)

    Use instead
        .. code:: python

            # leave out what is not needed of masks and dropout, and ask torch for its reasons by
            # torch.backends.cuda.can_use_flash_attention(params, debug=True)
            q, k, v = (x.unsqueeze(1) for x in (q, k, v))
            torch.nn.functional.scaled_dot_product_attention(q, k, v)
    """
    calls = rows_of(trace, MATH_ATTENTION)
    kernel, time = launched_in(trace, calls)
    kept, said = [], []
    for i, args in enumerate(trace.operands(calls)):
        inputs = _inputs(args)
        device = int(trace.device[kernel[i]]) if kernel[i] >= 0 else -1
        if inputs is not None and device >= 0 and _has_fused(trace, device, inputs.dtype):
            kept.append(i)
            said.append(f"{_SHORT[inputs.dtype]} attention in its math form: {_said(inputs)}")
    above = trace.parent[calls]
    whole = (above >= 0) & trace.named(ATTENTION)[above]
    event = np.where(whole, above, calls)
    return Matches(event[kept], said, cost_ns=time[kept] // 2)


class _Inputs(NamedTuple):
    query: list[int]
    key: list[int]
    value: list[int]
    dtype: str
    mask: list[int]
    dropout: bool


def _inputs(args: OpArgs) -> _Inputs | None:
    """What an attention is called with; None where the trace does not say, or if it is empty."""
    dims, types, concrete = (
        decode_part(bytes(part)) for part in (args.dims, args.types, args.concrete)
    )
    try:
        query, key, value = (list(map(int, dims[i])) for i in range(3))
        mask = list(map(int, dims[3])) if len(dims) > 3 else []
        dtype = str(types[0])
    except (TypeError, ValueError, IndexError):
        return None
    if 0 in (*query, *key, *value) or min(len(query), len(key), len(value)) < 2:
        return None
    dropped = (isinstance(concrete, list) and len(concrete) > 4 and concrete[4]) or "0"
    return _Inputs(query, key, value, dtype, mask, str(dropped).strip("0.") != "")


def _has_fused(trace: Trace, device: int, dtype: str) -> bool:
    chip = chip_of(trace, device)
    if chip.fuses_attention(dtype):
        return True
    unknown = chip.capability == (0, 0)
    return unknown and dtype in FUSED_TYPES and trace.once(_runs_fused, device)


def _runs_fused(trace: Trace, device: int) -> bool:
    """Whether a fused attention ran on this device."""
    calls = np.flatnonzero(trace.is_kind(Kind.OP) & trace.names_where(_FUSED_ATTENTION.match))
    kernel, _ = launched_in(trace, calls)
    return bool((trace.device[kernel[kernel >= 0]] == device).any())


def _said(inputs: _Inputs) -> str:
    """The sizes, and of what fused kernels do not take what can be seen."""
    sizes = [inputs.query] + [x for x in (inputs.key, inputs.value) if x != inputs.query]
    size, whole = inputs.query[-1], 4 if inputs.dtype == "float" else 8
    seen = [
        (len(inputs.query) != 4, f"{len(inputs.query)} dimensions"),
        (size % whole > 0, f"a head size of {size}"),
        (size > _LARGEST_HEAD, f"a head size of {size}"),
        (inputs.value[-1] != size, f"values of {inputs.value[-1]}, not of {size}"),
        (len(inputs.mask) > 0, "a mask"),
        (inputs.dropout, "dropout"),
    ]
    why = dict.fromkeys(words for holds, words in seen if holds)
    listed = ", ".join("x".join(map(str, one)) for one in sizes)
    return listed + (f", with {' and '.join(why)}" if why else "")
