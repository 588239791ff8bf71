"""What a worker sends arrives as the same values."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import pytest
from execnet.gateway_base import dumps, loads

from pytest_torchprof.ab.controller import Collection, End, Profiled, Turn
from pytest_torchprof.core.unknown import Why, because

if TYPE_CHECKING:
    from pytest_torchprof.core.records import Sendable

ERROR = because(Why.ERROR, message="ValueError: {x}")
IN_SETUP = because(Why.FAILED_IN_PHASE, why=ERROR, phase="setup")


@pytest.mark.parametrize(
    "message",
    [
        Collection(["a.py::test_a[é]"], {"b.py": ERROR}, {"root": "/x", "own": {"a": "/x/a.py"}}),
        Profiled("passed", metrics={"ops": 3, "share": 0.5}, note=because(Why.OWN_PROFILER)),
        Profiled("failed", IN_SETUP, repeatable=False),
        Profiled("skipped"),
        Turn(array("q", [1, 2**40]).tobytes(), array("q").tobytes(), 5),
        Turn(b"", b"", 0, because(Why.UNRAISED_FAILURE, why=because(Why.SUBTESTS_FAILED))),
        End(4, ERROR, reached=False, origins={}),
        because(Why.MACHINE_BUSY, signs=(because(Why.OTHERS_BUSY, share=0.3),)),
    ],
)
def test_a_message_arrives_as_it_was_sent(message: Sendable) -> None:
    arrived = type(message).read(loads(dumps(message.sent())))
    assert message == arrived
    assert repr(message) == repr(arrived)  # 3 is not 3.0


def test_durations_arrive_as_whole_numbers() -> None:
    turn = Turn(array("q", [1, 2**40]).tobytes(), array("q", [7]).tobytes(), 5)
    assert ([1, 2**40], [7]) == (list(turn.wall_ns), list(turn.cpu_ns))
