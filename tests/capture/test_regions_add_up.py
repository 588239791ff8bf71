"""Exact metrics of disjoint regions and of the rest add up to the whole call's.

The programs are generated: operators, views, modules, backward passes, kept and freed memory, in
regions that nest, repeat, and begin within operators.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import pytest
import support.live  # noqa: F401 - torch's first session is outside of tests
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody writes it
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

from pytest_torchprof.analysis import moved_bytes, uncounted
from pytest_torchprof.capture.compiling import CompileCount
from pytest_torchprof.capture.machine import probe_machine
from pytest_torchprof.capture.profiler import Capture, facts_now
from pytest_torchprof.core.values import MissingValue, Value
from pytest_torchprof.rules.registry import check_all
from pytest_torchprof.trace.names import REGION_MARK, laps_of, named_regions
from pytest_torchprof.trace.steps import holds_whole_operators
from pytest_torchprof.verdict.metrics import METRICS, measure
from pytest_torchprof.verdict.profile import RegionValues, operator_counts, view_of
from pytest_torchprof.work import counting

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools

#: ``with mark(name):`` is a region of this name.
Mark: TypeAlias = Callable[[str], AbstractContextManager[object]]

torch.manual_seed(0)
X, W, IDS = torch.ones(8, 8), torch.ones(8, 8, requires_grad=True), torch.tensor([1, 5])
IMAGE, CONV = torch.ones(1, 3, 8, 8), nn.Conv2d(3, 4, 3)
MLP = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 8))
OPTIMIZER = torch.optim.AdamW(MLP.parameters())
LSTM, LAYER = nn.LSTM(8, 8), nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
KEPT: list[torch.Tensor] = []


class Doubled(torch.autograd.Function):
    """Regions of its own within a function of autograd."""

    mark: Mark = nullcontext

    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        with Doubled.mark("forward"):
            return x + x

    @staticmethod
    def backward(_: Any, *grads: torch.Tensor) -> torch.Tensor:
        with Doubled.mark("backward"):
            return grads[0] @ X


def _train(mark: Mark) -> None:
    OPTIMIZER.zero_grad()
    MLP(X).square().mean().backward()
    OPTIMIZER.step()


def _hooked(mark: Mark) -> None:
    """The hook's region begins within an operator of the backward pass."""
    y = X @ W

    def hook(grad: torch.Tensor) -> torch.Tensor:
        with mark("hook"):
            return grad @ X

    y.register_hook(hook)  # type: ignore[no-untyped-call]
    torch.autograd.grad(y.sum(), W)


def _own(mark: Mark) -> None:
    Doubled.mark = mark
    torch.autograd.grad(Doubled.apply(W).sum(), W)  # type: ignore[no-untyped-call]


def _split(mark: Mark) -> None:
    """Forward and backward in regions of their own."""
    with mark("forward pass"):
        loss = MLP(X).sum()
    with mark("backward pass"):
        torch.autograd.grad(loss, list(MLP.parameters()))


def _inference(mark: Mark) -> None:
    with torch.no_grad():
        LAYER.eval()(X[None])


WORK: dict[str, Callable[[Mark], Any]] = {
    "add": lambda _: X + X,
    "in place": lambda _: X.clone().mul_(2).relu_(),
    "mm": lambda _: X @ X,
    "view": lambda _: X.view(4, 16)[1:].t().reshape(-1),
    "cat": lambda _: torch.cat([X, X.double()]),
    "empty": lambda _: torch.empty(100),
    "keep": lambda _: KEPT.append(X * 3),
    "free": lambda _: KEPT.clear(),
    "list": lambda _: X.tolist(),
    "embed": lambda _: F.embedding(IDS, X),
    "conv": lambda _: torch.autograd.grad(CONV(IMAGE).sum(), list(CONV.parameters())),
    "attend": lambda _: F.scaled_dot_product_attention(X[None], X[None], X[None]),
    "lstm": lambda _: LSTM(X),
    "train": _train,
    "inference": _inference,
    "checkpoint": lambda _: torch.autograd.grad(
        checkpoint(lambda w: (X @ w).relu(), W, use_reentrant=False).sum(), W
    ),
    "jvp": lambda _: torch.func.jvp(lambda x: x @ x, (X,), (X,)),
    "vmap": lambda _: torch.func.vmap(torch.mv)(X[None], X[:1]),
    "foreach": lambda _: torch._foreach_add([X, X], 1.0),
    "fft": lambda _: torch.fft.fft(X),
    "index": lambda _: X[IDS],
    "hook": _hooked,
    "own": _own,
    "split": _split,
}


@pytest.fixture(scope="module", autouse=True)
def _initialised() -> None:
    """Whatever does more the first time has run."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for work in WORK.values():
            work(nullcontext)


class Part(NamedTuple):
    """What runs within a region of this name, ``laps`` times; without a region where it is None."""

    name: str | None
    works: tuple[str | Part, ...]
    laps: int = 1


def parts(depth: int) -> st.SearchStrategy[Part]:
    """Names differ by depth, as a region cannot be entered while it is open."""
    works: st.SearchStrategy[Any] = st.sampled_from(sorted(WORK))
    if depth < 2:
        works |= st.deferred(lambda: parts(depth + 1))
    names = st.sampled_from([None, *(f"{letter}{depth}" for letter in "abc")])
    return st.builds(Part, names, st.lists(works, max_size=4).map(tuple), st.integers(1, 3))


PROGRAMS = st.lists(parts(0), min_size=1, max_size=5)


def perform(program: Iterable[str | Part], mark: Mark) -> None:
    for part in program:
        if isinstance(part, str):
            WORK[part](mark)
            continue
        for _ in range(part.laps):
            with nullcontext() if part.name is None else mark(part.name):
                perform(part.works, mark)


def recorded(program: Iterable[str | Part], *, threads: bool = False) -> Events:
    """One capture; ``threads``: the work is done in threads, for which the test's waits."""
    KEPT.clear()
    capture = Capture(everywhere=threads)
    before = CompileCount.now()

    def mark(name: str) -> AbstractContextManager[object]:
        return capture.mark(name) or nullcontext()

    def elsewhere(work: Callable[[Mark], Any]) -> Callable[[Mark], Any]:
        def start(_: Mark) -> None:
            thread = threading.Thread(target=work, args=(lambda _: nullcontext(),))
            thread.start()
            thread.join()

        return start

    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        if threads:
            for name, work in list(WORK.items()):
                patch.setitem(WORK, name, elsewhere(work))
        capture.start()
        try:
            perform(program, mark)
            facts = facts_now(probe_machine(1), CompileCount.now().since(before))
            return capture.stop(Path(folder), facts).events()
        finally:
            capture.abandon()


#: Exact metrics of which disjoint parts have shares. A peak is the largest part's.
SHARES = [
    name
    for name, metric in METRICS.items()
    if metric.of_region
    and metric.klass == "exact"
    and not metric.largest
    and not metric.of_device
    and name != "findings"
]


def rest_of(trace: Events, taken: Bools) -> Events:
    """The trace, counting only what none of the regions holds."""
    rest = trace.within(region="no region of this name")
    vars(rest)["selection"] = trace.in_region & ~taken
    return rest


def outermost(trace: Events) -> list[tuple[str, int]]:
    """The laps, as (name, number), that are within no other region."""
    spans = {
        (name, number): (int(trace.ts[row]), int(trace.ts[row] + trace.dur[row]))
        for name in named_regions(trace)
        for number, row in enumerate(laps_of(trace, f"{REGION_MARK}{name}").tolist())
    }
    return [
        lap
        for lap, (begin, end) in spans.items()
        if not any(b <= begin and end <= e for other, (b, e) in spans.items() if other != lap)
    ]


def at_hand(value: Value) -> float:
    """What is known to have run."""
    return (value.at_hand or 0) if isinstance(value, MissingValue) else value


def check_shares(trace: Events, *, memory: bool = True) -> None:
    """All that is true of the numbers of regions, of their laps, and of the rest."""
    checked = check_all(trace)
    laps = named_regions(trace)
    taken = np.zeros(len(trace), bool)
    disjoint = outermost(trace)
    for name, number in disjoint:
        inside = view_of(trace, name, number).selection
        assert not (taken & inside).any()
        taken |= inside
    rest = rest_of(trace, taken)
    for metric in SHARES:
        if not memory and "memory" in METRICS[metric].needs:
            continue
        whole = measure(METRICS[metric], trace)
        shares = [RegionValues(checked, (), name, number)[metric] for name, number in disjoint]
        shares.append(measure(METRICS[metric], rest))
        assert at_hand(whole) == sum(map(at_hand, shares)), metric
        unknown = [isinstance(share, MissingValue) for share in shares]
        assert isinstance(whole, MissingValue) == any(unknown), metric
        for name, count in laps.items():
            each = [RegionValues(checked, (), name, number)[metric] for number in range(count)]
            region = RegionValues(checked, (), name)[metric]
            assert at_hand(region) == sum(map(at_hand, each)), (metric, name)
            assert isinstance(region, MissingValue) == any(
                isinstance(e, MissingValue) for e in each
            )
    found = [RegionValues(checked, (), *lap)["findings"] for lap in disjoint]
    found.append(sum(checked.of_part(rest).counts.values()))
    # A stretch over several parts counts in each.
    shares_of = [view_of(trace, *lap).selection for lap in disjoint] + [rest.selection]
    stretches = [m.parts for m in checked.matches.values() if m.parts and m.count is None]
    again = sum(
        sum(bool(part[events].any()) for part in shares_of) - 1
        for parts in stretches
        for events in parts
    )
    assert sum(checked.counts.values()) + again == sum(map(at_hand, found))
    if not memory:
        return
    peak = measure(METRICS["peak_cpu_bytes"], trace)
    for name, count in laps.items():
        each = [
            RegionValues(checked, (), name, number)["peak_cpu_bytes"] for number in range(count)
        ]
        assert RegionValues(checked, (), name)["peak_cpu_bytes"] == max(map(at_hand, each))
        assert max(map(at_hand, each)) <= at_hand(peak)


@pytest.mark.thorough
@settings(max_examples=12, deadline=None)
@given(PROGRAMS)
def test_disjoint_regions_and_the_rest_add_up_to_the_whole(program: list[Part]) -> None:
    check_shares(recorded(program))


@pytest.mark.thorough
@settings(max_examples=600, deadline=None)
@given(PROGRAMS)
def test_many_generated_programs_add_up(program: list[Part]) -> None:
    check_shares(recorded(program))


@pytest.mark.thorough
@settings(max_examples=4, deadline=None)
@given(PROGRAMS)
def test_work_in_threads_belongs_to_the_region_that_waits_for_it(program: list[Part]) -> None:
    check_shares(recorded(program, threads=True), memory=False)


#: A region of its own, with what may come before it.
ALONE = st.tuples(PROGRAMS, st.lists(st.sampled_from(sorted(WORK)), min_size=1, max_size=4))


@pytest.mark.thorough
@settings(max_examples=20, deadline=None)
@given(ALONE)
def test_a_region_has_the_numbers_that_its_code_has_as_a_test(
    given_: tuple[list[Part], list[str]],
) -> None:
    before, works = given_
    region = Part("z", tuple(works))
    trace = recorded([*before, region, *before])
    alone = recorded(region.works)
    values = RegionValues(check_all(trace), (), "z")
    for metric in ("flops", "ops", "allocated_cpu_bytes", "moved_bytes"):
        assert at_hand(measure(METRICS[metric], alone)) == at_hand(values[metric]), metric


@pytest.mark.parametrize("work", sorted(WORK))
def test_each_kind_of_work_adds_up(work: str) -> None:
    check_shares(recorded([Part("a0", (work, Part("a1", (work,)))), Part(None, (work,))]))


@pytest.mark.parametrize("work", sorted(WORK))
def test_numbers_taken_from_the_wholes_are_those_of_the_part_alone(
    work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = recorded([Part("a0", (work, Part("a1", (work,))), 2), Part(None, (work,))])

    def numbers() -> dict[str, Any]:
        # Without what is known already.
        checked = check_all(replace(trace))
        return {
            name: (dict(RegionValues(checked, (), name)), operator_counts(view_of(trace, name)))
            for name in named_regions(trace)
        }

    quick = numbers()
    for module in (counting, moved_bytes, uncounted):
        monkeypatch.setattr(module, "holds_whole_operators", lambda _: False)
    trace = replace(trace)
    assert numbers() == quick


@pytest.mark.parametrize(("work", "whole"), [("mm", True), ("hook", False), ("own", False)])
def test_which_regions_hold_whole_operators(work: str, whole: bool) -> None:
    trace = recorded([Part("a0", (work,))])
    views = [view_of(trace, name) for name in named_regions(trace)]
    assert whole == all(map(holds_whole_operators, views))
    assert holds_whole_operators(views[0])
    assert not holds_whole_operators(trace)
