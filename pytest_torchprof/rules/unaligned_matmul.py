"""The rule about matrix products in half precision with an unaligned dimension."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.analysis.attribution import Product, device_products
from pytest_torchprof.analysis.missing import blind_kernels
from pytest_torchprof.core.process import late
from pytest_torchprof.rules.chip import in_math_attention
from pytest_torchprof.rules.manual_attention import by_hand, manual_attention
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, Threshold, around, rule
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.names import LAUNCHES
from pytest_torchprof.trace.tree import forward_of, marked
from pytest_torchprof.work.kernels import VECTOR_KERNEL, is_main, precision
from pytest_torchprof.work.operands import SHORT

if TYPE_CHECKING:
    from pytest_torchprof.core.unknown import Reason
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

#: Kernels of CUTLASS and cuBLAS that load 16 bytes of 2-byte values at a time, or less.
_WHOLE_LOADS: Final = late(r"align8(?!\d)|ldg8(?!\d)")
_NARROW_LOADS: Final = late(r"(align|ldg)[124](?!\d)")


def _unseen_16_bits(trace: Events) -> Reason | None:
    """Products that graphs launched: their sizes are unknown."""
    return blind_kernels(trace, _may_be_unaligned)


def _may_be_unaligned(name: str) -> bool:
    half = is_main(name) and precision(name) in {"half", None}
    return half and not (VECTOR_KERNEL.search(name) or _WHOLE_LOADS.search(name))


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
    found = found[~in_math_attention(trace, products.event[found])]
    found = found[~_in_manual_attention(trace, products.event[found], attention)]
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


def _in_manual_attention(trace: Events, events: Ints, least_bytes: float) -> Bools:
    """Products of attention that `manual-attention` counts, forward and backward."""
    found = by_hand(trace, least_bytes, manual_attention.thresholds["length"].default)
    mine = marked(trace, np.array([row for one in found for row in one.rows[[0, -1]]], np.int64))
    forward = nesting.nearest(mine, trace.parent, forward_of(trace, events))
    return (nesting.nearest(mine, trace.parent, events) >= 0) | (forward >= 0)
