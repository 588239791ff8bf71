"""Make the command output in the documents, from fixed traces and rows."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_torchprof.render import ab as ab_page
from pytest_torchprof.render import ab as ab_table
from pytest_torchprof.verdict.paired import Difference

if TYPE_CHECKING:
    from support.trace_builder import TraceBuilder

ROOT = Path(__file__).resolve().parents[1]


def kernels() -> str:
    """The output of `torchprof kernels` for a made-up training step."""
    return _printed("kernels", _step())


def kernels_by() -> str:
    """The same by operator, kernel and shape."""
    return _printed("kernels", _step(), "--by", "op,kernel,shape")


def _step() -> TraceBuilder:
    sys.path.insert(0, str(ROOT / "tests"))
    from support.trace_builder import TraceBuilder

    builder = TraceBuilder("NVIDIA H100 80GB HBM3")
    bf16 = ["c10::BFloat16"] * 4
    wide = [[8192, 4096], [4096, 16384]]
    with builder.annotation("ProfilerStep#3"):
        builder.memcpy("HtoD", 2**26, device_us=2700)
        for us in (1650, 1655):
            with builder.op("aten::mm", wide, bf16[:2]):
                name = "nvjet_tst_256x128_64x4_1x2_h_bz_coopA_NNT"
                builder.launch(name, us, grid=(2, 66, 1), block=(384, 1, 1))
            with builder.op("aten::gelu", [[8192, 16384], []], ["c10::BFloat16", ""]):
                name = "at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl"
                lambdas = "(at::TensorIteratorBase&)::{lambda(c10::BFloat16)#1}"
                name = f"void {name}{lambdas}, std::array<char*, 2ul> >(int)"
                builder.launch(name, 205, grid=(2**18, 1, 1))
        query, not_causal = [[4, 16, 2048, 64]] * 3, ["", "", "", "0.", "False", "False", ""]
        with builder.op("aten::_scaled_dot_product_flash_attention", query, bf16[:3], not_causal):
            traits = "Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, cutlass::bfloat16_t>"
            name = f"void pytorch_flash::flash_fwd_kernel<{traits}, false, false>(int)"
            builder.launch(name, 180, grid=(16, 4, 16))
        with builder.op("aten::add_", [[16], [16]]):
            add = "at::native::CUDAFunctor_add<float>"
            name = f"void at::native::vectorized_elementwise_kernel<4, {add}>(int)"
            builder.launch(name, 2, grid=(1, 1, 1))
    return builder


def lint() -> str:
    """The output of `torchprof lint` for a made-up training loop."""
    sys.path.insert(0, str(ROOT / "tests"))
    from support.trace_builder import TraceBuilder

    builder = TraceBuilder("NVIDIA H100 80GB HBM3")
    fetch = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    with builder.python("train.py(21): train"):
        for _ in range(32):
            with builder.annotation(fetch):
                builder.op("aten::stack", [[[3, 224, 224]] * 32, []], dur_us=9000)
            scope = builder.op("aten::item", [[]])
            with scope, builder.op("aten::_local_scalar_dense", [[]]):
                builder.memcpy("DtoH", 4)
                builder.sync("cudaStreamSynchronize", 850)
    return _printed("lint", builder)


def _starving() -> TraceBuilder:
    """Training steps that wait for data, for reads, and for other ranks."""
    sys.path.insert(0, str(ROOT / "tests"))
    from support.trace_builder import TraceBuilder

    builder = TraceBuilder("NVIDIA H100 80GB HBM3")
    fetch = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    with builder.python("train.py(21): train"):
        for number in range(4):
            builder.annotation(fetch, 2600)
            with builder.annotation(f"ProfilerStep#{number}"):
                with builder.op("aten::copy_"):
                    builder.memcpy("HtoD", 2**24, device_us=640)
                for _ in range(6):
                    with builder.op("aten::linear"), builder.op("aten::addmm"):
                        builder.launch("nvjet_tst_256x128_64x4_1x2_h_bz_coopA_NNT", 310)
                    with builder.op("aten::gelu"):
                        builder.launch(
                            "void at::native::vectorized_elementwise_kernel<4, Gelu>", 88
                        )
                with builder.op("c10d::allreduce_"):
                    builder.launch("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 700, stream=20)
                item, read = "aten::item", "aten::_local_scalar_dense"
                with builder.python("train.py(33): log"), builder.op(item), builder.op(read):
                    builder.memcpy("DtoH", 4, device_us=2)
                    builder.sync("cudaStreamSynchronize")
                builder.advance(150)
    return builder


def summary() -> str:
    """The first table of `torchprof summary` for a made-up training loop."""
    text = _printed("summary", _starving())
    return f"{text.partition(chr(10) * 2 + 'metric')[0]}\n…\n```"


def idle() -> str:
    """The output of `torchprof idle` for the same."""
    return _printed("idle", _starving())


def memory() -> str:
    """The output of `torchprof memory` for a made-up training loop that keeps its outputs."""
    return _printed("memory", _training())


def timeline() -> str:
    """The same over time."""
    return _printed("memory", _training(), "--timeline", "--limit", "6")


def _training() -> TraceBuilder:
    sys.path.insert(0, str(ROOT / "tests"))
    from support.trace_builder import TraceBuilder

    mib, engine = 2**20, "autograd::engine::evaluate_function: "
    builder = TraceBuilder("NVIDIA H100 80GB HBM3", start_bytes={"cuda": 401 * mib})
    gradient = 0
    with builder.python("train.py(21): train"):
        for number in range(6):
            with builder.annotation(f"ProfilerStep#{number}"):
                with builder.annotation("Optimizer.zero_grad#AdamW.zero_grad"):
                    if gradient:
                        builder.free(gradient)
                linear = builder.op("aten::linear", dur_us=40)
                with linear, builder.op("aten::addmm"):
                    saved = builder.memory(256 * mib)
                with builder.op("aten::clone", dur_us=20):
                    builder.memory(8 * mib)
                with builder.op(f"{engine}AddmmBackward0", dur_us=90):
                    upstream = builder.memory(64 * mib)
                    gradient = builder.memory(128 * mib)
                    builder.free(upstream)
                    builder.free(saved)
                with builder.op(f"{engine}torch::autograd::AccumulateGrad"):
                    builder.op("torch::autograd::AccumulateGrad", [[8192, 4096]], ["float"])
                with builder.annotation("Optimizer.step#AdamW.step", dur_us=60):
                    if number == 0:
                        with builder.op("aten::zeros_like"):
                            builder.memory(256 * mib)
                    with builder.op("aten::_foreach_sqrt"):
                        root = builder.memory(128 * mib)
                    builder.free(root)
    return builder


def steps() -> str:
    """The output of `torchprof steps` for a made-up training loop."""
    sys.path.insert(0, str(ROOT / "tests"))
    from support.trace_builder import TraceBuilder

    builder = TraceBuilder("NVIDIA H100 80GB HBM3")
    for number, late in enumerate((9000, 20, 0, 40, 10, 30), 2):
        with builder.annotation(f"ProfilerStep#{number}"):
            builder.memcpy("HtoD", 2**24, device_us=700)
            with builder.op("aten::mm", [[8192, 4096], [4096, 16384]]):
                block = builder.memory(2**28)
                builder.advance(late)
                builder.launch("nvjet_tst_256x128_64x4_1x2_h_bz_coopA_NNT", 1650)
            builder.sync("cudaStreamSynchronize", 2300)
            builder.free(block)
    return _printed("steps", builder)


def tree() -> str:
    """The output of `torchprof ops --by module` for a made-up transformer."""
    sys.path.insert(0, str(ROOT / "tests"))
    from support.trace_builder import TraceBuilder

    builder = TraceBuilder("NVIDIA H100 80GB HBM3")
    bf16 = ["c10::BFloat16"] * 2

    def linear(number: int, deep: int, wide: int, us: float) -> None:
        scope = builder.module(f"nn.Module: Linear_{number}")
        with scope, builder.op("aten::mm", [[8192, deep], [deep, wide]], bf16):
            builder.launch("nvjet_tst_128x256_64x4_2x1_v_bz_coopB_TNN", us)

    with builder.module("nn.Module: GPT_0"):
        for layer in range(12):
            with builder.module(f"nn.Module: Block_{layer}"):
                with builder.module(f"nn.Module: Attention_{layer}"):
                    linear(4 * layer, 1024, 3072, 84)
                    linear(4 * layer + 1, 1024, 1024, 29)
                with builder.module(f"nn.Module: MLP_{layer}"):
                    linear(4 * layer + 2, 1024, 4096, 110)
                    linear(4 * layer + 3, 4096, 1024, 112)
        linear(48, 1024, 50304, 1350)
    with builder.op("aten::argmax", [[8192, 50304]]):
        builder.launch("void at::native::reduce_kernel<512, 1, ArgMaxOps<float> >(int)", 320)
    return _printed("ops", builder, "--by", "module")


def ab() -> str:
    """The output of `torchprof ab` for two made-up tests."""
    sys.path.insert(0, str(ROOT / "tests"))
    from support.handmade_rows import decided

    more = Difference("flops", 1_200_000_000, 1_400_000_000)
    rows = [
        decided("test_step", "slower", 1.102, 0.0115, differences=[more]),
        decided("test_evaluation", "same", 1.003, 0.005, spread=0.01, ms=12.1),
    ]
    threshold, seconds = 0.02, 9.4
    page = ab_page.Page(
        heading=["A: main (3f2a91c)", "B: working tree, uncommitted changes"],
        rows=rows,
        left=0,
        notes=[],
        end=[ab_table.ab_totals(rows, threshold, seconds)],
    )
    text = ab_page.text(page, 120).rstrip()
    return f'```text\n$ torchprof ab main -- tests/perf -k "not huge"\n{text}\n```'


def _printed(command: str, builder: TraceBuilder, *options: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        trace = builder.save(Path(folder, "step.pt.trace.json"))
        widths = {
            "kernels": "165" if options else "150",
            "lint": "96",
            "summary": "140",
            "steps": "130",
            "ops": "110",
        }
        done = subprocess.run(
            [sys.executable, "-m", "pytest_torchprof", command, str(trace), *options],
            env={**os.environ, "COLUMNS": widths.get(command, "120")},
            check=True, capture_output=True, text=True,
        )  # fmt: skip
    line = " ".join((command, "step.pt.trace.json", *options))
    return f"```text\n$ torchprof {line}\n{done.stdout.rstrip()}\n```"


MAKERS: dict[str, Callable[[], str]] = {
    "ab": ab,
    "idle": idle,
    "kernels": kernels,
    "kernels_by": kernels_by,
    "lint": lint,
    "memory": memory,
    "summary": summary,
    "timeline": timeline,
    "steps": steps,
    "tree": tree,
}
