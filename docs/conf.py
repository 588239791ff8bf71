"""How Sphinx builds the site; `make docs` runs it. GitHub shows the same pages."""

import re
from pathlib import Path
from typing import Any

_DOCS = Path(__file__).parent
_VERSION = re.search(
    r'^__version__ = "(.+)"',
    (_DOCS / "../pytest_torchprof/__init__.py").read_text("utf-8"),
    re.MULTILINE,
)

project = "pytest-torchprof"
copyright = "the contributors of pytest-torchprof"  # noqa: A001 - Sphinx's name
version = release = _VERSION[1] if _VERSION else ""

extensions = ["myst_parser"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = f"{project} {version}"


def setup(app: Any) -> None:
    """Navigation is made of the lists of links that the pages have anyway."""
    app.connect("source-read", add_toctrees)


def add_toctrees(_: Any, page: str, source: list[str]) -> None:
    """A hidden table of contents for each section of the index, and one for the rules."""
    trees = []
    if page == "index":
        for section in source[0].split("\n## ")[1:]:
            caption, _, text = section.partition("\n")
            trees.append((caption, re.findall(r"^- \[.+?\]\((.+?)\.md\)", text, re.MULTILINE)))
    elif page == "rules/README":
        trees.append(("Rules", re.findall(r"^\| \[.+?\]\((.+?)\.md\)", source[0], re.MULTILINE)))
    for caption, pages in trees:
        lines = "\n".join(pages)
        source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{lines}\n```\n"
