"""How much memory a trace needs, and how much there is."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_torchprof.core.files import opened
from pytest_torchprof.trace.stream import free_bytes

if TYPE_CHECKING:
    from pytest_torchprof.fleet.sources import Source

#: A worker's memory without a trace: Python, numpy, and our modules.
BASE_BYTES = 64 * 2**20
#: Memory per byte of text until a worker has told its own, as ``python -m benchmarks fleet``
#: measures it: all columns, and what a question derives from them.
PER_BYTE = 2.0
#: Of the free memory, so much is used.
_SHARE = 0.9
#: Text per byte of gzip where the size of the text is unknown; traces have 12 to 20.
_GZIP_RATIO = 20
_GZIP = b"\x1f\x8b"


def text_bytes(source: Source) -> int:
    """The size of a trace's text: of gzip, what its last four bytes say if they can.

    They hold the size modulo 4 GiB, see RFC 1952, and that of the last member only.
    """
    if source.remote:
        return source.size * (_GZIP_RATIO if source.address.partition("::")[0][-3:] == ".gz" else 1)
    path = Path(source.address)
    try:
        if not path.is_file():
            return source.size
        with opened(path) as file:
            if file.read(2) != _GZIP:
                return source.size
            file.seek(-4, 2)
            said = int.from_bytes(file.read(4), "little")
    except (OSError, ValueError):
        return source.size
    sure = source.size < said and source.size * _GZIP_RATIO < 2**32
    return said if sure else source.size * _GZIP_RATIO


def peak_bytes() -> int:
    """The most memory that this process has had; 0 where the system does not tell."""
    with (
        suppress(OSError, ValueError, StopIteration),
        Path("/proc/self/status").open(encoding="ascii") as file,
    ):
        # What `resource` says includes the parent's at the time of the fork.
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM:"))
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak: int = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


class Budget:
    """Memory for the traces that are read at a time.

    ``needs`` is what a trace will need: the base, and its text times the largest factor that a
    worker has had until now.
    """

    def __init__(self, free: int | None = None) -> None:
        free = free_bytes() if free is None else free
        self._room = None if free is None else int(free * _SHARE)
        self._used: dict[int, int] = {}
        self._factor = PER_BYTE

    def needs(self, text: int) -> int:
        """Bytes that a worker needs for a trace with a text of this size."""
        return BASE_BYTES + int(text * self._factor)

    def allows(self, text: int) -> bool:
        """Whether a trace fits beside those that are being read; the only one always may try."""
        if not self._used or self._room is None:
            return True
        return sum(self._used.values()) + self.needs(text) <= self._room

    def take(self, task: int, text: int) -> None:
        """This task reads a trace of this size."""
        self._used[task] = self.needs(text)

    def give_back(self, task: int, text: int = 0, peak: int = 0) -> None:
        """The task has ended; its worker has had ``peak`` bytes at most."""
        self._used.pop(task, None)
        if text > BASE_BYTES:  # of small traces, the base is all there is to see
            self._factor = max(self._factor, (peak - BASE_BYTES) / text)
