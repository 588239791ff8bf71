"""Seeds for the random generators of the process: Python's, NumPy's, and torch's on all devices."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

#: Backends whose modules keep a generator for each device.
_BACKENDS = ("cuda", "xpu")


def seed_for(number: int, name: str, attempt: int = 0) -> int:
    """The seed of a test's runs: 63 bits of a digest, the same on every machine.

    ``name`` is the test's; ``attempt`` counts the seeds that were tried before.

    >>> seed_for(0, "test_a.py::test_a") == seed_for(0, "test_a.py::test_a")
    True
    >>> seed_for(0, "test_a.py::test_a") == seed_for(0, "test_a.py::test_b")
    False
    """
    text = f"{number} {attempt} {name}".encode(errors="backslashreplace")
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1


def accelerators() -> Iterator[Any]:
    """The modules of backends in use, such as ``torch.cuda``; none is initialized by asking."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    own = getattr(torch._C, "_get_privateuse1_backend_name", str)()
    for name in (*_BACKENDS, own):
        module = getattr(torch, name, None) if name else None
        started = getattr(module, "is_initialized", None)
        if started is not None and hasattr(module, "get_rng_state_all") and started():
            yield module


def seed_generators(
    seed: int, *, python: bool = True, numpy: bool = True, torch: bool = True
) -> None:
    """Seed torch's generators on all devices in use, Python's, and NumPy's if it is loaded.

    A generator that somebody made, such as a `torch.Generator`, stays as it is.
    """
    if python:
        random.seed(seed)
    room = sys.modules.get("numpy.random") if numpy else None
    if room is not None:
        with suppress(AttributeError, TypeError):  # another bit generator, which has no such seed
            room.seed(seed % 2**32)
    loaded = sys.modules.get("torch") if torch else None
    if loaded is not None:
        loaded.default_generator.manual_seed(seed)
        for module in accelerators():
            module.manual_seed_all(seed)
        if _has_mps(loaded):
            loaded.mps.manual_seed(seed)


def mps() -> Any | None:
    """``torch.mps`` on a machine that has Metal; else None."""
    torch = sys.modules.get("torch")
    return torch.mps if torch is not None and _has_mps(torch) else None


def _has_mps(torch: Any) -> bool:
    return bool(getattr(torch, "_C", None) and getattr(torch._C, "_has_mps", False))
