"""A small job of several ranks on gloo, of which each rank records its own step.

``python gloo_job.py KIND RANKS FOLDER`` writes ``rank0.json.gz`` and so on; ``tests/data/gloo`` was
made so, with two ranks. What torch's ``CommDebugMode`` counts in the same step is in the trace's
metadata, as ``comm_debug_mode``.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
from torch import distributed, nn
from torch.multiprocessing.spawn import start_processes
from torch.profiler import ProfilerActivity, profile

Step = Callable[[], object]


def two_layers() -> nn.Sequential:
    """Of 4,224 and 4,128 parameters."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 32))


def ddp(rank: int, ranks: int) -> Step:
    """A bucket for each layer."""
    model = nn.parallel.DistributedDataParallel(two_layers(), bucket_cap_mb=0.01)
    batch = torch.ones(8, 32)
    return lambda: model(batch).sum().backward()


def fsdp2(rank: int, ranks: int) -> Step:
    """A unit for each layer."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = two_layers()
    mesh = init_device_mesh("cpu", (ranks,))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    batch = torch.ones(8, 32)
    return lambda: model(batch).sum().backward()


def tensor_parallel(rank: int, ranks: int) -> Step:
    """The first layer by columns, the second by rows, so that only its sum communicates."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (ranks,))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    model = parallelize_module(two_layers(), mesh, plan)
    batch = torch.ones(8, 32)
    return lambda: model(batch).sum().backward()


def pipeline(rank: int, ranks: int) -> Step:
    """Four micro-batches of two samples through a layer on each rank."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    stage = PipelineStage(nn.Linear(16, 16), rank, ranks, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=lambda out, _: out.sum())
    batch = torch.ones(8, 16)

    def step() -> None:
        if rank == 0:
            schedule.step(batch)
        elif rank == ranks - 1:
            schedule.step(target=batch)
        else:
            schedule.step()

    return step


KINDS: Mapping[str, Callable[[int, int], Step]] = {
    "ddp": ddp,
    "fsdp2": fsdp2,
    "tensor_parallel": tensor_parallel,
    "pipeline": pipeline,
}


def counted(step: Step) -> dict[str, int]:
    """What torch itself counts in a step."""
    from torch.distributed.tensor.debug import CommDebugMode

    with CommDebugMode() as mode:  # type: ignore[no-untyped-call]
        step()
    return {str(name): count for name, count in mode.get_comm_counts().items()}


def run(rank: int, kind: str, ranks: int, store: str, folder: str) -> None:
    """One rank."""
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=ranks
    )
    step = KINDS[kind](rank, ranks)
    for _ in range(2):  # DDP agrees on its buckets in the second
        step()
    # It does not see the calls of a pipeline, and disturbs its schedule.
    known = {} if kind == "pipeline" else counted(step)
    distributed.barrier()
    with profile(
        activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True
    ) as recording:
        step()
    with tempfile.TemporaryDirectory() as temporary:
        plain = Path(temporary) / "trace.json"
        recording.export_chrome_trace(str(plain))
        document = json.loads(plain.read_bytes())
    document |= {"traceName": f"rank{rank}.json", "comm_debug_mode": known}
    text = json.dumps(document, separators=(",", ":")).encode()
    (Path(folder) / f"rank{rank}.json.gz").write_bytes(gzip.compress(text, mtime=0))
    distributed.barrier()
    distributed.destroy_process_group()


def main() -> None:
    """All ranks."""
    kind, ranks, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    Path(folder).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        store = str(Path(temporary) / "store")
        start = partial(start_processes, start_method="spawn")
        start(run, (kind, ranks, store, folder), nprocs=ranks)


if __name__ == "__main__":
    main()
