"""What is attached to pytest's reports, and what xdist's workers send at their end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from execnet.gateway_base import dumps, loads

from pytest_torchprof.baseline.inline import Edit
from pytest_torchprof.core.unknown import Why, because
from pytest_torchprof.core.values import Baseline, Budget, MissingValue, Record, Verdict
from pytest_torchprof.session.reports import (
    Attachments,
    Results,
    WorkerOutput,
    has_attachment,
)
from pytest_torchprof.session.verdicts import Offer, Outcome

GAP = because(*Why.NO_SHAPES)
BUDGET = Budget("kernels", 2, op="aten::mm")
RECORD = Record(
    "a.py::test_a",
    "over_budget",
    because(*Why.CHANGED, name="ops", before=1, now=2),
    {
        "ops": Verdict("ops", 2, "regressed", 1),
        BUDGET.label: Verdict("kernels", MissingValue(GAP), "not_measured", None, 2, scope=BUDGET),
    },
    unchecked={"host-sync": GAP},
)
OFFER = Offer("a.json", "test_a", "cpu", Baseline({"ops": 2}), edits=(Edit("a.py", 3, "x", "y"),))


def report(outcome: Any = "passed", when: Any = "call") -> pytest.TestReport:
    return pytest.TestReport("a.py::test_a", ("a.py", 1, "test_a"), {}, outcome, None, when)


def crossed(sent: pytest.TestReport) -> pytest.TestReport:
    """The report as it comes from a worker of xdist."""
    return pytest.TestReport._from_json(loads(dumps(sent._to_json())))


@pytest.mark.parametrize(
    "attached", [Outcome(), Outcome(RECORD, OFFER, True, 7), Outcome(faults=("a", "b"))]
)
def test_what_is_attached_to_a_report_arrives_from_a_worker(attached: Outcome) -> None:
    sent, ours = report(), Attachments()
    ours.attach(sent, attached)
    arrived = crossed(sent)
    assert has_attachment(arrived)
    assert attached == Attachments().take(arrived)
    assert not has_attachment(arrived)
    assert attached is ours.take(sent)  # without a way back from builtin values
    assert Outcome() == ours.take(sent)


def test_reports_of_other_plugins_get_no_attachment() -> None:
    arrived = crossed(report())
    assert not has_attachment(arrived)
    assert Outcome() == Attachments().take(arrived)


@pytest.mark.parametrize(("ours", "offers"), [(True, [OFFER]), (False, [])])
def test_a_test_that_fails_of_itself_offers_nothing(ours: bool, offers: list[Offer]) -> None:
    results = Results()
    results.take(report("failed"), Outcome(RECORD, OFFER, ours, 3))
    assert (offers, 3) == (results.offers, results.runs)
    assert ["failed"] == [record.outcome for record in results.records]


def test_what_a_worker_knows_arrives_at_its_end() -> None:
    output = WorkerOutput({"key": "cpu", "threads": None}, ["x"], {"a.py": ["test_a"]}, ["b.py"])
    config: Any = SimpleNamespace(workeroutput={"other": 1})
    output.leave_with(config)
    node = SimpleNamespace(workeroutput=loads(dumps(config.workeroutput)))
    assert output == WorkerOutput.of(node)


@pytest.mark.parametrize("node", [SimpleNamespace(), SimpleNamespace(workeroutput={"other": 1})])
def test_a_worker_that_was_lost_leaves_nothing(node: object) -> None:
    assert WorkerOutput.of(node) is None
