"""The message of a failing test: at most 40 lines, numbers first, the next command last."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytest_torchprof.analysis.diff import COLUMN_OF, ESTIMATE_COLUMN_OF, Delta, deltas
from pytest_torchprof.core.units import (
    format_change,
    format_pair,
    format_quantity,
    format_spread,
    format_tolerance,
    plural,
)
from pytest_torchprof.core.values import (
    Baseline,
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
    from pytest_torchprof.verdict.judgement import Cause, CauseKind
    from pytest_torchprof.verdict.paired import Decision

MAX_LINES = 40
_COLUMN_OF = {**COLUMN_OF, **ESTIMATE_COLUMN_OF}
_MOST_METRICS, _MOST_CAUSES = 12, 5

#: Metrics that are broken down by name of kernel or copy.
_BY_KERNEL = frozenset(
    {
        "kernels",
        "self_cuda_ms",
        "cuda_busy_ms",
        "h2d_copies",
        "d2h_copies",
        "h2d_bytes",
        "d2h_bytes",
    }
)


_SENTENCES: Mapping[CauseKind, str] = {
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


def sentence(cause: Cause) -> str:
    """The text for a cause.

    >>> from pytest_torchprof.verdict.judgement import Cause
    >>> sentence(Cause("metric_new", "flops"))
    'strict: the baseline has no flops'
    """
    return _SENTENCES[cause.kind].format(
        metric=cause.metric, reason=cause.reason and cause.reason.text
    )


def short_message(causes: Sequence[Cause]) -> str | None:
    """One line for a failing test that has no numbers to show; None if it does not fail."""
    return escape.line(f"torchprof: {'; '.join(map(sentence, causes))}") if causes else None


def failure_message(
    causes: Sequence[Cause],
    verdicts: Sequence[Verdict],
    profile: Profile,
    baseline: Baseline | None,
    accept_command: str | None,
    *,
    ab_command: str | None = None,
    where: Where | None = None,
    lines_gap: Reason | None = None,
) -> str:
    """Metric, baseline, now and change; responsible findings, operators and kernels; how to accept.

    ``accept_command`` is None while accepting. ``ab_command`` compares times reliably. ``where``
    says where operators were called, and ``lines_gap`` why that is unknown.
    """
    bad = [v for v in verdicts if v.status in ("regressed", "over_budget")]
    bad += [v for v in verdicts if v.status == "improved"] if not bad else []
    bad.sort(key=lambda v: v.status != "over_budget")
    # Pytest's short summary shows as much of this line as fits.
    lines = [f"torchprof: {_headline(bad)}{'; '.join(map(sentence, causes[:3]))}"]
    width = max((len(v.label) for v in bad), default=0)
    for verdict in bad[:_MOST_METRICS]:
        lines.append(f"  {verdict.label:<{width}}  {_numbers(verdict)}")
        beside = [*_beside(verdict), *_by_rank(verdict, profile, baseline)]
        lines += [f"  {'':<{width}}  {line}" for line in beside]
    if len(bad) > _MOST_METRICS:
        lines.append(f"  … and {len(bad) - _MOST_METRICS} more metrics")
    room = MAX_LINES - len(lines) - 4
    shown, before = _behind(bad, profile), accepted_counts(profile, baseline)
    # Without what gains nothing, which explains nothing.
    told = [f for f in profile.findings if not f.accepted and f.cost_ms != 0]
    advice = [f for f in told if not f.gated and f not in shown]
    behind = finding_lines(shown, before, room)
    behind += finding_lines(advice, before, room - len(behind))
    room -= len(behind)
    says = _Operators(where)
    operators = says.limited(bad)
    if baseline is not None:
        changed = says.explain(bad, profile, baseline)
        over = [v for v in bad if v.status == "over_budget"]
        part = [v for v in over if v.scope is not None]
        operators += changed + says.largest(part if changed else over, profile)
    else:
        operators += says.largest(bad, profile)
    behind += operators[:room]
    lines += behind
    if behind and lines_gap is not None:
        lines.append(f"  your lines are unknown: {lines_gap.text}")
    acceptable = any(v.status in ("regressed", "improved") for v in bad)
    if ab_command and any(v.multiples for v in bad):
        lines += [f"  to confirm the time: {ab_command}"]
    if accept_command and (acceptable or any(c.kind == "no_baseline" for c in causes)):
        lines += ["", f"To accept the new values: {accept_command}"]
    return "\n".join(map(escape.line, lines))  # one line each, whatever a name contains


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
        f"torchprof: {headline}the inline expectation does not match",
        *(f"  {line}" for line in lines),
        f"To accept the new values: {accept_command}"
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


def _headline(bad: Sequence[Verdict]) -> str:
    """``ops 4 → 5 (+25.0 %), 2 more:``, so that a one-line summary names the metric."""
    if not bad or isinstance(bad[0].value, MissingValue):
        return ""
    worst, value = bad[0], bad[0].value
    if worst.reason is not None and worst.reason.code == SLOW_CODE:
        return f"{worst.reason.text}: "  # of one thread, other than the value
    unit = metric_of(worst).unit
    if worst.status == "over_budget":
        now, limit = format_pair(value, worst.least if worst.is_below else worst.limit, unit)
        numbers = f"{now} {'<' if worst.is_below else '>'} {limit}"
    else:
        before, now = format_pair(worst.baseline, value, unit)
        least = "at least " if worst.at_least else ""
        numbers = f"{before} → {least}{now} ({format_change(*_compared(worst))})"
    more = f", {len(bad) - 1} more" if bad[1:] else ""
    return f"{shorten(worst.label, 40)} {numbers}{more}: "


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
    change = format_change(verdict.baseline, verdict.value)
    told = verdict.reason is not None and verdict.reason.code != SLOW_CODE
    reason = f"; {verdict.reason.text}" if verdict.reason and told else ""
    if verdict.multiples:
        return f"{before} → {now}  ({change}){reason}"
    least = "at least " if verdict.at_least else ""
    return f"{before} → {least}{now}  ({change}{tolerance}){reason}"


def _source(verdict: Verdict) -> str:
    """Where the limit stands, if not in a marker."""
    return f"  ({verdict.source})" if verdict.source else ""


def _compared(verdict: Verdict) -> tuple[Number | None, Number | None]:
    """The two numbers that the verdict compares."""
    value = None if isinstance(verdict.value, MissingValue) else verdict.value
    return verdict.multiples or (verdict.baseline, value)


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
    return [f"by process: {', '.join(shown)}{same}"] if shown else []


def _behind(bad: Sequence[Verdict], profile: Profile) -> list[Finding]:
    """The findings that fail the test: those over a budget, or else more than accepted.

    A budget counts findings that the baseline accepts, but not those that a marker allows.
    """
    shown: dict[Finding, None] = {}
    for verdict in bad:
        rules = verdict.scope.rules if verdict.scope is not None else ()
        for finding in profile.findings:
            own = verdict.label == profile.gated.get(finding.rule)
            if verdict.metric != "findings" and not own:
                continue
            if own or verdict.status == "over_budget":
                counts = finding.rule in profile.found
                counts &= not rules or finding.rule in rules
            else:
                counts = not finding.accepted and finding.gated
            if counts:
                shown[finding] = None
    return list(shown)


class _Operators:
    """The operators and kernels behind a metric, and where they were called."""

    def __init__(self, where: Where | None) -> None:
        self._where = where
        self._shown_places: set[str] = set()

    def limited(self, bad: Sequence[Verdict]) -> list[str]:
        """For limits on an operator, the places where it was called."""
        names = [v.scope.op for v in bad if v.scope is not None and not v.is_below]
        places = {name: self._called(name) for name in dict.fromkeys(names) if name}
        return [f"  {shorten(name, 60)} at{text}" for name, text in places.items() if text]

    def explain(self, bad: Sequence[Verdict], profile: Profile, baseline: Baseline) -> list[str]:
        """For each metric, the operators that changed it most; then kernels."""
        lines: list[str] = []
        by_region: dict[str | None, list[Verdict]] = {}
        for verdict in bad:
            if verdict.scope is None:
                by_region.setdefault(verdict.region, []).append(verdict)
        for name, whole in by_region.items():
            now, before = profile, baseline
            if name is not None:
                now = profile.regions[name]
                before = baseline.regions.get(name, Baseline())
            kept = {column for row in before.operators.values() for column in row}
            prefix = "" if name is None else f"{name}: "
            for verdict in whole:
                column = _COLUMN_OF.get(verdict.metric)
                if column is None or verdict.baseline is None:
                    continue
                if metric_of(verdict).on_request and column not in kept:
                    lines += self.largest([verdict], now)
                    continue
                found = deltas(
                    _in_unit(before.operators, column), _in_unit(now.operators, column), column
                )
                title, unit = f"{prefix}{verdict.metric} by operator", metric_of(verdict).unit
                lines += operator_block(title, found, unit, self._called)
            kernels = deltas(_counts(before.kernels), _counts(now.kernels), "calls")
            if any(v.metric in _BY_KERNEL for v in whole):
                lines += operator_block(f"{prefix}kernels by name", kernels, "1")
        return lines

    def largest(self, bad: Sequence[Verdict], profile: Profile) -> list[str]:
        """Without accepted ones, the operators that account for most of it, in a region its own."""
        lines: list[str] = []
        for verdict in bad:
            column, scope = _COLUMN_OF.get(verdict.metric), verdict.scope
            if column is None or verdict.is_below:
                continue
            title, part = f"most {verdict.metric} by operator", profile
            if scope is not None:
                if scope.region is None or scope.region not in profile.regions:
                    continue
                title, part = f"{title}, {scope.region}", profile.regions[scope.region]
            rows = _in_unit(part.operators, column)
            lines += share_block(title, rows, column, metric_of(verdict).unit, self._called)
        return lines

    def _called(self, name: str) -> str:
        """Its places, shown once even if an operator accounts for several metrics."""
        if self._where is None or name in self._shown_places:
            return ""
        self._shown_places.add(name)
        return f"  {text}" if (text := called_from(self._where(name))) else ""


def _in_unit(operators: Mapping[str, Mapping[str, int]], column: str) -> Mapping[str, Any]:
    """The column in the unit of its metric: whole nanoseconds are of one in ms."""
    if not column.endswith("_ns"):
        return operators
    return {name: {column: row.get(column, 0) / 1e6} for name, row in operators.items()}


def _counts(kernels: Mapping[str, int]) -> dict[str, dict[str, int]]:
    return {name: {"calls": count} for name, count in kernels.items()}


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
        f"torchprof: {_times(a_ms, b_ms, decision)}, slower by more than {limit} %",
        f"  a is {names[0]}, b is {names[1]}; {sure} % confidence, {pairs} of turns",
    ]
    return "\n".join(map(escape.line, lines))


def _times(a_ms: float, b_ms: float, decision: Decision) -> str:
    a, b = format_pair(a_ms, b_ms, "ms")
    change, interval = changes(decision)
    return f"a {a}, b {b}: {change} ({interval})"
