"""Results are attached to pytest's reports, which xdist workers send to the controller."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from pytest_torchprof.core.results import Record  # noqa: TC001 - msgspec reads it
from pytest_torchprof.core.structs import Sendable
from pytest_torchprof.render.session_table import raised_rules
from pytest_torchprof.rules.engine.registry import CODES
from pytest_torchprof.session.judging.accept_offer import Offer  # noqa: TC001 - msgspec reads it

if TYPE_CHECKING:
    import pytest


#: The one attribute of ours on a report.
_ATTRIBUTE = "torchprof"


class Attachment(Sendable, frozen=True, omit_defaults=True):
    """What we attach to the report of one phase of a test.

    ``record`` and ``offer`` are the test's so far; ``ours``: the plugin failed it. ``runs`` counts
    its runs in this phase. ``faults`` are errors that no test caused.
    """

    record: Record | None = None
    offer: Offer | None = None
    ours: bool = False
    runs: int = 0
    faults: tuple[str, ...] = ()


class Attachments:
    """What is attached to reports, until they are recorded."""

    def __init__(self) -> None:
        #: What was attached last, and as what: mostly it is read in the same process.
        self._last: tuple[Attachment, object] = Attachment(), None

    def attach(self, report: pytest.TestReport, attached: Attachment) -> None:
        """Attach it, as builtin values: xdist sends those."""
        sent = attached.sent()
        setattr(report, _ATTRIBUTE, sent)
        self._last = attached, sent

    def take(self, report: pytest.TestReport) -> Attachment:
        """Detach it, as pytest keeps all reports; an empty one if nothing is attached."""
        sent = report.__dict__.get(_ATTRIBUTE)
        if sent is None:
            return Attachment()
        delattr(report, _ATTRIBUTE)
        last, as_builtins = self._last
        self._last = Attachment(), None
        return last if sent is as_builtins else Attachment.read(sent)


def has_attachment(report: pytest.TestReport) -> bool:
    """Whether anything is attached."""
    return _ATTRIBUTE in report.__dict__


class Results:
    """The records and offers of all tests, taken from their reports."""

    def __init__(self) -> None:
        self._records: dict[str, Record] = {}
        self._offers: dict[str, Offer] = {}
        #: Node ids of tests that ran, profiled or not.
        self.ran: set[str] = set()
        #: The file and the line, from 1, of each test, by node id.
        self.lines: dict[str, tuple[str, int]] = {}
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
    def unstable_lines(self) -> list[str]:
        """The tests whose numbers vary, in lines."""
        records = {test: self._records[test] for test in self._offers}
        found = {test: one.unstable for test, one in records.items() if one.unstable}
        if not found:
            return []
        from pytest_torchprof.render.unstable_tests import unstable_tests

        return unstable_tests(found)

    @property
    def rule_faults(self) -> list[str]:
        """A line for each built-in rule that raised; errors in users' rules are theirs to fix."""
        raised = raised_rules(self.records)
        return [f"internal error, please report it: {raised[r]}" for r in raised if r in CODES]

    def take(self, report: pytest.TestReport, attached: Attachment) -> None:
        """Record a report that `has_news`, and what is attached to it."""
        nodeid = report.nodeid
        self.ran.add(nodeid)
        file, line, _ = report.location
        if line is not None:
            self.lines[nodeid] = file, line + 1
        if attached.record is not None:
            self._records[nodeid] = attached.record
            self._offers.pop(nodeid, None)
            if attached.offer is not None:
                self._offers[nodeid] = attached.offer
            self.runs += attached.runs
        known = self._records.get(nodeid)
        if known is None:
            return
        self._records[nodeid] = replace(known, outcome=_outcome(report))
        if report.failed and not attached.ours:
            self._offers.pop(nodeid, None)


def has_news(report: pytest.TestReport) -> bool:
    """Whether the report matters: setup and teardown do only if they went wrong."""
    return report.when == "call" or not report.passed


def _outcome(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.skipped else "xpassed"
    return "error" if report.failed and report.when != "call" else report.outcome
