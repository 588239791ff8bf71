"""The rule about matrix products in full fp32 where tensor cores could do them in TF32."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.analysis.attribution import DeviceProducts, Product, device_products
from pytest_torchprof.analysis.missing import blind_kernels
from pytest_torchprof.core.unknown import Reason, Why, because
from pytest_torchprof.rules.chip import chip_of, in_math_attention
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, Threshold, around, rule
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.names import LAUNCHES, Kind
from pytest_torchprof.work.kernels import (
    FP32_KERNEL,
    TF32_KERNEL,
    VECTOR_KERNEL,
    is_main,
    precision,
)

if TYPE_CHECKING:
    from pytest_torchprof.rules.chip import Chip
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools

_TF32: Final = 'torch.set_float32_matmul_precision("high"), or autocast to bf16'
_NO_GAIN: Final = "autocast to bf16; TF32 gains nothing on this chip"
_UNKNOWN_GAIN: Final = (
    'autocast to bf16, or torch.set_float32_matmul_precision("high") if this chip, whose peaks '
    "are unknown, multiplies TF32 faster than fp32"
)


def _unseen_fp32(trace: Events) -> Reason | None:
    """Products on an unknown device, or that graphs launched without their operators."""
    if trace.facts.allow_tf32 is True:
        return None
    devices = nesting.distinct(trace.device[trace.is_kind(Kind.KERNEL)]).tolist()
    chips = {one: chip_of(trace, one) for one in devices}
    if unknown := [one for one, chip in chips.items() if chip.may_have_tf32]:
        products = device_products(trace)
        single = products.any_kernel(trace, _is_single_by_name)
        if nesting.among(products.device(trace)[single], unknown).any():
            return because(*Why.PRODUCTS_ON_UNKNOWN_CHIP)
    if not any(chip.runs_tf32 for chip in chips.values()):
        return None
    return blind_kernels(
        trace, lambda name: _is_product(name) and precision(name) in {"single", None}
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
    named = products.any_kernel(trace, _is_single_by_name)
    wanted = np.where(unknown[products.which], named, single[products.which])
    in_tf32 = fast & (unknown | single)[products.which]
    if allowed is None and in_tf32.sum() > (slow & wanted).sum():
        return NO_MATCHES
    found = np.flatnonzero(wanted & slow & _on_tf32_device(trace, products))
    found = found[~in_math_attention(trace, products.event[found])]
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


def _is_fp32(product: Product | None, smallest: float) -> bool:
    if product is None:
        return False
    return product.types == ("float", "float") and min(product.sizes.values()) >= smallest


def _on_tf32_device(trace: Events, products: DeviceProducts) -> Bools:
    device = trace.device[products.kernel]
    able = [one for one in nesting.distinct(device).tolist() if chip_of(trace, one).runs_tf32]
    return np.bincount(products.at, nesting.among(device, able), len(products)) > 0


def _is_single_by_name(name: str) -> bool:
    return precision(name) == "single" and _is_product(name)
