"""Where the user's caches lie."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_folder() -> Path:
    """The user's cache folder: XDG's, or that of the system.

    Raises:
        RuntimeError: the user has no home.
    """
    if given := os.environ.get("XDG_CACHE_HOME"):
        return Path(given) / "torchprof"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home()) / "torchprof" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "torchprof"
    return Path.home() / ".cache" / "torchprof"
