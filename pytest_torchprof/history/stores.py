"""Where the documents of runs lie: a folder, or an object store that fsspec knows."""

from __future__ import annotations

import configparser
import importlib
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pytest_torchprof.core.errors import HistoryError
from pytest_torchprof.core.files import TEMPORARY_PREFIX, in_the_way, replacing, system_message

if TYPE_CHECKING:
    from types import ModuleType

SUFFIX = ".run.json"
#: Schemes whose file systems are packages of their own, and our extras that bring them.
_EXTRAS = {"s3": "history-s3", "s3a": "history-s3", "gs": "history-gs", "gcs": "history-gs"}
_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+)://")
#: Of a file in an object store: what a new content changes, as one or the other store has it.
_CHANGING = ("size", "ETag", "etag", "md5Hash", "mtime", "LastModified", "updated", "created")
#: Between scheme and host: a user and a password.
_CREDENTIALS = re.compile(r"(?<=://)[^/@]*@")


class Entry(NamedTuple):
    """A file of the history; ``stamp`` is another text if the content changed."""

    name: str
    stamp: str


class Store(Protocol):
    """A place with documents: we write each once, as a whole."""

    @property
    def address(self) -> str:
        """The whole address."""

    @property
    def shown(self) -> str:
        """The address as it is shown: without credentials."""

    def entries(self) -> list[Entry]:
        """The files that may be documents, by name; none if nothing was written yet.

        Raises:
            HistoryError: it cannot be read.
        """

    def read(self, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        """The contents of files; those that are gone or cannot be read are left out."""

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
    scheme = _SCHEME.match(address)
    if scheme is None:
        return Folder((base or Path()) / Path(address).expanduser())
    if scheme[1].lower() == "file":
        return Folder(Path(address[scheme.end() :]))
    return _objects(address.rstrip("/"), scheme[1].lower())


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
        self.path = Path(os.path.abspath(path))  # noqa: PTH100 - links stay as they are named
        self.address = self.shown = str(self.path)

    def entries(self) -> list[Entry]:
        """See `Store`."""
        try:
            with os.scandir(self.path) as found:
                entries = [
                    Entry(entry.name, _stamp(entry.path))
                    for entry in found
                    if _is_candidate(entry.name) and not os.path.isdir(entry.path)  # noqa: PTH112
                ]
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            raise self._unreadable(system_message(error)) from None
        return sorted(entries)

    def _unreadable(self, found: str) -> HistoryError:
        return HistoryError(f"history {self.shown} cannot be read", found, "name another folder")

    def read(self, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        """See `Store`."""
        for name in names:
            if os.path.isfile(self.path / name):  # noqa: PTH113 - never raises; a pipe never ends
                with suppress(OSError):
                    yield name, (self.path / name).read_bytes()

    def write(self, name: str, content: bytes) -> None:
        """See `Store`."""
        try:
            if (path := in_the_way(self.path)) is not None:
                raise self._unwritable(f"{path} is a file")
            with replacing(self.path / name) as file:
                file.write(content)
        except (OSError, ValueError) as error:
            raise self._unwritable(system_message(error)) from None

    def _unwritable(self, found: str) -> HistoryError:
        what = f"the run is not in the history {self.shown}"
        return HistoryError(what, found, "name another with --torchprof-history")

    def delete(self, name: str) -> None:
        """See `Store`."""
        try:
            (self.path / name).unlink(missing_ok=True)
        except OSError as error:
            what = f"history {self.shown}: {name} cannot be removed"
            raise HistoryError(what, system_message(error)) from None


def _stamp(path: str) -> str:
    """Size and time of a file; empty if it cannot be read."""
    with suppress(OSError):
        found = os.stat(path)  # noqa: PTH116 - as `os.scandir` names it
        return f"{found.st_size} {found.st_mtime_ns}"
    return ""


def _objects(address: str, scheme: str) -> Objects:
    shown = _CREDENTIALS.sub("", address)
    core = _fsspec(shown)
    try:
        system, path = core.url_to_fs(address)
    except ImportError as error:
        extra = _EXTRAS.get(scheme)
        step = f"pip install 'pytest-torchprof[{extra}]'" if extra else "install that package"
        raise HistoryError(f"history {shown} cannot be opened", str(error), step) from None
    except Exception as error:  # noqa: BLE001 - each file system raises its own
        raise HistoryError(f"history {shown} cannot be opened", _text(error)) from None
    return Objects(address, shown, system, str(path))


def _fsspec(shown: str) -> ModuleType:
    try:
        import fsspec.core
    except ImportError as error:
        step = "pip install fsspec, or name a folder"
        raise HistoryError(f"history {shown} cannot be opened", str(error), step) from None
    core: ModuleType = fsspec.core
    return core


def _text(error: Exception) -> str:
    """An error of a file system in a line: its kind, as some have no text."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class Objects:
    """An object store, through fsspec: one put a document, which its readers see whole or not."""

    def __init__(self, address: str, shown: str, system: Any, path: str) -> None:
        self.address, self.shown = address, shown
        self._system, self._path = system, path.rstrip("/")

    def entries(self) -> list[Entry]:
        """See `Store`."""
        try:
            self._system.invalidate_cache()  # other machines write
            found = self._system.ls(self._path, detail=True)
        except FileNotFoundError:
            return []
        except Exception as error:  # noqa: BLE001 - each file system raises its own
            what = f"history {self.shown} cannot be read"
            raise HistoryError(what, _text(error), "check the address and your access") from None
        entries = [
            Entry(
                str(one["name"]).rsplit("/", 1)[-1],
                " ".join(str(one[key]) for key in _CHANGING if key in one),
            )
            for one in found
            if one.get("type") == "file"
        ]
        return sorted(entry for entry in entries if _is_candidate(entry.name))

    def read(self, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        """See `Store`; many at once, as each takes a round trip."""
        for start in range(0, len(names), _AT_ONCE):
            some = names[start : start + _AT_ONCE]
            paths = [f"{self._path}/{name}" for name in some]
            found = self._system.cat(paths, on_error="omit")
            for path, content in found.items():
                yield path.rsplit("/", 1)[-1], content

    def write(self, name: str, content: bytes) -> None:
        """See `Store`."""
        try:
            self._system.pipe_file(f"{self._path}/{name}", content)
        except Exception as error:  # noqa: BLE001 - each file system raises its own
            what = f"the run is not in the history {self.shown}"
            raise HistoryError(what, _text(error), "check the address and your access") from None

    def delete(self, name: str) -> None:
        """See `Store`."""
        try:
            self._system.rm_file(f"{self._path}/{name}")
        except FileNotFoundError:
            return
        except Exception as error:  # noqa: BLE001 - each file system raises its own
            what = f"history {self.shown}: {name} cannot be removed"
            raise HistoryError(what, _text(error)) from None


#: Objects that are asked for at once.
_AT_ONCE = 200


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
