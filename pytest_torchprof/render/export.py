"""A trace with our numbers on its events, or as folded stacks."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

import msgspec
import numpy as np
import numpy.typing as npt

from pytest_torchprof.analysis.operators import NO_OPERATOR
from pytest_torchprof.core.errors import TraceError, keep_others, not_onto_itself, writing
from pytest_torchprof.core.files import replacing, same_file
from pytest_torchprof.render import escape
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.names import DEVICE_KINDS, HOST_KINDS, REGION, STEP, Kind
from pytest_torchprof.trace.read import (
    Layout,
    Placed,
    device_events,
    is_trace,
    lay_out,
    parse_trace,
)
from pytest_torchprof.verdict.metrics import METRICS
from pytest_torchprof.verdict.values import lacking

if TYPE_CHECKING:
    from gzip import GzipFile

    from pytest_torchprof.analysis.kernels import KernelWork
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints


# ---- Augment a trace with FLOPs, bytes and achieved rates on each kernel, and with counters.

_TFLOPS, _GBS = _RATES = "achieved TFLOP/s", "achieved GB/s"
#: Times at least this large are in nanoseconds; the reader assumes the same.
_NANOSECONDS = 2**53
_Out: TypeAlias = "IO[bytes] | GzipFile"
_KEYS = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(frozen=True)
class Augmented:
    """The number of events with new arguments, of counter samples, and warnings."""

    events: int
    counters: int
    warnings: tuple[str, ...] = ()


def write_augmented(source: Path, target: Path, work: Callable[[Events], KernelWork]) -> Augmented:
    """Write the trace in ``source`` with the work of its kernels, copies and memsets added.

    Each gets ``flops``, ``bytes``, ``achieved TFLOP/s``, ``achieved GB/s``, ``compute_pct`` and
    ``bandwidth_pct``, as far as known and not present yet. Causal attention also gets the FLOPs
    that its mask leaves, which its rate is based on; each device gets a counter track for each
    rate. All else is the source's text, byte for byte, up to the last whole event if truncated.
    The target is compressed if its name ends in ``.gz``.

    Raises:
        TraceError: the source is not a trace, the target cannot be written or is a file of another
            kind, or both are one file.
    """
    if same_file(source, target):
        raise not_onto_itself(target)
    keep_others(target, is_trace, "a trace", TraceError)
    layout = lay_out(source)
    places = device_events(layout)
    trace = parse_trace(layout.text, source=str(source))
    rows = _known(work(trace))
    placed = _paired(trace, places)
    rows = [row for row in rows if row.event in placed]
    additions = [(placed[row.event], text) for row in rows if (text := _text(trace, row, placed))]
    insertions = [(place.at + place.args.rindex(b"}"), text) for place, text in additions]
    # An augmented trace has its counters already.
    again = not additions and any(f'"name": "{name}"'.encode() in layout.text for name in _RATES)
    samples = [] if again else list(_counters(trace, rows, placed))
    if samples:
        last = layout.text.rindex(b"}", layout.start, layout.end) + 1
        insertions.append((last, "".join(f",\n  {sample}" for sample in samples).encode()))
    with writing(target), replacing(target) as file, _packed(file, target) as out:
        _splice(layout, sorted(insertions), out)
    return Augmented(len(additions), len(samples), layout.warnings)


@contextmanager
def _packed(file: IO[bytes], target: Path) -> Iterator[_Out]:
    if target.suffix != ".gz":
        yield file
        return
    # A fast level: at any level, a trace shrinks to a tenth.
    import gzip

    with gzip.GzipFile("", "wb", 4, file, mtime=0) as packed:
        yield packed


def _splice(layout: Layout, insertions: Sequence[tuple[int, bytes]], out: _Out) -> None:
    text, at = memoryview(layout.text), 0
    parts, size = list[Any](), 0
    for until, more in insertions:
        parts += [text[at:until], more]
        size += until - at
        at = until
        if size > 2**20:
            out.write(b"".join(parts))
            parts, size = [], 0
    out.write(b"".join(parts))
    out.write(text[at:])


# -------------------------------------------------------------------- which event is which


class _Row(NamedTuple):
    event: int
    flops: int
    done: int
    bytes: int
    compute_pct: float
    bandwidth_pct: float


def _known(work: KernelWork) -> list[_Row]:
    columns = (
        *(work.event, work.flops, work.done, work.bytes),
        *(work.compute_pct, work.bandwidth_pct),
    )
    known = (np.asarray(work.flops) >= 0) | (np.asarray(work.bytes) >= 0)
    rows = zip(*(np.asarray(column)[known].tolist() for column in columns), strict=True)
    return [_Row(*row) for row in rows]


def _paired(trace: Events, places: Sequence[Placed]) -> dict[int, Placed]:
    """Locate each device event of the trace in the file.

    Events of equal name and arguments, as in a replayed graph, have the same order in both.
    """
    in_file: defaultdict[tuple[str, bytes], list[Placed]] = defaultdict(list)
    for place in sorted(places, key=lambda p: (p.ts, -p.dur)):
        in_file[_name(place.name), place.args].append(place)
    in_trace: defaultdict[tuple[str, bytes], list[int]] = defaultdict(list)
    rows = np.flatnonzero(trace.is_kind(*DEVICE_KINDS))
    named = zip(trace.name[rows].tolist(), trace.args[rows].tolist(), strict=True)
    for event, (name, args) in zip(rows.tolist(), named, strict=True):
        in_trace[_name(trace.names[name]), bytes(args or b"")].append(event)
    return {
        event: place
        for key, events in in_trace.items()
        if len(events) == len(in_file[key])
        for event, place in zip(events, in_file[key], strict=True)
    }


def _name(name: str) -> str:
    """The name without a copy's direction, which the trace may know better than the file."""
    return name.partition(" ")[0] if name.startswith("Memcpy ") else name


# -------------------------------------------------------------------- what is added


def _text(trace: Events, row: _Row, placed: dict[int, Placed]) -> bytes:
    """More members for the event's ``args``; nothing if these are not an object."""
    try:
        there = _KEYS.decode(placed[row.event].args)
    except msgspec.DecodeError:
        return b""
    ns = int(trace.dur[row.event])
    values: dict[str, float | None] = {
        "flops": _or_none(row.flops),
        "flops left by the mask": _or_none(row.done) if row.done != row.flops else None,
        "bytes": _or_none(row.bytes),
        _TFLOPS: _rate(row.done, ns * 1000),
        _GBS: _rate(row.bytes, ns),
        "compute_pct": _short(row.compute_pct),
        "bandwidth_pct": _short(row.bandwidth_pct),
    }
    if trace.kind[row.event] != Kind.KERNEL:  # a copy's rate is what the trace says, or unknown
        del values["bytes"]
    more = [
        f'"{key}": {value}'
        for key, value in values.items()
        if value is not None and key not in there
    ]
    return ((", " if there else "") + ", ".join(more)).encode() if more else b""


def _or_none(amount: int) -> int | None:
    return amount if amount >= 0 else None


def _rate(amount: int, time: int) -> float | None:
    return _short(amount / time) if amount >= 0 and time > 0 else None


def _short(value: float) -> float | None:
    """Four significant digits."""
    return float(f"{value:.4g}") if math.isfinite(value) else None


def _counters(trace: Events, rows: list[_Row], placed: dict[int, Placed]) -> Iterator[str]:
    """Samples of both rates for each device: at each time, the sum over what is running."""
    devices: defaultdict[bytes, list[_Row]] = defaultdict(list)
    for row in rows:
        devices[msgspec.json.encode(placed[row.event].pid)].append(row)
    for pid, mine in devices.items():
        events = np.array([row.event for row in mine])
        in_ns = placed[mine[0].event].ts >= _NANOSECONDS
        for name, amounts in (
            (_TFLOPS, [row.done / 1000 for row in mine]),
            (_GBS, [row.bytes for row in mine]),
        ):
            for ns, value in _levels(trace.ts[events], trace.dur[events], np.array(amounts, float)):
                at = str(ns) if in_ns else _us(ns)
                yield (
                    f'{{"ph": "C", "name": "{name}", "pid": {pid.decode()}, "tid": 0, '
                    f'"ts": {at}, "args": {{"{name[9:]}": {value}}}}}'
                )


def _levels(ts: Ints, dur: Ints, amount: npt.NDArray[np.float64]) -> Iterator[tuple[int, float]]:
    """(time, sum of the rates of what runs from then on), wherever the sum changes."""
    known = (amount >= 0) & (dur > 0)
    if not amount[known].any():
        return
    rate = amount[known] / dur[known]
    times = np.concatenate([ts[known], ts[known] + dur[known]])
    at, which = np.unique(times, return_inverse=True)
    step = np.zeros(len(at))
    np.add.at(step, which, np.concatenate([rate, -rate]))
    level = np.round(np.maximum(np.cumsum(step), 0), 6)
    changes = np.diff(level, prepend=0) != 0
    yield from zip(at[changes].tolist(), level[changes].tolist(), strict=True)


def _us(ns: int) -> str:
    """Microseconds with three decimals, exactly.

    >>> _us(1_234_567), _us(-1500)
    ('1234.567', '-1.500')
    """
    sign = "-" if ns < 0 else ""
    return f"{sign}{abs(ns) // 1000}.{abs(ns) % 1000:03d}"


# ---- Folded stacks, one line per path, for flamegraph.pl, inferno and speedscope.

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
            missing.reason.text,
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
    keep_others(target, _is_folded, "a file of folded stacks", TraceError)
    lines = 0
    with writing(target), replacing(target) as file:
        for lines, line in enumerate(found, 1):  # noqa: B007 - the last counts
            # A control character would make the SVG of a flame graph malformed.
            file.write(f"{escape.line(line)}\n".encode())
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
