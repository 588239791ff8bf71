"""The machine as far as it can be told while test files may still choose their device.

CUDA reads ``CUDA_VISIBLE_DEVICES`` when it is initialized, and torch the allocator's configuration.
Files that pytest has not collected yet may set both, so the name of the GPU comes from NVML, which
initializes nothing.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import Any

from pytest_torchprof.capture.machine import Machine, described, imported_torch, probe_machine

#: NVML_DEVICE_NAME_V2_BUFFER_SIZE of nvml.h.
_NAME_BYTES = 96


def early_machine(threads: int | None) -> Machine:
    """The machine, see `probe_machine`; whether torch can use the GPU is not known yet.

    Raises:
        CaptureError: torch is not installed or cannot be imported.
    """
    torch = imported_torch()
    if not torch.version.cuda or torch.cuda.is_initialized():
        return probe_machine(threads)
    name = None
    with suppress(OSError, AttributeError, ValueError):  # no driver, or another torch
        visible = torch.cuda._parse_visible_devices()
        name = _name(visible[0]) if visible else None
    return described(name, "cuda" if name else None, threads)


def _name(device: int | str) -> str | None:
    """The name of a GPU by its number or UUID."""
    library: Any = ctypes.CDLL("libnvidia-ml.so.1")
    if library.nvmlInit_v2():
        return None
    handle, found = ctypes.c_void_p(), ctypes.create_string_buffer(_NAME_BYTES)
    if isinstance(device, int):
        failed = library.nvmlDeviceGetHandleByIndex_v2(device, ctypes.byref(handle))
    else:
        failed = library.nvmlDeviceGetHandleByUUID(device.encode(), ctypes.byref(handle))
    if not failed:
        failed = library.nvmlDeviceGetName(handle, found, _NAME_BYTES)
    library.nvmlShutdown()
    return None if failed else found.value.decode(errors="replace")
