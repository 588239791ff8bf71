"""What a test asks of the ``torchprof`` fixture, over all its runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pytest_torchprof.core.reasons import Why, because

if TYPE_CHECKING:
    from pytest_torchprof.baseline.inline import Edit
    from pytest_torchprof.core.reasons import Reason


class Asked:
    """Regions, numbers, tables and expectations of one test, noted by the fixture."""

    def __init__(self) -> None:
        #: The test measures a block or a callable through the fixture.
        self.own_region = False
        #: It names regions, which are parts of the whole call phase.
        self.names_regions = False
        #: All measurement, rounds included, happened in this run, so nothing is rerun.
        self.complete = False
        #: The exception that ended a region, so that the run measured nothing.
        self.raised: str | None = None
        #: It has read measured numbers, so its failure may be about them.
        self.stats_read = False
        #: It has asked for numbers, whether there were any or not.
        self.stats_asked = False
        #: A failed inline expectation: metric → expected text; of other comparisons, nothing.
        self.mismatch: Mapping[str, str] | None = None
        #: It asked for a table, and these are the tables that a rerun printed.
        self.table_asked = False
        self.tables: list[str] = []
        #: Metrics that it compares, but that were not measured.
        self.unchecked: list[str] = []
        #: What the profiled run asked of named regions before it was known, and whether that is
        #: compared.
        self.early: dict[str, bool] = {}
        #: Why the numbers of a named region are not those of all that ran in it.
        self.region_gaps: dict[str, Reason] = {}
        #: Inline expectations to rewrite.
        self.edits: list[Edit] = []
        #: Seconds that its comparisons of callables may take; 0 if there are none.
        self.pairs_s = 0.0
        #: The run that compares them has begun, it has begun a comparison, and is within one.
        self.pairs_run = self.has_compared = self.is_comparing = False
        #: Why one of them has no answer.
        self._unanswered: Reason | None = None

    def note_region(self, *, complete: bool = False) -> None:
        """Note that a region begins; ``complete``: all its rounds happen in this run."""
        self.own_region = True
        self.complete |= complete

    def note_raised(self, kind: type[BaseException]) -> None:
        """Note that an exception of this kind ended a region."""
        self.raised = kind.__name__

    def note_stats(self, *, read: bool = False, unchecked: Iterable[str] = ()) -> None:
        """Note that numbers are asked for, or ``read``; those ``unchecked`` were not measured."""
        self.stats_asked = True
        self.stats_read |= read
        self.unchecked += unchecked

    def note_named(self) -> None:
        """Note that a named region begins."""
        self.names_regions = True

    def take_early(self) -> bool:
        """Whether anything was asked early; from now on it can be answered."""
        asked, self.early = bool(self.early), {}
        return asked

    def note_early(self, label: str, *, compared: bool) -> None:
        """Note that the profiled run asks for what only a later run can have."""
        self.early[label] = compared

    def note_region_gap(self, name: str, gap: Reason) -> None:
        """Note why the numbers of a named region are not those of all that ran in it."""
        self.region_gaps.setdefault(name, gap)

    def note_pairs(self, seconds: float) -> None:
        """Note that the test compares callables, for which it needs this many seconds."""
        self.pairs_s += seconds

    def note_pairs_run(self) -> None:
        """Note that the run begins which compares callables."""
        self.pairs_run = True

    def note_comparison(self, *, done: bool = False, gap: Reason | None = None) -> None:
        """Note that a comparison begins, or is done; ``gap``: why it has no answer."""
        self.has_compared, self.is_comparing = True, not done
        self._unanswered = self._unanswered or gap

    @property
    def pairs_gap(self) -> Reason | None:
        """Why callables were not compared, if they were not."""
        if not self.pairs_s or self.has_compared:
            return self._unanswered
        return because(Why.COMPARISON_NOT_REACHED if self.pairs_run else Why.NO_RUN_TO_COMPARE)

    def note_mismatch(self, expected: Mapping[str, str]) -> None:
        """Note a failed inline expectation: metric → expected text."""
        self.mismatch = expected

    def note_edit(self, edit: Edit) -> None:
        """Note an inline expectation to rewrite."""
        self.edits.append(edit)

    def note_table(self, text: str | None = None) -> None:
        """Note that a table is asked for; an unprofiled run has no ``text`` for it."""
        self.table_asked = True
        self.tables += [text] if text is not None else []

    def forget_tables(self) -> None:
        """Forget the tables, since the test runs again and makes them again."""
        self.tables.clear()

    def keep_printed(self, printed: str) -> None:
        """Of the tables that a run has made, keep only those that it printed."""
        tables, self.tables = self.tables, []
        for text in tables:
            if text in printed:
                self.tables.append(text)
                printed = printed.replace(text, "", 1)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Context for an extra run: how it ends and what it prints is forgotten."""
        raised, mismatch, tables = self.raised, self.mismatch, list(self.tables)
        early, gaps = dict(self.early), dict(self.region_gaps)
        try:
            yield
        finally:
            self.raised, self.mismatch, self.tables = raised, mismatch, tables
            self.early, self.region_gaps = early, gaps
