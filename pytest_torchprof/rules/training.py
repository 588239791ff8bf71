"""Rules about training loops: loaders and optimizers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.rules.levels import engine_steps, frames_around
from pytest_torchprof.rules.names import (
    Names,
    marks_named,
    operators_named,
    operators_of,
)
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, Threshold, rule
from pytest_torchprof.rules.tree import has_frames, rows_of, within

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_torchprof.events import Trace
    from pytest_torchprof.nesting import Ints

#: torch's annotation around each fetch of a DataLoader without workers.
#: Source: torch/utils/data/dataloader.py, ``_BaseDataLoaderIter._profile_name``.
_SYNC_FETCH = r"enumerate\(DataLoader\)#_SingleProcessDataLoaderIter\.__next__"

_FETCH: Final = Names(_SYNC_FETCH + "$")


@rule(
    "sync-dataloader",
    fix="give the DataLoader num_workers=N (and persistent_workers=True for several epochs)",
    triggers=_SYNC_FETCH,
)
def sync_dataloader(trace: Trace) -> Matches:
    """Batches are loaded in the process that trains, while the device waits.

    What it does
        Counts the fetches of a ``DataLoader`` that has no workers, the one that finds the loader
        exhausted included. A loader that reads from another one is one loader.

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
    rows = marks_named(trace, _FETCH)
    rows = rows[trace.selection[rows]]
    rows = rows[~within(trace, rows, lambda events: np.isin(events, rows))]
    return Matches(rows, "a DataLoader without workers loads in this process")


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
_BY_FUNCTION: Final = {name.lower(): name for name in _UPDATES}
_STEP: Final = Names(r"Optimizer\.step#(\w+)\.step$")
_SINGLE: Final = re.compile(r"_single_tensor_(\w+)$")
_TOGETHER: Final = Names(r"aten::_(foreach|fused)_")


@rule(
    "single-tensor-optimizer",
    fix="pass fused=True, or foreach=True, to the optimizer",
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
    classes = _classes(trace, steps)
    begin = _loss_end(trace, steps)
    together = _in_steps(trace, steps, begin, operators_named(trace, _TOGETHER))
    wanted = {name for known in set(classes) if known for name in _UPDATES[known] if name}
    calls = {name: _calls(trace, steps, begin, name) for name in wanted}
    events, messages = [], []
    for at, known in enumerate(classes):
        if known is None or together[at]:
            continue
        once, off = _UPDATES[known]
        count = calls[once][at] - (calls[off][at] if off else 0)
        if count >= parameters:
            shown = _STEP.match(trace.names[trace.name[steps[at]]])
            events.append(int(steps[at]))
            messages.append(f"{shown and shown[1]} updates {count} parameters one by one")
    return Matches(np.array(events, np.int64), messages)


def _calls(trace: Trace, steps: Ints, begin: Ints, name: str) -> list[int]:
    """How often each step calls an operator, additions of sparse tensors left out."""
    rows = operators_of(trace, name)
    if name == "aten::add_":
        rows = rows[~_is_sparse(trace, rows)]
    return _in_steps(trace, steps, begin, rows)


def _in_steps(trace: Trace, steps: Ints, begin: Ints, rows: Ints) -> list[int]:
    """How many of these events are directly in each step, from some time on."""
    if not len(rows):
        return [0] * len(steps)
    above = trace.parent[rows]
    step = np.minimum(np.searchsorted(steps, above), len(steps) - 1)
    mine = (steps[step] == above) & (trace.ts[rows] >= begin[step])
    return np.bincount(step[mine], minlength=len(steps)).tolist()  # type: ignore[no-any-return]


def _classes(trace: Trace, steps: Ints) -> list[str | None]:
    """Torch's class of each step, None for one that is not torch's."""
    names = [trace.names[number] for number in trace.name[steps].tolist()]
    found = [match[1] if (match := _STEP.match(name)) else "" for name in names]
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


def _loss_end(trace: Trace, steps: Ints) -> Ints:
    """When the updates of each step begin: after its closure's backward pass, if it has one."""
    engine = engine_steps(trace)
    start, end = trace.ts[steps], trace.ts[steps] + trace.dur[steps]
    if not len(engine):
        return start
    last = engine[np.maximum(np.searchsorted(trace.ts[engine], end) - 1, 0)]
    return np.where(trace.ts[last] < end, np.maximum(trace.ts[last], start), start)


def _is_sparse(trace: Trace, rows: Ints) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which in-place additions are of a sparse tensor: they call the form with an output."""
    inner = rows_of(trace, "aten::add")
    return np.isin(rows, trace.parent[inner])
