"""A trace of one matrix product on a device."""

from __future__ import annotations

from support.trace_builder import TraceBuilder

H100 = "NVIDIA H100 80GB HBM3"


MM = [[256, 512], [512, 1024]]


BF16 = ["c10::BFloat16"] * 2


def builder_of(scale: int = 1, device: str | None = H100, rank: int | None = None) -> TraceBuilder:
    """A matrix product and an addition on the device, ``scale`` times as long."""
    builder = TraceBuilder(device)
    if rank is not None:
        builder.metadata("distributedInfo", {"rank": rank, "world_size": 2})
    with builder.annotation("step"), builder.op("aten::matmul", MM, BF16):
        builder.memory(4096, "cpu")
        with builder.op("aten::mm", MM, BF16):
            if device:
                block = builder.memory(2**20)
                builder.launch("nvjet_tst_128x64", 10 * scale)
        with builder.op("aten::add", [[4], [4]]):
            if device:
                builder.launch("void at::native::add_kernel<float>(int)", 2)
                builder.free(block)
        if device:
            builder.memcpy("DtoH", 1024)
            builder.kernel_without_runtime("ghost_copy", 1)
    return builder
