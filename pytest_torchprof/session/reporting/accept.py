"""Writing what was accepted: baseline files and inline expectations, in one process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_torchprof.baseline import inline, store
from pytest_torchprof.core.errors import BaselineError
from pytest_torchprof.core.units import format_pair, plural
from pytest_torchprof.render.failure import inline_changes
from pytest_torchprof.verdict.metrics import METRICS

if TYPE_CHECKING:
    from pytest_torchprof.session.judging.accept_offer import Offer


def accept(
    offers: Iterable[Offer],
    full: Mapping[str, Sequence[str]],
    *,
    environment: str,
    root: Path,
    project: str | None = None,
) -> tuple[list[str], list[str]]:
    """Write the offers of tests that passed; returns (what was done, what went wrong).

    ``full`` maps baseline files of test files that ran as a whole to all their tests, so that
    other entries are pruned; in a folder of several projects, only those of this ``project``.
    """
    done: list[str] = []
    errors: list[str] = []
    offers = list(offers)
    by_path: dict[str, list[store.Entry]] = {}
    for offer in offers:
        entry = store.Entry(
            offer.test, offer.environment, offer.baseline, offer.times_changed, offer.dropped
        )
        by_path.setdefault(offer.path, []).append(entry)
    for path in dict.fromkeys([*by_path, *full]):
        try:
            written = store.update(
                Path(path),
                by_path.get(path, []),
                existing=full.get(path),
                environment=environment,
                project=project,
            )
        except BaselineError as error:
            errors.append(str(error))
        else:
            units = {one.name: one.unit for offer in offers for one in offer.own}
            done += _lines(written, root, {**units, **{m.name: m.unit for m in METRICS.values()}})
    edits = [edit for offer in offers for edit in offer.edits]
    rewritten, problems = inline.apply(edits)
    done += [_rewritten(edit, root) for edit in sorted(rewritten, key=_place)]
    problems.sort(key=lambda problem: _place(problem.edit))
    errors += [f"{_site(problem.edit, root)} {problem.what}" for problem in problems]
    return done, errors


def _lines(written: store.Written, root: Path, units: Mapping[str, str]) -> list[str]:
    """What an accept changed, as old → new, for the terminal."""
    where = shown(str(written.path), root)
    lines = []
    if written.added:
        lines.append(f"{where}: {plural(len(written.added), 'new test')}")
    for test, changes in written.changed.items():
        parts = [
            f"{c.label} {' → '.join(format_pair(c.before, c.now, units[c.metric]))}"
            for c in changes
            if c.metric in units
        ]
        lines.append(f"{where}: {test}: {', '.join(parts) or 'operators, ranges, or times'}")
    lines += [f"{where}: {test} pruned here: the test is gone" for test in written.pruned]
    lines += [
        f"{where}: {test} has two entries, as it was in conflict and did not run: the first is kept"
        for test in written.disputed
    ]
    return lines


def _place(edit: inline.Edit) -> tuple[str, int]:
    return edit.file, edit.line


def _rewritten(edit: inline.Edit, root: Path) -> str:
    changes = inline_changes(edit.old, edit.text).items()
    values = ", ".join(f"{name} {before} → {now}" for name, (before, now) in changes)
    return f"{_site(edit, root)} rewritten{f': {values}' if values else ''}"


def _site(edit: inline.Edit, root: Path) -> str:
    return f"{shown(edit.file, root)}:{edit.line}"


def shown(path: str | Path, root: Path) -> str:
    """A path as shown to the user: relative to the root, if below it."""
    try:
        return str(Path(path).resolve().relative_to(root.resolve()))
    except ValueError:
        return str(path)
