"""Labelled examples of the rules about how collectives are called."""

from __future__ import annotations

from typing import Any

from labelled.case import Examples
from support.trace_builder import TraceBuilder

EXAMPLES = Examples()
SMALL, BLOCKING = "small-collectives", "blocking-collective"
GLOO_THREAD = 77
REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
NODE = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
#: Sizes of the gradients of a small model, in elements.
GRADIENTS = (64, 512, 64, 4096, 64, 4096, 64, 4096, 10, 640)


def job() -> TraceBuilder:
    """The trace of one of two ranks on the CPU."""
    b = TraceBuilder()
    group = {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 2, "ranks": [0, 1]}
    info = {"backend": "gloo", "rank": 0, "world_size": 2, "pg_count": 1, "pg_config": [group]}
    b.metadata("distributedInfo", info)
    return b


def called(
    b: TraceBuilder,
    elements: int,
    op: str = "c10d::allreduce_",
    *,
    dtype: str = "float",
    ms: float = 0.3,
    work: str = "gloo:all_reduce",
    later: bool = False,
) -> None:
    """A collective on gloo; ``later``: it is asynchronous, and the thread goes on at once."""
    dims: list[Any] = [[[elements]], [], [], [], [], []]
    types = ["TensorList", "", "", "", "Scalar", "Scalar"]
    b.op(op, dims, types, ["", "", "", "", str(later), "-1"], dur_us=20)
    after = b.now
    with b.thread(GLOO_THREAD):
        event = b.annotation(work, ms * 1000).event
    event["args"] |= {"Input Dims": [[elements]], "Input type": [dtype]}
    if later:
        b.now = after


def noted(b: TraceBuilder, elements: int, ms: float = 0.3, **more: Any) -> None:
    """A collective of NCCL, with its parameters."""
    args = {
        "Collective name": "allreduce",
        "dtype": "Float",
        "In msg nelems": elements,
        "Out msg nelems": elements,
        "Group size": 8,
        "Process Group Name": "0",
        **more,
    }
    concrete = ["", "", "", "", "True", "-1"]
    types = ["TensorList", "", "", "", "Scalar", "Scalar"]
    with b.op("c10d::allreduce_", [[[elements]], [], [], [], [], []], types, concrete):  # noqa: SIM117
        with b.op("record_param_comms", args=args):
            b.launch(REDUCE, ms * 1000, 20)


def waited(b: TraceBuilder) -> None:
    """The wait of NCCL's work."""
    b.op("record_param_comms", args={"Collective name": "wait", "In msg nelems": 0})


def computed(b: TraceBuilder, us: float = 200) -> None:
    """A product."""
    b.op("aten::mm", [[64, 64], [64, 64]], dur_us=us)


# --------------------------------------------------------------------------- small-collectives


@EXAMPLES.positive(SMALL)
def each_gradient_by_itself():
    b = job()
    computed(b)
    for elements in GRADIENTS:
        called(b, elements)
    return b


@EXAMPLES.positive(SMALL)
def each_parameter_sent_to_all():
    b = job()
    for elements in GRADIENTS:
        called(b, elements, "c10d::broadcast_", work="gloo:broadcast")
    return b


@EXAMPLES.positive(SMALL)
def each_gradient_through_nccl():
    b = TraceBuilder("NVIDIA H100 80GB HBM3")
    for elements in GRADIENTS:
        noted(b, elements)
        waited(b)
    b.launch("gemm", 100)
    return b


@EXAMPLES.positive(SMALL)
def each_gradient_asynchronously():
    b = job()
    for elements in GRADIENTS:
        called(b, elements, later=True)
    b.advance(5000)
    computed(b)
    return b


@EXAMPLES.positive(SMALL)
def small_ones_before_a_large_one():
    b = job()
    for elements in (*GRADIENTS, 4_000_000):
        called(b, elements)
    return b


@EXAMPLES.positive(SMALL, 2)
def gradients_of_two_dtypes_one_after_the_other():
    b = job()
    for dtype in ("float", "c10::BFloat16"):
        for elements in GRADIENTS:
            called(b, elements, dtype=dtype)
    return b


@EXAMPLES.positive(SMALL)
def eight_of_them():
    b = job()
    for elements in GRADIENTS[:8]:
        called(b, elements)
    return b


@EXAMPLES.positive(SMALL)
def buckets_of_less_than_a_megabyte():
    b = job()
    for number in range(10):
        called(b, 220_000 + number)
    return b


@EXAMPLES.near_miss(SMALL)
def seven_of_them():
    b = job()
    for elements in GRADIENTS[:7]:
        called(b, elements)
    return b


@EXAMPLES.near_miss(SMALL)
def buckets_of_a_megabyte():
    b = job()
    for number in range(10):
        called(b, 2**18 + number)
    return b


@EXAMPLES.near_miss(SMALL)
def layers_of_tensor_parallelism():
    b = job()
    for elements in GRADIENTS:
        computed(b)
        called(b, elements)
    return b


@EXAMPLES.near_miss(SMALL)
def a_benchmark_of_one_tensor():
    b = job()
    for _ in range(20):
        called(b, 1024)
    return b


@EXAMPLES.near_miss(SMALL)
def barriers_of_a_test():
    b = job()
    for _ in range(10):
        b.op("c10d::barrier", [[1], [], [], [], []])
    return b


@EXAMPLES.near_miss(SMALL)
def hooks_of_a_backward_pass():
    b = job()
    for elements in GRADIENTS:
        with b.op(NODE):
            called(b, elements)
    return b


@EXAMPLES.near_miss(SMALL)
def one_a_step():
    b = job()
    for number, elements in enumerate(GRADIENTS):
        with b.annotation(f"ProfilerStep#{number}"):
            called(b, elements)
    return b


@EXAMPLES.near_miss(SMALL)
def two_kinds_by_turns():
    b = job()
    for elements in GRADIENTS:
        called(b, elements)
        called(b, elements, "c10d::broadcast_", work="gloo:broadcast")
    return b


# ------------------------------------------------------------------------- blocking-collective


@EXAMPLES.positive(BLOCKING)
def a_wait_right_behind_the_start_on_gloo():
    b = job()
    called(b, 2**18, later=True, ms=2)
    b.advance(2010)
    computed(b)
    return b


@EXAMPLES.positive(BLOCKING, 3)
def a_wait_behind_each_of_three_starts():
    b = job()
    for _ in range(3):
        called(b, 2**18, later=True, ms=2)
        b.advance(2010)
        computed(b)
    return b


@EXAMPLES.positive(BLOCKING)
def a_wait_right_behind_the_start_on_nccl():
    b = TraceBuilder("NVIDIA H100 80GB HBM3")
    noted(b, 2**20, 3)
    waited(b)
    with b.op("aten::mm", [[64, 64], [64, 64]]):
        b.launch("gemm", 100)
    return b


@EXAMPLES.positive(BLOCKING)
def in_a_region_of_the_user():
    b = job()
    with b.annotation("sync gradients"):
        called(b, 2**18, later=True, ms=2)
        b.advance(2010)
    computed(b)
    return b


@EXAMPLES.positive(BLOCKING)
def of_an_all_to_all():
    b = job()
    called(b, 2**18, "c10d::alltoall_", work="gloo:all_to_all", later=True, ms=2)
    b.advance(2010)
    computed(b)
    return b


@EXAMPLES.positive(BLOCKING)
def a_short_pause_of_python_behind_the_wait():
    b = job()
    called(b, 2**18, later=True, ms=2)
    b.advance(2200)
    computed(b)
    return b


@EXAMPLES.positive(BLOCKING)
def not_quite_a_small_one():
    b = job()
    called(b, 18_000, later=True, ms=2)
    b.advance(2010)
    computed(b)
    return b


@EXAMPLES.positive(BLOCKING)
def a_hundredth_of_the_time():
    b = job()
    called(b, 2**18, later=True, ms=1)
    b.advance(1010)
    computed(b, 88_000)
    return b


@EXAMPLES.near_miss(BLOCKING)
def less_than_a_hundredth_of_the_time():
    b = job()
    called(b, 2**18, later=True, ms=1)
    b.advance(1010)
    computed(b, 110_000)
    return b


@EXAMPLES.near_miss(BLOCKING)
def nearly_a_large_one():
    b = job()
    called(b, 14_000, later=True, ms=2)
    b.advance(2010)
    computed(b)
    return b


@EXAMPLES.near_miss(BLOCKING)
def a_plain_call():
    b = job()
    called(b, 2**18, ms=2)
    computed(b)
    return b


@EXAMPLES.near_miss(BLOCKING)
def a_small_one():
    b = job()
    called(b, 2**10, later=True, ms=2)
    b.advance(2010)
    computed(b)
    return b


@EXAMPLES.near_miss(BLOCKING)
def long_after_the_work():
    b = job()
    called(b, 2**18, later=True, ms=2)
    b.advance(9000)
    computed(b)
    return b


@EXAMPLES.near_miss(BLOCKING)
def weights_that_ddp_broadcasts():
    b = job()
    called(b, 2**18, "c10d::broadcast_", work="gloo:broadcast", later=True, ms=2)
    b.advance(2010)
    computed(b)
    return b


@EXAMPLES.near_miss(BLOCKING)
def on_nccl_with_a_product_before_the_wait():
    b = TraceBuilder("NVIDIA H100 80GB HBM3")
    noted(b, 2**20, 3)
    with b.op("aten::mm", [[64, 64], [64, 64]]):
        b.launch("gemm", 100)
    waited(b)
    return b


@EXAMPLES.near_miss(BLOCKING)
def a_small_share_of_the_time():
    b = job()
    called(b, 2**18, later=True, ms=0.5)
    b.advance(510)
    computed(b, 100_000)
    return b
