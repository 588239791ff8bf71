"""Regions of live captures: disjoint ones add up to the whole."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import support.live  # noqa: F401 - torch's first session is outside of tests
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_torchprof.capture.compiling import CompileCount
from pytest_torchprof.capture.machine import probe_machine
from pytest_torchprof.capture.profiler import Capture, facts_now
from pytest_torchprof.core.values import MissingValue
from pytest_torchprof.rules.registry import check_all
from pytest_torchprof.trace.names import named_regions
from pytest_torchprof.verdict.metrics import METRICS, measure
from pytest_torchprof.verdict.profile import RegionValues

X, W = torch.ones(8, 8), torch.ones(8, 8, requires_grad=True)
KEPT: list[Any] = []

WORK: dict[str, Any] = {
    "add": lambda: X + X,
    "mm": lambda: X @ X,
    "train": lambda: torch.autograd.backward((X @ W).sum()),
    "keep": lambda: KEPT.append(X + X),
    "view": lambda: X.view(64),
    "list": X.tolist,
}
#: What disjoint regions have of the whole; a peak is the largest lap's.
ADD_UP = ["flops", "ops", "allocated_cpu_bytes", "leaked_cpu_bytes"]

STEPS = st.lists(
    st.tuples(st.sampled_from("abc"), st.lists(st.sampled_from(sorted(WORK)), max_size=3)),
    min_size=1,
    max_size=6,
)


def run(steps: list[tuple[str, list[str]]], *, inner: bool) -> Any:
    W.grad = None
    KEPT.clear()
    capture = Capture()
    before = CompileCount.now()
    with TemporaryDirectory() as folder:
        capture.start()
        for name, works in steps:
            with capture.mark(name) or nullcontext():
                for work in works:
                    with (capture.mark("inner") if inner else None) or nullcontext():
                        WORK[work]()
        facts = facts_now(probe_machine(1), CompileCount.now().since(before))
        return capture.stop(Path(folder), facts).events()


@settings(max_examples=25, deadline=None)
@given(STEPS, st.booleans())
def test_disjoint_regions_add_up_to_the_whole(
    steps: list[tuple[str, list[str]]], inner: bool
) -> None:
    trace = run(steps, inner=inner)
    checked = check_all(trace)
    laps = named_regions(trace)
    assert {n: sum(name == n for name, _ in steps) for n, _ in steps} == {
        name: count for name, count in laps.items() if name != "inner"
    }
    parts = {name: RegionValues(checked, (), name) for name in laps if name != "inner"}
    for metric in ADD_UP:
        whole = measure(METRICS[metric], trace)
        if metric == "flops" and isinstance(whole, MissingValue):
            continue
        assert whole == sum(values[metric] for values in parts.values()), metric  # type: ignore[misc]
    for name, values in parts.items():
        each = [RegionValues(checked, (), name, lap) for lap in range(laps[name])]
        assert values["ops"] == sum(one["ops"] for one in each)  # type: ignore[misc]
        assert values["peak_cpu_bytes"] == max(one["peak_cpu_bytes"] for one in each)  # type: ignore[type-var]
    if inner and any(works for _, works in steps):
        assert RegionValues(checked, (), "inner")["ops"] == measure(METRICS["ops"], trace)


def test_regions_of_two_names_do_not_match_each_other_as_globs() -> None:
    trace = run([("a*", ["add"]), ("ab", ["add", "add"]), ("a[b]", ["add"] * 3)], inner=False)
    checked = check_all(trace)
    found = [RegionValues(checked, (), name)["ops"] for name in ("a*", "ab", "a[b]")]
    assert [1, 2, 3] == found


def test_a_region_that_is_not_in_the_capture_is_unknown() -> None:
    trace = run([("a", ["add"])], inner=False)
    value = RegionValues(check_all(trace), (), "b")["ops"]
    assert isinstance(value, MissingValue)


@pytest.mark.parametrize("metric", ["wall_ms", "graph_breaks"])
def test_what_only_whole_tests_have_is_not_measured(metric: str) -> None:
    trace = run([("a", ["add"])], inner=False)
    assert isinstance(RegionValues(check_all(trace), (), "a")[metric], MissingValue)
