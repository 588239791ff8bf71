"""Chains of elementwise kernels: what is of one, what it costs, and what is said of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from support.chips import Gpu

from pytest_torchprof.rules.check import check
from pytest_torchprof.rules.registry import RULES
from pytest_torchprof.trace.read import parse_trace

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_torchprof.core.values import Finding
    from pytest_torchprof.trace.events import Events

RULE = RULES["unfused-elementwise"]
KERNEL = "void at::native::vectorized_elementwise_kernel<4, at::native::{}>"
SHAPE = [64, 1024, 1024]
#: One tensor, in bytes; and what an H100 takes to move it, in us.
SIZE = 4 * 64 * 2**20
PASS_US = SIZE / 3.35e6


def chain(*names: str, us: float = 400, chip: str = "H100") -> Gpu:
    """Operators on one tensor, whose kernels are launched ahead of the device."""
    b = Gpu(chip)
    b.launch("gemm", 100)
    for name in names:
        with b.op(f"aten::{name}", [SHAPE, []], ["float", "Scalar"], ["", "2"]):
            b.launch(KERNEL.format(name), us)
    return b


def findings(trace: Events) -> list[Finding]:
    return list(check(trace, [RULE], thresholds={RULE.code: {"share": 0.0}}).findings())


def one(b: Gpu) -> Finding:
    (finding,) = findings(parse_trace(b.to_bytes()))
    return finding


def us(finding: Finding) -> float:
    assert finding.cost_ms is not None
    return finding.cost_ms * 1e3


def test_each_result_within_a_chain_is_written_and_read_once_too_often() -> None:
    finding = one(chain("exp", "mul", "tanh"))
    assert finding.bytes == 4 * SIZE
    assert us(finding) == pytest.approx(4 * PASS_US, rel=0.01)
    assert finding.message == "3 kernels (exp, mul, tanh) pass on [64, 1024, 1024]"


def test_a_chain_costs_no_more_than_the_share_of_its_bytes() -> None:
    """Faster kernels than the memory allows are served by a cache: of six passes, two are saved."""
    finding = one(chain("exp", "mul", us=60))
    assert us(finding) == pytest.approx(120 * 2 / 4, rel=0.01)


def test_a_chain_costs_no_more_than_all_but_its_longest_kernel() -> None:
    b = chain("exp", us=20)
    with b.op("aten::mul", [SHAPE, []], ["float", "Scalar"], ["", "2"]):
        b.launch(KERNEL.format("mul"), 2_000)
    assert us(one(b)) == pytest.approx(20, rel=0.01)


def test_on_an_unknown_device_the_share_of_the_bytes_is_the_cost() -> None:
    b = chain("exp", "mul", chip="H100")
    b.styles = ("no_properties",)
    trace = parse_trace(b.to_bytes("no_properties"))
    (finding,) = findings(trace)
    assert us(finding) == pytest.approx(800 / 2, rel=0.01)


@pytest.mark.parametrize(
    ("names", "form"),
    [
        (("pow", "mul", "tanh"), 'torch.nn.functional.gelu(x, approximate="tanh")'),
        (("sub", "pow"), "torch.nn.functional.layer_norm"),
        (("mul_", "add_"), "torch.Tensor.lerp_"),
        (("mul", "add"), "torch.addcmul"),
        (("mul", "add", "neg"), "torch.compile"),
        (("exp", "neg"), "torch.compile"),
    ],
)
def test_the_fix_names_what_torch_has(names: tuple[str, ...], form: str) -> None:
    fix = one(chain(*names)).fix
    assert fix.startswith(form)
    assert "torch.compile" in fix


def test_without_shapes_it_is_not_checked() -> None:
    b = Gpu("H100")
    for name in ("exp", "mul"):
        with b.op(f"aten::{name}"):
            b.launch(KERNEL.format(name), 400)
    assert list(check(parse_trace(b.to_bytes()), [RULE]).unchecked) == [RULE.code]


class Known:
    """Tensors of the operators by name: what each takes and makes."""

    def __init__(self, **calls: tuple[tuple[int, ...], int]) -> None:
        self.calls = {f"aten::{name}": found for name, found in calls.items()}

    def taken(self, _: Iterable[int], names: Iterable[str]) -> list[tuple[Any, ...]]:
        return [self.calls[name][0] if name in self.calls else () for name in names]

    def made(self, _: Iterable[int], names: Iterable[str]) -> list[frozenset[int]]:
        return [frozenset({self.calls[n][1]} if n in self.calls else ()) for n in names]


def identified(b: Gpu, **calls: tuple[tuple[int, ...], int]) -> list[Finding]:
    trace = parse_trace(b.to_bytes())
    return findings(replace(trace, tensors=Known(**calls)))  # type: ignore[arg-type]


def test_a_live_test_is_captured_again_to_tell_tensors_apart() -> None:
    b = Gpu("H100")
    with b.annotation(b.region):
        b.launch("gemm", 100)
        for name in ("exp", "mul"):
            with b.op(f"aten::{name}", [SHAPE, []], ["float", "Scalar"], ["", "2"]):
                b.launch(KERNEL.format(name), 400)
    assert check(parse_trace(b.to_bytes()), [RULE]).wants_tensors
