"""The text of a stored trace, plain or gzip, in chunks of bounded size."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from pytest_torchprof.core.errors import TraceError
from pytest_torchprof.core.files import opened, system_message

#: Bytes that are read, unpacked and decoded at a time: the result fits into a cache.
CHUNK = 2**19

#: Up to this many chunks fit anywhere: checking the free memory takes longer.
_SMALL = 32

#: Called with the number of bytes read so far and the total.
ReadProgress = Callable[[int, int], None]

_GZIP = b"\x1f\x8b"
#: The first bytes of files that are mistaken for traces.
_FOREIGN = {
    b"PK\x03\x04": "a zip archive",
    b"BZh": "bzip2-compressed",
    b"\xfd7zXZ": "xz-compressed",
    b"\x28\xb5\x2f\xfd": "zstd-compressed",
    b"\x80": "a pickle",
    b"SQLite format 3": "a SQLite database",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
    b"version https://git-lfs": "a Git LFS pointer, not the file itself",
    b"<": "HTML or XML",
}
_SMALLER = "read it on a machine with more memory, or profile fewer steps"
#: What to give instead of a path that leads to nothing.
WANTED = "give a .json or .json.gz trace of torch.profiler, or a folder of them"
_EXPECTED = (
    "expected the JSON that torch.profiler's export_chrome_trace writes, or the same gzipped"
)


class Stream:
    """The chunks of one file's text.

    Attributes:
        source: the file's name, for messages.
        size: bytes of text so far.
        cut: whether compressed data broke off before its end.
    """

    def __init__(self, path: Path | str, progress: ReadProgress | None = None) -> None:
        self.source = str(path)
        self.size = 0
        self.cut = False
        self._path, self._progress = path, progress
        self._room: list[int | None] = []

    def __iter__(self) -> Iterator[bytes]:
        """Chunks of about `CHUNK` bytes, none of them empty.

        Raises:
            TraceError: unreadable, damaged, empty, clearly not JSON, or larger than memory.
        """
        try:
            for chunk in self._text():
                if not self.size:
                    self._check(chunk)
                self.size += len(chunk)
                self.check_room(self.size)
                yield chunk
        except MemoryError as error:
            raise self.beyond_memory() from error
        except (OSError, ValueError) as error:
            raise TraceError(
                f"{self.source}: cannot be read", system_message(error), WANTED
            ) from error
        if not self.size:
            raise TraceError(f"{self.source}: not a Chrome trace", "the file is empty", _EXPECTED)

    def _free(self) -> int | None:
        return free_bytes()

    def _text(self) -> Iterator[bytes]:
        with opened(Path(self._path)) as file:
            raw = self._raw(file)
            first = next(raw, b"")
            if first[:2] == _GZIP:
                yield from self._unpacked(first, raw)
                return
            total = os.fstat(file.fileno()).st_size
            self.check_room(total)
            if first:
                yield first.removeprefix(b"\xef\xbb\xbf")  # the byte order mark of Windows
            yield from raw

    def _raw(self, file: IO[bytes]) -> Iterator[bytes]:
        total, done = os.fstat(file.fileno()).st_size, 0
        # Allocating a whole chunk takes as long as reading a small file.
        while chunk := file.read(wanted := min(CHUNK, max(total - done + 1, 2**16))):
            done += len(chunk)
            if self._progress is not None:
                self._progress(done, max(total, done))
            yield chunk
            if len(chunk) < wanted:
                return

    def _unpacked(self, packed: bytes, raw: Iterator[bytes]) -> Iterator[bytes]:
        """Data after a complete member that is not a member itself is padding, and is skipped."""
        inflate = zlib.decompressobj(wbits=31)
        while packed:
            try:
                text = inflate.decompress(packed, CHUNK)
            except zlib.error as error:
                found = f"damaged gzip data, after {self.size:,} bytes of text: {error}"
                mend = "copy it again from the source, or profile again"
                raise TraceError(f"{self.source}: cannot be read", found, mend) from error
            if text:
                yield text
            if not inflate.eof:
                packed = inflate.unconsumed_tail or next(raw, b"")
                continue
            packed = inflate.unused_data or next(raw, b"")
            if packed[:2] != _GZIP:
                return
            inflate = zlib.decompressobj(wbits=31)
        if text := inflate.flush():
            yield text
        self.cut = True

    def _check(self, start: bytes) -> None:
        start = start.lstrip()
        if start[:1] in b"{[":
            return
        for magic, what in _FOREIGN.items():
            if start.startswith(magic):
                raise TraceError(f"{self.source}: not a Chrome trace", what, _EXPECTED)
        raise TraceError(f"{self.source}: not a Chrome trace", _beginning(start), _EXPECTED)

    def beyond_memory(self) -> TraceError:
        """The error for running out of memory."""
        found = f"not enough memory after {self.size:,} bytes of text"
        return TraceError(f"{self.source}: cannot be read", found, _SMALLER)

    def check_room(self, needed: int) -> None:
        """Check against the memory that was free at the start: a small file may unpack to any size.

        Raises:
            TraceError: it needs more bytes than that.
        """
        if needed <= _SMALL * CHUNK:
            return
        if not self._room:
            self._room.append(self._free())
        room = self._room[0]
        if room is not None and needed > room:
            raise TraceError(
                f"{self.source}: too large for this machine",
                f"it needs more than {needed:,} bytes of memory, and {room:,} were free",
                _SMALLER,
            )


class Text(Stream):
    """The chunks of a text that is already in memory."""

    def __init__(self, data: bytes | bytearray, source: str) -> None:
        super().__init__(source)
        self._data = data

    def _free(self) -> None:
        """No limit: the text is already in memory."""

    def _text(self) -> Iterator[bytes]:
        if len(self._data) <= CHUNK:
            yield bytes(self._data)
            return
        for at in range(0, len(self._data), CHUNK):
            yield bytes(memoryview(self._data)[at : at + CHUNK])


def _beginning(start: bytes) -> str:
    r"""What a text that is not a trace begins with.

    >>> _beginning(b"null\n"), _beginning(b"\x01\x02")
    ('it begins with "null", not with a JSON object or list', 'binary data')
    """
    text = start[:24].decode(errors="replace").splitlines()[0]
    # The cut may be within the last character.
    if not text.isprintable() or "\N{REPLACEMENT CHARACTER}" in text[:-1]:
        return "binary data"
    return f'it begins with "{text[:20].rstrip()}", not with a JSON object or list'


def free_bytes() -> int | None:
    """Memory that this process may still allocate; None if the system does not tell."""
    found = []
    try:
        with Path("/proc/meminfo").open(encoding="ascii") as file:
            found += [int(line.split()[1]) * 1024 for line in file if line[:12] == "MemAvailable"]
    except (OSError, ValueError):
        pass
    try:
        limit, used = (
            int(Path(f"/sys/fs/cgroup/memory.{name}").read_text("ascii"))
            for name in ("max", "current")
        )
        found.append(max(limit - used, 0))
    except (OSError, ValueError):  # no such group, or "max": without a limit
        pass
    return min(found, default=None)
