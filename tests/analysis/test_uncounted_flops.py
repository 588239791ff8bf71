"""What computes and is not counted makes a sum of FLOPs a lower bound, with names."""

from __future__ import annotations

from typing import Any

import pytest
from support.reasons import value_in_words, words
from support.sessions import run
from support.trace_builder import TraceBuilder

from pytest_torchprof.analysis.uncounted import uncounted_flops
from pytest_torchprof.core.unknown import because
from pytest_torchprof.core.values import Baseline, Budget, MissingValue, Profile
from pytest_torchprof.render.failure import sentence
from pytest_torchprof.render.report import metrics_of
from pytest_torchprof.trace.names import REGION
from pytest_torchprof.trace.read import parse_trace
from pytest_torchprof.verdict.compare import Policy, compare, status_of
from pytest_torchprof.verdict.judgement import failures
from pytest_torchprof.verdict.metrics import METRICS, measure

GPU = "NVIDIA H100 80GB HBM3"
MM = ("aten::mm", [[4, 5], [5, 6]])  # 240 FLOP
GEMM = "sm90_xmma_gemm_bf16bf16"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)"
Call = tuple[Any, ...]


def built(*calls: Call | str, device: str | None = None) -> TraceBuilder:
    """Operators with shapes; strings in them are kernels, "alone …", "graph …" of no operator."""
    b = TraceBuilder(device)

    def add(call: Call | str) -> None:
        if not isinstance(call, str):
            name, *rest = call
            shapes = [rest.pop(0)] if rest and isinstance(rest[0], list) else []
            with b.op(name, *shapes):
                for inner in rest:
                    add(inner)
        elif call.startswith("graph "):
            b.graph_launch([call[6:]], device_us=9)
        elif call.startswith("alone "):
            b.kernel_without_runtime(call[6:], 9)
        else:
            b.launch(call, device_us=9)

    for call in calls:
        add(call)
    return b


def gaps(*calls: Call | str, device: str | None = GPU) -> dict[str, str]:
    """Names of what is not counted, and what is missing."""
    found = uncounted_flops(parse_trace(built(*calls, device=device).to_bytes()))
    return (
        {} if found is None else {part.name: because(*(part.missing)).text for part in found.parts}
    )


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        # known to compute, without a formula
        ([("aten::_fft_r2c", [[8]])], {"aten::_fft_r2c"}),
        ([("aten::linalg_svd", ("aten::_linalg_svd",))], {"aten::linalg_svd"}),
        ([("aten::sampled_addmm", [[4, 4]])], {"aten::sampled_addmm"}),
        # an operator of another library that shows nothing inside, or no more than its output
        ([("mylib::my_mm",)], {"mylib::my_mm"}),
        ([("mylib::my_mm", ("aten::empty",))], {"mylib::my_mm"}),
        ([("mylib::outer", ("mylib::inner",))], {"mylib::outer"}),
        ([("mylib::block", (*MM,))], set()),
        ([("mylib::step", ("aten::sin",))], set()),
        ([("torchvision::nms",)], set()),
        ([("MyFunctionBackward", (*MM,))], set()),
        ([("Optimizer.step#SGD.step", ("aten::sin",))], set()),
        ([("aten::linalg_matrix_rank", [[0, 3]])], set()),
        ([("aten::linalg_matrix_rank", [[3, 3]])], {"aten::linalg_matrix_rank"}),
        # a workspace or an absent mask of no elements says nothing of an unknown operator
        ([("mylib::mul", [[64, 64], [64, 64], [0]])], {"mylib::mul"}),
        ([("mylib::mul", [[0, 64], [0, 64]])], set()),
        # an operator that has a number answers for what is inside
        ([("flash_attn::_flash_attn_forward", [[2, 8, 4, 16]] * 3, ("mylib::my_mm",))], set()),
        ([("aten::add",), ("aten::copy_",), ("aten::sum",)], set()),
        # of other libraries: what only moves data in them is not what they are for
        ([("mine::step", [[8]], ("aten::clone", ("aten::copy_",)))], {"mine::step"}),
        ([("mine::step", [[8]], ("aten::to",), ("aten::detach",))], {"mine::step"}),
        ([("mine::step", [[8]], ("aten::mul",))], set()),
    ],
)
def test_operators_that_compute_without_a_formula_are_named(
    calls: list[Call], expected: set[str]
) -> None:
    assert expected == set(gaps(*calls, device=None))


@pytest.mark.parametrize(
    ("dims", "types", "named"),
    [
        ([[0, 64], []], ["float", "Scalar"], False),
        ([[0, 64], []], ["float", ""], False),
        ([[0, 64], []], ["float", "float"], True),  # a tensor of one number
        ([[], []], ["Scalar", ""], True),
    ],
)
def test_an_operator_on_nothing_but_numbers_and_empty_tensors_does_nothing(
    dims: list[list[int]], types: list[str], named: bool
) -> None:
    b = TraceBuilder()
    with b.op("mylib::mul", dims, types):
        pass
    assert named == (uncounted_flops(parse_trace(b.to_bytes())) is not None)


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([(*MM, GEMM)], set()),
        ([(*MM, GEMM), ("aiter::mha_batch_prefill", "fmha_fwd")], {"aiter::mha_batch_prefill"}),
        ([("mylib::my_mm", ("aten::empty",), "my_kernel")], {"mylib::my_mm"}),
        ([("mylib::my_norm", "rms_norm_kernel")], set()),
        ([("mylib::step", "triton_poi_fused_add_0", ADD)], set()),
        ([("mylib::step", "triton_tem_fused_mm_0")], {"mylib::step"}),
        ([("mylib::block", (*MM, GEMM), "my_kernel")], {"mylib::block"}),
        ([("aten::linear", "gemm_of_a_backend")], {"aten::linear"}),
        ([("aten::add", "odd_kernel")], set()),  # the operator is known
        # kernels that nothing answers for
        ([f"alone {GEMM}"], {"", GEMM}),
        ([f"alone {ADD}"], {""}),
        ([(*MM, GEMM), f"alone {ADD}"], set()),
        ([("MyFunction", GEMM)], {GEMM}),
        ([("triton_poi_fused_add_0", "triton__0d1d2d3de")], set()),
        ([("triton_tem_fused_mm_0", "triton__0d1d2d3de")], {"triton__0d1d2d3de"}),
        (["graph _matmul_ogs_NNT_bf16", "graph triton_poi_fused_0"], {"", "_matmul_ogs_NNT_bf16"}),
        ([("flash_attn::_flash_attn_forward", [[2, 8, 4, 16]] * 3, "flash_fwd_kernel")], set()),
    ],
)
def test_kernels_count_by_their_operator_else_by_their_name(
    calls: list[Call | str], expected: set[str]
) -> None:
    assert expected == set(gaps(*calls))


@pytest.mark.parametrize(
    ("calls", "reason"),
    [
        ([f"alone {ADD}"], "no operators in this trace"),
        (
            [f"alone {GEMM}"],
            (
                f"{GEMM} (1 call, 100 % of the time) was not launched by a known operator; "
                "no operators in this trace"
            ),
        ),
    ],
)
def test_a_trace_without_operators_has_no_flops_rather_than_none(
    calls: list[Call | str], reason: str
) -> None:
    """A trace of kernels alone, as some have published."""
    value = measure(METRICS["flops"], parse_trace(built(*calls, device=GPU).to_bytes()))
    assert MissingValue(words(reason), 0, at_least=True) == value_in_words(value)


def test_a_capture_of_ours_without_operators_did_nothing() -> None:
    b = TraceBuilder()
    with b.annotation(REGION):
        pass
    assert 0 == measure(METRICS["flops"], parse_trace(b.to_bytes()))


def test_the_reason_has_the_bound_the_names_and_their_share_of_time() -> None:
    calls: list[Call | str] = [
        (*MM, GEMM),
        ("aiter::mha_batch_prefill", "fmha_fwd"),
        "alone deep_gemm<1>",
    ]
    value = measure(METRICS["flops"], parse_trace(built(*calls, device=GPU).to_bytes()))
    assert MissingValue(
        words(
            "at least 240 FLOP: "
            "aiter::mha_batch_prefill (1 call, 33 % of the time) has no formula; "
            "deep_gemm (1 call, 33 % of the time) was not launched by a known operator"
        ),
        240,
        at_least=True,
    ) == value_in_words(value)


BOUND = MissingValue(words("at least 240 FLOP: x has no formula"), 240, at_least=True)


@pytest.mark.parametrize("scope", [None, "aten::mm"])
@pytest.mark.parametrize(
    ("limit", "expected"), [(239, "over_budget"), (240, "not_measured"), (241, "not_measured")]
)
def test_a_budget_on_a_lower_bound_is_checked_where_it_is_exceeded_already(
    limit: int, expected: str, scope: str | None
) -> None:
    budget = Budget("flops", limit, op=scope)
    profile = Profile({"flops": BOUND}, scoped={budget.label: BOUND})
    verdict = next(v for v in compare(profile, None, [budget], Policy()) if v.limit is not None)
    assert (expected, BOUND.reason) == (verdict.status, verdict.reason)
    assert {"value": 240 if limit < 240 else None, "at_least": 240}.items() <= metrics_of(
        [verdict]
    )[budget.label].items()
    strict = list(
        map(sentence, failures([verdict], Policy(strict=True), has_baseline=True, accept=False))
    )
    unchecked = f"strict: the budget {budget.label} could not be checked: {BOUND.reason.text}"
    assert strict == (["over budget"] if expected == "over_budget" else [unchecked])


@pytest.mark.parametrize(
    ("accepted", "status"), [(100, "regressed"), (240, "not_measured"), (300, "not_measured")]
)
def test_a_lower_bound_can_only_be_a_regression(accepted: int, status: str) -> None:
    """The accepted number is of all that was computed, and now an unknown part is left out."""
    baseline = Baseline(metrics={"flops": accepted})
    verdicts = compare(Profile({"flops": BOUND}), baseline, [], Policy())
    assert [(status, accepted)] == [(v.status, v.baseline) for v in verdicts]
    expected = "ok" if status == "not_measured" else status
    assert status_of(verdicts, has_baseline=True) == expected


LIVE = """
import torch, pytest

@pytest.mark.max_flops("1 GFLOP")
def test_unknown():
    torch.fft.rfft(torch.ones(8))

@pytest.mark.max_flops("1 FLOP")
def test_over():
    torch.ones(4, 5) @ torch.ones(5, 6)
    torch.fft.rfft(torch.ones(8))

@pytest.mark.max_flops("240 FLOP")
def test_known():
    torch.ones(4, 5) @ torch.ones(5, 6)
"""


def test_a_live_test_that_computes_without_a_formula_passes_no_budget(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_it=LIVE)
    ran = run(pytester, "--torchprof")
    assert {"passed": 2, "failed": 1} == ran.outcomes
    assert "flops at least 240 FLOP is over the budget of 1 FLOP" in ran.out
    (line,) = (line for line in ran.out.splitlines() if "max_flops not checked" in line)
    assert "aten::_fft_r2c (1 call" in line
    assert line.endswith("has no formula (test_it.py::test_unknown)")
    run(pytester, "--accept")
    ran = run(pytester, "--torchprof", "--torchprof-strict")
    assert {"passed": 1, "failed": 2} == ran.outcomes
    assert "strict: the budget flops could not be checked: aten::_fft_r2c" in ran.out


TURNED = {"strides": [[1, 4], [6, 1]]}


@pytest.mark.parametrize(
    ("inside", "options", "expected"),
    [
        ([], {}, 240),  # broken off
        (["aten::detach"], {}, 240),  # as in a checkpoint, which keeps the operands
        (["aten::resolve_conj"], {}, 480),  # on the host, the same product
        ([], TURNED, 480),  # another product: perhaps it needs no copy
    ],
)
def test_a_product_that_was_broken_off_does_not_count(
    inside: list[str], options: dict[str, Any], expected: int
) -> None:
    """It shows no sign of work, where the same product does that ran."""
    b = TraceBuilder(GPU)
    with b.op(*MM):
        b.launch(GEMM)
    with b.op(*MM, **options):
        for name in inside:
            b.op(name)
    assert expected == measure(METRICS["flops"], parse_trace(b.to_bytes()))


def test_a_product_counts_where_nothing_shows_work() -> None:
    """Recorded on the host alone, without memory."""
    assert 480 == measure(METRICS["flops"], parse_trace(built((*MM, ("aten::t",)), MM).to_bytes()))
