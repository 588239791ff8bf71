"""Before tests are collected, the name of a GPU is known, and nothing on it is initialized."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch

from pytest_torchprof.capture import machine as early
from pytest_torchprof.capture.machine import early_machine, probe_machine


class Nvml:
    """NVML with two GPUs, one of which is asked for by its UUID."""

    NAMES = ("NVIDIA H100 80GB HBM3", "NVIDIA H200")

    def __init__(self, *, starts: bool = True) -> None:
        self._starts = starts

    def nvmlInit_v2(self) -> int:  # noqa: N802 - NVML's names
        return 0 if self._starts else 9

    def nvmlShutdown(self) -> int:  # noqa: N802
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, number: int, _: Any) -> int:  # noqa: N802
        self._asked = number
        return 0 if number < len(self.NAMES) else 6

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, _: Any) -> int:  # noqa: N802
        self._asked = 1
        return 0 if uuid == b"GPU-1" else 6

    def nvmlDeviceGetName(self, _: Any, found: Any, size: int) -> int:  # noqa: N802
        assert size == ctypes.sizeof(found)
        found.value = self.NAMES[self._asked].encode()
        return 0


@pytest.fixture
def a_cuda_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(
        early, "probe_machine", lambda _: pytest.fail("this initializes the device")
    )
    monkeypatch.setattr(ctypes, "CDLL", lambda _: Nvml())


@pytest.mark.usefixtures("a_cuda_build")
@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, "NVIDIA H100 80GB HBM3"),
        ("1,0", "NVIDIA H200"),
        ("GPU-1", "NVIDIA H200"),
        ("GPU-7", None),
        ("7", None),
        ("", None),
    ],
)
def test_the_first_visible_device_is_named(
    visible: str | None, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = early_machine(1)
    assert (expected, "cuda" if expected else None) == (found.accelerator, found.device_type)
    assert (expected or "cpu") in found.key


@pytest.mark.usefixtures("a_cuda_build")
def test_without_a_driver_there_is_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: Nvml(starts=False))
    assert early_machine(1).accelerator is None

    def missing(_: str) -> None:
        raise OSError("libnvidia-ml.so.1: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert early_machine(1).accelerator is None


@pytest.mark.skipif(torch.version.cuda is not None, reason="needs a build without CUDA")
def test_another_build_is_as_torch_says() -> None:
    assert probe_machine(1) == early_machine(1)
