"""The page of a trace, and of two traces side by side."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from markupsafe import Markup
from msgspec.structs import replace

from pytest_torchprof.analysis.breakdown import IDLE
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.core.units import format_change, format_pair, format_quantity, plural
from pytest_torchprof.render.findings import by_cost, gaps, more_modules, rule_totals
from pytest_torchprof.render.html.charts import (
    MOST_DEVICES,
    MOST_DOTS,
    MOST_STEPS,
    Change,
    Dot,
    bandwidth_plot,
    breakdown_parts,
    category_of,
    change_bars,
    dots_of,
    icicle,
    idle_parts,
    memory_plot,
    roofline_plot,
    stacked_bar,
    timeline,
    tree_of,
)
from pytest_torchprof.render.html.page import Section, data_table, metrics_table, notes
from pytest_torchprof.render.html.svg import (
    category_class,
    element,
    exact,
    joined,
    keys,
    nothing,
    shown,
)
from pytest_torchprof.render.kernel_names import readable_kernel
from pytest_torchprof.render.table import cell
from pytest_torchprof.work.kernels import CATEGORIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_torchprof.analysis.breakdown import BreakdownRow, BusyTimeline
    from pytest_torchprof.analysis.kernels import KernelRow
    from pytest_torchprof.analysis.memory import MemoryPoint, PeakMemory
    from pytest_torchprof.analysis.operators import TreeRow
    from pytest_torchprof.places.idle_rows import IdleRow
    from pytest_torchprof.render.html.charts import ChipRoof, StepMark


# ---- What the page of a trace tells: the tables of the commands, and why a part is empty.

#: A row as ``--format json`` prints it.
Row = Mapping[str, Any]


class DeviceTime(Frozen, frozen=True):
    """Where the time goes. ``without`` says why there is no device time, if there is none.

    ``idle_without``: why there is no idle time.
    """

    breakdown: Sequence[BreakdownRow]
    timelines: Sequence[BusyTimeline]
    steps: Sequence[StepMark]
    idle_causes: Sequence[IdleRow]
    idle: Sequence[Row]
    without: str
    idle_without: str
    notes: Sequence[str]


class Found(Frozen, frozen=True):
    """What the rules found, the costliest first; ``unchecked`` and ``errors`` by rule, in words."""

    rows: Sequence[Row]
    unchecked: Mapping[str, str]
    errors: Mapping[str, str]
    notes: Sequence[str]


class Kernels(Frozen, frozen=True):
    """Kernels by operator, with a roof for each device that has one."""

    rows: Sequence[KernelRow]
    table: Sequence[Row]
    roofs: Mapping[int | None, ChipRoof]
    without: str
    notes: Sequence[str]


class Tree(Frozen, frozen=True):
    """A tree of the trace's work, and what its parts are, if not those that were asked for."""

    rows: Sequence[TreeRow]
    note: str


class Operators(Frozen, frozen=True):
    """Key averages by name, and two trees."""

    table: Sequence[Row]
    fields: Sequence[str]
    modules: Tree
    stacks: Tree
    without: str
    notes: Sequence[str]


class Memory(Frozen, frozen=True):
    """Peaks by device, and levels over time; ``without`` says why there are none."""

    peaks: Sequence[PeakMemory]
    points: Sequence[MemoryPoint]
    without: str
    notes: Sequence[str]


class TraceFacts(Frozen, frozen=True):
    """All of a page. ``label`` distinguishes several traces, and is empty for one."""

    label: str
    heading: str
    warnings: Sequence[str]
    events: int
    metrics: Sequence[Row]
    step_name: str
    step_numbers: Sequence[int]
    step_median_ms: float | None
    time: DeviceTime
    found: Found
    kernels: Kernels
    operators: Operators
    memory: Memory


class DiffFacts(Frozen, frozen=True):
    """A comparison of two traces; ``label`` distinguishes ranks."""

    label: str
    headings: tuple[str, str]
    metrics: Sequence[tuple[Row, Row]]
    growth: Sequence[Row]
    metric_note: str
    operators: Sequence[Row]
    kernels: Sequence[Row]
    notes: Sequence[str]


# ---- Kernels of a trace: the roofline plot of each device, and the table.

KERNEL_ROWS: Final = 50
#: Devices with a plot of their own; more are those of a node, which do the same.
_PLOTS: Final = 4
_FIELDS: Final = (
    *("operator", "kernel", "calls", "total_ms", "ms_to_gain", "tflops_per_s", "gb_per_s"),
    *("arithmetic_intensity", "compute_pct", "bandwidth_pct", "bound"),
)
_HEADINGS: Final = {"total_ms": "time", "bandwidth_pct": "memory", "bound": "bound by"}


def kernels(found: Kernels) -> Iterable[Markup | None]:
    """A plot for each device, then all kernels, copies and memsets, most time first."""
    if not found.rows:
        yield nothing(found.without)
        return
    dots, without = dots_of(found.rows)
    devices = dict.fromkeys(row.device for row in found.rows)
    for device in list(devices)[:_PLOTS]:
        name = "The device" if device is None else f"Device {device}"
        of = f"{name}: " if len(devices) > 1 else ""
        mine = [dot for dot in dots if dot.row.device == device]
        if mine:
            yield element("h3", f"{of}Roofline")
            yield roofline_plot(mine, found.roofs.get(device))
        moving = [one for one in without if one[1].device == device and one[1].bandwidth_pct]
        if moving:
            yield element("h3", f"{of}Memory bandwidth, where no FLOPs are counted")
            yield bandwidth_plot(moving)
    yield _categories(found.rows)
    yield notes(_no_place(found.rows, dots, without, len(devices) - _PLOTS))
    yield element("h3", "By operator and kernel")
    yield data_table(
        "kernels",
        found.table[:KERNEL_ROWS],
        ("device", *_FIELDS) if len(devices) > 1 else _FIELDS,
        numbered=True,
        headings=_HEADINGS,
    )
    yield notes([*_left_out(found.rows), *found.notes])


def _categories(rows: Sequence[KernelRow]) -> Markup:
    """What the colors of the dots are, in the order of the breakdown."""
    used = {category_of(row) for row in rows if row.bandwidth_pct or row.arithmetic_intensity}
    names = [category for category in CATEGORIES if category in used]
    return keys([(category_class(name), name) for name in names])


def _no_place(
    rows: Sequence[KernelRow],
    dots: Sequence[Dot],
    without: Sequence[tuple[int, KernelRow]],
    more: int,
) -> list[str]:
    """What has no dot under the roof, what has none at all, and how much time that is."""
    lines = []
    whole = sum(row.total_ms for row in rows)

    def of(some: Sequence[KernelRow]) -> str:
        part = sum(row.total_ms for row in some)
        share = f" ({cell('share', part / whole)} of the device time)" if whole else ""
        return f"{len(some):,} of {plural(len(rows), 'row')}{share}"

    left = [row for _, row in without]
    if left:
        flops = sum(not row.tflops_per_s for row in left)
        parts = [f"{flops:,} without FLOPs"] if flops else []
        parts += [f"{len(left) - flops:,} without bytes"] if len(left) > flops else []
        lines.append(f"not under the roof: {of(left)}, {' and '.join(parts)}")
    if nowhere := [row for row in left if not row.bandwidth_pct]:
        lines.append(f"in no plot: {of(nowhere)}, without FLOPs and without a share of bandwidth")
    if len(dots) > MOST_DOTS:
        lines.append(f"the {MOST_DOTS} dots with most time of {len(dots):,} are drawn")
    if more > 0:
        lines.append(f"{plural(more, 'more device')} without a plot")
    return lines


def _left_out(rows: Sequence[KernelRow]) -> list[str]:
    rest = rows[KERNEL_ROWS:]
    if not rest:
        return []
    part, whole = sum(row.total_ms for row in rest), sum(row.total_ms for row in rows)
    share = f" ({cell('share', part / whole)} of the device time)" if whole else ""
    return [f"{plural(len(rest), 'more row')}{share} are left out: torchprof kernels has all"]


# ---- What the rules found in a trace: a block for each rule, with places, gain and fix.

#: Places of a rule that are shown.
PLACES: Final = 10
_FINDING_FIELDS: Final = (
    "count",
    "cost_ms",
    "share",
    "bytes",
    "location",
    "path",
    "module",
    "message",
)


def findings(found: Found) -> Iterable[Markup | None]:
    """The costliest rule first, then what was not checked."""
    if not found.rows:
        yield nothing("no findings")
    for rule in by_cost(found.rows):
        yield _block(rule, [row for row in found.rows if row["rule"] == rule])
    lines = [*gaps("not checked", found.unchecked), *gaps("failed, so not checked", found.errors)]
    yield notes([*lines, *found.notes])


def _block(rule: str, rows: Sequence[Row]) -> Markup:
    known = [row["cost_ms"] for row in rows if row["cost_ms"] is not None]
    gain = sum(known) if known else None
    words = f"{format_quantity(gain, 'ms')} to gain" if gain is not None else "unknown gain"
    one_message = len({row["message"] for row in rows}) == 1
    fields = [field for field in _FINDING_FIELDS if field != "message" or not one_message]
    places = [{**row, "module": _module(row), "path": _path(row)} for row in rows[:PLACES]]
    for place in places:
        place["bytes"] = place["bytes"] or None
    left = len(rows) - PLACES
    more = f"{plural(left, 'more place')}: torchprof lint --limit 0 shows all" if left > 0 else ""
    fixes = dict.fromkeys(row["fix"] for row in rows if row["fix"])
    return element(
        "div",
        element(
            "h3",
            element("code", rule),
            element("span", _matches(rows), class_="quiet"),
            element("span", words, class_="t-gain", data_value=exact(gain)),
        ),
        element("p", shown(rows[0]["message"], 400)) if one_message else None,
        *(element("p", element("b", "Fix: "), shown(fix, 400), class_="t-fix") for fix in fixes),
        data_table(f"findings-{rule}", places, fields, headings={"cost_ms": "gain"}),
        notes([more] if more else []),
        class_="t-finding",
        data_rule=rule,
    )


def _matches(rows: Sequence[Row]) -> str:
    """How often, and in how many places."""
    return rule_totals([{**row, "cost_ms": None} for row in rows])


def _path(row: Row) -> str | None:
    """The operators; None where the location is the same."""
    return None if row["path"] == row["location"] else row["path"]


def _module(row: Row) -> str | None:
    module = row["module"]
    return f"{module}{more_modules(module, row['modules'])}" if module else None


# ---- The sections of a page about one trace, from the tables that the commands print.
#
# Of a large trace there are aggregates only; what a section leaves out, it says.

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
        ("findings", "Findings", findings(facts.found)),
        ("kernels", "Kernels", kernels(facts.kernels)),
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
    folder = resources.files("pytest_torchprof.render.html")
    return (folder / "assets" / "plots.css").read_text("utf-8")


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
    yield notes(
        _sections_left_out(time.idle, IDLE_ROWS, "time_ms", "of the idle time", "torchprof idle")
    )


def _sections_left_out(
    rows: Sequence[Row], limit: int, field: str, of: str, command: str
) -> list[str]:
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
    left = _sections_left_out(
        operators.table, OPERATOR_ROWS, field, f"of the {what}", "torchprof ops"
    )
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
        yield notes(_sections_left_out(rows, LIVE_ROWS, "bytes", "of the peak", "torchprof memory"))
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


# ---- The sections of a page that compares two traces.

ROWS: Final = 50
_OPERATORS: Final = (
    *("name", "change", "calls_a", "calls_b", "self_cpu_ms_a", "self_cpu_ms_b"),
    *("self_cuda_ms_a", "self_cuda_ms_b"),
)
_KERNELS: Final = ("name", "change", "calls_a", "calls_b", "cuda_ms_a", "cuda_ms_b")


def diff_sections(facts: DiffFacts, prefix: str = "") -> list[Section]:
    """What the traces are, then metrics, operators and kernels, the largest change first.

    ``prefix`` is that of their anchors, where a page compares several traces.
    """
    parts: list[tuple[str, str, Iterable[Markup | None]]] = [
        ("changes", "Overview", _diff_overview(facts)),
        ("changed-metrics", "Metrics", _diff_metrics(facts.metrics, facts.metric_note)),
        ("changed-operators", "Operators", _rows("operators", facts.operators, _OPERATORS)),
        ("changed-kernels", "Kernels", _rows("kernels", facts.kernels, _KERNELS)),
    ]
    return [titled(prefix, facts.label, *part) for part in parts]


def _diff_overview(facts: DiffFacts) -> Iterable[Markup | None]:
    for side, heading in zip("AB", facts.headings, strict=True):
        yield element("p", element("b", f"{side} "), shown(heading, 400), class_="quiet")
    yield element("div", *map(_diff_card, facts.growth), class_="t-cards") if facts.growth else None
    yield notes(facts.notes)


def _diff_card(row: Row) -> Markup:
    before, now = format_pair(row["before"], row["now"], "ms")
    change = format_change(row["before"], row["now"])
    return element(
        "div",
        element("span", row["metric"], class_="t-what"),
        element("span", change, class_="t-value", data_value=exact(row["percent"])),
        element("span", f"{before} → {now}", class_="t-note"),
        class_="t-card",
        data_growth=row["metric"],
    )


def _diff_metrics(pairs: Sequence[tuple[Row, Row]], note: str) -> Iterable[Markup | None]:
    """Metrics that one of the traces has, those that changed first."""
    known = [pair for pair in pairs if any(row["value"] is not None for row in pair)]
    if not known:
        yield nothing("no metric is measured in either trace")
        return
    known.sort(key=lambda pair: pair[0]["value"] == pair[1]["value"])
    body = []
    for a, b in known:
        before, now = a["value"], b["value"]
        cells = [
            element("td", words, class_="number", data_value=exact(value))
            for words, value in zip(format_pair(before, now, a["unit"]), (before, now), strict=True)
        ]
        change = element("td", format_change(before, now), class_="number")
        name = element("th", element("code", a["metric"]), scope="row")
        body.append(element("tr", name, *cells, change, data_metric=a["metric"]))
    heads = (("metric", None), ("A", "number"), ("B", "number"), ("change", "number"))
    yield metrics_table(heads, body)
    left = [row["metric"] for row, other in pairs if row["value"] is other["value"] is None]
    lines = [f"measured in neither trace: {', '.join(left)}"] if left else []
    yield notes([note, *lines] if note else lines)


def _rows(name: str, rows: Sequence[Row], fields: Sequence[str]) -> Iterable[Markup | None]:
    """The largest changes as bars, and a table."""
    changed = [row for row in rows if row["change"] != "same"]
    kernels = name == "kernels"
    if not changed:
        yield nothing(f"no {name[:-1]} changed" if rows else f"neither trace has {name}")
        return
    shown_rows = changed[:ROWS]
    if kernels:
        shown_rows = [{**row, "name": readable_kernel(row["name"])} for row in shown_rows]
    device = any(row["self_cuda_ms_a"] or row["self_cuda_ms_b"] for row in changed)
    field, what = ("self_cuda_ms", "device time") if device else ("self_cpu_ms", "self CPU time")
    found = [
        Change(
            readable_kernel(row["name"]) if kernels else row["name"],
            row[f"{field}_a"],
            row[f"{field}_b"],
        )
        for row in changed
        if row[f"{field}_a"] is not None and row[f"{field}_b"] is not None
    ]
    found.sort(key=lambda change: -abs(change.ms))
    if any(change.ms for change in found):
        yield change_bars(f"changed-{name}", found, what)
    yield data_table(name, shown_rows, fields)
    lines = []
    if len(changed) > ROWS:
        lines.append(f"{plural(len(changed) - ROWS, 'more change')} are left out: "
                     "torchprof diff --limit 0 has all")  # fmt: skip
    if same := len(rows) - len(changed):
        lines.append(f"{plural(same, 'more row')} unchanged")
    yield notes(lines)
