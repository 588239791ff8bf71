"""Run rules over a trace: what they match, and which could not be checked and why."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace as with_cost
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec import field as struct_field
from msgspec.structs import replace

from pytest_torchprof.analysis.breakdown import Elapsed, gain
from pytest_torchprof.analysis.missing import device_gap
from pytest_torchprof.core.process import late
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.core.unknown import Reason, Why, because
from pytest_torchprof.core.values import Finding
from pytest_torchprof.places.place import Kinds, PlacedEvents, by_frames
from pytest_torchprof.rules.rule import (
    NO_MATCHES,
    NO_MATCHES_OF_CALLS,
    costs_ms,
    fault_of,
    is_own,
    matches_of,
    reason_of,
    span,
)
from pytest_torchprof.trace.names import (
    DEVICE_KINDS,
    HOST_KINDS,
    count,
    kept_by_names,
    names_of,
    present,
)
from pytest_torchprof.trace.tree import once_selected

if TYPE_CHECKING:
    from pytest_torchprof.places.place import Place, Placing
    from pytest_torchprof.rules.rule import Floats, Matches, Rule, RuleNeed
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints


# ---- Turn a rule's matches into findings: one per message and place.
#
# One line that several modules run is one place; so are the same operators in layers of a list,
# such as ``layers.0.mlp`` and ``layers.1.mlp``, if no line is known.

#: Shapes in messages, numbers of layers at their start, and of parameters.
_SIZES = late(r"\[\d+(, \d+)*\]|^\d+ layers?(?= )|(?<= updates )\d+(?= parameters )")
#: The number of a module in a list, as in ``layers.0``, or of its class, as in ``Linear_0``.
_NUMBER = late(r"(?<=[._])\d+(?=\.|$)")


def grouped(
    rule: Rule, found: Matches, places: Sequence[Place], place: Ints
) -> tuple[list[Finding], Ints]:
    """The findings of one rule, without costs; and which of them each match is of.

    ``place`` is the position in ``places`` of each match.
    """
    # Several paths of operators may lead to one line, and several modules may run it.
    lines: dict[tuple[str | None, str | None], int] = {}
    line = [
        lines.setdefault((p.location, None) if p.location else (p.path, _layer(p.module)), i)
        for i, p in enumerate(places)
    ]
    many, at = len(found), place.tolist()
    said = [found.message] * many if isinstance(found.message, str) else found.message
    owns, fixes = found.location or [None] * many, found.fix or [rule.fix] * many
    groups: dict[tuple[int, str, str | None, str], list[int]] = {}
    for row, (number, message, own, fix) in enumerate(zip(at, said, owns, fixes, strict=True)):
        # Several sizes at one place have one cause: batches and sequences differ in size each time.
        key = (-1 if own else line[number], _SIZES.sub("", message), own, fix)
        groups.setdefault(key, []).append(row)
    findings, numbers = list[Finding](), np.zeros(many, np.int64)
    for (_, _, own, fix), rows in groups.items():
        numbers[rows] = len(findings)
        here, message = [places[at[row]] for row in rows], said[rows[0]]
        modules = dict.fromkeys(one.module for one in here if one.module is not None)
        moved = [] if found.bytes is None else found.bytes[rows][found.bytes[rows] >= 0].tolist()
        alike = all(said[row] == message for row in rows)
        count = len(rows) if found.count is None else int(found.count[rows].sum())
        findings.append(
            Finding(
                rule=rule.code,
                count=max(count, 1),  # of what matched once in all, this may be a part
                message=message if alike else _SIZES.sub(_several, message),
                location=own or here[0].location or here[0].path,
                fix=fix,
                bytes=sum(moved) if moved else None,
                path=here[0].path,
                module=_layers(modules),
                modules=len(modules) or None,
                gated=not rule.timed,
            )
        )
    return findings, numbers


def _several(size: re.Match[str]) -> str:
    """What stands for several sizes."""
    if size[0].startswith("["):
        return "[…]"
    return "several layers" if "layer" in size[0] else "several"


def _layer(module: str | None) -> str | None:
    """The path of a module, without its number in a list."""
    return module and _NUMBER.sub("*", module)


def _layers(modules: Collection[str]) -> str | None:
    """The common path of modules that differ by their numbers in lists, else the first one."""
    first = next(iter(modules), None)
    layers = {_layer(module) for module in modules}
    return layers.pop() if len(layers) == 1 < len(modules) else first


# ---- Which matches of a trace belong to a part of it, such as a step, and what of their costs.


def of_part(found: Matches, part: Events) -> Matches:
    """The matches in the selected part.

    A match belongs to the part that has its event, and is counted there, so counts of disjoint
    parts add up. One of a stretch of events has in a part the share of its cost that the events
    there are of all. Of others, a part has what their stretches are worth in it: the device may be
    idle in one step because of a wait in the previous one, and what is one match of the whole
    trace, such as that launches keep a device idle, costs each step.
    """
    if found.parts is not None:
        return _by_events(found, found.parts, part)
    inside = (found.event >= 0) & part.selection[found.event]
    if found.span_ns is None or found.cost_ns is None:
        return found.where(inside)
    share = _shares(found, *found.span_ns, part, inside)
    kept = inside | (share > 0)
    count = inside.astype(np.int64) if found.count is None else found.count
    return replace(found, cost_ns=_scaled(found.cost_ns, share), count=count).where(kept)


def _by_events(found: Matches, parts: Sequence[Ints], part: Events) -> Matches:
    mine = [events[part.selection[events]] for events in parts]
    share = np.array([len(a) / max(len(b), 1) for a, b in zip(mine, parts, strict=True)])
    first = np.array([int(events[0]) if len(events) else -1 for events in mine], np.int64)
    event = np.where((found.event >= 0) & part.selection[found.event], found.event, first)
    # A stretch may cover several parts, and each of them has it: none looks clean that is not.
    count = (share > 0) if found.count is None else np.rint(found.count * share)
    cost = None if found.cost_ns is None else _scaled(found.cost_ns, share)
    part_of = replace(found, event=event, parts=mine, cost_ns=cost, count=count.astype(np.int64))
    return part_of.where(share > 0)


def _scaled(cost_ns: Ints, share: Floats) -> Ints:
    return np.where(cost_ns < 0, cost_ns, cost_ns * share).astype(np.int64)


def _shares(found: Matches, begin: Ints, end: Ints, part: Events, inside: Bools) -> Floats:
    """How much of each match's stretch the part has, of what it is worth."""
    whole, mine = gain(part.whole), gain(part)
    if not isinstance(whole, Elapsed) and not isinstance(mine, Elapsed):
        worth = whole.between(begin, end)
        own = np.divide(mine.between(begin, end), worth, out=np.zeros(len(worth)), where=worth > 0)
        return np.where(worth > 0, np.minimum(own, 1), inside)
    since, until = part.once(span)
    rows = np.maximum(found.event, 0)
    meets = (part.ts[rows] < until) & (part.ts[rows] + part.dur[rows] > since)
    overlap = np.maximum(np.minimum(end, until) - np.maximum(begin, since), 0)
    share = np.where((found.event < 0) | meets, overlap / np.maximum(end - begin, 1), 0.0)
    return np.where(inside, 1.0, share)


# ---- Run rules over a trace: what they match, and which rules could not be checked and why.


class Checked(Frozen, frozen=True):
    """Matches by rule; ``unchecked`` and ``errors`` give the reason for rules without any.

    ``partly``: why rules that were checked may have missed some of what ran.
    ``unsettled``: why another run of the same test may have more matches, if it may.
    ``wants_tensors``: a capture that identifies tensors may have other matches;
    ``wants_module_calls``: so may a trace that tells calls of modules.
    """

    trace: Events
    matches: Mapping[Rule, Matches]
    unchecked: Mapping[str, Reason] = struct_field(default_factory=dict)
    errors: Mapping[str, str] = struct_field(default_factory=dict)
    unsettled: Reason | None = None
    partly: Mapping[str, Reason] = struct_field(default_factory=dict)
    wants_tensors: bool = False
    wants_module_calls: bool = False

    @property
    def gaps(self) -> dict[str, Reason]:
        """Why a rule could not be checked, or only partly, by rule."""
        return {**self.unchecked, **self.partly}

    @property
    def counts(self) -> dict[str, int]:
        """How often each rule matched, for rules with matches."""
        totals = {
            rule.code: len(found) if found.count is None else int(found.count.sum())
            for rule, found in self.matches.items()
        }
        return {code: count for code, count in totals.items() if count}

    @property
    def total(self) -> dict[str, int]:
        """The same for the rules that every test is checked by: what `findings` sums up."""
        asked = {rule.code for rule in self.matches if rule.on_request}
        return {code: count for code, count in self.counts.items() if code not in asked}

    def of_part(self, part: Events) -> Checked:
        """Only the matches in a part of the trace, whose costs add up to its span at most."""
        chosen = {rule: of_part(one, part) for rule, one in self.matches.items()}
        return replace(self, matches={rule: m for rule, m in chosen.items() if len(m)}, trace=part)

    def findings(self, placing: Placing = by_frames) -> tuple[Finding, ...]:
        """One finding per rule, message and place; the costliest first."""
        if not self.matches:
            return ()
        places, at = placing(self.trace, *_asked(self.matches.values()))
        found, of, start = list[Finding](), [np.zeros(0, np.int64)], 0
        for rule, matches in self.matches.items():
            stop = start + len(matches)
            more, numbers = grouped(rule, matches, places, at[start:stop])
            of.append(len(found) + numbers)
            found += more
            start = stop
        costs = costs_ms(self.trace, self.matches, np.concatenate(of), len(found))
        priced = [with_cost(one, cost_ms=cost) for one, cost in zip(found, costs, strict=True)]
        return tuple(sorted(priced, key=_costliest))


def _costliest(finding: Finding) -> tuple[float, str, str, str]:
    """Sorts findings by cost, those of unknown cost last."""
    cost = -1.0 if finding.cost_ms is None else finding.cost_ms
    return -cost, finding.rule, finding.location or "", finding.message


def _asked(matches: Collection[Matches]) -> tuple[Ints, dict[int, PlacedEvents]]:
    """The events of all matches, and by position the stretches that matches cover."""
    parts: dict[int, PlacedEvents] = {}
    start = 0
    for one in matches:
        apart = np.zeros(0, np.int64) if one.apart is None else one.apart
        kind: Kinds = "steps" if one.in_steps else "stretch"
        stretches = (PlacedEvents(events, apart, kind) for events in one.parts or ())
        parts.update(enumerate(stretches, start))
        if one.last is not None:
            ends = np.stack([one.event, one.last], axis=1)
            parts.update(enumerate((PlacedEvents(two, apart, "loop") for two in ends), start))
        if one.by_constructor:
            steps = (PlacedEvents(step, apart, "constructed") for step in one.event[:, None])
            parts.update(enumerate(steps, start))
        start += len(one)
    return np.concatenate([one.event for one in matches]), parts


def check(
    trace: Events,
    rules: Iterable[Rule],
    *,
    ignore: Collection[str] = (),
    thresholds: Mapping[str, Mapping[str, float]] | None = None,
) -> Checked:
    """Run these rules; one that raises is recorded in ``errors`` and does not stop the others.

    ``thresholds``: rule → name → value, for values other than the default.
    """
    asked = "host_reads" in (trace.facts.asked or ())
    every = tuple(r for r in rules if (asked or not r.on_request) and r.code not in ignore)
    if (gap := nothing_seen(trace)) is not None:
        return Checked(trace, {}, {rule.code: gap for rule in every})
    matches: dict[Rule, Matches] = {}
    unchecked: dict[str, Reason] = {}
    partly: dict[str, Reason] = {}
    errors: dict[str, str] = {}
    missing = trace.once(_missing)
    candidates = _candidates(trace, every, thresholds or {}, missing)
    ruled_out = set() if thresholds else once_selected(trace, _ruled_out)
    if any(not one.own for one in candidates):
        _protect(trace)
    for rule, values, triggered, blind, own in candidates:
        try:
            if (why := _lacked(trace, rule, missing)) is not None:
                if triggered:
                    unchecked[rule.code] = why
                continue
            if blind is not None and (unseen := blind(trace)) is not None:
                partly[rule.code] = reason_of(unseen, blind)
            if not triggered or rule in ruled_out:
                continue
            found = matches_of(trace, rule, values, own=own)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - not even pytest.skip may decide a test
            errors[rule.code] = fault_of(error)
            continue
        if found is NO_MATCHES_OF_CALLS and own:  # another's may look at more before it asks ours
            ruled_out.add(rule)
        elif found is not NO_MATCHES:
            matches[rule] = found
    # Rules that another run could tell more: which tensor is which, or modules' calls.
    of_tensors = {r for r, f in matches.items() if f.wants_tensors and trace.could_know_tensors}
    tells_calls = trace.module_calls is None and trace.region is not None
    of_calls = {r for r, found in matches.items() if found.wants_module_calls and tells_calls}
    # Else findings would come and go with the success of that run.
    lost = {} if trace.untold is None else dict.fromkeys(of_tensors | of_calls, trace.untold)
    unchecked.update((rule.code, why) for rule, why in lost.items())
    # Another run may be ready for these, too.
    gated = (one.rule.code for one in candidates if one.rule.gated_by and trace.region is not None)
    again = [*lost.values(), *(unchecked[code] for code in gated if code in unchecked)]
    unsettled = again[0] if again else None
    matches = {rule: found for rule, found in matches.items() if len(found) and rule not in lost}
    return Checked(
        trace, matches, unchecked, errors, unsettled, partly, bool(of_tensors), bool(of_calls)
    )


def _ruled_out(_: Events) -> set[Rule]:
    """To hold the rules whose answer is `NO_MATCHES_OF_CALLS`."""
    return set()


def _protect(trace: Events) -> None:
    """Somebody else's rule must not change what is measured."""
    for column in (trace.ts, trace.dur, trace.kind, trace.name, trace.thread, trace.selection):
        column.setflags(write=False)


def nothing_seen(trace: Events) -> Reason | None:
    """Why no rule can be checked on a trace: it does not contain what ran."""
    if trace.region is not None:
        return None
    if trace.is_live:
        return because(*Why.NO_REGION)
    return None if trace.is_kind(*HOST_KINDS).any() else because(*Why.NO_OPERATORS)


def lacking(trace: Events, rules: Iterable[Rule]) -> dict[str, Reason]:
    """What rules need and the trace lacks, or what they raised when asked, by rule."""
    missing = trace.once(_missing)
    found: dict[str, Reason | None] = {}
    for rule in rules:
        try:
            found[rule.code] = _lacked(trace, rule, missing)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - not even pytest.skip may decide a test
            found[rule.code] = because(*Why.RULE_RAISED, error=fault_of(error))
    return {code: why for code, why in found.items() if why is not None}


def _missing(trace: Events) -> Mapping[RuleNeed, Reason]:
    """What rules may need and the trace lacks; of several, the first is reported."""
    found: dict[RuleNeed, Reason] = {}
    if not trace.is_live:
        found["live"] = because(*Why.ONLY_LIVE)
    if (gap := trace.once(device_gap)) is not None:
        found["device"] = gap
    if not trace.records_shapes:
        found["shapes"] = because(*Why.NO_SHAPES)
    return found


def _lacked(trace: Events, rule: Rule, missing: Mapping[RuleNeed, Reason]) -> Reason | None:
    for need, gap in missing.items():
        if need in rule.needs:
            return gap
    why = rule.ready and rule.ready(trace)
    return None if why is None else reason_of(why, rule.ready or rule.find)


class _Candidate(NamedTuple):
    """A rule that may have something to say, with its thresholds.

    ``triggered``: whether all that it looks at occurs often enough. ``blind``: where to ask
    what it cannot see. ``own``: it is one of this package.
    """

    rule: Rule
    thresholds: Mapping[str, float]
    triggered: bool
    blind: Callable[[Events], Reason | str | None] | None
    own: bool


def _candidates(
    trace: Events,
    rules: tuple[Rule, ...],
    thresholds: Mapping[str, Mapping[str, float]],
    missing: Mapping[RuleNeed, Reason],
) -> list[_Candidate]:
    """The rules that names do not rule out, in order; the same for all traces of such names."""
    of_host = trace.is_live and not trace.has(*DEVICE_KINDS)
    kept, key = kept_by_names(trace), (_candidates, len(rules), of_host, *missing)
    known = kept.get(key)
    if known is None or known[0] != rules or known[1] != thresholds:
        found = [_candidate(trace, rule, thresholds, missing, of_host=of_host) for rule in rules]
        known = kept[key] = rules, thresholds, [one for one in found if one is not None]
    candidates: list[_Candidate] = known[2]
    return candidates


def _candidate(
    trace: Events,
    rule: Rule,
    thresholds: Mapping[str, Mapping[str, float]],
    missing: Mapping[RuleNeed, Reason],
    *,
    of_host: bool,
) -> _Candidate | None:
    there, sees = present(trace), rule.sees_host
    least = {names_of(one): many for one, many in rule.least.items()}
    asks = not of_host or not sees or (isinstance(sees, str) and names_of(sees) in there)
    blind, triggered = rule.blind if asks else None, least.keys() <= there
    if not triggered and (blind is None or not rule.needs.isdisjoint(missing)):
        return None
    values = {name: threshold.default for name, threshold in rule.thresholds.items()}
    values |= thresholds.get(rule.code, {})
    some = {names: int(values[n] if isinstance(n, str) else n) for names, n in least.items()}
    triggered = triggered and all(n <= 1 or count(trace, names) >= n for names, n in some.items())
    if not triggered and blind is None:
        return None
    return _Candidate(rule, values, triggered, blind, is_own(rule))
