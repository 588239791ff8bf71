"""Baseline files: read, merge, prune, and replace as a whole.

A file belongs to one test file. Its layout is made for review in a diff and for merging: JSON,
sorted keys, one metric a line, unknown keys kept.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any

from pytest_torchprof.baseline.files import replace_file
from pytest_torchprof.errors import BaselineError
from pytest_torchprof.files import why
from pytest_torchprof.stats import Baseline

SCHEMA = "torchprof-baseline/1"
_FAMILY = SCHEMA.split("/", maxsplit=1)[0]
#: Tests → environments → sections → names; deeper values stay on one line.
_OPEN_LEVELS = 5
SECTIONS = ("metrics", "operators", "kernels", "findings", "times")


@dataclass(frozen=True)
class Entry:
    """What one test measured in one environment, to be written."""

    test: str
    environment: str
    baseline: Baseline
    times_changed: bool = False


@dataclass(frozen=True)
class Change:
    """One accepted number, before and now; None where there is none."""

    test: str
    metric: str
    before: float | None
    now: float | None


@dataclass
class Written:
    """What an update of one file did."""

    path: Path
    changed: dict[str, list[Change]] = field(default_factory=dict)
    added: list[str] = field(default_factory=list)
    pruned: list[str] = field(default_factory=list)


def path_for(test_file: Path, folder: str, root: Path) -> Path:
    """Where the baselines of a test file lie: ``__torchprof__/test_x.json`` beside it.

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


def orphans(test_folder: Path, folder: Path) -> list[Path]:
    """Baselines in ``folder`` of test files that are no longer in ``test_folder``."""
    return [
        path
        for path in sorted(folder.glob("*.json"))
        if not any((test_folder / name).exists() for name in (path.stem, f"{path.stem}.py"))
        and _is_ours(path)
    ]


def _is_ours(path: Path) -> bool:
    try:
        return load(path) is not None
    except BaselineError:
        return False


def load(path: Path) -> dict[str, Any] | None:
    """The whole file as decoded JSON, or None where there is none.

    Raises:
        BaselineError: unreadable, damaged, of another tool, or of a newer version of this one.
    """
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise BaselineError(f"baseline {path} cannot be read: {why(error)}") from error
    mend = "Restore it from version control, or delete it and accept anew."
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        if "<<<<<<<" in text and ">>>>>>>" in text:
            mend = "It has merge conflict markers: resolve them, or accept anew."
        found = f"{error.msg} at line {error.lineno}, column {error.colno}"
        raise BaselineError(f"baseline {path} is not JSON: {found}. {mend}") from error
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != SCHEMA:
        if isinstance(schema, str) and schema.startswith(f"{_FAMILY}/"):
            mend = "A newer pytest-torchprof wrote it: upgrade, or delete it and accept anew."
        raise BaselineError(
            f"baseline {path} has the schema {schema!r}, and {SCHEMA!r} was expected. {mend}"
        )
    tests = data.get("tests")
    well_formed = isinstance(tests, dict) and all(
        isinstance(environments, dict)
        and all(
            isinstance(entry, dict)
            and all(isinstance(entry.get(section, {}), dict) for section in SECTIONS)
            and all(_is_number(value) for value in _numbers_of(entry))
            for entry in environments.values()
        )
        for environments in tests.values()
    )
    if not well_formed:
        raise BaselineError(
            f"baseline {path} is malformed: 'tests' must map test → environment → sections, "
            f"and metrics be numbers. {mend}"
        )
    known: dict[str, Any] = data
    return known


def entry_of(data: Mapping[str, Any] | None, test: str, environment: str) -> Baseline | None:
    """What is accepted for this test in this environment, or None."""
    found = (data or {}).get("tests", {}).get(test, {}).get(environment)
    if found is None:
        return None
    return Baseline(**{section: found.get(section, {}) for section in SECTIONS})


def update(
    path: Path,
    entries: Iterable[Entry],
    *,
    existing: Collection[str] | None,
    environment: str = "",
) -> Written:
    """Merge entries into the file, and replace it whole; the old one stays if that fails.

    ``existing`` names all tests of the file after a full run of it in ``environment``, so that
    entries of others are pruned; None after a partial run. A test that is gone here may be there
    where there is another device, so those entries stay. Other environments and unknown keys are
    left as they are. An entry whose metrics and findings are as accepted is left too, times
    included: a time that wanders is not worth a line in a diff.

    Raises:
        BaselineError: the old file cannot be read, or the new one not be written.
    """
    data = load(path) or {"schema": SCHEMA, "tests": {}}
    tests = data["tests"]
    done = Written(path)
    for entry in entries:
        environments = tests.setdefault(entry.test, {})
        old = environments.get(entry.environment)
        new = {section: dict(getattr(entry.baseline, section)) for section in SECTIONS}
        # What was not measured this time, or is not known to this version, stays.
        new["metrics"] = {**(old or {}).get("metrics", {}), **new["metrics"]}
        if old is None:
            done.added.append(entry.test)
        elif not entry.times_changed and _same(old, new):
            continue
        else:
            done.changed[entry.test] = [
                change
                for section in (("metrics", "times") if entry.times_changed else ("metrics",))
                for change in _changes(entry.test, old.get(section, {}), new[section])
                if change.metric != "machine"
            ]
            done.changed[entry.test] += [
                replace(change, metric=f"findings[rule={change.metric}]")
                for change in _changes(entry.test, old.get("findings", {}), new["findings"])
            ]
        environments[entry.environment] = {**(old or {}), **new}
    if existing is not None:
        device = _device(environment)
        for name in [name for name in tests if name not in existing]:
            elsewhere = {k: v for k, v in tests[name].items() if _device(k) != device}
            if elsewhere != tests[name] or not elsewhere:
                tests[name] = elsewhere
                done.pruned.append(name)
            if not elsewhere:
                del tests[name]
    if done.added or done.changed or done.pruned:
        replace_file(
            path,
            render(data),
            what=f"baseline {path}",
            next_step="Free the folder or the disk, or name another with --torchprof-baselines",
        )
    return done


def _numbers_of(entry: Mapping[str, Any]) -> Iterator[object]:
    """All that has to be a number; times may hold more, and are compared only if they are."""
    for section in ("metrics", "kernels", "findings"):
        yield from entry.get(section, {}).values()
    for counts in entry.get("operators", {}).values():
        yield from counts.values() if isinstance(counts, dict) else [counts]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _device(environment: str) -> str:
    return environment.rpartition(", torch ")[0]


def _changes(test: str, old: Mapping[str, float], new: Mapping[str, float]) -> list[Change]:
    return [
        Change(test, name, old.get(name), new.get(name))
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]


def _same(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    return all(old.get(section, {}) == new[section] for section in SECTIONS if section != "times")


def render(data: Mapping[str, Any]) -> str:
    """The file's text: sorted keys, one metric a line, trailing newline."""
    return _dump(data, 0) + "\n"


def _dump(value: object, level: int) -> str:
    if not isinstance(value, dict) or not value or level >= _OPEN_LEVELS:
        return json.dumps(value, sort_keys=True, ensure_ascii=False)
    pad = "  " * (level + 1)
    lines = [
        f"{pad}{json.dumps(str(key), ensure_ascii=False)}: {_dump(value[key], level + 1)}"
        for key in sorted(value)
    ]
    return "{\n" + ",\n".join(lines) + "\n" + "  " * level + "}"
