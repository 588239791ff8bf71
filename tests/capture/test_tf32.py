"""The flag for TF32 goes into the trace, whichever of torch's ways has set it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from pytest_torchprof.capture import machine
from pytest_torchprof.capture.machine import allows_tf32


@pytest.fixture
def on_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(machine, "accelerator", lambda: "cuda")
    monkeypatch.setattr(torch.version, "hip", None)
    yield
    torch.set_float32_matmul_precision("highest")


@pytest.mark.usefixtures("on_cuda")
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("precision", "expected"), [("highest", False), ("high", True), ("medium", True)]
)
def test_the_older_setting_is_noted(precision: str, expected: bool) -> None:
    torch.set_float32_matmul_precision(precision)
    assert allows_tf32() is expected


@pytest.mark.usefixtures("on_cuda")
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("precision", "expected"), [("tf32", True), ("ieee", False)])
def test_the_newer_setting_is_noted_where_the_older_question_raises(
    precision: str, expected: bool
) -> None:
    if not hasattr(torch._C, "_get_fp32_precision_getter"):
        pytest.skip("this torch has the older setting only")
    torch.backends.cuda.matmul.fp32_precision = precision
    assert allows_tf32() is expected


@pytest.mark.usefixtures("on_cuda")
@pytest.mark.parametrize(("precision", "expected"), [("highest", False), ("high", True)])
def test_without_the_newer_setting_the_older_one_decides(
    monkeypatch: pytest.MonkeyPatch, precision: str, expected: bool
) -> None:
    monkeypatch.setattr(machine.real_torch(), "fp32_precision", None)
    torch.set_float32_matmul_precision(precision)
    assert allows_tf32() is expected


def test_other_devices_have_no_such_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "accelerator", lambda: "xpu")
    assert allows_tf32() is None


@pytest.mark.parametrize(
    ("precision", "expected"), [("none", None), ("ieee", False), ("tf32", True)]
)
def test_without_a_device_it_is_what_the_program_has_set(
    monkeypatch: pytest.MonkeyPatch, precision: str, expected: bool | None
) -> None:
    if not hasattr(torch._C, "_get_fp32_precision_getter"):
        pytest.skip("this torch has the older setting only")
    monkeypatch.setattr(machine, "accelerator", lambda: None)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(machine.real_torch(), "fp32_precision", lambda *_: precision)
    assert allows_tf32() is expected
