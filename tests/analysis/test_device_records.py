"""Records of a device that stop before the capture does are noticed; nothing is 0 by mistake."""

from __future__ import annotations

from support.reasons import value_in_words
from support.trace_builder import TraceBuilder

from pytest_torchprof.core.unknown import Reason, Sentence, Why, because
from pytest_torchprof.core.values import MissingValue
from pytest_torchprof.trace.facts import Facts
from pytest_torchprof.trace.names import REGION
from pytest_torchprof.trace.read import parse_trace
from pytest_torchprof.verdict.metrics import METRICS, measure

AWAITED = Facts(accelerator="GPU", device_type="cuda", awaited=True)


def said(builder: TraceBuilder, name: str) -> object:
    """The value of a metric, or why there is none, in words."""
    found = value_in_words(measure(METRICS[name], parse_trace(builder.to_bytes())))
    return found.reason.text if isinstance(found, MissingValue) else found


def ran(facts: Facts, *, launches: int = 0, ends: bool) -> TraceBuilder:
    """A region with launches; the capture's own wait after it is recorded where it ``ends``."""
    b = TraceBuilder("GPU")
    b.facts(facts)
    with b.annotation(REGION), b.op("aten::add"):
        for _ in range(launches):
            b.launch("kernel")
    if ends:
        b.runtime("cudaDeviceSynchronize")
    return b


def words(why: Sentence) -> str:
    return because(*why).text


def test_a_capture_with_no_record_of_the_device_at_all_counts_nothing() -> None:
    blind = ran(AWAITED, ends=False)
    for name in ("kernels", "self_cuda_ms", "syncs", "h2d_copies"):
        assert words(Why.NO_DEVICE_RECORDS) == said(blind, name), name


def test_a_capture_whose_own_wait_was_recorded_has_a_true_zero() -> None:
    idle = ran(AWAITED, ends=True)
    assert [0, 0] == [said(idle, "kernels"), said(idle, "syncs")]


def test_kernels_without_the_end_of_the_records_are_a_lower_bound() -> None:
    cut = ran(AWAITED, launches=2, ends=False)
    for name in ("kernels", "self_cuda_ms", "syncs"):
        assert "records of the device end before the test does" in str(said(cut, name)), name
    assert 2 == said(ran(AWAITED, launches=2, ends=True), "kernels")


def test_a_capture_that_did_not_wait_is_as_before() -> None:
    assert 0 == said(ran(Facts(accelerator="GPU"), ends=False), "kernels")


def test_memory_of_an_allocator_that_is_not_seen_is_unknown() -> None:
    unseen: Reason = because(
        "allocator_unseen",
        "torch's profiler does not see the allocator {name}",
        name="cudaMallocAsync",
    )
    facts = AWAITED | Facts(no_device_memory=unseen)
    names = ("peak_cuda_bytes", "allocated_cuda_bytes", "leaked_cuda_bytes")
    for name in names:
        assert unseen.text == said(ran(facts, launches=1, ends=True), name), name
        assert 0 == said(ran(AWAITED, launches=1, ends=True), name), name
