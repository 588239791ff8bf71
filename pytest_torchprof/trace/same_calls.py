"""What small traces of the same calls share: runs of one test mostly make the same ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events

_Shared = TypeVar("_Shared")
#: So many nestings of the same events are kept.
_MOST_NESTED: Final = 2


def once_nested(trace: Events, compute: Callable[..., _Shared], *options: Any) -> _Shared:
    """``compute(trace, *options)``, once for all small traces of the same names, kinds and nesting.

    What it computes depends on nothing else, and nobody changes it.
    """
    known = trace.whole.once(_nested)
    key = (compute, *options) if options else compute
    found: _Shared = known.get(key, known)
    if found is known:
        found = known[key] = compute(trace, *options)
        if isinstance(found, np.ndarray):
            found.flags.writeable = False
    return found


def once_selected(trace: Events, compute: Callable[..., _Shared], *options: Any) -> _Shared:
    """The same for what also depends on the selected events."""
    found: _Shared = (
        once_nested(trace, _for_selection, trace.selection.tobytes(), compute, *options)
        if trace.by_name.is_small
        else trace.once(compute, *options)
    )
    return found


def _for_selection(
    trace: Events, _: bytes, compute: Callable[..., _Shared], *options: Any
) -> _Shared:
    return compute(trace, *options)


def _nested(trace: Events) -> dict[Any, Any]:
    index = trace.by_name
    if not index.is_small:
        return {}
    if len(index.nested) > _MOST_NESTED:
        index.nested.clear()
    return index.nested.setdefault(trace.parent.tobytes(), {})
