"""What a limit may be on, apart from a whole test: the kinds of scopes, and their names.

A plain pytest run loads it for the markers, so it is light.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Final

#: The kinds of scopes, as arguments of markers.
SCOPES: Final = ("op", "kernel", "module", "region")


def is_of_name(pattern: str, name: str) -> bool:
    """Whether this is the name, or the glob matches it; upper and lower case are distinct.

    Names may contain what is special in a glob: a name is always one of its own pattern.

    >>> is_of_name("aten::_flash*", "aten::_flash_attention"), is_of_name("step [1]", "step [1]")
    (True, True)
    """
    return pattern == name or fnmatchcase(name, pattern)
