"""What a limit's ``on`` names, and on which machines it is in force."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_torchprof.core.errors import SettingsError
from pytest_torchprof.work.devices import as_chip, check_target, is_on, known_chips


@pytest.mark.parametrize(
    ("on", "kind", "device", "capability", "expected"),
    [
        ("H100", "cuda", "NVIDIA H100 80GB HBM3", "sm_90", True),
        ("H100", "cuda", "NVIDIA H100 PCIe", "sm_90", True),
        ("H100 PCIe", "cuda", "NVIDIA H100 80GB HBM3", "sm_90", False),
        ("H100", "cuda", "NVIDIA H200", "sm_90", False),
        ("h100", "cuda", "NVIDIA H100 NVL", "sm_90", True),
        ("H100", "cuda", "NVIDIA H100 96GB OF TOMORROW", "sm_90", True),
        ("A10", "cuda", "NVIDIA A10", "sm_86", True),
        ("A10", "cuda", "NVIDIA A10G", "sm_86", False),
        ("A10", "cuda", "NVIDIA A100-SXM4-80GB", "sm_80", False),
        ("A100", "cuda", "NVIDIA A100-SXM4-80GB", "sm_80", True),
        ("RTX 4090", "cuda", "NVIDIA GeForce RTX 4090", "sm_89", True),
        ("RTX 4090", "cuda", "NVIDIA GeForce RTX 4090 D", "sm_89", False),
        ("MI300X", "cuda", "AMD Instinct MI300X", "gfx942", True),
        ("sm_90", "cuda", "NVIDIA H200", "sm_90", True),
        ("sm_90a", "cuda", "NVIDIA H200", "sm_90", True),
        ("sm_80", "cuda", "NVIDIA H200", "sm_90", False),
        ("gfx942", "cuda", "AMD Instinct MI300X", "gfx942", True),
        ("gfx90a", "cuda", "AMD Instinct MI300X", "gfx942", False),
        ("gfx90a", "cuda", "AMD Instinct MI210", "gfx90a", True),
        ("sm_90", None, None, None, False),
        ("H100", None, None, None, False),
        ("cuda", "cuda", "anything", None, True),
        ("xpu", "cuda", "anything", None, False),
        ("cpu", "cuda", "anything", None, False),
        ("cpu", None, None, None, True),
        ("cuda", None, None, None, False),
    ],
)
def test_where_a_limit_is_in_force(
    on: str, kind: str | None, device: str | None, capability: str | None, expected: bool
) -> None:
    check_target(on)
    assert expected == is_on(on, kind, device, lambda: capability)


@pytest.mark.thorough
def test_each_device_of_the_table_is_a_target_and_none_takes_it_for_another() -> None:
    for row in known_chips():
        check_target(row.name)
        driver = row.names[0]
        fits = [one.name for one in known_chips() if is_on(one.name, "cuda", driver, lambda: None)]
        assert row.name in fits
        others = [
            one for one in known_chips() if one.name in fits and dict(one.peaks) != dict(row.peaks)
        ]
        assert [] == others, (row.name, fits)


@pytest.mark.parametrize("on", ["H1000", "gpu", "", " ", "sm_", "sm90", "gfx", "*", "NVIDIA"])
def test_other_names_are_refused(on: str) -> None:
    with pytest.raises(SettingsError, match="is no chip of the table of devices"):
        check_target(on)


@pytest.mark.parametrize("device", [None, 5, ["T4"]])
def test_what_is_no_device_is_a_type_error(device: Any) -> None:
    with pytest.raises(TypeError, match='a device is a name, such as "H100 SXM", or a Device; not'):
        as_chip(device)
