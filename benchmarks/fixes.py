"""``python -m benchmarks.fixes [RULE…]``: what a rule's advice saves, against its estimate.

Slip and fix run in turn, without the profiler. Then the slip is profiled several times, and the
cost in the rule's findings is compared with what the fix saves. Times are CPU times, which other
processes disturb less, except where workers load data or compilers run. Freed memory stays with the
process: a run that gets it anew takes up to five times as long, as the system clears each page.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace
from tabulate import tabulate

from benchmarks.slips import SLIPS, Body, Pair

if TYPE_CHECKING:
    from pytest_torchprof.trace.facts import Facts

#: A cost within this factor of the savings is right.
FACTOR = 2.0
_SECONDS = 1.0
#: How often the slip is profiled, if that takes no longer than five times as many seconds.
_PROFILED = 20
#: Wall and CPU time in ms.
Times = tuple[float, float]
#: Other processes do work that the fix saves or moves: workers, compilers, ranks.
_BY_WALL = (
    *("sync-dataloader", "starved-loader", "graph-break", "recompile"),
    *("small-collectives", "blocking-collective"),
)
#: The fix helps; "unknown" says that the rule names no cost.
_GOOD = ("right", "smaller", "unknown")
#: Parameters of mallopt. Source: malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
#: A peak below this share of the old one is smaller.
_SMALLER = 0.9


@dataclass(frozen=True)
class Measured:
    """One example: ms and bytes of slip and fix, the rule's findings, and their cost if known.

    ``gained`` is the slip's time as a multiple of the fix's, ``saved_ms`` the difference, both as
    medians over pairs.
    """

    rule: str
    name: str
    slip_ms: float
    fixed_ms: float
    gained: float
    saved_ms: float
    slip_bytes: float | None
    fixed_bytes: float | None
    findings: int
    named_ms: float | None

    @property
    def peak(self) -> float | None:
        """The peak with the fix as a share of the peak without it; None if not measured."""
        if not self.slip_bytes or self.fixed_bytes is None:
            return None
        return self.fixed_bytes / self.slip_bytes

    @property
    def verdict(self) -> str:
        """Whether the fix helps, and whether the cost matches the savings."""
        smaller = (self.peak or 1) < _SMALLER
        if not self.findings:
            return "silent"
        if self.gained < 1 and not smaller:
            return "no gain"
        if self.named_ms is None:
            return "smaller" if smaller else "unknown"
        if self.saved_ms <= 0:
            return "smaller" if smaller else "no gain"
        share = self.named_ms / self.saved_ms
        return "right" if 1 / FACTOR <= share <= FACTOR else f"{share:.2g} × what it saves"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the examples of these rules, or of all, and print one table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fixes", description=__doc__)
    parser.add_argument("rule", nargs="*")
    parser.add_argument("--seconds", type=float, default=_SECONDS, help="for each example")
    options = parser.parse_args(arguments)
    import torch

    torch.set_num_threads(1)
    _keep_freed_memory()
    found = [
        measured(rule, make.__name__.strip("_"), make(), options.seconds)
        for rule, make in SLIPS
        if not options.rule or rule in options.rule
    ]
    rows = [
        (m.rule, m.name.replace("_", " "), f"{m.slip_ms:.3g}", f"{m.fixed_ms:.3g}",
         f"{m.gained:.2f} ×", None if m.peak is None else f"{m.peak:.2f} ×", f"{m.saved_ms:.3g}",
         None if m.named_ms is None else f"{m.named_ms:.3g}", m.verdict)
        for m in found
    ]  # fmt: skip
    headers = ("rule", "example", "ms", "fixed", "gained", "peak", "saved", "named", "")
    print(tabulate(rows, headers, missingval="–", disable_numparse=True))
    return int(any(m.verdict not in _GOOD for m in found))


def _keep_freed_memory() -> None:
    """As glibc's allocator does by itself up to the largest blocks freed so far, mallopt(3)."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for setting, value in ((_TRIM_THRESHOLD, 2**30), (_MMAP_THRESHOLD, 2**25)):
            mallopt(setting, value)


def measured(rule: str, name: str, pair: Pair, seconds: float) -> Measured:
    """Slip and fix in turn for this many seconds, at least three pairs, each profiled once."""
    from pytest_torchprof.capture.compiling import CompileCount
    from pytest_torchprof.trace.facts import Quantity

    slip, fixed = pair
    for body in (slip, fixed, fixed):
        body()
    before = CompileCount.now()
    slip()
    compiled = CompileCount.now().since(before)
    clock = 0 if rule in _BY_WALL else 1
    samples: list[tuple[Times, Times]] = []
    start = time.perf_counter()
    while len(samples) < 3 or time.perf_counter() - start < seconds:
        if len(samples) % 2:
            after = _times_ms(fixed)
            samples.append((_times_ms(slip), after))
        else:
            samples.append((_times_ms(slip), _times_ms(fixed)))
    pairs = [(before[clock], after[clock]) for before, after in samples]
    slip_ms = median(before for before, _ in pairs)
    facts = replace(
        compiled,
        torch="2",
        wall_ms=Quantity(median=slip_ms),
        cpu_ms=Quantity(median=median(before[1] for before, _ in samples)),
    )
    runs = min(_PROFILED, max(3, int(seconds * 5000 / slip_ms)))
    profiled = sorted((_profiled(slip, rule, facts) for _ in range(runs)), key=itemgetter(0))
    seen = [one for one in profiled if one.findings]
    if not clock and 2 * len(seen) > runs:  # a rule that goes by times may miss it once
        profiled, runs = seen, len(seen)
    # The shortest run was disturbed least. How long others take is part of wall times.
    shown = profiled[0 if clock else (runs - 1) // 2]
    fixed_run = _profiled(fixed, rule, facts)
    return Measured(
        rule,
        name,
        slip_ms,
        median(after for _, after in pairs),
        median(before / after for before, after in pairs),
        median(before - after for before, after in pairs),
        shown.peak_bytes,
        fixed_run.peak_bytes,
        shown.findings,
        shown.cost_ms,
    )


def _times_ms(body: Body) -> Times:
    """Wall and CPU time of one run."""
    gc.collect(1)
    wall, cpu = time.perf_counter(), time.process_time()
    body()
    return (time.perf_counter() - wall) * 1000, (time.process_time() - cpu) * 1000


class _Profiled(NamedTuple):
    """One profiled run; the cost of the rule's findings and the peak are None if unknown."""

    ns: int
    findings: int
    cost_ms: float | None
    peak_bytes: float | None


def _profiled(body: Body, rule: str, facts: Facts) -> _Profiled:
    from pytest_torchprof.capture.profiler import Capture
    from pytest_torchprof.rules.check import check
    from pytest_torchprof.rules.registry import RULES
    from pytest_torchprof.verdict.metrics import METRICS, measure

    with TemporaryDirectory() as folder:
        capture = Capture(threads=1, tensors=True)
        capture.start()
        try:
            body()
            trace = capture.stop(Path(folder), facts).events()
        finally:
            capture.abandon()
    found = check(trace, [RULES[rule]]).findings()
    costs = [one.cost_ms for one in found if one.cost_ms is not None]
    peak = measure(METRICS["peak_cpu_bytes"], trace)
    begin, end = trace.region or (0, 0)
    return _Profiled(
        end - begin,
        len(found),
        sum(costs) if len(costs) == len(found) > 0 else None,
        peak if isinstance(peak, int | float) else None,  # not beside a DataLoader's workers
    )


if __name__ == "__main__":
    raise SystemExit(main())
