"""Rules about training loops: loaders and optimizers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.rules.names import (
    Names,
    marks_named,
)
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, rule
from pytest_torchprof.rules.tree import within

if TYPE_CHECKING:
    from pytest_torchprof.events import Trace

#: torch's annotation around each fetch of a DataLoader without workers.
#: Source: torch/utils/data/dataloader.py, ``_BaseDataLoaderIter._profile_name``.
_SYNC_FETCH = r"enumerate\(DataLoader\)#_SingleProcessDataLoaderIter\.__next__"

_FETCH: Final = Names(_SYNC_FETCH + "$")


_WORKERS: Final = (
    "give the DataLoader num_workers=N (and persistent_workers=True for several epochs)"
)
_AT_ONCE: Final = (
    "take a batch at once, as in dataset.tensors[0][indices]: a fetch is so short here that "
    "workers would take longer to hand it over"
)
#: To hand a batch over took a worker 3 ms where a fetch without workers took 0.2 to 3.4 ms.
_SHORT_FETCH_NS: Final = 2_000_000


@rule(
    "sync-dataloader",
    fix=_WORKERS,
    triggers=_SYNC_FETCH,
)
def sync_dataloader(trace: Trace) -> Matches:
    """Batches are loaded in the process that trains, while the device waits.

    What it does
        Counts the fetches of a ``DataLoader`` that has no workers, the one that finds the loader
        exhausted included. A loader that reads from another one is one loader.

    Why it is slow
        Reading, decoding and collating a batch takes place between two steps: nothing else runs
        meanwhile. Workers help where that takes long. To hand a batch over takes them some
        milliseconds, so data that are in memory already are better taken a batch at a time.

    Example
        .. code:: python

            for batch in DataLoader(dataset, batch_size=32):
                step(batch)

    Use instead
        .. code:: python

            for batch in DataLoader(dataset, batch_size=32, num_workers=4):
                step(batch)
    """
    rows = marks_named(trace, _FETCH)
    rows = rows[trace.selection[rows]]
    rows = rows[~within(trace, rows, lambda events: np.isin(events, rows))]
    if not len(rows):
        return NO_MATCHES
    short = np.median(trace.dur[rows]) < _SHORT_FETCH_NS
    fix = _AT_ONCE if short else _WORKERS
    return Matches(
        rows, "a DataLoader without workers loads in this process", fix=[fix] * len(rows)
    )
