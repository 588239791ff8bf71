"""Code objects of torch that a tracer recognizes, and code that dynamo must not compile."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, NamedTuple


def module_calls(module: Any) -> frozenset[CodeType]:
    """The code objects through which every module is called."""
    names = ("_wrapped_call_impl", "_call_impl")
    return frozenset(getattr(module, name).__code__ for name in names if hasattr(module, name))


class ConstructorCodes(NamedTuple):
    """Code objects that construct optimizers and loaders, that make a loader's iterator, through
    which optimizers step, and iterators fetch.
    """

    constructors: tuple[CodeType, ...]
    iterators: tuple[CodeType, ...]
    steps: tuple[CodeType, ...]
    fetches: tuple[CodeType, ...]


def constructor_codes() -> ConstructorCodes:
    """Those of this version of torch; none of what a mock has replaced."""
    from torch.optim import Optimizer
    from torch.utils.data import dataloader

    iterator = dataloader._BaseDataLoaderIter
    around = _codes(Optimizer, "profile_hook_step")  # around the step of every class
    return ConstructorCodes(
        _codes(Optimizer, "__init__") + _codes(dataloader.DataLoader, "__init__"),
        _codes(iterator, "__init__"),
        tuple(one for code in around for one in code.co_consts if isinstance(one, CodeType)),
        _codes(iterator, "__next__"),
    )


def _codes(kind: Any, name: str) -> tuple[CodeType, ...]:
    """The code of a method, if it is a function."""
    method = getattr(kind, name, None)
    return (method.__code__,) if isinstance(method, FunctionType) else ()


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
