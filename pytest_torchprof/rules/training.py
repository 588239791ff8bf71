"""Rules about training loops: loaders, optimizers, gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pytest_torchprof.events import Kind
from pytest_torchprof.rules.rule import Matches, rule

if TYPE_CHECKING:
    from pytest_torchprof.events import Trace

#: torch's annotation around each fetch of a DataLoader without workers.
#: Source: torch/utils/data/dataloader.py, ``_BaseDataLoaderIter._profile_name``.
_SYNC_FETCH = r"enumerate\(DataLoader\)#_SingleProcessDataLoaderIter\.__next__"


@rule(
    "sync-dataloader",
    fix="give the DataLoader num_workers=N (and persistent_workers=True for several epochs)",
    triggers=_SYNC_FETCH,
)
def sync_dataloader(trace: Trace) -> Matches:
    """Batches are loaded in the process that trains, while the device waits.

    What it does
        Counts the fetches of a ``DataLoader`` that has no workers, the one that finds the loader
        exhausted included.

    Why it is slow
        Reading, decoding and collating a batch takes place between two steps: nothing else runs
        meanwhile.

    Example
        .. code:: python

            for batch in DataLoader(dataset, batch_size=32):
                step(batch)

    Use instead
        .. code:: python

            for batch in DataLoader(dataset, batch_size=32, num_workers=4):
                step(batch)
    """
    fetches = trace.is_kind(Kind.ANNOTATION, Kind.OP) & trace.selection
    fetches &= trace.names_where(lambda name: "#_SingleProcessDataLoaderIter." in name)
    return Matches(np.flatnonzero(fetches), "a DataLoader without workers loads in this process")
