"""What a page shows of a test: numbers with their texts, in the order of importance."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_torchprof.core.units import format_change, format_pair, format_quantity, format_spread
from pytest_torchprof.render import escape
from pytest_torchprof.render.html.pictures import limits_in_words, picture
from pytest_torchprof.render.text_width import shorten, shorten_text

if TYPE_CHECKING:
    from markupsafe import Markup

    from pytest_torchprof.render.html.sources import Excerpt, Sources
    from pytest_torchprof.render.stored_report import (
        StoredFinding,
        StoredMetric,
        StoredReport,
        StoredTest,
    )

#: Statuses of tests, what needs attention first.
ORDER = ("over_budget", "regressed", "failed", "improved", "new", "not_profiled", "ok")
#: Statuses of tests that are shown open.
OPEN = ("over_budget", "regressed", "failed", "improved")
#: Statuses of metrics that are failures.
BAD = ("regressed", "over_budget")
_TONES = {"regressed": "bad", "over_budget": "bad", "failed": "bad", "improved": "good"}
_RANKS = ("over_budget", "regressed", "improved", "advisory", "not_measured", "ok", "new")
_NO_ROUNDS: Mapping[str, Sequence[float]] = {}
_NO_RATIOS: Mapping[str, float] = {}
_LONGEST_NAME, _LONGEST_HEADLINE = 160, 120
#: Digits of the hash in a test's anchor.
_DIGITS = 12


class Row(NamedTuple):
    """A metric with all that it was compared with; the numbers as in the report, and as text."""

    label: str
    metric: StoredMetric
    tone: str
    now: str
    before: str
    change: str
    limit: str
    picture: Markup | None
    spread: str


class Rest(NamedTuple):
    """A metric of which there is nothing to say but its value."""

    label: str
    value: float
    text: str


class Numbers(NamedTuple):
    """All metrics of a test or a region.

    ``rows``: those that changed or have a limit. ``same``: those that are as in the baseline, and
    ``fresh``, those without one. ``missing``: reason → metrics that were not measured.
    """

    rows: list[Row]
    same: list[Rest]
    fresh: list[Rest]
    missing: Mapping[str, list[str]]


class Gaps(NamedTuple):
    """What is missing in every test, so that it is said once: names with their reasons."""

    metrics: frozenset[tuple[str, str]] = frozenset()
    rules: frozenset[tuple[str, str]] = frozenset()

    @property
    def by_reason(self) -> list[tuple[str, Mapping[str, list[str]]]]:
        """Headings, and below them reason → names."""
        parts = (
            ("Not measured in any test", self.metrics),
            ("Rules not checked in any test", self.rules),
        )
        return [(title, _by_reason(sorted(gaps))) for title, gaps in parts if gaps]


_NO_GAPS = Gaps()


class Found(NamedTuple):
    """A finding and the lines of its place."""

    finding: StoredFinding
    gain: str
    moved: str
    excerpt: Excerpt | None


class Part(NamedTuple):
    """A named region of a test."""

    name: str
    laps: int
    numbers: Numbers
    findings: list[Found]


class TestView(NamedTuple):
    """A test as the page shows it."""

    anchor: str
    test: StoredTest
    status: str
    tone: str
    name: str
    cut: bool
    headline: str
    note: str
    pairs: str
    wall: StoredMetric | None
    time: str
    number: int
    numbers: Numbers
    findings: list[Found]
    regions: list[Part]
    unchecked: Mapping[str, list[str]]
    source: Excerpt | None

    @property
    def open(self) -> bool:
        """Whether it is shown with its contents."""
        return self.status in OPEN

    @property
    def rank(self) -> int:
        """Its place in the order of importance."""
        return ORDER.index(self.status) if self.status in ORDER else len(ORDER)


def common_gaps(report: StoredReport) -> Gaps:
    """What no profiled test has, if there are several."""
    profiled = [test for test in report.tests if test.metrics]
    if len(profiled) < 2:
        return Gaps()
    metrics = (
        {(name, metric.reason or "") for name, metric in test.metrics.items() if _is_gap(metric)}
        for test in profiled
    )
    rules = (set(test.unchecked.items()) for test in profiled)
    return Gaps(frozenset(set.intersection(*metrics)), frozenset(set.intersection(*rules)))


def views_of(
    report: StoredReport, sources: Sources, gaps: Gaps = _NO_GAPS, prefix: str = ""
) -> list[TestView]:
    """All tests, what needs attention first, without ``gaps``; anchors begin with ``prefix``."""
    seen: dict[str, int] = {}
    views = [
        _view(test, sources, gaps, _anchor(test.nodeid, prefix, seen)) for test in report.tests
    ]
    return sorted(views, key=lambda view: (view.rank, -_most(view)))


def _most(view: TestView) -> float:
    """The largest relative change for the worse, to sort by."""
    changes = [
        (row.metric.value - row.metric.baseline) / abs(row.metric.baseline)
        for row in view.numbers.rows
        if row.metric.status in BAD and row.metric.value and row.metric.baseline
    ]
    return max(changes, default=0.0)


def status_of(test: StoredTest) -> str:
    """The test's status; ``failed`` if it failed for another reason than what it needs."""
    broken = test.outcome in ("failed", "error")
    return "failed" if broken and test.status not in BAD else test.status


def _anchor(nodeid: str, prefix: str, seen: dict[str, int]) -> str:
    """The same in each report, so that links stay."""
    digest = hashlib.sha256(nodeid.encode(errors="surrogatepass")).hexdigest()[:_DIGITS]
    name = f"{prefix}test-{digest}"
    seen[name] = number = seen.get(name, 0) + 1
    return name if number == 1 else f"{name}-{number}"


def _view(test: StoredTest, sources: Sources, gaps: Gaps, anchor: str) -> TestView:
    status = status_of(test)
    full = escape.line(test.nodeid)
    name = shorten(full, _LONGEST_NAME)
    wall = test.metrics.get("wall_ms")
    known = wall is not None and wall.value is not None
    numbers = numbers_of(test.metrics, gaps, {"wall_ms": _rounds_of_a(test)}, _ratios(test))
    regions = [
        Part(label, region.laps, numbers_of(region.metrics, gaps), found(region.findings, sources))
        for label, region in test.regions.items()
    ]
    shown = shorten_text(escape.line(_headline(test, numbers, regions)), _LONGEST_HEADLINE)
    return TestView(
        anchor,
        test,
        status,
        _TONES.get(status, "plain"),
        name,
        name != full,
        shown,
        "" if test.reason is None or shown == test.reason else test.reason,
        _pairs(test.ab or {}),
        wall if known else None,
        format_quantity(wall.value, wall.unit) if wall is not None and known else "",
        sum(finding.count for finding in test.findings if not finding.accepted),
        numbers,
        found(test.findings, sources),
        regions,
        _by_reason(pair for pair in test.unchecked.items() if pair not in gaps.rules),
        sources.of_test(test.nodeid) if status in OPEN else None,
    )


def _rounds_of_a(test: StoredTest) -> list[float]:
    """The rounds of the other revision, in a report of `torchprof ab`."""
    side = (test.ab or {}).get("a")
    rounds = side.get("rounds") if isinstance(side, dict) else None
    known = rounds if isinstance(rounds, list) else []
    return [one for one in known if isinstance(one, int | float)]


def _ratios(test: StoredTest) -> dict[str, float]:
    """How many times as long B takes, by metric: that of the pairs, which `torchprof ab` prints."""
    ratio = (test.ab or {}).get("ratio")
    return {"wall_ms": ratio} if isinstance(ratio, int | float) else {}


def _pairs(ab: Mapping[str, Any]) -> str:
    """What `torchprof ab` found: ``B takes 1.102 times as long as A (1.092 … 1.112), …``."""
    ratio, low, high = (ab.get(name) for name in ("ratio", "low", "high"))
    if not all(isinstance(one, int | float) for one in (ratio, low, high)):
        return ""
    parts = [f"B takes {ratio:.3f} times as long as A ({low:.3f} … {high:.3f})"]
    confidence, pairs = ab.get("confidence"), ab.get("pairs")
    parts += [f"{confidence * 100:g} % confidence"] if isinstance(confidence, float) else []
    parts += [f"{pairs:,} pairs"] if isinstance(pairs, int) else []
    return ", ".join(parts)


def _headline(test: StoredTest, numbers: Numbers, regions: Sequence[Part]) -> str:
    """The changes that decide, else why there is none."""
    parts = [("", numbers), *((f"{part.name}: ", part.numbers) for part in regions)]
    wanted = BAD if test.status in BAD else ("improved",)
    changes = [
        f"{where}{row.label} {_short(row)}"
        for where, part in parts
        for row in part.rows
        if row.metric.status in wanted
    ]
    return ", ".join(changes) or test.reason or ""


def _short(row: Row) -> str:
    if row.metric.status == "over_budget":
        return f"{row.now}, {row.limit}"
    return row.change


def found(findings: Iterable[StoredFinding], sources: Sources) -> list[Found]:
    """Findings, those that are not accepted first, then by cost."""
    ordered = sorted(findings, key=lambda one: (one.accepted, -(one.cost_ms or 0)))
    return [
        Found(
            one,
            "" if one.cost_ms is None else format_quantity(one.cost_ms, "ms"),
            "" if one.bytes is None else format_quantity(one.bytes, "B"),
            sources.around(one.location, one.path),
        )
        for one in ordered
    ]


# -------------------------------------------------------------------- numbers


def numbers_of(
    metrics: Mapping[str, StoredMetric],
    gaps: Gaps = _NO_GAPS,
    before: Mapping[str, Sequence[float]] = _NO_ROUNDS,
    ratios: Mapping[str, float] = _NO_RATIOS,
) -> Numbers:
    """The metrics but ``gaps``, sorted by what there is to say of them.

    ``before``: the rounds of the baseline, by metric. ``ratios``: of pairs of rounds, which say
    more of a change than the medians of both sides.
    """
    rows: list[Row] = []
    same: list[Rest] = []
    fresh: list[Rest] = []
    missing: list[tuple[str, str]] = []
    for label, metric in metrics.items():
        if _is_compared(metric):
            rows.append(_row(label, metric, before.get(label, ()), ratios.get(label)))
        elif metric.value is None:
            pair = label, metric.reason or ""
            missing += [] if pair in gaps.metrics else [pair]
        else:
            rest = Rest(label, metric.value, format_quantity(metric.value, metric.unit))
            (fresh if metric.baseline is None else same).append(rest)
    rows.sort(key=lambda row: _rank(row.metric))
    return Numbers(rows, same, fresh, _by_reason(missing))


def _rank(metric: StoredMetric) -> int:
    return _RANKS.index(metric.status) if metric.status in _RANKS else len(_RANKS)


def _is_compared(metric: StoredMetric) -> bool:
    """Whether there is more to say than the value: a change, a limit, rounds, a lower bound."""
    return (
        metric.status in ("regressed", "over_budget", "improved")
        or metric.limit is not None
        or metric.least is not None
        or metric.at_least is not None
        or (metric.baseline is not None and metric.baseline != metric.value)
        or (metric.n is not None and metric.n > 1 and metric.value is not None)
    )


def _is_gap(metric: StoredMetric) -> bool:
    return metric.value is None and not _is_compared(metric)


def _row(
    label: str, metric: StoredMetric, rounds_before: Sequence[float], ratio: float | None
) -> Row:
    before, now = format_pair(metric.baseline, metric.value, metric.unit)
    if metric.value is None and metric.at_least is not None:
        now = f"at least {format_quantity(metric.at_least, metric.unit)}"
    known = metric.baseline is not None and metric.value is not None
    change = format_change(metric.baseline, metric.value) if known else ""
    return Row(
        label,
        metric,
        _TONES.get(metric.status, ""),
        now,
        before,
        change if ratio is None else format_change(1.0, ratio),
        limits_in_words(metric),
        picture(metric, rounds_before),
        format_spread(metric.spread) if (metric.n or 0) > 1 else "",
    )


def _by_reason(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    grouped: dict[str, list[str]] = {}
    for name, reason in pairs:
        grouped.setdefault(reason, []).append(name)
    return grouped
