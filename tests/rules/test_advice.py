"""What a rule advises is right for the chip, the version and the arguments that it found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from support.live import captured
from support.trace_builder import TraceBuilder

from pytest_torchprof.rules.check import check
from pytest_torchprof.rules.registry import RULES
from pytest_torchprof.trace.facts import FACTS_KEY
from pytest_torchprof.trace.names import REGION
from pytest_torchprof.trace.read import parse_trace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pytest_torchprof.core.values import Finding
    from pytest_torchprof.trace.events import Events

SGEMM = "ampere_sgemm_128x64_tn"
TF32 = 'torch.set_float32_matmul_precision("high"), or autocast to bf16'


def recorded(b: TraceBuilder) -> Events:
    return parse_trace(b.to_bytes())


def found(trace: Events, code: str) -> Finding:
    """The one finding of a rule."""
    (finding,) = check(trace, [RULES[code]]).findings()
    return finding


# ------------------------------------------------------------------------------------- the chip


def product(chip: str, capability: tuple[int, int], sms: int, gib: float) -> Finding:
    """What is said of an fp32 product of 1 ms on a chip."""
    b = TraceBuilder(chip, capability)
    with b.op("aten::mm", [[512, 512], [512, 512]], ["float", "float"]):
        b.launch(SGEMM, 1000)
    document = b.document()
    document["deviceProperties"][0] |= {"numSms": sms, "totalGlobalMem": int(gib * 2**30)}
    b.document = lambda: document  # type: ignore[method-assign]
    return found(recorded(b), "fp32-matmul")


@pytest.mark.parametrize(
    ("chip", "capability", "sms", "gib", "saved_ms"),
    [
        ("NVIDIA H100 80GB HBM3", (9, 0), 132, 79.2, 0.5),
        ("NVIDIA A100-SXM4-40GB", (8, 0), 108, 39.4, 0.5),
        ("NVIDIA A10", (8, 6), 72, 22.1, 0.5),
        ("NVIDIA RTX A6000", (8, 6), 84, 47.5, 0.5),
        ("NVIDIA H900", (9, 0), 132, 79.2, 0.5),  # unknown, of a chip that is known
    ],
)
def test_where_tf32_is_faster_it_is_what_helps(
    chip: str, capability: tuple[int, int], sms: int, gib: float, saved_ms: float
) -> None:
    finding = product(chip, capability, sms, gib)
    assert finding.fix == TF32
    assert finding.cost_ms == pytest.approx(saved_ms, rel=0.02)


@pytest.mark.parametrize(
    ("chip", "capability", "sms", "gib"),
    [
        ("NVIDIA GeForce RTX 3090", (8, 6), 82, 23.7),
        ("NVIDIA GeForce RTX 4090", (8, 9), 128, 23.5),
        ("NVIDIA A10G", (8, 6), 80, 22.1),
        ("NVIDIA L40", (8, 9), 142, 44.4),
        ("NVIDIA GeForce RTX 5090", (12, 0), 170, 31.4),
    ],
)
def test_where_tf32_is_as_slow_as_fp32_no_gain_of_it_is_claimed(
    chip: str, capability: tuple[int, int], sms: int, gib: float
) -> None:
    finding = product(chip, capability, sms, gib)
    assert "TF32 gains nothing on this chip" in finding.fix
    assert "precision" not in finding.fix
    assert finding.cost_ms == 0


@pytest.mark.parametrize("capability", [(8, 6), (8, 9), (12, 0)])
def test_for_an_unknown_card_the_gain_of_tf32_is_unknown(capability: tuple[int, int]) -> None:
    finding = product("NVIDIA GeForce RTX 9999", capability, 77, 20)
    assert "if this chip" in finding.fix
    assert finding.cost_ms == 0


# ---------------------------------------------------------------------------------- the version


def test_how_gradients_become_none_depends_on_the_version() -> None:
    b = TraceBuilder()
    with b.annotation(REGION), b.annotation("Optimizer.zero_grad#SGD.zero_grad"):
        b.op("aten::zero_", [[3]])
    fix = found(recorded(b), "grad-not-none").fix
    assert "without set_to_none=False" in fix
    assert "before torch 2.0: zero_grad(set_to_none=True)" in fix


# -------------------------------------------------------------------------------- the arguments


def moved(name: str, device_type: str | None = None) -> Finding:
    """A tensor that an operator fills on the CPU and that is then moved."""
    b = TraceBuilder("NVIDIA A100-SXM4-40GB", (8, 0))
    if device_type is not None:
        b.metadata(FACTS_KEY, {"accelerator": "X", "device_type": device_type})
    shape = [[64, 64], [64, 64]]
    with b.annotation(REGION):
        b.op(name, [[64, 64]])
        with b.op("aten::to", shape), b.op("aten::_to_copy", shape), b.op("aten::copy_", shape):
            b.memcpy("HtoD", 16384)
            b.sync("cudaStreamSynchronize")
    return found(recorded(b), "extra-cuda-copy")


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("aten::ones", 'torch.ones(…, device="cuda")'),
        ("aten::randn", 'torch.randn(…, device="cuda")'),
        ("aten::arange", 'torch.arange(…, device="cuda")'),
        ("aten::rand_like", 'torch.rand_like(x, device="cuda")'),
        ("aten::new_full", 'x.new_full(…, device="cuda")'),
        ("aten::normal_", 'torch.empty(…, device="cuda").normal_(…)'),
        ("aten::zero_", 'torch.empty(…, device="cuda").zero_()'),
    ],
)
def test_the_function_that_fills_is_named(name: str, call: str) -> None:
    finding = moved(name)
    assert finding.fix == f"create it on the device: {call}"
    assert f"by {name} on the CPU" in finding.message


def test_the_device_is_named_as_torch_calls_it() -> None:
    assert moved("aten::randn", "xpu").fix.endswith('torch.randn(…, device="xpu")')


def stepped(name: str, update: str, device: bool) -> list[str]:
    """What is advised for twelve parameters updated one by one by an optimizer of this class."""
    b = TraceBuilder("NVIDIA A100-SXM4-40GB" if device else None, (8, 0))
    with b.annotation(f"Optimizer.step#{name}.step"):
        for _ in range(12):
            with b.op(update, [[3], [3]]):
                if device:
                    b.launch("update")
    found = check(recorded(b), [RULES["single-tensor-optimizer"]]).findings()
    return [finding.fix for finding in found]


@pytest.mark.parametrize(
    ("name", "update", "on_cpu", "on_device"),
    [
        ("SGD", "aten::add_", "fused=True", "fused=True"),
        ("Adam", "aten::addcdiv_", "fused=True", "fused=True"),
        ("AdamW", "aten::addcdiv_", "fused=True", "fused=True"),
        ("Adagrad", "aten::addcmul_", "fused=True", "foreach=True"),
        ("RMSprop", "aten::addcmul_", "foreach=True", "foreach=True"),
        ("Adamax", "aten::addcdiv_", "foreach=True", "foreach=True"),
        ("Adadelta", "aten::div_", "foreach=True", "foreach=True"),
        ("Rprop", "aten::clamp_", None, "foreach=True"),
        ("ASGD", "aten::mul_", None, "foreach=True"),
        ("Adafactor", "aten::rsqrt_", None, "foreach=True"),
    ],
)
def test_what_an_optimizer_takes_is_advised_where_it_gains(
    name: str, update: str, on_cpu: str | None, on_device: str
) -> None:
    for device, wanted in ((False, on_cpu), (True, on_device)):
        fixes = [] if wanted is None else [f"pass {wanted} to the optimizer"]
        assert stepped(name, update, device) == fixes


MADE = [(8, 8), (8,), (4, 8), (4,)] * 4


def looped(*calls: str) -> str:
    """What is advised for a loop that does this to each parameter, on a device."""
    b = TraceBuilder("NVIDIA A100-SXM4-40GB", (8, 0))
    for weight, bias in zip(MADE[::2], MADE[1::2], strict=True):
        with b.op("aten::linear", [[2, 8], weight, bias]):
            b.launch("gemm")
    for shape in MADE:
        for name in calls:
            with b.op(f"aten::{name}", [shape, shape]):
                b.launch("elementwise")
    return found(recorded(b), "per-parameter-loop").fix


@pytest.mark.parametrize(
    ("calls", "shown"),
    [
        ("pow sum add", "torch.stack(torch._foreach_norm(parameters)).square().sum()"),
        ("linalg_vector_norm add", "torch.stack(torch._foreach_norm(parameters))"),
        ("linalg_vector_norm", "clip_grad_norm_"),
        ("mul sub", "torch._foreach_add where autograd records the loop"),
        ("mul sub_", "torch._foreach_add_(parameters, gradients, alpha=-lr)"),
        ("mul_ add_", "torch._foreach_lerp_"),
        ("mul mul add", "torch._foreach_lerp_"),
        ("pow mul mul add_", "torch._foreach_add_(parameters, gradients, alpha=-lr)"),
    ],
)
def test_what_is_advised_for_a_loop_is_the_function_for_lists(calls: str, shown: str) -> None:
    assert shown in looped(*calls.split())


@pytest.mark.parametrize(
    ("index", "shown"), [("-1", "[:, -1:]"), ("15", "[:, -1:]"), ("7", "[:, position]")]
)
def test_the_position_whose_logits_are_used_is_the_one_to_select(index: str, shown: str) -> None:
    b = TraceBuilder()
    b.op("aten::linear", [[4, 16, 64], [5000, 64]], ["float"] * 2)
    b.op("aten::select", [[4, 16, 5000], [], []], ["float", "Scalar", "Scalar"], ["", "1", index])
    assert f"lm_head(hidden{shown})" in found(recorded(b), "all-logits").fix


def test_a_copy_back_is_advised_another_way_than_a_copy_up() -> None:
    for kind, shown in (
        ("HtoD", "pin_memory=True in the DataLoader"),
        ("DtoH", "synchronize once"),
    ):
        b = TraceBuilder("NVIDIA A100-SXM4-40GB", (8, 0))
        with b.op("aten::copy_", [[1 << 20], [1 << 20]]):
            b.memcpy(kind, 4 << 20)
        assert shown in found(recorded(b), "pageable-copy").fix


def test_a_synchronisation_is_not_advised_to_be_read_late() -> None:
    b = TraceBuilder("NVIDIA A100-SXM4-40GB", (8, 0))
    b.launch("first")
    b.sync("cudaDeviceSynchronize")
    b.launch("second")
    assert "remove the synchronization" in found(recorded(b), "host-sync").fix


@pytest.mark.parametrize(
    ("cause", "shown"),
    [
        (None, "mark what varies: dynamic=True"),
        ("rest", "fix the graph break"),
        ("wrapper", "compile the whole model, or a class of your own"),
        ("model", "marking sizes dynamic does not help"),
        ("tensor", "pass tensors of one dtype"),
        ("equal sizes", "mark each with mark_dynamic"),
        ("size 0 or 1", "sizes 0 and 1 are compiled on their own"),
        ("condition", "the size is dynamic already"),
        ("value", "compile one function for each value"),
    ],
)
def test_what_helps_against_a_recompilation_depends_on_its_cause(
    cause: str | None, shown: str
) -> None:
    row = {"reason": "f was recompiled", "location": None, "id": "0/1", "ms": 2.0}
    facts = {"compiled": ["0/0", "0/1"], "recompiles": 1}
    b = TraceBuilder()
    b.metadata(FACTS_KEY, facts | {"recompilations": [row | {"cause": cause}]})
    with b.annotation(REGION):
        b.op("Torch-Compiled Region: 0/1")
    assert shown in found(recorded(b), "recompile").fix


@pytest.mark.parametrize(
    ("strides", "shown"),
    [
        ([[512, 1], [1, 512]], "N=30522 is not a multiple of 8"),  # M lies along nothing
        ([[1, 141], [1, 512]], "M=141, N=30522 are not multiples of 8"),
    ],
)
def test_only_dimensions_that_do_harm_are_named(strides: list[list[int]], shown: str) -> None:
    b = TraceBuilder("NVIDIA A100-SXM4-40GB", (8, 0))
    with b.op("aten::mm", [[141, 512], [512, 30522]], ["c10::BFloat16"] * 2, strides=strides):
        b.launch("gemm")
    assert found(recorded(b), "unaligned-matmul").message.endswith(shown)


# ---------------------------------------------------------------------------------- the loader


@pytest.mark.parametrize(("fetch_us", "pays"), [(40_000, True), (200, False)])
def test_it_is_said_whether_workers_would_pay(fetch_us: int, pays: bool) -> None:
    b = TraceBuilder()
    with b.annotation(REGION):
        for _ in range(8):
            with b.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
                b.op("aten::stack", [[[4], [4]], []], dur_us=fetch_us)
            b.op("aten::relu", [[8, 4]], dur_us=20_000)
    one = found(recorded(b), "sync-dataloader")
    assert (one.count, bool(one.cost_ms), one.fix.startswith("give")) == (8, pays, pays)
    assert f"8 fetches take {'320' if pays else '1.61'} ms" in one.message


# ------------------------------------------------------------------------------------- averages


@pytest.mark.parametrize(
    ("update", "advised"),
    [
        (lambda old, new: old.copy_(0.9 * old + 0.1 * new), "torch._foreach_lerp_"),
        (lambda old, new: old.mul_(0.9).add_(new, alpha=0.1), "torch._foreach_lerp_"),
        (lambda old, new: old.sub_(0.1 * new), "torch._foreach_add_"),
    ],
)
def test_a_loop_that_averages_is_told_to_blend_lists(
    update: Callable[[torch.Tensor, torch.Tensor], object], advised: str, tmp_path: Path
) -> None:
    model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(12)])
    olds = [p.detach().clone() for p in model.parameters()]
    x = torch.ones(2, 8)

    @torch.no_grad()
    def block() -> None:
        model(x)
        for old, new in zip(olds, model.parameters(), strict=True):
            update(old, new)

    trace = captured(block, tmp_path, tensors=True)
    assert advised in found(trace, "per-parameter-loop").fix


UPDATES: dict[str, tuple[Callable[[torch.Tensor, torch.Tensor], object], bool]] = {
    "an average": (lambda old, new: old.mul_(0.9).add_(new, alpha=0.1), True),
    "an average of a product": (lambda old, new: old.mul_(0.9).add_(new * 0.1), True),
    "an average made anew": (lambda old, new: old.copy_(old * 0.9 + new * 0.1), True),
    "momentum": (lambda old, new: old.mul_(0.9).add_(new), False),
    "decay and a step": (lambda old, new: old.mul_(0.99).add_(new, alpha=-0.1), False),
    "a step along a power": (lambda old, new: old.add_(old.pow(2) * new * 0.1), False),
}


@pytest.mark.parametrize("kind", UPDATES)
def test_only_an_average_is_advised_to_be_one(kind: str, tmp_path: Path) -> None:
    update, average = UPDATES[kind]
    model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(8)])
    others = [torch.rand_like(one) for one in model.parameters()]

    def block() -> None:
        model(torch.ones(2, 4))
        with torch.no_grad():
            for one, other in zip(model.parameters(), others, strict=True):
                update(other, one)

    fix = found(captured(block, tmp_path, tensors=True), "per-parameter-loop").fix
    assert average == ("_foreach_lerp_" in fix)
