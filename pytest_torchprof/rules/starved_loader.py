"""The rule about loaders whose workers are late."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.analysis.device_time import measured_ns
from pytest_torchprof.analysis.idle_causes import Cause, paused_ns
from pytest_torchprof.analysis.missing import pauses_gap
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, Threshold, around, rule
from pytest_torchprof.trace.names import Names, are_named, marks_named
from pytest_torchprof.trace.nesting import among
from pytest_torchprof.trace.tree import outermost, within

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

#: torch's annotation around each fetch of a DataLoader with workers.
#: Source: torch/utils/data/dataloader.py, ``_BaseDataLoaderIter._profile_name``.
_FETCH: Final = Names(r"enumerate\(DataLoader\)#_MultiProcessingDataLoaderIter\.__next__$")
#: An iterator over a DataLoader begins with these, outside of its fetches: it draws a seed.
#: Source: torch/utils/data/dataloader.py, ``_BaseDataLoaderIter.__init__``.
_SEED: Final = ("aten::empty", "aten::random_", "aten::item")
#: A sampler that shuffles draws a seed just so, and then these. Workers that persist draw none.
#: Source: torch/utils/data/sampler.py, ``RandomSampler.__iter__``.
_SHUFFLES: Final = ("aten::randperm", "aten::randint")
#: What samplers run: no use of a batch.
_DRAWS: Final = Names(
    r"aten::(empty|random_|item|randperm|randint|multinomial|tolist|resolve_(conj|neg))$"
)
#: From this number of iterators on, workers that start for each are no one-time work: a loader for
#: training and one for validation are two.
_EPOCHS: Final = 3
_SLOW: Final = "the workers of a DataLoader are late with batches"
_RESTARTED: Final = "the workers of a DataLoader start anew for each epoch"
_KEEP: Final = "give the DataLoader persistent_workers=True: its workers then start once"


@rule(
    "starved-loader",
    fix="more workers (num_workers), cheaper transforms, or data that is decoded in advance; "
    "pin_memory=True with non_blocking=True, and a larger prefetch_factor if batches differ",
    triggers={_FETCH.pattern: "fetches"},
    ready=pauses_gap,
    timed=True,
    share=Threshold(0.05, "1", "less is within what the fetches of a step vary"),
    wait=Threshold(2, "ms", "workers take about a millisecond to hand a batch over"),
    fetches=Threshold(2, "1", "a single late batch is an accident"),
)
def starved_loader(trace: Events, *, share: float, wait: float, fetches: float) -> Matches:
    """The workers of a DataLoader are too slow, and the device waits for batches.

    ## What it does

    Counts the fetches of a `DataLoader` with workers during which the device was idle for `wait` (2
    ms) or more, as the average fetch must be, too. There must be `fetches` (2) or more, and
    together they must take `share` (0.05) or more of the device's span. In a trace without an
    accelerator, the time of the fetches counts. Workers that start anew for each of three epochs or
    more are a finding of its own.

    Not counted: the first and the last fetch of an epoch, as an iterator's seed tells, and
    loaders of other libraries. Times decide here, so the matches are not compared with a baseline.

    ## Why it is slow

    Workers load in parallel with the step. If all together are slower than the device computes, it
    waits for them in each step; the cost is that time. Workers are no help beyond the number of
    free processors.

    ## Example

    ```python
    for batch in DataLoader(pictures, batch_size=32, num_workers=1):
        step(batch)
    ```

    ## Use instead

    ```python
    for batch in DataLoader(pictures, batch_size=32, num_workers=8):
        step(batch)
    ```
    """
    rows = marks_named(trace, _FETCH)
    rows = rows[trace.selection[rows]]
    rows = rows[~within(trace, rows, lambda events: among(events, rows))]
    if len(rows) < fetches or len(uses := _uses(trace, rows)) < len(rows) // 2:
        return NO_MATCHES
    waited, first, anew = paused_ns(trace, rows, Cause.LOADING), *_begin_iterators(trace, rows)
    # The last fetch before the next epoch, or before the end, finds no batch.
    ends = np.append(first[1:], not (uses > rows[-1]).any())
    waited[ends] = 0
    late = waited >= wait * 1e6
    slow, between = late & ~first, ~first & ~ends
    slow &= waited[between].sum() >= between.sum() * wait * 1e6
    late &= anew & (anew.sum() >= _EPOCHS)
    at = np.concatenate([
        np.flatnonzero(kind)
        for kind in (slow, late)
        if kind.sum() >= fetches and waited[kind].sum() >= share * measured_ns(trace)
    ] or [np.zeros(0, np.int64)])  # fmt: skip
    begins = anew[at].tolist()
    return Matches(
        rows[at],
        [_RESTARTED if one else _SLOW for one in begins],
        fix=[_KEEP if one else starved_loader.fix for one in begins],
        cost_ns=waited[at],
        span_ns=around(trace, rows[at]),
    )


def _uses(trace: Events, fetches: Ints) -> Ints:
    """What the threads that fetch do with the batches."""
    outer: Ints = outermost(trace)
    outer = outer[trace.selection[outer] & among(trace.thread[outer], trace.thread[fetches])]
    outer = outer[~within(trace, outer, lambda events: among(events, fetches))]
    return outer[~are_named(trace, outer, _DRAWS)]


def _begin_iterators(trace: Events, rows: Ints) -> tuple[Bools, Bools]:
    """Which of these fetches are the first after an iterator or its sampler drew a seed, and which
    of them the first of a new iterator for certain.
    """
    outer = outermost(trace)
    outer = outer[among(trace.thread[outer], trace.thread[rows])]
    seeds = are_named(trace, outer[:-2], _SEED[0])
    for place in (1, 2):
        seeds &= are_named(trace, outer[place : len(outer) - 2 + place], _SEED[place])
    at = np.flatnonzero(seeds)
    at = at[~within(trace, outer[at], lambda events: among(events, rows))]
    next_fetch = np.searchsorted(rows, outer[at])
    of_iterator = ~are_named(trace, outer[np.minimum(at + 3, len(outer) - 1)], *_SHUFFLES)
    first, anew = np.zeros(len(rows) + 1, bool), np.zeros(len(rows) + 1, bool)
    first[next_fetch] = True
    anew[next_fetch[of_iterator]] = True
    return first[:-1], anew[:-1]
