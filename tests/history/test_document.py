"""Documents of runs: what is in them, and what is no document."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.histories import run

from pytest_torchprof.core.unknown import because
from pytest_torchprof.core.values import (
    Cause,
    MissingValue,
    OwnMetric,
    Record,
    RegionRecord,
    Verdict,
)
from pytest_torchprof.history.runs import (
    DAMAGED,
    FOREIGN,
    NEWER,
    OwnKind,
    Run,
    RunCause,
    RunRegion,
    RunTest,
    decode,
    encode,
    run_tests,
)

UNKNOWN = MissingValue(
    because("same_name", "another test has the same name, so one baseline cannot serve both")
)


def test_known_numbers_are_kept_and_unknown_ones_are_left_out() -> None:
    own = OwnMetric("rate", "1/s", "higher", "time", recorded=True)
    metrics = {
        "ops": Verdict("ops", 3, "ok"),
        "wall_ms": Verdict("wall_ms", 0.0, "ok"),
        "kernels": Verdict("kernels", UNKNOWN, "not_measured"),
        "flops": Verdict("flops", 7, "over_budget", at_least=True),  # a lower bound
        "rate": Verdict("rate", 2.5, "ok", own=own),
        "bad": Verdict("bad", float("nan"), "ok", own=OwnMetric("bad")),
    }
    region = RegionRecord(2, {"part: ops": Verdict("ops", 1, "ok", region="part")})
    causes = (Cause("new_operators", "clone is new", "m.py", 5, "f", {"ops": 1}),)
    record = Record("t.py::a", "ok", metrics=metrics, outcome="passed", regions={"part": region},
                    causes=causes)  # fmt: skip
    (found,) = run_tests([record], {"t.py::a": "ab"})
    assert (
        RunTest(
            "t.py::a",
            "ok",
            "passed",
            "ab",
            {"ops": 3, "wall_ms": 0.0, "rate": 2.5},
            {"part": RunRegion(2, {"ops": 1})},
            {"rate": OwnKind("1/s", "time", "higher")},
            [RunCause("new_operators", "m.py:5 (f): clone is new", {"ops": 1})],
        )
        == found
    )


def test_a_document_is_read_as_it_was_written() -> None:
    one = run("a" * 40, {"ops": 2**60 + 1, "wall_ms": 0.1}, workers=2, interrupted=True)
    assert one == decode(encode(one))


@given(st.text(max_size=20), st.floats(allow_nan=False, allow_infinity=False))
def test_any_names_and_numbers_survive(name: str, number: float) -> None:
    test = RunTest(name, "ok", None, None, {name: number}, {name: RunRegion(1, {name: number})})
    one = run(None, {}, tests=[test], branch=name)
    try:
        name.encode()
    except UnicodeEncodeError:
        found = decode(encode(one))
        assert isinstance(found, Run)
        assert name.encode(errors="backslashreplace").decode() == found.branch
    else:
        assert one == decode(encode(one))


WHOLE = encode(run("a" * 40, {"ops": 3}))


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"", DAMAGED),
        (WHOLE[:-1], DAMAGED),
        (WHOLE[: len(WHOLE) // 2], DAMAGED),
        (WHOLE[:9], DAMAGED),
        (WHOLE + b"}", DAMAGED),
        (WHOLE.replace(b'"tests":[', b'"tests":["x",'), DAMAGED),
        (WHOLE.replace(b"torchprof-run/1", b"torchprof-run/2"), NEWER),
        (b'{"schema":"torchprof-run/12","other":[]}', NEWER),
        (WHOLE.replace(b"torchprof-run/1", b"torchprof-report/1"), FOREIGN),
        (b"{}", FOREIGN),
        (b"[1, 2]", FOREIGN),
        (b"null", FOREIGN),
        (b"hello", FOREIGN),
        (b"\xff\x00", FOREIGN),
        (b"[" * 100_000, FOREIGN),
        (WHOLE.replace(b'{"ops":3}', b'{"ops":%s}' % (b"9" * 400)), DAMAGED),
    ],
)
def test_what_is_no_document_is_told_by_kind(content: bytes, kind: str) -> None:
    assert kind == decode(content)


def test_keys_of_later_versions_are_ignored() -> None:
    document = {**msgspec.json.decode(WHOLE), "later": 1}
    assert decode(WHOLE) == decode(msgspec.json.encode(document))


def test_the_machine_is_the_host_and_the_workers_beside() -> None:
    assert "runner-1" == run(None, {}).machine
    assert "runner-1, 4 workers" == run(None, {}, workers=4).machine
