"""Import many modules without garbage collections in between."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


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
        # Freezing and unfreezing moves objects to the oldest generation without a scan. Objects
        # that other code has frozen must stay frozen.
        if gc.get_freeze_count() == 0:
            gc.freeze()
            gc.unfreeze()
        gc.enable()
