"""Values that cross from worker to controller."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from pytest_torchprof.core.unknown import Why, because
from pytest_torchprof.core.values import Budget, Finding, MissingValue, Record, Sample, Verdict

WHY = because(
    "of_rules",
    "{rules:, }: {why}",
    rules=("a", "b"),
    why=because(
        "few_rounds",
        (
            "the baseline is of {before: round}, and this of {now}: --accept "
            "--torchprof-time=gate takes it anew"
        ),
        before=1,
        now=30,
    ),
)
LEAST = because(
    *Why.AT_LEAST, value=240, unit="FLOP", why=because(*Why.RULE_RAISED, error="\udcff")
)
SAMPLE = Sample(3, 2.0, 1.5, 2.5, 1.0, (2.0, 3.0, 1.0))
VERDICTS = (
    Verdict("wall_ms", 2.0, "advisory", 1.0, None, 0.25, WHY, SAMPLE, (1.5, 3.0)),
    Verdict("flops", MissingValue(LEAST, 240, at_least=True), "not_measured", 3, 100),
    Verdict("ops", 5, "over_budget", limit=4, at_least=True),
    Verdict("kernels", 3, "ok", limit=4, scope=Budget("kernels", 4, op="aten::mm")),
    Verdict("findings", 0, "ok", limit=0, scope=Budget("findings", 0, rules=("a", "b"))),
)
FINDING = Finding("host-sync", 3, "m", "a.py:1", "fix", True, 0.5, 4, "p", "m", "r")


@pytest.mark.parametrize("through", [lambda sent: sent, lambda sent: json.loads(json.dumps(sent))])
def test_a_record_is_the_same_in_another_process(through: Callable[[Any], Any]) -> None:
    metrics = {verdict.label: verdict for verdict in VERDICTS}
    record = Record("a.py::t", "regressed", WHY, metrics, (FINDING,), {"r": LEAST}, "t", "failed")
    assert record == Record.read(through(record.sent()))
    assert repr(record) == repr(Record.read(through(record.sent())))  # 1 is not 1.0
    empty = Record("a.py::\udcff", "not_profiled")
    assert empty == Record.read(through(empty.sent()))


def test_verdicts_of_parts_are_apart_from_that_of_the_whole() -> None:
    assert ["wall_ms", "flops", "ops", "kernels[op=aten::mm]", "findings[rule=a,b]"] == [
        verdict.label for verdict in VERDICTS
    ]
