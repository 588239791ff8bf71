"""Findings as text, with their places in the source, and the page of a rule."""

from __future__ import annotations

import inspect
import os
import posixpath
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pytest_torchprof.core.process import late
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.core.units import UNKNOWN, format_quantity, plural
from pytest_torchprof.render import escape
from pytest_torchprof.render.escape import shorten, tail, width_of
from pytest_torchprof.rules.registry import RULES

if TYPE_CHECKING:
    from pytest_torchprof.core.values import Baseline, Finding, Profile
    from pytest_torchprof.rules.check import Checked
    from pytest_torchprof.rules.rule import Rule


# ---- Findings as text: one block per rule, with its places, their cost, and the fix once.

FindingRow = Mapping[str, Any]

#: Narrower than this, text is cut to nothing.
_LEAST = 40
_GAP = "  "


def findings(
    rows: Sequence[FindingRow], width: int, every: Sequence[FindingRow] | None = None
) -> str:
    """A block per rule, costliest first, with its places in the order of the rows.

    Headings count ``every`` row, including those not shown.
    """
    width, text = max(width, _LEAST), list[str]()
    for rule in by_cost(every or rows):
        mine = [row for row in rows if row["rule"] == rule]
        whole = [row for row in every or rows if row["rule"] == rule]
        text.append("\n".join(_block(rule, mine, whole, width)))
    return "\n\n".join(text) + "\n"


def by_cost(rows: Sequence[FindingRow]) -> list[str]:
    """The rules that found something, costliest first."""
    cost: dict[str, float] = {}
    for row in rows:
        cost[row["rule"]] = cost.get(row["rule"], 0) + (row["cost_ms"] or 0)
    return sorted(cost, key=lambda rule: (-cost[rule], rule))


def rule_totals(rows: Sequence[FindingRow], *, bytes: bool = True) -> str:  # noqa: A002
    """The totals of a rule: ``3 matches in 2 places, 12.3 ms to gain (1.5 %)``."""
    count = sum(row["count"] for row in rows)
    matches = f"{count:,} match{'' if count == 1 else 'es'}"
    parts = [f"{matches} in {plural(len(rows), 'place')}"]
    if gains := _gains(rows):
        parts.append(gains)
    if bytes and (moved := sum(row["bytes"] or 0 for row in rows)):
        parts.append(format_quantity(moved, "B"))
    return ", ".join(parts)


def _gains(rows: Sequence[FindingRow]) -> str:
    """What can be gained, with its share of the time; of several ranks, which gain it side by side,
    the most.
    """
    costs: dict[object, float] = {}
    for row in rows:
        if row["cost_ms"] is not None:
            whose = row.get("rank", row.get("trace"))
            costs[whose] = costs.get(whose, 0) + row["cost_ms"]
    if not costs:
        return ""
    most = f"{format_quantity(max(costs.values()), 'ms')} to gain"
    if {*costs} - {None}:
        return f"up to {most} on a {'rank' if 'rank' in rows[0] else 'trace'}"
    shares = [row["share"] for row in rows if row.get("share") is not None]
    return f"{most} ({100 * sum(shares):.3g} %)" if shares else most


def _block(
    rule: str, rows: Sequence[FindingRow], whole: Sequence[FindingRow], width: int
) -> list[str]:
    lines = _wrap(f"{rule}: {rule_totals(whole)}", width, "", "  ")
    shared = len({row["message"] for row in whole}) == 1
    if shared:
        lines += _wrap(whole[0]["message"], width, "  ", "  ")
    columns = [_numbers(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*columns, strict=True)]
    for row, cells in zip(rows, columns, strict=True):
        padded = [cell.rjust(w) for cell, w in zip(cells, widths, strict=True) if w]
        lines += _place(row, _GAP + _GAP.join(padded) + _GAP, width, tell=not shared)
    if left := len(whole) - len(rows):
        lines.append(f"  … and {plural(left, 'more place')}")
    for fix in dict.fromkeys(row["fix"] for row in whole if row["fix"]):
        lines += _wrap(f"fix: {fix}", width, "  ", "       ")
    return lines


def _numbers(row: FindingRow) -> tuple[str, ...]:
    rank = f"rank {row['rank']}" if "rank" in row else escape.line(row.get("trace", ""))
    cost = UNKNOWN if row["cost_ms"] is None else format_quantity(row["cost_ms"], "ms")
    moved = format_quantity(row["bytes"], "B") if row["bytes"] else ""
    return rank, f"×{row['count']:,}", cost, moved


def _place(row: FindingRow, head: str, width: int, *, tell: bool) -> list[str]:
    """The lines of a place."""
    room = width - len(head)
    location, path, module = (escape.line(row[key] or "") for key in ("location", "path", "module"))
    if location == path:  # the line is unknown
        path = ""
    parts = [tail(location, room) if path else shorten(location, room)] if location else []
    parts += [shorten(path, room)] if path else []
    more = more_modules(module, row["modules"])
    parts += [f"in {tail(module, room - 3 - len(more))}{more}"] if module else []
    if tell:
        parts += textwrap.wrap(escape.line(row["message"]), room)
    lines = list[str]()
    for part in parts or [UNKNOWN]:
        if lines and width_of(lines[-1]) + len(_GAP) + width_of(part) <= room:
            lines[-1] += _GAP + part
        else:
            lines.append(part)
    return [(head if n == 0 else " " * len(head)) + line for n, line in enumerate(lines)]


def more_modules(module: str | None, modules: int | None) -> str:
    """`` (3 modules)`` after the common path of several, `` and 2 more modules`` after that of the
    first; empty for a single one.
    """
    if (modules or 1) == 1:
        return ""
    if module and "*" in module:
        return f" ({modules} modules)"
    return f" and {plural((modules or 1) - 1, 'more module')}"


def wrapped(lines: Iterable[str], width: int) -> str:
    """Text wrapped to this width, line by line."""
    width = max(width, _LEAST)
    return "".join(f"{line}\n" for long in lines for line in _wrap(long, width, "", "  "))


def _wrap(text: str, width: int, first: str, then: str) -> list[str]:
    return textwrap.wrap(
        escape.line(text), width, initial_indent=first, subsequent_indent=then,
        break_on_hyphens=False, break_long_words=False,
    )  # fmt: skip


def gaps(title: str, why: Mapping[str, str]) -> list[str]:
    """``not checked: a, b (no accelerator in this capture); c (recorded without shapes)``.

    >>> gaps("not checked", {"a": "no shapes", "b": "no device", "c": "no shapes"})
    ['not checked: a, c (no shapes); b (no device)']
    """
    reasons: dict[str, list[str]] = {}
    for rule, reason in why.items():
        reasons.setdefault(reason, []).append(rule)
    listed = "; ".join(f"{', '.join(rules)} ({reason})" for reason, rules in reasons.items())
    return [f"{title}: {listed}"] if listed else []


def listing(rows: Iterable[tuple[str, str, str]], width: int) -> str:
    """Name, sentence and details, wrapped beside the names."""
    rows = list(rows)
    indent = max((len(name) for name, _, _ in rows), default=0) + len(_GAP)
    lines = list[str]()
    for name, sentence, details in rows:
        wide = max(width, indent + 20)
        lines += _wrap(sentence, wide, name.ljust(indent), " " * indent)
        if details:
            lines += _wrap(details, wide, " " * indent, " " * indent)
    return "\n".join(lines) + "\n"


# ---- What the rules found in a stored trace, with reasons in words.


class Linted(Frozen, frozen=True):
    """What `Trace.lint` found.

    Attributes:
        counts: how often each rule matched, for rules with matches.
        unchecked: why a rule could not be checked, in words, for each of these rules.
        errors: what a rule raised, for each that did.
        found: the same as values of the rules' engine.
    """

    counts: Mapping[str, int]
    unchecked: Mapping[str, str]
    errors: Mapping[str, str]
    found: Checked

    def findings(self) -> tuple[Finding, ...]:
        """One for each rule, message and place, the costliest first."""
        return self.found.findings()


# ---- Findings and operators with their places, for the message of a failing test.

#: An operator's name → (location, module, calls) for each place that calls it.
Where = Callable[[str], Sequence[tuple[str, str | None, int]]]

_MOST_PLACES = 3


class Accepted(NamedTuple):
    """Accepted counts by rule; None for those of ``apart`` that have none.

    ``apart`` are rules that a metric of their own counts: of these, no lines are accepted.
    """

    counts: Mapping[str, int | None]
    apart: Collection[str] = ()


def accepted_counts(profile: Profile, baseline: Baseline | None) -> Accepted | None:
    """What is accepted of each rule; None without a baseline that knows findings."""
    if baseline is None or "findings" not in baseline.metrics:
        return None
    apart = {rule: metric for rule, metric in profile.gated.items() if metric}
    own = {rule: baseline.metrics.get(metric) for rule, metric in apart.items()}
    counts = {rule: None if count is None else int(count) for rule, count in own.items()}
    known = Counter(baseline.findings) + Counter(baseline.findings_in_tests)
    return Accepted({**known, **counts}, apart)


def finding_lines(findings: Iterable[Finding], before: Accepted | None, room: int) -> list[str]:
    """A block per rule, costliest first: counts, places, what was found, and the fix.

    ``before`` has accepted counts, None without a baseline.
    """
    by_rule: dict[str, list[Finding]] = {}
    for finding in findings:
        by_rule.setdefault(finding.rule, []).append(finding)
    groups = sorted(by_rule.values(), key=lambda rows: (-_cost(rows), rows[0].rule))
    lines: list[str] = []
    for number, rows in enumerate(groups):
        block, rest = _sites_block(rows, before), groups[number + 1 :]
        if len(lines) + len(block) + bool(rest) > room:
            names = ", ".join(rows[0].rule for rows in groups[number:])
            left = sum(f.count for rows in groups[number:] for f in rows)
            return [*lines, f"  … and {left} more: {names}"]
        lines += block
    return lines


def _cost(findings: Iterable[Finding]) -> float:
    return sum(finding.cost_ms or 0 for finding in findings)


def _sites_block(found: Sequence[Finding], before: Accepted | None) -> list[str]:
    rule, now, cost = found[0].rule, sum(f.count for f in found), _cost(found)
    gated = found[0].gated
    accepted = None if before is None or not gated else before.counts.get(rule, 0)
    counts = f"×{now}" if accepted is None else f"{accepted} → {now}"
    counts += "" if gated else " (advice)"
    if accepted and before is not None and rule in before.apart:
        counts += f" ({accepted} of these accepted: a baseline keeps no lines)"
    costs = f", about {format_quantity(cost, 'ms')}" if cost else ""
    moved = sum(f.bytes or 0 for f in found)
    moves = f", {format_quantity(moved, 'B')} moved" if moved else ""
    lines = [f"  {rule} {counts}{costs}{moves}:"]
    for finding in found[:_MOST_PLACES]:
        times = f" ({finding.count}×)" if finding.count > 1 else ""
        more = more_modules(finding.module, finding.modules)
        module = f" in {finding.module}{more}" if finding.module else ""
        place = f"{finding.location}{times}{module}: " if finding.location else ""
        lines.append(f"    {place}{finding.message}")
    if left := len(found[_MOST_PLACES:]):
        lines.append(f"    … and {plural(left, 'more place')}")
    fixes = dict.fromkeys(f.fix for f in found if f.fix)
    return lines + [f"    fix: {fix}" for fix in fixes]


# -------------------------------------------------------------------- operators


def called_from(places: Sequence[tuple[str, str | None, int]]) -> str:
    """``tests/test_a.py:31 (3×), :40 in model.blocks.*.attn``; empty if nothing is known."""
    count: dict[str, int] = {}
    for location, _, calls in places:
        count[location] = count.get(location, 0) + calls
    words, file = [], ""
    ordered = sorted(count, key=lambda at: (-count[at], _file_and_line(at)))
    for location in ordered[:_MOST_PLACES]:
        here, _, line = location.rpartition(":")
        times = f" ({count[location]}×)" if count[location] > 1 else ""
        words.append(f"{'' if here == file else here}:{line}{times}")
        file = here
    if left := ordered[_MOST_PLACES:]:
        words.append(f"{len(left)} more")
    return ", ".join(words) + _within({module for _, module, _ in places})


def _file_and_line(location: str) -> tuple[str, int]:
    file, _, line = location.rpartition(":")
    return file, int(line)


def _within(modules: set[str | None]) -> str:
    """The module of all calls; modules that differ only in numbers are shown as one."""
    if len(modules) > 1:
        modules = {module and re.sub(r"(?<=\.)\d+(?=\.|$)", "*", module) for module in modules}
    (module, *others) = modules or {None}
    return f" in {module}" if module and not others else ""


# ---- Lines of the user's files, as services of CI name them: relative to the repository.

_LOCATION = late(r"(?P<path>[^<\n].*):(?P<line>[1-9][0-9]{0,8})", flags=re.DOTALL)


class SourceLine(NamedTuple):
    """A line of a file, from 1; the path is relative and has slashes."""

    path: str
    line: int


def source_line(location: str | None, operators: str | None, root: Path) -> SourceLine | None:
    """The line that a finding's ``location`` names, relative to ``root``.

    None if it is unknown or outside of ``root``, and for a path of ``operators`` instead of a line.

    >>> source_line("/src/train.py:21", None, Path("/src"))
    SourceLine(path='train.py', line=21)
    >>> source_line("train > aten::item", "train > aten::item", Path("/src"))
    """
    found = None if location is None else _LOCATION.fullmatch(location)
    if found is None or location == operators:
        return None
    path = found["path"]
    if os.path.isabs(path):  # noqa: PTH117 - it may be no path of this system
        path = os.path.relpath(path, root)
    path = posixpath.normpath(path.replace(os.sep, "/"))
    if path == ".." or path.startswith("../") or posixpath.isabs(path):
        return None
    return SourceLine(path, int(found["line"]))


def fingerprints(rows: Iterable[Mapping[str, Any]], root: Path) -> list[str]:
    """One per finding, in their order; the same in each run until the finding changes.

    It is of the rule, the file, the module, and the operators, not of the line, which moves as a
    file is edited, nor of counts and costs. Several of the same are numbered. Each has 64
    hexadecimal digits: SHA-256.
    """
    seen: dict[str, int] = {}
    made = []
    for row in rows:
        place = source_line(row["location"], row["path"], root)
        parts = [row["rule"], place.path if place else None, row["module"], row["path"]]
        parts += [str(row[column]) for column in ("rank", "trace") if column in row]
        key = repr(parts)
        number = seen[key] = seen.get(key, 0) + 1
        made.append(digest(f"{key}{number}"))
    return made


def digest(text: str) -> str:
    """The SHA-256 of any text, in hexadecimal digits."""
    import hashlib  # loads OpenSSL, which takes 3 MiB

    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()


# ---- Make a rule's Markdown page from its docstring and its registry entry.

FOLDER = "docs/rules"
MARK = "<!-- generated by tools/docs.py from the rule's docstring -->"

#: What a rule may need, as text.
NEEDS = {
    "shapes": "shapes (`record_shapes=True`)",
    "device": "an accelerator",
    "live": "a live test",
}


def page_of(code: str) -> str | None:
    """The path of a rule's page from the project's root; users' rules have no page."""
    return f"{FOLDER}/{code}.md" if code in RULES else None


def page(rule: Rule) -> str:
    """The whole page."""
    parts = [MARK, f"# {rule.code}", rule.summary, rule.page.partition("\n\n")[2].strip("\n")]
    parts += [f"In short: {rule.fix}.", "## What it needs\n\n" + _needs(rule)]
    if rule.thresholds:
        parts.append("## Thresholds\n\n" + _thresholds(rule))
    parts.append("## If it is intended\n\n" + _accepting(rule))
    return "\n\n".join(part for part in parts if part) + "\n"


def defaults(rule: Rule) -> list[str]:
    """The thresholds with their values: ``bytes=1 MiB``."""
    return [f"{name}={format_quantity(t.default, t.unit)}" for name, t in rule.thresholds.items()]


_MEMORY: Final = (
    "In a trace of a CPU without memory events (`profile_memory=True`), what share of the whole a "
    "match is can only be guessed, which is reported."
)


def _needs(rule: Rule) -> str:
    parts = [words for need, words in NEEDS.items() if need in rule.needs]
    needs = [f"A capture with {' and '.join(parts)}."] if parts else []
    needs += [inspect.getdoc(rule.ready) or ""] if rule.ready else []
    guesses = " " + _MEMORY if "cpu_share" in rule.thresholds and rule.blind else ""
    if not needs and rule.on_request:
        return "A test that asks for it, or the trace of one."
    if not needs:
        return f"Nothing: it is checked in every test and every trace.{guesses}"
    return f"{' '.join(needs)} Otherwise it is reported as *not checked*.{guesses}"


def _thresholds(rule: Rule) -> str:
    lines = ["| name | default | why |", "|---|---|---|"]
    for name, threshold in rule.thresholds.items():
        default = format_quantity(threshold.default, threshold.unit)
        lines.append(f"| `{name}` | {default} | {threshold.why} |")
    setting = f"{rule.code}.{next(iter(defaults(rule)))}"
    lines += ["", f'To set another value, use `--torchprof-thresholds="{setting}"`, or']
    lines += [
        "`torchprof_thresholds` in the ini file. For a stored trace, use",
        f'`torchprof lint --thresholds "{setting}"`.',
    ]
    return "\n".join(lines)


def _accepting(rule: Rule) -> str:
    return f"""\
To accept the current count as the baseline, so that only more of it fails, run
`pytest --accept`. To allow it in one test:

```python
@pytest.mark.allow_antipatterns("{rule.code}", reason="…")
def test_it(): ...
```

To ignore the rule everywhere, use `--torchprof-ignore={rule.code}`, or `torchprof_ignore` in the
ini file. For a stored trace, use `torchprof lint --ignore {rule.code}`."""
