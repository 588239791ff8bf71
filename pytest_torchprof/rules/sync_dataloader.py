"""The rule about loaders without workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.core.units import format_quantity
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, around, rule
from pytest_torchprof.trace.names import Names, marks_named
from pytest_torchprof.trace.nesting import among
from pytest_torchprof.trace.tree import within

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

#: torch's annotation around each fetch of a DataLoader without workers.
#: Source: torch/utils/data/dataloader.py, ``_BaseDataLoaderIter._profile_name``.
_FETCH: Final = Names(r"enumerate\(DataLoader\)#_SingleProcessDataLoaderIter\.__next__$")
#: About what it takes to hand over a batch of a worker; it only decides what is advised.
_HAND_OVER_NS: Final = 1_000_000
_KEEP: Final = (
    "keep it here: in this run, workers would not pay, which take about 1 ms to hand a batch over; "
    "where more is loaded, give the DataLoader num_workers=N"
)


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
    never fails because of it, unless a marker asks (`no_antipatterns`). The cost is the time of the
    fetches, as far as the device waits for them; 0 if they take less than 1 ms, by the median.

    ## Why it is slow

    Reading, decoding and collating a batch takes place between two steps, and nothing else runs at
    that time. Workers do it during the steps, and beside each other; but it takes about 50 ms to
    start them, and about 1 ms to hand a batch over, which is more than data in memory takes.

    ## Example

    ```python
    for batch in DataLoader(pictures, batch_size=32):
        step(batch)
    ```

    ## Use instead

    ```python
    loader = DataLoader(pictures, batch_size=32, num_workers=4, persistent_workers=True)
    for _ in range(epochs):
        for batch in loader:
            step(batch)
    ```
    """
    rows = fetches(trace, _FETCH)
    if not len(rows):
        return NO_MATCHES
    took = trace.dur[rows]
    pays = bool(np.median(took) >= _HAND_OVER_NS)  # the first one may do one-time work
    ms = format_quantity(int(took.sum()) / 1e6, "ms")
    fetches_take = "1 fetch takes" if len(rows) == 1 else f"{len(rows)} fetches take"
    message = f"a DataLoader without workers loads in this process: {fetches_take} {ms}"
    message += "" if pays else ", too little for workers"
    return Matches(
        rows,
        message,
        fix=None if pays else [_KEEP] * len(rows),
        cost_ns=took * pays,
        span_ns=around(trace, rows),
        by_constructor=True,
    )


def fetches(trace: Events, names: Names) -> Ints:
    """The selected fetches; not those of a loader that another one reads from."""
    rows = marks_named(trace, names)
    rows = rows[trace.selection[rows]]
    return rows[~within(trace, rows, lambda events: among(events, rows))]
