"""``python -m benchmarks.fleet make|measure|memory|workers FOLDER``: the ranks of a large job, and
what they cost.

``make`` writes ranks of a job from a real trace: repetitions of it, and one of them with times that
only this rank has. Files are gzip in several members, of which all ranks share most, so a thousand
are written in minutes. ``measure`` compares worker processes with one process that reads the same
files one after the other, in turn: time, CPU time, and the output, which must be equal to the last
digit. ``memory`` prints the largest memory of a process that reads one of them against its text,
``workers`` that of real worker processes that read all.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.processes import installed
from benchmarks.repeated import CORPUS, printed
from pytest_torchprof.trace.read import Stream

NAME = "v100_dlrm_rank0.pt.trace.json.gz"


def make(folder: Path, ranks: int, events: int, real: Path) -> int:
    """Write so many ranks of about so many events each, and return the bytes of one rank's text."""
    document = json.loads(gzip.decompress(real.read_bytes()))
    original = [event for event in document.pop("traceEvents") if event["ph"] != "M"]
    counted = sum(event["ph"] in "Xi" for event in original)  # arrows are not read
    repetitions = max(1, -(-events // counted))
    shared = [_member(_text(original, number)) for number in range(1, repetitions)]
    tail = b'\n  ],\n  "traceName": "made"\n}\n'
    size = 0
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(ranks):
        document["distributedInfo"] = {
            **document.get("distributedInfo", {}), "rank": rank, "world_size": ranks,
        }  # fmt: skip
        head = json.dumps(document)[:-1] + ', "traceEvents": ['
        own = head.encode() + _text(_slower(original, rank), 0)
        members = [_member(own), *(_COMMA + member for member in shared), _member(tail)]
        (folder / f"rank{rank}.pt.trace.json.gz").write_bytes(b"".join(members))
    for member in (*shared, _member(own), _member(tail)):
        size += len(gzip.decompress(member)) + 1
    return size


def _text(events: list[dict[str, Any]], number: int) -> bytes:
    return ",".join(printed(events, number)).encode()


def _member(text: bytes) -> bytes:
    packer = zlib.compressobj(6, wbits=31)
    return packer.compress(text) + packer.flush()


_COMMA = _member(b",")


def _slower(events: list[dict[str, Any]], rank: int) -> list[dict[str, Any]]:
    """Device work of this rank takes a little longer, each rank by another amount, in whole ns."""
    return [
        {**event, "dur": event["dur"] + (rank * 37 % 1009) / 1000}
        if event.get("cat") in {"kernel", "Kernel"}
        else event
        for event in events
    ]


@dataclass(frozen=True)
class Ran:
    """One command from start to end."""

    wall_s: float
    cpu_s: float
    digest: str


def measure(folder: Path, command: Sequence[str], jobs: int, pairs: int) -> Iterator[str]:
    """Lines on both sides, run in turn."""
    both: list[tuple[Ran, Ran]] = []
    for number in range(pairs):
        sides = [
            _run([*command, str(folder), "--jobs", str(n)])
            for n in ((1, jobs) if number % 2 else (jobs, 1))
        ]
        both.append((sides[0], sides[1]) if number % 2 else (sides[1], sides[0]))
        one, many = both[-1]
        yield (
            f"one after the other {one.wall_s:.1f} s ({one.cpu_s:.1f} s of CPU), --jobs {jobs} "
            f"{many.wall_s:.1f} s ({many.cpu_s:.1f}): {one.wall_s / many.wall_s:.2f} ×"
        )
    digests = {ran.digest for pair in both for ran in pair}
    yield f"outputs: {'equal' if len(digests) == 1 else 'DIFFERENT'}"
    middle = statistics.median(one.wall_s / many.wall_s for one, many in both)
    yield f"median of {pairs}: {middle:.2f} × (goal ≥ {0.85 * jobs:.2g} ×)"


def _run(arguments: Sequence[str]) -> Ran:
    before, start = os.times(), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "pytest_torchprof", *arguments],
        capture_output=True,
        check=True,
        env=installed(),
    )
    after = os.times()
    cpu = after.children_user - before.children_user + after.children_system
    return Ran(
        time.perf_counter() - start,
        cpu - before.children_system,
        hashlib.blake2b(done.stdout).hexdigest(),
    )


#: How many traces a worker reads, one after the other.
_IN_TURN = 6
_COMMANDS = (
    "summary", "ops", "kernels", "lint", "memory", "idle", "steps", "collectives", "ranks",
)  # fmt: skip


def memory(folder: Path, command: str) -> str:
    """The most memory of a worker that reads the largest of these files, against its text.

    Then the same of one that goes on with more of them, as workers do.
    """
    largest = sorted(folder.iterdir(), key=lambda path: -path.stat().st_size)[:_IN_TURN]
    by = "place" if command == "idle" else "name"
    code = (
        "import sys; from pathlib import Path\n"
        "from pytest_torchprof.fleet.mapping import Question, answer\n"
        "from pytest_torchprof.fleet.sources import find_sources\n"
        f"settings = dict(step=None, step_name=None, format='table', by={by!r}, depth=None,\n"
        "    chips=(), ignored=[], thresholds='', timeline=False, points=0)\n"
        f"question = Question('commands.{command}:{command}_part', settings)\n"
        "def told(field):\n"
        "    lines = open('/proc/self/status').read().splitlines()\n"
        "    return 1024 * int(next(one for one in lines if one.startswith(field)).split()[1])\n"
        "peaks = [told('VmHWM')]\n"
        "for source in find_sources(sys.argv[1:]):\n"
        "    found = answer(question, source)\n"
        "    if found.error is not None: raise found.error\n"
        "    peaks.append(told('VmHWM'))\n"
        "print(*peaks[:2], peaks[-1], told('RssFile'))\n"
    )
    for _ in range(2):  # the first one compiles what is not compiled yet, see `installed`
        found = subprocess.run(
            [sys.executable, "-c", code, *map(str, largest)],
            capture_output=True,
            check=True,
            env=installed(),
            text=True,
        )
    empty, peak, later, shared = map(int, found.stdout.split())
    size = sum(map(len, Stream(largest[0])))
    return (
        f"{command}: a worker's peak {peak / 2**20:.0f} MiB ({empty / 2**20:.0f} MiB before the "
        f"trace), its text {size / 2**20:.0f} MiB: {peak / size:.2f} × (goal ≤ 2 ×), "
        f"{later / size:.2f} × after {len(largest)} of them, "
        f"{(peak - shared) / size:.2f} × beside the {shared / 2**20:.0f} MiB of files, mostly "
        "code, that workers share"
    )


def workers(folder: Path, command: str, jobs: int) -> str:
    """The most resident memory of a worker of ``--jobs`` against the largest text, on Linux."""
    largest = max(folder.iterdir(), key=lambda path: path.stat().st_size)
    ran = subprocess.Popen(
        [sys.executable, "-m", "pytest_torchprof", command, str(folder), f"--jobs={jobs}"],
        stdout=subprocess.DEVNULL, env=installed(),
    )  # fmt: skip
    children = Path(f"/proc/{ran.pid}/task/{ran.pid}/children")
    peak: dict[str, int] = {}
    while ran.poll() is None:
        with suppress(OSError, IndexError):
            for pid in children.read_text("ascii").split():
                told = Path(f"/proc/{pid}/status").read_text("utf-8")
                peak[pid] = 1024 * int(told.partition("VmHWM:")[2].split()[0])
        time.sleep(0.01)
    if ran.returncode:
        raise SystemExit(f"{command} ended with status {ran.returncode}")
    size = sum(map(len, Stream(largest)))
    most = max(peak.values())
    return (
        f"{command}: the largest worker of --jobs {jobs} has a peak of {most / 2**20:.1f} MiB, "
        f"{most / size:.2f} × its text of {size / 2**20:.1f} MiB (goal ≤ 2 ×)"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Make ranks, or measure them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet", description=__doc__)
    parser.add_argument("what", choices=("make", "measure", "memory", "workers"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--real", type=Path, default=CORPUS / NAME)
    parser.add_argument("--command", default="ops --merge --format json --limit 0")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args(arguments)
    if options.what == "make":
        size = make(options.folder, options.ranks, options.events, options.real)
        print(f"{options.ranks} ranks, each of {size / 2**20:.0f} MiB of text")
    elif options.what == "memory":
        for command in _COMMANDS:
            print(memory(options.folder, command), flush=True)
    elif options.what == "workers":
        for command in _COMMANDS:
            print(workers(options.folder, command, options.jobs), flush=True)
    else:
        for line in measure(options.folder, options.command.split(), options.jobs, options.pairs):
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
