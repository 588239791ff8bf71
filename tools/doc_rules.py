"""The list of the rules for the documentation, and what a rule's docstring lacks to be a page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from pytest_torchprof.render.findings import MARK, defaults
from pytest_torchprof.rules.rule import HEADINGS, Rule

_CODE = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def index(rules: Iterable[Rule]) -> str:
    """The page that lists all rules."""
    table = ["| rule | finds | needs | thresholds |", "|---|---|---|---|"]
    for rule in rules:
        needs = ", ".join([*sorted(rule.needs), *(["see its page"] if rule.ready else [])]) or "–"
        values = ", ".join(f"`{line}`" for line in defaults(rule)) or "–"
        link = f"[{rule.code}]({rule.code}.md)"
        table.append(f"| {link} | {rule.summary} | {needs} | {values} |")
    return "\n".join([MARK, "# Anti-pattern rules", "", _INDEX, "", *table]) + "\n"


_INDEX = """\
`pytest --torchprof` checks these rules in each test, and `torchprof lint` in a stored trace.
`torchprof rules` prints this list, and `torchprof rules CODE` a page. If a capture lacks what a
rule needs, the rule is *not checked*. To change a threshold, use
`--torchprof-thresholds=RULE.NAME=VALUE,…` or `torchprof lint --thresholds`."""


def sections(text: str) -> Iterator[tuple[str, str]]:
    r"""The parts of a docstring below its first paragraph: heading (or none yet) and text.

    >>> list(sections("Sum.\n\nMore.\n\n## Example\n\nOne."))
    [('', 'More.'), ('Example', 'One.')]
    """
    before, *parts = re.split(r"^## +", text.partition("\n\n")[2], flags=re.MULTILINE)
    if before.strip():
        yield "", before.strip("\n")
    for part in parts:
        name, _, body = part.partition("\n")
        yield name.rstrip(), body.strip("\n")


def examples(rule: Rule) -> list[str]:
    """The code of a page, block by block."""
    return _CODE.findall(rule.page)


def page_faults(rule: Rule) -> list[str]:
    """What a docstring lacks to make a page."""
    found = []
    parts = [(name, body) for name, body in sections(rule.page) if name]
    if [name for name, _ in parts] != list(HEADINGS):
        found.append(f"its headings must be {', '.join(HEADINGS)}, in this order")
    found += [f"nothing below {name!r}" for name, body in parts if not body.strip()]
    for name, body in parts:
        if name in HEADINGS[2:] and not _CODE.search(body):
            found.append(f"no code below {name!r}")
    for code in examples(rule):
        try:
            compile(code, rule.code, "exec")
        except SyntaxError as error:
            found.append(f"an example that is not Python: {error}")
    words = rule.page.replace("_", " ")
    for name in rule.thresholds:
        if name.replace("_", " ") not in words and "threshold" not in words:
            found.append(f"the threshold {name} is not mentioned")
    return found
