"""Read a user's file of additional accelerators."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from pytest_torchprof.core.errors import SettingsError, UnitError
from pytest_torchprof.core.files import opened, system_message
from pytest_torchprof.core.units import parse_quantity
from pytest_torchprof.work.devices.device import DTYPES, Device

#: A file that describes chips, or chips.
Peaks = str | Path | Sequence[Device]
_Value = TypeVar("_Value")

_KEYS = (
    "name",
    "match",
    "capability",
    "architecture",
    "memory",
    "multiprocessors",
    "bandwidth",
    "peaks",
    "source",
)
#: No table of devices is this large, and some special files never end.
_LARGEST = 2**24
#: Characters of a wrong value that an error shows.
_WIDEST = 40
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
            document = msgspec.json.decode(file.read(_LARGEST))
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
    return tuple(
        _Entry(f"{path}, device {number}", entry).device()
        for number, entry in enumerate(entries, start=1)
    )


class _Entry:
    """One device in the file; `place` begins every error message."""

    def __init__(self, place: str, entry: object) -> None:
        self.place = place
        self.entry = self._table(entry, _KEYS, "")
        for key in ("name", "bandwidth", "peaks"):
            if key not in self.entry:
                raise SettingsError(f"{place}: no {key}", self._has(), f"write {_EXAMPLE}")

    def device(self) -> Device:
        name = self._text("name", self.entry["name"])
        return Device(
            name=name,
            peaks=self._peaks(self.entry["peaks"]),
            bandwidth_bytes_per_s=self._quantity("bandwidth", self.entry["bandwidth"], "B/s"),
            memory_bytes=self._optional("memory", self._memory),
            capability=self._optional("capability", self._capability),
            architecture=self._optional("architecture", self._architecture),
            source=self._optional("source", self._text) or self.place,
            names=self._optional("match", self._names) or (name,),
            multiprocessors=self._optional("multiprocessors", self._count),
        )

    def _optional(self, key: str, read: Callable[[str, object], _Value]) -> _Value | None:
        value = self.entry.get(key)
        return None if value is None else read(key, value)

    def _table(self, value: object, known: tuple[str, ...], key: str) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            raise self._refusal(key, value, f"write an object with {', '.join(known)}")
        for word in value:
            if word not in known:
                import difflib

                close = difflib.get_close_matches(word[:40], known, n=3)
                hint = f"did you mean {' or '.join(close)}?" if close else f"use {', '.join(known)}"
                raise SettingsError(f"{self._at(key)}unknown key", _shown(word), hint)
        return value

    def _peaks(self, value: object) -> Mapping[str, float]:
        peaks = self._table(value, DTYPES, "peaks")
        if not peaks:
            raise self._refusal("peaks", value, f"give one or more of {', '.join(DTYPES)}")
        return MappingProxyType({dtype: self._peak(dtype, rate) for dtype, rate in peaks.items()})

    def _peak(self, dtype: str, rate: object) -> float:
        unit = "OP/s" if dtype == "int8" else "FLOP/s"
        return self._quantity(f"peaks.{dtype}", rate, unit)

    def _memory(self, key: str, value: object) -> int:
        return int(self._quantity(key, value, "B"))

    def _quantity(self, key: str, value: object, unit: str) -> float:
        if value is None or isinstance(value, bool | list | dict):
            raise self._refusal(key, value, f"write a number in {unit}, or a string with its unit")
        try:
            quantity = parse_quantity(value, unit)
        except UnitError as error:
            raise SettingsError(self._at(key) + error.what, error.found, error.next_step) from None
        if quantity < 1:
            raise self._refusal(key, value, "write what the datasheet says")
        return quantity

    def _names(self, key: str, value: object) -> tuple[str, ...]:
        names = value if isinstance(value, list) else [value]
        if not names:
            raise self._refusal(key, value, "write the names that the driver prints")
        return tuple(self._text(key, name) for name in names)

    def _text(self, key: str, value: object) -> str:
        if isinstance(value, str) and value.strip() and value.isprintable():
            return value.strip()
        raise self._refusal(key, value, "write a line of text")

    def _capability(self, key: str, value: object) -> tuple[int, int]:
        # A number would do for 9.0, but would turn 10.10 into 10.1.
        match = (
            re.fullmatch(r"([0-9]{1,3})\.([0-9]{1,3})", value) if isinstance(value, str) else None
        )
        if match is None:
            raise self._refusal(key, value, 'write it as a string, "9.0"')
        return int(match[1]), int(match[2])

    def _architecture(self, key: str, value: object) -> str:
        if isinstance(value, str) and re.fullmatch(r"gfx[0-9]{2,4}[0-9a-f]", value):
            return value
        raise self._refusal(key, value, 'write it as "gfx942"')

    def _count(self, key: str, value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31:
            return value
        raise self._refusal(key, value, "write a whole number above 0")

    def _refusal(self, key: str, value: object, next_step: str) -> SettingsError:
        return SettingsError(f"{self._at(key)}this cannot be", _shown(value), next_step)

    def _at(self, key: str) -> str:
        return f"{self.place}: {key}: " if key else f"{self.place}: "

    def _has(self) -> str:
        return f"it has {', '.join(self.entry)}" if self.entry else "it is empty"


def _shown(value: object) -> str:
    """A value as JSON, shortened."""
    if value and isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    import json

    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _WIDEST else f"{text[:_WIDEST]}…"
