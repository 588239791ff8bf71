"""Names that others chose reach a terminal, a comment, or a page only as text."""

import html.parser
import re
from pathlib import Path

import pytest
from support.command_line import Say
from support.hostile import (
    EVERY,
    HOSTILE,
    assert_csv,
    assert_json,
    assert_markdown,
    assert_terminal,
    hostile_trace,
)

OUTPUTS = [
    *(f"{command} --format {form}"
      for form in ("table", "csv", "markdown", "json")
      for command in ("summary", "steps", "idle", "ops", "ops --by shape", "ops --by stack",
                      "ops --by module", "ops --merge", "kernels", "kernels --by op,kernel,shape",
                      "lint", "memory --timeline", "collectives", "ranks", "diff {other}",
                      "diff --by kernel {other}", "bound --device H200")),
    *(f"lint --format {form}" for form in ("github", "gitlab", "sarif")),
    "report -o {out}", "diff --html {out} {other}", "stacks {trace} {out}", "augment {trace} {out}",
]  # fmt: skip


class _Tags(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found |= {tag, *(f"{tag} {name}" for name, _ in attrs)}


def _tags(page: str) -> set[str]:
    (parser := _Tags()).feed(page)
    return parser.found


@pytest.mark.parametrize("output", OUTPUTS)
def test_no_name_of_a_trace_does_anything_in_any_output(
    say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    monkeypatch.chdir(tmp_path)
    harmless = None
    each = [[text] for text in HOSTILE] if "github" in output else []
    for at, texts in enumerate((["plain " * 80], [EVERY], HOSTILE, *each)):
        hostile_trace(Path("trace.json"), texts)
        hostile_trace(Path("other.json"), [f"other {text}" for text in texts])
        words = output.format(trace="trace.json", other="other.json", out="out").split()
        status, shown, said = say(*words, *([] if "{trace}" in output else ["trace.json"]))
        assert 0 == status, said
        assert_terminal(shown)
        assert_terminal(said)
        if "csv" in output:
            assert_csv(shown)
        if "markdown" in output:
            assert_markdown(shown)
        if "json" in output or "sarif" in output or "gitlab" in output:
            assert_json(shown)
        if "github" in output:
            assert all(re.match(r"::(warning|notice) |torchprof: ", line)
                       for line in shown.splitlines()), shown  # fmt: skip
        if Path("out").exists():
            assert_terminal(page := Path("out").read_text("utf-8"))
            tags = _tags(page) if "augment" not in output and "stacks" not in output else set()
            harmless = tags if at == 0 else harmless
            assert tags == harmless
            Path("out").unlink()


MARKDOWN = {
    "a tensor of [64, 16, 32], by": "a tensor of `[64, 16, 32],` by",
    "call `model.eval()`, then `a[0]`": "call `model.eval()`, then `a[0]`",
    f"since {'0123456789' * 4} it": f"since `{'0123456789' * 4}` it",
    "in 1f2e3d4c of 1234567 bytes": "in `1f2e3d4c` of 1234567 bytes",
    "one ` and ``two`` of [3": "one `` ` `` and ``` ``two`` ``` of `[3`",
}


CONFTEST = """
import pytest
import numpy as np
from torchprof_texts import TEXTS
from pytest_torchprof import Matches, rule

def _rule(at, text):
    @rule(f"my-{at}", fix="y", triggers="aten::mm$")
    def found(trace):
        \"\"\"A text.\"\"\"
        return Matches(np.array([0]), [text])
    return found

@pytest.hookimpl(optionalhook=True)
def pytest_torchprof_rules(config):
    return [_rule(at, text) for at, text in enumerate(TEXTS)]
"""
TESTS = """
import pytest, torch

class TestA:
    @pytest.mark.max_flops(1)
    @pytest.mark.parametrize("x", [1], ids=["aten::mm-[x::y]"])
    def test_b(self, x):
        torch.ones(8, 8) @ torch.ones(8, 8)
"""


@pytest.mark.thorough
def test_sentences_stay_whole_in_markdown_and_titles_of_annotations_in_colons(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(torchprof_texts=f"TEXTS = {list(MARKDOWN)!r}", test_it=TESTS)
    pytester.makeconftest(CONFTEST)
    options = ("--torchprof", "--torchprof-markdown=c.md", "--torchprof-ci=github")
    ran = pytester.runpytest_subprocess(*options)
    ran.stdout.fnmatch_lines("::error *,title=torchprof%3A test_b[[]aten%3A%3Amm-[[]x%3A%3Ay]]::*")
    comment = Path("c.md").read_text("utf-8")
    for text, marked in MARKDOWN.items():
        assert f" {marked} |" in comment, text


@pytest.mark.thorough
def test_a_broken_baseline_says_why_once_a_file(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it="def test_a(): pass\ndef test_b(): pass\ndef test_c(): pass\n")
    (pytester.mkdir("__torchprof__") / "test_it.json").write_text('{"schema"', "utf-8")
    failures, _, _ = pytester.runpytest_subprocess("--torchprof").stdout.str().partition("status")
    said = [failures.count(words) for words in ("Restore it from", "see test_it.py::test_a")]
    assert [1, 2] == said
