"""Code objects of torch that a tracer recognizes, and code that dynamo must not compile."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
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
    """Those of this version of torch."""
    from torch.optim import Optimizer
    from torch.utils.data import dataloader

    iterator = dataloader._BaseDataLoaderIter
    # Around the step of every class.
    inner = Optimizer.profile_hook_step.__code__.co_consts
    return ConstructorCodes(
        (Optimizer.__init__.__code__, dataloader.DataLoader.__init__.__code__),
        (iterator.__init__.__code__,),
        tuple(one for one in inner if isinstance(one, CodeType)),
        (iterator.__next__.__code__,),
    )


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
