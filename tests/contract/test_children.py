"""The work of a process that a test starts is counted or not measured: it is never left out."""

from __future__ import annotations

import json
import sys
from textwrap import indent
from typing import Any

import pytest

linux = pytest.mark.skipif(sys.platform != "linux", reason="only /proc tells of other processes")

#: 8 kFLOP in the test itself, 336 MFLOP in each Python that runs HEAVY.
HEAD = """
import os, subprocess, sys, time
import pytest, torch
HEAVY = "import torch; x = torch.ones(256, 256); [x @ x for _ in range(10)]"
CODE = HEAVY + "; open('done', 'w')"
PYTHON = sys.executable
pytestmark = pytest.mark.max_flops("1 MFLOP")
def small(): torch.ones(16, 16) @ torch.ones(16, 16)
def forked(run):
    if (pid := os.fork()) == 0:
        run()
        os._exit(1)
    os.waitpid(pid, 0)
def wait():
    while not os.path.exists("done"): time.sleep(0.05)
    os.unlink("done")
"""
LOST = {
    "fork_and_exec": 'forked(lambda: os.execv(PYTHON, [PYTHON, "-c", HEAVY]))',
    "not_waited_for": "subprocess.Popen([PYTHON, '-c', HEAVY])",
    "isolated_and_not_waited_for": "subprocess.Popen([PYTHON, '-I', '-c', HEAVY])",
    "script_not_waited_for": "subprocess.Popen(['sh', '-c', f'sleep 1; {PYTHON} -c \"{HEAVY}\"'])",
    "system": "os.system(f'{PYTHON} -I -c \"{HEAVY}\"')",
    "daemon": """
def daemon():
    if os.fork(): os._exit(0)
    os.setsid()
    os.execv(PYTHON, [PYTHON, "-I", "-c", CODE])
forked(daemon)
wait()""",
    "daemon_with_an_environment": """
def daemon():
    if os.fork(): os._exit(0)
    os.setsid()
    os.execve(PYTHON, [PYTHON, "-I", "-c", CODE], os.environ)
forked(daemon)
wait()""",
    "own_session": """
subprocess.run(f'setsid {PYTHON} -I -c "{CODE}" &', shell=True)
wait()""",
    "empty_environment": """
subprocess.run(["sh", "-c", 'env -i "$0" -c "$1" & wait', PYTHON, CODE])
wait()""",
    "started_by_a_python_without_torch": """
code = "import subprocess, sys; subprocess.run([sys.executable, '-I', '-c', sys.argv[1]])"
subprocess.run([PYTHON, "-c", code, HEAVY])
subprocess.run(["git", "--version"])""",
}
NONE = {
    "git": 'subprocess.run(["git", "--version"])',
    "a_shell_and_what_it_leaves": "os.system('ls > /dev/null'); os.system('sleep 2 &')",
    "a_program_left_running": 'subprocess.Popen(["sleep", "2"])',
    "servers_and_loops": """
subprocess.Popen([PYTHON, "-I", "-c", "import time; time.sleep(8)"])
subprocess.Popen(["sh", "-c", "for i in 1 2 3 4 5 6 7 8; do sleep 1; done"])
time.sleep(3.2)""",
    "python_without_torch": "subprocess.run([PYTHON, '-I', '-c', 'sum(range(40_000_000))'])",
    "fork_and_exec": 'forked(lambda: os.execvp("ls", ["ls", "/dev/null"]))',
    "tracker": """
import multiprocessing.resource_tracker as one
one._resource_tracker._stop()
one.ensure_running()""",
    "cycle": "cycle = [torch.ones(2)]; cycle.append(cycle)",
    "workers": """
for how in ("fork", "spawn", "forkserver"):
    list(torch.utils.data.DataLoader([1, 2], num_workers=1, multiprocessing_context=how))""",
}


def measured(pytester: pytest.Pytester, cases: dict[str, str]) -> dict[str, Any]:
    tests = "".join(
        f"def test_{name}():\n    small()\n{indent(code.strip(), '    ')}\n"
        for name, code in cases.items()
    )
    pytester.makepyfile(test_it=HEAD + tests)
    pytester.runpytest_subprocess(
        *("--torchprof", "--torchprof-json=report.json", "--torchprof-rounds=0"),
        *("-pno:randomly", "-pno:xdist", "-pno:cacheprovider"),
        timeout=300,
    )
    report = json.loads((pytester.path / "report.json").read_text("utf-8"))
    return {one["nodeid"].partition("::test_")[2]: one for one in report["tests"]}


@pytest.mark.thorough
@pytest.mark.one_in(3)
@linux
@pytest.mark.one_in(4)
@pytest.mark.parametrize("way", LOST)
def test_work_of_a_process_that_cannot_be_measured_is_not_measured(
    way: str, pytester: pytest.Pytester
) -> None:
    """And a budget on it is not checked."""
    flops = measured(pytester, {way: LOST[way]})[way]["metrics"]["flops"]
    assert (None, "not_measured") == (flops["value"], flops["status"])
    did = "still ran at the end" if way == "script_not_waited_for" else ""
    assert f"another process {did}" in flops["reason"]


@pytest.mark.thorough
@linux
def test_processes_that_run_no_torch_change_no_number(pytester: pytest.Pytester) -> None:
    """Other programs, Python without torch, and helpers of Python and torch."""
    flops = {way: one["metrics"]["flops"] for way, one in measured(pytester, NONE).items()}
    assert dict.fromkeys(NONE, 8192) == {way: one["value"] for way, one in flops.items()}
