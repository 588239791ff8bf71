"""Run rules over a trace: what they match, and which could not be checked and why."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from dataclasses import replace as with_cost
from itertools import repeat
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
    NEEDS,
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
    from pytest_torchprof.trace.names import Names
    from pytest_torchprof.trace.nesting import Bools, Ints


# ---- Turn a rule's matches into findings: one per message and place.
#
# One line that several modules run is one place; so are the same operators in layers of a list,
# such as ``layers.0.mlp`` and ``layers.1.mlp``, if no line is known.

#: Shapes in messages, numbers of layers at their start, and of parameters.
_SIZES = late(r"\[\d+(, \d+)*\]|^\d+ layers?(?= )|(?<= updates )\d+(?= parameters )")
#: The number of a module in a list, as in ``layers.0``, or of its class, as in ``Linear_0``.
_NUMBER = late(r"(?<=[._])\d+(?=\.|$)")


@dataclass
class _Group:
    """Sums over matches with one place, and one message except for sizes; -1 bytes if unknown.

    ``number``: its position among the rule's groups; ``place``: the first match's; ``modules``: the
    paths of all, in order.
    """

    number: int
    message: str
    place: Place
    count: int = 0
    bytes: int = -1
    modules: dict[str, None] = field(default_factory=dict)


def grouped(
    rule: Rule, found: Matches, places: Sequence[Place], place: Ints
) -> tuple[list[Finding], list[int]]:
    """The findings of one rule, without costs; and which of them each match is of.

    ``place`` is the position in ``places`` of each match.
    """
    # Several paths of operators may lead to one line, and several modules may run it.
    lines: dict[tuple[str | None, str | None], int] = {}
    line = [
        lines.setdefault((p.location, None) if p.location else (p.path, _layer(p.module)), i)
        for i, p in enumerate(places)
    ]
    groups: dict[tuple[int, str, str | None, str], _Group] = {}
    numbers = list[int]()
    for at, message, own, fix, times, moved in zip(
        place.tolist(),
        repeat(found.message) if isinstance(found.message, str) else found.message,
        repeat(None) if found.location is None else found.location,
        repeat(rule.fix) if found.fix is None else found.fix,
        repeat(1) if found.count is None else found.count.tolist(),
        repeat(0) if found.bytes is None else found.bytes.tolist(),
        strict=False,
    ):
        # Several sizes at one place have one cause: batches and sequences differ in size each time.
        key = (-1 if own else line[at], _SIZES.sub("", message), own, fix)
        group = groups.setdefault(key, _Group(len(groups), message, places[at]))
        numbers.append(group.number)
        if group.message != message:
            group.message = _SIZES.sub(_several, message)
        if (module := places[at].module) is not None:
            group.modules[module] = None
        group.count += times
        if moved >= 0:
            group.bytes = max(group.bytes, 0) + moved
    findings = [
        Finding(
            rule=rule.code,
            count=max(group.count, 1),  # of what matched once in all, this may be a part
            message=group.message,
            location=own or group.place.location or group.place.path,
            fix=fix,
            bytes=None if found.bytes is None or group.bytes < 0 else group.bytes,
            path=group.place.path,
            module=_layers(group.modules),
            modules=len(group.modules) or None,
            gated=not rule.timed,
        )
        for (_, _, own, fix), group in groups.items()
    ]
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
    share = _shares(found, part, inside)
    kept = inside | (share > 0)
    count = inside.astype(np.int64) if found.count is None else found.count
    return replace(found, cost_ns=_scaled(found.cost_ns, share), count=count).where(kept)


def _by_events(found: Matches, parts: Sequence[Ints], part: Events) -> Matches:
    mine = [events[part.selection[events]] for events in parts]
    kept = np.array([len(events) > 0 for events in mine], bool)
    event = [
        one if one >= 0 and part.selection[one] else int(events[0]) if len(events) else -1
        for one, events in zip(found.event.tolist(), mine, strict=True)
    ]
    share = np.array([len(a) / max(len(b), 1) for a, b in zip(mine, parts, strict=True)])
    cost = None if found.cost_ns is None else _scaled(found.cost_ns, share)
    # A stretch may cover several parts, and each of them has it: none looks clean that is not.
    count = kept.astype(np.int64) if found.count is None else np.rint(found.count * share)
    return replace(
        found,
        event=np.array(event, np.int64),
        parts=mine,
        cost_ns=cost,
        count=count.astype(np.int64),
    ).where(kept)


def _scaled(cost_ns: Ints, share: Floats) -> Ints:
    return np.where(cost_ns < 0, cost_ns, cost_ns * share).astype(np.int64)


def _shares(found: Matches, part: Events, inside: Bools) -> Floats:
    """How much of each match's stretch the part has, of what it is worth."""
    if found.span_ns is None:
        return inside.astype(float)
    begin, end = found.span_ns
    whole, mine = gain(part.whole), gain(part)
    if not isinstance(whole, Elapsed) and not isinstance(mine, Elapsed):
        worth = whole.between(begin, end)
        own = np.divide(mine.between(begin, end), worth, out=np.zeros(len(worth)), where=worth > 0)
        return np.where(worth > 0, np.minimum(own, 1), inside)
    since, until = part.once(span)
    rows = np.maximum(found.event, 0)
    around = (found.event < 0) | (
        (part.ts[rows] < until) & (part.ts[rows] + part.dur[rows] > since) & ~inside
    )
    overlap = np.maximum(np.minimum(end, until) - np.maximum(begin, since), 0)
    share = np.where(around, overlap / np.maximum(end - begin, 1), 0.0)
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
        totals = {rule.code: _total(found) for rule, found in self.matches.items()}
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
    # Rules that another run could tell more: which tensor is which, or modules' calls.
    of_tensors = {r for r, f in matches.items() if f.wants_tensors and trace.could_know_tensors}
    tells_calls = trace.module_calls is None and trace.region is not None
    of_calls = {r for r, found in matches.items() if found.wants_module_calls and tells_calls}
    # Else findings would come and go with the success of that run.
    lost = {} if trace.untold is None else dict.fromkeys(of_tensors | of_calls, trace.untold)
    unchecked.update((rule.code, why) for rule, why in lost.items())
    # Another run may be ready for these, too.
    again = [one.rule.code for one in candidates if one.rule.gated_by is not None]
    again = [] if trace.region is None else [code for code in again if code in unchecked]
    unsettled = next(iter(lost.values()), unchecked[again[0]] if again else None)
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


def _wanted(rules: tuple[Rule, ...], on_request: bool) -> list[Rule]:
    """Those to check: some only where the test asks for them."""
    return [rule for rule in rules if on_request or not rule.on_request]


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
                why = because(*Why.RULE_RAISED, error=fault_of(error))
            if why is not None:
                found[rule.code] = why
    return found


def _missing(trace: Events) -> Mapping[RuleNeed, Reason]:
    """What rules may need and the trace lacks."""
    found: dict[RuleNeed, Reason] = {}
    if not trace.is_live:
        found["live"] = because(*Why.ONLY_LIVE)
    if (gap := trace.once(device_gap)) is not None:
        found["device"] = gap
    if not trace.records_shapes:
        found["shapes"] = because(*Why.NO_SHAPES)
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
