"""Captures a payload as a session does, and asks others than our reader for its answers."""

from __future__ import annotations

import gc
import gzip
import platform
import subprocess
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import support.live  # noqa: F401 - primes the profiler
import torch
from gpu_payloads import reading
from gpu_payloads.scrubbing import own_names, scrubbed
from torch.utils.flop_counter import FlopCounterMode

from pytest_torchprof.capture.compiling import CompileCount
from pytest_torchprof.capture.machine import probe_machine
from pytest_torchprof.capture.profiler import Capture, facts_now
from pytest_torchprof.rules.registry import CODES
from pytest_torchprof.trace.read import read_trace

if TYPE_CHECKING:
    from gpu_payloads.payload import Payload, Run

    from pytest_torchprof.trace.events import Events

#: A recorded trace may take so much, compressed.
LARGEST_BYTES = 150 * 1024
#: Answers by hand that hold where there is no device, too; which rules match there is not stated.
ON_EVERY_DEVICE = frozenset({"flops", "graph_breaks", "recompiles", "graphs"})
#: Rates are checked within this share of those by CUDA events.
RATE = 0.03
#: What CUDA events time is in this region; what the trace says of it is compared with them.
TIMED = "timed"
#: The device spins for so long, some 5 ms, until all that is timed has been launched.
SPIN_CYCLES = 10_000_000
#: TFLOP/s of dense products by operator of `Payload.rates`, for "SXM" cards of NVIDIA.
#: Source: NVIDIA H100 and H200 Tensor Core GPU data sheets, without sparsity.
PEAKS: Mapping[str, float] = {
    "large_products_in_bf16": 989.4,
    "large_products_in_tf32": 494.7,
    "large_products_in_fp8": 1978.9,
}


@dataclass(frozen=True)
class Recorded:
    """What came of a payload.

    ``answers``: the row of ``expected.json``. ``measured``: what our reader says, live and stored,
    and all that explains a difference.
    """

    answers: dict[str, Any]
    measured: dict[str, Any]


class Allocator:
    """The caching allocator's own statistics of a block."""

    def __init__(self, device: str) -> None:
        self.works = device == "cuda"
        self.answers: dict[str, int] = {}
        self._before: dict[str, Any] = {}

    def begin(self) -> None:
        """The block begins."""
        if self.works:
            torch.cuda.reset_peak_memory_stats()
            self._before = torch.cuda.memory_stats()

    def end_block(self) -> None:
        """The block is over."""
        if not self.works:
            return
        now, before = torch.cuda.memory_stats(), self._before
        made = now["allocated_bytes.all.allocated"] - before["allocated_bytes.all.allocated"]
        freed = now["allocated_bytes.all.freed"] - before["allocated_bytes.all.freed"]
        peak = now["allocated_bytes.all.peak"] - before["allocated_bytes.all.current"]
        self.answers = {"peak_cuda_bytes": peak, "allocated_cuda_bytes": made}
        if made or freed:
            self.answers["max_cuda_bytes"] = now["allocated_bytes.all.peak"]
            self.answers["max_reserved_cuda_bytes"] = now["reserved_bytes.all.peak"]

    def end(self) -> None:
        """All garbage has been collected."""
        if self.works:
            now = torch.cuda.memory_allocated()
            leaked = now - self._before["allocated_bytes.all.current"]
            self.answers["leaked_cuda_bytes"] = leaked


class Clock:
    """CUDA events around a block, whose time is the device's alone.

    The device spins before the first event, so that it waits for no launch between the two.
    """

    def __init__(self, *, works: bool) -> None:
        self.works = works
        self.ms: float | None = None
        if works:
            self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            for event in self._events:
                event.record()  # the first use creates it
            torch.cuda._sleep(1)  # … and loads its kernel
            torch.cuda.synchronize()

    @contextmanager
    def around(self) -> Iterator[None]:
        """Times the block, in a region of its own."""
        if not self.works:
            yield
            return
        torch.cuda._sleep(SPIN_CYCLES)
        with torch.profiler.record_function(TIMED):
            self._events[0].record()
            yield
            self._events[1].record()

    def look(self) -> None:
        """Once the device is done."""
        if self.works:
            torch.cuda.synchronize()
            self.ms = self._events[0].elapsed_time(self._events[1])


def record(payload: Payload, device: str, folder: Path) -> Recorded:
    """Run a payload, capture it, and store ``NAME.json.gz`` in the folder."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what torch says of payloads is not looked at
        return _recorded(payload, device, folder)


def _recorded(payload: Payload, device: str, folder: Path) -> Recorded:
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()  # blocks of others may be larger than asked for
    with payload.set_up(device) as run:
        before = CompileCount.now()
        _run(run)
        first = CompileCount.now().since(before) if payload.compiles else None
        for _ in range(payload.warmups - 1):
            _run(run)
        run.prepare()
        allocator, clock = Allocator(device), Clock(works=device == "cuda" and bool(payload.timed))
        capture = Capture(tensors=True)
        capture.start()
        try:
            allocator.begin()
            with clock.around():
                run.block()
            allocator.end_block()
            facts = facts_now(probe_machine(1), CompileCount.now().since(before), first)
            recording = capture.stop(folder, facts)
            trace, path = recording.events(), recording.path
        finally:
            capture.abandon()
        allocator.end()
        clock.look()
        counted = _counted_flops(run) if payload.counter else None
    text = scrubbed(path.read_text("utf-8"), own_names())
    path.unlink()
    answers = answers_of(payload, device, allocator.answers, clock.ms, counted)
    stored = folder / f"{payload.name}.json.gz"
    packed = gzip.compress(text.encode(), 9, mtime=0)
    stored.write_bytes(packed)
    if len(packed) > LARGEST_BYTES:
        stored.rename(stored.with_suffix(".gz.too-large"))
        answers["too_large_bytes"] = len(packed)
        stored = stored.with_suffix(".gz.too-large")
    measured = {
        "packed_bytes": len(packed),
        "events_ms": clock.ms,
        "allocator": allocator.answers,
        "counted_flops": counted,
        "live": _measured(trace, answers, answers["rules"]),
        "stored": _measured(read_trace(stored), answers, answers["stored_rules"]),
    }
    return Recorded(answers, measured)


def _run(run: Run) -> None:
    run.prepare()
    run.block()
    _synchronize()


def _synchronize() -> None:
    """Wait for the device, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _counted_flops(run: Run) -> int:
    run.prepare()
    with FlopCounterMode(display=False) as counter:
        run.block()
    return int(counter.get_total_flops())


def _measured(
    trace: Events, answers: Mapping[str, Any], expected: Mapping[str, int]
) -> dict[str, Any]:
    found = reading.read(trace, answers["answers"])
    rules = reading.rules_of(trace)
    differ = reading.differences(answers["answers"], found)
    differ += reading.rule_differences(expected, answers["may_match"], rules["counts"])
    return {
        "differences": differ,
        "values": found,
        "rules": rules,
        "syncing_calls": reading.syncing_calls(trace),
        "device_work": reading.kernels_by_name(trace),
    }


# ---------------------------------------------------------------------------- answers


def answers_of(
    payload: Payload,
    device: str = "cuda",
    allocator: Mapping[str, int] | None = None,
    events_ms: float | None = None,
    counted: int | None = None,
) -> dict[str, Any]:
    """The row of a payload: answers by hand, and by all that is not our reader."""
    answers: dict[str, dict[str, Any]] = {}
    for name, count in (allocator or {}).items():
        answers[name] = {"value": count, "source": "torch.cuda.memory_stats"}
    if counted is not None:
        answers["flops"] = {"value": counted, "source": "FlopCounterMode"}
    if payload.timed and events_ms:
        low, high = (share * events_ms for share in payload.timed)
        answers[f"self_cuda_ms@{TIMED}"] = {"low": low, "high": high, "source": "CUDA events"}
        for name, numerator in payload.rates.items():
            scale = 1e12 if name.startswith("tflops") else 1e9
            answers |= _rates(payload.name, name, numerator / (events_ms / 1e3) / scale)
    doubts = []
    stated = payload.counts
    if device != "cuda":
        stated = {name: count for name, count in stated.items() if name in ON_EVERY_DEVICE}
    for name, count in stated.items():
        other = answers.get(name)
        answers[name] = {"value": count, "source": "by hand"}
        if other is None:
            continue
        if other["value"] == count:
            answers[name]["agrees"] = other["source"]
        else:
            doubts.append(f"{name}: {count} by hand, {other['value']} by {other['source']}")
    for name in payload.unknown if device == "cuda" else ():
        answers[name] = {"unknown": True, "source": "by hand"}
    for name in payload.or_unknown & answers.keys():
        answers[name]["or_unknown"] = True
    row: dict[str, Any] = {
        "about": payload.about,
        "answers": answers,
        "rules": dict(payload.rules),
        "stored_rules": {**payload.rules, **payload.stored},
        "may_match": sorted(payload.may if device == "cuda" else CODES),
    }
    return row | ({"doubts": doubts} if doubts else {})


def _rates(payload: str, name: str, rate: float) -> dict[str, dict[str, Any]]:
    """A rate, and if the peak of the chip is known, its share of that."""
    band: dict[str, Any] = {
        "low": (1 - RATE) * rate,
        "high": (1 + RATE) * rate,
        "source": "CUDA events",
    }
    found = {name: band}
    if (peak := PEAKS.get(payload)) is not None and _has_known_peaks():
        share = {which: 100 * band[which] / peak for which in ("low", "high")}
        share["high"] = min(share["high"], 100.0)
        where = name.partition("@")[2]
        found[f"compute_pct@{where}"] = {**share, "source": "CUDA events, and the data sheet"}
    return found


def _has_known_peaks() -> bool:
    if not torch.cuda.is_available():
        return False
    name = torch.cuda.get_device_name()
    return ("H100" in name or "H200" in name) and not any(x in name for x in ("PCIe", "NVL"))


def machine(device: str) -> dict[str, str | None]:
    """What the traces were recorded on."""
    on_device = device == "cuda" and torch.cuda.is_available()
    return {
        "device": torch.cuda.get_device_name() if on_device else device,
        "driver": _driver() if on_device else None,
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "cudnn": str(torch.backends.cudnn.version()) if on_device else None,
        "python": platform.python_version(),
    }


def _driver() -> str | None:
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(asked, check=True, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip().splitlines()[0]
