"""Copies between host and device where a capture knows which tensor is which."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pytest
from labelled.copies import GPU, down, filled, up
from support.trace_builder import TraceBuilder

from pytest_torchprof.rules.check import check
from pytest_torchprof.rules.registry import RULES
from pytest_torchprof.trace.names import REGION, Kind
from pytest_torchprof.trace.read import parse_trace
from pytest_torchprof.trace.tree import called

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.tensors import ListedTensors, Taken

#: What each call takes, and what it makes.
Said: TypeAlias = list[tuple[tuple[int, ...], set[int]]]


@dataclass
class Known:
    """Numbers of tensors as somebody says them, of operators by when they start and their names."""

    message: dict[tuple[int, str], tuple[tuple[int, ...], set[int]]]

    def taken(self, starts: Iterable[int], names: Iterable[str]) -> list[tuple[Taken, ...]]:
        return [self.message.get(key, ((), set()))[0] for key in zip(starts, names, strict=True)]

    def made(self, starts: Iterable[int], names: Iterable[str]) -> list[frozenset[int]]:
        keys = zip(starts, names, strict=True)
        return [frozenset(self.message.get(key, ((), set()))[1]) for key in keys]

    objects = taken

    def lifetimes(self) -> dict[int, tuple[int, int]]:
        return {}

    def addresses(self, starts: Iterable[int], names: Iterable[str]) -> list[int]:
        return [-1 for _ in zip(starts, names, strict=True)]

    def listed(self, starts: Iterable[int], names: Iterable[str]) -> list[ListedTensors | None]:
        return [None for _ in zip(starts, names, strict=True)]


def known(b: TraceBuilder, message: Said) -> Events:
    """The trace, in which each call, and what fills its result, is known to take and make this."""
    trace = parse_trace(b.to_bytes())
    rows = np.flatnonzero(called(trace))
    found = {}
    for row, (taken, made) in zip(rows.tolist(), message, strict=True):
        found[int(trace.ts[row]), trace.names[trace.name[row]]] = (taken, made)
        inside = (trace.ts > trace.ts[row]) & (trace.ts < trace.ts[row] + trace.dur[row])
        for part in np.flatnonzero(inside & trace.is_kind(Kind.OP)).tolist():
            name = trace.names[trace.name[part]]
            said = (*made, *taken) if name == "aten::copy_" else tuple(made)
            if name.endswith("_"):
                found[int(trace.ts[part]), name] = (said, set())
    return replace(trace, tensors=Known(found))


def counted(code: str, trace: Events) -> int:
    return check(trace, [RULES[code]]).counts.get(code, 0)


def clamped(b: TraceBuilder) -> None:
    b.op("aten::clamp", [[64, 64], [], []], ["float", "Scalar", "Scalar"])


SHAPE = [64, 64]


@pytest.mark.parametrize(
    ("host", "between", "source", "expected"),
    [
        (None, [], 1, 1),  # the result itself
        (clamped, [((1,), {2})], 2, 1),  # what was computed of it
        (clamped, [((5,), {2})], 2, 0),  # what was computed of something else
        (clamped, [((1,), {2})], 9, 1),  # from NumPy, as far as anybody knows
    ],
)
def test_a_round_trip_is_of_what_came_down(
    host: Callable[[TraceBuilder], None] | None, between: Said, source: int, expected: int
) -> None:
    b = TraceBuilder(GPU)
    down(b, SHAPE)
    if host is not None:
        host(b)
    up(b, SHAPE)
    trace = known(b, [((0,), {1}), *between, ((source,), {7})])
    assert counted("copy-round-trip", trace) == expected


@pytest.mark.parametrize(("source", "expected"), [(1, 1), (9, 0)])
def test_after_an_upload_only_what_came_down_is_a_round_trip(source: int, expected: int) -> None:
    b = TraceBuilder(GPU)
    up(b, SHAPE)
    down(b, SHAPE)
    up(b, SHAPE)
    trace = known(b, [((8,), {0}), ((0,), {1}), ((source,), {7})])
    assert counted("copy-round-trip", trace) == expected


def test_what_came_down_first_may_go_up_first() -> None:
    b = TraceBuilder(GPU)
    for way in (down, down, up, up):
        way(b, SHAPE)
    trace = known(b, [((0,), {1}), ((2,), {3}), ((1,), {4}), ((3,), {5})])
    assert counted("copy-round-trip", trace) == 2


@pytest.mark.parametrize(("source", "expected"), [(1, 1), (9, 0)])
def test_what_is_moved_is_what_was_filled(source: int, expected: int) -> None:
    b = TraceBuilder(GPU)
    filled(b, "randn", SHAPE)
    up(b, SHAPE)
    trace = known(b, [((-1,), {1}), ((source,), {7})])
    assert counted("extra-cuda-copy", trace) == expected


def test_what_was_pinned_is_still_what_was_filled() -> None:
    b = TraceBuilder(GPU)
    filled(b, "randn", SHAPE)
    with b.op("aten::pin_memory", [SHAPE, []], ["float", ""]):
        b.op("aten::copy_", [SHAPE, SHAPE, []], ["float", "float", "Scalar"])
    up(b, SHAPE, pageable=False)
    trace = known(b, [((-1,), {1}), ((1,), {2}), ((2,), {7})])
    assert counted("extra-cuda-copy", trace) == 1


@pytest.mark.parametrize("code", ["extra-cuda-copy", "copy-round-trip"])
def test_both_need_to_identify_tensors(code: str) -> None:
    b = TraceBuilder(GPU)
    with b.annotation(b.region):
        filled(b, "randn", SHAPE)
        up(b, SHAPE)
        down(b, SHAPE)
        up(b, SHAPE)
    assert check(parse_trace(b.to_bytes()), [RULES[code]]).wants_tensors


def test_without_operators_only_copies_are_in_doubt() -> None:
    """A test that computes nothing is checked: there is nothing to find."""
    rule = RULES["copy-round-trip"]
    idle, moved = TraceBuilder(GPU), TraceBuilder(GPU)
    with idle.annotation(REGION):
        idle.sync("cudaDeviceSynchronize")
    moved.memcpy("HtoD", 1 << 20)
    assert not check(parse_trace(idle.to_bytes()), [rule]).unchecked
    assert check(parse_trace(moved.to_bytes()), [rule]).unchecked
