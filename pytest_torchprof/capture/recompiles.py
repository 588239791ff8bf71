"""Keep our runs' compilations from using up a test's recompile limit.

Compiled code has a guard on the number of intra-op threads, so a run with one thread compiles every
variant of a function once more. After ``recompile_limit`` variants dynamo gives up on the function,
and with ``fullgraph=True`` it raises, in a later test that would have been far from the limit.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from pytest_torchprof.capture.unpatched import REAL


class _Nobody:
    """Stands for an object that no frame has among its variables."""


_NOBODY = _Nobody()


def exempt_from_limit() -> Callable[[], None]:
    """Call the returned function after a run: what dynamo compiled in between does not count.

    Dynamo counts the variants that were compiled for the objects that the frame has now.
    Source: torch/_dynamo/cache_size.py, ``_has_same_id_matched_objs``.
    """
    before = {id(guards) for guards in _guards()}

    def exempt() -> None:
        for guards in _guards():
            if id(guards) not in before:
                guards.id_matched_objs = {"<torchprof>": weakref.ref(_NOBODY)}

    return exempt


def _guards() -> Iterator[Any]:
    """The guards of each variant of each function that dynamo has compiled."""
    dynamo = sys.modules.get("torch._dynamo.convert_frame")
    room = sys.modules.get("torch._C._dynamo.eval_frame")
    # Private names, since torch 2.6 at least; without them, dynamo counts as usual.
    with suppress(AttributeError, TypeError):
        for known in list(dynamo.input_codes.seen):  # type: ignore[union-attr]
            if (code := known()) is not None:
                for entry in room._debug_get_cache_entry_list(code):  # type: ignore[union-attr]
                    yield entry.guard_manager


_COMPILERS = ("torch._dynamo.", "torch._functorch.", "torch._inductor.")


def called_by_compiler() -> bool:
    """Whether torch's compiler calls our caller: a number of threads becomes part of its code."""
    name = REAL.frame(2).f_globals.get("__name__")
    return isinstance(name, str) and name.startswith(_COMPILERS)
