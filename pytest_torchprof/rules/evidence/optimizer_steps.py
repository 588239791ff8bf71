"""Steps of optimizers: whose they are, and what they call."""

from __future__ import annotations

from functools import lru_cache
from itertools import compress
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from pytest_torchprof.core.lazy_regex import late
from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.trace.levels import engine_steps_between, frames_around
from pytest_torchprof.trace.name_index import (
    Names,
    are_named,
    marks_named,
    operators_named,
    selected_operators,
)
from pytest_torchprof.trace.same_calls import once_nested
from pytest_torchprof.trace.tree import has_frames, marked

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

#: By torch's class: the operator that its loop over single parameters runs once for each, and one
#: whose calls are to be subtracted; for classes with a foreach or a fused form.
#: Source: the functions ``_single_tensor_…`` in torch/optim, 1.8 to 2.13.
UPDATES: Final[Mapping[str, tuple[str, str | None]]] = {
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
#: torch's other classes, which have no form for all parameters at once.
_NO_FORM: Final = frozenset({"LBFGS", "Muon", "SparseAdam"})
#: What such a loop does to each parameter, for classes that have another name in the trace: those
#: that users derive from torch's. Each begins with torch's own count of steps, or has two of its
#: operators that hand-written ones lack. Source: as above, 2.6 to 2.13.
_LOOPS: Final = {
    name: late(pattern)
    for name, pattern in {
        "Adam": r"add_ (mul_ |add )?lerp_ mul_ addcmul_ (div )?(maximum )?sqrt div add_ addcdiv_ ",
        "Adagrad": r"add_ (add )?addcmul_ sqrt add_ addcdiv_ ",
        "RMSprop": r"add_ (add )?mul_ addcmul_ (sqrt|lerp_ addcmul sqrt_) add_ "
        r"(addcdiv_|mul_ addcdiv_ add_) ",
        "NAdam": r"add_ (add )?(mul_ ){1,2}lerp_ mul_ addcmul_ div sqrt add_ addcdiv_ addcdiv_ ",
        "RAdam": r"add_ (mul_ |add )?lerp_ mul_ addcmul_ div mul add_ |"
        r"add_ (mul_ |add )?lerp_ mul_ addcmul_ div (sqrt add_ )?\w+ mul mul mul add_ ",
        "Adamax": r"add_ (add )?lerp_ mul_ abs add_ maximum addcdiv_ ",
        "Adadelta": r"add_ (add )?mul_ addcmul_ add sqrt_ add sqrt_ div_ mul_ mul_ addcmul_ add_ ",
    }.items()
}
#: What may come between them, with some options or in some versions.
_BETWEEN: Final = frozenset({"aten::item", "aten::neg", "aten::_local_scalar_dense"})
_NONE: Final = np.zeros(0, np.int64)

_BY_FUNCTION: Final = {name.lower(): name for name in UPDATES}
STEP: Final = Names(r"Optimizer\.step#(\w+)\.step$")
_SINGLE: Final = late(r"_single_tensor_(\w+)$")
_TOGETHER: Final = late(r"aten::_(foreach|fused)_")


class OptimizerStep(Frozen, frozen=True):
    """An optimizer's step: its event and class, torch's class according to its calls, the operators
    that it calls directly once its loss is known, and their names; and how long it takes from then
    on.
    """

    event: int
    name: str
    known: str | None
    rows: Ints
    calls: tuple[str, ...]
    took_ns: int

    @property
    def own(self) -> bool:
        """Whether its loop, if it has any, is not torch's."""
        return self.known is None and self.name not in _NO_FORM

    def loop(self) -> Loop:
        """What these calls say of its loop."""
        return _loop(self.name, self.known, self.calls)


class Loop(NamedTuple):
    """Of a step: whether it already uses a form for all parameters at once; how many parameters a
    class of torch's updates one by one; and which of its calls such a loop runs once for each.
    """

    together: bool
    updated: int
    updates: Ints


@lru_cache(maxsize=100)
def _loop(name: str, known: str | None, calls: tuple[str, ...]) -> Loop:
    """Cached, because the steps of a test call the same."""
    together = any(map(_TOGETHER.match, set(calls)))
    if known is None:
        return Loop(together, 0, _NONE)
    once, off = UPDATES[known]
    updates = np.array([at for at, call in enumerate(calls) if call == once], np.int64)
    updated = len(updates) - (calls.count(off) if off else 0)
    if name != known and known in _LOOPS:
        updated = len(_LOOPS[known].findall(_text(calls))) or updated
    return Loop(together, updated, updates)


def optimizer_steps(trace: Events) -> list[OptimizerStep]:
    """The selected steps of optimizers."""
    return trace.once(_steps)


def _steps(trace: Events) -> list[OptimizerStep]:
    events, named = once_nested(trace, _marked)
    if not len(events):
        return []
    if not (chosen := trace.selection[events]).all():
        named = [*compress(named, chosen)]
        events = events[chosen]
    rows, calls, took = _called(trace, events, sparse="SGD" in named)
    found = [
        name if name in UPDATES else None if name in _NO_FORM else _by_loop(names)
        for name, names in zip(named, calls, strict=True)
    ]
    if None in found and has_frames(trace):
        _by_frames(trace, events, found)
    return [*map(OptimizerStep, events.tolist(), named, found, rows, calls, took)]


def _marked(trace: Events) -> tuple[Ints, list[str]]:
    """All annotations of steps, and the classes in their names."""
    events = marks_named(trace, STEP)
    return events, [_class_name(trace.names[number]) for number in trace.name[events].tolist()]


def _by_loop(calls: Sequence[str]) -> str | None:
    """The class of torch with such a loop; cached by the text, of which there are few."""
    text = _text(calls)
    return next((name for name, loop in _LOOPS.items() if loop.search(text)), None)


def _text(calls: Sequence[str]) -> str:
    return "".join(f"{name.removeprefix('aten::')} " for name in calls if name not in _BETWEEN)


def _by_frames(trace: Events, events: Ints, found: list[str | None]) -> None:
    """By the functions of torch that ran according to Python frames, for any class name."""
    updates = selected_operators(trace, *{once for once, _ in UPDATES.values()})
    updates = updates[marked(trace, events)[trace.parent[updates]]]
    frames = frames_around(trace, _SINGLE, updates)
    for row, frame in zip(updates.tolist(), frames.tolist(), strict=True):
        at = int(np.searchsorted(events, trace.parent[row]))
        if frame >= 0 and found[at] is None:
            function = _SINGLE.search(trace.names[trace.name[frame]])
            found[at] = _BY_FUNCTION.get(function[1] if function else "")


def _called(
    trace: Events, events: Ints, *, sparse: bool
) -> tuple[list[Ints], list[tuple[str, ...]], list[int]]:
    """What each step calls directly once its loss is known, with names, and how long it takes from
    then on.
    """
    ts = trace.ts
    ends = ts[events] + trace.dur[events]
    stops = ts.searchsorted(ends).tolist()
    called: list[Ints] = []
    names: list[tuple[str, ...]] = []
    took: list[int] = []
    for step, stop, end in zip(events.tolist(), stops, ends.tolist(), strict=True):
        rows, calls, since = once_nested(trace, _called_between, step, stop, sparse)
        called.append(rows)
        names.append(calls)
        took.append(end - int(ts[since]))
    return called, names, took


def _called_between(
    trace: Events, step: int, stop: int, sparse: bool
) -> tuple[Ints, tuple[str, ...], int]:
    """What a step calls up to an event, with names; and since which event its loss is known."""
    # With a closure, the updates follow its backward pass.
    ran = engine_steps_between(trace, step, stop)
    since, begin = (int(ran[-1]), int(ran[-1])) if len(ran) else (step, step + 1)
    mine = trace.parent[begin:stop] == step
    if sparse:
        left_out = once_nested(trace, _sparse_additions)
        mine[left_out[(left_out >= begin) & (left_out < stop)] - begin] = False
    rows = mine.nonzero()[0]
    rows += begin
    rows.flags.writeable = False
    return rows, tuple(map(trace.names.__getitem__, trace.name[rows].tolist())), since


@lru_cache(maxsize=1000)
def _class_name(name: str) -> str:
    found = STEP.match(name)
    return found[1] if found else ""


def _sparse_additions(trace: Events) -> Ints:
    """In-place additions of a sparse tensor: they call the form with an output."""
    above = trace.parent[operators_named(trace, "aten::add")]
    return above[are_named(trace, above, "aten::add_")]
