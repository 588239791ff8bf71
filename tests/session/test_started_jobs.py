"""Real jobs on gloo, however a test starts their ranks: as computed, and as torch counts."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from support.job_ways import WAYS
from support.jobs import COUNTS, FLOPS, JOBS, built, stepped
from support.sessions import Ran, accept, run

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(sys.platform != "linux", reason="processes are told by /proc"),
]


@pytest.fixture(autouse=True)
def with_support(monkeypatch: pytest.MonkeyPatch) -> None:
    """The inner session and its processes find the jobs."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[1]), *sys.path]))


def of_ranks(ran: Ran, test: str) -> dict[str, tuple[int | str, ...]]:
    """FLOPs, collectives, and their bytes, of each rank; the reason of what is unknown."""
    names = ("flops", "collectives", "comm_bytes")
    each: dict[str, Any] = ran.tests[test]["ranks"]
    return {
        label: tuple(
            metrics[name].get("reason")
            if metrics[name]["value"] is None
            else metrics[name]["value"]
            for name in names
        )
        for label, metrics in each.items()
    }


def by_hand(job: str, ranks: int) -> dict[str, tuple[int, ...]]:
    """The same, as computed; the test's own process does nothing."""
    found: dict[str, tuple[int, ...]] = {"main": (0, 0, 0)}
    for rank in range(ranks):
        setup, step = built(job, ranks), stepped(job, rank, ranks)
        found[str(rank)] = (FLOPS[job](ranks), setup[0] + step[0], setup[1] + step[1])
    return found


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("job", JOBS)
def test_a_job_is_as_computed_by_hand_and_as_torch_counts(
    job: str, ranks: int, pytester: pytest.Pytester, tmp_path: Path
) -> None:
    """Each rank, and their sum. In a second test each rank runs its step once more, in which
    torch's ``CommDebugMode`` counts all collectives, but no sends and receives.
    """
    pytester.makepyfile(
        test_it=f"""
    from support.job_ways import start

    def test_it(tmp_path):
        start("fork", {job!r}, {ranks}, tmp_path)

    def test_twice(tmp_path, monkeypatch):
        monkeypatch.setenv({COUNTS!r}, {str(tmp_path)!r})
        start("fork", {job!r}, {ranks}, tmp_path)
"""
    )
    ran = run(pytester, "--torchprof", "--torchprof-rounds=0", subprocess=True)
    assert {"passed": 2} == ran.outcomes, ran.out
    expected = by_hand(job, ranks)
    assert expected == of_ranks(ran, "test_it")
    for at, name in enumerate(("flops", "collectives", "comm_bytes")):
        assert (
            sum(values[at] for values in expected.values()) == ran.metric(name, "test_it")["value"]
        )
    for rank in range(ranks):
        counts: dict[str, int] = json.loads((tmp_path / f"{rank}.json").read_text("utf-8"))
        sent = stepped(job, rank, ranks)[0] if job == "pipeline" else 0
        flops, calls, _ = of_ranks(ran, "test_twice")[str(rank)]
        assert expected[str(rank)][1] + sum(counts.values()) + sent == calls, counts
        assert bool(counts) == (job != "pipeline")
        twice = 2 * expected[str(rank)][0]
        assert twice == flops


@pytest.mark.parametrize("way", [way for way in WAYS if way != "fork"])
def test_a_job_is_the_same_however_it_is_started(way: str, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it=f"""
    from support.job_ways import start

    def test_it(tmp_path):
        start({way!r}, "ddp", 2, tmp_path)
"""
    )
    ran = run(pytester, "--torchprof", "--torchprof-rounds=0", subprocess=True)
    assert {"passed": 1} == ran.outcomes, ran.out
    found = of_ranks(ran, "test_it")
    assert by_hand("ddp", 2).items() <= found.items()
    assert sum(1 for label in found if label.isdecimal()) == 2


#: A job in the test's own file, in which a rank, or all of them, may not do as they did.
FAULTY = """
    import os
    import pytest, torch
    import torch.distributed as dist
    import torch.multiprocessing as mp
    from torch import nn

    FAULT = os.environ.get("FAULT")

    def ddp(rank):
        model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
        if FAULT == "less":  # the second layer's bucket is lost
            model[1].weight.requires_grad_(False)
        model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1e-4)
        for _ in range(2):  # a bucket for each layer from the second step on
            model(torch.ones(4, 8)).sum().backward()
        if FAULT == "more":
            dist.all_reduce(torch.ones(2))

    def fsdp2(rank):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        mesh = init_device_mesh("cpu", (2,))
        model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
        fully_shard(model[0], mesh=mesh)
        if FAULT == "less":  # the second layer is not sharded
            fully_shard(model, mesh=mesh, ignored_params={*model[1].parameters()})
        else:
            fully_shard(model[1], mesh=mesh)
            fully_shard(model, mesh=mesh)
        model(torch.ones(4, 8)).sum().backward()

    def tensor_parallel(rank):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Replicate
        from torch.distributed.tensor.parallel import (
            ColwiseParallel, RowwiseParallel, parallelize_module)
        model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
        plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
        if FAULT == "less":  # the second layer is not sharded
            plan = {"0": ColwiseParallel(output_layouts=Replicate())}
        model = parallelize_module(model, init_device_mesh("cpu", (2,)), plan)
        with torch.no_grad():
            model(torch.ones(4, 8)).sum()  # in parallel

    def one(rank, job, file):
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
        globals()[job](rank)
        dist.destroy_process_group()

    def start(job, tmp_path):
        arguments = (job, str(tmp_path / "store"))
        mp.start_processes(one, arguments, nprocs=2, start_method="fork")
"""


def faulty(pytester: pytest.Pytester, tests: str, fault: str, *options: str) -> Ran:
    """The tests are accepted as they should be, and then run with this fault."""
    pytester.makepyfile(test_it=FAULTY + tests)
    accept(pytester, "--torchprof-rounds=0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAULT", fault)
        return run(pytester, "--torchprof", "--torchprof-rounds=0", *options)


def line_of(text: str) -> int:
    """The number of the only line of the tests' file that has this text."""
    (number,) = (n for n, line in enumerate(FAULTY.splitlines()) if text in line)
    return number


def test_one_more_all_reduce_is_red_with_rank_and_line(pytester: pytest.Pytester) -> None:
    test = "\n    def test_it(tmp_path): start('ddp', tmp_path)\n"
    ran = faulty(pytester, test, "more")
    assert {"failed": 1} == ran.outcomes
    assert re.search(r"collectives +16 → 18 ", ran.out)
    assert "\n  collectives by process: rank 0 8 → 9, rank 1 8 → 9; 1 unchanged\n" in ran.out
    more = line_of("dist.all_reduce(torch.ones(2))")
    cause = f"test_it.py:{more} (ddp): ones ×2, c10d::allreduce_ ×2 more than before"
    assert f"\n{cause} — collectives +2, ops +4, comm_bytes +0.5 %\n" in ran.out


def test_a_lost_bucket_and_an_unsharded_parameter_are_red_with_rank_and_line(
    pytester: pytest.Pytester,
) -> None:
    """What is less than was accepted fails a limit, or --torchprof-strict; of the calls that are
    left the lines are said.
    """
    tests = f"""
    def test_bucket(tmp_path): start("ddp", tmp_path)

    @pytest.mark.min_comm_bytes({6 * 256}, each=True)
    def test_fsdp2(tmp_path): start("fsdp2", tmp_path)

    def test_parallel(tmp_path): start("tensor_parallel", tmp_path)
"""
    ran = faulty(pytester, tests, "less", "--torchprof-strict")
    assert {"failed": 3} == ran.outcomes
    step = line_of("for _ in range(2)") + 1
    assert re.search(r"collectives +16 → 14 ", ran.out)
    assert "\n  collectives by process: rank 0 8 → 7, rank 1 8 → 7; 1 unchanged\n" in ran.out
    assert re.search(rf"fewer +aten::mm +10.2 kFLOP → 8.19 kFLOP +test_it.py:{step} ", ran.out)
    assert "comm_bytes[rank=1] 768 B is below the minimum of 1.5 KiB" in ran.out
    forward = line_of("model(torch.ones(4, 8)).sum()  # in parallel")
    by_process = "by process: rank 0 512 FLOP → 768 FLOP, rank 1 512 FLOP → 768 FLOP; 1 unchanged"
    assert f"\n  flops {by_process}\n" in ran.out
    cause = "larger inputs of linear: FLOPs of linear 1.02 kFLOP → 1.54 kFLOP — flops +50.0 %"
    assert f"\ntest_it.py:{forward} (tensor_parallel): {cause}\n" in ran.out
