"""Which traces a command is about, and what there is to say of them."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pytest_torchprof import api
from pytest_torchprof.api import Trace
from pytest_torchprof.devices import find, read_peaks
from pytest_torchprof.events import DEVICE_KINDS
from pytest_torchprof.render.text import plural

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
    size = sum(Path(path).stat().st_size for path in paths if Path(path).is_file())
    if size < _BAR_FROM_BYTES or not sys.stderr.isatty():
        yield None
        return
    import tqdm

    with tqdm.tqdm(total=size, unit="B", unit_scale=True, leave=False, desc="reading") as bar:

        def progress(done: int, whole: int) -> None:
            bar.total = max(whole, done)
            bar.update(done - bar.n)

        yield progress


def peaks(options: Namespace) -> tuple[Any, ...]:
    """The chips of ``--device-peaks``."""
    return read_peaks(Path(options.device_peaks)) if options.device_peaks else ()


def heading_of(ranks: Ranks) -> str:
    """What was read: file, device, size."""
    lines = []
    for trace in list(ranks.values())[:8]:
        names = [str(p.get("name") or "unnamed device") for p in trace.devices]
        device = ", ".join(f"{n} × {names.count(n)}" if names.count(n) > 1 else n
                           for n in dict.fromkeys(names)) or "no device named"  # fmt: skip
        lines.append(f"{trace.path.name}: {device}; {plural(len(trace.events), 'event')}")
    if len(ranks) > 8:
        lines.append(f"… and {plural(len(ranks) - 8, 'more rank')}")
    return "\n".join(lines)


def unlinked(trace: Trace) -> str:
    """A line on device events that no runtime call accounts for; empty if there are none."""
    count = trace.unlinked
    if not count:
        return ""
    every = int(trace.events.is_kind(*DEVICE_KINDS).sum())
    return f"{count} of {plural(every, 'device event')} have no runtime call: operator –"


def unknown_chips(trace: Trace, chips: Sequence[Any]) -> str:
    """A line on devices whose peaks are not known; empty if there are none."""
    unknown = [p.get("name") or "a device without a name" for p in trace.devices
               if find(p, chips) is None]  # fmt: skip
    if not trace.devices:
        return "the trace does not say which device it ran on, so no % of peak"
    if not unknown:
        return ""
    return f"no peaks are known of {unknown[0]}: --device-peaks FILE adds a chip"


def listed(ranks: Ranks) -> str:
    """The ranks, in words."""
    return "rank" + ("s " if len(ranks) > 1 else " ") + ", ".join(map(str, ranks))


def warn(message: str) -> None:
    """One line on stderr that is no failure."""
    print(f"torchprof: warning: {message}", file=sys.stderr)  # noqa: T201 - a command
