"""Load the traces for a command, and describe them in notes."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_torchprof.analysis import kernels as kernel_rows
from pytest_torchprof.analysis.attribution import replayed
from pytest_torchprof.analysis.kernels import UNLINKED
from pytest_torchprof.analysis.missing import cpu_time_gap, device_time_gap
from pytest_torchprof.analysis.uncounted import flops_gap
from pytest_torchprof.core.errors import BAD_USAGE, SettingsError
from pytest_torchprof.core.units import plural
from pytest_torchprof.render import escape
from pytest_torchprof.trace.names import DEVICE_KINDS, Kind
from pytest_torchprof.trace.nesting import distinct
from pytest_torchprof.trace.ranks import short_texts
from pytest_torchprof.trace.steps import chosen_steps, numbers_in_words
from pytest_torchprof.work.devices import find, read_peaks
from pytest_torchprof.work.flops import work_of

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pytest_torchprof.api import Trace
    from pytest_torchprof.core.unknown import Reason
    from pytest_torchprof.rules.rule import Rule
    from pytest_torchprof.trace.ranks import LeftOut
    from pytest_torchprof.work.devices import Device


# ---- One or several traces, or what was found in each, by rank or number.

#: A heading, or a note that differs, is of so many traces at most.
SHOWN = 8


class Body(NamedTuple):
    """What a command's question brings of one trace.

    Attributes:
        described: device and size, in words.
        selected_steps: the numbers of the steps that count; None for a whole trace.
        lines: the same notes for each trace, in the same order; empty where there is none.
        said: warnings for stderr.
        values: what the command prints, by name.
    """

    described: str
    selected_steps: list[int] | None
    lines: tuple[str, ...]
    said: tuple[str, ...]
    values: dict[str, Any]


class Part(NamedTuple):
    """The same, with the address of its trace, and what was wrong with the file."""

    path: str
    warnings: tuple[str, ...]
    body: Body

    @property
    def selected_steps(self) -> list[int] | None:
        """As in the body."""
        return self.body.selected_steps


class Parts(dict[int, Part]):
    """Parts by rank; or by number, if the traces are not the ranks of one job.

    ``apart`` says why they are not. Then each is named after its file, and nothing is summed.
    ``left_out``: files that could not be read. ``are_for_machines``: rows always have the whole
    name of their trace, and the rank. ``unread_named``: a file that the user named could not be
    read, while others were. ``is_fleet``: such files do not end the command.
    """

    apart: str = ""
    left_out: tuple[LeftOut, ...] = ()
    are_for_machines: bool = False
    unread_named: bool = False
    is_fleet: bool = False
    _names: dict[int, str] | None = None

    def status(self, status: int) -> int:
        """The exit status: that of bad input if a named file could not be read."""
        return BAD_USAGE if self.unread_named else status

    def each(self, name: str) -> dict[int, Any]:
        """One value of the body of each part."""
        return {rank: part.body.values[name] for rank, part in self.items()}

    @property
    def traces(self) -> dict[int, Trace]:
        """Those of `part_with`."""
        return self.each("trace")

    @property
    def notes(self) -> list[str]:
        """The notes on each trace: once if they agree, otherwise with the trace's name."""
        return self.some_notes(0, None)

    def some_notes(self, start: int, stop: int | None) -> list[str]:
        """The notes from one place in `Body.lines` to another."""
        return merge_lines(self, {rank: p.body.lines[start:stop] for rank, p in self.items()})

    @property
    def heading(self) -> str:
        """What was read: file, device, size; of a fleet, what could not be read, too."""
        lines = []
        for rank, part in list(self.items())[:SHOWN]:
            mark = f"rank {rank}: " if len(self) > 1 and not self.apart else ""
            name = self.value(rank) if self.apart else PurePath(part.path).name
            lines.append(escape.line(f"{mark}{name}: {part.body.described}"))
        if (more := len(self) - SHOWN) > 0:
            lines.append(f"… and {plural(more, f'more {self.column}')}")
        left_out = self.left_out if self.is_fleet else ()
        lines += [escape.line(f"not read: {file.error}") for file in left_out[:SHOWN]]
        if (more := len(left_out) - SHOWN) > 0:
            lines.append(f"… and {plural(more, 'more file')} not read")
        return "\n".join(lines)

    @property
    def unread(self) -> list[str]:
        """What a check could not look at: each file that may be a rank, in words."""
        names = short_texts([file.source for file in self.left_out])
        return [
            f"{name}: nothing was checked: not readable as a trace"
            for name, file in zip(names, self.left_out, strict=True)
            if file.maybe_rank
        ]

    @property
    def column(self) -> str:
        """The name of the column that distinguishes the traces."""
        return "trace" if self.apart else "rank"

    def value(self, rank: int) -> int | str:
        """This trace's value in that column."""
        return self.names[rank] if self.apart else rank

    @property
    def names(self) -> dict[int, str]:
        """The name of each file, with its folder where two have the same name."""
        if self._names is None or len(self._names) != len(self):
            names = short_texts([str(one.path) for one in self.values()])
            self._names = dict(zip(self, names, strict=True))
        return self._names

    def label(self, rank: int) -> str:
        """What this trace is called in a note."""
        return f"{self.value(rank)}" if self.apart else f"rank {rank}"

    def mark(self, rank: int) -> str:
        """What a note on it begins with, where there are several."""
        return f"{self.label(rank)}: " if len(self) > 1 else ""

    def marked(self, lines: Mapping[int, Iterable[str]]) -> list[str]:
        """These notes on each trace, all with such a beginning."""
        return [f"{self.mark(rank)}{line}" for rank, own in lines.items() for line in own]


def part_of(
    trace: Trace,
    /,
    lines: Sequence[str | None] = (),
    said: Sequence[str] = (),
    **values: Any,
) -> Body:
    """A part of this trace."""
    notes = tuple(line or "" for line in lines)
    return Body(described(trace), trace.selected_steps, notes, tuple(filter(None, said)), values)


def merge_lines(
    several: Parts, lines: Mapping[int, Sequence[str | None]], shown: int = SHOWN
) -> list[str]:
    """Notes on each trace: once if they agree on all traces, otherwise with the trace's name.

    ``lines``: of each trace the same notes, in the same order; empty where one has nothing to say.
    Of more traces than ``shown``, the others are counted.
    """
    notes = []
    for at in range(max(map(len, lines.values()), default=0)):
        texts = {rank: text for rank, own in lines.items() if (text := own[at])}
        if len(texts) == len(several) and len(set(texts.values())) == 1:
            notes.append(next(iter(texts.values())))
            continue
        notes += [f"{several.label(rank)}: {text}" for rank, text in list(texts.items())[:shown]]
        if (more := len(texts) - shown) > 0:
            notes.append(f"… and such a note on {plural(more, f'more {several.column}')}")
    return notes


def part_with(trace: Trace) -> Part:
    """A part that has the whole trace."""
    return Part(str(trace.path), trace.warnings, part_of(trace, trace=trace))


#: Reading a file of this size takes seconds, so stderr shows a progress bar.
BAR_FROM_BYTES = 200 * 2**20


@contextmanager
def reading_bar(size: int) -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar on a terminal, for many or large files, of ``size`` bytes together."""
    if size < BAR_FROM_BYTES or not sys.stderr.isatty():
        yield None
        return
    import tqdm

    with tqdm.tqdm(total=size, unit="B", unit_scale=True, leave=False, desc="reading") as bar:

        def progress(done: int, whole: int) -> None:
            bar.total = max(whole, done)
            bar.update(done - bar.n)

        yield progress


def extra_chips(options: Namespace) -> tuple[Device, ...]:
    """The chips of ``--device-peaks``."""
    return read_peaks(Path(options.device_peaks)) if options.device_peaks else ()


def described(trace: Trace) -> str:
    """Device and size of a trace, in words."""
    line = f"{_devices(trace)}; {plural(len(trace.events), 'event')}"
    steps = steps_in_words(trace)
    return f"{line}; {steps}" if steps else line


def steps_in_words(trace: Trace) -> str:
    """Which steps are selected; empty for a whole trace."""
    if (chosen := chosen_steps(trace.events)) is None:
        return ""
    steps, numbers = chosen
    which = f"step{'s' * (len(numbers) > 1)} {numbers_in_words(numbers)}"
    return f"only {which} of {numbers_in_words(steps.number)} ({steps.name})"


def _devices(trace: Trace) -> str:
    """The devices of the machine, and which of them were used.

    ROCm numbers events and devices differently, so only the number of used devices is known.
    """
    names = [str(p.get("name") or "unnamed device") for p in trace.devices]
    if not names:
        return "no device named"
    there = ", ".join(f"{n} × {names.count(n)}" if names.count(n) > 1 else n
                      for n in dict.fromkeys(names))  # fmt: skip
    used = used_devices(trace)
    if not used:
        return f"{there} there, none used"
    if len(names) == 1:
        return there
    amd = any(key.startswith(("hip_", "roctracer_")) for key in trace.events.metadata)
    which = "" if amd else f" (device {', '.join(map(str, sorted(used)))})"
    return f"{there} there, {len(used)} used{which}"


def notes_of(ranks: Parts, *lines: Callable[[Trace], str | None]) -> list[str]:
    """Notes on each trace: once if they agree on all traces, otherwise with the trace's name."""
    each = {rank: [line(trace) for line in lines] for rank, trace in ranks.traces.items()}
    return merge_lines(ranks, each)


def used_devices(trace: Trace) -> set[int]:
    """Numbers of the devices that something ran on."""
    events = trace.events
    return {int(n) for n in distinct(events.device[events.device_rows]) if n >= 0}


def unlinked_note(trace: Trace) -> str:
    """A note on device events without a runtime call; empty if there are none."""
    count = trace.unlinked
    if not count:
        return ""
    every = int((trace.events.selection & trace.events.is_kind(*DEVICE_KINDS)).sum())
    return f"{count} of {plural(every, 'device event')} have no runtime call: operator {UNLINKED}"


def only(ranks: Parts) -> Trace:
    """The one trace that a command can work on.

    Raises:
        SettingsError: there are several.
    """
    if len(ranks) > 1:
        raise SettingsError(
            "this needs a single trace, not several", ranks_in_words(ranks), "give --rank N"
        )
    return next(iter(ranks.traces.values()))


def no_flops(trace: Trace) -> str:
    """A note on why there is no sum of FLOPs; empty if there is one."""
    gap = flops_gap(trace.events)
    return f"no FLOPs total: {gap.text}" if gap else ""


def device_time_note(trace: Trace) -> str:
    """A note on what device times lack; empty if they are whole."""
    return _note_on("device times", trace.events.once(device_time_gap))


def cpu_time_note(trace: Trace) -> str:
    """A note on what CPU times lack; empty if they are whole."""
    return _note_on("CPU times", trace.events.once(cpu_time_gap))


def _note_on(what: str, gap: Reason | None) -> str:
    return f"{what} are of a part: {gap.text}" if gap else ""


def uncounted_note(trace: Trace) -> str:
    """A note on kernels that a graph launched, whose FLOPs are unknown; empty if there are none."""
    count = replayed(trace.events)
    if not count:
        return ""
    every = int((trace.events.selection & trace.events.is_kind(Kind.KERNEL)).sum())
    kernels = f"{count} of {plural(every, 'kernel')}"
    return f"{kernels} were replayed from a graph: their FLOPs are not included"


def masked_note(trace: Trace) -> str:
    """A note on causal attention, whose rates exclude masked FLOPs; empty if there is none."""
    less, unknown, mask_unknown = kernel_rows.masked_kernels(trace.events)
    texts = [
        f"{what.format(plural(count, 'kernel'))}"
        for count, what in (
            (less, "TFLOP/s and % of {} count only what a causal mask keeps"),
            (unknown, "the trace does not say how much the mask of {} keeps"),
            (
                mask_unknown,
                "without arguments, {} of attention may be causal, and TFLOP/s and % too high",
            ),
        )
        if count
    ]
    return "; ".join(texts) + "; flops counts all pairs, as FlopCounterMode does" if texts else ""


def call_counts(trace: Trace) -> tuple[int, ...]:
    """Calls of operators, annotations, and runtime calls; operators that were not dispatched."""
    events = trace.events
    operators, annotations, runtime = (
        events.selection & events.is_kind(kind) for kind in (Kind.OP, Kind.ANNOTATION, Kind.RUNTIME)
    )
    others = operators & events.names_where(lambda name: work_of(name) == "around")
    return tuple(int(found.sum()) for found in (operators, annotations, runtime, others))


def calls_in_words(each: Sequence[tuple[int, ...]]) -> str:
    """A note on how many calls are operators: annotations and runtime calls have rows too."""
    names = ("operators", "annotations", "runtime calls", "others")
    counts = dict(zip(names, map(sum, zip(*each, strict=True)), strict=True)) if each else {}
    others = counts.pop("others", 0)
    parts = [f"{count:,} of {name}" for name, count in counts.items() if count]
    less = f"; {others:,} of them are autograd nodes, TorchScript functions and the like"
    more = f" (the metric dispatches{less if others else ''})" if counts.get("operators") else ""
    return f"calls: {parts[0]}{more}{''.join(f', {part}' for part in parts[1:])}" if parts else ""


def peaks_used(trace: Trace, chips: Sequence[Device]) -> str:
    """A note on the peaks behind the percentages, or why there are none."""
    if not trace.events.is_kind(*DEVICE_KINDS).any():
        return "no device events in this trace"
    if not trace.devices:
        return "the trace does not name its device, so there is no % of peak"
    mine, found = _found_devices(trace, chips)
    if not found:
        name = mine[0].get("name") or "a device without a name"
        return f"no peaks are known for {name}: --device-peaks FILE adds a chip"
    return f"% of the peaks of {', '.join(found)}"


def unused_chips(trace: Trace, chips: Sequence[Device]) -> str:
    """A warning if no chip of ``--device-peaks`` is in this trace; otherwise empty."""
    if not chips or not trace.devices or not trace.events.is_kind(*DEVICE_KINDS).any():
        return ""
    mine, found = _found_devices(trace, chips)
    if any(device in chips for device in found.values()):
        return ""
    named = ", ".join(dict.fromkeys(str(p.get("name") or "unnamed") for p in mine))
    return f"--device-peaks: none of its devices matches this trace ({named})"


def _found_devices(
    trace: Trace, chips: Sequence[Device]
) -> tuple[list[dict[str, Any]], dict[str, Device]]:
    """The devices that were used, as the trace lists them, and what is known of them, by name."""
    used = used_devices(trace)
    mine = [p for p in trace.devices if p.get("id") in used] or trace.devices
    return mine, {device.name: device for p in mine if (device := find(p, chips))}


def ungrouped(trace: Trace, by: str) -> str:
    """A note if the trace did not record what the grouping needs; otherwise empty."""
    fields = {"shape": ("shapes", "record_shapes"), "stack": ("stack", "with_stack")}
    fields["module"] = ("module", "with_stack")
    if by not in fields:
        return ""
    field, option = fields[by]
    if any(getattr(row, field) is not None for row in trace.ops(by)):  # type: ignore[arg-type]
        return ""
    return f"recorded without {field}s ({option}=True records them)".replace("shapess", "shapes")


def ranks_in_words(ranks: Parts) -> str:
    """The ranks, in words."""
    if ranks.apart:
        return f"{', '.join(map(ranks.label, ranks))} (numbers {', '.join(map(str, ranks))})"
    return "rank" + ("s " if len(ranks) > 1 else " ") + ", ".join(map(str, ranks))


def warn(message: str) -> None:
    """Print a warning in one line on stderr."""
    escape.say(f"warning: {message}")


def rule_book() -> Mapping[str, Rule]:
    """All rules: built-in ones and those of installed packages."""
    from pytest_torchprof.rules.registry import gather  # other tables need no rules

    book = gather()
    for error in book.errors:
        warn(error)
    return book.rules
