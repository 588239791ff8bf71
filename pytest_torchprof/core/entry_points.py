"""Entry points of installed packages, found without `importlib.metadata` where there are none.

That module takes 20 ms to import, and 2 MiB; mostly no package offers anything.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable
    from importlib.metadata import EntryPoint

#: Folders of the metadata of packages.
_INFO: Final = (".dist-info", ".egg-info")


def entry_points(group: str) -> Iterable[EntryPoint]:
    """The entry points of a group, as `importlib.metadata` finds them."""
    if "importlib.metadata" not in sys.modules and not _may_have(group):
        return ()
    from importlib import metadata

    return metadata.entry_points(group=group)


def _may_have(group: str) -> bool:
    """Whether a package may have such an entry point; True for what is not searched here."""
    if any(hasattr(one, "find_distributions") for one in sys.meta_path if one is not PathFinder):
        return True
    return any(_offers(path or os.curdir, group) for path in sys.path)


def _offers(path: str, group: str) -> bool:
    if path.lower().endswith(".egg"):
        return True
    try:
        with os.scandir(path) as entries:
            found = [one.path for one in entries if one.name.lower().endswith(_INFO)]
    except NotADirectoryError:  # an archive
        return True
    except OSError:
        return False
    return any(f"[{group}]" in _text(folder) for folder in found)


def _text(folder: str) -> str:
    try:
        return Path(folder, "entry_points.txt").read_text("utf-8", "replace")
    except OSError:
        return ""
