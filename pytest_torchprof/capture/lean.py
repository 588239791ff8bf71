"""torch's profiler, begun without the seconds that its first start of a process takes.

``prepare_trace`` asks ``hasattr(torch, "_inductor")``, to learn whether CUDA graphs are in use, and
the question itself imports inductor and dynamo. As long as nobody else has, the answer is no.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from types import FunctionType, ModuleType
from typing import Any


class _WithoutInductor:
    """The module ``torch``, as one function sees it: nothing is imported by a look at it."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch

    def __getattr__(self, name: str) -> Any:
        if name == "_inductor":
            raise AttributeError(name)
        return getattr(self._torch, name)


def lean_profile() -> Any:
    """A class like ``torch.profiler.profile`` without a schedule, which imports nothing.

    No module of torch is changed for it, not even for a moment.
    """
    import torch

    base = getattr(torch.profiler, "_KinetoProfile", torch.profiler.profile)
    original = getattr(base, "prepare_trace", None)
    if base is torch.profiler.profile or not isinstance(original, FunctionType):
        return torch.profiler.profile  # of another shape, or somebody has replaced it
    prepare = FunctionType(
        original.__code__,
        {**original.__globals__, "torch": _WithoutInductor(torch)},
        original.__name__,
        original.__defaults__,
        original.__closure__,
    )

    class Profile(base):  # type: ignore[misc, valid-type]
        """One session."""

        def prepare_trace(self) -> None:
            config = sys.modules.get("torch._inductor.config")
            self.has_cudagraphs = bool(getattr(getattr(config, "triton", None), "cudagraphs", 0))
            prepare(self)

    return Profile


def trace_only() -> Any:
    """A configuration for sessions that are only exported, never looked at through Python.

    Torch then makes no second copy of each event, which it takes as long to free as to write the
    file; what is exported stays the same. None where torch has no such choice (before 2.13).
    """
    import torch

    with suppress(TypeError):
        return torch._C._profiler._ExperimentalConfig(trace_only=True)
    return None
