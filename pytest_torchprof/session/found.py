"""What the rules found in a test's trace: how often, where, and whether it may be there."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pytest_torchprof.core.results import NotMeasured
from pytest_torchprof.places.place import by_operator
from pytest_torchprof.rules.engine.check import lacking
from pytest_torchprof.trace.events import Kind
from pytest_torchprof.verdict.comparison import grown

if TYPE_CHECKING:
    from pytest_torchprof.core.results import Baseline, Budget, Finding, Profile, Value
    from pytest_torchprof.places.place import Placing
    from pytest_torchprof.session.plan import Plan
    from pytest_torchprof.session.recorder import Recorder
    from pytest_torchprof.trace.events import Trace

#: Begins what is said of a rule that raised.
RAISED = "the rule raised "
#: The profiled run decided the outcome too, and nothing was to be run after it.
_ONLY_RUN = "the profiled run was the only one (--torchprof-warmup=0 --torchprof-rounds=0)"


def found_in(recorder: Recorder) -> tuple[dict[str, int], dict[str, str]]:
    """(matches of each rule that was checked and is not allowed, why others were not checked)."""
    checked, plan = recorder.checked, recorder.plan
    unchecked = {rule: f"{RAISED}{error}" for rule, error in checked.errors.items()}
    for rule in plan.rules:
        if rule.code in unchecked:
            continue
        # The engine does not ask of a rule of which nothing occurs; on a device it might.
        try:
            why = checked.unchecked.get(rule.code) or lacking(checked.trace, rule)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - not even pytest.skip may decide a test
            why = f"{RAISED}{type(error).__name__}: {error}"
        if why is not None:
            unchecked[rule.code] = why
    counts = checked.counts
    # What a rule has found counts, also where it has not seen all.
    unchecked |= {code: why for code, why in checked.partly.items() if code not in unchecked}
    codes = [
        rule.code
        for rule in plan.rules
        if rule.code not in plan.allowed
        and (rule.code not in unchecked or (rule.code in checked.partly and counts.get(rule.code)))
    ]
    return {code: counts.get(code, 0) for code in codes}, unchecked


def within(
    budget: Budget, found: Mapping[str, int], unchecked: Mapping[str, str], plan: Plan
) -> Value:
    """The findings that a budget on some rules counts; unknown if none, and one was not checked."""
    count = sum(found.get(rule, 0) for rule in budget.rules)
    gaps = {rule: unchecked[rule] for rule in budget.rules if rule in unchecked}
    gaps |= {
        rule: "switched off by --torchprof-ignore" for rule in budget.rules if rule in plan.ignored
    }
    gaps = {rule: why for rule, why in gaps.items() if rule not in plan.allowed}
    if count or not gaps:
        return count
    reasons = dict.fromkeys(gaps.values())
    said = [f"{', '.join(r for r in gaps if gaps[r] == why)}: {why}" for why in reasons]
    return NotMeasured("; ".join(said))


def placed(
    recorder: Recorder, profile: Profile, baseline: Baseline | None, roots: Roots, *, accept: bool
) -> tuple[Finding, ...]:
    """The findings with their places; those that fail nothing are accepted."""
    more = grown(profile, baseline)
    allowed = recorder.plan.allowed
    return tuple(
        replace(
            finding,
            location=roots.relative(finding.location),
            accepted=accept or finding.rule in allowed or finding.rule not in more,
            reason=allowed.get(finding.rule),
        )
        for finding in _found(recorder)
    )


def _found(recorder: Recorder) -> tuple[Finding, ...]:
    """By line if possible; what goes wrong with lines decides nothing."""
    if recorder.located is not None:
        try:
            return recorder.checked.findings(recorder.located)
        except Exception as error:  # noqa: BLE001 - the numbers are right all the same
            recorder.lines_gap = recorder.broke(error)
            recorder.located = None
    return recorder.checked.findings(by_operator)


def offered(profile: Profile, baseline: Baseline | None, plan: Plan) -> dict[str, int]:
    """What ``--accept`` would write: what was found, and what was not looked for as it was."""
    known = {rule.code for rule in plan.rules} | plan.ignored
    kept = {} if baseline is None else baseline.findings
    left = {
        rule: int(count)
        for rule, count in kept.items()
        if rule in known and rule not in profile.compared and rule not in plan.allowed
    }
    counts = {**left, **{rule: count for rule, count in profile.compared.items() if count}}
    return dict(sorted(counts.items()))


# -------------------------------------------------------------------- places


def lines_gap(recorder: Recorder) -> str | None:
    """Why places are not known, or not all."""
    if recorder.located is None:
        return recorder.lines_gap or _ONLY_RUN
    return recorder.lines_gap


class Roots:
    """The folder below which locations are shown, as it is spelt and as it is."""

    def __init__(self, root: Path) -> None:
        self._prefixes = {f"{path}{os.sep}" for path in (root, root.resolve())}

    def relative(self, location: str | None) -> str | None:
        """``file:line`` as people read it; a test's patches of paths may be in place."""
        for prefix in self._prefixes:
            if location is not None and location.startswith(prefix):
                return location[len(prefix) :].replace(os.sep, "/")
        return location


class Whereabouts:
    """Says where an operator was called in the measured region."""

    def __init__(
        self, trace: Trace, placing: Placing, roots: Roots, name_of: Callable[[str], str]
    ) -> None:
        self._trace, self._placing, self._roots, self._name_of = trace, placing, roots, name_of

    def __call__(self, name: str) -> list[tuple[str, str | None, int]]:
        """(location, module, calls), the most calls first; of an unknown location nothing."""
        trace = self._trace
        named = trace.names_where(lambda known: self._name_of(known) == name)
        kinds = trace.is_kind(Kind.OP, Kind.ANNOTATION)
        calls = np.flatnonzero(named & trace.selection & kinds)
        try:
            places, at = self._placing(trace, calls)
        except Exception:  # noqa: BLE001 - a failure without lines is a failure
            return []
        count: Counter[tuple[str, str | None]] = Counter()
        for place, calls_there in enumerate(np.bincount(at, minlength=len(places)).tolist()):
            location = self._roots.relative(places[place].location)
            if location is not None and calls_there:
                count[location, places[place].module] += calls_there
        return [(*where, n) for where, n in sorted(count.items(), key=lambda c: (-c[1], c[0]))]
