"""The history that a project's configuration of pytest names: `torchprof_history`."""

from __future__ import annotations

import configparser
import importlib
from pathlib import Path
from typing import Any

INI = "torchprof_history"

#: The files that pytest looks at in each folder, in its order, and their sections.
_FILES = (
    ("pytest.toml", ("pytest",)),
    (".pytest.toml", ("pytest",)),
    ("pytest.ini", ("pytest",)),
    (".pytest.ini", ("pytest",)),
    ("pyproject.toml", ("tool.pytest.ini_options", "tool.pytest")),
    ("tox.ini", ("pytest",)),
    ("setup.cfg", ("tool:pytest",)),
)


def configured_history(here: Path) -> str | None:
    """The address in the configuration that is nearest above a folder; None if there is none.

    A folder is relative to the file's.
    """
    for folder in (here, *here.parents):
        for name, sections in _FILES:
            address = _value(folder / name, sections)
            if address:
                return address if "://" in address else str(folder / Path(address).expanduser())
    return None


def _value(file: Path, sections: tuple[str, ...]) -> str | None:
    try:
        text = file.read_text("utf-8")
    except (OSError, ValueError):
        return None
    if INI not in text:
        return None
    found = _toml(text, sections) if file.suffix == ".toml" else _ini(text, sections)
    return found.strip() if isinstance(found, str) else None


def _ini(text: str, sections: tuple[str, ...]) -> object:
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(text)
    except configparser.Error:
        return None
    return next((parser[one][INI] for one in sections if parser.has_option(one, INI)), None)


def _toml(text: str, sections: tuple[str, ...]) -> object:
    for name in ("tomllib", "tomli"):  # pytest brings the second one where the first is missing
        try:
            reader: Any = importlib.import_module(name)
            document = reader.loads(text)
        except (ImportError, ValueError):
            continue
        for section in sections:
            table: Any = document
            for key in section.split("."):
                table = table.get(key) if isinstance(table, dict) else None
            if isinstance(table, dict) and INI in table:
                return table[INI]
    return None
