"""Programs that launch kernels, for properties of tables of kernels."""

from __future__ import annotations

from hypothesis import strategies as st
from support.trace_builder import TraceBuilder

#: Kernels of products, and others.
NAMES = ["gemm_a", "gemm_b", "elementwise", "reduce_kernel", "flash_fwd"]
SIZES = st.integers(0, 40)


@st.composite
def programs(draw: st.DrawFn) -> TraceBuilder:
    """Products and additions within one another, with kernels, copies and graphs anywhere."""
    b = TraceBuilder("Test Chip", (99, 0))

    def fill(depth: int) -> None:
        for _ in range(draw(st.integers(0, 3))):
            what = draw(st.sampled_from(["op", "op", "kernel", "kernel", "copy", "graph", "lost"]))
            us = draw(st.integers(0, 50))
            grid = (draw(st.integers(1, 4)), 1, 1)
            if what == "op" and depth < 4:
                n, k, m = draw(SIZES), draw(SIZES), draw(SIZES)
                name = draw(st.sampled_from(["aten::mm", "aten::add", "mine::op", "aten::mm"]))
                dims = [[n, k], [k, m]] if name == "aten::mm" else [[n, k], [n, k]]
                with b.op(name, dims):
                    fill(depth + 1)
            elif what == "copy":
                b.memcpy("DtoH", draw(SIZES), device_us=us)
            elif what == "graph":
                b.graph_launch(draw(st.lists(st.sampled_from(NAMES), max_size=3)), device_us=us)
            elif what == "lost":
                b.kernel_without_runtime(draw(st.sampled_from(NAMES)), device_us=us)
            else:
                b.launch(draw(st.sampled_from(NAMES)), device_us=us, host_us=1, grid=grid)

    fill(0)
    return b
