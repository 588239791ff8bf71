"""What was found in a trace, kept under a hash of its content, the question, and our code.

The files are pickles, as only this user's commands write and read them: a file of another user is
not read, nor one that is incomplete.
"""

from __future__ import annotations

import os
import pickle
import time
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import pytest_torchprof
from pytest_torchprof.core.cache_folder import cache_folder
from pytest_torchprof.core.files import replacing

if TYPE_CHECKING:
    import hashlib

_CHUNK = 2**20
_HASH_BYTES = 32
#: Files that were not used for so long are removed.
_KEPT_S = 30 * 24 * 3600
_SUFFIX = ".part"


def _hash(data: bytes = b"") -> hashlib.blake2b:
    try:
        from _blake2 import blake2b  # that of hashlib, which would load OpenSSL, 4 MiB, as well
    except ImportError:
        from hashlib import blake2b
    return blake2b(data, digest_size=_HASH_BYTES)


@lru_cache(maxsize=1)
def code_digest() -> str:
    """A hash of this package's sources, and of what else decides the last digit: numpy."""
    found = _hash(np.__version__.encode())
    root = Path(pytest_torchprof.__file__).parent
    for path in sorted(root.rglob("*.py")):
        found.update(f"\0{path.relative_to(root).as_posix()}\0".encode())
        found.update(path.read_bytes())
    return found.hexdigest()


def content_digest(path: Path) -> str:
    """A hash of a file's bytes.

    Raises:
        OSError: it cannot be read.
    """
    found = _hash()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            found.update(chunk)
    return found.hexdigest()


def default_folder() -> str | None:
    """Where parts are kept; None if the user has no home."""
    try:
        return str(cache_folder() / "parts")
    except RuntimeError:
        return None


class Cache:
    """Parts in a folder, of one question."""

    def __init__(self, folder: str, question: str) -> None:
        self._folder = Path(folder)
        self._question = question

    def path_of(self, content: str) -> Path:
        """The file of the part of a trace with this content."""
        key = f"{content}\0{self._question}\0{code_digest()}"
        name = _hash(key.encode()).hexdigest()
        return self._folder / f"{name}{_SUFFIX}"

    def load(self, content: str) -> tuple[Any] | None:
        """The part, in a tuple; None if there is none, or not a whole one of this user's."""
        path = self.path_of(content)
        try:
            with path.open("rb") as file:
                if hasattr(os, "geteuid") and os.fstat(file.fileno()).st_uid != os.geteuid():
                    return None
                digest, data = file.read(_HASH_BYTES), file.read()
            if _hash(data).digest() != digest:
                return None
            part = pickle.loads(data)  # noqa: S301 - see the module's docstring
        except Exception:  # noqa: BLE001 - whatever is wrong with it, it is made anew
            return None
        with suppress(OSError):
            os.utime(path)
        return (part,)

    def store(self, content: str, part: Any) -> None:
        """Keep a part; where that is not possible (a full disk), do nothing."""
        data = pickle.dumps(part, protocol=5)
        with suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with replacing(self.path_of(content)) as file:
                file.write(_hash(data).digest())
                file.write(data)


def remove_old(folder: str) -> None:
    """Remove the parts that were not used for a month."""
    oldest = time.time() - _KEPT_S
    with suppress(OSError), os.scandir(folder) as found:
        for entry in found:
            with suppress(OSError):
                if entry.name.endswith(_SUFFIX) and entry.stat().st_mtime < oldest:
                    os.unlink(entry.path)  # noqa: PTH108 - as scandir names it
