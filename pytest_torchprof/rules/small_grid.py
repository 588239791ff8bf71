"""The rule about kernels that are too small for the device."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.analysis.attribution import followed, is_replayed, launched_at
from pytest_torchprof.analysis.breakdown import categories
from pytest_torchprof.analysis.device_time import spans_of
from pytest_torchprof.analysis.kernels import (
    REACHABLE,
    believable_work,
    launched,
    multiprocessors,
    roof_of,
)
from pytest_torchprof.core.process import late
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, Threshold, rule
from pytest_torchprof.trace.names import LAUNCHES, Kind
from pytest_torchprof.work.kernels import CATEGORIES, kernel_category

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

#: Kernels whose blocks share all the work among themselves, however many there are.
_FEW_BY_DESIGN: Final = late(r"persist|stream_?k|split_?k|cooperative|nvshmem", re.IGNORECASE)
_COOPERATIVE: Final = late(r"Cooperative")
#: Of the time that a full grid would save, in the best case, this share is claimed.
_LIKELY: Final = 0.5
#: Of so many kernels, the longest ones, at least one has a grid if the trace records any.
_SAMPLED: Final = 100

_FIXES: Final = {
    "gemm": "more rows in one product: a larger batch, or one bmm or one wider matrix instead of "
    "several products; for few rows and columns over a long sum, split the sum",
    "attention": "more queries at a time: a larger batch, or a kernel that splits the keys "
    "(FlashAttention's split-KV, FlexAttention's decoding kernel)",
    "convolution": "a larger batch, channels_last, or torch.backends.cudnn.benchmark = True, which "
    "tries kernels that split the sum",
    "normalization": "channels_last for batch norm, whose other kernel uses one block per channel, "
    "or a larger batch for the others",
}
_ANY: Final = "more work in a launch: a larger batch, or one call on all tensors, not one each"


def _has_grids(trace: Events) -> str | None:
    """The grids of kernels, and the number of the device's multiprocessors."""
    kernels = np.flatnonzero(trace.selection & trace.is_kind(Kind.KERNEL))
    kernels = kernels[~is_replayed(trace, trace.launch[kernels])]
    longest = kernels[np.argsort(-trace.dur[kernels], kind="stable")[:_SAMPLED]]
    if len(kernels) and (launched(trace, longest).grid[:, 0] < 0).all():
        return "the trace does not say how many blocks its kernels had"
    if len(kernels) and not _available(trace, kernels).any():
        return "the trace does not say how many multiprocessors its device has"
    return None


@rule(
    "small-grid",
    fix=_ANY,
    triggers=LAUNCHES,
    needs="device",
    ready=_has_grids,
    timed=True,
    duration=Threshold(0.02, "ms", "a shorter kernel mostly starts and ends"),
    share=Threshold(0.1, "1", "below, no other grid makes much of a difference"),
    filled=Threshold(0.75, "1", "kernels of one block per multiprocessor leave a few of them out"),
    gain=Threshold(0.01, "1", "below, the time between kernels is what matters"),
)
def small_grid(
    trace: Events, *, duration: float, share: float, filled: float, gain: float
) -> Matches:
    """Kernels that matter have fewer blocks than the device has multiprocessors.

    ## What it does

    Counts kernels that take `duration` (0.02 ms) or more and have no more blocks than `filled`
    (0.75) of the device's multiprocessors, if they take together `share` (0.1) or more of the time
    of all kernels, and if more blocks would save `gain` (0.01) or more of the device's span. The
    cost is half of time * (1 - blocks / multiprocessors), limited by a known roofline.

    Not counted: kernels beside which another one runs or after which the device waits for the host,
    communication, kernels of few blocks by design (persistent, split-K, stream-K, cooperative),
    those near the roofline, and what a CUDA graph launches. Times decide, so matches may change.

    ## Why it is slow

    A block runs on one multiprocessor. The others have nothing to do until the kernel ends.

    ## Example

    ```python
    for sequence in sequences:  # a product of 64 rows at a time, as 16 tiles
        outputs.append(linear(sequence))
    ```

    ## Use instead

    ```python
    outputs = linear(torch.cat(sequences)).split([len(s) for s in sequences])
    ```
    """
    kernels = np.flatnonzero(trace.selection & trace.is_kind(Kind.KERNEL))
    least = max(share * int(trace.dur[kernels].sum()), 1)
    kernels = kernels[trace.dur[kernels] >= duration * 1e6]
    kernels = kernels[~_are_few_by_design(trace, kernels)]
    if trace.dur[kernels].sum() < least:
        return NO_MATCHES
    grid, available = launched(trace, kernels).grid, _available(trace, kernels)
    blocks = np.where(grid[:, 0] > 0, grid.prod(axis=1), np.iinfo(np.int64).max)
    small = blocks <= filled * available
    kernels, blocks, available = kernels[small], blocks[small], available[small]
    if trace.dur[kernels].sum() < least:
        return NO_MATCHES
    saved, context = _saved_ns(trace, kernels, blocks / available), followed(trace, kernels)
    matters = (saved > 0) & context.alone & context.delays
    kernels, blocks, available = kernels[matters], blocks[matters], available[matters]
    span = sum(end - begin for begin, end in spans_of(trace).values())
    if trace.dur[kernels].sum() < least or saved[matters].sum() < max(gain * span, 1):
        return NO_MATCHES
    launch, begin = trace.launch[kernels], launched_at(trace, kernels)
    return Matches(
        np.where(launch >= 0, trace.parent[launch], -1),
        _messages(trace, kernels, blocks.tolist(), available.tolist()),
        cost_ns=saved[matters],
        span_ns=(begin, begin + 1),
        fix=[_FIXES.get(CATEGORIES[i], _ANY) for i in categories(trace, kernels).tolist()],
    )


def _are_few_by_design(trace: Events, kernels: Ints) -> Bools:
    """Kernels that communicate, are to have few blocks, or that a graph launched."""
    launch = trace.launch[kernels]
    found: Bools = trace.names_where(_FEW_BY_DESIGN.search)[kernels] | is_replayed(trace, launch)
    found |= trace.names_where(lambda name: kernel_category(name) == "communication")[kernels]
    return found | ((launch >= 0) & trace.names_where(_COOPERATIVE.search)[launch])


def _available(trace: Events, kernels: Ints) -> Ints:
    """The multiprocessors of each kernel's device; 0 if unknown."""
    numbers, at = np.unique(trace.device[kernels], return_inverse=True)
    return np.array([multiprocessors(trace, one) or 0 for one in numbers.tolist()], np.int64)[at]


def _saved_ns(trace: Events, kernels: Ints, used: NDArray[np.float64]) -> Ints:
    """What more blocks would save of each of these kernels, which use a share of the device."""
    time, work = trace.dur[kernels], believable_work(trace, ())
    least = roof_of(trace, work, ()).least_s[np.searchsorted(work.event, kernels)]
    # NaN, an unknown roofline, limits nothing.
    saved = np.fmin(_LIKELY * time * (1 - used), np.maximum(time - least * 1e9 / REACHABLE, 0))
    return saved.astype(np.int64)


def _messages(trace: Events, kernels: Ints, blocks: list[int], available: list[int]) -> list[str]:
    """One for each function and device, whatever the number of blocks: their cause is one."""
    names = [_function(trace.names[number]) for number in trace.name[kernels].tolist()]
    keys = list(zip(names, available, strict=True))
    known: dict[tuple[str, int], list[int]] = {}
    for key, count in zip(keys, blocks, strict=True):
        known.setdefault(key, []).append(count)
    span = {key: sorted({min(some), max(some)}) for key, some in known.items()}
    return [
        f"{key[0]}: {' to '.join(map(str, span[key]))} blocks for {key[1]} multiprocessors"
        for key in keys
    ]


def _function(kernel: str) -> str:
    """The name of a kernel's function, without return type, namespaces and template arguments."""
    plain = kernel.replace("(anonymous namespace)::", "").partition("<")[0].partition("(")[0]
    return plain.split("::")[-1].split(" ")[-1] or kernel
