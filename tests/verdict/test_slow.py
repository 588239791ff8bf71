"""CPU time of many times the accepted one: red beyond doubt, else advice, whatever time gates."""

from __future__ import annotations

from typing import Any

import pytest
from support.reasons import words

from pytest_torchprof.core.values import (
    Baseline,
    Budget,
    Normalised,
    Profile,
    Tolerance,
    Verdict,
)
from pytest_torchprof.verdict.compare import (
    CONFIRMING,
    Policy,
    compare,
    has_sped_up,
    is_slow,
    needs_more,
    slowness,
    told_slow,
)

#: The reference kernel takes this long; an accepted test takes 10 times as long.
REFERENCE_MS = 0.2
BEFORE = 10.0
#: CPU time for which nobody waits.
SPINS = {"wall_ms": 14.0, "cpu_ms": 30.0}


def at(multiple: float, **other: Any) -> Normalised:
    """A test that takes this multiple of the reference kernel's CPU and wall time."""
    known = {"conditions": "reference 1, 2 torch threads", "n": 1, **other}
    values = known.pop("values", {"wall_ms": multiple, "cpu_ms": multiple})
    return Normalised(values, reference_ms=REFERENCE_MS, **known)


def confirmed(multiple: float, **other: Any) -> Normalised:
    """The same, after all further rounds, of one thread."""
    return at(multiple, **{"one_thread": multiple, "more": CONFIRMING, **other})


@pytest.mark.parametrize(
    ("before", "now", "ratio", "slow"),
    [
        (at(10), at(30), 3.0, True),
        (at(10), at(29.9), 2.99, False),
        (at(10), at(10), 1.0, False),
        (at(2.5), at(7.5), 3.0, True),  # by five runs of the reference kernel
        (at(2.0), at(6.5), 3.25, False),  # by less, which may be luck
        (at(10), at(30, conditions="reference 1, 3 torch threads"), None, False),
        (at(10, values={"wall_ms": 10.0}), at(30), None, False),
        (at(10), at(30, values={"wall_ms": 30.0}), None, False),
        (at(10), at(30, page_faults=500), 2.0, False),  # 2 ms of 6, if each takes 4 us
        (at(10, page_faults=500), at(30), 3.0, True),
        # Threads that wait for each other take CPU time; one alone does not.
        (at(10), at(40, one_thread=10.0), 1.0, False),
        (at(40, one_thread=10.0), at(60, one_thread=30.0), 3.0, True),
        (at(40, one_thread=10.0), at(30), 3.0, True),
        (at(40), at(60, one_thread=30.0), 0.75, False),
        (None, at(30), None, False),
        (at(10), None, None, False),
    ],
)
def test_how_many_times_the_accepted_time_a_test_takes(
    before: Normalised | None, now: Normalised | None, ratio: float | None, slow: bool
) -> None:
    found = slowness(now, before)
    assert found == (None if ratio is None else pytest.approx(ratio))
    assert is_slow(now, before) is slow


@pytest.mark.parametrize(
    ("now", "before", "accepts", "more"),
    [
        (at(29), at(10), False, False),
        (at(30), at(10), False, True),
        (at(30), None, False, False),
        # Threads that spin between two operators, for which nobody waits.
        (at(30, thread=14.0, others=0.6, values=SPINS), at(10), False, False),
        (at(30, thread=15.0, others=0.6, values=SPINS), at(10), False, True),
        (at(30, thread=14.0, others=0.6), at(10), False, True),
        (at(30), at(10, values={"cpu_ms": 10.0}), False, True),
        # It ends with a round that refutes it, and after five; between, it may become advice.
        (at(30, one_thread=30.0, more=4), at(10), False, True),
        (at(30, one_thread=30.0, more=5), at(10), False, False),
        (at(30, one_thread=16.0, more=1), at(10), False, True),
        (at(30, one_thread=14.0, more=1), at(10), False, False),
        # What is accepted of several threads is what one takes.
        (at(10, others=0.3), None, True, True),
        (at(10, others=0.3, one_thread=10.0, more=1), None, True, False),
        (at(10, others=0.1), None, True, False),
        (at(10, others=0.3), at(10), False, False),
    ],
)  # fmt: skip
def test_which_times_need_further_rounds(
    now: Normalised, before: Normalised | None, accepts: bool, more: bool
) -> None:
    assert needs_more(now, before, accepts=accepts) is more


def compared(
    now: Normalised | None,
    policy: Policy | None = None,
    before: Normalised | None = None,
    kernels: int = 0,
    ranks: int = 0,
    **metrics: Any,
) -> tuple[Verdict, str | None]:
    """The verdict on CPU time, and what is said about it."""
    before = before or at(BEFORE)
    ms = {name: (now or before).values.get(name, BEFORE) * REFERENCE_MS
          for name in ("wall_ms", "cpu_ms")}  # fmt: skip
    profile = Profile(
        {**ms, **metrics},
        normalised=now,
        kernels={"k": kernels} if kernels else {},
        ranks={str(rank): {} for rank in range(ranks)},
    )
    times: dict[str, Any] = dict.fromkeys(ms, BEFORE * REFERENCE_MS)
    baseline = Baseline(times={**times, "normalised": before.stored()})
    policy = policy or Policy()
    found = compare(profile, baseline, [], policy)
    said = told_slow(found, profile, baseline, policy)
    return next(v for v in found if v.metric == "cpu_ms"), said.text if said else None


SAID = "CPU time 2 ms → 6 ms (×3.0), confirmed by 5 more rounds"
ADVICE = "CPU time 2 ms → 6 ms (×3.0): only advice"


@pytest.mark.parametrize("time", ["advisory", "gate"])
def test_a_confirmed_time_is_red_also_where_times_advise(time: Any) -> None:
    busy = words("workers contend")
    for policy in (Policy(time), Policy(time, time_note=busy)):
        found, said = compared(confirmed(30), policy)
        assert ("regressed", SAID, SAID) == (
            found.status,
            found.reason and found.reason.text,
            said,
        )
        assert (BEFORE, 30.0) == found.multiples


def test_it_is_not_where_no_time_is_compared() -> None:
    found, said = compared(confirmed(300), Policy("off"))
    assert ("ok", None) == (found.status, said)


@pytest.mark.parametrize(
    ("now", "policy", "advice"),
    [
        (at(30), Policy(), ADVICE),  # not confirmed
        (confirmed(30, more=CONFIRMING - 1), Policy(), ADVICE),
        (confirmed(30), Policy(other_machine=True), ADVICE),
        (confirmed(30, conditions="reference 0, 2 torch threads"), Policy(), ADVICE),
        (None, Policy(), None),
        (confirmed(29), Policy(), "CPU time 2 ms → 5.8 ms (×2.9): only advice"),
        (at(15.1), Policy(), "CPU time 2 ms → 3.02 ms (×1.5): only advice"),
        (at(14.9), Policy(), None),
        # Of another machine or other conditions, only many times the time is worth a line.
        (confirmed(20), Policy(other_machine=True), None),
        (confirmed(20, conditions="reference 0, 2 torch threads"), Policy(), None),
        # Other threads took part, which may wait for each other in a loop.
        (confirmed(30, others=0.3), Policy(), None),
        (confirmed(30, others=0.1), Policy(tolerances=(Tolerance("cpu_ms", share=4.0),)), ADVICE),
    ],
)  # fmt: skip
def test_a_time_in_doubt_is_advice_at_most(
    now: Normalised | None, policy: Policy, advice: str | None
) -> None:
    found, said = compared(now, policy)
    assert (found.status in ("ok", "advisory"), said) == (True, advice)


def test_waiting_for_a_device_or_another_process_is_no_time_of_the_test() -> None:
    busy_ms = 2 * BEFORE * REFERENCE_MS
    assert compared(confirmed(45), kernels=1, cuda_busy_ms=busy_ms)[0].status == "advisory"
    assert compared(confirmed(50), kernels=1, cuda_busy_ms=busy_ms)[0].status == "regressed"
    assert compared(confirmed(50), kernels=1)[0].status == "advisory"
    assert compared(confirmed(50), ranks=2)[0].status == "advisory"


def test_moving_bytes_beside_other_programs_is_no_time_of_the_test() -> None:
    moved_bytes = int(BEFORE * REFERENCE_MS * 1e7)  # in as long as it took, at 10 GB/s
    assert compared(confirmed(39), moved_bytes=moved_bytes)[0].status == "advisory"
    assert compared(confirmed(41), moved_bytes=moved_bytes)[0].status == "regressed"


@pytest.mark.parametrize(
    ("before", "now", "changes"),
    [
        (at(10), at(3.3), True),
        (at(10), at(3.4), False),
        (at(7.5), at(2.5), True),  # by 5 runs of the reference kernel
        (at(7.2), at(2.4), False),
        (at(40), at(10, others=0.5), False),  # of several threads, which say little
        (at(90, one_thread=10.0), at(20, one_thread=10.0), False),
        (None, at(10), False),
    ],
)
def test_a_time_that_is_many_times_shorter_is_worth_accepting(
    before: Normalised | None, now: Normalised, changes: bool
) -> None:
    times = {"normalised": before.stored()} if before else {}
    assert has_sped_up(Profile({}, normalised=now), Baseline(times=times)) is changes


def test_a_budget_on_cpu_time_decides_first() -> None:
    now, before = confirmed(30), at(BEFORE)
    ms = {"wall_ms": 6.0, "cpu_ms": 6.0}
    times = {**dict.fromkeys(ms, 2.0), "normalised": before.stored()}
    for limit, status in ((5.0, "over_budget"), (7.0, "regressed")):
        profile, baseline = Profile(ms, normalised=now), Baseline(times=times)
        found = compare(profile, baseline, [Budget("cpu_ms", limit)], Policy())
        assert [status] == [v.status for v in found if v.metric == "cpu_ms"]
