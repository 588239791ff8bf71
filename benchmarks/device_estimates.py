"""How good estimates of a device's work are.

`python -m benchmarks.device_estimates TRACE|FOLDER… [--unseen TRACE|FOLDER…]`

Reads real traces of GPUs with shapes, takes their operators alone, and compares what they are
estimated to do with what the device did:

- ``launches`` with the kernels of eager operators, without those of collectives, graphs, compiled
  code, and operators of other libraries. Operators that called no device are on the host, and moves
  between host and device do not exist on a CPU: both are left out.
- ``host reads`` with the copies from the device that the host waited for. A ``.cpu()`` is
  explained: it does nothing on a CPU.
- ``bound_ms`` of these operators with the time of their kernels: the ratio, and how alike both rank
  the operators by name (Spearman).

Of traces on one kind of chip with the same numbers of operators and kernels, such as ranks of one
job, only the first counts. Numbers in the table of launches come from PyTorch's sources and from
traces; those after ``--unseen`` had no part in it. The printed table is in
docs/device-estimates.md. `benchmarks.device_estimates_live` compares tests that run on both.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import tabulate

from pytest_torchprof.analysis.attribution import is_replayed
from pytest_torchprof.analysis.estimates import bound, host_reads, is_compiled, units_of
from pytest_torchprof.analysis.waits import waits
from pytest_torchprof.core.errors import TorchprofError
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.names import D2H, H2D, Kind
from pytest_torchprof.trace.read import read_trace
from pytest_torchprof.trace.tree import marked, parents
from pytest_torchprof.work.devices import find, known_chips, normalize_name

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.work.devices import Device

_COMM = ("c10d::", "nccl:", "record_param_comms", "symm_mem", "_c10d")
#: Names of drivers that the table of devices leaves out, as they are of several products.
_ALIASES = {
    "NVIDIA A100-PG509-200": "A100-SXM4-40GB",
    "NVIDIA PG509-210": "A100-SXM4-80GB",
    "AMD Instinct MI300X VF": "MI300X",
}
_UNSEEN = "--unseen"
#: Fewer kernels than this say little.
_LEAST = 20


class Result(NamedTuple):
    """One trace; ``ratio`` and ``spearman`` are NaN where the chip is unknown."""

    name: str
    chip: str
    estimated: int
    kernels: int
    reads: int
    waits: int
    explained: int
    ratio: float
    spearman: float

    @property
    def error(self) -> float:
        """Of the launches, relative."""
        return (self.estimated - self.kernels) / self.kernels


def main(arguments: list[str]) -> int:
    """Print a row for each trace, and the summary of both parts."""
    at = arguments.index(_UNSEEN) if _UNSEEN in arguments else len(arguments)
    known = set[tuple[str, int, int]]()
    seen, unseen = (_results(part, known) for part in (arguments[:at], arguments[at + 1 :]))
    if not (seen or unseen):
        print(
            f"no trace of a GPU with shapes and at least {_LEAST} kernels: name some, or folders",
            file=sys.stderr,
        )
        return 2
    rows = [
        (r.name, r.chip, r.kernels, r.estimated, f"{r.error:+.1%}", r.waits, r.explained, r.reads)
        + ((None, None) if np.isnan(r.ratio) else (f"{r.ratio:.2f}", f"{r.spearman:.2f}"))
        for r in [*seen, *unseen]
    ]
    heads = ("trace", "chip", "kernels", "launches", "off by", "waits", "known", "host_reads")
    print(tabulate.tabulate(rows, (*heads, "bound / time", "Spearman"), tablefmt="github"))
    for title, part in (("learned from", seen), ("unseen", unseen)):
        if part:
            print(_summary(title, part))
    return 0


def _results(names: list[str], known: set[tuple[str, int, int]]) -> list[Result]:
    results: list[Result] = []
    for path in _files(names):
        try:
            trace = read_trace(path)
        except TorchprofError as error:
            print(error, file=sys.stderr)
            continue
        found = result_of(trace, path.name.partition(".")[0][:44])
        if found is None:
            continue
        key = (found.chip, found.kernels, int(trace.is_kind(Kind.OP).sum()))
        if key not in known:
            known.add(key)
            results.append(found)
    return results


def _files(names: list[str]) -> list[Path]:
    """The files of these names, and those in folders, by name."""
    paths = [Path(name) for name in names]
    files = {
        file for path in paths for file in (path.rglob("*.json.gz") if path.is_dir() else [path])
    }
    return sorted(files)


def _summary(title: str, results: list[Result]) -> str:
    errors = np.array([abs(r.error) for r in results])
    spearman = np.array([r.spearman for r in results])
    ratios = np.array([r.ratio for r in results])
    waited = sum(r.waits for r in results)
    return (
        f"{title}: {len(results)} traces; launches off by {np.median(errors):.1%} in the median, "
        f"within 15 % in {np.mean(errors <= 0.15):.0%}; {sum(r.explained for r in results):,} of "
        f"{waited:,} waits known; bound at most {np.nanmax(ratios):.2f} of the time, Spearman "
        f"{np.nanmedian(spearman):.2f} in the median"
    )


def result_of(trace: Events, name: str) -> Result | None:
    """The comparison for one trace of a GPU; None if it has too little for one."""
    if not (trace.has(Kind.KERNEL) and trace.has(Kind.OP) and trace.records_shapes):
        return None
    estimated, kernels = _launches(trace)
    if kernels < _LEAST:
        return None
    waited, explained = _reads(trace)
    chip = _chip(trace)
    ratio, spearman = (np.nan, np.nan) if chip is None else _bound(trace, chip)
    return Result(
        name,
        "" if chip is None else chip.name,
        estimated,
        kernels,
        host_reads(trace).total,
        waited,
        explained,
        ratio,
        spearman,
    )


def _launched(trace: Events) -> tuple[np.ndarray, np.ndarray]:
    """Kernels that the host launched one by one, and the event around each launch."""
    rows = trace.device_rows[trace.kind[trace.device_rows] == Kind.KERNEL]
    launch = trace.launch[rows]
    alone = (launch >= 0) & ~is_replayed(trace, launch)
    return rows[alone], parents(trace, launch[alone])


def _launches(trace: Events) -> tuple[int, int]:
    units = units_of(trace)
    skipped = is_compiled(trace) | nesting.with_nested(
        trace.names_where(lambda name: name.startswith(_COMM)), trace.parent, trace.depth
    )
    ops = trace.is_kind(Kind.OP)
    aten = trace.names_where(lambda name: name.startswith("aten::"))
    _, around = _launched(trace)
    inner = nesting.nearest(ops, trace.parent, around)
    mine = (inner >= 0) & aten[inner] & ~skipped[around]
    unit = np.zeros(len(trace), bool)
    unit[units.event] = True
    owner = nesting.nearest(unit, trace.parent, around[mine])
    measured = np.zeros(len(trace), np.int64)
    np.add.at(measured, owner[owner >= 0], 1)
    # What called the device, and did not only move data to or from it.
    calls = np.flatnonzero(
        trace.is_kind(Kind.RUNTIME)
        & trace.names_where(lambda n: any(word in n for word in ("Launch", "Memcpy", "Memset")))
    )
    busy = np.zeros(len(trace), bool)
    users = nesting.nearest(unit, trace.parent, calls)
    busy[users[users >= 0]] = True
    moves = trace.names_where(lambda n: D2H.search(n) or H2D.search(n)) & trace.is_kind(Kind.MEMCPY)
    movers = nesting.nearest(unit, trace.parent, parents(trace, trace.launch[moves]))
    moved = np.zeros(len(trace), bool)
    moved[movers[movers >= 0]] = True
    copies = trace.named("aten::copy_") & moved & (measured == 0)
    kept = busy[units.event] & ~skipped[units.event] & ~copies[units.event]
    return int(units.launches[kept].sum()), int(mine.sum())


def _reads(trace: Events) -> tuple[int, int]:
    """Waits for copies from the device, and how many a read or a ``.cpu()`` explains."""
    found = waits(trace)
    operator = found.operator[found.copies]
    reads = marked(trace, host_reads(trace).event)[:-1]
    known = operator >= 0
    rows = operator[known]
    explained = reads[rows] | nesting.below(reads, trace.parent, rows)
    moves = trace.named("aten::_to_copy") | trace.named("aten::to")
    explained |= trace.named("aten::copy_")[rows] & nesting.below(moves, trace.parent, rows)
    return len(operator), int(explained.sum())


def _bound(trace: Events, chip: Device) -> tuple[float, float]:
    """The bound of operators with kernels by the time of these, and how alike both rank names."""
    found = bound(trace, chip)
    event = found.work.event
    root = np.zeros(len(trace), bool)
    root[event] = True
    kernels, around = _launched(trace)
    owner = nesting.nearest(root, trace.parent, around)
    spent = np.zeros(len(trace))
    np.add.at(spent, owner[owner >= 0], trace.dur[kernels[owner >= 0]])
    mine = (spent[event] > 0) & ~is_compiled(trace)[event]
    if not mine.any():
        return np.nan, np.nan
    names, at = np.unique(trace.name[event[mine]], return_inverse=True)
    least = np.bincount(at, found.ns[mine], len(names))
    time = np.bincount(at, spent[event[mine]], len(names))
    return float(least.sum() / time.sum()), _spearman(least, time)


def _spearman(a: np.ndarray, b: np.ndarray) -> float:
    if len(a) < 3:
        return float("nan")
    return float(np.corrcoef(_ranks(a), _ranks(b))[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks, equal ones shared."""
    _, at, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    return np.asarray((last - (count - 1) / 2)[at])


def _chip(trace: Events) -> Device | None:
    listed = trace.metadata.get("deviceProperties")
    entry = listed[0] if isinstance(listed, list) and listed else {}
    if (found := find(entry)) is not None:
        return found
    name = _ALIASES.get(str(entry.get("name")) if isinstance(entry, dict) else "")
    return next(
        (d for d in known_chips() if name and normalize_name(d.name) == normalize_name(name)), None
    )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
