"""The sections of a page that compares two traces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_torchprof.core.units import format_change, format_pair, plural
from pytest_torchprof.render.html.data_table import data_table, metrics_table, notes
from pytest_torchprof.render.html.plots.change_bars import Change, change_bars
from pytest_torchprof.render.html.plots.svg import element, exact, nothing, shown
from pytest_torchprof.render.html.trace_sections import titled
from pytest_torchprof.render.short_kernel_names import readable_kernel

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from markupsafe import Markup

    from pytest_torchprof.render.html.section import Section
    from pytest_torchprof.render.html.trace_facts import DiffFacts, Row

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
        ("changes", "Overview", _overview(facts)),
        ("changed-metrics", "Metrics", _metrics(facts.metrics, facts.metric_note)),
        ("changed-operators", "Operators", _rows("operators", facts.operators, _OPERATORS)),
        ("changed-kernels", "Kernels", _rows("kernels", facts.kernels, _KERNELS)),
    ]
    return [titled(prefix, facts.label, *part) for part in parts]


def _overview(facts: DiffFacts) -> Iterable[Markup | None]:
    for side, heading in zip("AB", facts.headings, strict=True):
        yield element("p", element("b", f"{side} "), shown(heading, 400), class_="quiet")
    yield element("div", *map(_card, facts.growth), class_="t-cards") if facts.growth else None
    yield notes(facts.notes)


def _card(row: Row) -> Markup:
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


def _metrics(pairs: Sequence[tuple[Row, Row]], note: str) -> Iterable[Markup | None]:
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
