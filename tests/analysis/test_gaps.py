"""What a trace cannot say about its device is not measured, never 0 and never "no findings"."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import asdict
from support.trace_builder import TraceBuilder

from pytest_torchprof.core.unknown import Why, because
from pytest_torchprof.core.values import Budget, MissingValue, Sample
from pytest_torchprof.rules.check import check
from pytest_torchprof.rules.registry import RULES
from pytest_torchprof.trace.facts import FACTS_KEY
from pytest_torchprof.trace.names import REGION
from pytest_torchprof.trace.read import parse_trace
from pytest_torchprof.verdict.findings import findings_within, found_in
from pytest_torchprof.verdict.metrics import METRICS, measure, measure_all

if TYPE_CHECKING:
    from support.trace_styles import Event

    from pytest_torchprof.trace.events import Events

A100 = "NVIDIA A100-SXM4-40GB"
SGEMM = "ampere_sgemm_128x64_tn"
HALF = "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_tn"
ODD_HALF = "ampere_bf16_s16816gemm_bf16_128x64_ldg4_tn"
#: Metrics of a device: all that its events say, its memory, and the calls that wait for it.
OF_DEVICE = [n for n, m in METRICS.items() if m.needs & {"device", "device_memory", "calls"}]
FROM_EVENTS = [n for n, m in METRICS.items() if "device" in m.needs]


def recorded(b: TraceBuilder, *changes: Any) -> Events:
    return parse_trace(b.to_bytes(changes))


def categories(**of: str) -> Any:
    """Events of the categories that stand before, as of those that stand after."""

    def change(document: Event) -> Event:
        for event in document["traceEvents"]:
            event["cat"] = of.get(str(event.get("cat")), event.get("cat"))
        return document

    return change


def calls(**names: str) -> Any:
    """Runtime calls by other names."""

    def change(document: Event) -> Event:
        text = json.dumps(document)
        for old, new in names.items():
            text = text.replace(old, new)
        renamed: Event = json.loads(text)
        return renamed

    return change


def step() -> TraceBuilder:
    """A kernel, a copy back and a wait."""
    b = TraceBuilder(A100, (8, 0))
    with b.annotation(REGION):
        with b.op("aten::mm", [[64, 64], [64, 64]]):
            b.launch(SGEMM)
        with b.op("aten::item", [[1]]):
            b.memcpy("DtoH", 4)
            b.sync("cudaStreamSynchronize")
        with b.op("aten::relu", [[64, 64]]):
            b.launch("relu")
    return b


def reason(trace: Events, name: str) -> str | None:
    value = measure(METRICS[name], trace)
    return value.reason.text if isinstance(value, MissingValue) else None


# ------------------------------------------------------------------------------- other devices


def test_a_device_of_an_unread_category_is_named_and_nothing_of_it_is_0() -> None:
    on_mtia = categories(
        kernel="mtia_ccp_events", gpu_memcpy="mtia_ccp_events", cuda_runtime="mtia_runtime"
    )
    for accelerator in (None, "MTIA"):
        b = step()
        b.metadata(FACTS_KEY, {"accelerator": accelerator, "device_type": "mtia"})
        trace = recorded(b, on_mtia)
        message = {reason(trace, name) for name in OF_DEVICE}
        assert message == {
            "events of MTIA devices are not supported (category mtia_ccp_events in this trace)"
        }
        found = check(trace, RULES.values())
        assert found.unchecked["host-sync"].text == message.pop()


@pytest.mark.parametrize("category", ["hpu_op", "gcu_memcpy", "async_npu"])
def test_other_devices_are_named(category: str) -> None:
    trace = recorded(step(), categories(kernel=category))
    assert category in str(reason(trace, "kernels"))


def test_an_npu_is_recognized_by_flow_arrows_to_events_without_a_category() -> None:
    def change(document: Event) -> Event:
        for event in document["traceEvents"]:
            if event.get("cat") == "kernel":
                del event["cat"]
            elif event.get("cat") == "ac2g":
                event["cat"] = "async_npu"
        return document

    trace = recorded(step(), change)
    assert str(reason(trace, "kernels")).startswith("events of NPU devices are not supported")


def test_events_without_a_category_are_named() -> None:
    b = step()
    b.metadata(FACTS_KEY, {"accelerator": None})
    trace = recorded(b, categories(kernel="", gpu_memcpy="", cuda_runtime=""))
    assert (
        reason(trace, "kernels")
        == f"{because(*Why.NO_DEVICE).text}: events without a category in this trace"
    )


@pytest.mark.parametrize(
    ("accelerator", "message"),
    [
        (None, f"{because(*Why.NO_DEVICE).text}: category q9"),
        ("Q9", "events of this device are not supported: category q9"),
    ],
)
def test_unknown_categories_are_named_if_nothing_else_is_a_device(
    accelerator: str | None, message: str
) -> None:
    b = step()
    b.metadata(FACTS_KEY, {"accelerator": accelerator})
    trace = recorded(b, categories(kernel="q9", gpu_memcpy="q9", cuda_runtime="q9_runtime"))
    assert str(reason(trace, "kernels")).startswith(message)


def test_events_of_the_profiler_itself_are_not_an_unknown_device() -> None:
    b = TraceBuilder()
    b.overhead()
    b.op("aten::mm", [[2, 2], [2, 2]])
    trace = recorded(b)
    assert trace.unread == ()
    assert {reason(trace, name) for name in OF_DEVICE} == {because(*Why.NO_DEVICE).text}


def test_an_unknown_category_beside_a_known_device_takes_nothing_away() -> None:
    b = step()
    b.annotation("mine")
    trace = recorded(b, categories(gpu_user_annotation="mine"))
    assert trace.unread == ("mine",)
    assert measure(METRICS["kernels"], trace) == 2


def test_memory_of_a_device_whose_events_are_not_read_is_measured() -> None:
    b = step()
    with b.annotation(REGION):
        b.memory(512)
    trace = recorded(b, categories(kernel="mtia_ccp_events", gpu_memcpy="mtia_ccp_events"))
    assert measure(METRICS["allocated_cuda_bytes"], trace) == 512
    assert reason(trace, "kernels") is not None


# ----------------------------------------------------------------------------------- waits


ON_XPU = (
    categories(cuda_runtime="xpu_runtime"),
    calls(
        cudaLaunchKernel="urEnqueueKernelLaunch",
        cudaMemcpyAsync="urEnqueueUSMMemcpy",
        cudaStreamSynchronize="urEnqueueWait",
    ),
)


def test_waits_on_xpu_are_unknown_and_the_rest_is_counted() -> None:
    trace = recorded(step(), *ON_XPU)
    assert (
        reason(trace, "syncs")
        == because(
            "no_waits_on_xpu",
            ("on XPU, torch's profiler records what the host submits, but not when it waits"),
        ).text
    )
    assert (measure(METRICS["kernels"], trace), measure(METRICS["d2h_copies"], trace)) == (2, 1)
    found = check(trace, [RULES["host-sync"], RULES["launch-bound"]])
    assert found.counts == {"host-sync": 1}  # the copy that item() made
    assert found.gaps == dict.fromkeys(
        ["host-sync", "launch-bound"],
        because(
            "no_waits_on_xpu",
            ("on XPU, torch's profiler records what the host submits, but not when it waits"),
        ),
    )


def test_a_live_test_on_xpu_that_calls_nothing_has_no_number_of_waits_either() -> None:
    b = TraceBuilder("Intel(R) Data Center GPU Max 1550")
    b.metadata(FACTS_KEY, {"accelerator": "Max 1550", "device_type": "xpu"})
    b.annotation(REGION)
    assert (
        reason(recorded(b), "syncs")
        == because(
            "no_waits_on_xpu",
            ("on XPU, torch's profiler records what the host submits, but not when it waits"),
        ).text
    )


@pytest.mark.parametrize("device_type", ["npu", "privateuseone", "hpu"])
def test_which_calls_wait_is_not_known_of_other_devices(device_type: str) -> None:
    b = step()
    b.metadata(FACTS_KEY, {"accelerator": "X", "device_type": device_type})
    own = categories(cuda_runtime="privateuse1_runtime"), calls(cuda="aclrt")
    assert "not known which calls wait for this device" in str(reason(recorded(b, *own), "syncs"))
    b = TraceBuilder("X")
    b.metadata(FACTS_KEY, {"accelerator": "X", "device_type": device_type})
    b.annotation(REGION)
    assert f"for {device_type} devices" in str(reason(recorded(b), "syncs"))


def test_kernels_without_any_call_leave_the_waits_unknown() -> None:
    trace = recorded(step(), categories(cuda_runtime="overhead"))
    assert (
        reason(trace, "syncs")
        == because("no_calls", "the device's driver calls were not recorded").text
    )
    assert (
        because("no_calls", "the device's driver calls were not recorded")
        == check(trace, [RULES["host-sync"]]).gaps["host-sync"]
    )


def test_on_cuda_and_rocm_waits_are_counted() -> None:
    assert measure(METRICS["syncs"], recorded(step())) == 1
    b = TraceBuilder("AMD Instinct MI300X", (9, 4), vendor="amd")
    b.launch("k")
    b.sync("cudaDeviceSynchronize")
    assert measure(METRICS["syncs"], recorded(b)) == 1


# -------------------------------------------------------------------------- partial captures


def partial() -> Events:
    b = TraceBuilder(A100, (8, 0))
    b.metadata(FACTS_KEY, {"accelerator": A100, "device_type": "cuda"})
    with b.annotation(REGION), b.op("aten::mm", [[64, 64], [64, 64]]):
        b.launch(SGEMM)
        b.launch(SGEMM, record_kernel=False)
        b.memcpy("DtoH", 8)
        b.sync("cudaDeviceSynchronize")
        b.memory(512)
    return recorded(b)


def test_in_a_partial_capture_calls_and_memory_are_counted() -> None:
    values = measure_all(partial())
    assert (values["syncs"], values["allocated_cuda_bytes"]) == (1, 512)


@pytest.mark.parametrize(
    "call",
    ["urEnqueueKernelLaunch", "urEnqueueCooperativeKernelLaunchExp", "piEnqueueKernelLaunch",
     "zeCommandListAppendLaunchKernel", "hipLaunchKernel", "cuLaunchKernelEx"],
)  # fmt: skip
def test_a_lost_kernel_is_noticed_whatever_its_launch_is_called(call: str) -> None:
    b = TraceBuilder("GPU")
    with b.annotation(REGION):
        b.launch("k", record_kernel=False)
    trace = recorded(b, calls(cudaLaunchKernel=call))
    assert "1 of 1 launches" in str(reason(trace, "kernels"))


def test_in_a_partial_capture_counts_of_the_rest_are_a_lower_bound() -> None:
    values = measure_all(partial())
    least = {"kernels": 1, "d2h_copies": 1, "d2h_bytes": 8, "h2d_copies": None, "h2d_bytes": None}
    for name in FROM_EVENTS:
        value = values[name]
        assert isinstance(value, MissingValue)
        assert "partial capture: 1 of 2 launches" in value.reason.text
        assert value.reason.text.startswith("at least") == bool(least.get(name))
        assert (value.at_hand, value.at_least) == (least.get(name), bool(least.get(name)))


# ----------------------------------------------------------------------------------- graphs


def replayed(*kernels: str, device: str = A100, **facts: object) -> Events:
    vendor = "amd" if device.startswith("AMD") else "nvidia"
    b = TraceBuilder(device, (9, 4) if vendor == "amd" else (8, 0), vendor=vendor)
    b.metadata(FACTS_KEY, {"accelerator": device, "device_type": "cuda", **facts})
    with b.annotation(REGION):
        b.op("aten::detach", [[1]])
        b.graph_launch(kernels)
    return recorded(b)


@pytest.mark.parametrize(
    ("kernels", "blind"),
    [
        ([SGEMM], {"fp32-matmul"}),
        ([HALF], set()),  # loads whole vectors
        ([ODD_HALF], {"unaligned-matmul"}),
        (["nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NTN"], {"unaligned-matmul"}),
        (["nvjet_sm90_hsh_64x8_64x16_4x1_v_bz_TNT"], {"unaligned-matmul"}),
        (["nvjet_sm90_sss_128x128_32x4_2x1_v_bz_TNN"], set()),  # in TF32
        (["nvjet_of_the_future"], {"fp32-matmul", "unaligned-matmul"}),
        (["some_gemm"], {"fp32-matmul", "unaligned-matmul"}),
        (["softmax_warp_forward"], {"math-attention", "manual-attention"}),
        (["topkGatingSoftmax"], {"math-attention"}),  # a gate of experts
        (["nchwToNhwcKernel<float>"], {"layout-transpose"}),
        (["direct_copy_kernel_cuda"], {"repeated-cast", "contiguous-copy"}),
        (["cudnn::bn_fw_tr_1C11_singleread"], {"conv-bias-batchnorm"}),
        (["relu"], set()),
    ],
)
def test_rules_that_need_operators_are_not_checked_for_what_graphs_launch(
    kernels: list[str], blind: set[str]
) -> None:
    found = check(replayed(*kernels), RULES.values())
    why = because(
        "kernels_from_graphs", "{count: kernel} ran from graphs, without their operators", count=1
    )
    assert {code for code, message in found.gaps.items() if message == why} == blind


@pytest.mark.parametrize(
    ("device", "facts"),
    [("AMD Instinct MI300X", {}), ("Tesla V100-SXM2-16GB", {}), (A100, {"allow_tf32": True})],
)
def test_fp32_in_graphs_is_not_flagged_without_tf32_or_with_tf32_enabled(
    device: str, facts: dict[str, object]
) -> None:
    trace = replayed("some_gemm", device=device, **facts)
    if device.startswith("Tesla"):
        trace.metadata["deviceProperties"][0].update(computeMajor=7, computeMinor=0)
    assert "fp32-matmul" not in check(trace, RULES.values()).gaps


def test_what_a_rule_finds_outside_of_graphs_counts_all_the_same() -> None:
    b = TraceBuilder(A100, (8, 0))
    with b.op("aten::mm", [[64, 64], [64, 64]]):
        b.launch(SGEMM)
    b.graph_launch([SGEMM, SGEMM])
    found = check(recorded(b), [RULES["fp32-matmul"]])
    assert found.counts == {"fp32-matmul": 1}
    assert found.unchecked == {}
    assert "2 kernels ran from graphs" in found.partly["fp32-matmul"].text


def test_a_budget_on_a_rule_that_saw_a_part_is_exceeded_or_not_checked() -> None:
    b = TraceBuilder(A100, (8, 0))
    with b.op("aten::mm", [[64, 64], [64, 64]]):
        b.launch(SGEMM)
    b.graph_launch(["some_gemm"])
    rules = [RULES[code] for code in ("fp32-matmul", "unaligned-matmul")]
    found, unchecked = found_in(check(recorded(b), rules), rules, ())
    assert found == {"fp32-matmul": 1}
    assert set(unchecked) == {"fp32-matmul", "unaligned-matmul"}
    seen, unseen = (
        findings_within(
            Budget("findings", 0, rules=(rule.code,)), found, unchecked, allowed=(), ignored=()
        )
        for rule in rules
    )
    assert seen == 1
    assert isinstance(unseen, MissingValue)
    assert "ran from graphs" in unseen.reason.text


def test_kernels_without_any_operator_are_not_checked() -> None:
    b = TraceBuilder(A100, (8, 0))
    b.launch(SGEMM)
    found = check(recorded(b), [RULES["fp32-matmul"]])
    assert found.gaps == {
        "fp32-matmul": because("kernels_alone", "kernels were recorded without their operators")
    }


# ----------------------------------------------------------------------------------- launch-bound


@pytest.mark.parametrize(
    ("wall_ms", "expected"),
    [
        (asdict(Sample.of([98.0, 100.0, 102.0])), {"launch-bound": 1}),
        (asdict(Sample.of([0.2])), {}),
        ("not measured", {"launch-bound": 1}),
    ],
)
def test_a_live_test_is_launch_bound_only_if_its_unprofiled_time_says_so_too(
    wall_ms: object, expected: dict[str, int]
) -> None:
    b = TraceBuilder(A100, (8, 0))
    b.metadata(FACTS_KEY, {"accelerator": A100, "device_type": "cuda", "wall_ms": wall_ms})
    with b.annotation(REGION):
        for _ in range(60):
            with b.op("aten::mul_", [[8]]):
                b.launch("mul", 2)
    assert check(recorded(b), [RULES["launch-bound"]]).counts == expected
