"""Ranks that `torchrun` starts: each measures itself, and rank 0 speaks for all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from support.sessions import NO_OTHER_PLUGINS

from pytest_torchprof.core.errors import SettingsError
from pytest_torchprof.core.unknown import Why, because
from pytest_torchprof.session.job import RankLostError, Ranks, folder_of

PRODUCT = 2 * 8**3
LOCAL = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


def pair(folder: Path) -> list[Ranks]:
    """Both ranks of a job, in this process."""
    return [Ranks(folder, rank, 2) for rank in (0, 1)]


def test_ranks_hear_each_other(tmp_path: Path) -> None:
    """Each says something, and hears all of it, by rank."""
    first, second = pair(tmp_path)
    heard: list[Any] = []
    thread = threading.Thread(target=lambda: heard.append(second.agree("t", "run0", "b", 5)))
    thread.start()
    assert ["a", "b"] == first.agree("t", "run0", "a", 5)
    thread.join()
    assert [["a", "b"]] == heard


def test_a_rank_that_leaves_is_said(tmp_path: Path) -> None:
    """With its own reason, and only what it has not said before."""
    first, second = pair(tmp_path)
    second.tell("t", "run0", "b")
    second.leave("t", because(*Why.SKIPPED))
    assert "b" == first.hear("t", "run0", 1, 5)
    with pytest.raises(RankLostError) as raised:
        first.hear("t", "run1", 1, 5)
    expected = because(*Why.OF_CHILD, process="rank 1", why=because(*Why.SKIPPED))
    assert expected == raised.value.reason


def test_a_rank_that_runs_other_tests_is_said(tmp_path: Path) -> None:
    """At once."""
    first, second = pair(tmp_path)
    second.will_run(["u"])
    with pytest.raises(RankLostError) as raised:
        first.hear("t", "run0", 1, 60)
    assert because(*Why.RANK_RUNS_IT_NOT, rank=1) == raised.value.reason


def test_a_silent_rank_is_waited_for_until_the_limit(tmp_path: Path) -> None:
    """It is alive, as far as we know."""
    first, _ = pair(tmp_path)
    with pytest.raises(RankLostError) as raised:
        first.hear("t", "run0", 1, 0.01)
    assert (
        because(
            "rank_silent",
            "rank {rank} did not come so far within {limit_s:.0f} s",
            rank=1,
            limit_s=0.01,
        )
        == raised.value.reason
    )


def test_a_rank_that_ended_is_said(tmp_path: Path) -> None:
    """And the last one removes the folder."""
    folder = tmp_path / "job"
    folder.mkdir()
    first, second = pair(folder)
    second.end()
    with pytest.raises(RankLostError) as raised:
        first.hear("t", "run0", 1, 60)
    assert because(*Why.RANK_ENDED, rank=1) == raised.value.reason
    first.end()
    assert not folder.exists()


def test_ranks_on_several_nodes_need_a_shared_folder(tmp_path: Path) -> None:
    """One line says so; with a folder, they meet there."""
    far = {**LOCAL, "LOCAL_WORLD_SIZE": "1"}
    with pytest.raises(SettingsError, match="set TORCHPROF_JOB to an empty folder"):
        folder_of(far)
    assert tmp_path == folder_of({**far, "TORCHPROF_JOB": str(tmp_path)}).parent


HEAD = """
    import os, signal, time
    import pytest, torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    RANK = int(os.environ["RANK"])
    X = torch.ones(8, 8)

    @pytest.fixture(scope="module")
    def group():
        dist.init_process_group("gloo")
        yield
        dist.destroy_process_group()
"""


def torchrun(
    pytester: pytest.Pytester, *args: str, ranks: int = 2, **environ: str
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """What it printed, and the report of rank 0."""
    found = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *(f"--nproc-per-node={ranks}", "-m", "pytest", "-q", *NO_OTHER_PLUGINS),
            *("--torchprof", "--torchprof-rounds=0", "--torchprof-json=report.json", *args),
        ],
        cwd=pytester.path,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environ},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    report = pytester.path / "report.json"
    return found, json.loads(report.read_text("utf-8")) if report.exists() else {}


def by_name(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The tests of the report."""
    return {test["nodeid"].partition("::")[2]: test for test in report["tests"]}


@pytest.mark.thorough
@pytest.mark.parametrize("ranks", [2, 4])
def test_all_ranks_are_measured(ranks: int, pytester: pytest.Pytester) -> None:
    """One table, one baseline, one report; a regression of one rank fails all of them."""
    pytester.makepyfile(
        test_it=f"""{HEAD}
    @pytest.mark.max_flops({2 * PRODUCT}, rank=0)
    def test_it(group):
        for _ in range(2 + (RANK == 1) * int(os.environ.get("MORE", 0))): X @ X
        t = torch.ones(4)
        dist.all_reduce(t)
        assert t[0] == dist.get_world_size()
"""
    )
    found, report = torchrun(pytester, "--accept", ranks=ranks)
    assert 0 == found.returncode, found.stdout + found.stderr
    assert 1 == found.stdout.count("1 test profiled")
    assert (f"cpu, torch {report['environment']['torch_version'][:4]} × {ranks} ranks", ranks) == (
        report["environment"]["key"],
        report["environment"]["ranks"],
    )
    test = by_name(report)["test_it"]
    assert ranks * 2 * PRODUCT == test["metrics"]["flops"]["value"]
    assert [str(rank) for rank in range(ranks)] == list(test["ranks"])
    found, report = torchrun(pytester, ranks=ranks, MORE="1")
    assert 1 == found.returncode
    assert ranks == found.stdout.count("1 failed in")
    assert f"by process: rank 1 2.05 kFLOP → 3.07 kFLOP; {ranks - 1} unchanged" in found.stdout
    assert f"torchrun --nproc-per-node={ranks} -m pytest --accept" in found.stdout


@pytest.mark.thorough
def test_ranks_that_differ_are_said_and_nobody_waits(pytester: pytest.Pytester) -> None:
    """A rank that skips, fails, or fails the second time; the next test is measured again."""
    pytester.makepyfile(
        test_it=f"""{HEAD}
    @pytest.mark.skipif(RANK == 1, reason="one")
    def test_skipped(): X @ X

    def test_skips():
        if RANK == 1: pytest.skip("one")

    def test_fails(): assert RANK != 1

    TIMES = []

    def test_fails_again():
        TIMES.append(1)
        assert RANK != 1 or len(TIMES) == 1

    def test_last(group): X @ X
"""
    )
    found, report = torchrun(pytester)
    assert 1 == found.returncode
    tests = by_name(report)
    reasons = {name: test["reason"] for name, test in tests.items()}
    assert ("rank 1: skipped", "rank 1: skipped", "rank 1: failed", None) == tuple(
        reasons[name] for name in ("test_skipped", "test_skips", "test_fails", "test_last")
    )
    assert reasons["test_fails_again"].startswith("rank 1: ")
    assert 2 * PRODUCT == tests["test_last"]["metrics"]["flops"]["value"]


@pytest.mark.thorough
def test_a_rank_that_hangs_stops_nobody_for_ever(pytester: pytest.Pytester) -> None:
    """The others go on after the limit, which is shortened here."""
    pytester.makeconftest(
        """
    import pytest_torchprof.session.job as session
    import pytest_torchprof.session.runs as deadline

    session.LEAST_S = deadline.LEAST_S = 2.0
"""
    )
    pytester.makepyfile(
        test_it=f"""{HEAD}
    TIMES = []

    def test_hangs():
        TIMES.append(1)
        if RANK == 1 and len(TIMES) == 1: time.sleep(6)

    def test_last(): X @ X
"""
    )
    found, report = torchrun(pytester)
    assert 0 == found.returncode, found.stdout + found.stderr
    assert "rank 1 did not come so far within 2 s" == by_name(report)["test_hangs"]["reason"]
