"""Record small traces of labelled examples on a GPU: ``record_gpu_rules.py FOLDER``.

Writes one positive and one near miss of each device rule, and ``expected.json`` with how often the
rules match. ``tests/data/gpu_rules`` was made so. An example that fails does not stop the others,
and one that breaks its process only those of the same process: ``expected.json`` names what is
missing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

#: What has begun may go on for so long after the time is over.
GRACE_S = 15


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=60, help="start none after this time")
    parser.add_argument("--share", type=int, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def record_share(options: argparse.Namespace) -> None:
    """Record this process's share of the rules; once a rule has both kinds, it is done."""
    from labelled import kept_traces, on_device

    until, rows = time.monotonic() + options.seconds, list[dict[str, Any]]()
    codes = kept_traces.CODES[options.share :: options.processes]
    done = set[tuple[str, bool]]()
    with tempfile.TemporaryDirectory() as name:
        for case in on_device.cases():
            kind = (case.rule, case.matches != 0)
            if case.rule not in codes or kind in done or time.monotonic() > until:
                continue
            try:
                with on_device.settled():
                    ran = on_device.run(case, Path(name), locate=False)
                row = kept_traces.keep(case, ran, options.folder)
            except Exception:  # noqa: BLE001 - the others are recorded all the same
                traceback.print_exc()
                continue
            if row is not None:
                done.add(kind)
                rows.append(row)
                part = options.folder / f"part{options.share}.json"
                part.write_text(json.dumps(rows), "utf-8")


def main(arguments: Sequence[str]) -> int:
    """Record all in processes of their own."""
    options = parsed(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.share is not None:
        record_share(options)
        return 0
    from gpu_payloads import recording
    from labelled import kept_traces

    command = [sys.executable, str(Path(__file__).resolve()), *arguments, "--share"]
    children = [
        subprocess.Popen([*command, str(number)], cwd=ROOT) for number in range(options.processes)
    ]
    until = time.monotonic() + options.seconds + GRACE_S
    for child in children:
        try:
            child.wait(max(until - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
    rows = []
    for part in options.folder.glob("part*.json"):
        rows += json.loads(part.read_text("utf-8"))
        part.unlink()
    kept_traces.chosen(rows, options.folder, recording.machine("cuda"))
    answers = json.loads((options.folder / "expected.json").read_text("utf-8"))
    print(f"{len(answers['traces'])} traces; missing: {', '.join(answers['missing']) or 'none'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
