"""Who waits for whom at the collectives of several ranks, whatever their clocks say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.ranked import Call, rank_trace
from support.real_traces import CORPUS

from pytest_torchprof.analysis.rank_waits import RankWaits, rank_calls, waits_between
from pytest_torchprof.trace.read import parse_trace, read_trace

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events

#: Rank 1 is late at the first, rank 0 at the second; all end together.
EARLY = [Call(100, 500), Call(900, 1000)]
LATE = [Call(400, 500), Call(600, 1000)]


def waits_of(traces: dict[int, Events]) -> RankWaits:
    return waits_between({rank: rank_calls(trace) for rank, trace in traces.items()})


def compared(
    *ranks: Sequence[Call], clocks_us: Sequence[float] = (), hosts: Sequence[str] = ()
) -> RankWaits:
    traces: dict[int, Events] = {}
    for rank, calls in enumerate(ranks):
        clock = clocks_us[rank] if clocks_us else 0
        host = hosts[rank] if hosts else ""
        built = rank_trace(rank, calls, ranks=len(ranks), clock_us=clock, host=host)
        traces[rank] = parse_trace(built.to_bytes())
    return waits_of(traces)


def test_a_rank_waits_from_its_begin_to_the_last_begin() -> None:
    found = compared(EARLY, LATE)
    assert [[0, 300_000], [300_000, 0]] == found.wait_ns.tolist()
    assert [1, 1] == found.last.tolist()
    assert [2, 2] == found.met.tolist()
    assert [300_000, 300_000] == found.earliest_ns[0].tolist()
    assert () == found.mismatches


@pytest.mark.thorough
@given(st.lists(st.integers(-(10**6), 10**6), min_size=2, max_size=2))
def test_clocks_that_differ_change_nothing(clocks_us: list[int]) -> None:
    found = compared(EARLY, LATE, clocks_us=[5 * 10**6 + us for us in clocks_us])
    assert [[0, 300_000], [300_000, 0]] == found.wait_ns.tolist()
    assert [0, (clocks_us[0] - clocks_us[1]) * 1000] == found.shift_ns.tolist()
    assert 0 == found.apart_ns


def test_ranks_of_one_host_keep_its_clock() -> None:
    """Rank 1 begins and ends each collective 100 us later, as far as the host's clock knows."""
    calls = [Call(c.begin + 100, c.end + 100) for c in EARLY]
    found = compared(EARLY, calls, hosts=["a", "a"])
    assert [[0, 200_000], [0, 0]] == found.wait_ns.tolist()
    assert [0, 0] == found.shift_ns.tolist()
    apart = compared(EARLY, calls, hosts=["a", "b"])
    assert [[0, 0], [0, 0]] == apart.wait_ns.tolist()


def test_a_name_that_several_hosts_have_is_not_believed() -> None:
    found = compared(EARLY, LATE, clocks_us=[0, 40_000], hosts=["localhost", "localhost"])
    assert [[0, 300_000], [300_000, 0]] == found.wait_ns.tolist()


def test_a_wait_is_no_longer_than_the_collective() -> None:
    found = compared([Call(0, 100)], [Call(400, 500)], hosts=["a", "a"])
    assert [[0, 100_000], [0, 0]] == found.wait_ns.tolist()


def test_what_does_not_end_together_is_matched_but_not_a_wait() -> None:
    calls = [[Call(100, 200, kind="broadcast")], [Call(150, 900, kind="broadcast")]]
    found = compared(*calls)
    assert (0, ()) == (found.collectives, found.mismatches)
    assert [-1] == found.earliest_ns[0].tolist()


def test_a_recording_may_begin_earlier_or_end_later() -> None:
    before, after = Call(10, 50, 7), Call(1200, 1300, 9)
    for calls in ([before, *LATE], [*LATE, after]):
        found = compared(EARLY, calls)
        assert (2, ()) == (found.collectives, found.mismatches)
        assert [[0, 300_000], [300_000, 0]] == found.wait_ns.tolist()


@pytest.mark.parametrize(
    ("calls", "number", "own"),
    [
        ([EARLY[0], Call(900, 1000, 77)], 2, ("all_reduce", "float32", 4 * 77)),
        ([Call(100, 500, kind="broadcast"), EARLY[1]], 1, ("broadcast", "float32", 4096)),
        ([EARLY[0], Call(700, 710, 5), EARLY[1]], 2, ("all_reduce", "float32", 20)),
    ],
)
def test_a_rank_that_does_not_match_is_said_with_the_first_difference(
    calls: list[Call], number: int, own: tuple[str, str, int]
) -> None:
    found = compared(EARLY, LATE, calls)
    assert 2 == found.collectives
    (mismatch,) = found.mismatches
    assert (2, number, own) == (mismatch.rank, mismatch.number, mismatch.own)
    assert ("all_reduce", "float32", 4096) == mismatch.others
    assert [2, 2, 0] == found.met.tolist()


def test_sizes_of_an_all_to_all_may_differ_between_ranks() -> None:
    pair = [[Call(0, 100, n, "all_to_all")] for n in (16, 32)]
    assert (1, ()) == (compared(*pair).collectives, compared(*pair).mismatches)


@pytest.mark.skipif(not CORPUS.is_dir(), reason="no corpus of real traces here")
def test_the_later_rank_of_a_real_pair() -> None:
    """Rank 1's first all-to-all lasts 7.635 ms and rank 0's 2.146: it waits 5.489 ms there.

    HolisticTraceAnalysis 0.5.0 calls rank 0 the straggler, too (with its rank in the metadata).
    """
    traces = {
        rank: read_trace(CORPUS / f"v100_dlrm_rank{rank}.pt.trace.json.gz") for rank in (0, 1)
    }
    found = waits_of(traces)
    assert (8, ()) == (found.collectives, found.mismatches)
    assert 7.635 - 2.146 == pytest.approx(int(found.earliest_ns[1][0]) / 1e6, rel=0.01)
    assert found.wait_ns[1, 0] > 100 * found.wait_ns[0, 1]
    assert abs(found.shift_ns).max() < 1000
