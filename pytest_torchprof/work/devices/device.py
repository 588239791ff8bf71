"""One accelerator, as a row of the tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

#: Keys of `Device.peaks`, slowest first on most chips.
DTYPES = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8")


@dataclass(frozen=True)
class Device:
    """The peak rates of one device, as torch numbers them.

    Args:
        name: the usual name.
        peaks: dense FLOP/s (`int8`: OP/s) by dtype of `DTYPES`; a missing one is unknown.
        bandwidth_bytes_per_s: of the device's own memory.
        memory_bytes: the nominal size, in units of 2**30; drivers report a little less.
        capability: of CUDA, as `(9, 0)`.
        architecture: of AMD, as `"gfx942"`.
        source: title and address of the source of the numbers.
        names: as drivers print it.
        multiprocessors: SMs or compute units of the whole device.
    """

    name: str
    peaks: Mapping[str, float] = field(hash=False)
    bandwidth_bytes_per_s: float
    memory_bytes: int | None = None
    capability: tuple[int, int] | None = None
    architecture: str | None = None
    source: str = ""
    names: tuple[str, ...] = ()
    multiprocessors: int | None = None


def make_row(
    *names: str,
    gb: int,
    gb_per_s: float,
    source: str,
    peaks: Mapping[str, float],
    cuda: tuple[int, int] | None = None,
    gfx: str | None = None,
    sms: int | None = None,
) -> Device:
    """A row of a table: memory in GiB, bandwidth in 10**9 B/s, peaks in 10**12 FLOP/s."""
    return Device(
        name=names[0],
        peaks=MappingProxyType({d: peaks[d] * 1e12 for d in DTYPES if d in peaks}),
        bandwidth_bytes_per_s=gb_per_s * 1e9,
        memory_bytes=gb * 2**30,
        capability=cuda,
        architecture=gfx,
        source=source,
        names=names,
        multiprocessors=sms,
    )
