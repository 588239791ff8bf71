"""Processes that a test starts are measured, or its numbers are not known: never 0."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent, indent

import pytest
from support.sessions import accept, read_baseline, run

import pytest_torchprof
from pytest_torchprof.capture import children

linux = pytest.mark.skipif(sys.platform != "linux", reason="processes are told by /proc")
pytestmark = [linux]

HEAD = """
    import multiprocessing, os, signal, subprocess, sys, threading, time
    import pytest, torch

    torch.set_num_threads(1)
    X = torch.ones(8, 8)
    FORK = multiprocessing.get_context("fork")

    def work(n=3):
        for _ in range(n): X @ X

    def start(function, *args, how=FORK, **options):
        process = how.Process(target=function, args=args, **options)
        process.start()
        return process
"""
PRODUCT = 2 * 8**3


@pytest.mark.thorough
def test_a_forked_process_counts(pytester: pytest.Pytester) -> None:
    """Its work is the test's, and the report has both processes."""
    pytester.makepyfile(
        test_it=f"""{HEAD}
    def test_it():
        X @ X
        process = start(work)
        process.join()
        assert process.exitcode == 0
"""
    )
    ran = run(pytester, "--torchprof", "--torchprof-rounds=0")
    assert {"passed": 1} == ran.outcomes
    assert 4 * PRODUCT == ran.metric("flops", "test_it")["value"]
    ranks = ran.tests["test_it"]["ranks"]
    assert {"main": PRODUCT, "process 1": 3 * PRODUCT} == {
        label: metrics["flops"]["value"] for label, metrics in ranks.items()
    }
    assert "wall_ms" not in ranks["main"]


#: How a process ends, and its products; or, where they cannot be known, a part of the reason.
ENDS: dict[str, tuple[str, int | str]] = {
    "raises": (
        """
def f():
    work()
    raise ValueError
start(f).join()
""",
        3,
    ),
    "leaves": (
        """
def f():
    work()
    os._exit(7)
process = start(f)
process.join()
assert process.exitcode == 7
""",
        3,
    ),
    "forks_again": (
        """
def f():
    work()
    if (pid := os.fork()) == 0:
        work(1)
        os._exit(0)
    os.waitpid(pid, 0)
start(f).join()
""",
        4,
    ),
    "killed": (
        """
def f():
    work()
    os.kill(os.getpid(), signal.SIGKILL)
process = start(f)
process.join()
assert process.exitcode == -9
""",
        "process 1 was ended before it could say what it did",
    ),
    "terminated": (
        """
done = FORK.Event()
def f():
    work()
    done.set()
    time.sleep(60)
process = start(f)
done.wait()
process.terminate()
process.join()
assert process.exitcode == -15
""",
        3,
    ),
    "profiles_itself": (
        """
def f():
    from torch.profiler import profile
    with profile() as own: work()
    assert own.events()
process = start(f)
process.join()
assert process.exitcode == 0
""",
        "process 1: the test runs torch.profiler itself",
    ),
    "outlives": (
        """
done = FORK.Event()
def f():
    work()
    done.set()
    time.sleep(60)
start(f, daemon=True)
done.wait()
""",
        "process 1 was still running when the measured run ended",
    ),
    "threads": (
        """
def f():
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
start(f).join()
""",
        "process 1: threads did work too",
    ),
    "pool": (
        """
with FORK.Pool(2) as pool: pool.map(work, [1, 2])
""",
        3,
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", ENDS)
def test_however_a_process_ends(name: str, pytester: pytest.Pytester, temporary: Path) -> None:
    """The test's outcome is its own, its numbers are whole or unknown, and nothing is left."""
    code, expected = ENDS[name]
    pytester.makepyfile(test_it=f"{dedent(HEAD)}\ndef test_it():{indent(code, '    ')}")
    ran = run(pytester, "--torchprof", "--torchprof-rounds=0", subprocess=True)
    assert {"passed": 1} == ran.outcomes, ran.out
    found = ran.metric("flops", "test_it")
    if isinstance(expected, int):
        assert expected * PRODUCT == found["value"], found.get("reason")
    else:
        assert found["value"] is None
        assert expected in found["reason"]
    assert "" == "\n".join(line for line in ran.err.splitlines() if "asyncio" not in line.lower())
    assert [] == _left(temporary)


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files of the inner session alone."""
    with tempfile.TemporaryDirectory() as folder:  # short, as the name of a socket must be
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


def _left(temporary: Path) -> list[str]:
    """Our folders, and other processes in the folder of the inner session, that do not go away.

    Helpers of multiprocessing end when they notice that the session has.
    """
    until = time.monotonic() + 20
    while (found := _there(temporary)) and time.monotonic() < until:
        time.sleep(0.1)
    return found


def _there(temporary: Path) -> list[str]:
    found = [str(one) for one in temporary.glob("torchprof-*")]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            inside = (process / "cwd").resolve() == temporary.parent
        except OSError:
            continue
        if inside and process.name != str(os.getpid()):
            found.append(str(process))
    return found


WAYS = {
    "spawn": 'start(work, how=multiprocessing.get_context("spawn")).join()',
    "forkserver": 'start(work, how=multiprocessing.get_context("forkserver")).join()',
    "torch": "torch.multiprocessing.spawn(work_of, (3,), nprocs=1)",
    "subprocess": 'subprocess.run([sys.executable, "-c", PROGRAM], check=True)',
    "own environment": (
        'subprocess.run([sys.executable, "-c", PROGRAM], check=True, env={"PATH": "/bin"})'
    ),
    "shell": ("subprocess.run(f\"{sys.executable} -c '{PROGRAM}'\", shell=True, check=True)"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("way", WAYS)
def test_however_a_process_starts(way: str, pytester: pytest.Pytester, temporary: Path) -> None:
    """Each way that Python has, and those of torch."""
    pytester.makepyfile(
        test_it=f"""{HEAD}
    PROGRAM = "import torch; x = torch.ones(8, 8); x @ x; x @ x; x @ x"

    def work_of(rank, n): work(n)

    def test_it():
        {WAYS[way]}
"""
    )
    ran = run(pytester, "--torchprof", "--torchprof-rounds=0", subprocess=True)
    assert {"passed": 1} == ran.outcomes, ran.out
    assert 3 * PRODUCT == ran.metric("flops", "test_it")["value"]
    assert [] == _left(temporary)


def test_what_a_process_raises_only_when_profiled_is_the_reason(pytester: pytest.Pytester) -> None:
    """The error that torch raises begins with two blank lines, and ends with it."""
    pytester.makepyfile(
        test_it="""
    import itertools
    import torch, torch.multiprocessing

    torch.set_num_threads(1)
    RUNS = itertools.count()

    def one(rank, run):
        torch.ones(8) + 1
        if run: raise OSError("the port is taken")

    def test_it():
        torch.multiprocessing.start_processes(one, (next(RUNS),), nprocs=1, start_method="fork")

"""
    )
    ran = run(pytester, "--torchprof", "--torchprof-rounds=0")
    assert {"passed": 1} == ran.outcomes, ran.out
    said = "cannot be run twice: ProcessRaisedException: OSError: the port is taken"
    assert said == ran.tests["test_it"]["reason"]


@pytest.mark.thorough
def test_a_regression_and_a_budget_name_the_rank(pytester: pytest.Pytester) -> None:
    """One product more in rank 1, of which the baseline and a budget on each rank know."""
    pytester.makepyfile(
        test_it="""
    import os
    import pytest, torch, torch.multiprocessing

    torch.set_num_threads(1)

    def one(rank, file):
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{file}", rank=rank, world_size=2)
        x = torch.ones(8, 8)
        for _ in range(2 + rank * int(os.environ.get("MORE", 0))): x @ x
        torch.distributed.barrier()  # or one may leave while the other still connects
        torch.distributed.destroy_process_group()

    @pytest.mark.max_flops(2048, each=True)
    @pytest.mark.max_flops(2048, rank=0)
    @pytest.mark.max_ops(1, rank=7)
    def test_it(tmp_path):
        torch.multiprocessing.start_processes(
            one, (str(tmp_path / "store"),), nprocs=2, start_method="fork")
"""
    )
    accept(pytester, "--torchprof-rounds=0")
    (entry,) = read_baseline(pytester)["tests"]["test_it"].values()
    assert 2048 == entry["ranks"]["1"]["flops"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MORE", "1")
        ran = run(pytester, "--torchprof", "--torchprof-rounds=0")
    assert {"failed": 1} == ran.outcomes
    assert "flops[rank=1]" in ran.out
    assert "by process: rank 1 2.05 kFLOP → 3.07 kFLOP; 2 unchanged" in ran.out
    metrics = ran.tests["test_it"]["metrics"]
    assert "ok" == metrics["flops[rank=0]"]["status"]
    assert "no process of the test had rank 7" == metrics["ops[rank=7]"]["reason"]


@pytest.mark.parametrize(
    ("marker", "said"),
    [
        ("max_flops(1, rank=-1)", "max_flops: rank= takes a rank, like rank=0, got -1"),
        ("max_flops(1, rank=True)", "max_flops: rank= takes a rank, like rank=0, got True"),
        ("max_flops(1, each=2)", "max_flops: each= takes True or False, got 2"),
        ("max_flops(1, rank=0, each=True)", "max_flops takes rank= or each=, not both"),
        ("max_wall_ms(1, rank=0)", "max_wall_ms has no argument 'rank'."),
    ],
)
def test_a_wrong_rank_is_an_error_at_collection(
    marker: str, said: str, pytester: pytest.Pytester
) -> None:
    """The message says the marker, what it takes, and what it got."""
    pytester.makepyfile(
        test_it=f"""
    import pytest

    @pytest.mark.{marker}
    def test_it(): pass
"""
    )
    assert said in run(pytester, "--torchprof").usage_error()


@pytest.mark.thorough
def test_a_test_without_processes_loads_nothing_of_it(pytester: pytest.Pytester) -> None:
    """Nor does a session that is no rank of a job."""
    pytester.makeconftest(
        """
    import sys

    def pytest_unconfigure():
        ours = [name for name in sys.modules if name.startswith("pytest_torchprof.")]
        rooms = (".children", ".session.job", ".verdict.processes", ".runs.started")
        print("loaded:", [name for name in ours if any(room in name for room in rooms)])
"""
    )
    pytester.makepyfile(
        test_it="""
    import torch

    def test_it(): torch.ones(2) + 1
"""
    )
    ran = run(pytester, "--torchprof", subprocess=True)
    assert {"passed": 1} == ran.outcomes
    assert "loaded: []" in ran.out


@pytest.mark.parametrize("users", [True, False])
def test_a_started_python_runs_the_users_own_sitecustomize(users: bool, tmp_path: Path) -> None:
    """And nothing that it can see is ours; without one, there is none but the system's."""
    startup = Path(pytest_torchprof.__file__).parent / "capture" / "startup"
    code = (
        "import sys; print('sitecustomize' in sys.modules, sys.argv, "
        f"{str(startup)!r} in sys.path, 'torch' in sys.modules)"
    )
    if users:
        (tmp_path / "sitecustomize.py").write_text("print('mine')\n", "utf-8")
    ran = subprocess.run(
        [
            *(sys.executable, "-c"),
            code,
        ],
        env={
            "PYTHONPATH": os.pathsep.join([str(startup), str(tmp_path)]),
            "TORCHPROF_CHILD": f"{sys.version_info[0]}.{sys.version_info[1]}:1:{tmp_path}",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert "" == ran.stderr
    lines = ran.stdout.splitlines()
    asks = "import sys; print('sitecustomize' in sys.modules)"
    there = (
        users
        or "True"
        in subprocess.run(
            [sys.executable, "-c", asks], env={}, capture_output=True, text=True, check=True
        ).stdout
    )
    assert f"{there} ['-c'] False False" == lines[-1]
    assert (["mine"] if users else []) == lines[:-1]
    assert [".seen"] == [one.suffix for one in tmp_path.iterdir() if one.name.startswith("1-")]


def test_a_process_forked_while_a_device_is_in_use_is_not_captured(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot end the session that it was forked with."""
    monkeypatch.setattr(children, "accelerator", lambda: "cuda")
    pytester.makepyfile(
        test_it=f"""{HEAD}
    def test_it():
        process = start(work)
        process.join()
        assert process.exitcode == 0
    def test_alone(): X @ X
"""
    )
    ran = run(pytester, "--torchprof", "--torchprof-rounds=0")
    assert 2 == ran.outcomes["passed"]  # since Python 3.12 there is a warning, too
    flops = ran.metric("flops", "test_it")
    assert (None, "not_measured") == (flops["value"], flops["status"])
    assert "process 1: it was forked while cuda was in use" in flops["reason"]
    assert PRODUCT == ran.metric("flops", "test_alone")["value"]
