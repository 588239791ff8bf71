"""What live captures note in their traces, as this version, others and nobody wrote it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import asdict, replace
from support.trace_builder import TraceBuilder

from pytest_torchprof.core.unknown import Why, because
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
        ({"wall_ms": 1.5, "torch": "2.6"}, Facts(torch="2.6")),
        ({"wall_ms": {"median": 2.0, "n": "junk"}, "packages": 2}, Facts(packages=2)),
        ({"regions": [3]}, Facts()),
        ({"graphs": {"a": [2**63, 1, [], []], "b": 3}}, Facts()),
        ({"graph_breaks": "lost"}, Facts()),
        # Rows are counted, so that some of them are not enough.
        ({"breaks": [{"reason": "print"}, {"reason": 3}]}, Facts()),
        ({"version": 99, "weather": "fine", "packages": 2}, Facts(version=99, packages=2)),
    ],
)
def test_what_other_versions_write_is_read_or_unknown(
    noted: dict[str, Any], expected: Facts
) -> None:
    assert Facts.read(noted) == expected


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
