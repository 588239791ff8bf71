"""Where the documents of runs lie: a folder, or an object store that fsspec knows."""

from __future__ import annotations

import configparser
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Protocol

from pytest_torchprof.core.errors import HistoryError, error_line
from pytest_torchprof.core.files import (
    TEMPORARY_PREFIX,
    in_the_way,
    read_toml,
    replacing,
    system_message,
)
from pytest_torchprof.core.urls import file_system, scheme_of, shown_address

SUFFIX = ".run.json"
#: Objects that are asked for at once.
_AT_ONCE = 200
_ACCESS = "check the address and your access"


class Store(Protocol):
    """A place with documents: we write each once, as a whole."""

    #: The address as it is shown: without credentials.
    shown: str

    def read(self) -> Iterator[tuple[str, bytes | None]]:
        """The files that may be documents, by name, with their content; None if that cannot be
        read.

        Raises:
            HistoryError: the place itself cannot be read; one that is not there yet has none.
        """

    def write(self, name: str, content: bytes) -> None:
        """Write a new file as a whole.

        Raises:
            HistoryError: it cannot be written; nothing is left of it.
        """

    def delete(self, name: str) -> None:
        """Remove a file; one that is gone is fine.

        Raises:
            HistoryError: it cannot be removed.
        """


def store_of(address: str, base: Path | None = None) -> Store:
    """The store with this address: a folder (relative to ``base``), or a URL.

    Raises:
        HistoryError: the scheme is unknown, or needs a package that is missing.
    """
    scheme = scheme_of(address)
    if not scheme:
        return Folder((base or Path()) / Path(address).expanduser())
    if scheme == "file":
        return Folder(Path(address.partition("://")[2]))
    return Objects(address.rstrip("/"))


def new_name(started: str, commit: str | None) -> str:
    """A file name that no other run has: time, commit, and 48 random bits.

    ``started`` is ISO 8601 in UTC.
    """
    moment = re.sub(r"[-:]|\.\d+|\+00:?00$", "", started)
    return f"{moment.rstrip('Z')}Z-{(commit or 'none')[:12]}-{secrets.token_hex(6)}{SUFFIX}"


def now() -> str:
    """This moment in UTC, in ISO 8601 with milliseconds."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _is_candidate(name: str) -> bool:
    """Whether a file may be a document; a document that someone renamed is one."""
    return name.endswith(".json") and not name.startswith((TEMPORARY_PREFIX, "."))


class Folder:
    """A plain folder."""

    def __init__(self, path: Path) -> None:
        self._path = Path(os.path.abspath(path))  # noqa: PTH100 - links stay as they are named
        self.shown = str(self._path)

    def read(self) -> Iterator[tuple[str, bytes | None]]:
        """See `Store`."""
        try:
            names = sorted(
                entry.name
                for entry in self._path.iterdir()
                if _is_candidate(entry.name) and not os.path.isdir(entry)  # noqa: PTH112 - never raises
            )
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            what = f"history {self.shown} cannot be read"
            raise HistoryError(what, system_message(error), "name another folder") from None
        for name in names:
            content, path = None, self._path / name
            with suppress(OSError):
                content = path.read_bytes() if path.is_file() else None  # a pipe never ends
            yield name, content

    def write(self, name: str, content: bytes) -> None:
        """See `Store`."""
        try:
            if (path := in_the_way(self._path)) is not None:
                raise NotADirectoryError(f"{path} is a file")
            with replacing(self._path / name) as file:
                file.write(content)
        except (OSError, ValueError) as error:
            what = f"the run is not in the history {self.shown}"
            step = "name another with --torchprof-history"
            raise HistoryError(what, system_message(error), step) from None

    def delete(self, name: str) -> None:
        """See `Store`."""
        try:
            (self._path / name).unlink(missing_ok=True)
        except OSError as error:
            what = f"history {self.shown}: {name} cannot be removed"
            raise HistoryError(what, system_message(error)) from None


@contextmanager
def _said(what: str, next_step: str = _ACCESS) -> Iterator[None]:
    """Errors of a file system as one of ours: each raises its own."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - see above
        raise HistoryError(what, error_line(error), next_step) from None


class Objects:
    """An object store, through fsspec: one put a document, which its readers see whole or not."""

    def __init__(self, address: str) -> None:
        self.shown = shown_address(address)
        what = f"history {self.shown} cannot be opened"
        self._system, path = file_system(address, what, HistoryError)
        self._path = path.rstrip("/")

    def read(self) -> Iterator[tuple[str, bytes | None]]:
        """See `Store`; many at once, as each takes a round trip."""
        with _said(f"history {self.shown} cannot be read"):
            self._system.invalidate_cache()  # other machines write
            try:
                found = self._system.ls(self._path, detail=True)
            except FileNotFoundError:
                return
        files = [str(one["name"]) for one in found if one.get("type") == "file"]
        names = sorted(filter(_is_candidate, (file.rpartition("/")[2] for file in files)))
        for start in range(0, len(names), _AT_ONCE):
            some = {name: f"{self._path}/{name}" for name in names[start : start + _AT_ONCE]}
            contents = self._system.cat([*some.values()], on_error="omit")
            yield from ((name, contents.get(path)) for name, path in some.items())

    def write(self, name: str, content: bytes) -> None:
        """See `Store`."""
        with _said(f"the run is not in the history {self.shown}"):
            self._system.pipe_file(f"{self._path}/{name}", content)

    def delete(self, name: str) -> None:
        """See `Store`."""
        with (
            _said(f"history {self.shown}: {name} cannot be removed", ""),
            suppress(FileNotFoundError),
        ):
            self._system.rm_file(f"{self._path}/{name}")


# ---- The history that a project's configuration of pytest names: `torchprof_history`.

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
            address = ""
            with suppress(OSError, ValueError, configparser.Error):
                text = (folder / name).read_text("utf-8")
                if INI in text:
                    address = (_toml if name.endswith(".toml") else _ini)(text, sections)
            if address:
                return address if "://" in address else str(folder / Path(address).expanduser())
    return None


def _ini(text: str, sections: tuple[str, ...]) -> str:
    parser = configparser.RawConfigParser()
    parser.read_string(text)
    return next((parser[one][INI] for one in sections if parser.has_option(one, INI)), "").strip()


def _toml(text: str, sections: tuple[str, ...]) -> str:
    document = read_toml(text)
    for section in sections:
        table: Any = document
        for key in section.split("."):
            table = table.get(key) if isinstance(table, dict) else None
        if isinstance(table, dict) and isinstance(found := table.get(INI), str):
            return found.strip()
    return ""
