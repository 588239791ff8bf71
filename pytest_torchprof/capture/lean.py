"""Start torch's profiler without the seconds that its first start in a process takes.

It evaluates ``hasattr(torch, "_inductor")`` to find out whether CUDA graphs are used, and that
alone imports inductor and dynamo. Until other code has imported them, the answer is no.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from types import FunctionType, ModuleType
from typing import Any

#: Where torch asks: in the former, and up to 2.6 or later in the latter.
_ASKING = ("prepare_trace", "start_trace")


class _WithoutInductor:
    """The module ``torch`` as a single function sees it: looking at it imports nothing."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch

    def __getattr__(self, name: str) -> Any:
        if name == "_inductor":
            raise AttributeError(name)
        return getattr(self._torch, name)


def lean_profile() -> Any:
    """A class like ``torch.profiler.profile`` without a schedule, which imports nothing.

    No module of torch is changed for it, not even temporarily.
    """
    import torch

    base = getattr(torch.profiler, "_KinetoProfile", torch.profiler.profile)
    if base is torch.profiler.profile:
        return base  # an unknown implementation
    asking = {name: copy for name in _ASKING if (copy := _blind(getattr(base, name, None), torch))}
    if not asking:
        return torch.profiler.profile  # other code has replaced it

    def prepare_trace(self: Any) -> None:
        config = sys.modules.get("torch._inductor.config")
        self.has_cudagraphs = bool(getattr(getattr(config, "triton", None), "cudagraphs", 0))
        asking.get("prepare_trace", base.prepare_trace)(self)

    return type("Profile", (base,), {**asking, "prepare_trace": prepare_trace})


def _blind(original: Any, torch: ModuleType) -> FunctionType | None:
    """The same function with another view of torch; None if it does not ask.

    torch 2.11 warns in it, once per process: that warning is left for a session of the user's.
    """
    if not isinstance(original, FunctionType) or "_inductor" not in original.__code__.co_consts:
        return None
    return FunctionType(
        original.__code__,
        {
            **original.__globals__,
            "torch": _WithoutInductor(torch),
            "_warn_once": lambda *_, **__: None,
        },
        original.__name__,
        original.__defaults__,
        original.__closure__,
    )


def lean_region() -> Any:
    """Like ``torch.profiler.record_function``, without the detour through a Python operator.

    Only for torch versions that are known to record the same for both.
    """
    import torch

    room: Any = torch.autograd
    names = ("_record_function_with_args_enter", "_record_function_with_args_exit")
    if trace_only() is None or not all(hasattr(room, name) for name in names):
        return torch.profiler.record_function
    enter, leave = (getattr(room, name) for name in names)

    class Region:
        """A context: an annotation of this name."""

        __slots__ = ("_handle", "_name")

        def __init__(self, name: str) -> None:
            self._name = name

        def __enter__(self) -> None:
            self._handle = enter(self._name)

        def __exit__(self, *_: object) -> None:
            leave(self._handle)

    return Region


def trace_only() -> Any:
    """A configuration for sessions that are only exported, never read through Python.

    Torch then makes no second copy of each event, which takes as long to free as the file takes to
    write; the exported file is the same. None if torch has no such option (before 2.13).
    """
    import torch

    with suppress(TypeError):
        return torch._C._profiler._ExperimentalConfig(trace_only=True)
    return None
