"""The page of a test session's report: verdicts first, then each test, then findings.

`report.html` says what is in a section; here is what it asks for.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from markupsafe import Markup

from pytest_torchprof.core.units import format_change, format_quantity, plural
from pytest_torchprof.render import escape
from pytest_torchprof.render.escape import shorten, shorten_text
from pytest_torchprof.render.html.page import Section, macros, page, render
from pytest_torchprof.render.html.svg import Scale
from pytest_torchprof.render.report import costs_of, shared_causes

if TYPE_CHECKING:
    from pytest_torchprof.render.html.page import Sources
    from pytest_torchprof.render.report import StoredFinding, StoredMetric, StoredReport, StoredTest

#: Statuses of tests, what needs attention first.
ORDER = ("over_budget", "regressed", "failed", "improved", "new", "not_profiled", "ok")
#: Statuses of tests that are shown open.
OPEN = ("over_budget", "regressed", "failed", "improved")
#: Statuses of metrics that are failures.
BAD = ("regressed", "over_budget")
_TONES = {"regressed": "bad", "over_budget": "bad", "failed": "bad", "improved": "good"}
_RANKS = ("over_budget", "regressed", "improved", "advisory", "not_measured", "ok", "new")
_LONGEST_NAME, _LONGEST_HEADLINE = 160, 120
#: Digits of the hash in a test's anchor.
_DIGITS = 12
#: Of a larger report, the page has less as JSON.
_MOST_DATA_CHARACTERS = 800_000
#: As many tests have their numbers in the page, and all that changed; of more, only the status.
MOST_DETAILED = 2_000
#: The most rows of a table of causes or findings.
_MOST_FINDINGS = 200


def report_page(report: StoredReport, sources: Sources) -> str:
    """The whole page of one report."""
    return page(headline(report), report_sections(report, sources), data=data_of(report))


def report_sections(
    report: StoredReport, sources: Sources, *, prefix: str = "", name: str = ""
) -> list[Section]:
    """The report's parts; ``prefix`` and ``name`` tell several reports in a page apart."""
    gaps = common_gaps(report)
    views, made = views_of(report, gaps, prefix), macros("report.html", **_ASKED)
    bodies = {"Summary": made.summary(report, views, gaps, _MOST_FINDINGS)}
    if views:
        bodies["Tests"] = made.tests(views, sources, MOST_DETAILED)
    if kinds := _kinds(views):
        bodies["Findings"] = made.findings(kinds, _MOST_FINDINGS)
    of = f" of {name}" if name else ""
    return [
        Section(f"{prefix}{title.lower()}", f"{title}{of}", body, name, title)
        for title, body in bodies.items()
    ]


def data_of(report: StoredReport) -> Mapping[str, Any]:
    """The report as it is; of a large one what became of each test, and a key ``left_out``.

    The rest is in the report's own file, and most of it in the tables of the page.
    """
    document = report.document
    if len(escape.json_text(document, compact=True)) <= _MOST_DATA_CHARACTERS:
        return document
    kept = ("nodeid", "outcome", "status")
    tests = [{key: test[key] for key in kept} for test in document["tests"]]
    return {**document, "left_out": "all of a test but its outcome and its status", "tests": tests}


def headline(report: StoredReport) -> str:
    """The verdict in a sentence.

    >>> from pytest_torchprof.render.report import StoredReport
    >>> headline(StoredReport("torchprof-report/1", {}, []))
    'No test was profiled'
    """
    compared = Counter(str(test.ab["verdict"]) for test in report.tests if test.ab)
    if compared:
        each = ", ".join(f"{count:,} {verdict}" for verdict, count in compared.most_common())
        return f"{plural(sum(compared.values()), 'test')} compared: {each}"
    other = Counter(test.outcome for test in report.tests if test.status == "not_profiled")
    more = [f"{other[outcome]:,} {words}" for outcome, words in _OTHERWISE if other[outcome]]
    more += ["the session was interrupted"] if report.interrupted else []
    return "; ".join([_verdict(report), *more])


#: Outcomes that are no verdict of ours, and what a headline says of them.
_OTHERWISE: Final = (("failed", "failed otherwise"), ("error", "with an error"))


def _verdict(report: StoredReport) -> str:
    counts = Counter(test.status for test in report.tests)
    profiled = len(report.tests) - counts["not_profiled"]
    bad = [status for status in ORDER if status in BAD and counts[status]]
    if bad:
        what = " or ".join(status.replace("_", " ") for status in bad)
        return f"{sum(counts[s] for s in bad):,} of {plural(len(report.tests), 'test')} {what}"
    if not profiled:
        return "No test was profiled"
    return f"No regression in {plural(profiled, 'test')}"


# ---- Small pictures within tables, as SVG: a budget beside its limit, rounds beside the
# baseline.
#
# Colors are attributes, so that the pictures can be read where styles are blocked; the styles of
# the page replace them.

_WIDTH, _EDGE = 160, 5
#: Where the limit is in a bar that is within it.
_LIMIT_AT = 0.8


def picture(metric: StoredMetric, before: Sequence[float] = ()) -> Markup:
    """What suits the metric; empty if there is nothing to compare. ``before``: earlier rounds."""
    if metric.value is not None and metric.n is not None and metric.n > 1:
        return _of_rounds(metric, before)
    if metric.limit is not None or metric.least is not None:
        return _of_budget(metric)
    return Markup("")


def _of_budget(metric: StoredMetric) -> Markup:
    value = metric.value if metric.value is not None else metric.at_least
    limits = [limit for limit in (metric.least, metric.limit) if limit is not None]
    if value == 0 and not any(limits):  # an empty bar in each test would say nothing
        return Markup("")
    largest = max([max(limits) / _LIMIT_AT, value or 0])
    scale = _WIDTH / largest if largest > 0 else 0
    now = "not measured" if value is None else format_quantity(value, metric.unit)
    return render(
        "budget.svg",
        width=_WIDTH,
        fill=round(max(value or 0, 0) * scale, 1),
        limits=[round(min(max(limit, 0) * scale, _WIDTH - 1), 1) for limit in limits],
        over=metric.status == "over_budget",
        title=f"{now}, limit: {metric.limits}",
    )


def _of_rounds(metric: StoredMetric, before: Sequence[float]) -> Markup:
    now = metric.value or 0
    low = now if metric.low is None else metric.low
    high = now if metric.high is None else metric.high
    marks = [now, low, high, *metric.rounds, *before]
    marks += [mark for mark in (metric.min, metric.baseline, metric.limit) if mark is not None]
    x = Scale(min(marks), max(marks), _EDGE, _WIDTH - _EDGE)

    def at(value: float) -> float:
        return round(x.at(value), 1)

    quartiles = ""
    if metric.low is not None and metric.high is not None:
        low_words, high_words = (format_quantity(one, metric.unit) for one in (low, high))
        quartiles = f"quartiles {low_words} and {high_words}"
    others = {"fastest": metric.min, "baseline": metric.baseline, "limit": metric.limit}
    count, middle = plural(metric.n or 0, "round"), format_quantity(metric.value, metric.unit)
    title = [f"{count}, median {middle}", quartiles, metric.named(others)]
    return render(
        "rounds.svg",
        width=_WIDTH,
        low=at(low),
        high=at(high),
        now=at(now),
        before=None if metric.baseline is None else at(metric.baseline),
        limit=None if metric.limit is None else at(metric.limit),
        dots=sorted({at(value) for value in metric.rounds}),
        dots_before=sorted({at(value) for value in before}),
        title=", ".join(filter(None, title)),
    )


# ---- What a page shows of a test: numbers with their texts, in the order of importance.


class Row(NamedTuple):
    """A metric with all that it was compared with, as text."""

    label: str
    metric: StoredMetric
    tone: str
    now: str
    before: str
    change: str
    limit: str
    picture: Markup


class Numbers(NamedTuple):
    """All metrics of a test or a region.

    ``rows``: those that changed or have a limit. ``same``: those that are as in the baseline, and
    ``fresh``, those without one. ``missing``: reason → metrics that were not measured.
    """

    rows: list[Row]
    same: list[tuple[str, StoredMetric]]
    fresh: list[tuple[str, StoredMetric]]
    missing: Mapping[str, list[str]]


class Gaps(NamedTuple):
    """What is missing in every test, so that it is said once: names with their reasons."""

    metrics: frozenset[tuple[str, str]] = frozenset()
    rules: frozenset[tuple[str, str]] = frozenset()


class Part(NamedTuple):
    """A named region of a test."""

    name: str
    laps: int
    numbers: Numbers
    findings: list[StoredFinding]


class TestView(NamedTuple):
    """A test as the page shows it; ``open``: with its contents; ``cut``: its name is longer."""

    anchor: str
    test: StoredTest
    status: str
    tone: str
    open: bool
    name: str
    cut: bool
    headline: str
    pairs: str
    numbers: Numbers
    findings: list[StoredFinding]
    regions: list[Part]
    unchecked: Mapping[str, list[str]]


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


def views_of(report: StoredReport, gaps: Gaps, prefix: str = "") -> list[TestView]:
    """All tests, what needs attention first, without ``gaps``; anchors begin with ``prefix``."""
    seen = Counter[str]()
    views = []
    for test in report.tests:
        # The same in each report, so that links stay.
        digest = hashlib.sha256(test.nodeid.encode(errors="surrogatepass")).hexdigest()[:_DIGITS]
        seen[digest] += 1
        more = f"-{seen[digest]}" if seen[digest] > 1 else ""
        views.append(_view(test, gaps, f"{prefix}test-{digest}{more}"))
    return sorted(views, key=lambda view: (_place(ORDER, view.status), -_most(view)))


def _most(view: TestView) -> float:
    """The largest relative change for the worse, to sort by."""
    changes = [
        (row.metric.value - row.metric.baseline) / abs(row.metric.baseline)
        for row in view.numbers.rows
        if row.metric.status in BAD and row.metric.value and row.metric.baseline
    ]
    return max(changes, default=0.0)


def _view(test: StoredTest, gaps: Gaps, anchor: str) -> TestView:
    broken = test.outcome in ("failed", "error")
    status = "failed" if broken and test.status not in BAD else test.status
    numbers = numbers_of(test.metrics, gaps, test.ab or {})
    regions = [
        Part(label, region.laps, numbers_of(region.metrics, gaps), _ordered(region.findings))
        for label, region in test.regions.items()
    ]
    full = escape.line(test.nodeid)
    name = shorten(full, _LONGEST_NAME)
    headline = shorten_text(escape.line(_headline(test, numbers, regions)), _LONGEST_HEADLINE)
    return TestView(
        anchor,
        test,
        status,
        _TONES.get(status, "plain"),
        status in OPEN,
        name,
        name != full,
        headline,
        _pairs(test.ab or {}),
        numbers,
        _ordered(test.findings),
        regions,
        _by_reason(pair for pair in test.unchecked.items() if pair not in gaps.rules),
    )


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
        f"{where}{row.label} "
        + (f"{row.now}, {row.limit}" if row.metric.status == "over_budget" else row.change)
        for where, part in parts
        for row in part.rows
        if row.metric.status in wanted
    ]
    return ", ".join(changes) or test.reason or ""


def _ordered(findings: Iterable[StoredFinding]) -> list[StoredFinding]:
    """Those that are not accepted first, then by cost."""
    return sorted(findings, key=lambda one: (one.accepted, -(one.cost_ms or 0)))


def numbers_of(
    metrics: Mapping[str, StoredMetric], gaps: Gaps, ab: Mapping[str, Any] | None = None
) -> Numbers:
    """The metrics but ``gaps``, sorted by what there is to say of them.

    ``ab``: what `torchprof ab` found of the time.
    """
    found = Numbers([], [], [], {})
    missing: list[tuple[str, str]] = []
    for label, metric in metrics.items():
        if _is_compared(metric):
            found.rows.append(_row(label, metric, ab or {} if label == "wall_ms" else {}))
        elif metric.value is None:
            missing.append((label, metric.reason or ""))
        else:
            (found.fresh if metric.baseline is None else found.same).append((label, metric))
    found.rows.sort(key=lambda row: _place(_RANKS, row.metric.status))
    return found._replace(missing=_by_reason(pair for pair in missing if pair not in gaps.metrics))


def _place(order: Sequence[str], status: str) -> int:
    """Statuses of a newer version are last."""
    return order.index(status) if status in order else len(order)


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


def _row(label: str, metric: StoredMetric, ab: Mapping[str, Any]) -> Row:
    """``ab`` has the rounds of the other revision, and the ratio of pairs of rounds, which says
    more of a change than the medians of both sides.
    """
    before, now, change = metric.in_words
    if isinstance(ratio := ab.get("ratio"), int | float):
        change = format_change(1.0, ratio)
    side = ab.get("a")
    rounds = side.get("rounds") if isinstance(side, dict) else None
    known_rounds = rounds if isinstance(rounds, list) else []
    earlier = [one for one in known_rounds if isinstance(one, int | float)]
    return Row(
        label,
        metric,
        _TONES.get(metric.status, ""),
        now,
        before,
        change,
        metric.limits,
        picture(metric, earlier),
    )


def _by_reason(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    grouped: dict[str, list[str]] = {}
    for name, reason in pairs:
        grouped.setdefault(reason, []).append(name)
    return grouped


# ---- What is said of all tests together.


def _totals(views: Sequence[TestView]) -> list[tuple[str, int]]:
    """How many tests have each status, what needs attention first."""
    counts = Counter(view.status for view in views)
    return sorted(counts.items(), key=lambda one: _place(ORDER, one[0]))


def _unchecked_limits(report: StoredReport) -> int:
    """How many limits could not be checked."""
    return sum(
        metric.status == "not_measured" and (metric.limit is not None or metric.least is not None)
        for test in report.tests
        for part in (test.metrics, *(region.metrics for region in test.regions.values()))
        for metric in part.values()
    )


def _environment(environment: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and values that are known, as text; that which baselines are for comes first."""
    named = {"environment": environment.get("key"), **environment}
    return [
        (name.replace("_", " "), _in_words(value))
        for name, value in named.items()
        if value is not None and name not in ("key", "interrupted")
    ]


def _in_words(value: Any) -> str:
    if isinstance(value, Mapping) and isinstance(value.get("label"), str):
        value = value["label"]  # a side of `torchprof ab`
    return value if isinstance(value, str) else escape.json_text(value)


def _kinds(views: Sequence[TestView]) -> list[dict[str, Any]]:
    """Findings that are not accepted, once for all tests that have them; the costliest first."""
    grouped: dict[tuple[str, str | None, str], list[tuple[StoredFinding, str]]] = {}
    for view in views:
        for one in view.test.findings:
            if not one.accepted:
                key = one.rule, one.location, one.message
                grouped.setdefault(key, []).append((one, view.anchor))
    kinds = []
    for (rule, location, message), same in grouped.items():
        costs = [one.cost_ms for one, _ in same if one.cost_ms is not None]
        kinds.append(
            {
                "rule": rule,
                "location": location,
                "message": message,
                "gated": all(one.gated for one, _ in same),
                "count": sum(one.count for one, _ in same),
                # With one unknown, so is the sum.
                "cost_ms": sum(costs) if len(costs) == len(same) else None,
                "anchors": list(dict.fromkeys(anchor for _, anchor in same)),
            }
        )
    return sorted(kinds, key=lambda kind: 1 if kind["cost_ms"] is None else -kind["cost_ms"])


#: By the names in `report.html`.
_ASKED: Final[Mapping[str, Any]] = {
    "totals": _totals,
    "unchecked_limits": _unchecked_limits,
    "environment": _environment,
    "by_reason": _by_reason,
    "causes": shared_causes,
    "costs": costs_of,
}
