"""What fp32 costs where half precision is several times as fast, and what to do there."""

from __future__ import annotations

import pytest
from labelled.attention_cuda import Heads
from labelled.halves import SGEMM, TENSILE_2, mlp, sized

from pytest_torchprof.rules.check import Checked, check
from pytest_torchprof.rules.registry import RULES
from pytest_torchprof.trace.read import parse_trace

RULE = RULES["half-unused"]


def checked(b: Heads) -> Checked:
    return check(parse_trace(b.to_bytes()), [RULE])


def on_v100() -> Heads:
    return Heads(sized(31.75), capability=(7, 0))


def test_it_costs_half_of_the_time_of_the_products() -> None:
    b = on_v100()
    mlp(b, SGEMM, 300, layers=4)
    (found,) = checked(b).matches.values()
    assert found.cost_ns is not None
    assert found.cost_ns.tolist() == [600_000]


def test_short_products_and_other_kernels_cost_nothing() -> None:
    b = on_v100()
    mlp(b, SGEMM, 300, layers=4)
    mlp(b, SGEMM, 10, layers=4)
    b.over("relu", [4096, 1024], "float", us=100)
    (found,) = checked(b).matches.values()
    assert found.cost_ns is not None
    assert found.cost_ns.tolist() == [600_000]


@pytest.mark.parametrize(
    ("options", "gib", "kernel", "fix"),
    [
        ({"capability": (7, 0)}, 31.75, SGEMM, "float16), in training with torch.amp.GradScaler"),
        ({"capability": (9, 5), "amd": "AMD Instinct MI350X"}, 287.98, TENSILE_2, "bfloat16)"),
    ],
)
def test_the_fix_names_the_faster_type(
    options: dict[str, object], gib: float, kernel: str, fix: str
) -> None:
    b = Heads(sized(gib), **options)
    mlp(b, kernel, 300)
    (finding,) = checked(b).findings()
    assert finding.fix == f'run the model under torch.autocast("cuda", dtype=torch.{fix}'


def test_all_calls_of_products_are_one_finding() -> None:
    b = on_v100()
    for _ in range(2):
        with b.annotation("forward"):
            mlp(b, SGEMM, 300)
    (finding,) = checked(b).findings()
    assert (finding.count, finding.message) == (
        1,
        "device 0 multiplies in fp32, and float16 would be 8 times as fast",
    )


def test_an_unknown_device_is_not_checked() -> None:
    b = Heads(sized(80, name="an accelerator"), capability=(7, 5))
    mlp(b, SGEMM, 300)
    assert {code: why.text for code, why in checked(b).gaps.items()} == {
        "half-unused": "products in fp32: the trace does not say which device it ran on"
    }


def test_few_products_on_an_unknown_device_do_not_matter() -> None:
    b = Heads(sized(80, name="an accelerator"), capability=(7, 5))
    mlp(b, SGEMM, 30)
    b.over("relu", [4096, 1024], "float", us=1000)
    assert checked(b).gaps == {}
