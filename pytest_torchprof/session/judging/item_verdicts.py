"""The verdicts on tests: each made after the test's runs and kept on its item for reports."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from pytest_torchprof.core.errors import BaselineError
from pytest_torchprof.core.reasons import Reason, Why, because
from pytest_torchprof.core.results import Record
from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.render import escape
from pytest_torchprof.session.faults import reason_for
from pytest_torchprof.session.judging.judge import Judge
from pytest_torchprof.session.judging.own_failure import OwnFailure
from pytest_torchprof.session.judging.subject import (
    Subject,
    ab_command_for,
    command_for,
    name_of,
)
from pytest_torchprof.verdict.judgement import all_unchecked

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pytest_torchprof.core.settings import Settings
    from pytest_torchprof.session.judging.accept_offer import Offer
    from pytest_torchprof.session.plan import Plan
    from pytest_torchprof.session.runs.gather import Gatherer
    from pytest_torchprof.verdict.measured import Measured


class ItemVerdict(Frozen, frozen=True):
    """The result for a test: record, offer for ``--accept``, and whether the plugin fails it.

    ``error``: that of the test's own comparison of numbers.
    """

    record: Record | None = None
    offer: Offer | None = None
    failed: bool = False
    error: BaseException | None = None


_VERDICT = pytest.StashKey[ItemVerdict]()
_SUBJECT = pytest.StashKey[Subject]()


class ItemVerdicts:
    """The verdicts on the tests of a session.

    ``baseline_of`` a test file is its baseline file; ``is_shared``: whether another test has the
    name of this one.
    """

    def __init__(
        self,
        config: pytest.Config,
        settings: Settings,
        baseline_of: Callable[[Path], Path],
        is_shared: Callable[[pytest.Item], bool],
        *,
        is_worker: bool,
    ) -> None:
        self._config = config
        self._baseline_of = baseline_of
        self._is_shared = is_shared
        self._judge = Judge(settings, config.rootpath, is_worker=is_worker)
        #: The first test of each baseline that cannot be used, which says why.
        self._told: dict[Path, str] = {}

    def begin(self, item: pytest.Item) -> Callable[[Measured], bool]:
        """Start a test without a verdict; return what decides later whether to locate lines."""
        item.stash[_VERDICT] = ItemVerdict()
        return partial(self._judge.wants_lines, self._subject(item))

    def load(self, item: pytest.Item) -> None:
        """Read the test's baseline file now; errors in it are reported when the test is judged."""
        with suppress(BaselineError):
            self._judge.load(self._subject(item).baseline)

    def judge(self, item: pytest.Item, gatherer: Gatherer) -> str | None:
        """Compare what was measured, store the verdict, and return the failure message, if any."""
        verdict, message = ItemVerdict(), None
        if self._is_shared(item):
            gatherer.refuse(because(Why.SAME_NAME))
        try:
            judged = self._judge.judge(
                self._subject(item),
                gatherer.result(),
                edits=gatherer.asked.edits,
                export=gatherer.export,
            )
            gatherer.blame(*judged.faults)
            message = judged.message
            record = replace(judged.record, message=message)
            verdict = ItemVerdict(record, judged.offer)
        except BaselineError as error:
            gatherer.refuse(reason_for(error))
            subject = self._subject(item)
            first = self._told.setdefault(subject.baseline, subject.nodeid)
            again = f"baseline {subject.baseline} cannot be used: see {first}"
            message = escape.line(f"torchprof: {error if first == subject.nodeid else again}")
        except Exception as error:  # noqa: BLE001 - a fault of ours must not fail the test
            gatherer.give_up(error)
        item.stash[_VERDICT] = replace(verdict, failed=message is not None)
        return message

    def mark_failed(self, item: pytest.Item, error: BaseException) -> None:
        """Record that the test's own comparison failed it, whatever else was measured."""
        item.stash[_VERDICT] = replace(item.stash[_VERDICT], failed=True, error=error)

    def leave_out(self, item: pytest.Item, plan: Plan) -> str | None:
        """The failure message of a test excluded from profiling that has limits, if it fails."""
        message = self._judge.left_out(plan)
        item.stash[_VERDICT] = ItemVerdict(failed=message is not None)
        return message

    def forget(self) -> None:
        """Release the test's trace, judged or not."""
        self._judge.forget()

    def release(self, item: pytest.Item, *more: pytest.StashKey[Any]) -> None:
        """Release what belongs to a test that is over: pytest keeps all items."""
        keys: tuple[pytest.StashKey[Any], ...] = _VERDICT, _SUBJECT, *more
        for key in keys:
            if key in item.stash:
                del item.stash[key]

    def final(
        self,
        item: pytest.Item,
        call: pytest.CallInfo[None],
        report: pytest.TestReport,
        plan: Plan,
        gatherer: Gatherer | None,
    ) -> tuple[ItemVerdict, bool]:
        """The result for the test at this report, and whether the plugin failed it."""
        verdict = item.stash.get(_VERDICT, ItemVerdict())
        raised = call.excinfo.value if call.excinfo is not None else None
        own = raised is not None and (isinstance(raised, OwnFailure) or raised is verdict.error)
        ours = own and verdict.failed
        if call.when == "call" and report.failed and not ours:
            # Something else failed it: a strict xfail that passed, or another plugin's checks.
            item.stash[_VERDICT] = verdict = ItemVerdict(failed=verdict.failed)
        if verdict.record is None:
            left_out = because(Why.LEFT_OUT) if plan.left_out else None
            reason = (gatherer.reason if gatherer else left_out) or _why_not(report)
            record = Record(
                item.nodeid,
                "not_profiled",
                reason,
                {v.label: v for v in all_unchecked(plan.budgets, reason)},
                # A test that failed in its own comparison of measured numbers has one.
                trace=self._keep_trace(item.nodeid, gatherer, failed=report.failed),
            )
            verdict = replace(verdict, record=record)
        return verdict, ours

    def _keep_trace(self, nodeid: str, gatherer: Gatherer | None, *, failed: bool) -> str | None:
        """Keep the trace of a test that was not judged; return its path."""
        if gatherer is None:
            return None
        kept = self._judge.traces.keep(nodeid, gatherer.export, failed=failed)
        gatherer.blame(*kept.faults)
        return kept.path

    def _subject(self, item: pytest.Item) -> Subject:
        if (known := item.stash.get(_SUBJECT, None)) is not None:
            return known
        path = self._baseline_of(item.path)
        commands = (
            partial(make, self._config, item.nodeid) for make in (command_for, ab_command_for)
        )
        item.stash[_SUBJECT] = made = Subject(item.nodeid, name_of(item), path, *commands)
        return made


def _why_not(report: pytest.TestReport) -> Reason:
    """Why a test has no numbers, according to its report."""
    if hasattr(report, "wasxfail") and report.skipped:
        return because(Why.XFAILED)
    if report.when == "setup":
        return because(Why.SETUP_FAILED if report.failed else Why.SKIPPED)
    if report.failed:
        return because(Why.FAILED)
    return because(Why.SKIPPED if report.skipped else Why.WAS_NOT_MEASURED)
