"""Rules about data loaders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.analysis.idle_causes import Cause
from pytest_torchprof.analysis.missing import slowdown_share
from pytest_torchprof.rules.evidence.pauses import knows_pauses, measured_ns, paused_ns
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, Threshold, rule
from pytest_torchprof.trace.names import Names, are_named, marks_named
from pytest_torchprof.trace.nesting import among
from pytest_torchprof.trace.tree import outermost, within

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

#: torch's annotation around each fetch of a DataLoader without workers.
#: Source: torch/utils/data/dataloader.py, ``_BaseDataLoaderIter._profile_name``.
_SYNC_FETCH = r"enumerate\(DataLoader\)#_SingleProcessDataLoaderIter\.__next__"

_FETCH: Final = Names(_SYNC_FETCH + "$")
#: The same with workers.
_WORKER_FETCH: Final = Names(r"enumerate\(DataLoader\)#_MultiProcessingDataLoaderIter\.__next__$")
#: The time for workers to hand over a batch, and to start. Measured with torch 2.13 on two cores:
#: two workers take 49 ms to start, and 0.9 ms per batch where a fetch without workers takes 0.1 ms.
_HAND_OVER_NS: Final = 1_000_000
_START_NS: Final = 50_000_000
#: What workers save is estimated for so many, as far as there are processors for them.
_WORKERS: Final = 2
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

_KEEP_SYNC: Final = (
    "keep it here: in this run, workers would not pay, which take about 50 ms to start and 1 ms to "
    "hand a batch over; where more is loaded, give the DataLoader num_workers=N"
)
#: From this number of iterators on, workers that start for each are no one-time work: a loader for
#: training and one for validation are two.
_EPOCHS: Final = 3
_SLOW: Final = "the workers of a DataLoader are late with batches"
_RESTARTED: Final = "the workers of a DataLoader start anew for each epoch"
_KEEP: Final = "give the DataLoader persistent_workers=True: its workers then start once"


@rule(
    "sync-dataloader",
    fix="give the DataLoader num_workers=N, and persistent_workers=True for several epochs",
    triggers=_FETCH.pattern,
    timed=True,
)
def sync_dataloader(trace: Events) -> Matches:
    """Batches are loaded in the process that trains, while the device waits.

    ## What it does

    Counts the fetches of a `DataLoader` without workers, however short they are, including the one
    that finds the loader exhausted. The place is the line that constructs the loader, where a live
    test runs it. It is advice, since the data and the machine decide whether workers pay: a test
    never fails because of it, unless a marker asks (`no_antipatterns`).

    The cost is what two workers would save: what they load during the steps and in parallel, less a
    millisecond per batch to hand it over, and 50 ms to start. Where that saves nothing, the fix
    says so.

    ## Why it is slow

    Reading, decoding and collating a batch takes place between two steps, and nothing else runs at
    that time. With data in memory, it takes less time than workers need.

    ## Example

    ```python
    for batch in DataLoader(pictures, batch_size=32):
        step(batch)
    ```

    ## Use instead

    ```python
    for batch in DataLoader(pictures, batch_size=32, num_workers=4):
        step(batch)
    ```

    For several epochs, workers that start once:

    ```python
    loader = DataLoader(pictures, batch_size=32, num_workers=4, persistent_workers=True)
    for _ in range(epochs):
        for batch in loader:
            step(batch)
    ```
    """
    rows = _fetches(trace, _FETCH)
    if not len(rows):
        return NO_MATCHES
    begin, took = trace.ts[rows], trace.dur[rows]
    # Workers load a batch during the steps, and beside each other.
    step = np.maximum(begin - np.append(begin[:1], (begin + took)[:-1]), 0)
    many = min(_WORKERS, (trace.facts.processors or _WORKERS + 1) - 1)
    saved = np.minimum(took, step + took * (many - 1) // many) if many else 0 * took
    first, _ = _begin_iterators(trace, rows)
    first[0] = True
    overhead = (_HAND_OVER_NS + _START_NS / len(rows)) / slowdown_share(trace)
    saved = np.where(first, 0, saved) - overhead
    pays = bool(saved.sum() > 0)
    return Matches(
        rows,
        "a DataLoader without workers loads in this process",
        fix=None if pays else [_KEEP_SYNC] * len(rows),
        cost_ns=(np.maximum(saved, 0) * pays).astype(np.int64),
        span_ns=(begin, begin + took),
        by_constructor=True,
    )


@rule(
    "starved-loader",
    fix="more workers (num_workers), cheaper transforms, or data that is decoded in advance; "
    "pin_memory=True with non_blocking=True, and a larger prefetch_factor if batches differ",
    triggers={_WORKER_FETCH.pattern: "fetches"},
    ready=knows_pauses,
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
    accelerator, the time of the fetches counts; a live test divides it by the load average per
    processor, if that is above 1. Workers that start anew for each of three epochs or more are a
    finding of its own.

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
    rows = _fetches(trace, _WORKER_FETCH)
    if len(rows) < fetches or len(uses := _uses(trace, rows)) < len(rows) // 2:
        return NO_MATCHES
    waited = paused_ns(trace, rows, Cause.LOADING)
    load = max(trace.facts.load_per_processor or 1, 1)
    found, messages, fixes = [], list[str](), list[str]()
    first, anew = _begin_iterators(trace, rows)
    # The last fetch before the next epoch, or before the end, finds no batch.
    ends = np.append(first[1:], not (uses > rows[-1]).any())
    waited[ends] = 0
    kinds = (~first, _SLOW, starved_loader.fix), (anew, _RESTARTED, _KEEP)
    for chosen, message, fix in kinds:
        if chosen is anew and anew.sum() < _EPOCHS:
            continue
        late = chosen & (waited >= wait * 1e6 * load)
        counted = chosen & ~ends
        if chosen is not anew and waited[counted].sum() < counted.sum() * wait * 1e6 * load:
            continue
        if late.sum() >= fetches and waited[late].sum() >= share * load * measured_ns(trace):
            found.append(np.flatnonzero(late))
            messages += [message] * int(late.sum())
            fixes += [fix] * int(late.sum())
    if not found:
        return NO_MATCHES
    at = np.concatenate(found)
    span = trace.ts[rows[at]], trace.ts[rows[at]] + trace.dur[rows[at]]
    return Matches(rows[at], messages, fix=fixes, cost_ns=waited[at], span_ns=span)


def _fetches(trace: Events, names: Names) -> Ints:
    """The selected fetches; not those of a loader that another one reads from."""
    rows = marks_named(trace, names)
    rows = rows[trace.selection[rows]]
    return rows[~within(trace, rows, lambda events: among(events, rows))]


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
