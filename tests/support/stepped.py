"""Traces of several steps, made and recorded, and what no step of them holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from support.recorded import quiet
from support.trace_builder import TraceBuilder
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from pytest_torchprof.capture.patches import muted
from pytest_torchprof.core.values import ALL_STEPS
from pytest_torchprof.trace.steps import step_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pytest_torchprof.trace.events import Events


def loop(
    kernel_us: Sequence[float], *, name: str = "ProfilerStep#{}", first: int = 3, host_us: float = 9
) -> TraceBuilder:
    """A loop with one kernel, one copy and one allocation a step, and a kernel before it."""
    b = TraceBuilder("NVIDIA H100 80GB HBM3")
    with b.op("aten::randn"):
        b.launch("init", 5)
    for number, us in enumerate(kernel_us, first):
        with b.annotation(name.format(number), host_us):
            b.memcpy("HtoD", 1024)
            with b.op("aten::mm", [[8, 8], [8, 8]]):
                block = b.memory(4096)
                b.launch("gemm", us)
            b.free(block)
            b.advance(host_us)
    return b


def record_steps(path: Path, count: int, *, label: str = "", stacks: bool = False) -> Path:
    """Train a small model under torch's own profiler, with a step more than is labeled.

    The label is that of ``record_function``, with the step's number; without one, torch's steps.
    """
    with quiet():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
        optimizer = torch.optim.Adam(model.parameters())

        def step(number: int) -> None:
            with record_function("forward"):
                loss = model(torch.randn(4 + number % 3, 8)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        step(0)
        plan = None if label else schedule(wait=0, warmup=1, active=count, repeat=1)
        with muted(2):
            with profile(
                activities=[ProfilerActivity.CPU],
                schedule=plan,
                record_shapes=True,
                profile_memory=True,
                with_stack=stacks,
            ) as profiler:
                for number in range(count + 1):
                    if label and number < count:
                        with record_function(label.format(number)):
                            step(number)
                    else:
                        step(number)
                    if not label:
                        profiler.step()
            profiler.export_chrome_trace(str(path))
    return path


def outside_of_steps(trace: Events, name: str = "") -> Events:
    """The part of the measured region that no step holds."""
    part = trace.part(("step", name, ALL_STEPS))
    vars(part)["selection"] = trace.in_region & (step_of(trace, name) < 0)
    return part
