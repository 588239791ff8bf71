"""The sections of a page about one trace, from the tables that the commands print.

Of a large trace there are aggregates only; what a section leaves out, it says.
"""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from markupsafe import Markup
from msgspec.structs import replace

from pytest_torchprof.analysis.breakdown import IDLE
from pytest_torchprof.core.units import format_quantity, plural
from pytest_torchprof.render.html import finding_blocks, kernel_section
from pytest_torchprof.render.html.data_table import data_table, metrics_table, notes
from pytest_torchprof.render.html.plots.icicle import icicle, tree_of
from pytest_torchprof.render.html.plots.memory_plot import memory_plot
from pytest_torchprof.render.html.plots.stacked_bar import (
    breakdown_parts,
    idle_parts,
    stacked_bar,
)
from pytest_torchprof.render.html.plots.svg import element, exact, joined, nothing, shown
from pytest_torchprof.render.html.plots.timeline import MOST_DEVICES, MOST_STEPS, timeline
from pytest_torchprof.render.html.section import Section
from pytest_torchprof.render.row_formats import cell

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_torchprof.render.html.trace_facts import (
        DeviceTime,
        Memory,
        Operators,
        Row,
        TraceFacts,
        Tree,
    )

#: Rows of a table.
IDLE_ROWS: Final = 20
OPERATOR_ROWS: Final = 50
LIVE_ROWS: Final = 30
_BREAKDOWN: Final = ("category", "time_ms", "share", "total_ms", "calls")


def trace_sections(facts: TraceFacts, prefix: str = "") -> list[Section]:
    """The sections, in the order of reading: what it is, where the time goes, what to do.

    ``prefix`` is that of their anchors, where a page is of several traces.
    """
    parts: list[tuple[str, str, Iterable[Markup | None]]] = [
        ("overview", "Overview", _overview(facts)),
        ("time", "Device time", _device_time(facts.time)),
        ("idle", "Idle time", _idle(facts.time)),
        ("findings", "Findings", finding_blocks.findings(facts.found)),
        ("kernels", "Kernels", kernel_section.kernels(facts.kernels)),
        ("operators", "Operators", _operators(facts.operators)),
        ("memory", "Memory", _memory(facts.memory)),
        ("metrics", "Metrics", _metrics(facts.metrics)),
    ]
    return [titled(prefix, facts.label, *part) for part in parts]


def titled(
    prefix: str, label: str, anchor: str, title: str, body: Iterable[Markup | None]
) -> Section:
    """A section; ``label`` says of which trace, and parts that are None are left out."""
    of = shown(label, 60)
    before = f"{of}: " if of else ""
    parts = [part for part in body if part is not None]
    return Section(f"{prefix}{anchor}", f"{before}{title}", joined(parts), of, title)


def plot_styles() -> str:
    """The colors of all plots, as CSS."""
    folder = resources.files("pytest_torchprof.render.html.plots")
    return (folder / "plots.css").read_text("utf-8")


def with_styles(sections: Sequence[Section]) -> list[Section]:
    """The same sections, of which the first has `plot_styles`, once a page."""
    first, *others = sections
    style = element("style", Markup(plot_styles()))  # noqa: S704 - our own file
    return [replace(first, body=style + first.body), *others]


# ------------------------------------------------------------------------------- the overview


def _overview(facts: TraceFacts) -> Iterable[Markup | None]:
    yield element("p", shown(facts.heading, 400), class_="quiet")
    yield element("div", *_cards(facts), class_="t-cards")
    yield notes(facts.warnings)


def _cards(facts: TraceFacts) -> Iterable[Markup]:
    """Numbers that tell most; what is unknown has none."""
    timelines = facts.time.timelines
    if len(timelines) == 1:
        edges = timelines[0].edges
        span = (edges[-1] - edges[0]) / 1e6
        yield _card("device span", format_quantity(span, "ms"), "first to last event", "", span)
        idle = [row.share for row in facts.time.breakdown if row.category == IDLE]
        for share in idle:
            if share is not None:
                yield _card("device busy", cell("share", 1 - share), "of the span", "", 1 - share)
    elif timelines:
        count = len(timelines)
        yield _card("devices", str(count), "with work in the trace", "", count)
    known = {row["metric"]: row for row in facts.metrics if row["value"] is not None}
    for name, title in _CARDS:
        if name in known:
            metric = known[name]
            words = format_quantity(metric["value"], metric["unit"])
            yield _card(title, words, name, name, metric["value"])
    if facts.step_numbers:
        median = facts.step_median_ms
        what = f"median {format_quantity(median, 'ms')}" if median is not None else ""
        number = len(facts.step_numbers)
        yield _card("steps", f"{number:,}", what or shown(facts.step_name, 40), "", number)


#: Metric → what a card calls it.
_CARDS: Final = (
    ("kernels", "kernels"),
    ("self_cuda_ms", "device time"),
    ("self_cpu_ms", "CPU time"),
    ("flops", "FLOPs"),
    ("peak_cuda_bytes", "peak device memory"),
    ("syncs", "syncs"),
    ("findings", "findings"),
)


def _card(what: str, value: str, note: str, metric: str, number: Any) -> Markup:
    return element(
        "div",
        element("span", what, class_="t-what"),
        element("span", value, class_="t-value", data_value=exact(number)),
        element("span", note, class_="t-note") if note != what else None,
        class_="t-card",
        data_metric=metric or None,
    )


# ------------------------------------------------------------------------------ time and idle


def _device_time(time: DeviceTime) -> Iterable[Markup | None]:
    if not time.breakdown:
        yield nothing(time.without or "the trace has no operators and no device events")
        return
    if time.without:
        yield nothing(f"{time.without}: this is the self time of the operators on the CPU")
    for device in dict.fromkeys(row.device for row in time.breakdown):
        rows = [row for row in time.breakdown if row.device == device]
        name = "the CPU's operators" if time.without else _device(device)
        if len({row.device for row in time.breakdown}) > 1:
            yield element("h3", name)
        if parts := breakdown_parts(rows):
            yield stacked_bar("breakdown", parts, f"Where the time of {name} goes")
    if time.timelines:
        yield element("h3", "Over time")
        yield timeline(time.timelines, time.steps)
    yield notes([*time.notes, *_timeline_notes(time)])
    yield element(
        "details",
        element("summary", "Table"),
        data_table(
            "breakdown",
            [{field: getattr(row, field) for field in ("device", *_BREAKDOWN)} for row in
             time.breakdown],
            ("device", *_BREAKDOWN),
        ),
    )  # fmt: skip


def _device(device: int | None) -> str:
    return "the device" if device is None else f"device {device}"


def _timeline_notes(time: DeviceTime) -> list[str]:
    if not time.timelines:
        return []
    lines = ["each bar is an equal share of the time, as high as the device was busy in it"]
    if any(IDLE not in row.ns_by_category for row in time.timelines):
        lines.append("the rest of each share is not measured: it may be idle time or lost work")
    if (more := len(time.timelines) - MOST_DEVICES) > 0:
        lines.append(f"{plural(more, 'more device')} not drawn")
    if len(time.steps) > MOST_STEPS:
        lines.append(f"{len(time.steps):,} steps are too many to draw")
    return lines


def _idle(time: DeviceTime) -> Iterable[Markup | None]:
    if not time.idle_causes:
        yield nothing(time.idle_without or "no device was idle between its first and last event")
        return
    devices = dict.fromkeys(row.device for row in time.idle_causes)
    for device in devices:
        rows = [row for row in time.idle_causes if row.device == device]
        if len(devices) > 1:
            yield element("h3", _device(device))
        name = f"What the host did while {_device(device)} was idle"
        yield stacked_bar("idle", idle_parts(rows), name)
    fields = ["device"] if len(devices) > 1 else []
    fields += ["cause", "what", "time_ms", "share", "gaps", "longest_ms", "where"]
    places = [{**row, "where": row["location"] or row["path"]} for row in time.idle[:IDLE_ROWS]]
    yield data_table("idle", places, fields)
    yield notes(_left_out(time.idle, IDLE_ROWS, "time_ms", "of the idle time", "torchprof idle"))


def _left_out(rows: Sequence[Row], limit: int, field: str, of: str, command: str) -> list[str]:
    """How many rows are not shown, and how much they have; nothing if all are."""
    rest = rows[limit:]
    if not rest:
        return []
    whole = sum(row[field] or 0 for row in rows)
    part = sum(row[field] or 0 for row in rest)
    share = f" ({cell('share', part / whole)} {of})" if whole else ""
    return [f"{plural(len(rest), 'more row')}{share} are left out: {command} has all"]


# -------------------------------------------------------------------------- operators, memory


def _operators(operators: Operators) -> Iterable[Markup | None]:
    if not operators.table:
        yield nothing(operators.without)
        return
    on_device = any(row.cuda_ms for row in operators.stacks.rows)
    what = "device time" if on_device else "CPU time"
    for name, title, tree in (
        ("icicle-module", "By module", operators.modules),
        ("icicle-stack", "By stack", operators.stacks),
    ):
        if name == "icicle-stack" and _same(tree, operators.modules):
            continue
        yield element("h3", "By annotation" if tree.note and tree.rows else title)
        root = tree_of(tree.rows, on_device=on_device, chains=name == "icicle-stack")
        if not root.total:
            yield nothing(f"the trace has no {what}")
            continue
        label = f"{what} {title.lower()}, from the outermost down; a part is as wide as its time"
        yield icicle(name, root, label[0].upper() + label[1:], what)
        yield notes([tree.note]) if tree.note else None
    yield element("h3", "By operator")
    yield data_table("operators", operators.table[:OPERATOR_ROWS], operators.fields)
    field = "self_cuda_ms" if on_device else "self_cpu_ms"
    left = _left_out(operators.table, OPERATOR_ROWS, field, f"of the {what}", "torchprof ops")
    yield notes([*left, *operators.notes])


def _same(a: Tree, b: Tree) -> bool:
    """Whether both are of annotations, since the trace has neither modules nor stacks."""
    return bool(a.note and b.note) and list(a.rows) == list(b.rows)


def _memory(memory: Memory) -> Iterable[Markup | None]:
    if not memory.peaks:
        yield nothing(memory.without)
        return
    for peak in memory.peaks:
        yield element("h3", shown(peak.device, 40))
        points = [point for point in memory.points if point.device == peak.device]
        yield memory_plot(points, peak) if points else nothing("nothing was allocated")
        rows = [{"operator": r.operator, "bytes": r.bytes, "count": r.count} for r in peak.rows]
        yield (
            data_table(
                f"memory-{peak.device}",
                rows[:LIVE_ROWS],
                ("operator", "bytes", "count"),
                headings={"operator": "live at the peak, by operator", "count": "blocks"},
            )
            if rows
            else None
        )
        yield notes(_left_out(rows, LIVE_ROWS, "bytes", "of the peak", "torchprof memory"))
    yield notes(memory.notes)


# ------------------------------------------------------------------------------------ metrics


def _metrics(rows: Sequence[Row]) -> Iterable[Markup | None]:
    body = [
        element(
            "tr",
            element("th", element("code", row["metric"]), scope="row"),
            element(
                "td",
                format_quantity(row["value"], row["unit"]),
                class_="number",
                data_value=exact(row["value"]),
            ),
            element("td", shown(row["reason"] or "", 400), class_="t-words"),
            data_metric=row["metric"],
        )
        for row in sorted(rows, key=lambda row: row["value"] is None)
    ]
    heads = (("metric", None), ("value", "number"), ("why it is not measured", None))
    yield metrics_table(heads, body)
