"""Which traces a command is about, and what there is to say of them."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_torchprof import api
from pytest_torchprof.analysis import roofline
from pytest_torchprof.analysis.attribution import replayed
from pytest_torchprof.analysis.roofline import UNLINKED
from pytest_torchprof.analysis.uncounted import flops_gap
from pytest_torchprof.api import Trace
from pytest_torchprof.devices import find, read_peaks
from pytest_torchprof.errors import SettingsError
from pytest_torchprof.events import DEVICE_KINDS, Kind
from pytest_torchprof.render import doors, escape
from pytest_torchprof.render.text import plural

if TYPE_CHECKING:
    from pytest_torchprof.devices import Device

Ranks = dict[int, Trace]

#: A file as large takes seconds to read: then a bar on stderr shows how far it is.
_BAR_FROM_BYTES = 200 * 2**20


def load(paths: Sequence[str], rank: int | None) -> Ranks:
    """Read these files and folders, and say what was wrong with them."""
    with _bar(paths) as progress:
        ranks = api.load_ranks(paths, rank, progress)
    for trace in ranks.values():
        for warning in trace.warnings:
            warn(f"{trace.path}: {warning}")
    return ranks


@contextmanager
def _bar(paths: Sequence[str]) -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar on a terminal, for files that take their time."""
    named = [Path(path) for path in paths]
    files = [file for path in named for file in (path.iterdir() if path.is_dir() else [path])]
    size = sum(file.stat().st_size for file in files if file.is_file())
    if size < _BAR_FROM_BYTES or not sys.stderr.isatty():
        yield None
        return
    import tqdm

    with tqdm.tqdm(total=size, unit="B", unit_scale=True, leave=False, desc="reading") as bar:

        def progress(done: int, whole: int) -> None:
            bar.total = max(whole, done)
            bar.update(done - bar.n)

        yield progress


def peaks(options: Namespace) -> tuple[Device, ...]:
    """The chips of ``--device-peaks``."""
    return read_peaks(Path(options.device_peaks)) if options.device_peaks else ()


def heading_of(ranks: Ranks) -> str:
    """What was read: file, device, size."""
    lines = []
    for rank, trace in list(ranks.items())[:8]:
        names = [str(p.get("name") or "unnamed device") for p in trace.devices]
        device = ", ".join(f"{n} × {names.count(n)}" if names.count(n) > 1 else n
                           for n in dict.fromkeys(names)) or "no device named"  # fmt: skip
        mark = f"rank {rank}: " if len(ranks) > 1 else ""
        line = f"{mark}{trace.path.name}: {device}; {plural(len(trace.events), 'event')}"
        lines.append(escape.line(line))
    if len(ranks) > 8:
        lines.append(f"… and {plural(len(ranks) - 8, 'more rank')}")
    return "\n".join(lines)


def unlinked(trace: Trace) -> str:
    """A line on device events that no runtime call accounts for; empty if there are none."""
    count = trace.unlinked
    if not count:
        return ""
    every = int(trace.events.is_kind(*DEVICE_KINDS).sum())
    return f"{count} of {plural(every, 'device event')} have no runtime call: operator {UNLINKED}"


def only(ranks: Ranks) -> Trace:
    """The one trace that a command can work on.

    Raises:
        SettingsError: there are several.
    """
    if len(ranks) > 1:
        raise SettingsError("several traces, and one is wanted", listed(ranks), "give --rank N")
    return next(iter(ranks.values()))


def no_flops(trace: Trace) -> str:
    """A line on why there is no sum of FLOPs; empty if there is one."""
    gap = flops_gap(trace.events)
    return f"no total of FLOPs: {gap}" if gap else ""


def uncounted(trace: Trace) -> str:
    """A line on kernels whose FLOPs cannot be known, since a graph launched them; else empty."""
    count = replayed(trace.events)
    if not count:
        return ""
    every = int(trace.events.is_kind(Kind.KERNEL).sum())
    return (
        f"{count} of {plural(every, 'kernel')} were replayed from a graph: their FLOPs are not in"
    )


def masked(trace: Trace) -> str:
    """A line on causal attention, whose rates are of less than its FLOPs; else empty."""
    less, unknown, untold = roofline.masked(trace.events)
    said = [
        f"{what.format(plural(count, 'kernel'))}"
        for count, what in (
            (less, "TFLOP/s and % of {} are of what a causal mask leaves"),
            (unknown, "how much the mask of {} leaves is not in the trace"),
            (untold, "{} of attention may be causal, and TFLOP/s and % be too high: no arguments"),
        )
        if count
    ]
    return "; ".join(said) + "; flops is of all pairs, as in FlopCounterMode" if said else ""


def peaks_used(trace: Trace, chips: Sequence[Device]) -> str:
    """A line on the peaks that percentages are of, or why there are none."""
    if not trace.events.is_kind(*DEVICE_KINDS).any():
        return "no device events in this trace"
    if not trace.devices:
        return "the trace does not say which device it ran on, so no % of peak"
    found = {device.name: device for p in trace.devices if (device := find(p, chips))}
    if chips and not any(device in chips for device in found.values()):
        named = ", ".join(dict.fromkeys(str(p.get("name") or "unnamed") for p in trace.devices))
        warn(f"--device-peaks: none of its devices is the one in this trace ({named})")
    if not found:
        name = trace.devices[0].get("name") or "a device without a name"
        return f"no peaks are known of {name}: --device-peaks FILE adds a chip"
    return f"% are of the peaks of {', '.join(found)}"


def ungrouped(trace: Trace, by: str) -> str:
    """A line on a grouping that the trace has nothing for; empty if it has."""
    fields = {"shape": ("shapes", "record_shapes"), "stack": ("stack", "with_stack")}
    fields["module"] = ("module", "with_stack")
    if by not in fields:
        return ""
    field, option = fields[by]
    if any(getattr(row, field) is not None for row in trace.ops(by)):  # type: ignore[arg-type]
        return ""
    return f"recorded without {field}s ({option}=True gives them)".replace("shapess", "shapes")


def listed(ranks: Ranks) -> str:
    """The ranks, in words."""
    return "rank" + ("s " if len(ranks) > 1 else " ") + ", ".join(map(str, ranks))


def warn(message: str) -> None:
    """One line on stderr that is no failure."""
    doors.say(f"warning: {message}")
