"""The metric table: each key, column, marker and README row about a metric derives from it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from pytest_torchprof.core.unknown import Reason
    from pytest_torchprof.core.values import Better, MissingValue, OwnMetric, Tolerance, Value
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.facts import Quantity
    from pytest_torchprof.work.devices import Device


# ---- What a metric is: a row of the metric table, or one of a user's own.

Klass = Literal["exact", "near", "advice", "time", "never"]
MetricNeed = Literal[
    "rounds", "shapes", "memory", "device", "device_memory", "calls", "operators", "host"
]


class Metric(NamedTuple):
    """One row of the table. (A plain pytest run loads it for the markers, so it is a light type.)

    Attributes:
        name: report key, baseline key, column; the marker is ``max_<name>``.
        unit: unit of the value: ``ms``, ``1``, ``FLOP`` or ``B``; of a user's own metric, any.
        klass: ``exact`` must not exceed the baseline, ``near`` not by more than the tolerance,
            ``time`` follows ``--torchprof-time``; ``never``: only limits apply, to a user's own
            metric.
        needs: what the capture must hold; without it, the metric is not measured.
        extract: the value from a trace; pure.
        help: one line for tables and ``--markers``.
        tolerance: by which share it may differ from the baseline, and still be as accepted.
        margin: the same in its unit; the larger of the two counts.
        scopable: whether a limit may name an operator or a module.
        depends_on_order: whether it has a value depends on what ran earlier in the process.
        adds_up: whether more work can only increase it, so that a part of the work gives a lower
            bound. A peak does not: a free lowers it. Nor self time: a nested call lowers it.
        largest: whether the value of a region entered repeatedly is its largest lap's, not the sum.
        compared: whether it is compared with a baseline. Not if something outside the test decides
            it: a cache on disk, or what other tests have left in memory.
        on_request: whether it is measured only for tests that ask for it.
        of_chip: whether it is of the chip of ``--torchprof-device``, so that bounds on two chips do
            not compare.
        timed_by_region: whether rounds measure it in the named regions of a test, too.
        better: whether a lower or a higher value is an improvement.
        own: what the user has declared, of a metric of his own.
    """

    name: str
    unit: str
    klass: Klass
    needs: frozenset[MetricNeed]
    extract: Callable[[Events], Value]
    help: str
    tolerance: float = 0.0
    scopable: bool = True
    depends_on_order: bool = False
    adds_up: bool = False
    largest: bool = False
    compared: bool = True
    timed_by_region: bool = False
    of_chip: bool = False
    on_request: bool = False
    better: Better = "lower"
    own: OwnMetric | None = None
    margin: float = 0.0

    @property
    def stored(self) -> bool:
        """Whether baselines keep it among ``metrics``; times are kept apart, with their machine."""
        return self.compared and self.klass != "time"

    @property
    def of_region(self) -> bool:
        """Whether it comes from the profiled run's events, not from rounds or the first run."""
        told = self.own is not None and self.own.recorded
        return "rounds" not in self.needs and not self.depends_on_order and not told

    @property
    def of_device(self) -> bool:
        """Whether it measures an accelerator, or waiting for one."""
        return not self.needs.isdisjoint({"device", "device_memory", "calls"})


def tolerant(metric: Metric, tolerances: Iterable[Tolerance]) -> Metric:
    """The metric with the last share and the last amount given for it; its own, of neither."""
    for one in tolerances:
        if one.is_for(metric.name, metric.unit):
            if one.share is not None:
                metric = metric._replace(tolerance=one.share)
            if one.amount is not None:
                metric = metric._replace(margin=one.amount)
    return metric


# ---- The metric table: every report key, baseline key, column, marker and README row derives
# from it.
#
# To add a metric, add a row to `METRICS`.


def measure(metric: Metric, trace: Events) -> Value:
    """The value of the metric on this trace, or why there is none.

    If a capture lacks some device work, or the file breaks off, counts are lower bounds.
    """
    from pytest_torchprof.verdict.values import value_of

    return value_of(metric, trace)


def measure_all(trace: Events, known: Mapping[str, Value] | None = None) -> dict[str, Value]:
    """Every metric of the table on this trace; those ``known`` are taken as given."""
    from pytest_torchprof.verdict.values import values_of_table

    return values_of_table(trace, METRICS.values(), known or {})


def estimates_for(trace: Events, chip: Device | None) -> dict[str, Value]:
    """All estimates of a stored trace, asked for or not; ``chip`` as for `bound_ms`."""
    from pytest_torchprof.verdict.values import bound_ms, values_of

    rows = [METRICS[name] for name in ESTIMATES]
    if chip is not None:
        of_chip = partial(bound_ms, chip=chip)
        rows = [row._replace(extract=of_chip) if row.name == "bound_ms" else row for row in rows]
    return values_of(rows, trace)


def _unknown(reason: Reason, at_hand: int | None = None, *, at_least: bool = False) -> MissingValue:
    from pytest_torchprof.core.values import MissingValue

    return MissingValue(reason, at_hand, at_least)


def _of_rounds(name: str, *, whole: bool = False) -> Callable[[Events], Value]:
    """Extract the median of the timed rounds, or the reason recorded instead."""

    def extract(trace: Events) -> Value:
        from pytest_torchprof.core.unknown import Why, because

        noted: Quantity | None = getattr(trace.facts, name)
        if noted is not None and noted.median is not None:
            return round(noted.median) if whole else noted.median
        return _unknown((noted and noted.reason) or because(*Why.ONLY_LIVE))

    return extract


def _compiled(what: str) -> Callable[[Events], Value]:
    """Extract a number about compilations, if the test compiled all compiled code that it ran."""

    def extract(trace: Events) -> Value:
        from pytest_torchprof.analysis import compilations as compile_counts
        from pytest_torchprof.core.unknown import Why, because

        found: compile_counts.Compiled = trace.once(getattr(compile_counts, what))
        if found.rows is None or found.gap is not None:
            return _unknown(
                found.gap or because(*Why.ONLY_LIVE),
                None if found.rows is None else len(found.rows),
            )
        return len(found.rows)

    return extract


def _compile_work(what: str) -> Callable[[Events], Value]:
    """Extract one of torch's own numbers about the compilations of the first run."""

    def extract(trace: Events) -> Value:
        from pytest_torchprof.analysis.compilations import work

        return work(trace, what)

    return extract


def _count(trace: Events, kind: str) -> int:
    from pytest_torchprof.trace.names import Kind

    wanted = Kind[kind]
    return int((trace.selection & trace.is_kind(wanted)).sum()) if trace.has(wanted) else 0


def _ops(trace: Events) -> int:
    """Computing operators; an annotation given as ``op=`` counts itself, too."""
    from pytest_torchprof.work.counting import computing

    return int(computing(trace).sum()) + _annotations(trace)


def _dispatches(trace: Events) -> int:
    """Operators; within annotations given as ``op=``, these too, as an operator counts itself."""
    return _count(trace, "OP") + _annotations(trace)


def _annotations(trace: Events) -> int:
    """Annotations of the name given as ``op=``."""
    if trace.scope is None or trace.scope[0] != "op":
        return 0
    from pytest_torchprof.core.scopes import is_of_name
    from pytest_torchprof.trace.names import OURS, Kind

    name = trace.scope[1]
    given = trace.names_where(lambda one: is_of_name(name, one) and not one.startswith(OURS))
    return int((trace.selection & given & trace.is_kind(Kind.ANNOTATION)).sum())


def _copies(pattern: str, *, in_bytes: bool) -> Callable[[Events], Value]:
    def extract(trace: Events) -> Value:
        from pytest_torchprof.trace import names as known_names
        from pytest_torchprof.trace.names import Kind

        direction: re.Pattern[str] = getattr(known_names, pattern)
        chosen = trace.selection & trace.is_kind(Kind.MEMCPY)
        chosen &= trace.names_where(direction.search)
        if not in_bytes:
            return int(chosen.sum())
        sizes = trace.bytes[chosen]
        from pytest_torchprof.core.unknown import Why, because

        return _unknown(because(*Why.NO_COPY_SIZES)) if (sizes < 0).any() else int(sizes.sum())

    return extract


def _syncs(trace: Events) -> Value:
    from pytest_torchprof.trace.names import SYNC_CALL, Kind

    calls = trace.selection & trace.is_kind(Kind.RUNTIME)
    return int((calls & trace.names_where(SYNC_CALL.search)).sum())


def _flops(trace: Events) -> Value:
    from pytest_torchprof.analysis.uncounted import uncounted_flops

    if not len(trace) and trace.region is None:
        from pytest_torchprof.core.unknown import Why, because

        return _unknown(because(*Why.NO_OPERATORS))  # not even a lower bound
    if (gap := uncounted_flops(trace)) is not None:
        return _unknown(gap.reason, gap.at_least, at_least=True)
    from pytest_torchprof.work.counting import total_flops

    return total_flops(trace)


def _moved_bytes(trace: Events) -> Value:
    from pytest_torchprof.analysis.moved_bytes import moved_bytes

    found = moved_bytes(trace)
    if found.gap is not None:
        return _unknown(found.gap, found.total or None, at_least=True)
    return found.total


def _estimated(what: str) -> Callable[[Events], Value]:
    """Extract an estimate of a device's work."""

    def extract(trace: Events) -> Value:
        from pytest_torchprof.verdict import values as estimates

        value: Value = getattr(estimates, what)(trace)
        return value

    return extract


def _no_durations() -> MissingValue:
    from pytest_torchprof.core.unknown import Why, because

    return _unknown(because(*Why.NO_DURATIONS))


def _self_cpu_ms(trace: Events) -> Value:
    from pytest_torchprof.analysis.missing import cpu_time_gap
    from pytest_torchprof.analysis.operators import self_cpu_ns

    if (gap := trace.once(cpu_time_gap)) is not None:
        return _unknown(gap)
    total = self_cpu_ns(trace)
    return _no_durations() if not total and _count(trace, "OP") else total / 1e6


def _device_ms(what: str) -> Callable[[Events], Value]:
    def extract(trace: Events) -> Value:
        from pytest_torchprof.analysis.device_time import device_time
        from pytest_torchprof.analysis.missing import device_time_gap

        if (gap := trace.once(device_time_gap)) is not None:
            return _unknown(gap)
        times = device_time(trace)
        if not times.self_ns and _count(trace, "KERNEL"):
            return _no_durations()
        return float(getattr(times, what)) / 1e6

    return extract


def _communication(what: str) -> Callable[[Events], Value]:
    """Extract a number about communication; all are 0 where no event has a name of it."""

    def extract(trace: Events) -> Value:
        from pytest_torchprof.trace.names import DEVICE_KINDS, HOST_KINDS, communicates

        if communicates(trace):
            from pytest_torchprof.verdict import values as comm_metrics

            found: Value = getattr(comm_metrics, what)(trace)
            return found
        if trace.region is None and not trace.has(*HOST_KINDS, *DEVICE_KINDS):
            from pytest_torchprof.core.unknown import Why, because

            return _unknown(because(*Why.NO_OPERATORS))
        return 0.0 if what.endswith("_ms") else 0

    return extract


def _memory(what: str, *, on_device: bool) -> Callable[[Events], Value]:
    def extract(trace: Events) -> Value:
        from pytest_torchprof.analysis.memory import usage

        return int(getattr(usage(trace, on_device=on_device), what))

    return extract


def _highest_total(what: Literal["allocated", "reserved"]) -> Callable[[Events], Value]:
    def extract(trace: Events) -> Value:
        from pytest_torchprof.analysis.memory import highest_total
        from pytest_torchprof.core.unknown import because

        found = highest_total(trace, what)
        return (
            _unknown(
                because(
                    "no_memory_totals",
                    (
                        "no totals of device memory in this capture: torch records them with each "
                        "allocation and free, and old versions not at all"
                    ),
                )
            )
            if found is None
            else found
        )

    return extract


def _host_peak(trace: Events) -> Value:
    """The peak, unless it depends on how far ahead a DataLoader's workers are."""
    peak = _of_seen_frees("peak_bytes")(trace)
    from pytest_torchprof.trace.names import uses_workers

    if uses_workers(trace):
        from pytest_torchprof.core.unknown import Why, because

        return _unknown(because(*Why.WORKERS_PREFETCH))
    return peak


def _of_seen_frees(what: str) -> Callable[[Events], Value]:
    """Extract a number of the host's memory, unless threads may have freed some of it unseen."""

    def extract(trace: Events) -> Value:
        from pytest_torchprof.analysis.missing import frees_unseen

        if trace.whole.once(frees_unseen):
            from pytest_torchprof.core.unknown import because

            return _unknown(
                because(
                    "freed_by_gloo",
                    (
                        "gloo's threads free tensors, too, which torch's profiler does not always "
                        "see"
                    ),
                )
            )
        return _memory(what, on_device=False)(trace)

    return extract


def _findings(trace: Events) -> Value:
    from pytest_torchprof.rules.check import nothing_seen
    from pytest_torchprof.rules.registry import check_all

    if (reason := nothing_seen(trace)) is not None:
        return _unknown(reason)
    checked = trace.whole.once(check_all)
    if trace.scope is not None:
        checked = checked.of_part(trace)
    total = sum(checked.total.values())
    return _unknown(checked.unsettled, total or None) if checked.unsettled else total


# -------------------------------------------------------------------- the table


def _row(
    name: str,
    unit: str,
    klass: Klass,
    needs: str,
    extract: Callable[[Events], Value],
    help_: str,
    *,
    tolerance: float = 0.0,
    **traits: Any,
) -> Metric:
    wanted: frozenset[MetricNeed] = frozenset(needs.split())  # type: ignore[arg-type]
    return Metric(name, unit, klass, wanted, extract, help_, tolerance, **traits)


#: What is allocated outside of operators, such as names in an archive, varies by a few bytes; a
#: device's caching allocator gives blocks of up to 1 MiB more than asked for (docs/metrics.md).
_MEMORY: Any = {"tolerance": 0.001, "margin": 512}
_BLOCKS: Any = {"tolerance": 0.01, "margin": 512}

#: An instruction count varies by about 0.1 % with addresses and interrupts.
METRICS: Mapping[str, Metric] = {
    m.name: m
    for m in (
        _row("wall_ms", "ms", "time", "rounds", _of_rounds("wall_ms"),
             "wall time of the call phase, unprofiled, median over rounds", scopable=False,
             timed_by_region=True),
        _row("cpu_ms", "ms", "time", "rounds", _of_rounds("cpu_ms"),
             "process CPU time of the call phase, unprofiled, median over rounds", scopable=False,
             timed_by_region=True),
        _row("self_cpu_ms", "ms", "time", "host", _self_cpu_ms,
             "sum of self CPU time of all operators, profiled"),
        _row("self_cuda_ms", "ms", "time", "device", _device_ms("self_ns"),
             "sum of device time of kernels, copies and memsets"),
        _row("cuda_busy_ms", "ms", "time", "device", _device_ms("busy_ns"),
             "time in which the device ran anything"),
        _row("cuda_idle_ms", "ms", "time", "device", _device_ms("idle_ns"),
             "time between the first and the last device event in which the device ran nothing"),
        _row("instructions", "1", "near", "rounds", _of_rounds("instructions", whole=True),
             "user-space CPU instructions of the call phase, if there is a hardware counter",
             tolerance=0.01, scopable=False),
        _row("flops", "FLOP", "exact", "shapes", _flops,
             "floating-point operations by formula, multiply and add counted as 2", adds_up=True),
        _row("ops", "1", "exact", "operators", _ops,
             "operators that read or write the data of tensors themselves", adds_up=True),
        _row("dispatches", "1", "advice", "operators", _dispatches,
             "all operator calls, autograd's nodes and TorchScript's functions included",
             adds_up=True),
        _row("peak_cpu_bytes", "B", "exact", "memory", _host_peak,
             "highest live bytes above the start of the call phase", **_MEMORY, largest=True),
        _row("peak_cuda_bytes", "B", "near", "memory device_memory",
             _memory("peak_bytes", on_device=True),
             "highest live device bytes above the start of the call phase", **_BLOCKS,
             largest=True),
        _row("allocated_cpu_bytes", "B", "exact", "memory",
             _memory("allocated_bytes", on_device=False),
             "sum of allocations", **_MEMORY, adds_up=True),
        _row("allocated_cuda_bytes", "B", "near", "memory device_memory",
             _memory("allocated_bytes", on_device=True),
             "sum of device allocations", **_BLOCKS, adds_up=True),
        _row("leaked_cpu_bytes", "B", "exact", "memory", _of_seen_frees("leaked_bytes"),
             "live host bytes at the end minus those at the start, after gc", **_MEMORY),
        _row("leaked_cuda_bytes", "B", "exact", "memory device_memory",
             _memory("leaked_bytes", on_device=True),
             "live device bytes at the end minus those at the start, after gc", **_MEMORY),
        _row("max_cuda_bytes", "B", "near", "memory device_memory", _highest_total("allocated"),
             "highest live device bytes, including those from before the call phase",
             tolerance=0.01, largest=True, compared=False),
        _row("max_reserved_cuda_bytes", "B", "near", "memory device_memory",
             _highest_total("reserved"),
             "highest bytes that the caching allocator has reserved on devices",
             tolerance=0.01, largest=True, compared=False),
        _row("moved_bytes", "B", "exact", "shapes operators", _moved_bytes,
             "bytes that operators must read and write at least, on host and devices",
             adds_up=True),
        _row("kernels", "1", "exact", "device", lambda trace: _count(trace, "KERNEL"),
             "device kernels that ran", adds_up=True),
        _row("h2d_copies", "1", "exact", "device", _copies("H2D", in_bytes=False),
             "copies from host to device", adds_up=True),
        _row("d2h_copies", "1", "exact", "device", _copies("D2H", in_bytes=False),
             "copies from device to host", adds_up=True),
        _row("h2d_bytes", "B", "exact", "device", _copies("H2D", in_bytes=True),
             "bytes copied from host to device", adds_up=True),
        _row("d2h_bytes", "B", "exact", "device", _copies("D2H", in_bytes=True),
             "bytes copied from device to host", adds_up=True),
        _row("syncs", "1", "exact", "calls", _syncs,
             "calls in which the host waited for the device", adds_up=True),
        _row("collectives", "1", "exact", "", _communication("collectives"),
             "calls that communicate with other ranks: collectives, sends, and receives",
             adds_up=True),
        _row("comm_bytes", "B", "exact", "", _communication("comm_bytes"),
             "bytes that these calls carry, as nccl-tests count them", adds_up=True),
        _row("comm_ms", "ms", "time", "", _communication("comm_ms"),
             "time in which anything communicates with other ranks, profiled"),
        _row("exposed_comm_ms", "ms", "time", "", _communication("exposed_comm_ms"),
             "time in which something communicates and nothing computes, profiled"),
        _row("graph_breaks", "1", "exact", "", _compiled("graph_breaks"),
             "torch.compile graph breaks in the first run of the test", scopable=False,
             depends_on_order=True),
        _row("recompiles", "1", "exact", "", _compiled("recompilations"),
             "torch.compile recompilations in the first run of the test", scopable=False,
             depends_on_order=True),
        _row("graphs", "1", "exact", "", _compile_work("graphs"),
             "graphs that torch.compile captured in the first run of the test", scopable=False,
             depends_on_order=True),
        _row("cudagraphs", "1", "exact", "", _compile_work("cudagraphs"),
             "CUDA graphs captured in the first run of the test", scopable=False,
             depends_on_order=True),
        _row("cudagraph_skips", "1", "exact", "", _compile_work("cudagraph_skips"),
             "compiled graphs that could not become CUDA graphs, in the first run of the test",
             scopable=False, depends_on_order=True),
        _row("compile_cache_hits", "1", "exact", "", _compile_work("cache_hits"),
             "compiled code found in torch's caches in the first run of the test",
             scopable=False, depends_on_order=True, compared=False),
        _row("compile_cache_misses", "1", "exact", "", _compile_work("cache_misses"),
             "compiled code not found in torch's caches in the first run of the test",
             scopable=False, depends_on_order=True, compared=False),
        _row("compile_ms", "ms", "time", "", _compile_work("ms"),
             "time that torch.compile spent compiling in the first run of the test",
             scopable=False, depends_on_order=True),
        _row("host_reads", "1", "exact", "operators", _estimated("host_reads"),
             "operators that would make the host wait, if their tensors were on a device",
             adds_up=True),
        _row("launches", "1", "exact", "shapes operators", _estimated("launches"),
             "kernels that eager execution on a device would start at least",
             adds_up=True, on_request=True),
        _row("bound_ms", "ms", "near", "shapes operators", _estimated("bound_ms"),
             "least time of the operators on the chip of --torchprof-device, a lower bound",
             tolerance=0.01, on_request=True, of_chip=True),
        _row("estimated_cuda_bytes", "B", "near", "", _estimated("estimated_cuda_bytes"),
             "peak of the same tensors on a device, in blocks of its caching allocator",
             tolerance=0.01, largest=True, on_request=True),
        _row("findings", "1", "exact", "", _findings,
             "anti-pattern matches", scopable=False),
    )
}  # fmt: skip

#: Metrics that are measured only for tests that ask for them.
ON_REQUEST = tuple(name for name, metric in METRICS.items() if metric.on_request)
#: All metrics of what a device would do; asking for the first one asks for its rule.
ESTIMATES = ("host_reads", *ON_REQUEST)
