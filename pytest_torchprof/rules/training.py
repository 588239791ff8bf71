"""Rules about training loops: loaders and optimizers."""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.analysis.device import launched_in
from pytest_torchprof.rules.levels import engine_steps, frames_around
from pytest_torchprof.rules.names import (
    Names,
    are_any,
    marks_named,
)
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, Threshold, rule
from pytest_torchprof.rules.tree import has_frames, rows_of, within

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_torchprof.events import Trace
    from pytest_torchprof.nesting import Ints

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


# ------------------------------------------------------------------------------------ optimizers

#: The operator of the loops over single parameters that runs once for each, and one whose calls
#: are to be taken off, by torch's class; of classes that have a foreach or a fused form.
#: Source: the functions ``_single_tensor_…`` in torch/optim, 1.8 to 2.13.
_UPDATES: Final[Mapping[str, tuple[str, str | None]]] = {
    "ASGD": ("aten::mul_", "aten::sub"),  # the second mul_ is of the average
    "Adadelta": ("aten::div_", None),
    "Adafactor": ("aten::rsqrt_", None),
    "Adagrad": ("aten::addcmul_", None),
    "Adam": ("aten::addcdiv_", None),
    "AdamW": ("aten::addcdiv_", None),
    "Adamax": ("aten::addcdiv_", None),
    "NAdam": ("aten::addcmul_", None),
    "RAdam": ("aten::addcmul_", None),
    "RMSprop": ("aten::addcmul_", None),
    "Rprop": ("aten::clamp_", None),
    "SGD": ("aten::add_", "aten::mul_"),  # the second add_ is of the momentum
}
#: Classes that take ``fused=True``; others raise. Adagrad's was for the CPU alone for long.
#: Source: ``fused`` in torch/optim, 2.6 to 2.13.
_FUSED_ANYWHERE: Final = frozenset({"SGD", "Adam", "AdamW"})
_FUSED_ON_CPU: Final = frozenset({"Adagrad"})
_BY_FUNCTION: Final = {name.lower(): name for name in _UPDATES}
_STEP: Final = Names(r"Optimizer\.step#(\w+)\.step$")
_SINGLE: Final = re.compile(r"_single_tensor_(\w+)$")
_TOGETHER: Final = ("aten::_foreach_", "aten::_fused_")


@rule(
    "single-tensor-optimizer",
    fix="pass foreach=True to the optimizer, or fused=True to SGD, Adam, AdamW and Adagrad",
    triggers=r"Optimizer\.step#",
    parameters=Threshold(2, "1", "one parameter has nothing to be grouped with"),
)
def single_tensor_optimizer(trace: Trace, *, parameters: float) -> Matches:
    """An optimizer updates its parameters one by one, though it has a form for all at once.

    What it does
        Counts the steps of torch's optimizers (those that take ``foreach`` or ``fused``) which
        updated at least ``parameters`` (2) parameters in a loop. It tells by the operators within
        torch's annotation of the step; for classes that it does not know, such as subclasses, by
        torch's own functions where the trace has Python frames. Updates with sparse gradients do
        not count, they have no other form.

    Why it is slow
        Each parameter takes several small operators, each a launch of its own, where a few would do
        for all. On the CPU, the default is this loop.

    Example
        .. code:: python

            optimizer = torch.optim.AdamW(model.parameters(), foreach=False)

    Use instead
        .. code:: python

            optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    """
    steps = marks_named(trace, _STEP)
    steps = steps[trace.selection[steps]]
    if not len(steps):
        return NO_MATCHES
    classes, on_device = _classes(trace, steps), launched_in(trace, steps)[0] >= 0
    called = _called(trace, steps, classes)
    events, messages, fixes = [], [], []
    of_steps = zip(steps.tolist(), classes, called, on_device.tolist(), strict=True)
    for step, known, calls, device in of_steps:
        if known is None or any(name.startswith(_TOGETHER) for name in calls):
            continue
        once, off = _UPDATES[known]
        count = calls[once] - (calls[off] if off else 0)
        if count >= parameters:
            events.append(step)
            shown = _class_name(trace.names[trace.name[step]])
            messages.append(f"{shown} updates {count} parameters one by one")
            fixes.append(_together(known, on_device=device))
    return Matches(np.array(events, np.int64), messages, fix=fixes)


def _together(known: str, *, on_device: bool) -> str:
    """What to pass to an optimizer of this class so that it updates all parameters at once."""
    if known in _FUSED_ANYWHERE or (known in _FUSED_ON_CPU and not on_device):
        return "pass fused=True to the optimizer"
    if on_device:
        return "pass foreach=True to the optimizer"
    return "try foreach=True, and measure: on a CPU it gains little, and there is no fused form"


def _called(trace: Trace, steps: Ints, classes: Sequence[str | None]) -> list[Counter[str]]:
    """What each step calls directly once its loss is known, and how often."""
    name, parent, ts = trace.name, trace.parent, trace.ts
    sparse = _sparse_additions(trace) if "SGD" in classes else None
    engine = ts[engine_steps(trace)]
    called = []
    for step, stop in zip(
        steps.tolist(), ts.searchsorted(_ends(trace, steps)).tolist(), strict=True
    ):
        backward = engine.searchsorted(ts[[step, stop - 1]], "right").tolist()
        # With a closure, the updates come after its backward pass.
        begin = (
            step + 1
            if backward[0] == backward[1]
            else int(ts.searchsorted(engine[backward[1] - 1]))
        )
        mine = parent[begin:stop] == step
        if sparse is not None:
            mine[sparse[(sparse >= begin) & (sparse < stop)] - begin] = False
        called.append(Counter([trace.names[i] for i in name[begin:stop][mine].tolist()]))
    return called


@lru_cache(maxsize=1000)
def _class_name(name: str) -> str:
    found = _STEP.match(name)
    return found[1] if found else ""


def _classes(trace: Trace, steps: Ints) -> list[str | None]:
    """Torch's class of each step, None for one that is not torch's."""
    found = [_class_name(trace.names[number]) for number in trace.name[steps].tolist()]
    classes = [name if name in _UPDATES else None for name in found]
    if None not in classes or not has_frames(trace):
        return classes
    # Python frames say which function of torch ran, whatever the class is called.
    updates = rows_of(trace, *{once for once, _ in _UPDATES.values()})
    updates = updates[np.isin(trace.parent[updates], steps)]
    frames = frames_around(trace, _SINGLE, updates)
    for row, frame in zip(updates.tolist(), frames.tolist(), strict=True):
        at = int(np.searchsorted(steps, trace.parent[row]))
        if frame >= 0 and classes[at] is None:
            function = _SINGLE.search(trace.names[trace.name[frame]])
            classes[at] = _BY_FUNCTION.get(function[1] if function else "")
    return classes


def _ends(trace: Trace, rows: Ints) -> Ints:
    return trace.ts[rows] + trace.dur[rows]


def _sparse_additions(trace: Trace) -> Ints:
    """In-place additions of a sparse tensor: they call the form with an output."""
    above = trace.parent[rows_of(trace, "aten::add")]
    return above[are_any(trace, above, ("aten::add_",))]
