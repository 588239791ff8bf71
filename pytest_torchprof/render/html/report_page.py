"""The page of a test session's report: verdicts first, then each test, then findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pytest_torchprof.core.units import format_quantity, plural
from pytest_torchprof.render import escape
from pytest_torchprof.render.html.page import page, render
from pytest_torchprof.render.html.section import Section
from pytest_torchprof.render.html.views import BAD, ORDER, common_gaps, views_of

if TYPE_CHECKING:
    from pytest_torchprof.render.html.sources import Sources
    from pytest_torchprof.render.html.views import TestView
    from pytest_torchprof.render.stored_report import StoredFinding, StoredReport

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

    >>> from pytest_torchprof.render.stored_report import StoredReport
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
