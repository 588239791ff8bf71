"""Code objects of torch that a tracer recognizes, and code that dynamo must not compile."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any


def module_calls(module: Any) -> frozenset[CodeType]:
    """The code objects through which every module is called."""
    names = ("_wrapped_call_impl", "_call_impl")
    return frozenset(getattr(module, name).__code__ for name in names if hasattr(module, name))


def step_call(optimizer: Any) -> CodeType:
    """The code object through which the step of every optimizer is called."""
    constants = optimizer.profile_hook_step.__code__.co_consts
    return next(one for one in constants if isinstance(one, CodeType))


def code_skipper() -> Callable[[CodeType], object]:
    """Dynamo's function that excludes code objects; its C part exists without dynamo."""
    try:
        import torch._C._dynamo.eval_frame as room
    except ImportError:
        room = None  # type: ignore[assignment]
    # Up to 2.6 it was a function of the C part; since then, a strategy.
    older: Callable[[CodeType], object] | None = getattr(room, "skip_code", None)
    set_strategy = getattr(room, "set_code_exec_strategy", None)
    if older is not None or set_strategy is None:
        return older or (lambda _: None)
    action = room._FrameAction
    strategy = room._FrameExecStrategy(action.SKIP, action.DEFAULT)
    return lambda code: set_strategy(code, strategy)
