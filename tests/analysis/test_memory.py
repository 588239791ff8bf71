"""Live bytes: built traces, random ones against a plain count, and torch itself on the CPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.live import captured
from support.trace_builder import TraceBuilder

from pytest_torchprof.analysis.memory import BEFORE, OUTSIDE, Usage, usage
from pytest_torchprof.trace.names import REGION
from pytest_torchprof.trace.read import parse_trace

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events

DEVICES = ["cpu", "cuda"]


def used(trace: Events, device: str) -> tuple[int, int, int]:
    """Allocated, peak and leaked bytes, after checking that each is the sum of its parts."""
    found = usage(trace, on_device=device == "cuda")
    assert found is usage(trace, on_device=device == "cuda")
    assert sum(found.allocated_by.values()) == found.allocated_bytes
    assert sum(found.peak_by.values()) == found.peak_bytes
    assert sum(found.leaked_by.values()) == found.leaked_bytes
    return found.allocated_bytes, found.peak_bytes, found.leaked_bytes


# -------------------------------------------------------------------------------- built traces


class Blocks:
    """Named blocks of a built trace, of one device."""

    def __init__(self, device: str) -> None:
        self.b, self.device, self.address = TraceBuilder("GPU"), device, dict[str, int]()

    def take(self, **sizes: int) -> None:
        for name, size in sizes.items():
            self.address[name] = self.b.memory(size, self.device)

    def drop(self, *names: str) -> None:
        for name in names:
            self.b.free(self.address.pop(name))

    def reuse(self, old: str, **sizes: int) -> None:
        """Blocks at the address of one whose free was not recorded."""
        (name, size), address = *sizes.items(), self.address.pop(old)
        self.b._blocks[address] = (self.device, size)
        self.b._move(size, self.device, address)
        self.address[name] = address

    @property
    def trace(self) -> Events:
        return parse_trace(self.b.to_bytes())


@pytest.mark.parametrize("device", DEVICES)
def test_a_sequence(device: str) -> None:
    m = Blocks(device)
    with m.b.annotation(REGION):
        m.take(a=100, b=50)
        m.drop("a")
        m.take(c=70, d=10)
        m.drop("b", "d")
    assert used(m.trace, device) == (230, 150, 70)
    assert used(m.trace, {"cpu": "cuda", "cuda": "cpu"}[device]) == (0, 0, 0)


@pytest.mark.parametrize("device", DEVICES)
def test_an_address_is_given_out_again(device: str) -> None:
    m = Blocks(device)
    with m.b.annotation(REGION):
        m.take(a=100)
        m.drop("a")
        m.b._move(60, device, 7)
        m.b._move(-60, device, 7)
        m.b._move(80, device, 7)
    assert used(m.trace, device) == (240, 100, 80)


@pytest.mark.parametrize("device", DEVICES)
def test_a_free_that_was_not_seen_is_one_when_its_address_is_given_out_again(device: str) -> None:
    m = Blocks(device)
    with m.b.annotation(REGION):
        m.take(a=100)
        m.reuse("a", b=30)
    assert used(m.trace, device) == (130, 100, 30)


@pytest.mark.parametrize("device", DEVICES)
def test_a_free_of_another_size_ends_the_block_at_its_address(device: str) -> None:
    b = TraceBuilder("GPU")
    with b.annotation(REGION):
        b._move(100, device, 7)
        b._move(-30, device, 7)
        b._move(50, device, 7)
    assert used(parse_trace(b.to_bytes()), device) == (150, 100, 50)


def test_a_block_from_before_is_freed_in_the_region() -> None:
    """The device's allocator reports it always, the host's only sometimes: that must not count."""
    for device, expected in (("cuda", (140, 50, -10)), ("cpu", (140, 140, 90))):
        m = Blocks(device)
        m.take(old=100)
        with m.b.annotation(REGION):
            m.take(a=50)
            m.drop("old")
            m.take(b=90)
            m.drop("a")
        assert used(m.trace, device) == expected
        assert usage(m.trace, on_device=device == "cuda").leaked_by.get(BEFORE) == (
            -100 if device == "cuda" else None
        )


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_freed_after_the_region_has_not_leaked(device: str) -> None:
    m = Blocks(device)
    m.take(old=5)
    with m.b.annotation(REGION):
        m.take(a=50, b=60)
    m.drop("a")
    m.take(late=1000)
    m.drop("old")
    assert used(m.trace, device) == (110, 110, 60)


@pytest.mark.parametrize("device", DEVICES)
def test_empty_blocks_are_nothing(device: str) -> None:
    b = TraceBuilder("GPU")
    with b.annotation(REGION):
        b._move(0, device, 0)
        b._move(10, device, 0)
        b._move(0, device, 0)
        b._move(0, device, 9)
    assert used(parse_trace(b.to_bytes()), device) == (10, 10, 10)


@pytest.mark.parametrize("device", DEVICES)
def test_bytes_belong_to_the_operator_that_asked_for_them(device: str) -> None:
    b = TraceBuilder("GPU")
    with b.annotation(REGION):
        with b.op("aten::linear"), b.op("aten::mm"), b.op("aten::empty"):
            b.memory(100, device)
        with b.op("aten::zeros"):
            with b.op("aten::empty"), b.op("aten::empty_strided"):
                gone = b.memory(20, device)
            b.free(gone)
        with b.op("aten::empty"):
            b.memory(7, device)
        b.memory(3, device)
    found = usage(parse_trace(b.to_bytes()), on_device=device == "cuda")
    assert found == Usage(
        allocated_bytes=130,
        peak_bytes=120,
        leaked_bytes=110,
        allocated_by={"aten::mm": 100, "aten::zeros": 20, "aten::empty": 7, OUTSIDE: 3},
        peak_by={"aten::mm": 100, "aten::zeros": 20},
        leaked_by={"aten::mm": 100, "aten::empty": 7, OUTSIDE: 3},
    )


@pytest.mark.parametrize("device", DEVICES)
def test_of_a_part_count_the_blocks_that_it_allocated(device: str) -> None:
    b = TraceBuilder("GPU")
    with b.annotation(REGION):
        b.memory(1000, device)
        with b.op("aten::mm"):
            first = b.memory(100, device)
            with b.op("aten::empty"):
                b.memory(10, device)
        b.free(first)
        with b.op("aten::mm"):
            b.memory(5, device)
    with b.op("aten::mm"):
        b.memory(7777, device)
    trace = parse_trace(b.to_bytes())
    assert used(trace.within(op="aten::mm"), device) == (115, 110, 15)
    assert used(trace.within(op="aten::empty"), device) == (10, 10, 10)
    assert used(trace.within(op="aten::bmm"), device) == (0, 0, 0)
    assert used(trace, device)[0] == 1115


# ------------------------------------------------------------------- random, against a plain count

Move = tuple[int, int, bool]  # address, bytes, on the device


def plain_count(moves: list[Move], first: int, last: int, *, on_device: bool) -> tuple[int, ...]:
    """One event after the other, blocks by address."""
    known: dict[int, int] = {}
    live = peak = allocated = 0
    for i, (address, size, where) in enumerate(moves):
        if where != on_device or not size:
            continue
        inside = first <= i < last
        if address in known:
            live -= known.pop(address)
        elif size < 0 and on_device and inside:
            live += size
        if size > 0 and inside:
            known[address] = size
            live += size
            allocated += size
        peak = max(peak, live)
    return allocated, peak, live


@pytest.mark.thorough
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(-4, 4), st.booleans()), max_size=40),
    st.integers(0, 40),
    st.integers(0, 40),
)
def test_random_sequences(moves: list[Move], first: int, length: int) -> None:
    place = {"pid": 1, "tid": 1}
    events: list[dict[str, Any]] = [
        {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": 10 * i + 5, **place,
         "args": {"Addr": address, "Bytes": size, "Device Type": int(on_device)}}
        for i, (address, size, on_device) in enumerate(moves)
    ]  # fmt: skip
    region = {"ph": "X", "cat": "user_annotation", "name": REGION, "ts": 10 * first}
    events.append(region | {"dur": 10 * length + 1} | place)
    trace = parse_trace(json.dumps(events).encode())
    for device, on_device in (("cpu", False), ("cuda", True)):
        known = plain_count(moves, first, first + length, on_device=on_device)
        assert used(trace, device) == known


# ------------------------------------------------------------------------------- torch on the CPU

KEPT: list[torch.Tensor] = []


def floats(n: int) -> torch.Tensor:
    return torch.empty(n)  # 4 bytes each


def sequence() -> None:
    a, b = floats(100), floats(50)
    del a
    c = floats(25)
    del b, c


def views() -> None:
    a = floats(100)
    b = a[10:20]
    c = a.view(10, 10).t()
    del a, b
    d = c.contiguous()  # a copy
    del c, d


def in_place() -> None:
    a = torch.zeros(100)
    a.mul_(a).neg_()
    a += a


def resized() -> None:
    a = floats(10)
    a.resize_(100)  # the old block lives until the new one is filled
    a.resize_(20)  # and a smaller size keeps it


def out_variant() -> None:
    a, out = torch.ones(100), floats(100)
    torch.mul(a, a, out=out)
    torch.add(a, a, out=out)


def shared_storage() -> None:
    a = floats(100)
    b = torch.empty(0).set_(a.untyped_storage(), 0, (50,))  # type: ignore[call-overload]
    del a
    c = floats(100)
    del b, c


W = torch.ones(100, requires_grad=True)


def saved_for_backward() -> None:
    y = W * W
    z = y.exp()  # saves its result
    total = z.sum()
    del y, z
    d = floats(200)  # beside z and total
    del d, total


def gradients() -> None:
    y = W.exp()  # saves its result
    y.sum().backward()  # type: ignore[no-untyped-call]
    W.grad = None


def leak() -> None:
    KEPT.append(floats(100))
    floats(50)


def cycle() -> None:
    node: dict[str, Any] = {"tensor": floats(100)}
    node["self"] = node
    del node  # the collector is off
    floats(50)


def freed_from_before() -> None:
    KEPT.clear()
    floats(5)


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (sequence, (700, 600, 0)),
        (views, (800, 800, 0)),
        (in_place, (400, 400, 0)),
        (resized, (440, 440, 0)),
        (out_variant, (800, 800, 0)),
        (shared_storage, (800, 800, 0)),
        (saved_for_backward, (1604, 1204, 0)),
        (leak, (600, 600, 400)),
        (freed_from_before, (20, 20, 0)),
        (cycle, (600, 600, 0)),
        (lambda: None, (0, 0, 0)),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_live(block: Callable[[], None], expected: tuple[int, ...], tmp_path: Path) -> None:
    trace = captured(block, tmp_path)
    assert used(trace, "cpu") == expected
    assert used(trace, "cuda") == (0, 0, 0)
    assert used(captured(block, tmp_path), "cpu")[1:] == expected[1:]


def test_live_gradients_are_the_same_every_time(tmp_path: Path) -> None:
    """The result and its sum, the sum's gradient and that of the result."""
    for _ in range(2):
        assert used(captured(gradients, tmp_path), "cpu") == (808, 808, 0)


def test_live_bytes_by_operator(tmp_path: Path) -> None:
    def block() -> None:
        a, b = torch.ones(100), torch.zeros(100)
        c = torch.mul(a, b)
        del a
        KEPT.append(torch.cat([c, b]))

    found = usage(captured(block, tmp_path), on_device=False)
    KEPT.clear()
    assert found == Usage(
        allocated_bytes=2000,
        peak_bytes=1600,
        leaked_bytes=800,
        allocated_by={"aten::ones": 400, "aten::zeros": 400, "aten::mul": 400, "aten::cat": 800},
        peak_by={"aten::zeros": 400, "aten::mul": 400, "aten::cat": 800},
        leaked_by={"aten::cat": 800},
    )
