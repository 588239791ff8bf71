"""Time and memory to read a large stored trace, compared with plain JSON and HTA."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import repeated
from benchmarks.pairs import Row, added, paired, ratio, summarize
from benchmarks.processes import installed

#: A Python with HolisticTraceAnalysis, if this one lacks it.
HTA_PYTHON = "TORCHPROF_BENCHMARK_HTA_PYTHON"
LARGE, SMALL = 1_000_000, 100_000
#: Our commands as whole processes, and their goals against a process that only loads the JSON.
COMMANDS = {
    "summary": 0.5,
    "steps": 0.5,
    "kernels": 0.7,
    "kernels --by op,kernel,shape": 0.7,
    "lint": 0.7,
}


@dataclass(frozen=True)
class Process:
    """One process from start to end: seconds, the part that it measured itself, MiB."""

    wall_s: float
    inner_s: float
    peak_mib: float


def stored(*, quick: bool) -> Iterator[Row]:
    """Read a real trace, repeated to a million events or more."""
    real = repeated.source()
    if real is None:
        print(f"stored: left out, {repeated.CORPUS} has no {repeated.NAME}", file=sys.stderr)
        return
    with TemporaryDirectory(prefix="benchmark-") as name:
        large, small = Path(name, "large.json"), Path(name, "small.json")
        events = repeated.write(real, large, LARGE)
        few = repeated.write(real, small, SMALL)
        yield from _reading(large, small, (events, few), 2 if quick else 5)
        yield _rules(large, events, 2 if quick else 5)
        yield from _commands(large, small, 2 if quick else 5)
        yield from _beside_hta(large)


def _reading(large: Path, small: Path, events: tuple[int, int], count: int) -> Iterator[Row]:
    samples = paired(lambda: _reader("ours", large), lambda: _reader("plain", large), count)
    size = large.stat().st_size / 2**20
    yield summarize(
        "stored: read",
        [(ours.inner_s, plain.inner_s) for ours, plain in samples],
        unit="s",
        goal=0.2,
        note=f"{events[0]:,} events, {size:,.0f} MiB; peer: json.load, collector on",
    )
    yield summarize(
        "stored: read, memory",
        [(ours.peak_mib, size) for ours, _ in samples],
        unit="MiB",
        goal=1.5,
        note="peak of the whole process; peer: the file",
    )
    both = paired(lambda: _reader("ours", large), lambda: _reader("ours", small), count)
    yield summarize(
        "stored: read, growth",
        [(a.inner_s / events[0] * 1e6, b.inner_s / events[1] * 1e6) for a, b in both],
        unit="µs",
        goal=1.25,
        note=f"per event, of {events[0]:,} against {events[1]:,}: 1 is linear",
    )


def _rules(large: Path, events: int, count: int) -> Row:
    samples = paired(lambda: _reader("rules", large), lambda: _reader("ours", large), count)
    return summarize(
        "stored: rules",
        [(ours.inner_s, read.inner_s) for ours, read in samples],
        unit="s",
        figure=added,
        goal=0.5,
        note=f"{events:,} events; ours: read, and every rule; peer: read; figure: (ours - peer) / "
        "peer",
    )


def _commands(large: Path, small: Path, count: int) -> Iterator[Row]:
    size = large.stat().st_size / 2**20
    for command, goal in COMMANDS.items():
        arguments, note = ["-m", "pytest_torchprof", *command.split()], ""
        try:
            _run([sys.executable, *arguments, str(small)])
        except RuntimeError:
            if command != "summary":
                print(f"stored: {command} left out, it cannot read a trace", file=sys.stderr)
                continue
            arguments = ["-m", "benchmarks.reader", "metrics"]
            note = "; in its place: read, and every metric"
        samples = paired(
            lambda arguments=arguments: _run([sys.executable, *arguments, str(large)]),  # type: ignore[misc]
            lambda: _reader("plain", large),
            count,
        )
        yield summarize(
            f"stored: {command}",
            [(ours.wall_s, plain.wall_s) for ours, plain in samples],
            unit="s",
            goal=goal,
            note=f"whole process, byte code cached; peer: one that only runs json.load{note}",
        )
        yield summarize(
            f"stored: {command}, memory",
            [(ours.peak_mib, size) for ours, _ in samples],
            unit="MiB",
            goal=1.5,
            note=f"peak of the whole process; peer: the file{note}",
        )


def _beside_hta(large: Path) -> Iterator[Row]:
    python = os.environ.get(HTA_PYTHON)
    if python is None and importlib.util.find_spec("hta") is None:
        print(
            f"stored: HolisticTraceAnalysis left out, it is not installed here ({HTA_PYTHON} may "
            "name a Python that has it)",
            file=sys.stderr,
        )
        return
    ours = _reader("metrics", large)
    theirs = _reader("hta", large, python=python or sys.executable)
    yield summarize(
        "stored: HolisticTraceAnalysis",
        [(ours.inner_s, theirs.inner_s)],
        unit="s",
        figure=ratio,
        goal=0.1,
        note="ours: read, and every metric; peer: its load alone, once; without imports",
    )


def _reader(how: str, path: Path, *, python: str = sys.executable) -> Process:
    return _run([python, "-m", "benchmarks.reader", how, str(path)])


def _run(command: Sequence[str]) -> Process:
    """Run it to its end.

    Raises:
        RuntimeError: its exit status is not 0.
    """
    with TemporaryDirectory(prefix="benchmark-") as name:
        out = Path(name, "out")
        with out.open("wb") as file:
            start = time.perf_counter()
            process = subprocess.Popen(
                command, stdout=file, stderr=subprocess.STDOUT, env=installed(), cwd=name
            )
            _, status, used = os.wait4(process.pid, 0)
            wall = time.perf_counter() - start
        text = out.read_text("utf-8")
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{text[-2000:]}")
    last = text.split()[-1] if text.split() else ""
    peak = used.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
    return Process(wall, float(last) if last.replace(".", "").isdecimal() else wall, peak)
