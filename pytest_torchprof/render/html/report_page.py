"""The page of a test session's report: verdicts first, then each test, then findings."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pytest_torchprof.core.units import (
    format_change,
    format_pair,
    format_quantity,
    format_spread,
    plural,
)
from pytest_torchprof.render import escape
from pytest_torchprof.render.escape import shorten, shorten_text
from pytest_torchprof.render.html.page import Section, page, render

if TYPE_CHECKING:
    from markupsafe import Markup

    from pytest_torchprof.render.html.page import Excerpt, Sources
    from pytest_torchprof.render.report import StoredFinding, StoredMetric, StoredReport, StoredTest


# ---- Small pictures within tables, as SVG: a budget beside its limit, rounds beside the
# baseline.
#
# Colors are attributes, so that the pictures can be read where styles are blocked; the styles of
# the page replace them.

_WIDTH, _EDGE = 160, 5
#: Where the limit is in a bar that is within it.
_LIMIT_AT = 0.8


class _Bar(NamedTuple):
    fill: float
    limits: Sequence[float]
    over: bool
    title: str


class _Rounds(NamedTuple):
    low: float
    high: float
    now: float
    before: float | None
    limit: float | None
    dots: Sequence[float]
    dots_before: Sequence[float]
    title: str


def picture(metric: StoredMetric, before: Sequence[float] = ()) -> Markup | None:
    """What suits the metric; None if there is nothing to compare. ``before``: earlier rounds."""
    if metric.value is not None and metric.n is not None and metric.n > 1:
        return _of_rounds(metric, before)
    if metric.limit is not None or metric.least is not None:
        return _of_budget(metric)
    return None


def _of_budget(metric: StoredMetric) -> Markup | None:
    value = metric.value if metric.value is not None else metric.at_least
    limits = [limit for limit in (metric.least, metric.limit) if limit is not None]
    if value == 0 and not any(limits):  # an empty bar in each test would say nothing
        return None
    largest = max([max(limits) / _LIMIT_AT, value or 0])
    scale = _WIDTH / largest if largest > 0 else 0
    over = metric.status == "over_budget"
    bar = _Bar(
        fill=round(max(value or 0, 0) * scale, 1),
        limits=[round(min(max(limit, 0) * scale, _WIDTH - 1), 1) for limit in limits],
        over=over,
        title=_budget_in_words(metric, value),
    )
    return render("budget.svg", bar=bar, width=_WIDTH)


def _budget_in_words(metric: StoredMetric, value: float | None) -> str:
    now = "not measured" if value is None else format_quantity(value, metric.unit)
    return f"{now}, limit: {limits_in_words(metric)}"


def limits_in_words(metric: StoredMetric) -> str:
    """``at least 2, at most 9``; empty if there is no limit."""
    limits = {"at least": metric.least, "at most": metric.limit}
    return ", ".join(
        f"{word} {format_quantity(value, metric.unit)}"
        for word, value in limits.items()
        if value is not None
    )


def _of_rounds(metric: StoredMetric, before: Sequence[float]) -> Markup:
    now = metric.value or 0
    low = now if metric.low is None else metric.low
    high = now if metric.high is None else metric.high
    marks = [now, low, high, *metric.rounds, *before]
    marks += [mark for mark in (metric.min, metric.baseline, metric.limit) if mark is not None]
    least, largest = min(marks), max(marks)
    scale = (_WIDTH - 2 * _EDGE) / (largest - least) if largest > least else 0

    def at(value: float) -> float:
        return round(_EDGE + (value - least) * scale, 1)

    rounds = _Rounds(
        at(low),
        at(high),
        at(now),
        None if metric.baseline is None else at(metric.baseline),
        None if metric.limit is None else at(metric.limit),
        sorted({at(value) for value in metric.rounds}),
        sorted({at(value) for value in before}),
        _rounds_in_words(metric),
    )
    return render("rounds.svg", rounds=rounds, width=_WIDTH)


def _rounds_in_words(metric: StoredMetric) -> str:
    parts = [
        f"{plural(metric.n or 0, 'round')}, median {format_quantity(metric.value, metric.unit)}"
    ]
    if metric.low is not None and metric.high is not None:
        low, high = (format_quantity(value, metric.unit) for value in (metric.low, metric.high))
        parts.append(f"quartiles {low} and {high}")
    if metric.min is not None:
        parts.append(f"fastest {format_quantity(metric.min, metric.unit)}")
    if metric.baseline is not None:
        parts.append(f"baseline {format_quantity(metric.baseline, metric.unit)}")
    if metric.limit is not None:
        parts.append(f"limit {format_quantity(metric.limit, metric.unit)}")
    return ", ".join(parts)


# ---- What a page shows of a test: numbers with their texts, in the order of importance.

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


#: Of a larger report, the page has less as JSON.
_MOST_DATA_CHARACTERS = 800_000
#: As many tests have their numbers in the page, and all that changed; of more, only the status.
MOST_DETAILED = 2_000
#: The most rows of the table of findings.
_MOST_FINDINGS = 200
#: Of a metric, in the data of a large report.
_KEPT = ("value", "baseline", "limit", "least", "at_least", "status")
_LEFT_OUT = "units, classes, spreads, reasons, findings, what was not measured, and baselines that "
_LEFT_OUT += "are equal to the value"


class _Total(NamedTuple):
    status: str
    number: int


class _Kind(NamedTuple):
    """Equal findings of several tests."""

    finding: StoredFinding
    number: int
    cost_ms: float | None
    gain: str
    tests: list[TestView]


def report_page(report: StoredReport, sources: Sources, *, assets: str | None = None) -> str:
    """The whole page of one report."""
    return page(
        headline(report),
        report_sections(report, sources),
        data=data_of(report),
        assets=assets,
    )


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


def report_sections(
    report: StoredReport, sources: Sources, *, prefix: str = "", name: str = ""
) -> list[Section]:
    """The report's parts; ``prefix`` and ``name`` tell several reports in a page apart."""
    gaps = common_gaps(report)
    views = views_of(report, sources, gaps, prefix)
    of = f" of {name}" if name else ""
    made = [
        Section(
            f"{prefix}summary",
            f"Summary{of}",
            render(
                "summary.html",
                report=report,
                totals=_totals(views),
                unchecked=_unchecked(report),
                environment=_environment(report.environment),
                key=report.environment.get("key"),
                gaps=gaps.by_reason,
            ),
            name,
            "Summary",
        )
    ]
    if views:
        body = render("tests.html", views=views, totals=_totals(views), most=MOST_DETAILED)
        made.append(Section(f"{prefix}tests", f"Tests{of}", body, name, "Tests"))
    kinds = _kinds(views)
    if kinds:
        shown = kinds[:_MOST_FINDINGS]
        body = render("findings.html", kinds=shown, left=len(kinds) - len(shown))
        made.append(Section(f"{prefix}findings", f"Findings{of}", body, name, "Findings"))
    return made


def _totals(views: Sequence[TestView]) -> list[_Total]:
    counts = Counter(view.status for view in views)
    known = [_Total(status, counts[status]) for status in ORDER if counts[status]]
    return known + [_Total(status, n) for status, n in counts.items() if status not in ORDER]


def _unchecked(report: StoredReport) -> int:
    """How many limits could not be checked."""
    return sum(
        metric.status == "not_measured" and (metric.limit is not None or metric.least is not None)
        for test in report.tests
        for part in (test.metrics, *(region.metrics for region in test.regions.values()))
        for metric in part.values()
    )


def _environment(environment: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and values that are known, as text."""
    return [
        (name.replace("_", " "), _in_words(value))
        for name, value in environment.items()
        if value is not None and name not in ("key", "interrupted")
    ]


def _in_words(value: Any) -> str:
    if isinstance(value, Mapping) and isinstance(value.get("label"), str):
        value = value["label"]  # a side of `torchprof ab`
    return value if isinstance(value, str) else escape.json_text(value)


def _kinds(views: Sequence[TestView]) -> list[_Kind]:
    """Findings that are not accepted, once for all tests that have them; the costliest first."""
    grouped: dict[tuple[str, str | None, str], list[tuple[StoredFinding, TestView]]] = {}
    for view in views:
        for finding in view.test.findings:
            if not finding.accepted:
                key = finding.rule, finding.location, finding.message
                grouped.setdefault(key, []).append((finding, view))
    kinds = []
    for same in grouped.values():
        costs = [finding.cost_ms for finding, _ in same if finding.cost_ms is not None]
        # With one unknown, so is the sum.
        cost = sum(costs) if len(costs) == len(same) else None
        kinds.append(
            _Kind(
                same[0][0],
                sum(finding.count for finding, _ in same),
                cost,
                "" if cost is None else format_quantity(cost, "ms"),
                list({view.anchor: view for _, view in same}.values()),
            )
        )
    return sorted(kinds, key=lambda kind: 1 if kind.cost_ms is None else -kind.cost_ms)


# -------------------------------------------------------------------- data


def data_of(report: StoredReport) -> Mapping[str, Any]:
    """The report as it is; of a large one less, with a key ``left_out`` that says what is missing.

    That is in the report's own file, and most of it in the tables of the page.
    """
    document = report.document
    if _is_small(document):
        return document
    left = {**document, "left_out": _LEFT_OUT, "tests": list(map(_numbers, document["tests"]))}
    if _is_small(left):
        return left
    return {
        **left,
        "left_out": f"{_LEFT_OUT}, and metrics that did not change",
        "tests": list(map(_changes, left["tests"])),
    }


def _is_small(data: Mapping[str, Any]) -> bool:
    return len(escape.json_text(data, compact=True)) <= _MOST_DATA_CHARACTERS


def _numbers(test: Mapping[str, Any]) -> dict[str, Any]:
    """A test with the known numbers of its metrics."""
    kept: dict[str, Any] = {key: test[key] for key in ("nodeid", "outcome", "status")}
    kept["metrics"] = _known(test["metrics"])
    if test.get("regions"):
        kept["regions"] = {
            name: {"laps": region["laps"], "metrics": _known(region["metrics"])}
            for name, region in test["regions"].items()
        }
    return kept


def _known(metrics: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    kept = {}
    for label, metric in metrics.items():
        known = {key: metric[key] for key in _KEPT if metric.get(key) is not None}
        if known.get("status") == "ok":
            del known["status"]
        if "baseline" in known and known["baseline"] == known.get("value"):
            del known["baseline"]
        if known.keys() - {"status"}:
            kept[label] = known
    return kept


def _changes(test: Mapping[str, Any]) -> dict[str, Any]:
    """A test of `_numbers` with its metrics that changed."""
    metrics = {label: one for label, one in test["metrics"].items() if "status" in one}
    return {**{key: test[key] for key in ("nodeid", "outcome", "status")}, "metrics": metrics}
