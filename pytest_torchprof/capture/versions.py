"""Tell cheaply whether a dict has changed, without comparing its items.

CPython numbers the states of dicts: PEP 509, ``ma_version_tag``, "incremented for each change". It
exists up to 3.13. If it is missing, or not at the expected offset, it is not used.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

#: After the reference count, the type, and the number of entries.
_OFFSET = 24


def version_of(names: dict[str, Any]) -> ctypes.c_uint64 | None:
    """A counter whose ``value`` changes with each change of this dict, which must outlive it.

    None if this Python has none.
    """
    return _at(names) if counts_versions() else None


def _at(names: dict[str, Any]) -> ctypes.c_uint64:
    return ctypes.c_uint64.from_address(id(names) + _OFFSET)


@cache
def counts_versions() -> bool:
    """Whether the number is at the expected offset, and behaves as expected."""
    if sys.implementation.name != "cpython" or sys.getsizeof({}) < _OFFSET + 8:
        return False
    names: dict[str, Any] = {"a": 1, "b": 2}
    version = _at(names)
    seen = [version.value]
    others = [names] * 10  # a reference count would count these
    looked = names["a"], names.get("c"), dict(names), list(names), len(others)
    still = version.value == seen[0] and len(looked) > 0
    for change in ({"a": 3}, {"a": 1}, {"c": 4}, {"b": None}):
        names.update(change)
        seen.append(version.value)
    del names["c"]
    seen.append(version.value)
    names["c"] = 4
    seen.append(version.value)
    return still and len(set(seen)) == len(seen)
