"""What live captures note in their traces, as this version, others and nobody wrote it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from msgspec.structs import asdict, replace
from support.trace_builder import TraceBuilder

from pytest_torchprof.core.unknown import Reason, Why, because
from pytest_torchprof.core.values import Sample
from pytest_torchprof.trace.facts import (
    FACTS_KEY,
    VERSION,
    CompileNote,
    CompileWork,
    Facts,
    Graph,
    Quantity,
    RecompileNote,
    ReferenceNote,
    RegionTimes,
    reason_of,
)
from pytest_torchprof.trace.read import parse_trace

NOTED = because(*Why.PROGRAM_WORK, programs=("python", "a \N{BOMB}"))
NESTED = because(*Why.FILE_BREAKS_OFF, why=because(*Why.NO_SHAPES))

SAMPLE = Sample(3, 2.0, 1.5, 2.5, 1.0, (2.0, 3.0, 1.0))
BREAK = CompileNote("print", "net.py:7", "0/0", 2.5)
AGAIN = RecompileNote("f", None, "0/1", 0.0, frame_before=True, users=True, cause="rest")

FACTS = Facts(
    version=VERSION,
    environment="cpu, torch 2.13",
    accelerator="NVIDIA H200",
    device_type="cuda",
    torch="2.13.0",
    wall_ms=Quantity.of(SAMPLE),
    cpu_ms=Quantity.of(because("no_rounds", "no timed rounds (--torchprof-rounds=0)")),
    instructions=Quantity.of(NESTED),
    reference=ReferenceNote(wall_ms=0.25, cpu_ms=0.5, n=9, conditions="1", page_faults=0),
    regions={
        "decode": RegionTimes(
            wall_ms=Quantity.of(SAMPLE),
            cpu_ms=Quantity.of(because("no_rounds", "no timed rounds (--torchprof-rounds=0)")),
            laps=((1.0, 0.5), (1.0, 0.25)),
        ),
        "": RegionTimes(),
    },
    graph_breaks=0,
    recompiles=because("compilations_lost", "torch keeps at most {kept} compilations", kept=64),
    compile_work=CompileWork(
        graphs=2, cudagraphs=1, cudagraph_skips=0, cache_hits=3, cache_misses=4, ms=5.5
    ),
    compiled=("0/0", "0/1"),
    breaks=(BREAK,),
    recompilations=(AGAIN,),
    earlier_breaks={"1/0": (CompileNote("earlier"),), "2/0": ()},
    graphs={"fabc": Graph(240, 1, ("aten::bmm",), ()), "f2": Graph()},
    lost_loops=(),
    marks_graphs=True,
    compiled_calls=1,
    packages=0,
    no_device=because(*Why.NO_DEVICE_RECORDS),
    no_memory=because(
        "memory_of_threads",
        ("torch records no memory while it profiles all threads, and this test works in several"),
    ),
    no_device_memory=because(
        "allocator_unseen",
        "torch's profiler does not see the allocator {name}",
        name="cudaMallocAsync",
    ),
    awaited=True,
    elsewhere=NOTED,
    left_threads=(8,),
    allow_tf32=False,
    anomaly_before=True,
    asked=("launches",),
    chip="H100 SXM",
    estimated_cuda_bytes=512,
    load_per_processor=0.5,
    processors=4,
)

#: As it was written before facts had a version.
UNNUMBERED = {
    "environment": "cpu, torch 2.13",
    "accelerator": None,
    "device_type": None,
    "torch": "2.13.0",
    "wall_ms": {"n": 3, "median": 2.0, "low": 1.5, "high": 2.5, "minimum": 1.0},
    "cpu_ms": {"code": "no_rounds", "text": "no timed rounds"},
    "instructions": {"code": "file_breaks_off", "text": "or the file breaks off"},
    "reference": {"wall_ms": 0.25, "cpu_ms": 0.5, "n": 9, "conditions": "1"},
    "graph_breaks": 1,
    "recompiles": {"code": "compilations_lost", "text": "torch keeps at most 64"},
    "compiled": ["0/0", "0/1"],
    "breaks": [{"reason": "print", "location": "net.py:7", "id": "0/0", "ms": 2.5}],
    "recompilations": [
        {
            "reason": "f",
            "location": None,
            "id": "0/1",
            "ms": 0.0,
            "frame_before": True,
            "users": True,
            "cause": "rest",
        }
    ],
    "earlier_breaks": None,
    "graphs": {"fabc": [240, 1, ["aten::bmm"], []]},
    "lost_loops": [],
    "packages": 0,
}


def stored(facts: Facts) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(facts.stored())
    return read


# -------------------------------------------------------------------------- this version


def test_facts_are_the_same_once_they_were_stored() -> None:
    assert None not in asdict(FACTS).values()  # each fact is tried
    assert Facts.read(stored(FACTS)) == FACTS


def test_what_is_not_known_is_not_written_but_the_version_is() -> None:
    assert {"version": VERSION} == stored(Facts())
    assert {"version": VERSION, "graph_breaks": 0, "earlier_breaks": {}} == stored(
        Facts(graph_breaks=0, earlier_breaks={})
    )


def test_a_quantity_is_a_sample_or_a_reason() -> None:
    sample, nested = Quantity.of(SAMPLE), Facts.read(stored(FACTS)).instructions
    assert (SAMPLE, None) == (sample.sample, sample.reason)
    assert nested is not None
    assert (None, NESTED) == (nested.sample, nested.reason)


@pytest.mark.parametrize(
    "quantity",
    [
        Quantity(median=2.0),
        Quantity(n=0, median=2.0, low=1.5, high=2.5, minimum=1.0),
        Quantity(n=3, median=2.0, low=1.5, high=float("inf"), minimum=1.0),
    ],
)
def test_a_part_of_a_sample_is_none(quantity: Quantity) -> None:
    assert quantity.sample is None


def test_of_two_facts_both_are_known() -> None:
    both = Facts(torch="2.6", packages=1) | Facts(packages=0, allow_tf32=False)
    assert Facts(torch="2.6", packages=0, allow_tf32=False) == both


# -------------------------------------------------------------------------- other versions


def test_earlier_versions_wrote_the_same_without_a_number() -> None:
    read = Facts.read(UNNUMBERED)
    assert read.version is None
    assert Facts.read(stored(read)) == replace(read, version=VERSION)
    known = {name: value for name, value in UNNUMBERED.items() if value is not None}
    assert {**known, "version": VERSION} == stored(read)


@pytest.mark.parametrize(
    ("noted", "expected"),
    [
        ({"wall_ms": 1.5}, Facts(wall_ms=Quantity(median=1.5))),
        ({"wall_ms": 2}, Facts(wall_ms=Quantity(median=2.0))),
        (
            {"wall_ms": {"median": 2.0, "n": "junk"}, "torch": "2.6"},
            Facts(wall_ms=Quantity(median=2.0), torch="2.6"),
        ),
        (
            {"reference": {"wall_ms": 0.25, "n": "junk"}},
            Facts(reference=ReferenceNote(wall_ms=0.25)),
        ),
        (
            {"regions": {"a": {"wall_ms": 2, "cpu_ms": [], "laps": [[1, 2], [3]]}, "b": 3}},
            Facts(regions={"a": RegionTimes(wall_ms=Quantity(median=2.0))}),
        ),
        ({"regions": [3]}, Facts()),
        ({"graphs": {"a": [1, 1, [], []], "b": [-1]}}, Facts(graphs={"a": Graph(1, 1)})),
        ({"graphs": {"a": [2**63, 1, [], []], "b": 3}}, Facts(graphs={})),
        ({"graph_breaks": "lost"}, Facts(graph_breaks=because(*Why.SOMEBODY_SAID, text="lost"))),
        (
            {"no_memory": {"why": "too_hot"}},
            Facts(
                no_memory=because(
                    "unknown",
                    "for a reason that this version does not know ({name})",
                    name="too_hot",
                )
            ),
        ),
        # Rows are counted, so that some of them are not enough.
        ({"breaks": [{"reason": "print"}, {"reason": 3}]}, Facts()),
        ({"version": 99, "weather": "fine", "packages": 2}, Facts(version=99, packages=2)),
    ],
)
def test_what_other_versions_write_is_read(noted: dict[str, Any], expected: Facts) -> None:
    assert Facts.read(noted) == expected


@pytest.mark.parametrize("noted", ["no rounds", {"why": "no_rounds", "data": [1]}])
def test_a_reason_of_another_version_in_place_of_a_sample(noted: object) -> None:
    wall_ms = Facts.read({"wall_ms": noted}).wall_ms
    assert wall_ms is not None
    assert reason_of(noted) == wall_ms.reason
    assert (None, None) == (wall_ms.median, wall_ms.sample)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", Facts.__struct_fields__)
@pytest.mark.parametrize(
    "junk", [[{"odd": 1}], [[]], 10**400, -1.5, True, "", {}, {"a": 1}], ids=str
)
def test_a_fact_of_a_wrong_type_is_not_known_and_loses_no_other(name: str, junk: object) -> None:
    read = Facts.read({**stored(FACTS), name: junk})
    assert replace(read, **{name: None}) == replace(FACTS, **{name: None})
    if junk == [{"odd": 1}]:
        assert getattr(read, name) is None


@pytest.mark.parametrize("noted", [None, "facts", 3, [], [1], {}, {"odd": 1}])
def test_without_facts_all_is_unknown(noted: object) -> None:
    assert Facts() == Facts.read(noted)


@pytest.mark.parametrize(
    ("noted", "live"), [(None, False), ("junk", False), ({}, False), ({"odd": 1}, True)]
)
def test_a_live_capture_is_known_by_its_facts(noted: object, live: bool) -> None:
    b = TraceBuilder()
    b.metadata(FACTS_KEY, noted)
    assert parse_trace(b.to_bytes()).is_live == live


# -------------------------------------------------------------------------- reasons


@pytest.mark.parametrize(
    "reason",
    [NOTED, because("compilations_lost", "torch keeps at most {kept} compilations", kept=64)],
)
def test_a_reason_is_the_same_once_it_was_stored(reason: Reason) -> None:
    read = reason_of(json.loads(msgspec.json.encode(reason)))
    assert reason == read
    assert repr(reason) == repr(read)


def test_earlier_versions_noted_text_and_later_ones_may_know_more_reasons() -> None:
    text, newer = reason_of("no rounds"), reason_of({"why": "too_hot", "data": [["celsius", 90]]})
    assert text is not None
    assert newer is not None
    assert "no rounds" == text.text
    assert "for a reason that this version does not know (too_hot)" == newer.text


@pytest.mark.parametrize("noted", [None, "", 0, 1.5, True, [], {}, {"why": 3}, {"median": 2.0}])
def test_something_that_is_not_a_reason_is_none(noted: object) -> None:
    assert reason_of(noted) is None
