"""The pages of the rules: made of their docstrings, and in step with them."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_torchprof.render import findings
from pytest_torchprof.render.findings import page, page_of
from pytest_torchprof.rules.registry import RULES
from pytest_torchprof.rules.rule import Rule, Threshold, rule
from tools.doc_rules import examples, index, page_faults

ROOT = Path(__file__).parents[2]

GOOD = """One sentence
on two lines.

## What it does

Finds `x`, more than `min_calls` of them.

## Why it is slow

- Because.

## Example

Like this:

```python
for x in y:

    x.item()
```

or not.

## Use instead

```python
y.tolist()
```
"""


def rule_of(doc: str, **thresholds: Threshold) -> Rule:
    """A rule with this docstring."""

    def find(_: Any) -> list[int]:
        return []

    find.__doc__ = doc
    made = rule("some-rule", fix="do not", needs="shapes device")(find)
    return replace(made, thresholds=thresholds)


@pytest.fixture(scope="module")
def docs() -> ModuleType:
    spec = spec_from_file_location("docs", ROOT / "tools" / "docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# -------------------------------------------------------------------- those that there are


@pytest.mark.parametrize("code", RULES)
def test_each_docstring_is_a_page(code: str) -> None:
    assert [] == page_faults(RULES[code])


@pytest.mark.parametrize("code", RULES)
def test_each_rule_says_what_it_is_about(code: str) -> None:
    known = RULES[code]
    assert code == known.code
    assert known.fix
    assert not known.fix.endswith(".")
    assert known.summary.endswith(".")
    assert all(threshold.why for threshold in known.thresholds.values())


def test_the_pages_are_in_step_with_the_rules(docs: ModuleType) -> None:
    assert [] == docs._stale_rules(), "python tools/docs.py --write"


def test_pages_that_are_stale_are_named(
    docs: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docs, "ROOT", tmp_path)
    monkeypatch.setattr(docs, "RULE_PAGES", tmp_path / "rules")
    docs._write_rules()
    assert [] == docs._stale_rules()
    folder = tmp_path / "rules"
    (folder / "gone.md").write_text(findings.MARK + "\n# gone\n")
    (folder / "README.md").write_text("old")
    first = next(iter(RULES))
    (folder / f"{first}.md").unlink()
    assert sorted(["rules/gone.md", "rules/README.md", f"rules/{first}.md"]) == docs._stale_rules()
    docs._write_rules()
    assert [] == docs._stale_rules()
    assert not (folder / "gone.md").exists()


def test_a_page_that_somebody_wrote_is_named_and_left(
    docs: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docs, "ROOT", tmp_path)
    monkeypatch.setattr(docs, "RULE_PAGES", tmp_path / "rules")
    docs._write_rules()
    (tmp_path / "rules" / "mine.md").write_text("# mine\n")
    docs._write_rules()
    assert ["rules/mine.md"] == docs._stale_rules()


def test_links_of_the_pages_lead_somewhere() -> None:
    for code in RULES:
        assert (ROOT / str(page_of(code))).is_file()
        assert f"]({code}.md)" in index(RULES.values())
    assert page_of("no-rule") is None


# -------------------------------------------------------------------- how they are made


def test_a_page_has_all_that_is_known_of_a_rule() -> None:
    text = page(rule_of(GOOD, min_calls=Threshold(3, "1", "a `few` are fine")))
    assert text.startswith(f"{findings.MARK}\n\n# some-rule\n\nOne sentence on two lines.\n\n")
    assert "## What it does\n\nFinds `x`, more than `min_calls` of them.\n\n## Why" in text
    assert "Like this:\n\n```python\nfor x in y:\n\n    x.item()\n```\n\nor not.\n" in text
    assert "In short: do not." in text
    assert "A capture with shapes (`record_shapes=True`) and an accelerator." in text
    assert "| `min_calls` | 3 | a `few` are fine |" in text
    assert '`--torchprof-thresholds="some-rule.min_calls=3"`' in text
    assert 'allow_antipatterns("some-rule", reason="…")' in text
    assert "`--torchprof-ignore=some-rule`" in text
    assert "\n\n\n" not in text


def test_a_rule_without_thresholds_and_needs_says_nothing_of_them() -> None:
    def find(_: Any) -> list[int]:
        return []

    find.__doc__ = GOOD
    text = page(rule("bare", fix="x")(find))
    assert "## Thresholds" not in text
    assert "it is checked in every test and every trace" in text


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("Why it is slow", "Why it is bad", "its headings must be"),
        ("## Use instead\n\n```python\ny.tolist()\n```\n", "", "its headings must be"),
        ("## Use instead\n", "", "its headings must be"),
        ("- Because.\n", "", "nothing below 'Why it is slow'"),
        ("x.item()", "x.item(", "not Python"),
        ("```python\ny.tolist()\n```", "`y.tolist()`", "no code below 'Use instead'"),
        ("`min_calls`", "some", "the threshold min_calls is not mentioned"),
    ],
)
def test_a_docstring_that_cannot_be_a_page_is_reported(
    before: str, after: str, message: str
) -> None:
    assert before in GOOD
    changed = rule_of(GOOD.replace(before, after), min_calls=Threshold(3, "1", ""))
    assert any(message in fault for fault in page_faults(changed)), page_faults(changed)
    assert [] == page_faults(rule_of(GOOD, min_calls=Threshold(3, "1", "")))


def test_the_examples_of_a_page_are_its_blocks_of_python() -> None:
    assert ["for x in y:\n\n    x.item()\n", "y.tolist()\n"] == examples(rule_of(GOOD))


def test_a_docstring_is_the_page_word_by_word() -> None:
    assert GOOD.partition("\n\n")[2].strip() in page(rule_of(GOOD))
