"""Runs rules over a trace: what they find, and which of them could not be checked, and why."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from pytest_torchprof.analysis.device import device_gap
from pytest_torchprof.rules.places import Placing, by_operator
from pytest_torchprof.rules.rule import Matches, Rule, matches_of
from pytest_torchprof.stats import Finding

if TYPE_CHECKING:
    from pytest_torchprof.events import Trace

_NO_SHAPES = "recorded without shapes (record_shapes=True gives them)"
_NOT_LIVE = "only a live test measures it"


@dataclass(frozen=True)
class Checked:
    """Matches by rule; ``unchecked`` and ``errors`` by rule say why there are none.

    ``unsettled``: why another run of the same test may have more matches, if it may.
    """

    trace: Trace
    matches: Mapping[Rule, Matches]
    unchecked: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    unsettled: str | None = None

    @property
    def counts(self) -> dict[str, int]:
        """How often each rule matched, of those that did."""
        return {rule.code: _total(found) for rule, found in self.matches.items()}

    def findings(self, placing: Placing = by_operator) -> tuple[Finding, ...]:
        """One finding a rule, message and place; the costliest first."""
        found = [
            f for rule, m in self.matches.items() for f in _grouped(self.trace, rule, m, placing)
        ]
        return tuple(sorted(found, key=lambda f: (-f.cost_ms, f.rule, f.location or "", f.message)))


def check(
    trace: Trace,
    rules: Iterable[Rule],
    *,
    ignore: Collection[str] = (),
    thresholds: Mapping[str, Mapping[str, float]] | None = None,
) -> Checked:
    """Run these rules; one that raises is noted among ``errors`` and breaks nothing.

    ``thresholds``: rule → name → value, for those that are not to have their default.
    """
    matches: dict[Rule, Matches] = {}
    unchecked: dict[str, str] = {}
    errors: dict[str, str] = {}
    unsettled: str | None = None
    wanted = [rule for rule in rules if rule.code not in ignore]
    for rule in _triggered(trace, wanted):
        values = {name: threshold.default for name, threshold in rule.thresholds.items()}
        values |= (thresholds or {}).get(rule.code, {})
        try:
            why = lacking(trace, rule)
            if why is not None:
                unchecked[rule.code] = why
                if rule.depends_on_order and trace.region is not None:
                    unsettled = unsettled or why
                continue
            found = matches_of(rule.find(trace, **values), trace, rule.summary)
        except Exception as error:  # noqa: BLE001 - a rule's fault must not break a test
            errors[rule.code] = _fault(error)
            continue
        if len(found):
            matches[rule] = found
    return Checked(trace, matches, unchecked, errors, unsettled)


def _fault(error: Exception) -> str:
    """What was raised, and on which line."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    code = at.tb_frame.f_code if at is not None else None
    line = f" ({code.co_filename}:{at.tb_lineno})" if code is not None and at is not None else ""
    said = str(error).partition("\n")[0]
    return f"{type(error).__name__}{': ' if said else ''}{said}{line}"


def lacking(trace: Trace, rule: Rule) -> str | None:
    """What the rule needs and the trace does not hold."""
    if "live" in rule.needs and not trace.facts:
        return _NOT_LIVE
    if "device" in rule.needs and (gap := trace.once(device_gap)) is not None:
        return gap
    if "shapes" in rule.needs and not trace.records_shapes:
        return _NO_SHAPES
    return None if rule.ready is None else rule.ready(trace)


# -------------------------------------------------------------------- triggers

#: Event name → numbers of the expressions that it begins with, for all traces of the process.
_KNOWN: dict[tuple[tuple[str, ...], str], tuple[int, ...]] = {}
_MOST_KNOWN = 100_000


def _triggered(trace: Trace, rules: list[Rule]) -> list[Rule]:
    """Rules of which something occurs in the trace."""
    if len(_KNOWN) > _MOST_KNOWN:
        _KNOWN.clear()
    patterns = tuple(dict.fromkeys(rule.triggers for rule in rules if rule.triggers is not None))
    seen: set[int] = set()
    for name in trace.names:
        hit = _KNOWN.get((patterns, name))
        if hit is None:
            hit = tuple(i for i, pattern in enumerate(patterns) if re.match(pattern, name))
            _KNOWN[patterns, name] = hit
        if hit:
            seen.update(hit)
    present = {patterns[i] for i in seen}
    return [rule for rule in rules if rule.triggers is None or rule.triggers in present]


# -------------------------------------------------------------------- findings


def _total(found: Matches) -> int:
    return len(found) if found.count is None else int(found.count.sum())


def _grouped(trace: Trace, rule: Rule, found: Matches, placing: Placing) -> list[Finding]:
    places, place = placing(trace, found.event)
    if isinstance(found.message, str):
        messages, message = [found.message], np.zeros(len(found), np.int64)
    else:
        numbers: dict[str, int] = {}
        message = np.array([numbers.setdefault(m, len(numbers)) for m in found.message], np.int64)
        messages = list(numbers)
    known: dict[str | None, int] = {None: 0}
    own = np.array([known.setdefault(at, len(known)) for at in found.location or ()], np.int64)
    own = own if len(own) else np.zeros(len(found), np.int64)
    locations = list(known)
    key = (place * len(messages) + message) * len(locations) + own
    distinct, at = np.unique(key, return_inverse=True)
    count = np.ones(len(found), np.int64) if found.count is None else found.count
    if found.cost_ns is None:
        cost = np.where(found.event >= 0, trace.dur[found.event], 0)
    else:
        cost = found.cost_ns
    out = []
    sums = [np.bincount(at, weights, len(distinct)) for weights in (count, cost)]
    moved = (
        None if found.bytes is None else np.bincount(at, np.maximum(found.bytes, 0), len(distinct))
    )
    for i, number in enumerate(distinct.tolist()):
        rest, own_number = divmod(number, len(locations))
        place_number, message_number = divmod(rest, len(messages))
        where = places[place_number]
        out.append(
            Finding(
                rule=rule.code,
                count=int(sums[0][i]),
                message=messages[message_number],
                location=locations[own_number] or where.location or where.path,
                fix=rule.fix,
                cost_ms=float(sums[1][i]) / 1e6,
                bytes=None if moved is None else int(moved[i]),
                path=where.path,
                module=where.module,
            )
        )
    return out
