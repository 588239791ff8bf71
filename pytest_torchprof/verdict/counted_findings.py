"""What the rules found in a test's trace: how often, where, and whether it is accepted."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_torchprof.core.reasons import Reason, Why, because
from pytest_torchprof.core.results import MissingValue
from pytest_torchprof.rules.engine.check import lacking
from pytest_torchprof.verdict.decision import new_findings

if TYPE_CHECKING:
    from pytest_torchprof.core.results import Baseline, Budget, Finding, Profile, Value
    from pytest_torchprof.places.roots import Roots
    from pytest_torchprof.rules.engine.check import Checked
    from pytest_torchprof.rules.engine.rule import Rule
    from pytest_torchprof.verdict.measured import Measured


def found_in(
    checked: Checked, rules: Sequence[Rule], allowed: Collection[str]
) -> tuple[dict[str, int], dict[str, Reason]]:
    """(matches of each checked rule that is not allowed; why others were not checked)."""
    unchecked = {
        rule: because(Why.RULE_RAISED, error=error) for rule, error in checked.errors.items()
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
    gaps |= {rule: because(Why.RULE_IGNORED) for rule in budget.rules if rule in ignored}
    gaps = {rule: why for rule, why in gaps.items() if rule not in allowed}
    if count or not gaps:
        return count
    each = tuple(
        because(Why.OF_RULES, rules=tuple(rule for rule in gaps if gaps[rule] == why), why=why)
        for why in dict.fromkeys(gaps.values())
    )
    return MissingValue(because(Why.SEVERAL, gaps=each))


def placed(
    findings: Iterable[Finding],
    measured: Measured,
    profile: Profile,
    baseline: Baseline | None,
    roots: Roots,
    *,
    accept: bool,
) -> tuple[Finding, ...]:
    """The findings with readable places; those that do not fail the test count as accepted."""
    more, allowed = new_findings(profile, baseline), measured.allowed

    def placed_one(finding: Finding) -> Finding:
        reason, here = allowed.get(finding.rule), None
        if measured.allowances:
            from pytest_torchprof.verdict.allowances import allowance_of

            here = allowance_of(finding, measured.allowances)
        return replace(
            finding,
            location=roots.relative(finding.location),
            accepted=reason is not None
            or here is not None
            or finding.rule not in more
            or (accept and finding.gated),
            reason=reason if here is None else here.reason,
        )

    return tuple(map(placed_one, findings))


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
