"""Results are attached to pytest's reports, which xdist workers send to the controller."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from pytest_torchprof.core.results import Record  # noqa: TC001 - msgspec reads it
from pytest_torchprof.core.structs import Sendable
from pytest_torchprof.render.session_table import raised_rules
from pytest_torchprof.rules.engine.registry import CODES
from pytest_torchprof.session.judging.offer import Offer  # noqa: TC001 - msgspec reads it

if TYPE_CHECKING:
    import pytest


#: The one attribute of ours on a report.
_ATTRIBUTE = "torchprof"


class Told(Sendable, frozen=True):
    """What rides on the report of one phase of a test.

    ``record`` and ``offer`` are the test's so far; ``ours``: we have failed it. ``runs`` is how
    often it ran in this phase. ``faults`` are errors that no test is to blame for.
    """

    record: Record | None = None
    offer: Offer | None = None
    ours: bool = False
    runs: int = 0
    faults: tuple[str, ...] = ()

    def ride_on(self, report: pytest.TestReport) -> None:
        """Attach it: xdist sends attributes that are builtin values."""
        setattr(report, _ATTRIBUTE, self.sent())

    @classmethod
    def by(cls, report: pytest.TestReport) -> Told:
        """What rides on the report; nothing, where nothing does."""
        sent = report.__dict__.get(_ATTRIBUTE)
        return cls() if sent is None else cls.read(sent)


def carries(report: pytest.TestReport) -> bool:
    """Whether anything of ours rides on it."""
    return _ATTRIBUTE in report.__dict__


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

    def take(self, report: pytest.TestReport, told: Told) -> None:
        """Take in what rides on a report that `has_news`."""
        nodeid = report.nodeid
        self.ran.add(nodeid)
        if told.record is not None:
            self._records[nodeid] = told.record
            self._offers.pop(nodeid, None)
            if told.offer is not None:
                self._offers[nodeid] = told.offer
            self.runs += told.runs
        known = self._records.get(nodeid)
        if known is None:
            return
        self._records[nodeid] = replace(known, outcome=_outcome(report))
        if report.failed and not told.ours:
            self._offers.pop(nodeid, None)


def has_news(report: pytest.TestReport) -> bool:
    """Whether the report matters: setup and teardown do only if they went wrong."""
    return report.when == "call" or not report.passed


def _outcome(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.skipped else "xpassed"
    return "error" if report.failed and report.when != "call" else report.outcome
