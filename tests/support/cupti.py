"""Another client of CUPTI, as far as it takes to get in the way of torch's profiler."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

#: A module for tests within tests: switches records off as another client would.
CUPTI = """
import ctypes

with open("/proc/self/maps") as maps:
    PATH = next(line.split()[-1] for line in maps if "libcupti.so" in line)
LIBRARY = ctypes.CDLL(PATH)
# CUpti_ActivityKind
COPY, MEMSET, KERNEL, DRIVER, RUNTIME, CONCURRENT, SYNC = 1, 2, 3, 4, 5, 10, 38
KERNELS = (KERNEL, CONCURRENT)
EVERYTHING = (COPY, MEMSET, KERNEL, DRIVER, RUNTIME, CONCURRENT, SYNC)


def disable(kinds):
    for kind in kinds: LIBRARY.cuptiActivityDisable(kind)


def finalize(): return LIBRARY.cuptiFinalize()


HANDLE = ctypes.c_void_p()
CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
NOTHING = CALLBACK(lambda *_: None)


def subscribe(): return LIBRARY.cuptiSubscribe(ctypes.byref(HANDLE), NOTHING, None)
"""


def _is_loaded() -> bool:
    if not torch.cuda.is_available():  # the import of torch has loaded it
        return False
    try:
        return "libcupti.so" in Path("/proc/self/maps").read_text("utf-8")
    except OSError:
        return False


needs_cupti = pytest.mark.skipif(not _is_loaded(), reason="needs CUPTI: torch has not loaded it")
