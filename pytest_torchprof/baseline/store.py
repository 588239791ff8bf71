"""Store baselines: read, merge, prune, and replace files as a whole.

Each test file has one. Its layout suits reviewing diffs and merging: JSON, sorted keys, one metric
per line, unknown keys kept.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from pytest_torchprof.baseline.changes import (
    OF_REGION,
    OWN,
    RANKS,
    REGIONS,
    SECTIONS,
    UNSTABLE,
    Change,
    changes,
    region_changes,
    same,
)
from pytest_torchprof.baseline.document import (
    BASELINE_SCHEMA,
    Document,
    dumped,
    read_baseline,
    storable_name,
)
from pytest_torchprof.baseline.replace_file import alone, replace_file
from pytest_torchprof.core.errors import BaselineError
from pytest_torchprof.core.lazy_regex import late
from pytest_torchprof.core.results import CPU_SEPARATOR, Baseline, Range
from pytest_torchprof.core.structs import Frozen

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
    data: Mapping[str, Any] | None, test: str, environment: str, cpu_capability: str = ""
) -> Baseline | None:
    """The accepted numbers of this test in this environment, or None.

    Those of a CPU with these instructions, if there are any; else those of another.
    """
    entries = (data or {}).get("tests", {}).get(storable_name(test), {})
    found = entries.get(_of_cpu(environment, cpu_capability), entries.get(environment))
    return None if found is None else _baseline(found)


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


def _baseline(found: Mapping[str, Any]) -> Baseline:
    sections = {section: found.get(section, {}) for section in SECTIONS}
    regions = {
        name: Baseline(
            **{section: region.get(section, {}) for section in OF_REGION},
            laps=region.get("laps", 1),
            unstable=_ranges(region),
        )
        for name, region in found.get(REGIONS, {}).items()
    }
    return Baseline(
        **sections,
        cpu_capability=found.get(_CPU),
        regions=regions,
        own=found.get(OWN, {}),
        ranks=found.get(RANKS, {}),
        unstable=_ranges(found),
        seed=found.get(_SEED),
        chip=found.get(_CHIP),
    )


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
        done = _updated(path, found, entries, project)
        if existing is not None:
            names = {storable_name(name) for name in existing}
            _prune(done, found.data["tests"], names, _device(environment), project)
        if done.touched:
            replace_file(
                path,
                render(found.data),
                what=f"baseline {path}",
                next_step="free the folder or the disk, or name another with --torchprof-baselines",
            )
    return done


def _updated(path: Path, found: Document, entries: Iterable[Entry], project: str | None) -> Written:
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
        before = (old or {}).get("metrics", {})
        stay = {name: value for name, value in before.items() if name not in entry.dropped}
        new["metrics"] = {**stay, **new["metrics"]}
        for name, region in new.get(REGIONS, {}).items():
            kept = (old or {}).get(REGIONS, {}).get(name, {}).get("metrics", {})
            region["metrics"] = {**kept, **region["metrics"]}
        mine: dict[str, Any] = {"project": project} if project else {}
        accepted = entry.baseline
        conditions = {_CPU: accepted.cpu_capability, _SEED: accepted.seed, _CHIP: _chip(accepted)}
        mine |= {name: value for name, value in conditions.items() if value is not None}
        if old is None:
            done.added.append(entry.test)
        elif not entry.times_changed and same(old, new):
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
                change
                for section in ("metrics", OWN, *(["times"] if entry.times_changed else []))
                for change in changes(entry.test, old.get(section, {}), new.get(section, {}))
                if change.metric != "machine"
            ]
            done.changed[entry.test] += [
                replace(change, metric="findings", rule=change.metric)
                for change in changes(entry.test, old.get("findings", {}), new["findings"])
            ]
            done.changed[entry.test] += region_changes(
                entry.test, old.get(REGIONS, {}), new.get(REGIONS, {})
            )
        gone = {_CPU, _SEED, REGIONS, OWN, UNSTABLE, RANKS}
        environments[key] = {
            **{k: v for k, v in (old or {}).items() if k not in gone},
            **new,
            **mine,
        }
        done.touched = True
    done.disputed = sorted({test for test, _ in disputed})
    return done


def _chip(accepted: Baseline) -> str | None:
    """The chip of the accepted bounds; None without any."""
    parts = (accepted, *accepted.regions.values())
    return accepted.chip if any("bound_ms" in part.metrics for part in parts) else None


def _sections(baseline: Baseline) -> dict[str, Any]:
    """What is measured, as stored."""
    new: dict[str, Any] = {section: dict(getattr(baseline, section)) for section in SECTIONS}
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
    sections[UNSTABLE] = _pairs(region.unstable)
    return {"laps": region.laps or 1, **{name: part for name, part in sections.items() if part}}


def render(data: Mapping[str, Any]) -> str:
    """The file's text: sorted keys, one metric per line, trailing newline."""
    text = _dump(data, 0, _OPEN_LEVELS) + "\n"
    # Only a lone surrogate in a name cannot be encoded; see `readable`.
    return re.sub("[\ud800-\udfff]", lambda found: f"\\\\u{ord(found[0]):04x}", text)


def _dump(value: object, level: int, levels: int) -> str:
    if not isinstance(value, dict) or not value or level >= levels:
        return dumped(value)
    pad = "  " * (level + 1)
    lines = []
    for key in sorted(value):
        deeper = _MORE_IN_REGIONS if key == REGIONS and level == _OPEN_LEVELS - 2 else 0
        lines.append(f"{pad}{dumped(str(key))}: {_dump(value[key], level + 1, levels + deeper)}")
    return "{\n" + ",\n".join(lines) + "\n" + "  " * level + "}"
