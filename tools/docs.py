"""Generate the parts of the documents that must not drift: ``--check`` or ``--write``.

A generated part stands between ``<!-- generated: NAME -->`` and ``<!-- end -->``. Python blocks
whose first line is ``# name.py`` are files; a ``console`` part runs its commands in the folder of
the preceding files. Those take seconds each, so ``--check`` leaves them to the tests.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from pytest_torchprof.render import findings
from pytest_torchprof.rules.registry import RULES
from tools import doc_outputs, doc_retold, doc_rules, doc_tables
from tools.doc_sessions import session, transcript, write_file

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))))
RULE_PAGES = ROOT / findings.FOLDER
_BLOCK = re.compile(r"(<!-- generated: (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
#: Times differ from run to run, with them the width of their column, and how many runs they take.
_TIME = re.compile(r"\d+(\.\d+)? ?(us|ms|s)\b~?|\d+ runs?\b")
_WIDTH = re.compile(r"-{3,}|={3,}| {2,}")
#: A block of code with its language and text; or a whole generated part.
_PART = re.compile(
    r"<!-- generated: (?P<name>\w+) -->\n(?P<body>.*?)<!-- end -->"
    r"|^```(?P<language>\w+)\n(?P<code>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
#: Generated parts that run pytest, and those that take too long for a check. They are kept if only
#: times differ.
_RUN, _SLOW = ("console", "transcript"), ("console",)


def generate(text: str, *, slow: bool = True) -> str:
    """A page with its generated parts updated; without ``slow``, those that run commands stay."""
    blocks = {name: body for _, name, body, _ in _BLOCK.findall(text)}
    example = blocks.get("example", "").rstrip()
    makers: dict[str, Callable[[], str]] = {
        **doc_tables.MAKERS,
        **doc_outputs.MAKERS,
        **doc_retold.MAKERS,
        "example": lambda: example,
        "transcript": lambda: transcript(example),
    }
    with tempfile.TemporaryDirectory() as folder:

        def fresh(part: re.Match[str]) -> str:
            if part["name"] is None:
                write_file(Path(folder), part["language"], part["code"])
                return part[0]
            if part["name"] in _SLOW and not slow:
                return part[0]
            console = part["name"] == "console"
            body = session(folder, part["body"]) if console else makers[part["name"]]()
            made = f"<!-- generated: {part['name']} -->\n{body}\n<!-- end -->"
            same = part["name"] in _RUN and _steady(part[0]) == _steady(made)
            return part[0] if same else made

        return _PART.sub(fresh, text)


def rule_pages() -> dict[Path, str]:
    """The rules' pages, and their index.

    Raises:
        SystemExit: a docstring is not a valid page.
    """
    faults = [f"{r.code}: {fault}" for r in RULES.values() for fault in doc_rules.page_faults(r)]
    if faults:
        raise SystemExit("\n".join(faults))
    pages = {RULE_PAGES / f"{rule.code}.md": findings.page(rule) for rule in RULES.values()}
    return {RULE_PAGES / "README.md": doc_rules.index(RULES.values()), **pages}


def _write_rules() -> None:
    RULE_PAGES.mkdir(exist_ok=True)
    pages = rule_pages()
    for page, text in pages.items():
        page.write_text(text, "utf-8")
    for page in set(RULE_PAGES.glob("*.md")) - pages.keys():
        if findings.MARK in page.read_text("utf-8"):
            page.unlink()


def _stale_rules() -> list[str]:
    """Pages that differ from the docstrings, or whose rules are gone."""
    pages = rule_pages()
    found = {page: page.read_text("utf-8") for page in RULE_PAGES.glob("*.md")}
    names = (page for page in pages.keys() | found.keys() if pages.get(page) != found.get(page))
    return sorted(str(page.relative_to(ROOT)) for page in names)


def _steady(text: str) -> str:
    return _WIDTH.sub(" ", _TIME.sub("T", text))


def main() -> int:
    """Return 0 if every page matches the code, or was updated."""
    stale = list[str]()
    write = "--write" in sys.argv
    if write:
        _write_rules()
    for name in PAGES:
        page = ROOT / name
        text = page.read_text("utf-8")
        fresh = generate(text, slow=write)
        if write:
            page.write_text(fresh, "utf-8")
        elif text != fresh:
            stale.append(name)
    if not write:
        stale += _stale_rules()
    for name in stale:
        print(f"{name} is out of date: python tools/docs.py --write",
              file=sys.stderr)  # fmt: skip
    return int(bool(stale))


if __name__ == "__main__":
    sys.exit(main())
