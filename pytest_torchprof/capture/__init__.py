"""Runs torch.profiler around a block and hands out a `Trace`. The only room that touches torch."""

from __future__ import annotations

from pytest_torchprof.capture.busy import BusyWatch
from pytest_torchprof.capture.compilation import CompileCount
from pytest_torchprof.capture.exports import hold, passing_file
from pytest_torchprof.capture.inductor import graph_facts
from pytest_torchprof.capture.lines import LineTracer
from pytest_torchprof.capture.machine import (
    Machine,
    allows_tf32,
    probe_machine,
    require_torch,
)
from pytest_torchprof.capture.modules import ModuleTracer
from pytest_torchprof.capture.profiler import (
    OTHERS,
    OWN_PROFILER,
    Capture,
    device_gap,
    prime,
    sees_threads,
)
from pytest_torchprof.capture.real import REAL, muted
from pytest_torchprof.capture.reference import Lap, conditions, run_reference
from pytest_torchprof.capture.shelter import SHELTER
from pytest_torchprof.capture.state import World
from pytest_torchprof.capture.stopwatch import Round, Stopwatch
from pytest_torchprof.capture.turns import Meter, Regions, Tidy
from pytest_torchprof.capture.undo import Undo

__all__ = [
    "OTHERS",
    "OWN_PROFILER",
    "REAL",
    "SHELTER",
    "BusyWatch",
    "Capture",
    "CompileCount",
    "Lap",
    "LineTracer",
    "Machine",
    "Meter",
    "ModuleTracer",
    "Regions",
    "Round",
    "Stopwatch",
    "Tidy",
    "Undo",
    "World",
    "allows_tf32",
    "conditions",
    "device_gap",
    "graph_facts",
    "hold",
    "muted",
    "passing_file",
    "prime",
    "probe_machine",
    "require_torch",
    "run_reference",
    "sees_threads",
]
