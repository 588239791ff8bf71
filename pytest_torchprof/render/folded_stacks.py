"""Folded stacks, one line per path, for flamegraph.pl, inferno and speedscope."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from pytest_torchprof.analysis.operator_totals import NO_OPERATOR
from pytest_torchprof.core.errors import TraceError, not_onto_itself, not_replaced, not_written
from pytest_torchprof.core.files import is_other_file, replacing, same_file, system_message
from pytest_torchprof.render import escape
from pytest_torchprof.render.reason_texts import in_words
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.kinds import DEVICE_KINDS, HOST_KINDS
from pytest_torchprof.trace.known_names import REGION, STEP
from pytest_torchprof.verdict.metrics import METRICS
from pytest_torchprof.verdict.needs import lacking

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

StackMetric = Literal["self_cpu_ms", "self_cuda_ms"]

#: Characters with a meaning in folded stacks; like torch's ``export_stacks``, write underscores.
_RESERVED = re.compile(r"[\s;]")
#: The first line of such a file, and how much of it to read.
_FOLDED, _LONGEST_LINE = re.compile(rb"\S+ \d+\r?\n?"), 2**20
_UNNAMED = "(unnamed)"


def fold(trace: Events, metric: StackMetric = "self_cpu_ms") -> Iterator[str]:
    """``frame;frame;operator 123`` for each distinct path, in whole microseconds.

    Frames are Python functions and modules if recorded, annotations, operators and runtime calls,
    by nesting. For CPU time, each host event has its self time; for device time, a kernel, copy or
    memset is the last frame, below what launched it or below ``(no operator)``. The lines add up
    to the trace's metric, to the microsecond: what rounding loses is given to the lines that were
    cut most. Lines of 0 us are left out.
    """
    paths = _Paths(trace)
    if metric == "self_cpu_ms":
        events = np.flatnonzero(trace.selection & trace.is_kind(*HOST_KINDS))
        path, ns = paths.of[events], trace.self_ns[events]
    else:
        events = np.flatnonzero(trace.selection & trace.is_kind(*DEVICE_KINDS))
        launch = trace.launch[events]
        caller = np.where(launch >= 0, trace.frames[0][launch], -1)
        above = np.where(caller >= 0, paths.of[caller], 0)
        above = np.where(above > 0, above, paths.no_operator)
        path, ns = paths.below(above, paths.frame[trace.name[events]]), trace.dur[events]
    distinct, at = np.unique(path, return_inverse=True)
    total = np.zeros(len(distinct), np.int64)
    np.add.at(total, at, ns)
    for number, us in zip(distinct.tolist(), _whole_us(total).tolist(), strict=True):
        if us:
            yield f"{paths.text(number)} {us}"


def measured_stacks(trace: Events, metric: StackMetric = "self_cpu_ms") -> Iterator[str]:
    """The lines of `fold`, from a trace that holds what they are made of.

    Raises:
        TraceError: it does not, so that no lines would look like no time.
    """
    missing = trace.once(lacking, METRICS[metric].needs)
    if missing is not None:
        other = next(one for one in get_args(StackMetric) if one != metric)
        raise TraceError(
            f"{trace.source or 'the trace'}: no stacks of {metric}",
            in_words(missing.reason),
            f"ask for {other}, or record the trace with these events",
        )
    return fold(trace, metric)


def write_stacks(trace: Events, target: Path, metric: StackMetric = "self_cpu_ms") -> int:
    """Write the folded stacks of a trace to a file, atomically; return the number of lines.

    Raises:
        TraceError: the trace lacks the metric; the file cannot be written, or is the trace itself
            or a file of another kind.
    """
    found = measured_stacks(trace, metric)
    if trace.source and same_file(Path(trace.source), target):
        raise not_onto_itself(target)
    if is_other_file(target, _is_folded):
        raise not_replaced(target, "a file of folded stacks")
    lines = 0
    try:
        with replacing(target) as file:
            for lines, line in enumerate(found, 1):  # noqa: B007 - the last counts
                # A control character would make the SVG of a flame graph malformed.
                file.write(f"{escape.line(line)}\n".encode())
    except OSError as error:
        raise not_written(target, system_message(error)) from error
    return lines


def _is_folded(path: Path) -> bool:
    with path.open("rb") as file:
        return _FOLDED.fullmatch(file.readline(_LONGEST_LINE)) is not None


class _Paths:
    """Distinct paths by number: each is another path plus a frame; 0 is the empty path.

    ``of`` is the path of each host event and Python function; ``frame`` numbers the frame text of
    each of the trace's names.
    """

    def __init__(self, trace: Events) -> None:
        known = {_safe(NO_OPERATOR): 0}
        self.frame = np.array([known.setdefault(_safe(n), len(known)) for n in trace.names], int)
        self._frames, self._above, self._last = list(known), [0], [0]
        self._prefix = 0, ""
        self.no_operator = int(self.below(np.zeros(1, int), np.zeros(1, int))[0])
        self.of = self._of_events(trace)

    def _of_events(self, trace: Events) -> Ints:
        parent, depth = trace.frames
        parent, length = parent.copy(), np.where(depth == 0, 1, -1)
        ours = trace.named(REGION)  # a frame that says nothing
        length[ours & (depth == 0)] = 0
        for level in nesting.levels(depth):
            above = parent[level]
            length[level] = length[above] + ~ours[level]
            parent[level] = np.where(ours[above], parent[above], above)
        of = np.zeros(len(trace), np.int64)
        for level in nesting.levels(length):
            named = level[~ours[level]]
            above = np.where(parent[named] >= 0, of[parent[named]], 0)
            of[named] = self.below(above, self.frame[trace.name[named]])
        return of

    def below(self, above: Ints, frame: Ints) -> Ints:
        """The paths with one more frame each; equal ones become one."""
        distinct, at = np.unique(above * len(self._frames) + frame, return_inverse=True)
        numbers = np.arange(len(self._above), len(self._above) + len(distinct))
        of_above, of_frame = np.divmod(distinct, len(self._frames))
        self._above += of_above.tolist()
        self._last += of_frame.tolist()
        return numbers[at]

    def text(self, path: int) -> str:
        """Its frames, outermost first. Siblings come in a row, so the parent's text is cached."""
        above = self._above[path]
        if self._prefix[0] != above:
            frames, at = list[str](), above
            while at:
                frames.append(self._frames[self._last[at]] + ";")
                at = self._above[at]
            self._prefix = above, "".join(reversed(frames))
        return self._prefix[1] + self._frames[self._last[path]]


def _safe(name: str) -> str:
    """A name as a frame of a folded stack.

    >>> _safe("void f<int, 4>(int); x"), _safe("ProfilerStep#12"), _safe("")
    ('void_f<int,_4>(int)__x', 'ProfilerStep', '(unnamed)')
    """
    return _RESERVED.sub("_", STEP.sub("ProfilerStep", name)) or _UNNAMED


def _whole_us(ns: Ints) -> Ints:
    """Microseconds that add up to the rounded sum: those cut most get one more.

    >>> _whole_us(np.array([1400, 1700, 900, 0])).tolist()
    [1, 2, 1, 0]
    """
    whole, rest = np.divmod(ns, 1000)
    missing = int(rest.sum() + 500) // 1000
    most = np.argsort(-rest, kind="stable")[:missing]
    whole[most] += 1
    return whole
