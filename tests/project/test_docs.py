"""The documents: links lead somewhere, examples run, and what they name exists."""

from __future__ import annotations

import ast
import importlib.util
import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.sessions import run

from pytest_torchprof.cli import COMMANDS
from pytest_torchprof.rules.registry import RULES
from pytest_torchprof.session.options import OPTIONS
from pytest_torchprof.verdict.metrics import METRICS
from tools import doc_sessions, docs

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
#: Pages whose examples are run by another test.
ELSEWHERE = {"README", "tutorial", "writing-rules"}
_BLOCK = re.compile(r"^( *`{3,})(\w*)\n(.*?)^\1$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[[^\]\n]+(?:\n[^\]\n]+)?\]\(([^)\s]+)\)")
_OURS = re.compile(r"--torchprof[\w-]*")

here = pytest.mark.skipif(
    not torch.__version__.startswith("2.13") or torch.cuda.is_available(),
    reason="the numbers in the documents are of torch 2.13 on a CPU",
)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, language: str) -> Iterator[str]:
    for _, found, code in _BLOCK.findall(page.read_text("utf-8")):
        if found == language:
            yield code


def files_of(page: Path) -> dict[str, str]:
    """The blocks of Python that name a file, by name."""
    named = ((doc_sessions.FILE.match(code), code) for code in blocks(page, "python"))
    return {name[1]: code for name, code in named if name is not None}


def prose(page: Path) -> str:
    """The text without blocks of code."""
    return _BLOCK.sub("", page.read_text("utf-8"))


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub and the site make of headings."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    words = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {word.strip().replace(" ", "-") for word in words}


# -------------------------------------------------------------------- pages and links


def test_the_readme_is_short() -> None:
    assert len(README.read_bytes()) <= 12 * 1024


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_each_link_leads_somewhere(page: Path) -> None:
    wrong = []
    for link in _LINK.findall(prose(page)):
        path, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(link)
    assert [] == wrong


def test_the_index_lists_each_page() -> None:
    index = ROOT / "docs" / "index.md"
    listed = re.findall(r"^- \[.+?\]\((.+?)\)", index.read_text("utf-8"), re.MULTILINE)
    pages = [page.relative_to(index.parent).as_posix() for page in PAGES[1:] if page != index]
    rules = {f"rules/{code}.md" for code in RULES}
    assert sorted(set(pages) - rules) == sorted(listed)


# -------------------------------------------------------------------- examples


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_examples_are_python(page: Path) -> None:
    for code in blocks(page, "python"):
        ast.parse(code)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.stem not in ELSEWHERE and files_of(page)],
    ids=name_of,
)
def test_examples_run(page: Path, pytester: pytest.Pytester) -> None:
    if page.stem == "fixture" and not torch.__version__.startswith("2.13"):
        pytest.skip("its inline expectations are of torch 2.13")
    found = files_of(page)
    for name, code in found.items():
        (pytester.path / name).write_text(code, "utf-8")
    for name in found:
        if name.startswith("check_"):
            runpy.run_path(name)
    if any(name.startswith("test_") for name in found):
        ran = run(pytester, "--torchprof")
        libraries = {"hugging-face": "transformers", "lightning": "lightning"}
        needed = libraries.get(page.stem)
        there = needed is None or importlib.util.find_spec(needed) is not None
        assert {"passed" if there else "skipped"} == ran.outcomes.keys(), ran.out


@here
def test_examples_of_the_readme_run(pytester: pytest.Pytester) -> None:
    """The first two are run for what is shown of them, see `doc_sessions.transcript`."""
    for number, code in enumerate(list(blocks(README, "python"))[2:]):
        imports = "import pytest\nimport torch\nfrom torch import nn\n\n"
        (pytester.path / f"test_{number}.py").write_text(imports + code, "utf-8")
    assert {"passed": 3} == run(pytester, "--torchprof").outcomes


@pytest.mark.thorough
@here
@pytest.mark.parametrize(
    "page", [page for page in PAGES if "generated: console" in page.read_text("utf-8")], ids=name_of
)
def test_sessions_are_as_shown(page: Path) -> None:
    """`tools/docs.py --check` leaves these out, because each takes seconds."""
    text = page.read_text("utf-8")
    assert text == docs.generate(text), "python tools/docs.py --write"


# -------------------------------------------------------------------- names


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_options_that_are_named_exist(page: Path) -> None:
    switches = {"--torchprof", "--torchprof-strict", "--torchprof-check-stable"}
    switches.add("--torchprof-seed-imports")
    known = switches | {option.flag for option in OPTIONS}
    named = {found.rstrip("-") for found in _OURS.findall(page.read_text("utf-8"))}
    assert set() == named - known


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_that_are_named_exist(page: Path) -> None:
    known = {command.name for command in COMMANDS}
    text = page.read_text("utf-8")
    code = re.findall(r"`torchprof ([a-z]+)", text)
    code += re.findall(r"^(?:\$ |- run: |    - )torchprof ([a-z]+)", text, re.MULTILINE)
    assert set() == set(code) - known


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_budgets_that_are_named_exist(page: Path) -> None:
    named = set(re.findall(r"mark\.max_(\w+)", page.read_text("utf-8")))
    assert set() == named - METRICS.keys()


def test_a_part_that_is_stale_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n<!-- generated: rules -->\nold\n<!-- end -->\n")
    monkeypatch.setattr(docs, "ROOT", tmp_path)
    monkeypatch.setattr(docs, "RULE_PAGES", tmp_path / "rules")
    monkeypatch.setattr(docs, "PAGES", ("page.md",))
    docs._write_rules()
    monkeypatch.setattr("sys.argv", ["docs.py", "--check"])
    assert 1 == docs.main()
    assert "page.md is out of date" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", ["docs.py", "--write"])
    assert 0 == docs.main()
    assert "`host-sync`" in page.read_text("utf-8")
