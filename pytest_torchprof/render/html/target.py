"""Where a page is written, without replacing another kind of file."""

from __future__ import annotations

from pathlib import Path

from pytest_torchprof.core.errors import SettingsError
from pytest_torchprof.core.files import is_other_file, replacing

#: Near the beginning of each page, by which it is known as one of ours.
MARK = '<meta name="generator" content="torchprof'
_MARK_WITHIN_BYTES = 1_000
#: The first line of styles and scripts in a folder; a comment in both.
ASSET_MARK = "/* of a page of torchprof */"


def check_page(path: Path) -> None:
    """Reject a name for a page that is the name of another kind of file.

    Raises:
        SettingsError: such a file exists.
    """
    if is_other_file(path, _is_page):
        raise _not_replaced(path, "a page of torchprof", "name another file")


def check_asset(path: Path) -> None:
    """Reject a folder for styles and scripts in which another file has the name of one.

    Raises:
        SettingsError: such a file exists.
    """
    if is_other_file(path, _is_asset):
        raise _not_replaced(path, "of a page of torchprof", "name another folder")


def _not_replaced(path: Path, wanted: str, other: str) -> SettingsError:
    found = f"it exists and is not {wanted}"
    return SettingsError(f"{path} is not replaced", found, f"{other}, or remove this file first")


def _is_asset(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(ASSET_MARK)) == ASSET_MARK.encode()


def _is_page(path: Path) -> bool:
    with path.open("rb") as file:
        return MARK.encode() in file.read(_MARK_WITHIN_BYTES)


def write_text(path: Path, text: str) -> None:
    """Write a page atomically.

    Raises:
        OSError: the file cannot be written; an old one is unchanged.
    """
    with replacing(path) as file:
        file.write(text.encode())
