"""The rule about fp32 on a device that computes in half precision several times as fast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from pytest_torchprof.analysis.attribution import attribute
from pytest_torchprof.analysis.breakdown import categories
from pytest_torchprof.analysis.device_time import idle_of, spans_of
from pytest_torchprof.analysis.kernels import device_of
from pytest_torchprof.core.unknown import Reason, Why, because
from pytest_torchprof.rules.chip import chip_of, device_type
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, Threshold, launched_between, rule
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.names import LAUNCHES, Kind
from pytest_torchprof.trace.tree import node_around, operators_around
from pytest_torchprof.work.devices import DTYPES
from pytest_torchprof.work.kernels import CATEGORIES, VECTOR_KERNEL, is_main, precision

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

#: Categories of kernels that tensor cores speed up.
_PRODUCTS: Final = [CATEGORIES.index(name) for name in ("gemm", "convolution", "attention")]


class _Products(NamedTuple):
    """Kernels of products of one device, and which of them multiply fp32, or surely do not."""

    rows: Ints
    single: Bools
    others: Bools


def _half_of(trace: Events, device: int) -> tuple[float, str] | None:
    """How many times as fast as fp32 the faster of fp16 and bf16 is, and its name, if known."""
    known, chip = device_of(trace, device, ()), chip_of(trace, device)
    if known is None or "fp32" not in known.peaks:
        # Before Volta there were no tensor cores.
        old = chip.vendor == "nvidia" and (0, 0) < chip.capability < (7, 0)
        return (1.0, "float16") if old else None
    bf16, fp16 = known.peaks.get("bf16", 0.0), known.peaks.get("fp16", 0.0)
    dtype = "bfloat16" if bf16 >= fp16 and bf16 else "float16"
    return max(bf16, fp16) / known.peaks["fp32"], dtype


def _products(trace: Events) -> dict[int, _Products]:
    """By device without TF32: the main kernels of products, convolutions and attention."""
    rows = np.flatnonzero(trace.selection & trace.is_kind(Kind.KERNEL))
    rows = rows[trace.names_where(is_main)[rows] & ~trace.names_where(VECTOR_KERNEL.search)[rows]]
    devices = nesting.distinct(trace.device[rows]).tolist()
    able = [one for one in devices if not chip_of(trace, one).has_tf32]
    rows = rows[nesting.among(trace.device[rows], able)]
    if not len(rows):
        return {}
    rows = rows[nesting.among(categories(trace, rows), _PRODUCTS)]
    # By the name, else by the types of the operator.
    named = trace.names_where(lambda name: precision(name) is not None)[rows]
    single = trace.names_where(lambda name: precision(name) == "single")[rows]
    work = attribute(trace)
    dtype = work.dtype[np.searchsorted(work.event, rows)]
    single |= ~named & (dtype == DTYPES.index("fp32"))
    others = ~single & (named | (dtype >= 0))
    of = {one: trace.device[rows] == one for one in able}
    return {one: _Products(rows[mine], single[mine], others[mine]) for one, mine in of.items()}


def _unseen_half(trace: Events) -> Reason | None:
    """Products in fp32 on an unknown device."""
    _, *least = (one.default for one in half_unused.thresholds.values())
    for device, products in trace.once(_products).items():
        if len(_counted(trace, device, products, *least)) and _half_of(trace, device) is None:
            return because(*Why.PRODUCTS_ON_UNKNOWN_CHIP)
    return None


@rule(
    "half-unused",
    fix="run the model under torch.autocast in half precision",
    triggers=LAUNCHES,
    needs="device",
    blind=_unseen_half,
    timed=True,
    gain=Threshold(3, "1", "below, memory decides what half precision gains"),
    share=Threshold(0.2, "1", "below, other things than products take the device's time"),
    busy=Threshold(0.5, "1", "a device that mostly waits is not what makes a step slow"),
    kernel=Threshold(0.02, "ms", "shorter kernels take as long in any precision"),
)
def half_unused(trace: Events, *, gain: float, share: float, busy: float, kernel: float) -> Matches:
    """Products run in fp32 on a device without TF32 that computes several times as fast in half.

    ## What it does

    Matches once for a device without TF32 if products, convolutions and attention in fp32 that take
    at least `kernel` each take `share` or more of its time, if it was busy for `busy` or more of
    it, and if its peak in fp16 or bf16 is `gain` times as high as in fp32: V100, T4, RTX 2080 Ti,
    MI100, MI200, MI350, Arc. On NVIDIA's devices with TF32, `fp32-matmul` is the rule. The cost is
    half of the time of these kernels.

    Not counted: a device on which 1 % of the products' time is in another precision. Code that
    needs fp32, such as a solver, is not told apart. Times decide, so the matches may change.

    ## Why it is slow

    The units for matrices of these chips multiply fp16 or bf16 4 to 16 times as fast as the others
    multiply fp32, and stay idle. Each tensor also takes twice the memory.

    ## Example

    ```python
    model(torch.rand(8192, 4096, device="cuda")).sum().backward()
    ```

    ## Use instead

    ```python
    scaler = torch.amp.GradScaler("cuda")  # for fp16: V100, T4; bf16 does without
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(torch.rand(8192, 4096, device="cuda")).sum()
    scaler.scale(loss).backward()
    ```
    """
    found: list[tuple[int, tuple[float, str], Ints]] = []
    for device, products in trace.once(_products).items():
        half = _half_of(trace, device)
        if half is not None and half[0] >= gain:
            counted = _counted(trace, device, products, share, busy, kernel)
            found += [(device, half, counted)] if len(counted) else []
    if not found:
        return NO_MATCHES
    parts = [_calls(trace, kernels) for _, _, kernels in found]
    begin, end = np.array([launched_between(trace, kernels) for *_, kernels in found], np.int64).T
    return Matches(
        np.array([calls[0] if len(calls) else -1 for calls in parts], np.int64),
        [
            f"device {device} multiplies in fp32, and {dtype} would be {times:.0f} times as fast"
            for device, (times, dtype), _ in found
        ],
        # What computes several times as fast is then bound by memory: half of the bytes.
        cost_ns=np.array([trace.dur[kernels].sum() // 2 for *_, kernels in found], np.int64),
        fix=[_fix(trace, dtype) for _, (_, dtype), _ in found],
        span_ns=(begin, end),
        parts=parts,
    )


def _counted(
    trace: Events, device: int, products: _Products, share: float, busy: float, kernel: float
) -> Ints:
    """The kernels of a device that multiply fp32, if they matter and nothing else is multiplied."""
    since, until = spans_of(trace)[device]
    times, span = trace.dur[products.rows], until - since
    counted = products.rows[products.single & (times >= kernel * 1e6)]
    total = int(trace.dur[counted].sum())
    idle = int(idle_of(trace, device).between(np.array([since]), np.array([until]))[0])
    matters = total >= max(share * span, 1) and span - idle >= busy * span
    mixed = times[products.others].sum() >= max(0.01 * times.sum(), 1)
    return counted if matters and not mixed else counted[:0]


def _calls(trace: Events, kernels: Ints) -> Ints:
    """The forward operators that launched them, all if there are none; in time order."""
    calls = operators_around(trace, trace.launch[kernels])
    calls = nesting.distinct(calls[calls >= 0])
    forward = calls[node_around(trace, calls) < 0]
    return forward if len(forward) else calls


def _fix(trace: Events, dtype: str) -> str:
    run = f'run the model under torch.autocast("{device_type(trace)}", dtype=torch.{dtype})'
    scaled = ", in training with torch.amp.GradScaler" if dtype == "float16" else ""
    return run + scaled
