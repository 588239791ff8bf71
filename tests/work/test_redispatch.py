"""Operators that hand their call on: FLOPs are those of what ran, not of what was called."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.trace_builder import TraceBuilder
from torch import func, nn
from torch.nn import functional as F  # noqa: N812  # its usual name
from torch.utils.flop_counter import FlopCounterMode
from zoo.halved import Halved

from pytest_torchprof.analysis.kernels import kernel_rows
from pytest_torchprof.core.values import MissingValue, Value
from pytest_torchprof.trace.read import parse_trace
from pytest_torchprof.verdict.metrics import METRICS, measure
from pytest_torchprof.work.counting import op_flops

# ------------------------------------------------------------------------------- built traces

WHOLE, LOCAL = [[64, 32], [32, 16]], [[16, 32], [32, 16]]
WHOLE_FLOP, LOCAL_FLOP = 65_536, 16_384
Nested = tuple[Any, ...]
forward_mode: Any = torch.autograd.forward_ad


def traced(*calls: Nested) -> Any:
    """A trace of these operators: name, shapes, and then what is inside."""
    b = TraceBuilder("NVIDIA A100-SXM4-40GB", (8, 0))

    def add(calls: tuple[Nested, ...]) -> None:
        for name, dims, *inside in calls:
            if name == "kernel":
                b.launch(dims, 10)
                continue
            with b.op(name, dims):
                add(tuple(inside))

    add(calls)
    return parse_trace(b.to_bytes())


GEMM = ("kernel", "ampere_sgemm_32x32_sliced1x4_nn")
RAN = ("aten::mm", LOCAL, GEMM)
#: What a `DTensor` does the first time: it learns the shape of the result from fake tensors.
FAKE = ("aten::mm", WHOLE, ("PythonDispatchMode", WHOLE, ("aten::mm", WHOLE)))


@pytest.mark.parametrize(
    "calls",
    [
        [("aten::mm", WHOLE, ("PythonSubclass", WHOLE, RAN))],
        [("aten::mm", WHOLE, ("PythonSubclass", WHOLE, FAKE, RAN))],
        [("aten::t", [[64, 32]], ("PythonSubclass", [[64, 32]], FAKE)), RAN],
        [("aten::mm", WHOLE, RAN)],  # an old trace, without the mark
        # a mode of the user's sees the call before the subclass does
        [("aten::mm", WHOLE, ("PythonDispatchMode", WHOLE, ("aten::mm", WHOLE, (
            "PythonSubclass", WHOLE, FAKE, RAN))))],
        # the handler calls another operator
        [("aten::addmm", [[16], *WHOLE, [], []], ("PythonSubclass", WHOLE, RAN))],
        [("aten::_scaled_dot_product_flash_attention", [[2, 4, 8, 16]] * 3, (
            "PythonSubclass", WHOLE, RAN))],
    ],
)  # fmt: skip
def test_what_ran_inside_a_tensor_subclass_counts_not_the_call(calls: list[Nested]) -> None:
    trace = traced(*calls)
    assert measure(METRICS["flops"], trace) == LOCAL_FLOP
    assert [row.flops for row in kernel_rows(trace)] == [LOCAL_FLOP]


@pytest.mark.parametrize(
    "inside",
    [
        [],
        [("PythonDispatchMode", WHOLE)],
        [("PythonSubclass", WHOLE)],
        [("PythonSubclass", WHOLE, FAKE)],
        [("PythonSubclass", WHOLE, ("mine::product", WHOLE, GEMM))],
    ],
)
def test_a_call_that_was_handed_to_nothing_known_counts_itself(inside: list[Nested]) -> None:
    trace = traced(("aten::mm", WHOLE, *inside))
    assert op_flops(trace).sum() == WHOLE_FLOP


def test_what_was_called_keeps_its_name_where_the_number_is_the_same() -> None:
    """`mv` is done by `addmv_` inside; tables and baselines go on to speak of `mv`."""
    trace = traced(("aten::mv", [[4, 5], [5]], ("aten::addmv_", [[4], [4, 5], [5], [], []])))
    assert [trace.names[trace.name[i]] for i in np.flatnonzero(op_flops(trace))] == ["aten::mv"]
    assert op_flops(trace).sum() == 40


def test_a_padded_part_of_attention_does_not_count_in_its_place() -> None:
    """Flash attention pads heads of 20 numbers to 24: FlopCounterMode counts what was asked for."""
    part = ("aten::_flash_attention_forward", [[2, 8, 4, 24]] * 3 + [[], []])
    trace = traced(("aten::_scaled_dot_product_flash_attention", [[2, 4, 8, 20]] * 3, part))
    assert measure(METRICS["flops"], trace) == 4 * (2 * 4 * 8 * 8) * 20


def test_unknown_work_inside_a_tensor_subclass_is_reported() -> None:
    """The whole call's number does not hide that a part of what ran is unknown."""
    local = ("aten::convolution", [[1, 3, 9, 9], [4, 3, 3, 3]])  # without its stride
    trace = traced(("aten::mm", WHOLE, ("PythonSubclass", WHOLE, RAN, local)))
    value = measure(METRICS["flops"], trace)
    assert isinstance(value, MissingValue)
    assert "aten::convolution" in value.reason.text


def test_derivatives_of_forward_mode_count_beside_their_operator() -> None:
    b = TraceBuilder()
    with b.op("aten::mm", WHOLE):
        b.op("aten::_fw_primal", [[64, 32], []])
        b.op("aten::mm", WHOLE)
        with b.op("aten::mm", WHOLE):  # the derivative of a derivative
            b.op("aten::_fw_primal", [[64, 32], []])
            b.op("aten::mm", WHOLE)
    assert measure(METRICS["flops"], parse_trace(b.to_bytes())) == 4 * WHOLE_FLOP


# ------------------------------------------------------------------------------- real profiles


@pytest.fixture
def counted(tmp_path: Path) -> Callable[[Callable[[], object]], Value]:
    def count(function: Callable[[], object]) -> Value:
        cpu = torch.profiler.ProfilerActivity.CPU
        with torch.profiler.profile(activities=[cpu], record_shapes=True) as profile:
            function()
        profile.export_chrome_trace(str(tmp_path / "trace.json"))
        return measure(METRICS["flops"], parse_trace((tmp_path / "trace.json").read_bytes()))

    return count


def by_torch(function: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter:
        function()
    return int(counter.get_total_flops())


A, B, BIAS = torch.randn(40, 8, 16), torch.randn(40, 16, 32), torch.randn(32)
IMAGES, FILTERS = torch.randn(5, 3, 8, 8), torch.randn(4, 3, 3, 3)
ROWS, WEIGHT = torch.randn(7, 8), torch.randn(6, 8)
HEADS = torch.randn(3, 2, 4, 8, 16)
NET = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 2))
PARAMETERS = {name: p.detach() for name, p in NET.named_parameters()}


def one_loss(parameters: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = func.functional_call(NET, parameters, (x,))
    return out.square().sum()


def dual() -> object:
    with forward_mode.dual_level():
        a, b = (forward_mode.make_dual(t[0], t[0]) for t in (A, B))
        return forward_mode.unpack_dual(torch.mm(a, b))


def dual_convolution() -> object:
    with forward_mode.dual_level():
        x, w = (forward_mode.make_dual(t, t) for t in (IMAGES, FILTERS))
        return forward_mode.unpack_dual(F.conv2d(x, w))


def rows_of_a_jacobian() -> object:
    x = ROWS.clone().requires_grad_()
    return torch.autograd.grad(x @ WEIGHT.t(), x, torch.randn(9, 7, 6), is_grads_batched=True)


def matrices(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x @ WEIGHT.t())


BATCHED: dict[str, Callable[[], object]] = {
    "mm": lambda: func.vmap(torch.mm)(A, B),
    "one of both": lambda: func.vmap(torch.mm, in_dims=(0, None))(A, B[0]),
    "another axis": lambda: func.vmap(torch.mm, in_dims=(2, 1), out_dims=1)(
        A.permute(1, 2, 0), B.transpose(0, 1)
    ),
    "in chunks": lambda: func.vmap(torch.mm, chunk_size=15)(A, B),
    "addmm": lambda: func.vmap(lambda a, b: torch.addmm(BIAS, a, b))(A, B),
    "mv": lambda: func.vmap(torch.mv, in_dims=(None, 0))(WEIGHT, ROWS),
    "dot": lambda: func.vmap(torch.dot)(ROWS, ROWS),
    "einsum": lambda: func.vmap(lambda a, b: torch.einsum("ij,jk->k", a, b))(A, B),
    "within another": lambda: func.vmap(func.vmap(torch.mm))(
        A.view(8, 5, 8, 16), B.view(8, 5, 16, 32)
    ),
    "images": lambda: func.vmap(lambda x: F.conv2d(x[None], FILTERS))(IMAGES),
    "filters": lambda: func.vmap(lambda w: F.conv2d(IMAGES, w))(torch.randn(5, 4, 3, 3, 3)),
    "a network": lambda: func.vmap(NET)(ROWS),
    "gradients of each sample": lambda: func.vmap(func.grad(one_loss), in_dims=(None, 0))(
        PARAMETERS, ROWS
    ),
    "vjp": lambda: func.vjp(torch.mm, A[0], B[0])[1](torch.randn(8, 32)),
    "jvp": lambda: func.jvp(torch.mm, (A[0], B[0]), (A[0], B[0])),
    "jacrev": lambda: func.jacrev(matrices)(ROWS),
    "jacrev in chunks": lambda: func.jacrev(matrices, chunk_size=5)(ROWS),
    "jacfwd": lambda: func.jacfwd(matrices)(ROWS),
    "hessian": lambda: func.hessian(lambda x: matrices(x).sum())(ROWS),
    "functionalize": lambda: func.functionalize(torch.mm)(A[0], B[0]),
    "gradients in a batch": rows_of_a_jacobian,
    "dual numbers": dual,
    "dual numbers of a convolution": dual_convolution,
}


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", BATCHED)
@pytest.mark.filterwarnings("ignore:.*torch:Warning")  # torch's own: of torch.jit, of func
def test_transforms_of_functions_count_as_in_torch(
    name: str, counted: Callable[[Callable[[], object]], Value]
) -> None:
    """The operator that was called has the shape of one sample; what ran is inside it."""
    function = BATCHED[name]
    function()  # the first time, some versions load decompositions
    assert counted(function) == by_torch(function) > 0


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        # Attention on the CPU, which runs sample by sample; FCM has no formula for it.
        (lambda: func.vmap(F.scaled_dot_product_attention)(HEADS, HEADS, HEADS), 98_304),
        # Not batched at all, and once for each of 7 tangents. FCM counts no `mv`.
        (lambda: func.vmap(lambda x: x + (WEIGHT @ torch.ones(8)).sum())(ROWS), 96),
        (lambda: func.jacrev(lambda x: WEIGHT @ x)(ROWS[0]), 96 + 2 * 6 * 6 * 8),
    ],
)
def test_transforms_where_torch_has_no_formula(
    function: Callable[[], object], expected: int, counted: Callable[[Callable[[], object]], Value]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is no batching rule
        assert counted(function) == expected


def test_the_gradient_of_each_samples_filters(
    counted: Callable[[Callable[[], object]], Value],
) -> None:
    """It is one convolution in as many groups as samples, which FCM counts for each group."""
    each = func.vmap(func.grad(lambda w, x: F.conv2d(x[None], w).sum()), in_dims=(None, 0))
    forward = 2 * 5 * 36 * FILTERS.numel()
    assert counted(lambda: each(FILTERS, IMAGES)) == 2 * forward


def test_a_tensor_subclass_counts_what_it_did(
    counted: Callable[[Callable[[], object]], Value],
) -> None:
    x, w = Halved.of(torch.randn(16, 8)), torch.randn(8, 4)
    assert counted(lambda: torch.mm(x, w)) == 2 * 16 * 8 * 4
    images = Halved.of(torch.randn(2, 3, 8, 8))
    assert counted(lambda: F.conv2d(images, FILTERS)) == 2 * 2 * 36 * FILTERS.numel()


@pytest.fixture
def four_ranks() -> Iterator[Any]:
    """A mesh of four, of which only this process is there, and nothing is sent."""
    distributed = pytest.importorskip("torch.distributed")
    if not distributed.is_available() or distributed.is_initialized():
        pytest.skip("torch.distributed is not there to be used")
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    from torch.distributed.device_mesh import init_device_mesh

    distributed.init_process_group("fake", store=fake.FakeStore(), rank=0, world_size=4)
    try:
        yield init_device_mesh("cpu", (4,))
    finally:
        distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore:DTensor")  # that some random operators are not there
def test_a_dtensor_counts_the_part_of_this_rank(
    four_ranks: Any, counted: Callable[[Callable[[], object]], Value]
) -> None:
    """Forward and backward."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    x = distribute_tensor(torch.randn(64, 32), four_ranks, [Shard(0)]).requires_grad_()
    w = distribute_tensor(torch.randn(32, 16), four_ranks, [Replicate()]).requires_grad_()

    gradient = distribute_tensor(torch.randn(64, 16), four_ranks, [Shard(0)])

    def step() -> None:
        torch.autograd.backward(x @ w, gradient)

    expected = 3 * 2 * 16 * 32 * 16
    step()  # learns shapes from fake tensors, which older versions do not mark
    assert counted(step) == expected
    assert by_torch(step) == 4 * expected


def test_operators_on_fake_tensors_do_not_make_flops_unknown() -> None:
    """An operator without a formula that only tells a subclass a shape computes nothing."""
    square = [[32, 32]]
    fake = ("aten::linalg_inv_ex", square, ("PythonDispatchMode", square, (
        "aten::linalg_inv_ex", square)))  # fmt: skip
    handed = ("aten::mm", WHOLE, ("PythonSubclass", WHOLE, fake, RAN))
    assert measure(METRICS["flops"], traced(handed)) == LOCAL_FLOP
    ran = ("aten::linalg_inv_ex", square)
    value = measure(METRICS["flops"], traced(("aten::t", square, ("PythonSubclass", square, ran))))
    assert "aten::linalg_inv_ex" in str(value)
