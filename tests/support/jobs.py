"""Jobs of several ranks on gloo, as functions that each rank calls: `torchrun` and tests run them.

The numbers that they must have are beside them, counted by hand. Each job builds its model, and
returns its step.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - as everybody has it
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

Step = Callable[[], object]

#: Rows of a batch, and features: each product is of `ROWS` x `WIDTH` with `WIDTH` x `WIDTH`.
ROWS, WIDTH = 4, 8
PRODUCT = 2 * ROWS * WIDTH * WIDTH
#: Bytes of the weight of a layer, and of a batch, in fp32.
WEIGHT, BATCH = 4 * WIDTH * WIDTH, 4 * ROWS * WIDTH
#: If set, each rank runs its step once more, and writes what torch counts there into this folder.
COUNTS = "COUNTED_JOB"


class Two(nn.Module):
    """Two linear layers without bias."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH, bias=False)
        self.second = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Both, with a ReLU between them."""
        return self.second(F.relu(self.first(x)))  # type: ignore[no-any-return]


def ddp() -> Step:
    """One step: two products forward, three backward, as the input needs no gradient.

    Both gradients are one bucket: DDP makes several from the second step on.
    """
    model = nn.parallel.DistributedDataParallel(Two())
    return lambda: model(torch.ones(ROWS, WIDTH)).sum().backward()


def _mesh() -> DeviceMesh:
    return init_device_mesh("cpu", (dist.get_world_size(),))


def fsdp2() -> Step:
    """The same with sharded parameters."""
    mesh, model = _mesh(), Two()
    fully_shard(model.first, mesh=mesh)
    fully_shard(model.second, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return lambda: model(torch.ones(ROWS, WIDTH)).sum().backward()


def tensor_parallel() -> Step:
    """The first layer's columns and the second one's rows are sharded; forward only.

    Each rank has all weights: of a scatter, gloo does not say to which dtype the parts belong.
    """
    plan = {"first": ColwiseParallel(), "second": RowwiseParallel()}
    model = parallelize_module(Two(), _mesh(), plan, src_data_rank=None)

    def step() -> None:
        with torch.no_grad():
            model(torch.ones(ROWS, WIDTH)).sum()  # which waits for the all-reduce

    return step


def pipeline() -> Step:
    """Each rank has one layer, and sends what comes of it to the next one; forward only."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    layer = nn.Linear(WIDTH, WIDTH, bias=False)

    def step() -> None:
        x = torch.ones(ROWS, WIDTH)
        with torch.no_grad():
            if rank > 0:
                dist.recv(x, rank - 1)
            x = layer(x)
            if rank < ranks - 1:
                dist.send(x, rank + 1)

    return step


JOBS: Mapping[str, Callable[[], Step]] = {
    job.__name__: job for job in (ddp, fsdp2, tensor_parallel, pipeline)
}
#: FLOPs of each rank, of a number of ranks.
FLOPS: dict[str, Callable[[int], int]] = {
    "ddp": lambda ranks: 5 * PRODUCT,
    "fsdp2": lambda ranks: 5 * PRODUCT,
    "tensor_parallel": lambda ranks: 2 * PRODUCT // ranks,
    "pipeline": lambda ranks: PRODUCT,
}


def built(job: str, ranks: int) -> tuple[int, int]:
    """Calls of a rank while it builds its model, and their payload in bytes.

    DDP compares the number of parameters of all ranks, and broadcasts their sizes and strides (8
    numbers) and them.
    """
    return (3, 8 * ranks + 8 * 8 + 2 * WEIGHT) if job == "ddp" else (0, 0)


def stepped(job: str, rank: int, ranks: int) -> tuple[int, int]:
    """Calls of a rank in its step, and their payload in bytes, as nccl-tests count it.

    FSDP2 gathers each weight for the forward and for the backward pass, and reduces each gradient.
    """
    neighbors = (rank > 0) + (rank < ranks - 1)
    return {
        "ddp": (1, 2 * WEIGHT),
        "fsdp2": (6, 6 * WEIGHT),
        "tensor_parallel": (1, BATCH),
        "pipeline": (neighbors, neighbors * BATCH),
    }[job]


def run_job(job: str) -> None:
    """One rank of a job, in a process that has a group."""
    torch.set_num_threads(1)
    step = JOBS[job]()
    step()
    if folder := os.environ.get(COUNTS):
        counts = counted(step)
        (Path(folder) / f"{dist.get_rank()}.json").write_text(json.dumps(counts), "utf-8")


def counted(step: Step) -> dict[str, int]:
    """What torch itself counts in a step."""
    with CommDebugMode() as mode:  # type: ignore[no-untyped-call]
        step()
    return dict(Counter({str(name): n for name, n in mode.get_comm_counts().items()}))


def rank_of_job(rank: int, job: str, ranks: int, file: str) -> None:
    """One rank of a job that meets through a file."""
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=ranks)
    run_job(job)
    dist.destroy_process_group()


def main() -> None:
    """One rank of a job that `torchrun` has started, or one that is told all it must know."""
    if sys.argv[2:]:
        rank_of_job(int(sys.argv[2]), sys.argv[1], int(sys.argv[3]), sys.argv[4])
        return
    dist.init_process_group("gloo")
    run_job(sys.argv[1])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
