"""Import many modules without the garbage collector's walks through them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """No garbage collection within, nor a walk through what was made within soon after.

    Modules stay alive. Of ``import torch``, looking for garbage among them takes an eighth.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        # Through the permanent generation objects get to the oldest one without a walk. What
        # other code has put there is to stay there.
        if gc.get_freeze_count() == 0:
            gc.freeze()
            gc.unfreeze()
        gc.enable()
