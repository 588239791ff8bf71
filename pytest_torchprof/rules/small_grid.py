"""The rule about kernels that are too small for the device."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

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
from pytest_torchprof.rules.products import LAUNCHES
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, Threshold, rule
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.names import Kind
from pytest_torchprof.work.kernels import CATEGORIES, kernel_category

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

#: Kernels whose blocks share all the work among themselves, however many there are.
_FEW_BY_DESIGN: Final = late(r"persist|stream_?k|split_?k|cooperative|nvshmem", re.IGNORECASE)
_COOPERATIVE: Final = late(r"Cooperative")
#: Of the time that a full grid would save, in the best case, this share is claimed.
_LIKELY: Final = 0.5
#: Kernels of one name count from this share of the threshold on.
_NOTABLE: Final = 0.1
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
_ANY: Final = (
    "more work in one launch: a larger batch, or one call on all tensors instead of one each"
)


def _has_grids(trace: Events) -> str | None:
    """The grids of kernels, and the number of the device's multiprocessors."""
    kernels = np.flatnonzero(trace.selection & trace.is_kind(Kind.KERNEL))
    kernels = kernels[~is_replayed(trace, trace.launch[kernels])]
    if not len(kernels):
        return None
    longest = kernels[np.argsort(-trace.dur[kernels], kind="stable")[:_SAMPLED]]
    if (launched(trace, longest).grid[:, 0] < 0).all():
        return "the trace does not say how many blocks its kernels had"
    devices = nesting.distinct(trace.device[kernels]).tolist()
    if not any(multiprocessors(trace, number) for number in devices):
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
    cost is half of time * (1 - blocks / multiprocessors), limited by the kernel's roofline if it is
    known.

    Not counted: kernels beside which another one runs or after which the device waits for the host,
    communication, kernels of few blocks by design (persistent, split-K, stream-K, cooperative),
    those near the roofline, and what a CUDA graph launches. Times decide here, so the matches may
    change with the machine.

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
    least = share * int(trace.dur[kernels].sum())
    small = _small(trace, kernels[trace.dur[kernels] >= duration * 1e6], filled, least)
    if small.is_less_than(trace, least):
        return NO_MATCHES
    saved = _saved_ns(trace, small)
    small, saved = small.where(saved > 0), saved[saved > 0]
    span = sum(end - begin for begin, end in spans_of(trace).values())
    if small.is_less_than(trace, least) or saved.sum() < max(gain * span, 1):
        return NO_MATCHES
    names, at = np.unique(trace.name[small.kernel], return_inverse=True)
    time = np.bincount(at, trace.dur[small.kernel], len(names))
    shown = (time >= _NOTABLE * least)[at]
    small, saved = small.where(shown), saved[shown]
    launch, begin = trace.launch[small.kernel], launched_at(trace, small.kernel)
    return Matches(
        np.where(launch >= 0, trace.parent[launch], -1),
        _messages(trace, small),
        cost_ns=saved,
        span_ns=(begin, begin + 1),
        fix=[_FIXES.get(CATEGORIES[i], _ANY) for i in categories(trace, small.kernel).tolist()],
    )


class _Small(NamedTuple):
    """Kernels, the blocks of each, and the multiprocessors of its device."""

    kernel: Ints
    blocks: Ints
    available: Ints

    def where(self, chosen: Bools | Ints) -> _Small:
        return _Small(*(column[chosen] for column in self))

    def is_less_than(self, trace: Events, least_ns: float) -> bool:
        """Whether there are none, or they take less time than this."""
        return not len(self.kernel) or bool(trace.dur[self.kernel].sum() < least_ns)


def _messages(trace: Events, small: _Small) -> list[str]:
    """One for each function and device, whatever the number of blocks: their cause is one."""
    names, which = np.unique(trace.name[small.kernel], return_inverse=True)
    functions, of_name = np.unique(
        [_function(trace.names[name]) for name in names.tolist()], return_inverse=True
    )
    kinds, at = np.unique(
        np.stack([of_name[which], small.available], axis=1), axis=0, return_inverse=True
    )
    least, most = np.full(len(kinds), np.iinfo(np.int64).max), np.zeros(len(kinds), np.int64)
    np.minimum.at(least, at, small.blocks)
    np.maximum.at(most, at, small.blocks)
    texts = [
        f"{functions[one]}: {few if few == many else f'{few} to {many}'} blocks for "
        f"{count} multiprocessors"
        for (one, count), few, many in zip(
            kinds.tolist(), least.tolist(), most.tolist(), strict=True
        )
    ]
    return [texts[kind] for kind in at.tolist()]


def _small(trace: Events, kernels: Ints, filled: float, least_ns: float) -> _Small:
    """Those of these kernels that leave too many multiprocessors out, and what follows waits for.

    More of them, as far as it was looked at, if even these take less than ``least_ns``.
    """
    launch = trace.launch[kernels]
    by_design = trace.names_where(_is_small_by_design)[kernels] | is_replayed(trace, launch)
    by_design |= (launch >= 0) & trace.names_where(_COOPERATIVE.search)[launch]
    kernels = kernels[~by_design]
    none = np.full(len(kernels), -1, np.int64)
    found = _Small(kernels, none, none)
    if found.is_less_than(trace, least_ns):
        return found
    grid, device = launched(trace, kernels).grid, trace.device[kernels]
    count = none.copy()
    for number in nesting.distinct(device).tolist():
        count[device == number] = multiprocessors(trace, number) or -1
    blocks = np.where(grid[:, 0] > 0, grid.prod(axis=1), -1)
    found = _Small(kernels, blocks, count).where((blocks > 0) & (blocks <= filled * count))
    if found.is_less_than(trace, least_ns):
        return found
    context = followed(trace, found.kernel)
    return found.where(context.alone & context.delays)


def _is_small_by_design(kernel: str) -> bool:
    return bool(_FEW_BY_DESIGN.search(kernel)) or kernel_category(kernel) == "communication"


def _saved_ns(trace: Events, small: _Small) -> Ints:
    """What more blocks would save of each of these kernels, in ns."""
    time = trace.dur[small.kernel]
    saved = _LIKELY * time * (1 - small.blocks / small.available)
    work = believable_work(trace, ())
    least = roof_of(trace, work, ()).least_s[np.searchsorted(work.event, small.kernel)]
    # NaN, an unknown roofline, limits nothing.
    out: Ints = np.fmin(saved, np.maximum(time - least * 1e9 / REACHABLE, 0)).astype(np.int64)
    return out


def _function(kernel: str) -> str:
    """The name of a kernel's function, without return type, namespaces and template arguments."""
    plain = kernel.replace("(anonymous namespace)::", "").partition("<")[0].partition("(")[0]
    return plain.split("::")[-1].split(" ")[-1] or kernel
