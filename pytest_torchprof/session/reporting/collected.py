"""The tests of a session as collected: their names by file, and which files run as a whole."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pytest_torchprof.session.judging.subject import name_of

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


class Collected:
    """The tests of each file, and the files of which only a part runs."""

    def __init__(
        self,
        names: Mapping[str, list[str]] | None = None,
        partial: Iterable[str] = (),
        drawn: dict[str, list[str]] | None = None,
    ) -> None:
        self.names = dict(names or {})
        self.partial = set(partial)
        #: By file, or by fixture (``path::name``), the generators from which it drew.
        self.drawn = {} if drawn is None else drawn
        #: File and name of each test, and those shared by several tests of a file.
        self._known: set[tuple[str, str]] = set()
        self._shared: set[tuple[str, str]] = set()

    def add(self, item: pytest.Item) -> None:
        """Add a test."""
        file, name = str(item.path), name_of(item)
        self.names.setdefault(file, []).append(name)
        (self._shared if (file, name) in self._known else self._known).add((file, name))

    def is_shared(self, item: pytest.Item) -> bool:
        """Whether several tests of the file have this name."""
        return (str(item.path), name_of(item)) in self._shared

    def drawing_lines(self, root: Path) -> list[str]:
        """The files and fixtures that drew random numbers outside of tests, in lines."""
        if not self.drawn:
            return []
        from pytest_torchprof.render.unstable_tests import who_draws

        return who_draws(self.drawn, root)

    def leave_out(self, files: Iterable[str]) -> None:
        """Note that not all tests of these files run."""
        self.partial |= set(files)

    def leave_out_by_options(self, config: pytest.Config) -> None:
        """Note files of which the command line selects only some tests."""
        self.leave_out(
            os.path.abspath(config.invocation_params.dir / arg.split("::")[0])  # noqa: PTH100
            for arg in config.args
            if "::" in arg
        )
        # --lf skips tests without calling a hook, and --pyargs names no files.
        by_name = config.getoption("pyargs", False) and "::" in " ".join(config.args)
        if by_name or config.getoption("lf", False):
            self.leave_out(self.names)
