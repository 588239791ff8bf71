"""Trace files that the user wants to keep, named after their tests."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_torchprof.core.files import system_message
from pytest_torchprof.core.structs import Frozen

if TYPE_CHECKING:
    from pytest_torchprof.core.settings import Settings

#: The longest stem of a trace's file name, in bytes.
_STEM_BYTES = 150

#: Writes a trace's file, compressed.
Export = Callable[[Path], None]


class Kept(Frozen, frozen=True):
    """Where a trace is kept; nowhere if it is not wanted, or because of these faults."""

    path: str | None = None
    faults: tuple[str, ...] = ()


class KeptTraces:
    """Keeps traces in the folder that the settings name."""

    def __init__(self, settings: Settings) -> None:
        self._folder = settings.traces
        self._all = settings.traces_of == "all"

    def keep(self, nodeid: str, export: Export | None, *, failed: bool) -> Kept:
        """Write the trace, if the settings ask for one of such a test."""
        if export is None or self._folder is None or not (failed or self._all):
            return Kept()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            kept = self._folder / f"{_file_stem(nodeid)}.pt.trace.json.gz"
            export(kept)
            return Kept(str(kept))
        except OSError as error:
            place = f"traces cannot be kept in {self._folder}"
            return Kept(
                faults=(f"{place}: {system_message(error)}; name another with --torchprof-traces",)
            )


def _file_stem(nodeid: str) -> str:
    """A file name for a test; with a hash if other tests could have the same name."""
    words = re.sub(r"[^\w.\[\]/:-]+", "_", nodeid)
    whole = words.replace("::", ".").replace("/", "+").replace(":", "_")
    # Most systems limit a file name to 255 bytes, and non-ASCII letters take several.
    stem = whole.encode(errors="replace")[-_STEM_BYTES:].decode(errors="ignore")
    file, _, names = stem.partition(".py.")
    names, bracket, parameters = names.partition("[")
    back = f"{file.replace('+', '/')}.py::{names.replace('.', '::')}{bracket}{parameters}"
    number = zlib.crc32(nodeid.encode(errors="backslashreplace"))
    return stem if back == nodeid else f"{stem}-{number:08x}"
