"""What a test asks of its fixture, and what came of that; the fixture writes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from pytest_torchprof.core.plain import Open

if TYPE_CHECKING:
    from pytest_torchprof.baseline.inline import Edit


class Asked(Open):
    """Regions, numbers, tables and expectations of one test, over all its runs."""

    #: The test measures a block or a callable of its own through the fixture.
    own_region: bool = False
    #: It did so to the end within this run, with its own rounds: nothing is to be run again.
    complete: bool = False
    #: The exception that a region of it was left with, so that there is nothing of that run.
    raised: str | None = None
    #: It has looked at measured numbers, so its failure may be about them.
    stats_read: bool = False
    #: It asks for numbers, whether there were any or not.
    stats_asked: bool = False
    #: An inline expectation has failed it: metric → expected text.
    mismatch: Mapping[str, str] | None = None
    #: It asked for a table, and these are the ones that a rerun of it has printed.
    table_asked: bool = False
    tables: list[str] = msgspec.field(default_factory=list)
    unchecked: list[str] = msgspec.field(default_factory=list)
    #: Inline expectations to be rewritten, see `baseline.inline.Edit`.
    edits: list[Edit] = msgspec.field(default_factory=list)

    def keep_printed(self, printed: str) -> None:
        """Of the tables that a run has made, only those that it has printed."""
        tables, self.tables = self.tables, []
        for text in tables:
            if text in printed:
                self.tables.append(text)
                printed = printed.replace(text, "", 1)

    @contextmanager
    def unheard(self) -> Iterator[None]:
        """Around a run that decides nothing: how it ended, and what it said, is forgotten."""
        raised, mismatch, tables = self.raised, self.mismatch, list(self.tables)
        try:
            yield
        finally:
            self.raised, self.mismatch, self.tables = raised, mismatch, tables
