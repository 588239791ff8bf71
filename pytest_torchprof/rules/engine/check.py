"""Run rules over a trace: what they match, and which rules could not be checked and why."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace as with_cost
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec import field
from msgspec.structs import replace

from pytest_torchprof.analysis.gaps import device_gap
from pytest_torchprof.core.reasons import Reason, Why, because
from pytest_torchprof.core.results import Finding
from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.places.frames import by_frames
from pytest_torchprof.places.place import Kinds, PlacedEvents
from pytest_torchprof.rules.engine.answers import fault_of, is_own, matches_of, reason_of
from pytest_torchprof.rules.engine.costs import costs_ms
from pytest_torchprof.rules.engine.grouping import grouped
from pytest_torchprof.rules.engine.of_part import of_part
from pytest_torchprof.rules.engine.rule import NEEDS, NO_MATCHES, NO_MATCHES_OF_CALLS
from pytest_torchprof.trace.kinds import DEVICE_KINDS, HOST_KINDS
from pytest_torchprof.trace.name_index import count, kept_by_names, names_of, present
from pytest_torchprof.trace.same_calls import once_selected

if TYPE_CHECKING:
    from pytest_torchprof.places.place import Placing
    from pytest_torchprof.rules.engine.rule import Matches, Rule, RuleNeed
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.name_index import Names
    from pytest_torchprof.trace.nesting import Bools, Ints


class Checked(Frozen, frozen=True):
    """Matches by rule; ``unchecked`` and ``errors`` give the reason for rules without any.

    ``partly``: why rules that were checked may have missed some of what ran.
    ``unsettled``: why another run of the same test may have more matches, if it may.
    ``wants_tensors``: a capture that identifies tensors may have other matches;
    ``wants_module_calls``: so may a trace that tells calls of modules.
    """

    trace: Events
    matches: Mapping[Rule, Matches]
    unchecked: Mapping[str, Reason] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    unsettled: Reason | None = None
    partly: Mapping[str, Reason] = field(default_factory=dict)
    wants_tensors: bool = False
    wants_module_calls: bool = False

    @property
    def gaps(self) -> dict[str, Reason]:
        """Why a rule could not be checked, or only partly, by rule."""
        return {**self.unchecked, **self.partly}

    @property
    def counts(self) -> dict[str, int]:
        """How often each rule matched, for rules with matches."""
        totals = {rule.code: _total(found) for rule, found in self.matches.items()}
        return {code: count for code, count in totals.items() if count}

    @property
    def total(self) -> dict[str, int]:
        """The same for the rules that every test is checked by: what `findings` sums up."""
        asked = {rule.code for rule in self.matches if rule.on_request}
        return {code: count for code, count in self.counts.items() if code not in asked}

    def within(self, inside: Bools) -> Checked:
        """Only the matches of these events."""
        chosen = {
            rule: one.where(inside[one.event] & (one.event >= 0))
            for rule, one in self.matches.items()
        }
        return replace(self, matches={rule: one for rule, one in chosen.items() if len(one)})

    def of_part(self, part: Events) -> Checked:
        """Only the matches in a part of the trace, whose costs add up to its span at most."""
        chosen = {rule: of_part(one, part) for rule, one in self.matches.items()}
        return replace(self, matches={rule: m for rule, m in chosen.items() if len(m)}, trace=part)

    def findings(self, placing: Placing = by_frames) -> tuple[Finding, ...]:
        """One finding per rule, message and place; the costliest first."""
        if not self.matches:
            return ()
        places, at = placing(self.trace, *_asked(self.matches.values()))
        found, of, start = list[Finding](), list[int](), 0
        for rule, matches in self.matches.items():
            stop = start + len(matches)
            more, numbers = grouped(rule, matches, places, at[start:stop])
            of += [len(found) + number for number in numbers]
            found += more
            start = stop
        costs = costs_ms(self.trace, self.matches, np.array(of, np.int64), len(found))
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
    every = tuple([rule for rule in rules if rule.code not in ignore] if ignore else rules)
    on_request = "host_reads" in (trace.facts.asked or ())
    if (gap := nothing_seen(trace)) is not None:
        return Checked(trace, {}, {rule.code: gap for rule in _wanted(every, on_request)})
    matches: dict[Rule, Matches] = {}
    unchecked: dict[str, Reason] = {}
    partly: dict[str, Reason] = {}
    errors: dict[str, str] = {}
    missing = trace.once(_missing)
    candidates = _candidates(trace, every, thresholds or {}, on_request, missing)
    ruled_out = set() if thresholds else once_selected(trace, _ruled_out)
    if any(not one.own for one in candidates):
        _protect(trace)
    for rule, values, triggered, lacks, blind, own in candidates:
        try:
            why = missing[lacks] if lacks else rule.ready and _unready(trace, rule)
            if why is not None:
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
    of_tensors, of_calls = _waiting(trace, matches)
    # Else findings would come and go with the success of that run.
    lost = {} if trace.untold is None else dict.fromkeys(of_tensors | of_calls, trace.untold)
    unchecked.update((rule.code, why) for rule, why in lost.items())
    unsettled = next(iter(lost.values()), None) or _unsettled(trace, candidates, unchecked)
    matches = {rule: found for rule, found in matches.items() if len(found) and rule not in lost}
    return Checked(
        trace, matches, unchecked, errors, unsettled, partly, bool(of_tensors), bool(of_calls)
    )


def _waiting(trace: Events, matches: Mapping[Rule, Matches]) -> tuple[set[Rule], set[Rule]]:
    """Rules that another run could tell more: which tensor is which, or modules' calls."""
    tells_calls = trace.module_calls is None and trace.region is not None
    return (
        {r for r, found in matches.items() if found.wants_tensors and trace.could_know_tensors},
        {r for r, found in matches.items() if found.wants_module_calls and tells_calls},
    )


def _ruled_out(_: Events) -> set[Rule]:
    """To hold the rules whose answer is `NO_MATCHES_OF_CALLS`."""
    return set()


def _protect(trace: Events) -> None:
    """Somebody else's rule must not change what is measured."""
    for column in (trace.ts, trace.dur, trace.kind, trace.name, trace.thread, trace.selection):
        column.setflags(write=False)


def _wanted(rules: tuple[Rule, ...], on_request: bool) -> list[Rule]:
    """Those to check: some only where the test asks for them."""
    return [rule for rule in rules if on_request or not rule.on_request]


def _unsettled(
    trace: Events, asked: Iterable[_Candidate], unchecked: Mapping[str, Reason]
) -> Reason | None:
    """Why another run may be ready for a rule that this one was not ready for."""
    if not unchecked or trace.region is None:
        return None
    gated = {one.rule.code for one in asked if one.rule.gated_by is not None}
    return next((why for code, why in unchecked.items() if code in gated), None)


def nothing_seen(trace: Events) -> Reason | None:
    """Why no rule can be checked on a trace: it does not contain what ran."""
    if trace.region is not None:
        return None
    if trace.is_live:
        return because(Why.NO_REGION)
    return None if trace.is_kind(*HOST_KINDS).any() else because(Why.NO_OPERATORS)


def lacking(trace: Events, rules: Iterable[Rule]) -> dict[str, Reason]:
    """What rules need and the trace lacks, or what they raised when asked, by rule."""
    missing = trace.once(_missing)
    found: dict[str, Reason] = {}
    first: dict[AbstractSet[RuleNeed], RuleNeed | None] = {}
    for rule in rules:
        if rule.needs not in first:
            first[rule.needs] = _first(rule.needs, missing)
        if (need := first[rule.needs]) is not None:
            found[rule.code] = missing[need]
        elif rule.ready is not None:
            try:
                why = _unready(trace, rule)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # noqa: BLE001 - not even pytest.skip may decide a test
                why = because(Why.RULE_RAISED, error=fault_of(error))
            if why is not None:
                found[rule.code] = why
    return found


def _missing(trace: Events) -> Mapping[RuleNeed, Reason]:
    """What rules may need and the trace lacks."""
    found: dict[RuleNeed, Reason] = {}
    if not trace.is_live:
        found["live"] = because(Why.ONLY_LIVE)
    if (gap := trace.once(device_gap)) is not None:
        found["device"] = gap
    if not trace.records_shapes:
        found["shapes"] = because(Why.NO_SHAPES)
    return found


def _first(needs: AbstractSet[RuleNeed], missing: Collection[RuleNeed]) -> RuleNeed | None:
    """The need that is reported, of those that are missing."""
    if needs.isdisjoint(missing):
        return None
    return next(need for need in NEEDS if need in needs and need in missing)


def _unready(trace: Events, rule: Rule) -> Reason | None:
    if rule.ready is None or (why := rule.ready(trace)) is None:
        return None
    return reason_of(why, rule.ready)


class _Candidate(NamedTuple):
    """A rule that may have something to say, with its thresholds.

    ``triggered``: whether all that it looks at occurs often enough. ``lacks``: what it needs and
    the trace lacks. ``blind``: where to ask what it cannot see. ``own``: it is one of this package.
    """

    rule: Rule
    thresholds: Mapping[str, float]
    triggered: bool
    lacks: RuleNeed | None
    blind: Callable[[Events], Reason | str | None] | None
    own: bool


def _candidates(
    trace: Events,
    rules: tuple[Rule, ...],
    thresholds: Mapping[str, Mapping[str, float]],
    on_request: bool,
    missing: Mapping[RuleNeed, Reason],
) -> list[_Candidate]:
    """The rules that names do not rule out, in order; the same for all traces of such names."""
    of_host = trace.is_live and not trace.has(*DEVICE_KINDS)
    kept, key = kept_by_names(trace), (_candidates, on_request, of_host, *missing)
    known = kept.get(key)
    if known is None or known[0] != rules or known[1] != thresholds:
        wanted = _wanted(rules, on_request)
        found = [*_possible(trace, wanted, thresholds, missing, of_host)]
        known = kept[key] = rules, thresholds, found
    candidates: list[_Candidate] = known[2]
    return candidates


def _possible(
    trace: Events,
    rules: Iterable[Rule],
    thresholds: Mapping[str, Mapping[str, float]],
    missing: Mapping[RuleNeed, Reason],
    of_host: bool,
) -> Iterator[_Candidate]:
    there = present(trace)
    for rule in rules:
        least = {names_of(one): many for one, many in rule.least.items()}
        triggered, lacks = least.keys() <= there, _first(rule.needs, missing)
        sees = rule.sees_host
        asks = not of_host or not sees or (isinstance(sees, str) and names_of(sees) in there)
        blind = rule.blind if asks else None
        if triggered or (blind is not None and lacks is None):
            values = {name: threshold.default for name, threshold in rule.thresholds.items()}
            values |= thresholds.get(rule.code, {})
            triggered = triggered and _occur(trace, least, values)
            if triggered or blind is not None:
                yield _Candidate(rule, values, triggered, lacks, blind, is_own(rule))


def _occur(trace: Events, least: Mapping[Names, float | str], values: Mapping[str, float]) -> bool:
    """Whether enough events have such names."""
    for names, many in least.items():
        some = int(values[many] if isinstance(many, str) else many)
        if some > 1 and count(trace, names) < some:
            return False
    return True


def _total(found: Matches) -> int:
    return len(found) if found.count is None else int(found.count.sum())
