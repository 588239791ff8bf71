"""The page on the architecture and the README name files that exist; the page, every folder.

A folder is a subject, and a module a part of it that is read in one go.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "pytest_torchprof"
PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")


def test_every_path_of_the_page_exists() -> None:
    paths = re.findall(r"`((?:\w+/)*\w+\.py|(?:\w+/)+)`", PAGE)
    assert len(paths) > 20
    inside = ("tests/", "pytest_torchprof/", "evidence/", "engine/")
    missing = [p for p in paths if not (p.startswith(inside) or (PACKAGE / p).exists())]
    assert [] == missing


def test_every_path_of_the_readme_s_table_exists() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    table = readme[readme.index("Where to change what") :]
    paths = re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", table)
    assert len(paths) > 6
    assert [] == [p for p in paths if p != "pytest_torchprof/" and not (PACKAGE / p).exists()]


def test_every_folder_is_in_the_table_in_the_order_of_the_layers() -> None:
    listed = re.findall(r"^\| `(\w+)/`", PAGE, re.MULTILINE)
    folders = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert folders == set(listed)
    layers = (ROOT / "pyproject.toml").read_text("utf-8")
    contract = layers[layers.index('name = "A folder imports only') :]
    order = re.findall(r'^    "(\w+)"', contract[: contract.index("\n]\n")], re.MULTILINE)
    assert [name for name in reversed(order) if name in folders] == listed
