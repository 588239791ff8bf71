"""Notice that a test switches torch's caching allocator off; torch itself does not tell."""

from __future__ import annotations

import sys
from functools import wraps
from typing import Any

#: What ``torch.cuda.memory.caching_allocator_enable`` calls.
_SWITCH = "_cuda_cudaCachingAllocator_enable"


class CachingAllocator:
    """Watches the allocator from `watch` until `stop`; one instance per process."""

    def __init__(self) -> None:
        self._is_on = True
        #: Whether it was off at any time since `watch`.
        self.was_off = False
        self._room: Any = None
        self._original: Any = None
        self._wrapper: Any = None

    def watch(self) -> None:
        """Note from now on whether it is switched off."""
        self.stop()
        self.was_off = not self._is_on
        room = getattr(sys.modules.get("torch"), "_C", None)
        original = getattr(room, _SWITCH, None)
        if original is None:
            return

        @wraps(original)
        def enable(value: bool) -> Any:
            result = original(value)
            self._is_on = bool(value)
            self.was_off |= not self._is_on
            return result

        self._room, self._original, self._wrapper = room, original, enable
        setattr(room, _SWITCH, enable)

    def stop(self) -> None:
        """Watch no more, and restore torch's function, unless other code has replaced it."""
        room, self._room = self._room, None
        if room is not None and getattr(room, _SWITCH) is self._wrapper:
            setattr(room, _SWITCH, self._original)


CACHING_ALLOCATOR = CachingAllocator()
