"""Read baseline files: decode them, check their schema, resolve git's merge conflicts."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import field

from pytest_torchprof.core.errors import BaselineError
from pytest_torchprof.core.files import system_message
from pytest_torchprof.core.structs import Frozen

BASELINE_SCHEMA = "torchprof-baseline/1"
_FAMILY = BASELINE_SCHEMA.split("/", maxsplit=1)[0]
_LARGEST = 2.0**64
_MEND = "Restore it from version control, or delete it and accept again."
_UNREADABLE = "restore the file, or name another folder with --torchprof-baselines"
_ONCE = "A merge can cause this: keep one of the two, or delete the file and accept again."
_SHAPE = "'tests' must map test → environment → sections; metrics must be numbers"


class NumberSections(msgspec.Struct):
    """The parts of an entry, and of a region in it, that are compared."""

    metrics: dict[str, int | float] = {}
    operators: dict[str, dict[str, int | float]] = {}
    kernels: dict[str, int | float] = {}
    findings: dict[str, int | float] = {}
    own: dict[str, int | float] = {}
    unstable: dict[str, tuple[int | float, int | float]] = {}


class RegionSections(NumberSections):
    """The known parts of a named region of a test, entered ``laps`` times."""

    laps: int = 1
    times: dict[str, Any] = {}


class Sections(NumberSections):
    """The known parts of an entry; times may hold more, and are compared only if numbers."""

    times: dict[str, Any] = {}
    cpu_capability: str | None = None
    seed: int | None = None
    chip: str | None = None
    regions: dict[str, RegionSections] = {}
    ranks: dict[str, dict[str, int | float]] = {}


class _Document(msgspec.Struct):
    tests: dict[str, dict[str, dict[str, Any]]]


class Document(Frozen, frozen=True):
    """A file's content, unknown keys included.

    A file with merge conflict markers is read as both sides in one, ``merged``: all tests and
    environments of either side. ``disputed`` are (test, environment) pairs that differ between the
    sides; ours is kept.
    """

    data: dict[str, Any]
    merged: bool = False
    disputed: set[tuple[str, str]] = field(default_factory=set)


def read_baseline(path: Path, *, merging: bool = False) -> Document | None:
    """The whole file, or None where there is none.

    ``merging``: a file with conflict markers is read as both of its sides.

    Raises:
        BaselineError: unreadable, damaged, or written by another tool or a newer version.
    """
    try:
        kind = path.stat().st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):  # a pipe could be read for ever
            raise BaselineError(f"baseline {path} cannot be read", "it is not a file", _UNREADABLE)
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BaselineError(
            f"baseline {path} cannot be read", system_message(error), _UNREADABLE
        ) from error
    sides = _sides(data)
    if sides is None:
        return Document(_checked(path, data, _MEND))
    try:
        ours, theirs = (_checked(path, side, _MEND) for side in sides)
    except BaselineError:
        mend = "It has merge conflict markers, and one side is not a whole baseline: resolve them."
        return Document(_checked(path, data, mend))
    if not merging:
        mend = (
            "It has merge conflict markers: resolve them, or accept again, which keeps the tests "
        )
        return Document(_checked(path, data, f"{mend}of both sides."))
    disputed = set(_merge(ours["tests"], theirs["tests"]))
    return Document({**theirs, **ours}, merged=True, disputed=disputed)


def _checked(path: Path, text: bytes, mend: str) -> dict[str, Any]:
    data = _decoded(path, text.removeprefix(b"\xef\xbb\xbf"), mend)
    if not isinstance(data, dict):
        raise BaselineError(f"baseline {path} is {_short(data)}, not a JSON object. {mend}")
    if "schema" not in data:
        raise BaselineError(f"baseline {path} has no schema; expected {BASELINE_SCHEMA!r}. {mend}")
    schema = data["schema"]
    if schema != BASELINE_SCHEMA:
        if isinstance(schema, str) and schema.startswith(f"{_FAMILY}/"):
            mend = "A newer pytest-torchprof wrote it: upgrade, or delete it and accept again."
        raise BaselineError(
            f"baseline {path} has the schema {_short(schema)}; expected {BASELINE_SCHEMA!r}. {mend}"
        )
    found = _flaw(data)
    if found is not None:
        raise BaselineError(f"baseline {path} is malformed: {_SHAPE}. {found}. {mend}")
    repeated = _repeated(text, data)
    if repeated is not None:
        raise BaselineError(f"baseline {path} has {repeated}. {_ONCE}")
    known: dict[str, Any] = data
    return known


def _decoded(path: Path, text: bytes, mend: str) -> Any:
    try:
        text.decode()  # the decoder only checks text in quotes
        return msgspec.json.decode(text)
    except UnicodeDecodeError as error:
        found = f"cannot be read: {error.reason} at byte {error.start}"
    except RecursionError:
        found = "is not readable JSON: it is nested too deeply"
    except (msgspec.DecodeError, ValueError) as error:
        found = f"is not JSON: {_located(str(error), text)}"
    raise BaselineError(f"baseline {path} {found}. {mend}")


def _located(message: str, text: bytes) -> str:
    """The decoder's message, with line and column for its byte."""
    byte = re.search(r" \(byte (\d+)\)$", message)
    if byte is None:
        return message
    before = text[: int(byte[1])]
    line, column = before.count(b"\n") + 1, len(before) - before.rfind(b"\n")
    return f"{message[: byte.start()]} at line {line}, column {column}"


def _flaw(data: Mapping[str, Any]) -> str | None:
    """What violates the schema, and where; None for a valid file."""
    try:
        tests = msgspec.convert(data, _Document).tests
    except msgspec.ValidationError as error:
        return str(error)
    for test, environments in tests.items():
        for environment, entry in environments.items():
            try:
                sections = msgspec.convert(entry, Sections)
            except msgspec.ValidationError as error:
                found = str(error).replace(" - at `$.", ", at `")
            else:
                if all(abs(number) <= _LARGEST for number in _numbers(sections)):
                    continue
                found = "A number is out of range"
            return f"{found}, in {_short(test)}, {_short(environment)}"
    return None


def _repeated(text: bytes, data: Any) -> str | None:
    """A key that occurs twice in an object, and where: a decoder keeps only the last one.

    As few files have any, keys are first counted, in the text and in the decoded data.
    """
    try:
        if text.count(b'":') == msgspec.json.encode(data).count(b'":'):
            return None
    except OverflowError:  # an integer beyond 64 bits
        pass
    # Each object becomes a tuple of pairs; lists are not searched.
    left: list[tuple[str, Any]] = [("", json.loads(text, object_pairs_hook=tuple))]
    while left:
        place, pairs = left.pop()
        known = set[str]()
        for name, value in pairs:
            if name in known:
                return f"{_short(name)} twice{f', in {place[2:]}' if place else ''}"
            known.add(name)
            if isinstance(value, tuple):
                left.append((f"{place}, {_short(name)}", value))
    return None


def _numbers(sections: Sections) -> Iterator[int | float]:
    parts: list[NumberSections] = [sections, *sections.regions.values()]
    for part in parts:
        for section in (part.metrics, part.kernels, part.findings, part.own):
            yield from section.values()
        for counts in part.operators.values():
            yield from counts.values()
        for ends in part.unstable.values():
            yield from ends
    for metrics in sections.ranks.values():
        yield from metrics.values()
    for times in (sections.times, *(region.times for region in sections.regions.values())):
        yield from _within(times)


def _within(value: Any) -> Iterator[int | float]:
    """The numbers of a section that newer versions may nest as they like."""
    if isinstance(value, Mapping):
        for item in value.values():
            yield from _within(item)
    elif isinstance(value, list):
        for item in value:
            yield from _within(item)
    elif isinstance(value, int | float):
        yield value


def _short(value: object) -> str:
    """A foreign value, shortened to one line.

    >>> _short("a b"), _short(None), _short([1, 2]), _short({})
    ("'a b'", 'null', 'a list', 'an object')
    """
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    text = repr(value) if isinstance(value, str) else dumped(value)
    return text if len(text) <= 80 else f"{text[:80]}…"


# -------------------------------------------------------------------- both sides of a conflict


def _sides(text: bytes) -> tuple[bytes, bytes] | None:
    """Ours and theirs of a file with git's markers, in any of its styles; None without them."""
    ours, theirs = list[bytes](), list[bytes]()
    into: tuple[list[bytes], ...] = (ours, theirs)
    seen = False
    for line in text.splitlines(keepends=True):
        mark = line[:7]
        if mark == b"<<<<<<<":
            into, seen = (ours,), True
        elif mark == b"|||||||" and into == (ours,):
            into = ()
        elif mark == b"=======" and len(into) < 2:
            into = (theirs,)
        elif mark == b">>>>>>>":
            into = (ours, theirs)
        else:
            for side in into:
                side.append(line)
    return (b"".join(ours), b"".join(theirs)) if seen else None


def _merge(
    ours: dict[str, dict[str, Any]], theirs: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[str, str]]:
    """Add to our tests what only theirs has; yields test and environment where they differ."""
    for test, environments in theirs.items():
        known = ours.setdefault(test, {})
        for environment, entry in environments.items():
            if known.setdefault(environment, entry) != entry:
                yield test, environment


def storable_name(name: str) -> str:
    r"""A name as a file can hold it: parts of it may come from undecodable bytes.

    >>> print(storable_name("test_a[\udcff]"))
    test_a[\udcff]
    """
    return name.encode(errors="backslashreplace").decode()


def dumped(value: object) -> str:
    """One line of JSON, with sorted keys."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False)
