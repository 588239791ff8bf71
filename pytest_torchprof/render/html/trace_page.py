"""The page of a trace, and of two traces side by side: tables of the commands, and plots of them.

`trace.html` says what is in a section; here is what it asks for. Of a large trace there are
aggregates only; what a section leaves out, it says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pytest_torchprof.analysis.breakdown import IDLE
from pytest_torchprof.core.units import format_quantity, plural
from pytest_torchprof.render.findings import by_cost, more_modules, rule_totals
from pytest_torchprof.render.html import charts
from pytest_torchprof.render.html.page import Section, data_table, macros
from pytest_torchprof.render.html.svg import category_class, shown
from pytest_torchprof.render.table import cell
from pytest_torchprof.work.kernels import CATEGORIES

if TYPE_CHECKING:
    from pytest_torchprof.analysis.kernels import KernelRow

#: A row as ``--format json`` prints it; all that a page tells, by the names in `trace.html`.
Row = Mapping[str, Any]
Facts = Mapping[str, Any]

#: Macro of `trace.html`, which is the anchor, and the title: in the order of reading.
_TRACE: Final = {
    "overview": "Overview",
    "time": "Device time",
    "idle": "Idle time",
    "findings": "Findings",
    "kernels": "Kernels",
    "operators": "Operators",
    "memory": "Memory",
    "metrics": "Metrics",
}
_DIFF: Final = {
    "changes": "Overview",
    "changed-metrics": "Metrics",
    "changed-operators": "Operators",
    "changed-kernels": "Kernels",
}
#: Devices with a roofline of their own; more are those of a node, which do the same.
_PLOTS: Final = 4


def trace_sections(facts: Facts, label: str = "", prefix: str = "") -> list[Section]:
    """The sections about a trace.

    ``label`` distinguishes several traces; ``prefix`` is that of the anchors, where a page is of
    several.
    """
    return _sections(_TRACE, facts, label, prefix)


def diff_sections(facts: Facts, label: str = "", prefix: str = "") -> list[Section]:
    """What two traces are, then metrics, operators and kernels, the largest change first."""
    return _sections(_DIFF, facts, label, prefix)


def _sections(titles: Mapping[str, str], facts: Facts, label: str, prefix: str) -> list[Section]:
    of = shown(label, 60)
    made = macros("trace.html", **_ASKED)
    return [
        Section(
            f"{prefix}{anchor}",
            f"{of}: {title}" if of else title,
            getattr(made, anchor.replace("-", "_"))(facts),
            of,
            title,
        )
        for anchor, title in titles.items()
    ]


# ---- What the template asks for.


def _by_device(rows: Iterable[Any]) -> list[tuple[int | None, list[Any]]]:
    """Each device with its rows."""
    found: dict[int | None, list[Any]] = {}
    for row in rows:
        found.setdefault(row.device, []).append(row)
    return list(found.items())


def _left_out(rows: Sequence[Row], limit: int, field: str, of: str, command: str) -> list[str]:
    """How many rows are not shown, and how much they have; nothing if all are."""
    rest = rows[limit:]
    if not rest:
        return []
    share = _share(rest, rows, field, of)
    return [f"{plural(len(rest), 'more row')}{share} are left out: {command} has all"]


def _share(some: Sequence[Row], rows: Sequence[Row], field: str, of: str) -> str:
    whole = sum(row[field] or 0 for row in rows)
    part = sum(row[field] or 0 for row in some)
    return f" ({cell('share', part / whole)} {of})" if whole else ""


def _cards(facts: Facts) -> Iterable[tuple[str, str, str, Any, str]]:
    """Numbers that tell most: metric, title, text, exact number, note; what is unknown has none."""
    timelines = facts["timelines"]
    if len(timelines) == 1:
        edges = timelines[0].edges
        span = (edges[-1] - edges[0]) / 1e6
        yield "", "device span", format_quantity(span, "ms"), span, "first to last event"
        for row in facts["breakdown"]:
            if row.category == IDLE and row.share is not None:
                busy = 1 - row.share
                yield "", "device busy", cell("share", busy), busy, "of the span"
    elif timelines:
        yield "", "devices", str(len(timelines)), len(timelines), "with work in the trace"
    known = {row["metric"]: row for row in facts["metrics"] if row["value"] is not None}
    for name, title in _CARDS.items():
        if name in known:
            value = known[name]["value"]
            yield name, title, format_quantity(value, known[name]["unit"]), value, name
    if steps := facts["steps"]:
        median = format_quantity(facts["step_median_ms"], "ms")
        yield "", "steps", f"{len(steps):,}", len(steps), f"median {median}"


#: Metric → what a card calls it.
_CARDS: Final = {
    "kernels": "kernels",
    "self_cuda_ms": "device time",
    "self_cpu_ms": "CPU time",
    "flops": "FLOPs",
    "peak_cuda_bytes": "peak device memory",
    "syncs": "syncs",
    "findings": "findings",
}


def _timeline_notes(facts: Facts) -> list[str]:
    timelines, steps = facts["timelines"], facts["steps"]
    if not timelines:
        return []
    lines = ["each bar is an equal share of the time, as high as the device was busy in it"]
    if any(IDLE not in row.ns_by_category for row in timelines):
        lines.append("the rest of each share is not measured: it may be idle time or lost work")
    if (more := len(timelines) - charts.MOST_DEVICES) > 0:
        lines.append(f"{plural(more, 'more device')} not drawn")
    if len(steps) > charts.MOST_STEPS:
        lines.append(f"{len(steps):,} steps are too many to draw")
    return lines


def _matches(rows: Sequence[Row]) -> str:
    """How often, and in how many places; the gain is beside it."""
    return rule_totals([{**row, "cost_ms": None} for row in rows])


def finding_row(row: Row) -> Row:
    """A finding with its module in words, and without a path that is its location."""
    module = row["module"] and f"{row['module']}{more_modules(row['module'], row['modules'])}"
    path = None if row["path"] == row["location"] else row["path"]
    return {**row, "module": module or None, "path": path, "bytes": row["bytes"] or None}


def _rooflines(rows: Sequence[KernelRow]) -> list[tuple[int | None, list[tuple[int, KernelRow]]]]:
    """The first devices, and the rows with a dot of each, numbered as in the table."""
    dots = [(number, row) for number, row in enumerate(rows, 1) if charts.has_dot(row)]
    devices = [device for device, _ in _by_device(rows)][:_PLOTS]
    found = [(device, [dot for dot in dots if dot[1].device == device]) for device in devices]
    return [(device, mine) for device, mine in found if mine]


def _categories(rows: Sequence[KernelRow]) -> list[str]:
    """Those of the dots, in the order of the breakdown."""
    used = {charts.category_of(row) for row in rows if charts.has_dot(row)}
    return [category for category in CATEGORIES if category in used]


def _without_dots(rows: Sequence[KernelRow]) -> list[str]:
    """What has no dot under the roof, and how much time that is."""
    lines = []
    left = [row for row in rows if not charts.has_dot(row)]
    if left:
        flops = sum(not row.tflops_per_s for row in left)
        parts = [f"{flops:,} without FLOPs"] if flops else []
        parts += [f"{len(left) - flops:,} without bytes"] if len(left) > flops else []
        some, every = ([{"ms": row.total_ms} for row in part] for part in (left, rows))
        share = _share(some, every, "ms", "of the device time")
        of = f"{len(left):,} of {plural(len(rows), 'row')}{share}"
        lines.append(f"not under the roof: {of}, {' and '.join(parts)}")
    if (dots := len(rows) - len(left)) > charts.MOST_DOTS:
        lines.append(f"the {charts.MOST_DOTS} dots with most time of {dots:,} are drawn")
    if (more := len(_by_device(rows)) - _PLOTS) > 0:
        lines.append(f"{plural(more, 'more device')} without a plot")
    return lines


def _times(rows: Sequence[Row], field: str) -> list[tuple[str, float, float]]:
    """The name and both times of each row that has them."""
    times = [(row["name"], row[f"{field}_a"], row[f"{field}_b"]) for row in rows]
    return [one for one in times if None not in one]


#: By the names in `trace.html`.
_ASKED: Final[Mapping[str, Any]] = {
    "charts": charts,
    "table": data_table,
    "category_class": category_class,
    "by_device": _by_device,
    "by_cost": by_cost,
    "matches": _matches,
    "left_out": _left_out,
    "cards": _cards,
    "timeline_notes": _timeline_notes,
    "rooflines": _rooflines,
    "categories": _categories,
    "without_dots": _without_dots,
    "times": _times,
    "as_dicts": lambda rows: [vars(row) for row in rows],
}
