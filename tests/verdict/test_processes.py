"""Numbers of several processes add up; of peaks, the largest counts; unknown is never 0."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from support.small_traces import build

from pytest_torchprof.core.unknown import Why, because
from pytest_torchprof.core.values import Budget, MissingValue, Value
from pytest_torchprof.trace.read import parse_trace
from pytest_torchprof.verdict.metrics import METRICS
from pytest_torchprof.verdict.profile import MAIN, added, combined, for_each_rank, total

FLOPS, PEAK = METRICS["flops"], METRICS["peak_cpu_bytes"]
LOST = because(*Why.CHILD_WAS_KILLED, process="process 1")
counts = st.lists(st.integers(0, 10**12), min_size=1, max_size=5)


@given(counts)
def test_counts_add_up_and_peaks_do_not(values: list[int]) -> None:
    """For any number of processes."""
    labelled = [(str(rank), value) for rank, value in enumerate(values)]
    assert sum(values) == total(FLOPS, labelled)
    assert max(values) == total(PEAK, labelled)


@given(counts)
def test_one_unknown_makes_the_sum_a_lower_bound(values: list[int]) -> None:
    """A sum of 0 is none."""
    labelled: list[tuple[str, Value]] = [(str(r), value) for r, value in enumerate(values)]
    found = total(FLOPS, [(MAIN, MissingValue(LOST)), *labelled])
    assert isinstance(found, MissingValue)
    assert LOST == found.reason
    assert (sum(values) or None, sum(values) > 0) == (found.at_hand, found.at_least)


def test_an_unknown_peak_has_no_bound() -> None:
    """What the other process had at its peak may be more, or not."""
    found = total(PEAK, [("0", 5), ("1", MissingValue(LOST))])
    assert found == MissingValue(because(*Why.OF_CHILD, process="rank 1", why=LOST))


def test_times_and_compilations_are_those_of_the_tests_own_process() -> None:
    """The rounds time it from outside."""
    main: dict[str, Value] = {"wall_ms": 5.0, "graph_breaks": 1, "ops": 2}
    others = [("0", {"wall_ms": 7.0, "graph_breaks": 4, "ops": 3})]
    assert {"wall_ms": 5.0, "graph_breaks": 1, "ops": 5} == combined(main, others, {})


def test_operators_add_up_by_column() -> None:
    """Of columns of peaks, the largest."""
    one = {"aten::mm": {"calls": 1, "peak_cpu_bytes": 8}}
    other = {"aten::mm": {"calls": 2, "peak_cpu_bytes": 4}, "aten::add": {"calls": 1}}
    assert added([one, other]) == {
        "aten::add": {"calls": 1},
        "aten::mm": {"calls": 3, "peak_cpu_bytes": 8},
    }


def test_a_budget_on_each_is_one_for_each_rank() -> None:
    """Of processes without ranks, for each of them; of a test alone, for the test."""
    from pytest_torchprof.rules.check import check
    from pytest_torchprof.verdict.profile import Process

    nothing = check(parse_trace(build().to_bytes()), ())
    each, other = Budget("flops", 5, each=True), Budget("ops", 1)

    def ranks(*labels: str, own: str | None = None) -> list[str | None]:
        processes = [Process(label, nothing) for label in labels]
        return [one.rank for one in for_each_rank([each], processes, own)]

    assert ["0", "1"] == ranks("0", "1", "process 1")
    assert ["process 1"] == ranks("process 1")
    assert ["0", "1"] == ranks("1", own="0")
    assert [None] == ranks()
    assert [other] == list(for_each_rank([other], [], None))
    assert "flops[rank=0]" == Budget("flops", 5, rank="0").label
    assert "ops[op=aten::mm,process 1]" == Budget("ops", 5, op="aten::mm", rank="process 1").label
