"""The message of a failing test: at most 12 lines, the cause first, the next command last."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytest_torchprof.analysis.diff import COLUMN_OF, ESTIMATE_COLUMN_OF, Delta, deltas
from pytest_torchprof.core.units import (
    change_of_count,
    format_change,
    format_pair,
    format_quantity,
    format_spread,
    format_tolerance,
    plural,
)
from pytest_torchprof.core.values import (
    Baseline,
    Cause,
    Finding,
    MissingValue,
    Number,
    Profile,
    Verdict,
    named_rank,
)
from pytest_torchprof.render import escape
from pytest_torchprof.render.ab import changes
from pytest_torchprof.render.escape import shorten
from pytest_torchprof.render.findings import Where, accepted_counts, called_from, finding_lines
from pytest_torchprof.verdict.compare import SLOW_CODE
from pytest_torchprof.verdict.own import metric_of
from pytest_torchprof.verdict.profile import is_rate

if TYPE_CHECKING:
    from pytest_torchprof.core.unknown import Reason
    from pytest_torchprof.verdict.judgement import Failure, FailureKind
    from pytest_torchprof.verdict.paired import Decision

MAX_LINES = 12
_COLUMN_OF = {**COLUMN_OF, **ESTIMATE_COLUMN_OF}
_MOST_CAUSES, _MOST_EVIDENCE, _MOST_COSTS, _WIDTH = 3, 3, 3, 100

_SENTENCES: Mapping[FailureKind, str] = {
    "over_budget": "over budget",
    "below_budget": "below its minimum",
    "regressed": "regressed against the baseline",
    "budget_unchecked": "strict: the budget {metric} could not be checked: {reason}",
    "metric_unchecked": "strict: {metric} is in the baseline and was not measured: {reason}",
    "metric_advises": "strict: {metric} differs from the baseline: {reason}",
    "metric_new": "strict: the baseline has no {metric}",
    "improved": "strict: improved, but the improvement is not accepted",
    "no_baseline": "strict: no baseline for this environment",
    "comparison_unchecked": "strict: {metric} was compared in the test, and not measured",
    "comparisons_unchecked": "strict: the test compares numbers that were not measured: {reason}",
    "baseline_unchecked": "strict: it has a baseline and could not be measured: {reason}",
}


def sentence(failure: Failure) -> str:
    """The text for a failure.

    >>> from pytest_torchprof.verdict.judgement import Failure
    >>> sentence(Failure("metric_new", "flops"))
    'strict: the baseline has no flops'
    """
    return _SENTENCES[failure.kind].format(
        metric=failure.metric, reason=failure.reason and failure.reason.text
    )


def short_message(failures: Sequence[Failure]) -> str | None:
    """One line for a failing test that has no numbers to show; None if it does not fail."""
    return escape.line("; ".join(map(sentence, failures))) if failures else None


def failure_message(
    failures: Sequence[Failure],
    verdicts: Sequence[Verdict],
    profile: Profile,
    baseline: Baseline | None,
    accept_command: str | None,
    *,
    causes: Sequence[Cause] = (),
    same_as: str | None = None,
    ab_command: str | None = None,
    where: Where | None = None,
    lines_gap: Reason | None = None,
) -> str:
    """Why a test fails: the cause and what it costs, what shows it, the metrics, how to accept.

    ``accept_command`` is None while accepting. ``same_as`` is another test of the session that
    fails for the first of the causes, whose others are told as well. ``ab_command`` compares times
    reliably. ``where`` says where operators were called, and ``lines_gap`` why that is unknown.
    """
    bad = [v for v in verdicts if v.status in ("regressed", "over_budget")]
    bad += [v for v in verdicts if v.status == "improved"] if not bad else []
    over = [v for v in bad if v.status == "over_budget"]
    changed = [v for v in bad if v.status != "over_budget"]
    acceptable = accept_command is not None and (
        bool(changed) or any(one.kind in _ACCEPTABLE for one in failures)
    )
    tail = [f"accept: {accept_command}"] if acceptable else []
    if ab_command and any(v.multiples for v in bad):
        tail.insert(0, f"to confirm the time: {ab_command}")
    if same_as is not None and causes and all(one.kind == "regressed" for one in failures):
        place = f" ({causes[0].place})" if causes[0].place else ""
        also = [f"  also {_headline(one, changed, alone=False)}" for one in causes[1:_MOST_CAUSES]]
        lines = [f"same cause as {same_as}{place}", *also, *_metric_lines(changed, 1)]
        return "\n".join(map(escape.line, [*lines, *tail]))
    told = [_told(v) for v in over]
    told += [_headline(cause, changed, alone=not causes[1:]) for cause in causes]
    others = [one for one in failures if one.kind not in _IN_NUMBERS or not told]
    headline = _unexplained(changed) if not told else ""
    said = headline + "; ".join(map(sentence, others[:3]))
    told += [said] if said else []
    numbers = _metric_lines(changed[1:] if headline else changed, 2)
    beside = [f"  {line}" for v in bad for line in (*_beside(v), *_by_rank(v, profile, baseline))]
    unexplained = not causes and any(v.status == "regressed" for v in changed)
    if unexplained and baseline is not None and baseline.detail is None:
        beside.append("  no cause is known: the baseline has no detail for these numbers")
    if lines_gap is not None and (causes or over):
        beside.append(f"  your lines are unknown: {lines_gap.text}")
    if len(told) > _MOST_CAUSES:
        beside.append(f"  … and {plural(len(told) - _MOST_CAUSES, 'more cause')}")
    most = MAX_LINES - 1 - len(tail)
    room = max(most - len(numbers) - len(beside), 2)
    places = {cause.place for cause in causes}
    findings = _behind(over, places, profile)
    evidence = [f"  {line}" for cause in causes[:1] for line in _evidence(cause, findings)]
    also = [f"  also {line}" for line in told[1:_MOST_CAUSES]]
    evidence = [*also, *evidence] if over else [*evidence, *also]  # after what it shows
    fewer = _fewer(changed, profile, baseline, where)
    evidence = [*evidence, *_largest(over, profile, where), *fewer][:room]
    if room > len(evidence):
        before = accepted_counts(profile, baseline)
        evidence += finding_lines(findings, before, room - len(evidence))
    shown = [*evidence, *numbers, *beside][:most]
    lines = [told[0], *shown, *tail]
    return "\n".join(map(escape.line, lines))  # one line each, whatever a name contains


#: Metrics of which a cause knows its share, from the rows of a detail.
_BY_ROW = frozenset({"ops", "flops", "moved_bytes"})
_ACCEPTABLE = frozenset({"no_baseline", "metric_new", "metric_advises"})
#: Reasons that are causes.
_TOLD = frozenset({SLOW_CODE, "gradients_add_up", "fewer_zero_grads"})
#: Failures that the numbers of the message say.
_IN_NUMBERS = frozenset({"over_budget", "below_budget", "regressed"})


def _headline(cause: Cause, changed: Sequence[Verdict], *, alone: bool) -> str:
    """``model.py:59 (Block.forward): clone ×6 is new — moved_bytes +12 %``."""
    cost = _cost(cause, changed, alone=alone)
    return f"{cause.headline} — {cost}" if cost else cause.headline


def _unexplained(changed: Sequence[Verdict]) -> str:
    """``ops 4 → 5 (+25.0 %), 2 more:``, so that a one-line summary names the metric."""
    if not changed:
        return ""
    more = f", {len(changed) - 1} more" if changed[1:] else ""
    return f"{changed[0].label} {_numbers(changed[0]).replace('  ', ' ')}{more}: "


def _cost(cause: Cause, changed: Sequence[Verdict], *, alone: bool) -> str:
    """What a cause adds to the metrics that are worse, the largest share first."""
    found: list[tuple[float, str]] = []
    for v in changed:
        if isinstance(v.value, MissingValue) or v.baseline is None or v.region or v.scope:
            continue
        whole = v.value - v.baseline
        rest = whole if alone and v.metric not in _BY_ROW else 0
        part = min(cause.metrics.get(v.metric, rest), whole)
        if part <= 0 or v.metric == "findings":
            continue
        unit = metric_of(v).unit
        share = part / v.baseline if v.baseline else float("inf")
        count = unit == "1" or not v.baseline
        text = f"+{format_quantity(part, unit)}" if count else format_change(1, 1 + share)
        found.append((share, f"{v.label} {text}"))
    found.sort(key=lambda one: -one[0])
    return ", ".join(text for _, text in found[:_MOST_COSTS])


def _evidence(cause: Cause, findings: Iterable[Finding]) -> list[str]:
    """What shows a cause; ``findings`` have lines of their own."""
    lines = list(cause.evidence[:_MOST_EVIDENCE])
    if cause.finding is not None and all(one.rule != cause.finding for one in findings):
        lines += [f"fix: {cause.fix}"] if cause.fix else []
    return lines


def _told(verdict: Verdict) -> str:
    """A limit and the value: ``ops 8 is over the budget of 5``."""
    if isinstance(verdict.value, MissingValue) or not verdict.is_below:
        unit = metric_of(verdict).unit
        if isinstance(verdict.value, MissingValue):
            return f"{verdict.label} {_numbers(verdict)}"
        now, limit = format_pair(verdict.value, verdict.limit, unit)
        least = "at least " if verdict.at_least else ""
        return f"{verdict.label} {least}{now} is over the budget of {limit}{_source(verdict)}"
    now, least = format_pair(verdict.value, verdict.least, metric_of(verdict).unit)
    return f"{verdict.label} {now} is below the minimum of {least}{_source(verdict)}"


def _metric_lines(changed: Sequence[Verdict], most: int) -> list[str]:
    """``ops 237 → 243 (+2.5 %), peak_cpu_bytes +9 %``, in so many lines."""
    words = [f"{v.label} {_numbers(v)}" for v in changed]
    lines: list[str] = []
    for number, word in enumerate(words):
        if lines and len(lines[-1]) + len(word) < _WIDTH:
            lines[-1] += f", {word}"
        elif len(lines) < most:
            lines.append(f"  {word}")
        else:
            lines[-1] += f", … {len(words) - number} more"
            break
    return lines


def _largest(over: Sequence[Verdict], profile: Profile, where: Where | None) -> list[str]:
    """Which operators have most of what is over its budget, and where they are called."""
    lines = []
    for verdict in over:
        column, scope = _COLUMN_OF.get(verdict.metric), verdict.scope
        if verdict.is_below:
            continue
        if scope is not None and scope.op is not None:
            at = called_from(where(scope.op)) if where is not None else ""
            lines += [f"  {scope.op} is called at {at}"] if at else []
            continue
        part = profile
        if scope is not None:
            if scope.region is None or scope.region not in profile.regions:
                continue
            part = profile.regions[scope.region]
        if column is None:
            continue
        unit = metric_of(verdict).unit
        of = f" {verdict.metric}" if unit == "1" else ""

        def called(name: str, of: str = of) -> str:
            at = called_from(where(name)) if where is not None else ""
            return f"{of}  {at}" if at else of

        rows = share_block("", _in_unit(part.operators, column), column, unit, called)
        lines += [f"  {line.strip()}" for line in rows[1 : 1 + _MOST_EVIDENCE]]
    return list(dict.fromkeys(lines))


def _fewer(
    changed: Sequence[Verdict], profile: Profile, baseline: Baseline | None, where: Where | None
) -> list[str]:
    """Which operators have less of the first metric that improved, and where the rest is called."""
    known = [v for v in changed if v.status == "improved" and v.metric in _COLUMN_OF]
    if not (known and baseline and profile.operators) or known[0].region or known[0].scope:
        return []
    column, unit = _COLUMN_OF[known[0].metric], metric_of(known[0]).unit

    def called(name: str) -> str:
        at = called_from(where(name)) if where is not None else ""
        return f"  {at}" if at else ""

    before, now = (_in_unit(one.operators, column) for one in (baseline, profile))
    less = [one for one in deltas(before, now, column) if one.now < one.before]
    return [f"  {line.strip()}" for line in operator_block("", less, unit, called)[1:]]


def _behind(
    over: Sequence[Verdict], places: Collection[str | None], profile: Profile
) -> Collection[Finding]:
    """The findings over a budget: it counts accepted ones, but not those that a marker allows.

    Then what else is advised where the causes are.
    """
    shown: dict[Finding, None] = {}
    for verdict in over:
        rules = verdict.scope.rules if verdict.scope is not None else ()
        for finding in profile.findings:
            own = verdict.label == profile.gated.get(finding.rule)
            counts = own or (verdict.metric == "findings" and finding.rule in profile.found)
            if counts and (own or not rules or finding.rule in rules):
                shown[finding] = None
    for finding in profile.findings:
        if finding.listed and not (finding.accepted or finding.gated or finding.cost_ms == 0):
            shown |= {finding: None} if finding.location in places else {}
    return shown


def inline_mismatch(
    expected: str, actual: str, accept_command: str, refusal: str | None = None
) -> str:
    """The difference between an inline expectation and the measurement, and what to do about it.

    ``refusal`` says why accepting cannot rewrite the expectation, if it cannot.
    """
    diff = difflib.unified_diff(
        expected.splitlines(), actual.splitlines(), "expected", "measured", lineterm="", n=1
    )
    lines = list(diff)[: MAX_LINES - 3]
    changes = inline_changes(expected, actual).items()
    headline = next((f"{name} {before} → {now}: " for name, (before, now) in changes), "")
    message = [
        f"{headline}the inline expectation does not match",
        *(f"  {line}" for line in lines),
        f"accept: {accept_command}"
        if refusal is None
        else f"--accept cannot write the new values: the line {refusal}",
    ]
    return "\n".join(map(escape.line, message))


def inline_changes(expected: str, actual: str) -> dict[str, tuple[str, str]]:
    """Metric → (expected, measured), for lines that differ in more than whitespace."""
    before, now = (
        {row.split()[0]: " ".join(row.split()[1:]) for row in text.splitlines() if row.strip()}
        for text in (expected, actual)
    )
    return {
        name: (value, now[name])
        for name, value in before.items()
        if value and now.get(name, value) != value
    }


def _numbers(verdict: Verdict) -> str:
    unit = metric_of(verdict).unit
    if isinstance(verdict.value, MissingValue):
        if verdict.is_below:
            least = format_quantity(verdict.least, unit)
            return f"must be at least {least}, but {verdict.value.reason.text}"
        return f"not measured: {verdict.value.reason.text}"
    if verdict.is_below:
        now, least = format_pair(verdict.value, verdict.least, unit)
        return f"must be at least {least} but measured {now}{_source(verdict)}"
    if verdict.status == "over_budget" and verdict.limit is not None:
        now, limit = format_pair(verdict.value, verdict.limit, unit)
        least = "at least " if verdict.at_least else ""
        return f"limited to {limit} but measured {least}{now}{_source(verdict)}"
    if verdict.baseline is None:
        return format_quantity(verdict.value, unit)
    before, now = format_pair(verdict.baseline, verdict.value, unit)
    near = metric_of(verdict).klass != "exact"  # elsewhere it is the same few bytes in each line
    tolerance = format_tolerance(verdict.tolerance, verdict.margin, unit) if near else ""
    tolerance = f", tolerance {tolerance}" if tolerance else ""
    change = _change(verdict, verdict.baseline, verdict.value)
    told = verdict.reason is not None and verdict.reason.code not in _TOLD
    reason = f"; {verdict.reason.text}" if verdict.reason and told else ""
    if verdict.multiples:
        return f"{before} → {now}  ({change}){reason}"
    least = "at least " if verdict.at_least else ""
    return f"{before} → {least}{now}  ({change}{tolerance}){reason}"


def _change(verdict: Verdict, before: Number | None, now: Number | None) -> str:
    """As many findings may be others than before."""
    others = verdict.metric == "findings" and verdict.status == "regressed"
    return (change_of_count if others else format_change)(before, now)


def _source(verdict: Verdict) -> str:
    """Where the limit stands, if not in a marker."""
    return f"  ({verdict.source})" if verdict.source else ""


def _beside(verdict: Verdict) -> list[str]:
    """How a time was compared, and how noisy it is."""
    lines = []
    if verdict.multiples:
        before, now = format_pair(*verdict.multiples, "1")
        tolerance = format_tolerance(verdict.tolerance, 0, "1")
        change = f"{format_change(*verdict.multiples)}, tolerance {tolerance}"
        rate = verdict.own is not None and is_rate(verdict.own.unit)
        what = "best rate × time of the" if rate else "fastest round /"
        lines.append(f"{what} reference kernel: {before} → {now}  ({change})")
    if (sample := verdict.sample) is not None and sample.n > 1:
        unit = metric_of(verdict).unit
        low, high, least = (
            format_quantity(part, unit) for part in (sample.low, sample.high, sample.minimum)
        )
        spread = format_spread(sample.spread)
        lines.append(f"{sample.n} rounds, {spread}: quartiles {low} and {high}, fastest {least}")
    return lines


def _by_rank(verdict: Verdict, profile: Profile, baseline: Baseline | None) -> list[str]:
    """Which processes of the test changed the metric, or have how much of it."""
    if not profile.ranks or verdict.region is not None or verdict.scope is not None:
        return []
    unit = metric_of(verdict).unit
    before = {} if baseline is None else baseline.ranks
    shown: list[str] = []
    alike = 0
    for label, metrics in profile.ranks.items():
        value, accepted = metrics.get(verdict.metric), before.get(label, {}).get(verdict.metric)
        if value is None or isinstance(value, MissingValue):
            continue
        if verdict.status == "over_budget" or accepted is None:
            shown.append(f"{named_rank(label)} {format_quantity(value, unit)}")
        elif value != accepted:
            shown.append(f"{named_rank(label)} {' → '.join(format_pair(accepted, value, unit))}")
        else:
            alike += 1
    shown += [f"gone: {named_rank(label)}" for label in before if label not in profile.ranks]
    if len(shown) > _MOST_CAUSES:
        shown[_MOST_CAUSES:] = [f"{len(shown) - _MOST_CAUSES} more"]
    same = f"; {alike} unchanged" if alike and shown else ""
    return [f"{verdict.label} by process: {', '.join(shown)}{same}"] if shown else []


def _in_unit(operators: Mapping[str, Mapping[str, int]], column: str) -> Mapping[str, Any]:
    """The column in the unit of its metric: whole nanoseconds are of one in ms."""
    if not column.endswith("_ns"):
        return operators
    return {name: {column: row.get(column, 0) / 1e6} for name, row in operators.items()}


def share_block(
    title: str,
    operators: Mapping[str, Mapping[str, int]],
    column: str,
    unit: str,
    called: Callable[[str], str] = lambda _: "",
) -> list[str]:
    """The operators that have most of a column, the largest first; ``called`` adds places."""
    sizes = sorted((-row.get(column, 0), name) for name, row in operators.items())
    lines = [
        f"    {shorten(name, 60)}  {format_quantity(-size, unit)}{called(name)}"
        for size, name in sizes[:_MOST_CAUSES]
        if size < 0
    ]
    return [f"  {title}:", *lines] if lines else []


def operator_block(
    title: str, found: Sequence[Delta], unit: str, called: Callable[[str], str] = lambda _: ""
) -> list[str]:
    """The operators that account for a difference, the largest first; ``called`` adds places."""
    if not found:
        return []
    lines = [f"  {title}:"]
    for delta in found[:_MOST_CAUSES]:
        before, now = format_pair(delta.before, delta.now, unit)
        name = shorten(delta.name, 60)
        lines.append(f"    {delta.change:<9} {name}  {before} → {now}{called(delta.name)}")
    if len(found) > _MOST_CAUSES:
        lines.append(f"    … and {len(found) - _MOST_CAUSES} more")
    return lines


# ---- The comparison of two callables in a test, as text.


def comparison_line(a_ms: float, b_ms: float, decision: Decision) -> str:
    """``a 1 ms, b 1.1 ms: +10.2 % (+9.1 … +11.4 %), slower, 40 pairs``."""
    why = f" ({decision.reason.text})" if decision.reason is not None else ""
    pairs = plural(decision.pairs, "pair")
    return f"{_times(a_ms, b_ms, decision)}, {decision.verdict}, {pairs}{why}"


def slower_message(
    a_ms: float, b_ms: float, decision: Decision, share: float, names: tuple[str, str]
) -> str:
    """Why a test fails whose callable ``b`` is slower than ``a`` by more than this share.

    ``names`` are those of the callables in the code.
    """
    limit = format_quantity(100 * share, "1")
    sure, pairs = f"{100 * decision.confidence:g}", plural(decision.pairs, "pair")
    lines = [
        f"{_times(a_ms, b_ms, decision)}, slower by more than {limit} %",
        f"  a is {names[0]}, b is {names[1]}; {sure} % confidence, {pairs} of turns",
    ]
    return "\n".join(map(escape.line, lines))


def _times(a_ms: float, b_ms: float, decision: Decision) -> str:
    a, b = format_pair(a_ms, b_ms, "ms")
    change, interval = changes(decision)
    return f"a {a}, b {b}: {change} ({interval})"
