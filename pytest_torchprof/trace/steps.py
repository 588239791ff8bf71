"""The steps of a trace, and traces that hold only a part of another's events."""

from __future__ import annotations

import re
from collections import Counter
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from pytest_torchprof.core.errors import SettingsError
from pytest_torchprof.core.process import late
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.core.scopes import is_of_name
from pytest_torchprof.core.values import ALL_STEPS, StepRange
from pytest_torchprof.trace import names as known_names
from pytest_torchprof.trace import nesting as intervals
from pytest_torchprof.trace.names import (
    HOST_KINDS,
    MODULE,
    MODULE_MARK,
    REGION,
    REGION_MARK,
    STEP,
    Kind,
    Names,
    laps_of,
    marks_named,
    once_of_whole,
    once_per_trace,
    region_name,
    within_laps,
)
from pytest_torchprof.trace.nesting import distinct

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints


# ---- The steps of a trace: which annotations are its steps, and which step each event belongs
# to.
#
# The first of these that the trace has, in its measured region:
#
# 1. the annotations of a given name or glob (``--step-name``);
# 2. torch's own, ``ProfilerStep#7``, which `torch.profiler.profile.step` makes;
# 3. those of known trainers and servers, see `_KNOWN`;
# 4. the user's ``record_function`` that repeats. Names that differ only in numbers are one. Those
#    count that cover more than half of the time; of those that cover at least 90 % of what the
#    widest one covers, it is the one that repeats most: of an epoch with steps, the steps.
#
# A step is open from the start to the end of its annotation. An event belongs to the step that is
# open when it starts, in any thread; device work to the step whose launch made it.

_TORCH: Final = Names(r"ProfilerStep\*?#\d+$")
#: Steps of PyTorch Lightning, fairseq, vLLM and SGLang. Sources: lightning/pytorch/loops/
#: training_epoch_loop.py, fairseq_cli/train.py, and traces of both servers.
_KNOWN: Final = (
    Names(r"\[pl\]\[profile\]run_training_batch$"),
    Names(r"train_step-\d+$"),
    Names(r"execute_\w*context_.*generation_"),
    Names(r"step\[\w+ "),
)
#: Annotations of torch and its libraries, and our own: no step of the user.
_NO_STEP: Final = late(
    r"torchprof::|Optimizer\.|enumerate\(DataLoader\)#|DistributedDataParallel\.|FullyShardedData"
    r"|FSDP::|nccl:|gloo:|mpi:|ucc:|c10d::|record_param_comms|\[pl\]\[module\]|TorchDynamo"
    r"|Torch-Compiled Region|(## )?Call CompiledFx|CompiledF|AOTDispatcher|Pregraph bytecode"
)
_NUMBER: Final = re.compile(r"\d+")
#: Longer numbers are hashes.
_DIGITS: Final = 18
#: How near to the widest annotation's time that of another one must be.
_NEAR: Final = 0.9
_SHOWN: Final = 5


class Steps(Frozen, frozen=True):
    """The steps of a trace, in time order: what they are called, annotations, numbers, times in ns.

    They do not overlap. Numbers are those of their names, where these have some that count up;
    otherwise steps are counted from 0. ``guessed``: only that they repeat says that they are steps,
    which may be parts of steps, such as forward passes.
    """

    name: str
    event: Ints
    number: Ints
    begin: Ints
    end: Ints
    guessed: bool

    def __len__(self) -> int:
        return len(self.event)

    def within(self, chosen: StepRange) -> Bools:
        """Which of the steps have such numbers."""
        found = np.ones(len(self), bool)
        if chosen.first is not None:
            found &= self.number >= chosen.first
        if chosen.stop is not None:
            found &= self.number < chosen.stop
        return found


@once_of_whole
def steps_of(trace: Events, name: str = "") -> Steps:
    """The steps of the whole trace; ``name`` is the name or glob of their annotations."""
    title, rows, guessed = _marks(trace, name)
    rows = rows[trace.in_region[rows] & (trace.dur[rows] > 0)]
    begin, end = trace.ts[rows], trace.ts[rows] + trace.dur[rows]
    outer = intervals.covered(np.zeros(len(rows), np.int64), begin, end).outer
    rows, begin, end = rows[outer], begin[outer], end[outer]
    names = [region_name(trace.names[number]) for number in trace.name[rows].tolist()]
    return Steps(title, rows, np.array(_numbers(names), np.int64), begin, end, guessed)


@once_of_whole
def step_of(trace: Events, name: str = "") -> Ints:
    """For each event the index of its step, see `Steps`; -1 for none."""
    steps = steps_of(trace, name)
    if not len(steps):
        return np.full(len(trace), -1, np.int64)
    # Also where ends are rounded up, an event is in one step only: the last that has begun.
    at = np.searchsorted(steps.begin, trace.ts, side="right") - 1
    step = np.where((trace.ts < steps.end[at]) & trace.in_region, at, -1)
    if len(device := trace.device_rows):
        launch = trace.launch[device]
        step[device] = np.where(launch >= 0, step[launch], step[device])
    return step


def within_steps(trace: Events, name: str, chosen: StepRange) -> Bools:
    """The events of these steps."""
    step = step_of(trace, name)
    if chosen == ALL_STEPS:
        return step >= 0
    inside = np.append(steps_of(trace, name).within(chosen), False)  # the last is of no step
    found: Bools = inside[step]
    return found


def at_steps(trace: Events, chosen: StepRange, name: str = "") -> Events:
    """The same trace, counting only these steps.

    Raises:
        SettingsError: the trace has no steps, or none with such a number.
    """
    steps = known_steps(trace, name)
    if not steps.within(chosen).any():
        raise _absent(trace, steps, chosen)
    return trace.whole.part(("step", name, chosen))


def chosen_steps(trace: Events) -> tuple[Steps, Ints] | None:
    """All steps, and the numbers of the selected ones; None unless steps were selected."""
    if trace.scope is None or not isinstance(trace.scope[2], StepRange):
        return None
    steps = steps_of(trace, trace.scope[1])
    return steps, steps.number[steps.within(trace.scope[2])]


def step_name_of(trace: Events) -> str:
    """The name of annotations by which steps were selected; empty for the default, or none."""
    return trace.scope[1] if chosen_steps(trace) is not None and trace.scope is not None else ""


def known_steps(trace: Events, name: str = "") -> Steps:
    """The steps of a trace that must have some.

    Raises:
        SettingsError: it has none.
    """
    steps = steps_of(trace, name)
    if not len(steps):
        raise _none(trace, name)
    return steps


def numbers_in_words(numbers: Ints) -> str:
    """Numbers of steps, where those in a row are a range.

    >>> numbers_in_words(np.array([3, 4, 5, 7])), numbers_in_words(np.array([2]))
    ('3 to 5, 7', '2')
    """
    runs = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
    texts = [f"{run[0]} to {run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]
    more = f" and {len(texts) - _SHOWN} more ranges" if len(texts) > _SHOWN else ""
    return ", ".join(texts[:_SHOWN]) + more


# -------------------------------------------------------------------- which annotations


def _marks(trace: Events, name: str) -> tuple[str, Ints, bool]:
    """What the steps are called, the annotations in time order, and whether that is a guess."""
    if name:
        named = trace.names_where(
            lambda one: is_of_name(name, region_name(one)) or name == _family(one)
        )
        rows = (named & trace.is_kind(Kind.ANNOTATION)).nonzero()[0]
        rows = rows if len(rows) else (named & trace.is_kind(Kind.OP)).nonzero()[0]
        return name, rows, False
    for known in (_TORCH, *_KNOWN):
        if len(rows := marks_named(trace, known)):
            title = (
                known_names.ALL_STEPS
                if known is _TORCH
                else _family(trace.names[trace.name[rows[0]]])
            )
            return title, rows, False
    return *_repeating(trace), True


def _family(name: str) -> str:
    """The name without its numbers.

    >>> _family("ProfilerStep#7"), _family("torchprof::region:epoch 2, batch 11")
    ('ProfilerStep#*', 'epoch *, batch *')
    """
    return _NUMBER.sub("*", region_name(name))


def _repeating(trace: Events) -> tuple[str, Ints]:
    """The user's annotations that repeat most and cover most of the time."""
    rows, family, titles = _candidates(trace, _NO_STEP)
    host = (trace.in_region & trace.is_kind(*HOST_KINDS)).nonzero()[0]
    if not len(rows):
        return "", rows
    cover = intervals.covered(family, trace.ts[rows], trace.ts[rows] + trace.dur[rows])
    count = np.bincount(family[cover.outer], minlength=len(titles))[cover.group]
    span = int((trace.ts[host] + trace.dur[host]).max() - trace.ts[host].min())
    good = (count > 1) & (2 * cover.busy_ns > span)
    if not good.any():
        return "", rows[:0]
    good &= cover.busy_ns >= _NEAR * cover.busy_ns[good].max()
    best = np.lexsort((-cover.busy_ns, -count, ~good))[0]
    return titles[cover.group[best]], rows[family == cover.group[best]]


def _candidates(trace: Events, no_step: re.Pattern[str]) -> tuple[Ints, Ints, list[str]]:
    """Annotations, the number of each one's name without numbers, and these names."""
    annotated = trace.is_kind(Kind.ANNOTATION) & trace.in_region & (trace.dur > 0)
    rows = annotated.nonzero()[0]
    titles: dict[str, int] = {}
    family = np.full(len(trace.names), -1, np.int64)
    for number in distinct(trace.name[rows]).tolist():
        name = trace.names[number]
        if name.startswith(REGION_MARK) or not no_step.match(name):
            family[number] = titles.setdefault(_family(name), len(titles))
    rows = rows[family[trace.name[rows]] >= 0]
    return rows, family[trace.name[rows]], list(titles)


def _numbers(names: list[str]) -> list[int]:
    """The first numbers in the names that count up, or those of `ProfilerStep`; else from 0.

    >>> _numbers(["epoch 1 batch 4", "epoch 1 batch 5"]), _numbers(["step", "step"])
    ([4, 5], [0, 1])
    """
    found = [_NUMBER.findall(name) for name in names]
    torchs = all(map(STEP.match, names))
    if len(set(map(len, found))) == 1 and (len(names) > 1 or len(found[0]) == 1):
        for column in zip(*found, strict=True):
            if max(map(len, column)) > _DIGITS:
                continue
            values = list(map(int, column))
            if torchs or all(a < b for a, b in pairwise(values)):
                return values
    return list(range(len(names)))


# -------------------------------------------------------------------- errors


def _absent(trace: Events, steps: Steps, chosen: StepRange) -> SettingsError:
    there = f"its steps ({steps.name}) are {numbers_in_words(steps.number)}"
    what, mend = f"step {chosen}", "choose one of them"
    if not chosen.is_one:
        since = "" if chosen.first is None else f" from {chosen.first}"
        until = "" if chosen.stop is None else f"{' to' * bool(since)} before {chosen.stop}"
        what, mend = f"step{since}{until}", "choose some of them"
    return SettingsError(f"{_file_of(trace)}: there is no {what}", there, mend)


def _file_of(trace: Events) -> str:
    return trace.source or "the trace"


def _none(trace: Events, name: str) -> SettingsError:
    rows, family, titles = _candidates(trace.whole, late(re.escape(REGION)))
    counts = Counter(dict(enumerate(np.bincount(family, minlength=len(titles)).tolist())))
    shown = [f"{titles[number]} ×{count}" for number, count in counts.most_common(_SHOWN)]
    there = f"its annotations are {', '.join(shown)}" if shown else "it has no annotations"
    if name:
        first = f"{_file_of(trace)}: no annotation is called {name}"
        return SettingsError(first, there, "give another --step-name" if len(rows) else _MEND)
    first = f"{_file_of(trace)}: no steps"
    return SettingsError(
        first,
        f"no ProfilerStep, and no annotation repeats over most of the time; {there}",
        "name one with --step-name" if len(rows) else _MEND,
    )


_MEND: Final = "call the profiler's step() after each step, or record_function around it"


# ---- Which events a part of a trace holds, see `Events.within`.

#: How a part is selected, by what name or glob, and which of several: of a region, one lap or all
#: (None); of steps, their numbers.
Scope: TypeAlias = tuple[str, str, int | StepRange | None]


def selected_by(trace: Events, how: str, what: str, which: int | StepRange | None) -> Bools:
    """The events of the measured region that such a `Scope` selects."""
    if how == "kernel":
        return _on_device(trace, what) & trace.in_region
    if isinstance(which, StepRange):
        return within_steps(trace, what, which)
    if how == "region":
        laps = laps_of(trace.whole, what)
        return within_laps(trace, laps if which is None else laps[which : which + 1])
    below = intervals.with_nested(*_roots(trace, how, what))
    device = trace.device_rows
    launch = trace.launch[device]
    below[device] = (launch >= 0) & below[launch]
    return below & trace.in_region


def selects_by_time(trace: Events) -> bool:
    """Whether all that ran at some time is selected, on the host; not what some events enclose."""
    return trace.scope is None or trace.scope[0] in {"region", "step"}


@once_per_trace
def holds_whole_operators(part: Events) -> bool:
    """Whether it is a part of a trace that holds each operator with all that is nested, or nothing.

    What counts in the whole then counts in the part. False for a whole.
    """
    if part.scope is None:
        return False
    inside, parent = part.selection, part.parent
    cut = (parent >= 0) & (inside != inside[parent])
    at = intervals.distinct(parent[cut])
    if not len(at):
        return True
    ours = part.names_where(lambda name: name == REGION or name.startswith(REGION_MARK))
    while len(at):
        if not ours[at].all():
            return False
        at = intervals.distinct(parent[at])
        at = at[at >= 0]
    return True


def _on_device(trace: Events, what: str) -> Bools:
    """Kernels, copies and memsets of this name or glob."""
    found = np.zeros(len(trace), bool)
    found[trace.device_rows] = True
    return found & trace.names_where(partial(is_of_name, what))


def _roots(trace: Events, how: str, what: str) -> tuple[Bools, Ints, Ints]:
    """The events whose nested events a scope selects, and the (parent, depth) of nesting."""
    if how == "op":
        named = trace.names_where(partial(is_of_name, what))
        return named & trace.is_kind(Kind.OP, Kind.ANNOTATION), trace.parent, trace.depth
    roots = trace.is_kind(Kind.PYTHON) & trace.names_where(
        lambda name: (found := MODULE.match(name)) and is_of_name(what, found[1])
    )
    marks = trace.names_where(
        lambda name: (
            name.startswith(MODULE_MARK) and is_of_name(what, name.removeprefix(MODULE_MARK))
        )
    )
    return roots | marks, *trace.frames
