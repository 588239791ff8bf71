"""Jobs of several ranks on gloo, as functions that each rank calls: `torchrun` and tests run them.

The numbers that they must have are beside them, counted by hand.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - as everybody has it
from torch import nn

#: Rows of a batch, and features: each product is of `ROWS` x `WIDTH` with `WIDTH` x `WIDTH`.
ROWS, WIDTH = 4, 8
PRODUCT = 2 * ROWS * WIDTH * WIDTH


class Two(nn.Module):
    """Two linear layers without bias."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH, bias=False)
        self.second = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Both, with a ReLU between them."""
        return self.second(F.relu(self.first(x)))  # type: ignore[no-any-return]


def ddp() -> None:
    """One step: two products forward, three backward, as the input needs no gradient."""
    model = nn.parallel.DistributedDataParallel(Two())
    model(torch.ones(ROWS, WIDTH)).sum().backward()


def fsdp2() -> None:
    """The same with sharded parameters."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = Two()
    fully_shard(model.first, mesh=mesh)
    fully_shard(model.second, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model(torch.ones(ROWS, WIDTH)).sum().backward()


def tensor_parallel() -> None:
    """The first layer's columns and the second one's rows are sharded; forward only."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    plan = {"first": ColwiseParallel(), "second": RowwiseParallel()}
    model = parallelize_module(Two(), mesh, plan)
    with torch.no_grad():
        model(torch.ones(ROWS, WIDTH))


def pipeline() -> None:
    """Each rank has one layer, and sends what comes of it to the next one; forward only."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    layer = nn.Linear(WIDTH, WIDTH, bias=False)
    x = torch.ones(ROWS, WIDTH)
    with torch.no_grad():
        if rank > 0:
            dist.recv(x, rank - 1)
        x = layer(x)
        if rank < ranks - 1:
            dist.send(x, rank + 1)


JOBS = {job.__name__: job for job in (ddp, fsdp2, tensor_parallel, pipeline)}
#: FLOPs of each rank, of a number of ranks.
FLOPS: dict[str, Callable[[int], int]] = {
    "ddp": lambda ranks: 5 * PRODUCT,
    "fsdp2": lambda ranks: 5 * PRODUCT,
    "tensor_parallel": lambda ranks: 2 * PRODUCT // ranks,
    "pipeline": lambda ranks: PRODUCT,
}
#: Payload of each rank in bytes, as nccl-tests count it, of a number of ranks. DDP compares the
#: number of parameters of all ranks, and broadcasts their sizes and strides (8 numbers) and them.
COMM_BYTES: dict[str, Callable[[int], int]] = {
    "ddp": lambda ranks: 8 * ranks + 8 * 8 + 2 * (2 * WIDTH * WIDTH * 4),
}


def rank_of_job(rank: int, job: str, ranks: int, file: str) -> None:
    """One rank of a job that meets through a file."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=ranks)
    JOBS[job]()
    dist.destroy_process_group()


def main() -> None:
    """One rank of a job that `torchrun` has started."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    JOBS[sys.argv[1]]()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
