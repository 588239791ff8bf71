"""`--merge`: a row for each name over all traces, instead of one for each trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from pytest_torchprof.analysis.comm_rows import ROW_KEY
from pytest_torchprof.analysis.kernel_groups import parse_grouping
from pytest_torchprof.analysis.kernel_rows import UNLINKED
from pytest_torchprof.commands.printing import OK, is_lacking, show, sorted_rows, total_of
from pytest_torchprof.commands.several import merge_lines
from pytest_torchprof.core.counted_names import CountedNames
from pytest_torchprof.core.units import plural
from pytest_torchprof.fleet.merging import Merging, merged_rows
from pytest_torchprof.render.short_kernel_names import short_kernels

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from pytest_torchprof.commands.parts import Parts
    from pytest_torchprof.commands.printing import Table, TableRow

OPS: Final = Merging(
    keys=("name", "shapes", "stack", "module"),
    spread="self_cpu_ms",
    sums=("calls", "self_cpu_ms", "cpu_ms", "self_cuda_ms", "cuda_ms", "self_cpu_bytes",
          "self_cuda_bytes", "flops"),
)  # fmt: skip
IDLE: Final = Merging(
    keys=("cause", "what", "location", "path"),
    spread="time_ms",
    sums=("time_ms", "gaps"),
    largest=("longest_ms",),
)
FINDINGS: Final = Merging(
    keys=("rule", "message", "location", "module", "path"),
    spread="cost_ms",
    sums=("count", "cost_ms", "bytes"),
)
#: Peaks of different traces are at different moments, so the largest is told, not a sum.
MEMORY: Final = Merging(
    keys=("device", "operator"), spread="bytes", largest=("peak_bytes", "bytes", "count")
)
#: Each rank that meets at a call has the same wait.
COLLECTIVES: Final = Merging(
    keys=ROW_KEY,
    spread="total_ms",
    sums=("calls", "bytes", "total_ms"),
    largest=("wait_ms",),
    weighted=("algbw_gb_per_s", "busbw_gb_per_s"),
    weight="total_ms",
)
METRICS: Final = Merging(keys=("metric",), spread="value", sums=("value",))
BREAKDOWN: Final = Merging(
    keys=("category",), spread="time_ms", sums=("time_ms", "total_ms", "calls")
)

_RATES: Final = ("tflops_per_s", "gb_per_s", "compute_pct", "bandwidth_pct")
_PARTS_OF_KERNELS: Final = {"kernel": "kernel", "op": "operator", "shape": "shapes"}


def kernels_by(by: str) -> Merging:
    """Of rows in this grouping, see `parse_grouping`."""
    keys = tuple(_PARTS_OF_KERNELS[word] for word in parse_grouping(by))
    return Merging(
        keys=keys,
        spread="total_ms",
        sums=("calls", "total_ms", "flops", "bytes", "roofline_ms", "ms_to_gain"),
        weighted=_RATES,
        weight="total_ms",
        names=tuple(name for name in ("kernel", "operator") if name not in keys),
    )


def merged(how: Merging, parts: Parts, rows: Mapping[int, Sequence[TableRow]]) -> list[TableRow]:
    """The rows of all traces, each with the trace that has the most of it.

    ``rows``: those of each trace, without its rank.
    """
    most = f"max_{parts.column}"
    return [
        {**row, most: parts.value(at) if at >= 0 else None}
        for row, at in merged_rows(how, ((rank, rows[rank]) for rank in parts))
    ]


def added_fields(how: Merging, parts: Parts) -> tuple[str, ...]:
    """The fields that `merged` adds."""
    return (*how.added, f"max_{parts.column}")


def show_merged(
    options: Namespace,
    parts: Parts,
    how: Merging,
    tables: Mapping[int, Table],
    *,
    order: str,
    notes: Sequence[str] = (),
    unknown: Mapping[str, str] | None = None,
) -> int:
    """One table over all traces with a row for each name, ordered, with its total."""
    first = next(iter(tables.values()))
    if order == "self_cpu_ms" and any(
        row["self_cuda_ms"] for table in tables.values() for row in table.rows
    ):
        order = "self_cuda_ms"
        how = how._replace(spread=order)
    rows = merged(how, parts, {rank: table.rows for rank, table in tables.items()})
    for row in rows:
        if "mean_us" in row:
            known = row["total_ms"] is not None and row["calls"]
            row["mean_us"] = 1e3 * row["total_ms"] / row["calls"] if known else None
            row["kernel_short"] = row["kernel"] and short_kernels(row["kernel"])
            row["operators"] = _operators(how, row)
    total = {f: value for f, value in total_of(tables.values()).items() if f in how.sums}
    lacking = {
        rank: [
            f"no total of {field}: not recorded" if is_lacking(table, field) else ""
            for field, value in total.items()
            if value is None and not all(is_lacking(one, field) for one in tables.values())
        ]
        for rank, table in tables.items()
    }
    notes = [*notes, *merge_lines(parts, lacking)]
    whole = total.get(order)
    for row in (*rows, total):
        row["share"] = (row[order] or 0) / whole if whole else None
    fields = [*first.fields, *added_fields(how, parts)]
    if "share" not in fields:
        fields.insert(fields.index(order) + 1, "share")
    rows = [{f: row[f] for f in fields} for row in sorted_rows(rows, options.sort or order, fields)]
    if options.format in ("table", "markdown"):
        fields = [f for f in fields if f in (*first.columns, "share", *added_fields(how, parts))]
        for row in rows:
            row.update({f: text for f, text in (unknown or {}).items() if row[f] is None})
    extra = {"merged": len(parts)}
    lines = [f"merged: the rows of {plural(len(parts), 'trace')}", *filter(None, notes)]
    show(options, parts, rows, fields, total, list(dict.fromkeys(lines)), extra)
    return OK


def _operators(how: Merging, row: TableRow) -> list[TableRow]:
    """The operators of a row of kernels with their calls; None for those without a launch."""
    named = row["operator"]
    own = "operator" in how.names and isinstance(named, CountedNames)
    parts: dict[Any, int] = dict(named.parts) if own else {}
    left = row["calls"] - sum(parts.values())
    parts |= {named if "operator" in how.keys else None: left} if left else {}
    return [
        {"operator": None if name == UNLINKED else name, "calls": n} for name, n in parts.items()
    ]


def merged_memory(parts: Parts, flat: Mapping[int, Sequence[TableRow]]) -> list[TableRow]:
    """What was live at the peaks, by kind of device and operator: the most in one trace."""
    kinds = {
        rank: [{**row, "device": row["device"].partition(":")[0], "at_ms": None} for row in rows]
        for rank, rows in flat.items()
    }
    rows = merged(MEMORY, parts, kinds)
    return sorted(rows, key=lambda row: -(row.get("bytes") or 0))
