"""A profiled run that compiles is repeated, and one that records CUDA graphs late, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace
from support.sessions import run
from support.trace_builder import TraceBuilder

from pytest_torchprof.session.measurement import Captures
from pytest_torchprof.trace.names import REGION
from pytest_torchprof.trace.read import parse_trace

if TYPE_CHECKING:
    from pytest_torchprof.session.measurement import Captured
    from pytest_torchprof.trace.events import Events


def with_kernels(count: int) -> Events:
    b = TraceBuilder("GPU")
    with b.annotation(REGION), b.op("aten::add"):
        for _ in range(count):
            b.launch("kernel")
    return parse_trace(b.to_bytes())


#: What each profiled run does, whether timed ones capture, and how many profiled ones take place.
CASES = {
    "a replay": (["replays"], False, 1),
    "compiled anew, recorded, replayed": (["compiles", "records", "replays"], False, 3),
    "compiled anew, replayed at once": (["compiles", "replays"], False, 2),
    "compiled in every run": (["compiles", "compiles", "compiles"], True, 2),
    "recorded late": (["records", "replays"], False, 2),
    "recorded each time": (["records", "records", "records", "records"], False, 3),
    "recorded by the test itself": (["records", "records"], True, 1),
    "compiled anew by a test that records itself": (["compiles", "records", "records"], True, 2),
}


@pytest.mark.parametrize("case", CASES)
def test_the_profiled_run_is_repeated_until_the_compiled_code_is_replayed(
    case: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    does, calls_record, expected = CASES[case]
    left = list(enumerate(does, 1))
    take = Captures.take

    def taking(self: Captures, brought: Captured) -> object:
        self.calls_record = calls_record
        if brought.kind == "profile":
            number, what = left.pop(0)
            brought = replace(
                brought,
                trace=with_kernels(number),
                compiled=what == "compiles",
                recorded=what == "records",
            )
        return take(self, brought)

    monkeypatch.setattr(Captures, "take", taking)
    pytester.makepyfile(test_it="def test_it(): pass")
    kernels = run(pytester, "--torchprof").metric("kernels", "test_it")
    assert expected == len(does) - len(left)
    assert expected == kernels["value"]
