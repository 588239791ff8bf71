"""Counted findings of a test, and those that a marker allows in one place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from msgspec.structs import replace as struct_replace

from pytest_torchprof.core.records import Frozen
from pytest_torchprof.core.unknown import Reason, Why, because
from pytest_torchprof.core.values import Baseline, MissingValue
from pytest_torchprof.places.place import PATH_SEPARATOR, by_operator
from pytest_torchprof.rules.check import lacking
from pytest_torchprof.verdict.compare import new_findings

if TYPE_CHECKING:
    from pytest_torchprof.core.values import Budget, Finding, Profile, Value
    from pytest_torchprof.places.place import Roots
    from pytest_torchprof.rules.check import Checked
    from pytest_torchprof.rules.rule import Rule
    from pytest_torchprof.verdict.profile import Measured


# ---- What the rules found in a test's trace: how often, where, and whether it is accepted.


def found_in(
    checked: Checked, rules: Sequence[Rule], allowed: Collection[str]
) -> tuple[dict[str, int], dict[str, Reason]]:
    """(matches of each checked rule that is not allowed; why others were not checked)."""
    unchecked = {
        rule: because(*Why.RULE_RAISED, error=error) for rule, error in checked.errors.items()
    }
    # The engine skips rules that nothing here could trigger; on a device, something might.
    asked = [rule for rule in rules if rule.code not in unchecked]
    others = [rule for rule in asked if rule.code not in checked.unchecked]
    gaps = {**checked.unchecked, **lacking(checked.trace, others)}
    unchecked |= {rule.code: gaps[rule.code] for rule in asked if rule.code in gaps}
    counts = checked.counts
    # Findings count even if the rule could not see everything.
    unchecked |= {code: why for code, why in checked.partly.items() if code not in unchecked}
    codes = [
        rule.code
        for rule in rules
        if rule.code not in allowed
        and (rule.code not in unchecked or (rule.code in checked.partly and counts.get(rule.code)))
    ]
    return {code: counts.get(code, 0) for code in codes}, unchecked


def findings_within(
    budget: Budget,
    found: Mapping[str, int],
    unchecked: Mapping[str, Reason],
    *,
    allowed: Collection[str],
    ignored: Collection[str],
) -> Value:
    """The findings that a budget on some rules counts; unknown if 0 and a rule was not checked."""
    count = sum(found.get(rule, 0) for rule in budget.rules)
    gaps = {rule: unchecked[rule] for rule in budget.rules if rule in unchecked}
    gaps |= {
        rule: because("rule_ignored", "switched off by --torchprof-ignore")
        for rule in budget.rules
        if rule in ignored
    }
    gaps = {rule: why for rule, why in gaps.items() if rule not in allowed}
    if count or not gaps:
        return count
    each = tuple(
        because(
            "of_rules",
            "{rules:, }: {why}",
            rules=tuple(rule for rule in gaps if gaps[rule] == why),
            why=why,
        )
        for why in dict.fromkeys(gaps.values())
    )
    return MissingValue(because(*Why.SEVERAL, gaps=each))


def placed(
    findings: Iterable[Finding],
    measured: Measured,
    profile: Profile,
    baseline: Baseline | None,
    roots: Roots,
    *,
    time_ms: float | None,
    accept: bool,
) -> tuple[Finding, ...]:
    """The findings with readable places; those that do not fail the test count as accepted.

    One in a test's own file only advises, unless a budget counts it. ``time_ms`` is the test's.
    """
    more, allowed, asked = new_findings(profile, baseline), measured.allowed, _asked(measured)
    memory = _about_memory(measured)

    def placed_one(finding: Finding) -> Finding:
        rule, reason, here = finding.rule, allowed.get(finding.rule), None
        if measured.allowances:
            here = allowance_of(finding, measured.allowances)
        in_test = rule not in asked and roots.are_of_test(finding.location, finding.path)
        gated = finding.gated and (not in_test or rule in profile.gated)
        forgiven = reason is not None or here is not None
        accepted = forgiven or (gated and (accept or rule not in more))
        fails = gated and not accepted and baseline is not None
        worth = is_listed(finding, None if rule in memory else time_ms, in_test=in_test)
        return replace(
            finding,
            location=roots.relative(finding.location),
            accepted=accepted,
            reason=reason if here is None else here.reason,
            gated=gated,
            listed=worth or fails or rule in asked,
        )

    return tuple(map(placed_one, findings))


# ---- Whose code a finding is about. What a test's own file does is no finding about the library
# under test, unless a marker asks. Places are only known after a run that looks for them.

#: What saves less than both is told only by ``-v`` and in the JSON report.
_LEAST_MS, _LEAST_SHARE = 1.0, 0.01


def is_listed(finding: Finding, time_ms: float | None, *, in_test: bool) -> bool:
    """Whether reports show it: it is about the library, and what it saves matters, or is unknown.

    ``time_ms`` is that of the whole test, None if it is unknown.
    """
    least_ms = 0.0 if time_ms is None else min(_LEAST_MS, time_ms * _LEAST_SHARE)
    return not in_test and (finding.cost_ms is None or finding.cost_ms >= least_ms)


def _asked(measured: Measured) -> set[str]:
    """The rules whose findings a budget counts, wherever they are."""
    return {
        rule.code
        for rule in measured.rules
        for budget in measured.budgets
        if budget.metric == rule.gated_by
        or (budget.metric == "findings" and (not budget.rules or rule.code in budget.rules))
    }


def _about_memory(measured: Measured) -> set[str]:
    """The rules of which a match matters even if it takes no time."""
    return {rule.code for rule in measured.rules if rule.memory}


def time_of(profile: Profile) -> float | None:
    """The test's time in ms, None if it was not measured."""
    value = profile.metrics.get("wall_ms")
    return None if isinstance(value, MissingValue) else value


def worth_locating(measured: Measured, profile: Profile, baseline: Baseline | None) -> bool:
    """Whether a finding that is not accepted will be listed if it is not in a test's own file."""
    more, time_ms = new_findings(profile, baseline), time_of(profile)
    memory = _about_memory(measured)
    return any(
        finding.rule in more
        and is_listed(finding, None if finding.rule in memory else time_ms, in_test=False)
        for checked in (measured.checked, *(one.checked for one in measured.processes))
        for finding in checked.findings(by_operator)
    )


def counted_in_tests(
    findings: Iterable[Finding], measured: Measured, roots: Roots
) -> dict[str, int]:
    """By rule, how many of the findings, which have places, are not about the library."""
    asked, counts = _asked(measured), Counter[str]()
    for one in findings:
        in_test = one.rule not in asked and roots.are_of_test(one.location, one.path)
        if in_test and allowance_of(one, measured.allowances) is None:
            counts[one.rule] += one.count
    return dict(counts)


def with_findings_in_tests(
    profile: Profile,
    measured: Measured,
    baseline: Baseline | None,
    counted: Mapping[str | None, Mapping[str, int]] | None,
) -> Profile:
    """The profile that tells findings in tests' own files; ``counted`` are those of each part.

    Where it is None, as places are unknown, and of rules that a budget counts wherever they match,
    they are those beyond the accepted ones of the library, but no more than accepted.
    """
    asked = _asked(measured)

    def told(name: str | None, part: Profile, accepted: Baseline | None) -> Profile:
        before = accepted or Baseline()
        own = {
            rule: max(min(part.found.get(rule, 0) - before.findings.get(rule, 0), number), 0)
            for rule, number in before.findings_in_tests.items()
            if counted is None or rule in asked
        }
        both = {**(counted or {}).get(name, {}), **own}
        kept = {rule: number for rule, number in both.items() if number and rule in part.compared}
        return struct_replace(part, findings_in_tests=kept)

    regions = {
        name: told(name, part, baseline and baseline.regions.get(name))
        for name, part in profile.regions.items()
    }
    return struct_replace(told(None, profile, baseline), regions=regions)


def offered(measured: Measured, profile: Profile, baseline: Baseline | None) -> dict[str, int]:
    """What ``--accept`` would write: new counts, and the old ones of rules not checked now."""
    known = {rule.code for rule in measured.rules} | measured.ignored
    kept = {} if baseline is None else baseline.findings
    left = {
        rule: int(count)
        for rule, count in kept.items()
        if rule in known and rule not in profile.compared and rule not in measured.allowed
    }
    counts = {**left, **{rule: count for rule, count in profile.compared.items() if count}}
    return dict(sorted(counts.items()))


# ---- Findings that a marker allows in one place: at a line, within a module, or in an operator.


class Allowance(Frozen, frozen=True):
    """What ``allow_antipatterns`` allows with a place: rules, the reason, and where.

    ``line`` is ``file`` or ``file:line``, by the end of the path; ``module`` the class or path of a
    module around it, and ``op`` an operator, each by name or glob. All that are given must fit.
    """

    rules: tuple[str, ...]
    reason: str
    op: str | None = None
    module: str | None = None
    line: str | None = None

    @property
    def needs_places(self) -> bool:
        """Whether a line or a module decides."""
        return self.module is not None or self.line is not None

    def may_allow(self, finding: Finding) -> bool:
        """Whether it would allow this finding at some line, in some module."""
        return struct_replace(self, module=None, line=None).allows(finding)

    def allows(self, finding: Finding) -> bool:
        """Whether this finding is at such a place.

        >>> from pytest_torchprof.core.values import Finding
        >>> found = Finding("host-read", 1, "", "src/sampler.py:12", path="aten::item")
        >>> Allowance(("host-read",), "by design", line="sampler.py").allows(found)
        True
        >>> Allowance(("host-read",), "by design", line="sampler.py:1").allows(found)
        False
        """
        if finding.rule not in self.rules:
            return False
        return (
            (self.op is None or _any(self.op, (finding.path or "").split(PATH_SEPARATOR)))
            and (self.module is None or _in_module(self.module, finding.module or ""))
            and (self.line is None or _at_line(self.line, finding.location or ""))
        )


def _any(pattern: str, names: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names)


def _in_module(pattern: str, path: str) -> bool:
    """A module's path, or a part of it, which is an attribute or a class."""
    return bool(path) and _any(pattern, [path, *path.replace(PATH_SEPARATOR, ".").split(".")])


def _at_line(line: str, location: str) -> bool:
    if ":" not in line:
        location = location.rpartition(":")[0]
    return location == line or location.endswith(f"/{line}")


def allowance_of(finding: Finding, allowances: Sequence[Allowance]) -> Allowance | None:
    """The first that allows it; None if none does."""
    return next((one for one in allowances if one.allows(finding)), None)


def wants_places(measured: Measured) -> bool:
    """Whether a line or a module decides if something that was found is allowed."""
    rules = {rule for one in measured.allowances if one.needs_places for rule in one.rules}
    return not rules.isdisjoint(measured.checked.counts)


class _Allowed(Frozen, frozen=True):
    """By rule, how many matches are allowed, and how many may be, at places that are not known."""

    known: dict[str, int]
    unsure: dict[str, int]


def _allowed(measured: Measured) -> _Allowed:
    """What markers allow: rules as a whole, and matches at their places."""
    counts = measured.checked.counts
    known = {
        rule.code: counts[rule.code]
        for rule in measured.rules
        if rule.on_request and rule.code in measured.allowed and rule.code in counts
    }
    whole, unsure = set(known), dict[str, int]()
    findings = measured.checked.findings(measured.located or by_operator)
    for finding in findings if measured.allowances else ():
        if finding.rule in whole:
            continue
        if allowance_of(finding, measured.allowances) is not None:
            known[finding.rule] = known.get(finding.rule, 0) + finding.count
        elif measured.located is None and any(o.may_allow(finding) for o in measured.allowances):
            unsure[finding.rule] = unsure.get(finding.rule, 0) + finding.count
    return _Allowed(known, unsure)


def without_allowed(
    measured: Measured,
    values: dict[str, Value],
    found: dict[str, int],
    unchecked: dict[str, Reason],
) -> tuple[dict[str, Value], dict[str, int], dict[str, Reason]]:
    """Metrics, matches, and rules that were not checked, without what is allowed.

    Where lines or modules are not known, what may be allowed there does not count, and the rest is
    a lower bound.
    """
    allowed = _allowed(measured)
    if not (allowed.known or allowed.unsure):
        return values, found, unchecked
    why = because(
        "places_unknown",
        "what a marker allows at its line or module is not known: {why}",
        why=measured.lines_gap or because(*Why.ONLY_RUN),
    )
    values, metrics = dict(values), {rule.code: _metric_of(rule) for rule in measured.rules}
    for rule, count in allowed.known.items():
        if (metric := metrics[rule]) in values:
            values[metric] = _less(values[metric], count)
    for rule, count in allowed.unsure.items():
        if (metric := metrics[rule]) in values:
            values[metric] = _less(values[metric], count, why)
    total = {
        rule: allowed.known.get(rule, 0) + allowed.unsure.get(rule, 0)
        for rule in {*allowed.known, *allowed.unsure}
    }
    found = {rule: count - total.get(rule, 0) for rule, count in found.items()}
    return values, found, {**unchecked, **dict.fromkeys(allowed.unsure, why)}


def _metric_of(rule: Rule) -> str:
    """The metric that counts a rule's matches."""
    return rule.gated_by if rule.on_request and rule.gated_by else "findings"


def _less(value: Value, count: int, why: Reason | None = None) -> Value:
    """The value without so many; for a reason, that is all that is known."""
    known = value.at_hand if isinstance(value, MissingValue) else value
    left = None if known is None else max(int(known) - count, 0)
    if isinstance(value, MissingValue):
        return struct_replace(value, at_hand=left or None)
    if why is not None:
        return MissingValue(why, left or None, at_least=True)
    return left or 0
