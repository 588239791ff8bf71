"""What a limit's ``on`` names: a chip, a compute capability, or a type of device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_torchprof.core.errors import SettingsError
from pytest_torchprof.core.lazy_regex import late
from pytest_torchprof.work.devices.match import normalize_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pytest_torchprof.work.devices.device import Device

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
    from difflib import get_close_matches

    from pytest_torchprof.work.devices.table import DEVICES

    names = {word for device in DEVICES for word in (device.name, *device.name.split()[:1])}
    alike = get_close_matches(on, sorted({*names, *TYPES}), cutoff=0.5)
    raise SettingsError(
        f"on={on!r} is no chip of the table of devices, no compute capability such as sm_90, "
        f"and none of {', '.join(TYPES)}. "
        + (f"Did you mean {' or '.join(alike)}?" if alike else "docs/devices.md lists the chips.")
    )


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
        from difflib import get_close_matches

        from pytest_torchprof.work.devices.table import DEVICES

        names = sorted({word for one in DEVICES for word in (one.name, *one.name.split()[:1])})
        alike = get_close_matches(text, names, cutoff=0.5)
        raise SettingsError(
            f"no chip {text!r} is known",
            "",
            f"did you mean {' or '.join(alike)}?" if alike else "docs/devices.md lists the chips",
        )
    if (
        len(found) > 1
        and len({(*one.peaks.items(), one.bandwidth_bytes_per_s) for one in found}) > 1
    ):
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
    from pytest_torchprof.work.devices.device import Device

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
    from pytest_torchprof.work.devices.table import DEVICES

    wanted = normalize_name(on)
    if not wanted:
        return []
    exact = [one for one in DEVICES if wanted in _names(one)]
    return exact or [one for one in DEVICES if any(_begins(n, wanted) for n in _names(one))]


def _names(device: Device) -> Iterable[str]:
    return [normalize_name(name) for name in (device.name, *device.names)]


def _begins(name: str, words: str) -> bool:
    return f"{name} ".startswith(f"{words} ")
