"""Accelerators: peaks with their sources, which one a trace was recorded on, and occupancy."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from pytest_torchprof.core.errors import SettingsError, UnitError
from pytest_torchprof.core.files import opened, read_toml, system_message
from pytest_torchprof.core.process import late
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.core.units import parse_quantity
from pytest_torchprof.trace.arguments import whole_number

if TYPE_CHECKING:
    from collections.abc import Iterable


# ---- One accelerator, as a row of the tables.

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


@cache
def known_chips() -> tuple[Device, ...]:
    """The built-in accelerators: the rows of devices.toml, which says what its numbers are."""
    document = read_toml((Path(__file__).parent / "devices.toml").read_text("utf-8"))
    return tuple(
        Device(
            name=row["names"][0],
            peaks=MappingProxyType({dtype: peak * 1e12 for dtype, peak in row["peaks"].items()}),
            bandwidth_bytes_per_s=row["gb_per_s"] * 1e9,
            memory_bytes=row["gb"] * 2**30,
            capability=tuple(row["cuda"]) if "cuda" in row else None,
            architecture=row.get("gfx"),
            source=document["sources"][row["source"]],
            names=tuple(row["names"]),
            multiprocessors=row.get("sms"),
        )
        for row in document["chip"]
    )


# ---- Find the device that a trace ran on, from the properties that the driver reports.

#: Vendor words, which some drivers print and others do not.
_MAKERS = {"nvidia", "tesla", "geforce", "amd", "instinct", "r", "tm", "corporation"}
#: What AMD's drivers append to a whole device's name: its board, or that it is a guest's.
_BOARD = late(r"^(mi\d+[ax]?(?: mi250)?)(?: mcm)?(?: oam)?(?: ac mba)?(?: vf)?$")
#: Names that a driver gives to unknown devices.
_NO_NAME = {"", "graphics device", "radeon graphics"}
#: Reported memory relative to the nominal size: less, because of ECC and firmware, or a little
#: more, where the nominal size counts in powers of 1000.
_LEAST_MEMORY, _MOST_MEMORY = 0.85, 1.08
_LARGEST = 2**63 - 1


class _Facts(Frozen, frozen=True):
    """What one entry of `deviceProperties` says; None where a value is missing or malformed."""

    name: str
    capability: tuple[int, int] | None
    memory_bytes: int | None
    multiprocessors: int | None


def find(properties: object, extra: Sequence[Device] = ()) -> Device | None:
    """Return the device that one entry of a trace's `deviceProperties` describes, or None.

    The name decides, as drivers print it, in full: a laptop or export variant is not the big chip.
    Everything else in the entry must fit too, so a slice of a device (MIG, a compute partition) is
    unknown. Only where the name is empty or generic do compute capability and memory size decide,
    with the number of multiprocessors where it is known, and only if all devices that fit have the
    same peaks.

    Args:
        properties: Kineto's keys: `name`, `totalGlobalMem`, `computeMajor`, `computeMinor`,
            `numSms`. Each may be missing, a string, or anything else.
        extra: devices that take precedence over the table, usually from `read_peaks`.
    """
    if not isinstance(properties, Mapping):
        return None
    facts = _read_facts(properties)
    nameless = facts.name in _NO_NAME
    for devices in (extra, known_chips()):
        belong = [d for d in devices if _is_named(d, facts) or (nameless and _is_alike(d, facts))]
        candidates = [d for d in belong if _may_be(d, facts)]
        if candidates:
            return _agree(candidates)
    return None


@lru_cache(1024)  # each trace is compared with all names of all devices
def normalize_name(name: str) -> str:
    """The name without vendor, case and punctuation.

    >>> normalize_name("NVIDIA A100-SXM4-40GB"), normalize_name("Tesla T4")
    ('a100 sxm4 40gb', 't4')
    >>> normalize_name("AMD Instinct MI300X OAM"), normalize_name("NVIDIA GeForce RTX 4090 D")
    ('mi300x', 'rtx 4090 d')
    """
    words = re.split(r"[^0-9a-z]+", name.casefold())
    return _BOARD.sub(r"\1", " ".join(w for w in words if w and w not in _MAKERS))


def hip_capability(architecture: str) -> tuple[int, int] | None:
    """The compute capability that HIP reports for an architecture.

    >>> hip_capability("gfx942"), hip_capability("gfx90a"), hip_capability("gfx1100")
    ((9, 4), (9, 0), (11, 0))
    """
    match = re.fullmatch(r"gfx(\d{1,2})(\d)[0-9a-f]", architecture)
    return (int(match[1]), int(match[2])) if match else None


def _is_named(device: Device, facts: _Facts) -> bool:
    names = map(normalize_name, (device.name, *device.names))
    return facts.name != "" and facts.name in names


def _is_alike(device: Device, facts: _Facts) -> bool:
    """Whether enough is known of both to match them without a name."""
    known = facts.capability is not None and facts.memory_bytes is not None
    return known and _capability(device) is not None and device.memory_bytes is not None


def _may_be(device: Device, facts: _Facts) -> bool:
    """Whether no known property contradicts."""
    pairs = (
        (facts.capability, _capability(device)),
        (facts.multiprocessors, device.multiprocessors),
    )
    if any(given is not None and known is not None and given != known for given, known in pairs):
        return False
    if facts.memory_bytes is None or device.memory_bytes is None:
        return True
    return _LEAST_MEMORY <= facts.memory_bytes / device.memory_bytes <= _MOST_MEMORY


def _agree(devices: Sequence[Device]) -> Device | None:
    """The first, if all have the same numbers."""
    first = devices[0]
    peaks = (dict(first.peaks), first.bandwidth_bytes_per_s)
    same = all((dict(d.peaks), d.bandwidth_bytes_per_s) == peaks for d in devices)
    return first if same else None


def _capability(device: Device) -> tuple[int, int] | None:
    if device.capability is None and device.architecture is not None:
        return hip_capability(device.architecture)
    return device.capability


def _read_facts(properties: Mapping[object, object]) -> _Facts:
    name = properties.get("name")
    major = _whole(properties.get("computeMajor")) or None
    minor = _whole(properties.get("computeMinor"))
    return _Facts(
        name=normalize_name(name) if isinstance(name, str) else "",
        capability=None if major is None or minor is None else (major, minor),
        memory_bytes=_whole(properties.get("totalGlobalMem")) or None,
        multiprocessors=_whole(properties.get("numSms")) or None,
    )


def _whole(value: object) -> int | None:
    """A count given as a number or as text; None for anything else."""
    count = -1 if isinstance(value, bool) else whole_number(value)
    return count if 0 <= count <= _LARGEST else None


# ---- Read a user's file of additional accelerators.

#: A file that describes chips, or chips.
Peaks = str | Path | Sequence[Device]
#: No table of devices is this large, and some special files never end.
_LARGEST_COUNT = 2**24
_EXAMPLE = '{"name": "X1", "bandwidth": "3.35 TB/s", "peaks": {"bf16": "989.4 TFLOP/s"}}'


def as_chips(peaks: Peaks) -> tuple[Device, ...]:
    """The chips themselves, or those of the file; it raises the same as `read_peaks`."""
    return read_peaks(Path(peaks)) if isinstance(peaks, str | Path) else tuple(peaks)


def read_peaks(path: Path) -> tuple[Device, ...]:
    """Read the devices of a JSON file: one object, or a list of them.

    ```json
    {
      "name": "Example X1",
      "match": ["Example X1", "Example X1 PCIe"],
      "capability": "9.0",
      "architecture": "gfx942",
      "memory": "80 GiB",
      "multiprocessors": 132,
      "bandwidth": "3.35 TB/s",
      "peaks": {"fp32": "66.9 TFLOP/s", "bf16": "989.4 TFLOP/s", "int8": "1979 TOP/s"},
      "source": "datasheet of May"
    }
    ```

    `name`, `bandwidth` and `peaks` are required. `match` is the name as the driver prints it, where
    that is not `name`. If given, `capability` (CUDA), `architecture` (AMD), `memory` and
    `multiprocessors` must fit the trace too, and identify the device where the trace has no name. A
    number without a unit is in FLOP/s, B/s or B. Peaks are dense, for one or more of fp64, fp32,
    tf32, bf16, fp16, fp8, int8.

    Raises:
        SettingsError: the file cannot be read, is not JSON, or holds an impossible value.
    """
    try:
        with opened(path) as file:
            document = msgspec.json.decode(file.read(_LARGEST_COUNT))
    except OSError as error:
        what = f"the device peaks {path} cannot be read"
        raise SettingsError(what, system_message(error), "name a JSON file") from None
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise SettingsError(
            f"the device peaks {path} are not JSON", str(error), f"write {_EXAMPLE}"
        ) from None
    entries = document if isinstance(document, list) else [document]
    if not entries:
        raise SettingsError(f"{path} lists no device", "an empty list", f"write {_EXAMPLE}")
    places = (f"{path}, device {number}" for number in count(1))
    return tuple(_chip_of(entry, place) for entry, place in zip(entries, places, strict=False))


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    """One device in the file: quantities are numbers, or text with a unit."""

    name: str
    bandwidth: float | str
    peaks: dict[Literal["fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8"], float | str]
    match: str | list[str] | None = None
    capability: Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,3}\.[0-9]{1,3}$")] | None = None
    architecture: Annotated[str, msgspec.Meta(pattern=r"^gfx[0-9]{2,4}[0-9a-f]$")] | None = None
    memory: float | str | None = None
    multiprocessors: Annotated[int, msgspec.Meta(gt=0, lt=2**31)] | None = None
    source: str | None = None


def _chip_of(document: object, place: str) -> Device:
    try:
        entry = msgspec.convert(document, _Entry)
    except msgspec.ValidationError as error:
        keys = ", ".join(_Entry.__struct_fields__)
        raise SettingsError(f"{place} cannot be", str(error), f"its keys are {keys}") from None

    def quantity(key: str, value: float | str, unit: str) -> float:
        try:
            found = parse_quantity(value, unit)
        except UnitError as error:
            what = f"{place}: {key}: {error.what}"
            raise SettingsError(what, error.found, error.next_step) from None
        if found < 1:
            raise refusal(key, value, "write what the datasheet says")
        return found

    def refusal(key: str, value: object, mend: str) -> SettingsError:
        shown = msgspec.json.encode(value).decode()
        return SettingsError(f"{place}: {key}: this cannot be", shown, mend)

    names = [entry.match] if isinstance(entry.match, str) else entry.match or [entry.name]
    for key, texts in (("name", [entry.name]), ("match", names), ("source", [entry.source or "-"])):
        if not all(text.strip() and text.isprintable() for text in texts):
            raise refusal(key, texts, "write a line of text")
    if not entry.peaks:
        raise refusal("peaks", entry.peaks, f"give one or more of {', '.join(DTYPES)}")
    major, _, minor = (entry.capability or "").partition(".")
    return Device(
        name=entry.name.strip(),
        peaks=MappingProxyType({
            dtype: quantity(f"peaks.{dtype}", rate, "OP/s" if dtype == "int8" else "FLOP/s")
            for dtype, rate in entry.peaks.items()
        }),
        bandwidth_bytes_per_s=quantity("bandwidth", entry.bandwidth, "B/s"),
        memory_bytes=None if entry.memory is None else int(quantity("memory", entry.memory, "B")),
        capability=(int(major), int(minor)) if major else None,
        architecture=entry.architecture,
        source=entry.source or place,
        names=tuple(name.strip() for name in names),
        multiprocessors=entry.multiprocessors,
    )  # fmt: skip


# ---- What a limit's ``on`` names: a chip, a compute capability, or a type of device.

#: Types of devices, as torch calls them; ROCm's are ``cuda`` too.
TYPES: Final = ("cpu", "cuda", "xpu", "mps")
#: A compute capability as CUDA's compilers write it, or an architecture of AMD's.
_CAPABILITY = late(r"^(sm_\d{2,3}[a-z]?|gfx[0-9a-f]{3,4})$")
#: ``sm_90a`` is ``sm_90`` with instructions that later chips lack.
_ARCHITECTURE_ONLY = late(r"^(sm_\d+)[a-z]$")


def check_target(on: str) -> None:
    """Check that this names a device of the table, a compute capability, or a type.

    Raises:
        SettingsError: it does not.
    """
    if on in TYPES or _CAPABILITY.match(on) or _chips(on):
        return
    alike = _near(on, TYPES)
    raise SettingsError(
        f"on={on!r} is no chip of the table of devices, no compute capability such as sm_90, "
        f"and none of {', '.join(TYPES)}. "
        + (f"Did you mean {alike}?" if alike else "docs/devices.md lists the chips.")
    )


def _near(text: str, others: tuple[str, ...] = ()) -> str:
    """Which chips, or other words, this may have meant."""
    from difflib import get_close_matches

    names = {word for one in known_chips() for word in (one.name, *one.name.split()[:1])}
    alike = get_close_matches(text, sorted({*names, *others}), cutoff=0.5)
    return " or ".join(alike)


def chip_named(text: str) -> Device:
    """The one device of the table with this name, or of which it is the beginning.

    Of several with the same rates, the first in the table.

    Raises:
        SettingsError: there is none, with the near matches, or there are several.

    >>> chip_named("H100 SXM").name, chip_named("v100-sxm2-32gb").name
    ('H100 SXM', 'V100-SXM2-32GB')
    """
    found = _chips(text)
    if not found:
        alike = _near(text)
        hint = f"did you mean {alike}?" if alike else "docs/devices.md lists the chips"
        raise SettingsError(f"no chip {text!r} is known", "", hint)
    if _agree(found) is None:
        names = [one.name for one in found]
        raise SettingsError(f"{text!r} is one of {', '.join(names)}", "", "name one of them")
    return found[0]


def is_of_chip(on: str, chip: str | None) -> bool | None:
    """Whether a limit for these devices is one for this chip of the table; None if not for chips.

    >>> is_of_chip("H100", "H100 SXM"), is_of_chip("H100", "T4"), is_of_chip("sm_90", "T4")
    (True, False, None)
    """
    named = [] if on in TYPES else _chips(on)
    return any(one.name == chip for one in named) if named else None


def as_chip(device: object) -> Device:
    """The device itself, or the one with this name; it raises the same as `chip_named`.

    Raises:
        TypeError: neither a device nor a name.
    """
    if not isinstance(device, str | Device):
        given = type(device).__name__
        raise TypeError(f'a device is a name, such as "H100 SXM", or a Device; not {given}')
    return chip_named(device) if isinstance(device, str) else device


def is_on(
    on: str, device_type: str | None, device: str | None, capability: Callable[[], str | None]
) -> bool:
    """Whether a limit for these devices is in force on this machine.

    ``device_type`` and ``device`` are torch's type of accelerator and its name as the driver prints
    it, None without one; ``capability`` gives its compute capability or architecture.

    >>> is_on("H100", "cuda", "NVIDIA H100 80GB HBM3", lambda: "sm_90")
    True
    >>> is_on("cpu", None, None, lambda: None), is_on("A10", "cuda", "NVIDIA A100", lambda: None)
    (True, False)
    """
    if on in TYPES:
        return on == (device_type or "cpu")
    if device is None:
        return False
    if _CAPABILITY.match(on):
        return capability() == _ARCHITECTURE_ONLY.sub(r"\1", on)
    name, chips = normalize_name(device), _chips(on)
    exact = any(normalize_name(on) in _names(one) for one in chips)
    if not exact and _begins(name, normalize_name(on)):
        return True  # of the family, but not in the table
    return any(name in _names(one) for one in chips)


def _chips(on: str) -> list[Device]:
    """The devices of this name, or else all whose names begin with these words."""
    wanted = normalize_name(on)
    if not wanted:
        return []
    exact = [one for one in known_chips() if wanted in _names(one)]
    return exact or [one for one in known_chips() if any(_begins(n, wanted) for n in _names(one))]


def _names(device: Device) -> Iterable[str]:
    return [normalize_name(name) for name in (device.name, *device.names)]


def _begins(name: str, words: str) -> bool:
    return f"{name} ".startswith(f"{words} ")


# ---- How many blocks of a kernel fit on a multiprocessor of an NVIDIA GPU at the same time.
#
# All formulas and constants are those of NVIDIA's occupancy calculator, ``cuda_occupancy.h`` of
# CUDA 13.0 (`cudaOccMaxActiveBlocksPerMultiprocessor`): the least of the limits by warps,
# registers, shared memory and blocks. The result is an upper bound: a smaller carve-out of shared
# memory, or clusters of blocks that must fit together, can leave room for fewer.

if TYPE_CHECKING:
    _Ints = npt.NDArray[np.int64]

#: Registers are allocated to a warp in this unit, since compute capability 3.0.
_REGISTERS_UNIT: Final = 256
#: Warps of other sizes belong to other vendors, for which nothing here is known.
_WARP: Final = 32
#: Larger values of a property are not believed.
_LARGEST_UNITS: Final = 2**31 - 1


class Multiprocessor(Frozen, frozen=True):
    """What one multiprocessor has, and how many of them there are.

    Attributes:
        count: multiprocessors of the device.
        capability: the compute capability, such as ``(9, 0)``.
        threads: that can be resident at once.
        registers: of 32 bits.
        shared_bytes: shared memory.
    """

    count: int
    capability: tuple[int, int]
    threads: int
    registers: int
    shared_bytes: int

    @property
    def most_blocks(self) -> int | None:
        """The most resident blocks of any size; None for an unknown capability."""
        major, minor = self.capability
        known = _MOST_BLOCKS.get(self.capability, _MOST_BLOCKS.get((major, -1)))
        return known if minor >= 0 else None


#: Resident blocks by compute capability; -1 stands for other minor numbers.
#: Source: `cudaOccMaxBlocksPerMultiprocessor`.
_MOST_BLOCKS: Final[Mapping[tuple[int, int], int]] = {
    (5, -1): 32,
    (6, -1): 32,
    (7, -1): 32,
    (7, 5): 16,
    (8, -1): 16,
    (8, 0): 32,
    (8, 9): 24,
    (9, -1): 32,
    (10, -1): 32,
    (10, 1): 24,
    (11, -1): 32,
    (11, 0): 24,
    (12, -1): 24,
}


def multiprocessor(properties: object, device: Device | None = None) -> Multiprocessor | None:
    """The multiprocessor that one entry of Kineto's `deviceProperties` describes.

    Args:
        properties: of the driver.
        device: a row of the table of devices, for the number of multiprocessors if it is missing.

    Returns:
        None where a property is missing or malformed, and for devices of other vendors.
    """
    if not isinstance(properties, Mapping) or (device is not None and device.architecture):
        return None
    count = _positive(properties, "numSms") or (device and device.multiprocessors)
    threads = _positive(properties, "maxThreadsPerMultiprocessor")
    registers = _positive(properties, "regsPerMultiprocessor")
    shared = _positive(properties, "sharedMemPerMultiprocessor")
    major, minor = (whole_number(properties.get(f"compute{part}")) for part in ("Major", "Minor"))
    if not (count and threads and registers and shared):
        return None
    if _positive(properties, "warpSize") != _WARP or (major, -1) not in _MOST_BLOCKS:
        return None
    return Multiprocessor(count, (major, minor), threads, registers, shared)


def _positive(properties: Mapping[Any, Any], key: str) -> int | None:
    value = whole_number(properties.get(key))
    return value if 0 < value <= _LARGEST_UNITS else None


def resident_blocks(
    sm: Multiprocessor, threads: _Ints, registers: _Ints, shared_bytes: _Ints
) -> _Ints:
    """How many blocks fit on one multiprocessor at the same time, for each of several launches.

    Args:
        sm: the multiprocessor.
        threads: of a block.
        registers: of a thread.
        shared_bytes: of a block, static and dynamic.

    Returns:
        0 where not even one block fits by these numbers, and -1 where one of them is negative, or
        0 for threads or registers.

    >>> h100 = Multiprocessor(132, (9, 0), 2048, 65536, 233472)
    >>> blocks = [np.array(values) for values in ([128, 384, 1024], [32, 168, 64], [0, 100_000, 0])]
    >>> resident_blocks(h100, *blocks).tolist()
    [16, 1, 1]
    """
    most = sm.most_blocks
    known = (threads > 0) & (registers > 0) & (shared_bytes >= 0)
    if most is None:
        return np.full(len(threads), -1, np.int64)
    major, minor = sm.capability
    warps = -(-np.maximum(threads, 1) // _WARP)
    by_warps = sm.threads // _WARP // warps
    # Each partition of the multiprocessor has its own registers, for whole warps.
    partitions = 2 if (major, minor) == (6, 0) else 4
    per_warp = _rounded_up(np.maximum(registers, 1) * _WARP, _REGISTERS_UNIT)
    by_registers = sm.registers // partitions // per_warp * partitions // warps
    # The driver reserves 1 KiB of each block's shared memory since compute capability 8.0.
    reserved, unit = (1024, 128) if major >= 8 else (0, 256)
    per_block = _rounded_up(np.maximum(shared_bytes, 0) + reserved, unit)
    by_shared = np.where(per_block > 0, sm.shared_bytes // np.maximum(per_block, 1), most)
    fit = np.minimum(np.minimum(by_warps, by_registers), np.minimum(by_shared, most))
    return np.where(known, fit, -1)


def _rounded_up(values: _Ints, unit: int) -> _Ints:
    rounded: _Ints = -(-values // unit) * unit
    return rounded
