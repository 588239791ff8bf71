"""Rules about matrix products that run slower on the device than they could."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.analysis.attribution import DeviceProducts, Product, device_products
from pytest_torchprof.analysis.missing import blind_kernels
from pytest_torchprof.core.process import late
from pytest_torchprof.core.unknown import Reason, Why, because
from pytest_torchprof.rules.chip import chip_of
from pytest_torchprof.rules.manual_attention import in_manual_attention
from pytest_torchprof.rules.math_attention import MATH_ATTENTION
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, Threshold, around, rule
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.names import Kind
from pytest_torchprof.trace.tree import forward_of
from pytest_torchprof.work.kernels import FP32_KERNEL, TF32_KERNEL, VECTOR_KERNEL, is_main
from pytest_torchprof.work.operands import SHORT

if TYPE_CHECKING:
    from pytest_torchprof.rules.chip import Chip
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

#: Calls that launch kernels: without one, nothing ran on a device.
LAUNCHES: Final = r"\w*(Launch(Cooperative)?Kernel|ModuleLaunch|Enqueue(Cooperative)?KernelLaunch)"

#: Single precision by name; the name of a mixed product has the narrow type too.
_NAMED_SINGLE: Final = late(r"sgemm(?!\w*16)|gemm_f32f32_f32f32_f32")
_NARROW: Final = late(r"16|half|Half")
#: Kernels of CUTLASS and cuBLAS that load 16 bytes of 2-byte values at a time.
_WHOLE_LOADS: Final = late(r"align8(?!\d)|ldg8(?!\d)")
#: Kernels that load less than that at a time.
_NARROW_LOADS: Final = late(r"(align|ldg)[124](?!\d)")


_TF32: Final = 'torch.set_float32_matmul_precision("high"), or autocast to bf16'
_NO_GAIN: Final = "autocast to bf16; TF32 gains nothing on this chip"
_UNKNOWN_GAIN: Final = (
    'autocast to bf16, or torch.set_float32_matmul_precision("high") if this chip, whose peaks '
    "are unknown, multiplies TF32 faster than fp32"
)
#: Kernels that certainly do not multiply fp32, and those that certainly do not multiply 16 bits.
#: The first letter of the types of cuBLAS's ``nvjet`` is that of its operands.
_SHORT_TYPES: Final = late(
    r"bf16|h?s?16816|[_<]f16|fp16|half|Half|bfloat|e4m3|fp8|i8|int8|nvjet_(sm\d+_)?[thqo]\w*?_\d"
)
_LONG_TYPES: Final = late(
    r"tf32|s1688(?!\w*(bf|f|fp)16)|sgemm|dgemm|f32f32_f32f32|f64|nvjet_(sm\d+_)?(?!sm\d)[sd]\w*?_\d"
)


def _unseen_fp32(trace: Events) -> Reason | None:
    """Products on an unknown device, or that graphs launched without their operators."""
    devices = nesting.distinct(trace.device[trace.is_kind(Kind.KERNEL)]).tolist()
    if trace.facts.allow_tf32 is True:
        return None
    chips = {one: chip_of(trace, one) for one in devices}
    if unknown := [one for one, chip in chips.items() if chip.may_have_tf32]:
        products = device_products(trace)
        single = products.any_kernel(trace, _is_named_single)
        if nesting.among(products.device(trace)[single], unknown).any():
            return because(*Why.PRODUCTS_ON_UNKNOWN_CHIP)
    if not any(chip.runs_tf32 for chip in chips.values()):
        return None
    return blind_kernels(
        trace,
        lambda name: (
            _is_product(name) and not (TF32_KERNEL.search(name) or _SHORT_TYPES.search(name))
        ),
    )


def _unseen_16_bits(trace: Events) -> Reason | None:
    """Products that graphs launched: their sizes are unknown."""
    return blind_kernels(
        trace,
        lambda name: (
            _is_product(name) and not (_LONG_TYPES.search(name) or _WHOLE_LOADS.search(name))
        ),
    )


@rule(
    "fp32-matmul",
    fix=_TF32,
    triggers=LAUNCHES,
    needs="device",
    blind=_unseen_fp32,
    smallest_dimension=Threshold(8, "1", "a tensor core multiplies tiles of 16 x 8 x 8"),
)
def fp32_matmul(trace: Events, *, smallest_dimension: float) -> Matches:
    """Matrix products run in full fp32 on a device whose tensor cores could do them in TF32.

    ## What it does

    Counts calls of `mm`, `addmm`, `bmm` and `baddbmm` (`linear`, `matmul` and `einsum` are made of
    them) on fp32 matrices, on an NVIDIA device of compute capability 8.0 or later, that ran without
    TF32, by the names of their kernels and the flag that live captures record.

    Not counted: products with a dimension below `smallest_dimension` (8), those of
    `math-attention`, and those for which cuBLAS itself chose fp32 although TF32 is on. What CUDA
    graphs launched is not checked.

    ## Why it is slow

    Tensor cores of data center chips compute TF32 products 2 to 16 times as fast as the other units
    compute fp32; it is off by default. On GeForce and similar cards TF32 gains nothing: there the
    match has no cost, and bf16 helps instead.

    ## Example

    ```python
    x = torch.ones(1024, 1024, device="cuda")
    x @ x
    ```

    ## Use instead

    ```python
    torch.set_float32_matmul_precision("high")
    x @ x
    ```
    """
    products = device_products(trace)
    allowed = trace.facts.allow_tf32
    unknown = np.array([product is None for _, product in products.distinct], bool)
    single = np.array([_is_fp32(p, smallest_dimension) for _, p in products.distinct], bool)
    if allowed is True or not (unknown | single).any():
        return NO_MATCHES
    fast = products.any_kernel(trace, TF32_KERNEL.search)
    slow = products.any_kernel(trace, _is_single) & ~fast
    if allowed is False:
        slow |= products.any_kernel(trace, _is_product) & ~fast
    named = products.any_kernel(trace, _is_named_single)
    wanted = np.where(unknown[products.which], named, single[products.which])
    in_tf32 = fast & (unknown | single)[products.which]
    if allowed is None and in_tf32.sum() > (slow & wanted).sum():
        return NO_MATCHES
    found = np.flatnonzero(wanted & slow & _on_tf32_device(trace, products))
    found = found[~_in_attention(trace, products.event[found])]
    messages = [
        f"{name} in fp32, not TF32" + (f": {product.shapes}" if product else "")
        for name, product in products.distinct
    ]
    chips = [chip_of(trace, one) for one in products.device(trace)[found].tolist()]
    saves = np.array([chip.tf32_saves for chip in chips])
    return Matches(
        products.event[found],
        [messages[which] for which in products.which[found].tolist()],
        cost_ns=(products.kernel_ns(trace)[found] * saves).astype(np.int64),
        fix=list(map(_fix, chips)),
        span_ns=around(trace, products.event[found]),
    )


def _fix(chip: Chip) -> str:
    """What to do, depending on the gain of TF32 on the chip."""
    if chip.tf32_saves:
        return _TF32
    return _UNKNOWN_GAIN if chip.tf32_gain is None else _NO_GAIN


def _is_single(name: str) -> bool:
    return bool(FP32_KERNEL.search(name)) and not VECTOR_KERNEL.search(name)


def _is_product(name: str) -> bool:
    return is_main(name) and not VECTOR_KERNEL.search(name)


def _is_named_single(name: str) -> bool:
    return bool(_NAMED_SINGLE.search(name)) and not _NARROW.search(name.partition("<")[0])


def _is_fp32(product: Product | None, smallest: float) -> bool:
    if product is None:
        return False
    return product.types == ("float", "float") and min(product.sizes.values()) >= smallest


def _in_attention(trace: Events, events: Ints) -> Bools:
    """Products in the math form of attention, forward and backward: another rule covers them."""
    attention = trace.is_kind(Kind.OP) & trace.named(MATH_ATTENTION)
    found = np.zeros(len(events), bool)
    if len(events) and attention.any():
        for rows in (events, forward_of(trace, events)):
            found[rows >= 0] |= nesting.below(attention, trace.parent, rows[rows >= 0])
    return found


def _on_tf32_device(trace: Events, products: DeviceProducts) -> Bools:
    device = trace.device[products.kernel]
    able = [one for one in nesting.distinct(device).tolist() if chip_of(trace, one).runs_tf32]
    return np.bincount(products.at, nesting.among(device, able), len(products)) > 0


@rule(
    "unaligned-matmul",
    fix="pad the dimension to a multiple of 8 (torch.nn.functional.pad, a larger vocabulary)",
    triggers=LAUNCHES,
    needs="shapes device",
    blind=_unseen_16_bits,
    multiple=Threshold(8, "1", "8 values of 2 bytes are the 16 bytes of one load"),
    smallest_dimension=Threshold(2, "1", "with a dimension of 1 it is a product with a vector"),
    attention=Threshold(2**20, "B", "manual-attention counts such scores, and fuses the products"),
)
def unaligned_matmul(
    trace: Events, *, multiple: float, smallest_dimension: float, attention: float
) -> Matches:
    """fp16 or bf16 matrix products have a dimension that is not a multiple of 8.

    ## What it does

    Counts calls of `mm`, `addmm`, `bmm` and `baddbmm` on fp16 or bf16 matrices, in which M, N or K
    is not a multiple of `multiple` (8), if a matrix or the result is contiguous along it (strides
    tell; without them, only N, and others if a kernel's name says that it loads narrowly).

    Not counted: kernels that load whole vectors by their names, rows that begin at aligned
    addresses anyway (`padded[:, :50257]`), products with a dimension below `smallest_dimension`
    (2), and those of attention, which `math-attention` counts, or `manual-attention` if the scores
    take `attention` (1 MiB) or more.

    ## Why it is slow

    Tensor cores are fed with loads of 16 bytes. Rows whose length is not a multiple of that begin
    at unaligned addresses, and the library picks a kernel with narrower loads, at half the speed or
    less.

    ## Example

    ```python
    vocabulary = 50257
    torch.nn.Linear(768, vocabulary, device="cuda", dtype=torch.bfloat16)(x)
    ```

    ## Use instead

    ```python
    vocabulary = 50304  # the next multiple of 64; the last 47 tokens do not occur
    torch.nn.Linear(768, vocabulary, device="cuda", dtype=torch.bfloat16)(x)
    ```
    """
    products = device_products(trace)
    odd = [_odd(product, multiple, smallest_dimension) for _, product in products.distinct]
    matched = np.array([bool(names) for names in odd], bool)[products.which]
    if not matched.any():
        return NO_MATCHES
    harmful = [
        _unaligned(p, names, multiple) for (_, p), names in zip(products.distinct, odd, strict=True)
    ]
    certain = np.array([bool(names) for names in harmful], bool)[products.which]
    matched &= certain | products.any_kernel(trace, _NARROW_LOADS.search)
    found = np.flatnonzero(matched & ~products.any_kernel(trace, _WHOLE_LOADS.search))
    found = found[~_in_attention(trace, products.event[found])]
    found = found[~in_manual_attention(trace, products.event[found], attention)]
    messages = [
        f"{name} {_listed(product, named or names, multiple)}" if product else ""
        for (name, product), names, named in zip(products.distinct, odd, harmful, strict=True)
    ]
    return Matches(
        products.event[found],
        [messages[one] for one in products.which[found].tolist()],
        cost_ns=products.kernel_ns(trace)[found] // 2,
        span_ns=around(trace, products.event[found]),
    )


def _odd(product: Product | None, multiple: float, smallest: float) -> list[str]:
    """The dimensions that are not a multiple, of those along which a matrix is contiguous."""
    if product is None or not set(product.types) <= {"c10::Half", "c10::BFloat16"}:
        return []
    if min(product.sizes.values()) < smallest:
        return []
    return [
        name for name, size in product.sizes.items() if size % multiple and name in product.rows
    ]


def _unaligned(product: Product | None, odd: list[str], multiple: float) -> list[str]:
    """Of these, the dimensions along which rows begin at unaligned addresses."""
    rows = product.rows if product else {}
    return [name for name in odd if any(apart % multiple for apart in rows[name])]


def _listed(product: Product, odd: list[str], multiple: float) -> str:
    sizes = ", ".join(f"{name}={product.sizes[name]}" for name in odd)
    are = "are not multiples" if len(odd) > 1 else "is not a multiple"
    return f"in {SHORT.get(product.types[0])}: {sizes} {are} of {multiple:g}"
