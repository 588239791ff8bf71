"""Runs rules over a trace: what they find, and which of them could not be checked, and why."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from msgspec import field

from pytest_torchprof.analysis.gaps import device_gap
from pytest_torchprof.core.plain import Plain
from pytest_torchprof.core.results import Finding
from pytest_torchprof.places.frames import by_frames
from pytest_torchprof.places.place import Stretch
from pytest_torchprof.rules.engine import identity
from pytest_torchprof.rules.engine.grouping import grouped, within_span
from pytest_torchprof.rules.engine.rule import Matches, Rule, matches_of
from pytest_torchprof.trace.kinds import HOST_KINDS
from pytest_torchprof.trace.names import Names, count, names_of, present

if TYPE_CHECKING:
    from pytest_torchprof.places.place import Placing
    from pytest_torchprof.trace.events import Trace
    from pytest_torchprof.trace.nesting import Ints

_Least: TypeAlias = tuple[Names, float | str]

_NO_SHAPES = "recorded without shapes (record_shapes=True gives them)"
_NOT_LIVE = "only a live test measures it"
_NO_REGION = "failed capture: the trace lacks the measured region"
_NO_EVENTS = "no operators in this trace"


class Checked(Plain, frozen=True):
    """Matches by rule; ``unchecked`` and ``errors`` by rule say why there are none.

    ``partly``: of rules that were checked, why they cannot have seen all that ran.
    ``unsettled``: why another run of the same test may have more matches, if it may.
    ``wants_tensors``: a capture that knows which tensor is which may have other matches.
    """

    trace: Trace
    matches: Mapping[Rule, Matches]
    unchecked: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    unsettled: str | None = None
    partly: Mapping[str, str] = field(default_factory=dict)
    wants_tensors: bool = False

    @property
    def gaps(self) -> dict[str, str]:
        """Why there is no telling, or not of all that ran, by rule."""
        return {**self.unchecked, **self.partly}

    @property
    def counts(self) -> dict[str, int]:
        """How often each rule matched, of those that did."""
        return {rule.code: _total(found) for rule, found in self.matches.items()}

    def findings(self, placing: Placing = by_frames) -> tuple[Finding, ...]:
        """One finding a rule, message and place; the costliest first."""
        if not self.matches:
            return ()
        places, at = placing(self.trace, *_asked(self.matches.values()))
        found, start = list[Finding](), 0
        for rule, matches in self.matches.items():
            stop = start + len(matches)
            found += grouped(self.trace, rule, matches, places, at[start:stop])
            start = stop
        elsewhere = {rule.code for rule in self.matches if rule.gated_by is not None}
        found = within_span(self.trace, found, elsewhere)
        return tuple(sorted(found, key=lambda f: (-f.cost_ms, f.rule, f.location or "", f.message)))


def _asked(matches: Collection[Matches]) -> tuple[Ints, dict[int, Stretch]]:
    """The events of all matches, and by position the stretches that matches are of."""
    parts: dict[int, Stretch] = {}
    start = 0
    for one in matches:
        apart = np.zeros(0, np.int64) if one.apart is None else one.apart
        stretches = (Stretch(events, apart) for events in one.parts or ())
        parts.update(enumerate(stretches, start))
        start += len(one)
    return np.concatenate([one.event for one in matches]), parts


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
    wanted = [rule for rule in rules if rule.code not in ignore]
    if (gap := nothing_seen(trace)) is not None:
        return Checked(trace, {}, {rule.code: gap for rule in wanted})
    for column in (trace.ts, trace.dur, trace.kind, trace.name, trace.thread, trace.selection):
        column.setflags(write=False)  # a rule must not change what is measured
    matches: dict[Rule, Matches] = {}
    unchecked: dict[str, str] = {}
    partly: dict[str, str] = {}
    errors: dict[str, str] = {}
    wants_tensors = False
    thresholds = thresholds or {}
    for rule, triggered in zip(wanted, _triggered(trace, wanted, thresholds), strict=True):
        if not triggered and rule.blind is None:
            continue
        try:
            why = lacking(trace, rule)
            if why is not None:
                if triggered:
                    unchecked[rule.code] = why
                continue
            if rule.blind is not None and (why := trace.once(rule.blind)) is not None:
                partly[rule.code] = why
            if not triggered:
                continue
            found = _found(trace, rule, thresholds.get(rule.code, {}))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - not even pytest.skip may decide a test
            errors[rule.code] = _fault(error)
            continue
        wants_tensors |= found.wants_tensors
        if len(found):
            matches[rule] = found
    unsettled = None if trace.region is None else _unsettled(wanted, unchecked)
    wants_tensors &= identity.wanted(trace)
    return Checked(trace, matches, unchecked, errors, unsettled, partly, wants_tensors)


def _found(trace: Trace, rule: Rule, thresholds: Mapping[str, float]) -> Matches:
    """Its matches, with these thresholds in place of the default ones."""
    values = {name: threshold.default for name, threshold in rule.thresholds.items()}
    return matches_of(rule.find(trace, **{**values, **thresholds}), trace, rule)


def _unsettled(rules: Iterable[Rule], unchecked: Mapping[str, str]) -> str | None:
    """Why another run may be ready for a rule that this one was not ready for."""
    gated = (rule.code for rule in rules if rule.gated_by is not None)
    return next((unchecked[code] for code in gated if code in unchecked), None)


def _fault(error: BaseException) -> str:
    """What was raised, and on which line."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    code = at.tb_frame.f_code if at is not None else None
    line = f" ({code.co_filename}:{at.tb_lineno})" if code is not None and at is not None else ""
    said = str(error).partition("\n")[0]
    return f"{type(error).__name__}{': ' if said else ''}{said}{line}"


def nothing_seen(trace: Trace) -> str | None:
    """Why no rule can say anything about a trace: it does not hold what ran."""
    if trace.region is not None:
        return None
    if trace.facts:
        return _NO_REGION
    return None if trace.is_kind(*HOST_KINDS).any() else _NO_EVENTS


def lacking(trace: Trace, rule: Rule) -> str | None:
    """What the rule needs and the trace does not hold."""
    if not rule.needs:
        return None if rule.ready is None else rule.ready(trace)
    if "live" in rule.needs and not trace.facts:
        return _NOT_LIVE
    if "device" in rule.needs and (gap := trace.once(device_gap)) is not None:
        return gap
    if "shapes" in rule.needs and not trace.records_shapes:
        return _NO_SHAPES
    return None if rule.ready is None else rule.ready(trace)


def _triggered(
    trace: Trace, rules: Sequence[Rule], thresholds: Mapping[str, Mapping[str, float]]
) -> list[bool]:
    """Of which rules all that they look at occurs in the trace, as often as they take."""
    triggers = _triggers(tuple(rules))
    there = present(trace)
    return [
        some <= there and (not more or _occur(trace, rule, more, thresholds))
        for rule, (some, more) in zip(rules, triggers, strict=True)
    ]


def _occur(
    trace: Trace,
    rule: Rule,
    least: Iterable[_Least],
    thresholds: Mapping[str, Mapping[str, float]],
) -> bool:
    """Whether so many events have such names."""
    values = thresholds.get(rule.code, {})
    return all(
        count(trace, names)
        >= int(values.get(n, rule.thresholds[n].default) if isinstance(n, str) else n)
        for names, n in least
    )


@lru_cache(maxsize=100)
def _triggers(rules: tuple[Rule, ...]) -> list[tuple[AbstractSet[Names], list[_Least]]]:
    """Of each rule its triggers, and those of which it takes several."""
    found = [[(names_of(one), least) for one, least in rule.least.items()] for rule in rules]
    return [(frozenset(dict(some)), [one for one in some if one[1] != 1]) for some in found]


def _total(found: Matches) -> int:
    return len(found) if found.count is None else int(found.count.sum())
