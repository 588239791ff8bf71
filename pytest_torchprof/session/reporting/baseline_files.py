"""Which baseline files belong to the test files of a session."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_torchprof.baseline import store
from pytest_torchprof.core.files import same_file
from pytest_torchprof.session.reporting.accept import shown

if TYPE_CHECKING:
    from pytest_torchprof.session.reporting.collected import Collected


class BaselineFiles:
    """Baseline files in a folder of this name beside test files, or in a separate tree.

    ``folder``: as `Settings.baselines` has it.
    """

    def __init__(self, folder: str, root: Path) -> None:
        self._folder = folder
        self._root = root
        self._known: dict[Path, Path] = {}

    def of(self, file: Path) -> Path:
        """The baseline path of a test file, whether it exists or not."""
        if (path := self._known.get(file)) is None:
            path = self._known[file] = store.path_for(file, self._folder, self._root)
        return path

    def is_folder(self, path: Path) -> bool:
        """Whether a path that was found beside tests is a folder of baselines."""
        folder = Path(self._folder)
        ours = same_file(path, folder) if folder.is_absolute() else path.name == folder.name
        return ours and path.is_dir()

    @property
    def project(self) -> str | None:
        """The name of this project in a folder of several."""
        return store.project_of(self._folder, self._root)

    def full(self, collected: Collected, ran: Iterable[str]) -> dict[str, list[str]]:
        """Baseline path → all tests, of files that ran as a whole; ``ran`` are node ids."""
        names_of: dict[str, set[str]] = {}
        for nodeid in ran:
            file, _, name = nodeid.partition("::")
            names_of.setdefault(str(self._root / file), set()).add(name or nodeid)
        found = {}
        for file, names in collected.names.items():
            if file in collected.partial or not set(names) <= names_of.get(file, set()):
                continue
            path = self.of(Path(file))
            if os.path.exists(path):  # noqa: PTH110 - never raises
                found[str(path)] = names
        return found

    def left_behind(self, collected: Collected) -> list[str]:
        """Baselines whose test files are gone; another branch may need them, so they stay."""
        files = [Path(file) for file in collected.names]
        folders = {(file.parent, self.of(file).parent) for file in files}
        project = self.project
        found = sorted({path for pair in folders for path in store.orphans(*pair, project)})
        return [
            f"{shown(path, self._root)}: its test file is gone; delete it too" for path in found
        ]
