"""Small traces with a little of everything."""

from __future__ import annotations

from support.trace_builder import TraceBuilder

from pytest_torchprof.trace.names import REGION


def build(vendor: str = "nvidia", *, outside: bool = True) -> TraceBuilder:
    """Calls, kernels, copies, memory and frames, in whole microseconds."""
    b = TraceBuilder("Some GPU", vendor=vendor, cuda_sync_events=True)
    if outside:
        b.op("aten::before")
    with b.annotation(REGION):
        with b.module("nn.Module: Linear_0"), b.op("aten::mm", [[4, 5], [5, 6]], dur_us=10):
            b.advance(0.5)
            b.launch('void gemm<float, "\\quoted\\">', device_us=20)
            block = b.memory(4096)
            b.advance(0.5)
        b.advance(100)
        with b.op("aten::copy_"):
            b.memcpy("HtoD", 4096)
            b.memcpy("DtoH", 8, blocking=True)
        b.free(block)
        b.memory(64, device="cpu")
        b.sync("cudaStreamSynchronize")
        b.graph_launch(["k1", "k2"])
    return b
