"""Record small traces on a GPU, with their expected answers: ``record_gpu_traces.py FOLDER``.

Writes ``NAME.json.gz`` for each payload of ``tests/gpu_payloads``, ``expected.json`` with answers
that do not come from our reader, and ``measured.json`` with what it says. A payload that fails,
crashes, or hangs does not stop the others: it is named in ``expected.json``. ``tests/data/gpu`` was
made so; ``--restate FOLDER`` only renews the answers by hand there.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

SCHEMA = "torchprof-gpu-traces/1"
#: A payload takes a second at most, one that compiles half a minute.
HANGS_S, COMPILES_S = 20, 60
#: What has begun may go on for so long after the time is over.
GRACE_S = 15
#: Stands for all payloads that do not compile.
PLAIN = "plain"


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--only", default="", metavar="NAME,…", help="record only these payloads")
    parser.add_argument(
        "--seconds", type=float, default=75, help="start no payload after this time"
    )
    parser.add_argument("--restate", action="store_true", help="only renew the answers by hand")
    parser.add_argument("--parts", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


# ---------------------------------------------------------------------------- in a process


def record_each(names: Iterable[str], device: str, folder: Path, parts: Path, until: float) -> None:
    """Record these payloads one after the other; a file of ``parts`` tells what came of each."""
    import torch
    from gpu_payloads import catalog, recording

    gc.collect()
    gc.freeze()  # each capture collects garbage, which is faster without torch's own objects
    (parts / "machine.json").write_text(json.dumps(recording.machine(device)))
    for name in names:
        payload = catalog.PAYLOADS[name]
        part: dict[str, Any] = {}
        if device != "cuda" and not payload.anywhere:
            part["skipped"] = "needs a GPU"
        elif time.time() > until:
            part["skipped"] = "no time was left"
        else:
            (parts / f"{name}.begun").touch()
            began = time.perf_counter()
            torch.manual_seed(0)
            try:
                recorded = recording.record(payload, device, folder)
                part = {"answers": recorded.answers, "measured": recorded.measured}
            except Exception:  # noqa: BLE001 - the others shall be recorded
                part["failed"] = traceback.format_exc()
            part["seconds"] = round(time.perf_counter() - began, 3)
        (parts / f"{name}.json").write_text(json.dumps(part))


# ---------------------------------------------------------------------------- around them


class Recorder:
    """Starts processes that record, and goes on after one that crashes or hangs."""

    def __init__(self, given: argparse.Namespace, parts: Path) -> None:
        self.given, self.parts = given, parts
        self.until = time.time() + given.seconds

    def start(self, names: Sequence[str]) -> subprocess.Popen[bytes]:
        """A process that records these payloads."""
        environment = os.environ | {
            "KINETO_LOG_LEVEL": "99",
            "OMP_NUM_THREADS": "1",
            "TORCHINDUCTOR_CACHE_DIR": tempfile.mkdtemp(dir=self.parts),
            "TORCHINDUCTOR_COMPILE_THREADS": "4",
            "TRITON_CACHE_DIR": tempfile.mkdtemp(dir=self.parts),
        }
        command = [
            *(sys.executable, __file__, str(self.given.folder), "--device", self.given.device),
            *("--only", ",".join(names), "--parts", str(self.parts)),
            *("--seconds", str(max(self.until - time.time(), 0.0))),
        ]
        output = (self.parts / f"{names[0]}.log").open("wb")
        with output:
            return subprocess.Popen(
                command, env=environment, stdout=output, stderr=subprocess.STDOUT
            )

    def follow(
        self, process: subprocess.Popen[bytes] | None, names: Sequence[str], patience_s: float
    ) -> None:
        """Record all of these, by this process first, and by as many others as it takes."""
        names, log = list(names), PLAIN
        while names:
            if process is None:
                process, log = self.start(names), names[0]
            status = self._wait(process, names, patience_s)
            left = [name for name in names if not self.has(name)]
            if left:
                begun = next((n for n in left if (self.parts / f"{n}.begun").exists()), left[0])
                self.note(begun, f"the process ended with {status}", log)
                left.remove(begun)
            if time.time() > self.until:
                for name in left:
                    (self.parts / f"{name}.json").write_text('{"skipped": "no time was left"}')
                return
            names, process = left, None

    def until_known(
        self, names: Sequence[str], process: subprocess.Popen[bytes], patience_s: float
    ) -> None:
        """Wait until all of these are recorded, or the process ends, or it takes too long."""
        until = time.time() + patience_s
        while not all(map(self.has, names)) and process.poll() is None and time.time() < until:
            time.sleep(0.1)

    def finish(self, processes: Mapping[str, subprocess.Popen[bytes]], patience_s: float) -> None:
        """Wait for processes that record one payload each, beside each other."""
        until = time.time() + patience_s
        for name, process in processes.items():
            status = self._wait(process, [name], max(until - time.time(), 0.1))
            if not self.has(name):
                self.note(name, f"the process ended with {status}", name)

    def has(self, name: str) -> bool:
        """Whether it is known what came of the payload."""
        return (self.parts / f"{name}.json").exists()

    def note(self, name: str, why: str, log: str) -> None:
        """A payload that took its process with it."""
        text = (self.parts / f"{log}.log").read_text("utf-8", "replace")[-4000:]
        (self.parts / f"{name}.json").write_text(json.dumps({"failed": f"{why}\n{text}"}))

    def _wait(
        self, process: subprocess.Popen[bytes], names: Sequence[str], patience_s: float
    ) -> int | str:
        """Until the process ends; it is stopped if nothing new comes for too long."""
        done, since = -1, time.time()
        while True:
            try:
                return process.wait(0.1)
            except subprocess.TimeoutExpired:
                now, time_now = sum(map(self.has, names)), time.time()
                if now != done:
                    done, since = now, time_now
                # Importing torch takes long on a new machine.
                patient = patience_s if done else max(patience_s, COMPILES_S)
                if time_now - since > patient or time_now > self.until + GRACE_S:
                    process.kill()
                    process.wait()
                    return f"no result in {time_now - since:.0f} s"


def gathered(names: Iterable[str], parts: Path, folder: Path) -> list[str]:
    """Write ``expected.json`` and ``measured.json`` from the parts; returns what to print."""
    found = {name: json.loads((parts / f"{name}.json").read_text("utf-8")) for name in names}
    machine = parts / "machine.json"
    expected = {
        "schema": SCHEMA,
        "machine": json.loads(machine.read_text("utf-8")) if machine.exists() else {},
        "traces": {n: part["answers"] for n, part in found.items() if "answers" in part},
        "failed": {n: part["failed"] for n, part in found.items() if "failed" in part},
        "skipped": {n: part["skipped"] for n, part in found.items() if "skipped" in part},
    }
    measured = {
        name: {"seconds": part["seconds"], **part["measured"]}
        for name, part in found.items()
        if "measured" in part
    }
    write(folder / "expected.json", expected)
    write(folder / "measured.json", measured)
    lines = [f"{key}: {value}" for key, value in expected["machine"].items()]
    for log in sorted(parts.glob("*.log")):
        if text := log.read_text("utf-8", "replace").strip():
            lines += [f"said by {log.name}:", text[-3000:]]
    for name, part in found.items():
        lines.append(f"{name}: {_outcome(part)}")
        for kind in ("live", "stored"):
            differ = part.get("measured", {}).get(kind, {}).get("differences", ())
            lines += [f"  {kind} {line}" for line in differ]
        lines += [f"  doubt: {line}" for line in part.get("answers", {}).get("doubts", ())]
    return lines


def _outcome(part: dict[str, Any]) -> str:
    if "failed" in part:
        return f"FAILED {part['failed'].strip().splitlines()[-1]}"
    if "skipped" in part:
        return f"skipped: {part['skipped']}"
    return f"{part['measured']['packed_bytes']:,} B in {part['seconds']} s"


def write(path: Path, document: object) -> None:
    """A document whose differences can be read."""
    from gpu_payloads.scrubbing import own_names, scrubbed

    text = json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False)
    path.write_text(scrubbed(text, own_names()) + "\n", "utf-8")


def restate(folder: Path) -> None:
    """Renew the answers by hand, the rules, and the texts of a recorded folder."""
    from gpu_payloads import catalog, recording

    path = folder / "expected.json"
    expected = json.loads(path.read_text("utf-8"))
    for name, old in expected["traces"].items():
        new = recording.answers_of(catalog.PAYLOADS[name])
        before = old["answers"]
        for metric, answer in new["answers"].items():
            if answer.items() <= before.get(metric, {}).items():
                answer.update(before[metric])  # with what agreed
        kept = {n: one for n, one in before.items() if one["source"] != "by hand"}
        new["answers"] = kept | new["answers"]
        expected["traces"][name] = {**old, **new}
    write(path, expected)


def main(arguments: Sequence[str] = tuple(sys.argv[1:])) -> int:
    """Record, and print what came of it; 1 if a payload failed."""
    given = parsed(arguments)
    if given.restate:
        restate(given.folder)
        return 0
    given.folder.mkdir(parents=True, exist_ok=True)
    if given.parts is not None:
        from gpu_payloads import catalog

        names = catalog.PLAIN if given.only == PLAIN else given.only.split(",")
        until = time.time() + given.seconds
        record_each(names, given.device, given.folder, given.parts, until)
        return 0
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary:
        recorder = Recorder(given, Path(temporary))
        first = None if given.only else recorder.start([PLAIN])
        from gpu_payloads import catalog  # imports torch, which takes seconds, beside that process

        chosen = given.only.split(",") if given.only else list(catalog.PAYLOADS)
        plain = [name for name in chosen if name in catalog.PLAIN]
        if first is not None:  # nothing runs beside what is timed
            recorder.until_known(catalog.ALONE, first, COMPILES_S)
        compiled = {n: recorder.start([n]) for n in chosen if n in catalog.COMPILED}
        recorder.follow(first, plain, HANGS_S)
        recorder.finish(compiled, COMPILES_S)
        lines = gathered(chosen, Path(temporary), given.folder)
    print("\n".join(lines))
    print(f"{len(chosen)} payloads in {time.perf_counter() - began:.1f} s")
    return int(any("FAILED" in line for line in lines))


if __name__ == "__main__":
    sys.exit(main())
