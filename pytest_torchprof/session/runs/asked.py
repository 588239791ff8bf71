"""What a test asks of its fixture, and what came of that, over all its runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_torchprof.baseline.inline import Edit


class Asked:
    """Regions, numbers, tables and expectations of one test, noted by the fixture."""

    def __init__(self) -> None:
        #: The test measures a block or a callable of its own through the fixture.
        self.own_region = False
        #: It did so to the end within this run, with its own rounds: nothing is to be run again.
        self.complete = False
        #: The exception that a region of it was left with, so that there is nothing of that run.
        self.raised: str | None = None
        #: It has looked at measured numbers, so its failure may be about them.
        self.stats_read = False
        #: It asks for numbers, whether there were any or not.
        self.stats_asked = False
        #: An inline expectation has failed it: metric → expected text.
        self.mismatch: Mapping[str, str] | None = None
        #: It asked for a table, and these are the ones that a rerun of it has printed.
        self.table_asked = False
        self.tables: list[str] = []
        #: Metrics that it compares, and that were not measured.
        self.unchecked: list[str] = []
        #: Inline expectations to be rewritten.
        self.edits: list[Edit] = []

    def note_region(self, *, complete: bool = False) -> None:
        """A region begins; ``complete``: one that has all its rounds within this run."""
        self.own_region = True
        self.complete |= complete

    def note_raised(self, kind: type[BaseException]) -> None:
        """A region was left with an exception of this kind."""
        self.raised = kind.__name__

    def note_stats(self, *, read: bool = False, unchecked: Iterable[str] = ()) -> None:
        """Numbers are asked for, or ``read``; those ``unchecked`` were not measured."""
        self.stats_asked = True
        self.stats_read |= read
        self.unchecked += unchecked

    def note_mismatch(self, expected: Mapping[str, str]) -> None:
        """An inline expectation fails the test: metric → expected text."""
        self.mismatch = expected

    def note_edit(self, edit: Edit) -> None:
        """An inline expectation is to be rewritten."""
        self.edits.append(edit)

    def note_table(self, text: str | None = None) -> None:
        """A table is asked for, and there is one or, in a run that is not profiled, none yet."""
        self.table_asked = True
        self.tables += [text] if text is not None else []

    def forget_tables(self) -> None:
        """The test runs again, and makes its tables again."""
        self.tables.clear()

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
