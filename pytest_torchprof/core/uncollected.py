"""Import many modules without garbage collections in between."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

#: More objects than an interpreter freezes itself when it starts, 375 of Python 3.12, and fewer
#: than other code would freeze: the interpreter alone has 5,000.
_OWN_OBJECTS = 2_000


def others_froze() -> bool:
    """Whether other code has frozen objects, so that they must stay frozen."""
    return gc.get_freeze_count() > _OWN_OBJECTS


@contextmanager
def uncollected() -> Iterator[None]:
    """Context without garbage collection, and without a scan of its new objects soon after.

    Modules stay alive anyway, and collections take an eighth of ``import torch``.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        # Freezing and unfreezing moves objects to the oldest generation without a scan.
        if not others_froze():
            gc.freeze()
            gc.unfreeze()
        gc.enable()
