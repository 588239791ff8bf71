"""Results are attached to pytest's reports, which xdist workers send to the controller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from pytest_torchprof.core.results import Record
from pytest_torchprof.render.session_table import raised_rules
from pytest_torchprof.rules.engine.registry import CODES
from pytest_torchprof.session.judging.offer import Offer

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pytest

    from pytest_torchprof.session.judging.verdicts import Standing


def attach(report: pytest.TestReport, standing: Standing, *, ours: bool, runs: int) -> None:
    """Attach a test's standing to its report; ``ours``: the plugin failed it."""
    untyped: Any = report
    untyped.torchprof = standing.record.sent() if standing.record is not None else None
    untyped.torchprof_ours = ours
    untyped.torchprof_offer = standing.offer.sent() if standing.offer is not None else None
    untyped.torchprof_runs = runs


def attach_faults(report: pytest.TestReport, faults: Iterable[str]) -> None:
    """Attach errors that no test caused."""
    untyped: Any = report
    untyped.torchprof_faults = list(faults)


def carries_faults(report: pytest.TestReport) -> bool:
    """Whether such errors are attached."""
    return "torchprof_faults" in report.__dict__


def faults_on(report: pytest.TestReport) -> list[str]:
    """The attached errors, each once."""
    return list(dict.fromkeys(getattr(report, "torchprof_faults", ())))


class Results:
    """The records and offers of all tests, taken from their reports."""

    def __init__(self) -> None:
        self._records: dict[str, Record] = {}
        self._offers: dict[str, Offer] = {}
        #: Node ids of tests that ran, profiled or not.
        self.ran: set[str] = set()
        #: Runs of all tests.
        self.runs = 0

    @property
    def records(self) -> list[Record]:
        """The records of all tests with a plan."""
        return list(self._records.values())

    @property
    def offers(self) -> list[Offer]:
        """The offers of tests whose values may be accepted."""
        return list(self._offers.values())

    @property
    def rule_faults(self) -> list[str]:
        """A line for each built-in rule that raised; errors in users' rules are theirs to fix."""
        raised = raised_rules(self.records)
        return [f"internal error, please report it: {raised[r]}" for r in raised if r in CODES]

    def take(self, report: pytest.TestReport) -> None:
        """Take what is attached to a report that `has_news`."""
        nodeid = report.nodeid
        self.ran.add(nodeid)
        record = getattr(report, "torchprof", None)
        if record is not None:
            self._records[nodeid] = Record.read(record)
            self._offers.pop(nodeid, None)
            if (offer := getattr(report, "torchprof_offer", None)) is not None:
                self._offers[nodeid] = Offer.read(offer)
            self.runs += getattr(report, "torchprof_runs", 0)
        known = self._records.get(nodeid)
        if known is None:
            return
        self._records[nodeid] = replace(known, outcome=_outcome(report))
        if report.failed and not getattr(report, "torchprof_ours", False):
            self._offers.pop(nodeid, None)


def has_news(report: pytest.TestReport) -> bool:
    """Whether the report matters: setup and teardown do only if they went wrong."""
    return report.when == "call" or not report.passed


def _outcome(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.skipped else "xpassed"
    return "error" if report.failed and report.when != "call" else report.outcome
