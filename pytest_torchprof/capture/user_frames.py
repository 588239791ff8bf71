"""Tell the user's code from libraries, and find the frames of the test."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FrameType

_PACKAGE = str(Path(__file__).parents[1])
_FRAMEWORK = ("pytest", "_pytest", "pluggy")


def is_users(file: str) -> bool:
    """Whether code of this file is the user's: not a library's, not ours, not generated."""
    if file.startswith("<") or not file:
        return file.startswith("<ipython")  # a notebook cell
    folders = file.replace("\\", "/").split("/")
    if "site-packages" in folders or "dist-packages" in folders:
        return False
    if any(folder.startswith("torchinductor_") for folder in folders):
        return False
    return not file.startswith(foreign())


@cache
def foreign() -> tuple[str, ...]:
    """Folders without user code, wherever they are installed."""
    paths = ("stdlib", "platstdlib", "purelib", "platlib")
    folders: set[str | None] = {sysconfig.get_path(name) for name in paths}
    folders |= {_PACKAGE, os.environ.get("TORCHINDUCTOR_CACHE_DIR")}
    folders |= {_folder_of(name) for name in ("torch", *_FRAMEWORK)}
    return tuple(os.path.join(folder, "") for folder in folders if folder)  # noqa: PTH118 - a prefix


def _folder_of(package: str) -> str | None:
    file = getattr(sys.modules.get(package), "__file__", None)
    return os.path.dirname(file) if file else None  # noqa: PTH120 - a prefix of code's file names


@cache
def _framework() -> tuple[str, ...]:
    folders = [folder for name in _FRAMEWORK if (folder := _folder_of(name))]
    return tuple(os.path.join(folder, "") for folder in folders)  # noqa: PTH118 - a prefix


def frames_of_test(frame: FrameType | None) -> Iterator[FrameType]:
    """From a frame outwards to where pytest calls the test."""
    while frame is not None and not frame.f_code.co_filename.startswith(_framework()):
        yield frame
        frame = frame.f_back
