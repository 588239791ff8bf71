"""Tell whether an installed package is a copy of one in a tree or only shares its name."""

from __future__ import annotations

import importlib.metadata
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import url2pathname

if TYPE_CHECKING:
    from pytest_torchprof.ab.trees import Trees

_NAME = re.compile(r"""^\s*["']?name["']?\s*=\s*["']?([\w.-]+)""", re.MULTILINE)
_PROJECT_FILES = ("pyproject.toml", "setup.cfg", "setup.py")
_PLACES = ("", "*/", "*/*/")


def copied(trees: Trees) -> Iterator[set[str]]:
    """Names of packages that pip installed from folders in the trees, except editable ones."""
    for distribution in importlib.metadata.distributions():
        text = distribution.read_text("direct_url.json")  # PEP 610: only without an index
        record = json.loads(text) if text else {}
        url = urlsplit(record.get("url", ""))
        if url.scheme != "file" or trees.owner(url2pathname(url.path)) is None:
            continue
        files = [file.parts for file in distribution.files or ()]
        if record.get("dir_info", {}).get("editable"):  # single files are what finds the code
            files = [parts for parts in files if len(parts) > 1]
        yield {parts[0].partition(".")[0] for parts in files}


def is_strangers(root: str, name: str) -> bool:
    """Whether an installed package belongs to a project that is not in the tree.

    Decided by the installed distribution's name, if the tree names its projects: a checkout's
    ``datasets/`` is not PyPI's ``datasets``. False if unknown.
    """
    owners = {_normal(owner) for owner in _owners().get(name.partition(".")[0], ())}
    names = _projects(root)
    return bool(owners and names) and owners.isdisjoint(names)


@cache
def _owners() -> dict[str, list[str]]:
    return dict(importlib.metadata.packages_distributions())


@cache
def _projects(root: str) -> frozenset[str]:
    patterns = (place + name for place in _PLACES for name in _PROJECT_FILES)
    files = (file for pattern in patterns for file in Path(root).glob(pattern))
    texts = (file.read_text("utf-8", "replace") for file in files if file.is_file())
    return frozenset(_normal(name) for text in texts for name in _NAME.findall(text))


def _normal(name: str) -> str:
    """The normalized name of PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()
