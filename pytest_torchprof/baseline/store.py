"""Baseline files: read, merge, prune, and replaced as a whole."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
from msgspec import field as struct_field
from msgspec.structs import replace

from pytest_torchprof.core.errors import BaselineError
from pytest_torchprof.core.files import locked, replacing, system_message
from pytest_torchprof.core.process import late
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.core.values import (
    CPU_SEPARATOR,
    Baseline,
    Detail,
    DetailRow,
    HeldRow,
    Range,
    of_rules,
)

# ---- Read baseline files: decode them, check their schema, resolve git's merge conflicts.

BASELINE_SCHEMA = "torchprof-baseline/2"
#: Version 1 has operators and kernels in its entries, and its ``ops`` are all calls.
_READABLE = ("torchprof-baseline/1", BASELINE_SCHEMA)
_FAMILY = BASELINE_SCHEMA.split("/", maxsplit=1)[0]
_LARGEST = 2.0**64
_MEND = "Restore it from version control, or delete it and accept again."
_UNREADABLE = "restore the file, or name another folder with --torchprof-baselines"
_ONCE = "A merge can cause this: keep one of the two, or delete the file and accept again."
_SHAPE = "'tests' must map test → environment → sections; metrics must be numbers"


class NumberSections(msgspec.Struct):
    """The parts of an entry, and of a region in it, that are compared."""

    metrics: dict[str, int | float] = {}
    zero: list[str] = []
    operators: dict[str, dict[str, int | float]] = {}
    kernels: dict[str, int | float] = {}
    findings: dict[str, int | float] = {}
    findings_in_tests: dict[str, int | float] = {}
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
    disputed: set[tuple[str, str]] = struct_field(default_factory=set)


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
    if schema not in _READABLE:
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
        own = part.findings_in_tests
        for section in (part.metrics, part.kernels, part.findings, own, part.own):
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


# ---- What of a test's accepted numbers an update changes.

OWN, REGIONS, UNSTABLE, RANKS, ZERO = "own", "regions", "unstable", "ranks", "zero"
IN_TESTS = "findings_in_tests"
SECTIONS = ("metrics", "findings", "times")
#: Those of a region.
OF_REGION = ("metrics", "findings", IN_TESTS, "own", "times")


class Change(Frozen, frozen=True):
    """One accepted number, before and now; None where there is none.

    ``rule`` is the one whose findings the metric counts, where it counts those of one, and
    ``region`` the named region that it is of.
    """

    test: str
    metric: str
    before: float | None
    now: float | None
    rule: str | None = None
    region: str | None = None

    @property
    def label(self) -> str:
        """The metric with its region and rule, as reports name it."""
        name = self.metric if self.rule is None else of_rules(self.metric, [self.rule])
        return name if self.region is None else f"{self.region}: {name}"


def metrics_of(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The accepted values of an entry or a region, those that are 0 included."""
    metrics = {**dict.fromkeys(entry.get(ZERO, ()), 0), **entry.get("metrics", {})}
    if "operators" in entry and "ops" in metrics:  # version 1 counted all calls
        metrics["dispatches"] = metrics.pop("ops")
    return metrics


def _stored_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The sections for these values: a reviewer reads those that are not 0."""
    zero = sorted(name for name, value in metrics.items() if value == 0)
    found: dict[str, Any] = {"metrics": {n: v for n, v in metrics.items() if v != 0}}
    return found | ({ZERO: zero} if zero else {})


def changes(test: str, old: Mapping[str, float], new: Mapping[str, float]) -> list[Change]:
    """Names whose numbers differ, with both."""
    return [
        Change(test, name, old.get(name), new.get(name))
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]


def region_changes(
    test: str, old: Mapping[str, Mapping[str, Any]], new: Mapping[str, Mapping[str, Any]]
) -> list[Change]:
    """Those of named regions."""
    return [
        replace(change, region=name)
        for name in sorted(old.keys() | new.keys())
        for of in (metrics_of, _own_of)
        for change in changes(test, of(old.get(name, {})), of(new.get(name, {})))
    ]


def _own_of(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    own: Mapping[str, Any] = entry.get(OWN, {})
    return own


def same(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether all but times are equal, in regions, too."""
    return _timeless(old) == _timeless(new)


def _timeless(entry: Mapping[str, Any]) -> dict[str, Any]:
    sections = {
        section: entry[section]
        for section in (*SECTIONS, IN_TESTS, ZERO, "operators", OWN, UNSTABLE, RANKS)
        if section != "times" and entry.get(section)
    }
    regions = {
        name: {section: part for section, part in region.items() if section != "times"}
        for name, region in entry.get(REGIONS, {}).items()
    }
    return {**sections, REGIONS: regions}


# ---- What explains the numbers, beside the file that a reviewer reads: a line for each test and
# environment.

_Counts: TypeAlias = dict[str, dict[str, int]]


class _OfRegion(msgspec.Struct, omit_defaults=True):
    operators: _Counts = {}
    kernels: dict[str, int] = {}


class _Line(_OfRegion, omit_defaults=True, kw_only=True):
    """The detail of an entry whose metrics and findings have this digest, ``numbers``."""

    test: str
    environment: str
    numbers: str
    rows: tuple[DetailRow, ...] = ()
    runs: dict[str, int] = {}
    calls: _Counts = {}
    held: tuple[HeldRow, ...] = ()
    grad: dict[str, int] | None = None
    regions: dict[str, _OfRegion] = {}


class _Name(msgspec.Struct):
    test: str
    environment: str


def detail_path(path: Path) -> Path:
    """The file that explains the numbers of a baseline file: ``test_x.detail.jsonl``."""
    return path.with_name(f"{path.stem}.detail.jsonl")


class Details:
    """The lines of a detail file; one that cannot be read is as good as none.

    A merge may leave a test's lines of both sides: the one for the accepted numbers holds.
    """

    def __init__(self, path: Path) -> None:
        self._path = detail_path(path)
        self._lines: dict[tuple[str, str], list[bytes]] = {}
        self._changed = False
        try:
            lines = self._path.read_bytes().splitlines()
        except OSError:
            lines = []
        for line in lines:
            try:
                name = msgspec.json.decode(line.decode(), type=_Name)
            except (msgspec.DecodeError, UnicodeDecodeError):
                self._changed = True
            else:
                self._lines.setdefault((name.test, name.environment), []).append(line)

    def of(self, test: str, environment: str, entry: Mapping[str, Any]) -> _Line | None:
        """The detail of this entry; None if there is none, or one for other numbers."""
        for line in self._lines.get((test, environment), ()):
            with suppress(msgspec.DecodeError, UnicodeDecodeError):
                found = msgspec.json.decode(line, type=_Line)
                if found.numbers == _digest(entry):
                    return found
        return None

    def put(self, test: str, environment: str, entry: Mapping[str, Any], new: Baseline) -> None:
        """Set the line of an entry."""
        detail = new.detail or Detail()
        line = _Line(
            test=test,
            environment=environment,
            numbers=_digest(entry),
            rows=tuple(sorted(detail.rows, key=lambda row: row.key)),
            runs=dict(detail.runs),
            calls={name: dict(one) for name, one in detail.calls.items()},
            held=tuple(sorted(detail.held, key=lambda row: (row.function, row.operator))),
            grad=None if detail.grad is None else dict(sorted(detail.grad.items())),
            operators={name: dict(row) for name, row in new.operators.items()},
            kernels=dict(new.kernels),
            regions={
                storable_name(name): _OfRegion(
                    {operator: dict(row) for operator, row in one.operators.items()},
                    dict(one.kernels),
                )
                for name, one in new.regions.items()
            },
        )
        lines = [_encoded(line)]
        self._changed |= self._lines.get((test, environment)) != lines
        self._lines[test, environment] = lines

    def write(self, known: Mapping[str, Mapping[str, Any]]) -> None:
        """Replace the file, with a line for each of these tests and environments that has one.

        Raises:
            BaselineError: it cannot be written.
        """
        kept: dict[tuple[str, str], bytes] = {}
        for (test, environment), lines in self._lines.items():
            if (entry := known.get(test, {}).get(environment)) is None:
                continue
            line = self.of(test, environment, entry) if lines[1:] else None
            kept[test, environment] = lines[0] if line is None else _encoded(line)
        if self._changed or list(map(len, self._lines.values())) != [1] * len(kept):
            text = b"".join(kept[key] + b"\n" for key in sorted(kept)).decode()
            replace_file(self._path, text, what=f"baseline {self._path}", next_step=_FREE)


def _encoded(line: _Line) -> bytes:
    """Only a lone surrogate in a name cannot be encoded as it is."""
    try:
        return msgspec.json.encode(line, order="sorted")
    except UnicodeEncodeError:
        return _encodable(dumped(msgspec.to_builtins(line))).encode()


def _digest(entry: Mapping[str, Any]) -> str:
    """What tells whether an entry still has the numbers that a line explains."""
    numbers = metrics_of(entry), entry.get("findings", {})
    return f"{zlib.crc32(dumped(numbers).encode(errors='backslashreplace')):08x}"


# ---- Replace a text file as a whole, with errors that name what could not be written.


@contextmanager
def alone(path: Path, *, make: bool = False) -> Iterator[None]:
    """Keep other torchprof processes from merging this file; ``make`` its folder if needed.

    Raises:
        BaselineError: another process does not release it.
    """
    if make:
        with suppress(OSError):  # the write reports it
            path.resolve().parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(path))
        except OSError as error:
            next_step = "stop that process, then accept again"
            raise BaselineError(
                f"{path} cannot be written", system_message(error), next_step
            ) from error
        yield


def replace_file(
    path: Path, text: str, *, what: str, next_step: str, encoding: str = "utf-8"
) -> None:
    """Write it atomically: a reader sees the old text or the new.

    Raises:
        BaselineError: it cannot be written; the old file is unchanged.
    """
    try:
        with replacing(path) as file:
            file.write(text.encode(encoding))
    except OSError as error:
        found = f"{system_message(error)} (nothing was changed)"
        raise BaselineError(f"{what} cannot be written", found, next_step) from error


_FREE = "free the folder or the disk, or name another with --torchprof-baselines"

# ---- Store baselines: read, merge, prune, and replace files as a whole.
#
# Each test file has one. Its layout suits reviewing diffs and merging: JSON, sorted keys, one
# metric per line, unknown keys kept.

#: Tests → environments → sections → names; deeper values stay on one line. Regions have sections of
#: their own.
_OPEN_LEVELS, _MORE_IN_REGIONS = 5, 2
#: ``cpu, torch 2.13``; of several ranks, their number is the rest.
_ENVIRONMENT = late(r"(?P<device>.+), torch (?P<torch>\d+(?:\.\d+)*)(?P<rest>.*)")
_CPU, _SEED, _CHIP = "cpu_capability", "seed", "chip"


class Entry(Frozen, frozen=True):
    """What one test measured in one environment, to be written; ``dropped`` metrics go."""

    test: str
    environment: str
    baseline: Baseline
    times_changed: bool = False
    dropped: tuple[str, ...] = ()


@dataclass
class Written:
    """What an update of one file did."""

    path: Path
    changed: dict[str, list[Change]] = field(default_factory=dict)
    added: list[str] = field(default_factory=list)
    pruned: list[str] = field(default_factory=list)
    #: Of tests that would else be added: the one with the same numbers that would be pruned.
    renamed: dict[str, str] = field(default_factory=dict)
    #: Tests that did not run and differ between the two sides of a merge conflict.
    disputed: list[str] = field(default_factory=list)
    #: Whether the file was written.
    touched: bool = False


def path_for(test_file: Path, folder: str, root: Path) -> Path:
    """The path of a test file's baselines: ``__torchprof__/test_x.json`` beside it.

    An absolute ``folder`` holds all of them, mirroring the tree below ``root``.
    """
    name = f"{test_file.stem if test_file.suffix == '.py' else test_file.name}.json"
    if not Path(folder).is_absolute():
        return test_file.parent / folder / name
    try:
        below = test_file.parent.resolve().relative_to(root.resolve())
    except ValueError:
        below = Path(*test_file.parent.resolve().parts[1:])
    return Path(folder) / below / name


def project_of(folder: str, root: Path) -> str | None:
    """The project whose entries are ours in a shared folder; None if the folder is not shared.

    It is a short digest of the root folder's path, so that the path itself stays private.
    """
    if not Path(folder).is_absolute():
        return None
    return hashlib.sha256(os.fsencode(root.resolve())).hexdigest()[:12]


def orphans(test_folder: Path, folder: Path, project: str | None = None) -> list[Path]:
    """Baselines in ``folder`` of test files that are no longer in ``test_folder``."""
    return [
        path
        for path in sorted(folder.glob("*.json"))
        if not any(
            os.path.exists(test_folder / name)  # noqa: PTH110 - never raises
            for name in (path.stem, f"{path.stem}.py")
        )
        and _is_ours(path, project)
    ]


def _is_ours(path: Path, project: str | None) -> bool:
    try:
        data = load(path)
    except BaselineError:
        return False
    if data is None or project is None:
        return data is not None
    return any(_may_prune(entry, project) for e in data["tests"].values() for entry in e.values())


def load(path: Path, *, merging: bool = False) -> dict[str, Any] | None:
    """The whole file as decoded JSON, or None where there is none; see `reading.read`.

    Raises:
        BaselineError: unreadable, damaged, of another tool, or of a newer version of this one.
    """
    found = read_baseline(path, merging=merging)
    return found.data if found is not None else None


def entry_of(
    data: Mapping[str, Any] | None,
    test: str,
    environment: str,
    cpu_capability: str = "",
    details: Details | None = None,
) -> Baseline | None:
    """The accepted numbers of this test in this environment, or None.

    Those of a CPU with these instructions, if there are any; else those of another.
    """
    name = storable_name(test)
    entries = (data or {}).get("tests", {}).get(name, {})
    key = _of_cpu(environment, cpu_capability)
    key = key if key in entries else environment
    found = entries.get(key)
    if found is None:
        return None
    return _baseline(found, details.of(name, key, found) if details is not None else None)


def entry_elsewhere(
    data: Mapping[str, Any] | None, test: str, environment: str
) -> tuple[str, Baseline] | None:
    """The accepted numbers with another torch, or on another chip, and that environment.

    The nearest: on the same device, with the newest torch.
    """
    here = _ENVIRONMENT.fullmatch(environment)
    found = []
    for key, entry in (data or {}).get("tests", {}).get(storable_name(test), {}).items():
        there = _ENVIRONMENT.fullmatch(key)
        if here is None or there is None or here["rest"] != there["rest"]:
            continue
        if (here["device"] == "cpu") == (there["device"] == "cpu") and key != environment:
            version = [int(part) for part in there["torch"].split(".")]
            found.append((there["device"] == here["device"], version, key, entry))
    if not found:
        return None
    *_, key, entry = max(found, key=lambda one: one[:3])
    return key, _baseline(entry)


def _baseline(found: Mapping[str, Any], line: _Line | None = None) -> Baseline:
    of_regions = line.regions if line is not None else {}
    regions = {
        name: Baseline(
            **_sections_of(region, OF_REGION, of_regions.get(name)),
            laps=region.get("laps", 1),
            unstable=_ranges(region),
        )
        for name, region in found.get(REGIONS, {}).items()
    }
    return Baseline(
        **_sections_of(found, (*SECTIONS, IN_TESTS), line),
        cpu_capability=found.get(_CPU),
        regions=regions,
        own=found.get(OWN, {}),
        ranks=found.get(RANKS, {}),
        unstable=_ranges(found),
        seed=found.get(_SEED),
        chip=found.get(_CHIP),
        detail=None
        if line is None
        else Detail(line.rows, line.runs, line.calls, line.held, line.grad),
    )


def _sections_of(
    entry: Mapping[str, Any], sections: Iterable[str], line: _OfRegion | None
) -> dict[str, Any]:
    """The parts of an entry or a region, with its operators and kernels."""
    found = {section: entry.get(section, {}) for section in sections}
    found["metrics"] = metrics_of(entry)
    for part in ("operators", "kernels"):  # version 1 has them in the entry
        found[part] = entry.get(part) or (getattr(line, part) if line is not None else {})
    return found


def _ranges(entry: Mapping[str, Any]) -> dict[str, Range]:
    return {label: Range(*ends) for label, ends in entry.get(UNSTABLE, {}).items()}


def _pairs(ranges: Mapping[str, Range]) -> dict[str, list[float]]:
    return {label: [one.low, one.high] for label, one in ranges.items()}


def _of_cpu(environment: str, cpu_capability: str) -> str:
    """The key of a further entry, on a CPU with other instructions than the first one's."""
    return f"{environment}, {cpu_capability}"


def update(
    path: Path,
    entries: Iterable[Entry],
    *,
    existing: Collection[str] | None,
    environment: str = "",
    project: str | None = None,
) -> Written:
    """Merge entries into the file, and replace it atomically; the old one stays if that fails.

    ``existing`` names all tests of the file after a full run of it in ``environment``, so that
    entries of other tests are pruned; None after a partial run. A test that is gone here may exist
    on another device, so entries of other devices stay; and so do those of another ``project`` in
    the same folder. Other environments and unknown keys are left as they are. An entry is also left
    as it is, including its times, if its metrics and findings are as accepted: changing times alone
    are not worth a diff. Numbers that depend on the CPU's instruction set have an entry for each
    that differs; if they change on one, the others are out of date, and go. A file with conflict
    markers becomes both sides in one.

    Two processes that update one file do so one after the other, and each keeps the other's
    changes.

    Raises:
        BaselineError: the old file cannot be read, or the new one cannot be written.
    """
    entries = list(entries)
    with alone(path, make=bool(entries)):
        found = read_baseline(path, merging=True) or Document(
            {"schema": BASELINE_SCHEMA, "tests": {}}
        )
        details = Details(path)
        done = _updated(path, found, entries, project, details)
        if existing is not None:
            names = {storable_name(name) for name in existing}
            before = dict(found.data["tests"])
            _prune(done, found.data["tests"], names, _device(environment), project)
            for entry in entries:
                if entry.test in done.added and (old := twin_of(before, done.pruned, entry)):
                    done.renamed[entry.test] = old
                    done.added.remove(entry.test)
                    done.pruned.remove(old)
        details.write(found.data["tests"])
        if done.touched:
            found.data["schema"] = BASELINE_SCHEMA
            replace_file(
                path,
                render(found.data),
                what=f"baseline {path}",
                next_step=_FREE,
            )
    return done


def _updated(
    path: Path,
    found: Document,
    entries: Iterable[Entry],
    project: str | None,
    details: Details,
) -> Written:
    tests, disputed = found.data["tests"], set(found.disputed)
    done = Written(path, touched=found.merged)
    for entry in entries:
        test = storable_name(entry.test)
        environments = tests.setdefault(test, {})
        disputed.discard((test, entry.environment))
        new = _sections(entry.baseline)
        key = _key(environments, entry)
        if key is None and same(first := environments[entry.environment], new):
            # The numbers hold on this CPU, too.
            known = {*_cpus(first), str(entry.baseline.cpu_capability)}
            environments[entry.environment] = {**first, _CPU: CPU_SEPARATOR.join(sorted(known))}
            done.touched = True
            continue
        key = key or _of_cpu(entry.environment, entry.baseline.cpu_capability or "")
        old = environments.get(key)
        # What was not measured this time, or is unknown to this version, stays.
        before = metrics_of(old or {})
        stay = {name: value for name, value in before.items() if name not in entry.dropped}
        new |= _stored_metrics({**stay, **metrics_of(new)})
        for name, region in new.get(REGIONS, {}).items():
            kept = metrics_of((old or {}).get(REGIONS, {}).get(name, {}))
            region.update(_stored_metrics({**kept, **metrics_of(region)}))
        mine: dict[str, Any] = {"project": project} if project else {}
        accepted = entry.baseline
        conditions = {_CPU: accepted.cpu_capability, _SEED: accepted.seed, _CHIP: _chip(accepted)}
        mine |= {name: value for name, value in conditions.items() if value is not None}
        if old is None:
            done.added.append(entry.test)
        elif not entry.times_changed and same(old, new):
            if _explains_other(details.of(test, key, old), entry.baseline):
                details.put(test, key, old, entry.baseline)
            if not entry.baseline.draws:  # the entry holds as it is
                mine.pop(_SEED, None)
            if mine.keys() - old.keys() or mine.get(_CHIP, old.get(_CHIP)) != old.get(_CHIP):
                environments[key] = {**old, **mine}
                done.touched = True
            continue
        else:
            if same(old, new):  # only times have changed
                mine |= {name: value for name, value in old.items() if name in (_CPU, _SEED)}
            else:
                key = _only_entry(environments, entry, key)
            done.changed[entry.test] = [
                *changes(entry.test, metrics_of(old), metrics_of(new)),
                *(
                    change
                    for section in (OWN, *(["times"] if entry.times_changed else []))
                    for change in changes(entry.test, old.get(section, {}), new.get(section, {}))
                    if change.metric != "machine"
                ),
            ]
            done.changed[entry.test] += [
                replace(change, metric="findings", rule=change.metric)
                for change in changes(entry.test, old.get("findings", {}), new["findings"])
            ]
            done.changed[entry.test] += region_changes(
                entry.test, old.get(REGIONS, {}), new.get(REGIONS, {})
            )
        gone = {_CPU, _SEED, REGIONS, OWN, UNSTABLE, RANKS, ZERO, IN_TESTS, "operators", "kernels"}
        environments[key] = {
            **{k: v for k, v in (old or {}).items() if k not in gone},
            **new,
            **mine,
        }
        details.put(test, key, environments[key], entry.baseline)
        done.touched = True
    done.disputed = sorted({test for test, _ in disputed})
    return done


def _explains_other(line: _Line | None, new: Baseline) -> bool:
    """Whether a line does not explain these numbers, or with other operators."""
    if line is None or not line.rows:
        return True
    return line.operators != new.operators or line.kernels != new.kernels


def twin_of(
    tests: Mapping[str, Mapping[str, Any]], among: Iterable[str], entry: Entry
) -> str | None:
    """The first of these tests that did the same work in this environment, if it did any."""
    new, environment = _sections(entry.baseline), entry.environment
    if not any(new["metrics"].values()):
        return None
    for name in among:
        for key, old in tests.get(name, {}).items():
            if (key == environment or key.startswith(_of_cpu(environment, ""))) and same(old, new):
                return name
    return None


def _chip(accepted: Baseline) -> str | None:
    """The chip of the accepted bounds; None without any."""
    parts = (accepted, *accepted.regions.values())
    return accepted.chip if any("bound_ms" in part.metrics for part in parts) else None


def _sections(baseline: Baseline) -> dict[str, Any]:
    """What is measured, as stored."""
    new: dict[str, Any] = {section: dict(getattr(baseline, section)) for section in SECTIONS}
    new |= _stored_metrics(new["metrics"])
    if baseline.findings_in_tests:
        new[IN_TESTS] = dict(baseline.findings_in_tests)
    if baseline.own:
        new[OWN] = dict(baseline.own)
    if baseline.ranks:
        new[RANKS] = {label: dict(one) for label, one in baseline.ranks.items()}
    if baseline.unstable:
        new[UNSTABLE] = _pairs(baseline.unstable)
    if baseline.regions:
        new[REGIONS] = {
            storable_name(name): _region(region) for name, region in baseline.regions.items()
        }
    return new


def _key(environments: Mapping[str, Any], entry: Entry) -> str | None:
    """The key of the accepted numbers for this CPU; None if there are only another's."""
    cpu = entry.baseline.cpu_capability
    if cpu is None:
        return entry.environment
    if (own := _of_cpu(entry.environment, cpu)) in environments:
        return own
    cpus = _cpus(environments.get(entry.environment, {}))
    return entry.environment if cpu in cpus or not cpus else None


def _cpus(entry: Mapping[str, Any]) -> list[str]:
    return str(entry[_CPU]).split(CPU_SEPARATOR) if entry.get(_CPU) else []


def _only_entry(environments: dict[str, Any], entry: Entry, key: str) -> str:
    """Remove the entries of other CPUs, and of this one; the key of the one to be written."""
    further = [
        name
        for name, other in environments.items()
        if name == _of_cpu(entry.environment, str(other.get(_CPU)))
    ]
    for name in {key, *further}:
        environments.pop(name, None)
    return entry.environment


def _prune(
    done: Written,
    tests: dict[str, dict[str, Any]],
    existing: Collection[str],
    device: str,
    project: str | None,
) -> None:
    for name in [name for name in tests if name not in existing]:
        kept = {
            environment: entry
            for environment, entry in tests[name].items()
            if _device(environment) != device or not _may_prune(entry, project)
        }
        if kept == tests[name] and kept:
            continue
        tests[name] = kept
        done.pruned.append(name)
        done.touched = True
        if not kept:
            del tests[name]


def _may_prune(entry: Mapping[str, Any], project: str | None) -> bool:
    """In a folder of several projects, only entries that are certainly ours."""
    return project is None or entry.get("project") == project


def _device(environment: str) -> str:
    return environment.rpartition(", torch ")[0]


def _region(region: Baseline) -> dict[str, Any]:
    """A region as stored: without sections that are empty."""
    sections: dict[str, Any] = {section: dict(getattr(region, section)) for section in OF_REGION}
    sections |= _stored_metrics(sections["metrics"])
    sections[UNSTABLE] = _pairs(region.unstable)
    return {"laps": region.laps or 1, **{name: part for name, part in sections.items() if part}}


def render(data: Mapping[str, Any]) -> str:
    """The file's text: sorted keys, one metric per line, trailing newline."""
    # Only a lone surrogate in a name cannot be encoded; see `readable`.
    return _encodable(_dump(data, 0, _OPEN_LEVELS) + "\n")


def _encodable(text: str) -> str:
    return re.sub("[\ud800-\udfff]", lambda found: f"\\\\u{ord(found[0]):04x}", text)


def _dump(value: object, level: int, levels: int) -> str:
    if not isinstance(value, dict) or not value or level >= levels:
        return dumped(value)
    pad = "  " * (level + 1)
    lines = []
    for key in sorted(value):
        deeper = _MORE_IN_REGIONS if key == REGIONS and level == _OPEN_LEVELS - 2 else 0
        # What a reviewer does not compare number by number is one line.
        whole = levels if key not in _ONE_LINE or level < _OPEN_LEVELS - 2 else level
        lines.append(f"{pad}{dumped(str(key))}: {_dump(value[key], level + 1, whole + deeper)}")
    return "{\n" + ",\n".join(lines) + "\n" + "  " * level + "}"


#: Sections of an entry that are written in one line.
_ONE_LINE = frozenset({"times", "findings", IN_TESTS, UNSTABLE, RANKS})
