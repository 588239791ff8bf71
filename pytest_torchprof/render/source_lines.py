"""Lines of the user's files, as services of CI name them: relative to the repository."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pytest_torchprof.core.lazy_regex import late

_LOCATION = late(r"(?P<path>[^<\n].*):(?P<line>[1-9][0-9]{0,8})", flags=re.DOTALL)


class SourceLine(NamedTuple):
    """A line of a file, from 1; the path is relative and has slashes."""

    path: str
    line: int


def source_line(location: str | None, operators: str | None, root: Path) -> SourceLine | None:
    """The line that a finding's ``location`` names, relative to ``root``.

    None if it is unknown or outside of ``root``, and for a path of ``operators`` instead of a line.

    >>> source_line("/src/train.py:21", None, Path("/src"))
    SourceLine(path='train.py', line=21)
    >>> source_line("train > aten::item", "train > aten::item", Path("/src"))
    """
    found = None if location is None else _LOCATION.fullmatch(location)
    if found is None or location == operators:
        return None
    path = found["path"]
    if os.path.isabs(path):  # noqa: PTH117 - it may be no path of this system
        path = os.path.relpath(path, root)
    path = posixpath.normpath(path.replace(os.sep, "/"))
    if path == ".." or path.startswith("../") or posixpath.isabs(path):
        return None
    return SourceLine(path, int(found["line"]))


def fingerprints(rows: Iterable[Mapping[str, Any]], root: Path) -> list[str]:
    """One per finding, in their order; the same in each run until the finding changes.

    It is of the rule, the file, the module, and the operators, not of the line, which moves as a
    file is edited, nor of counts and costs. Several of the same are numbered. Each has 64
    hexadecimal digits: SHA-256.
    """
    seen: dict[str, int] = {}
    made = []
    for row in rows:
        place = source_line(row["location"], row["path"], root)
        parts = [row["rule"], place.path if place else None, row["module"], row["path"]]
        parts += [str(row[column]) for column in ("rank", "trace") if column in row]
        key = repr(parts)
        number = seen[key] = seen.get(key, 0) + 1
        made.append(digest(f"{key}{number}"))
    return made


def digest(text: str) -> str:
    """The SHA-256 of any text, in hexadecimal digits."""
    import hashlib  # loads OpenSSL, which takes 3 MiB

    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()
