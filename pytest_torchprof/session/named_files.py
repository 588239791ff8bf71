"""Check the files that options name, before anything is written to them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from pytest_torchprof.core.errors import SettingsError


def _check_name(option: str, files: Mapping[str, Path]) -> None:
    """Reject a folder, and the file of an option before it.

    Raises:
        SettingsError: it is one of these.
    """
    path = files.get(option)
    if path is None:
        return
    same = next(o for o, other in files.items() if other.resolve() == path.resolve())
    if same != option:
        raise SettingsError(f"{path} is the file of --torchprof-{same}, too")
    if os.path.isdir(path):  # noqa: PTH112 - no error for names that are too long
        raise SettingsError(f"{path} is a folder", next_step="name a file in it")


def check_files(json: Path | None, html: Path | None, markdown: Path | None) -> None:
    """Reject names of files that are there and not ours.

    Raises:
        pytest.UsageError: there is such a file.
    """
    from pytest_torchprof.render import escape
    from pytest_torchprof.render.json_report import check_target

    named = {"json": json, "html": html, "markdown": markdown}
    name = "json"
    try:
        for name in named:
            _check_name(name, {o: path for o, path in named.items() if path is not None})
        name = "json"
        if json is not None:
            check_target(json)
        if html is not None:
            from pytest_torchprof.render.html.target import check_page

            name = "html"
            check_page(html)
        if markdown is not None:  # most sessions load none of that
            from pytest_torchprof.render.markdown_comment import check_comment

            name = "markdown"
            check_comment(markdown)
    except SettingsError as error:
        raise pytest.UsageError(escape.line(f"--torchprof-{name}: {error}")) from None
