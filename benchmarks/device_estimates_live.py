"""How good estimates on the CPU are of what the same tests do on the device that there is.

`python -m benchmarks.device_estimates_live [--device CHIP] [--out DIR] [--timeout 40] [--own]`
`python -m benchmarks.device_estimates_live --device CHIP --recorded DIR`
`python -m benchmarks.device_estimates_live --table DIR/live.json`

Runs ``examples/``, and with ``--own`` ``benchmarks/device_tests/``, in two processes at once:
without a device, where ``launches``, ``host_reads``, ``bound_ms``, and ``estimated_cuda_bytes`` are
estimated for the chip of the device, and on the device, where kernels, waits, their time, and the
peak are measured. With ``--recorded``, what ``benchmarks.device_processes`` left in its first
process stands for the latter. Prints both for each test, ratios and their medians; and for tests
that are off by more than 5 %, the operators that account for it. ``DIR/live.json`` has all of it,
and ``DIR/traces`` the traces of the device. ``--table`` prints the table of the docs from it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from tabulate import tabulate

from benchmarks.device_estimates import result_of
from pytest_torchprof.analysis.estimates import units_of
from pytest_torchprof.analysis.waits import waits
from pytest_torchprof.core.errors import TorchprofError
from pytest_torchprof.core.values import MissingValue
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.names import LAUNCH_CALL, Kind
from pytest_torchprof.trace.read import read_trace
from pytest_torchprof.trace.tree import parents
from pytest_torchprof.verdict.metrics import METRICS, measure
from pytest_torchprof.work.devices import chip_named

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events

ROOT = Path(__file__).parent.parent
ESTIMATES = ("launches", "host_reads", "bound_ms", "estimated_cuda_bytes")
MEASURED = ("kernels", "syncs", "self_cuda_ms", "peak_cuda_bytes")
#: Seconds in which an interrupted pytest has to report.
_GRACE = 5
#: From this relative error on, the operators are named.
_OFF = 0.05


class Test(NamedTuple):
    """One test: its numbers by name, None where unknown, why; and kernels by operator on both."""

    name: str
    numbers: dict[str, float | None]
    reasons: dict[str, str]
    operators: list[dict[str, Any]]
    on_device_trace: dict[str, Any] | None

    def ratio(self, estimate: str, measured: str) -> float | None:
        """Of the estimate to what was measured; None if one is unknown or nothing was measured."""
        a, b = self.numbers[estimate], self.numbers[measured]
        return None if a is None or not b else a / b


#: What is compared with what.
PAIRS = (
    ("launches", "kernels"),
    ("host_reads", "waits"),
    ("bound_ms", "self_cuda_ms"),
    ("estimated_cuda_bytes", "peak_cuda_bytes"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run both, compare, print, and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.device_estimates_live")
    parser.add_argument("--device", help="the chip to estimate for; by default, the one here")
    parser.add_argument("--out", type=Path, default=Path("build/device-estimates"))
    parser.add_argument("--timeout", type=float, default=40)
    parser.add_argument("-k", default="", help="only these tests, as for pytest")
    parser.add_argument("--own", action="store_true", help="benchmarks/device_tests, too")
    parser.add_argument("--recorded", type=Path, help="what device_processes wrote")
    parser.add_argument("--table", type=Path, help="print the table of the docs from this file")
    options = parser.parse_args(arguments)
    if options.table:
        print(table(json.loads(options.table.read_text("utf-8"))["tests"]))
        return 0
    chip = chip_named(options.device or _own_device()).name
    options.out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="estimates-") as name:
        project = Path(name)
        ignored = shutil.ignore_patterns("__pycache__", "__torchprof__")
        for folder in ("examples", *(["benchmarks/device_tests"] if options.own else [])):
            shutil.copytree(ROOT / folder, project / Path(folder).name, ignore=ignored)
        (project / "pytest.ini").write_text("[pytest]\n", "utf-8")
        wanted = ("host",) if options.recorded else ("device", "host")
        sides = {side: _start(project, side, chip, options) for side in wanted}
        end = time.monotonic() + options.timeout
        statuses = {side: _end(process, end) for side, process in sides.items()}
        if options.recorded:
            _take(options.recorded, project)
        tests = _compare(project)
        for file in (project / "traces-device").rglob("*.gz"):
            (options.out / "traces").mkdir(exist_ok=True)
            shutil.copy(file, options.out / "traces")
    document = {
        "chip": chip,
        "statuses": statuses,
        "tests": [test._asdict() | {"ratios": _ratios(test)} for test in tests],
        "medians": _medians(tests),
    }
    (options.out / "live.json").write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    _print(chip, statuses, tests)
    return 0 if tests else 1


def _own_device() -> str:
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("torch sees no CUDA device: name a chip, --device 'H100 SXM'")
    return str(torch.cuda.get_device_name())


def _start(
    project: Path, side: str, chip: str, options: argparse.Namespace
) -> subprocess.Popen[bytes]:
    """Profile all tests on one side."""
    command = [sys.executable, "-m", "pytest", "--torchprof", "-p", "no:cacheprovider", "-q"]
    command += ["--import-mode=importlib", "--torchprof-rounds=0", f"--torchprof-device={chip}"]
    command += [f"--torchprof-json={project / side}.json", "--torchprof-traces-of=all"]
    command += [f"--torchprof-traces={project / f'traces-{side}'}", "--torchprof-top=0"]
    command += ["examples", *(["device_tests"] if options.own else [])]
    command += ["-k", options.k] if options.k else []
    environment = {k: v for k, v in os.environ.items() if k != "PYTEST_ADDOPTS"}
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(ROOT), environment.get("PYTHONPATH")])
    )
    if side == "host":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    with (options.out / f"{side}.txt").open("w", encoding="utf-8") as file:
        return subprocess.Popen(
            command, cwd=project, env=environment, stdout=file, stderr=subprocess.STDOUT
        )


def _end(process: subprocess.Popen[bytes], end: float) -> int | None:
    """Wait for it; after its time, pytest is interrupted, so that it reports what it has."""
    try:
        return process.wait(max(end - time.monotonic(), 0.1))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    try:
        return process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return None


def _take(recorded: Path, project: Path) -> None:
    """Write the first process of ``benchmarks.device_processes`` as the report of the device."""
    found = json.loads((recorded / "processes.json").read_text("utf-8"))
    first = str(found["processes"][0]["number"])
    tests = []
    for name, values in found["values"][first].items():
        stem = name.replace("/", "+").replace("::", ".")
        trace = recorded / "traces" / f"first-{stem}.pt.trace.json.gz"
        metrics = {k: {"value": v} for k, v in values.items() if isinstance(v, int | float)}
        tests.append({"nodeid": name, "metrics": metrics, "trace": str(trace.resolve())})
    (project / "device.json").write_text(json.dumps({"tests": tests}), "utf-8")


def _compare(project: Path) -> list[Test]:
    found = {side: _reported(project / f"{side}.json") for side in ("host", "device")}
    tests = []
    for name, host in found["host"].items():
        device = found["device"].get(name, {})
        numbers: dict[str, float | None] = {}
        reasons: dict[str, str] = {}
        for wanted, report in ((ESTIMATES, host), (MEASURED, device)):
            for metric in wanted:
                entry = (report.get("metrics") or {}).get(metric) or {}
                numbers[metric] = entry.get("value")
                if entry.get("value") is None:
                    reasons[metric] = str(entry.get("reason") or report.get("reason"))
        traces = [_trace(project, report) for report in (host, device)]
        numbers |= _counted(traces[1])
        if numbers["self_cuda_ms"] is None and traces[1] is not None:
            time_there = measure(METRICS["self_cuda_ms"], traces[1])
            numbers["self_cuda_ms"] = None if isinstance(time_there, MissingValue) else time_there
        tests.append(
            Test(name, numbers, reasons, _by_operator(*traces), _on_device(traces[1], name))
        )
    return tests


def _reported(report: Path) -> dict[str, dict[str, Any]]:
    if not report.exists():
        return {}
    return {test["nodeid"]: test for test in json.loads(report.read_text("utf-8"))["tests"]}


def _trace(project: Path, report: dict[str, Any]) -> Events | None:
    if not report.get("trace"):
        return None
    try:
        return read_trace(project / report["trace"])
    except TorchprofError as error:
        print(error, file=sys.stderr)
        return None


def _counted(trace: Events | None) -> dict[str, float | None]:
    """Calls that launch, and waits of the host, those that copy apart."""
    if trace is None or not trace.has(Kind.KERNEL):
        return dict.fromkeys(("launch_calls", "waits", "waits_that_copy"))
    calls = trace.selection & trace.is_kind(Kind.RUNTIME) & trace.names_where(LAUNCH_CALL.search)
    found = waits(trace)
    return {
        "launch_calls": int(calls.sum()),
        "waits": len(found),
        "waits_that_copy": int(found.copies.sum()),
    }


def _by_operator(host: Events | None, device: Events | None) -> list[dict[str, Any]]:
    """What each operator is estimated to launch on the host, and launched; the most off first."""
    if host is None or device is None or not device.has(Kind.KERNEL):
        return []
    units = units_of(host)
    mine = host.selection[units.event]
    estimated = _sums(host, units.event[mine], units.launches[mine])
    there = units_of(device)
    rows = device.device_rows[device.kind[device.device_rows] == Kind.KERNEL]
    rows = rows[device.selection[rows]]
    unit = np.zeros(len(device), bool)
    unit[there.event] = True
    owner = nesting.nearest(unit, device.parent, parents(device, device.launch[rows]))
    launched = _sums(device, owner, np.ones(len(owner), np.int64))
    names = estimated.keys() | launched.keys()
    off = [
        {"operator": name, "launches": estimated.get(name, 0), "kernels": launched.get(name, 0)}
        for name in names
        if estimated.get(name, 0) != launched.get(name, 0)
    ]
    return sorted(off, key=lambda row: -abs(row["launches"] - row["kernels"]))


def _sums(trace: Events, events: np.ndarray, amounts: np.ndarray) -> dict[str, int]:
    totals: dict[str, int] = {}
    for event, amount in zip(events.tolist(), amounts.tolist(), strict=True):
        name = "(none)" if event < 0 else trace.names[trace.name[event]]
        totals[name] = totals.get(name, 0) + amount
    return totals


def _on_device(trace: Events | None, name: str) -> dict[str, Any] | None:
    """The device's own operators compared with what they did, as for recorded traces."""
    found = None if trace is None else result_of(trace, name)
    if found is None:
        return None
    return {k: None if v != v else v for k, v in found._asdict().items()}  # noqa: PLR0124 -- NaN


def _ratios(test: Test) -> dict[str, float | None]:
    return {f"{a}/{b}": test.ratio(a, b) for a, b in PAIRS}


def _medians(tests: Sequence[Test]) -> dict[str, dict[str, float | int | None]]:
    out: dict[str, dict[str, float | int | None]] = {}
    for a, b in PAIRS:
        known = sorted(r for test in tests if (r := test.ratio(a, b)) is not None)
        out[f"{a}/{b}"] = {
            "tests": len(known),
            "median": median(known) if known else None,
            "least": known[0] if known else None,
            "most": known[-1] if known else None,
        }
    return out


def _print(chip: str, statuses: dict[str, int | None], tests: Sequence[Test]) -> None:
    print(f"chip: {chip}; status of pytest: {statuses}")
    heads = [word for pair in PAIRS for word in (*pair, "ratio")]
    rows = [
        [test.name.rpartition("/")[2][-44:]]
        + [
            cell
            for a, b in PAIRS
            for cell in (_number(test.numbers[a]), _number(test.numbers[b]), _share(test, a, b))
        ]
        for test in tests
    ]
    print(tabulate(rows, ["test", *heads], tablefmt="github", disable_numparse=True))
    for pair, row in _medians(tests).items():
        print(f"{pair}: {row}")
    for test in tests:
        ratio = test.ratio("launches", "kernels")
        if ratio is not None and abs(ratio - 1) > _OFF:
            print(f"{test.name}: {test.operators[:8]}")
        if test.numbers["host_reads"] != test.numbers["waits"]:
            print(f"{test.name}: {test.numbers}")
        for metric, reason in test.reasons.items() if any(test.numbers.values()) else ():
            print(f"{test.name}: {metric}: {reason}"[:300])


def table(tests: Sequence[dict[str, Any]]) -> str:
    """The table of the docs: tests that ran kernels."""
    rows = []
    for test in tests:
        n = test["numbers"]
        if not n["kernels"] or n["launches"] is None:
            continue
        off = n["launches"] / n["kernels"] - 1
        bound = n["bound_ms"] / n["self_cuda_ms"]
        row = [f"`{test['name'].rpartition('::')[2]}`", n["launches"], n["kernels"], f"{off:+.1%}"]
        row += [n["host_reads"], n["waits"], f"{bound:.2f}"]
        row += [n["estimated_cuda_bytes"], n["peak_cuda_bytes"]]
        rows.append(row)
    heads = ["test", "`launches`", "kernels", "off by", "`host_reads`", "waits", "bound / time"]
    heads += ["`estimated_cuda_bytes`", "peak"]
    return tabulate(rows, heads, tablefmt="github", disable_numparse=True)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}" if value != int(value) else f"{int(value)}"


def _share(test: Test, a: str, b: str) -> str:
    found = test.ratio(a, b)
    return "–" if found is None else f"{found:.2f}"


if __name__ == "__main__":
    raise SystemExit(main())
