"""The seeds of one test's runs after the first, so that they draw the same in every process."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from pytest_torchprof.capture.seeding import seed_for, seed_generators
from pytest_torchprof.capture.state import Differing, RandomState, World

if TYPE_CHECKING:
    import pytest

    from pytest_torchprof.capture.undo import Undo

#: So many seeds are tried before a test that fails with them is given up.
MOST_TRIES = 4
#: Comes after them all: the seed with which a test is profiled once more.
_OTHER = MOST_TRIES

_NOTHING = Differing(python=False, numpy=False, torch=False)


def seeded_name(item: pytest.Item) -> str:
    """A test's file and name, whatever folder pytest calls the root."""
    return f"{item.path.name}::{item.nodeid.partition('::')[2] or item.name}"


class Seeds:
    """Chooses a seed for each run of a test, and sets it.

    ``number`` is the user's, None to leave the generators in the state of the first run.
    """

    def __init__(self, number: int | None, name: str, start: World) -> None:
        self._number = number
        self._name = name
        self._start = start
        self._attempt = 0
        #: The generators that the first run has used, or seeded itself; None if it is the only one.
        self._used: Differing | None = None
        #: The states at the end of the profiled run, and of the one with another seed.
        self._ends: dict[bool, RandomState] = {}
        #: Hypothesis draws the arguments.
        self._has_arguments = False

    @property
    def number(self) -> int | None:
        """The user's seed, None for none."""
        return self._number

    @property
    def matter(self) -> bool:
        """Whether the first run has used a generator at all, so that a seed may matter."""
        return self._number is not None and (any(self._used or ()) or self._has_arguments)

    @property
    def decide(self) -> bool:
        """Whether what the test draws depends on the seed: not if it sets its own.

        Known from the states of the generators at the end of two runs, if there were two.
        """
        if not self.matter or self._has_arguments:
            return self.matter
        if len(self._ends) < 2:
            return True
        differing = self._ends[True].differs(self._ends[False])
        used = self._used or _NOTHING
        return any(u and differs for u, differs in zip(used, differing, strict=True))

    def note_first(self, item: pytest.Item, left: RandomState) -> None:
        """Note the generators that the first run has used, and has ``left`` in this state; once."""
        if self._used is None:
            self._has_arguments = _hypothesis_of(item) is not None
            self._used = left.differs(self._start.random)

    def set(self, item: pytest.Item, *, other: bool = False) -> None:
        """Before a run, restore the process state, and seed; ``other``: another seed than usual."""
        if self.number is None:
            self._start.restore()
            return
        # Seeding and restoring NumPy's takes as long as a small test, so only where it is used.
        chosen = (self._used or _NOTHING)._replace(torch=True)
        self._start.restore(but=chosen)
        number, attempt = self._number or 0, _OTHER if other else self._attempt
        seed = seed_for(number, self._name, attempt)
        seed_generators(seed, python=chosen.python, numpy=chosen.numpy)
        if hasattr(item.config.option, "randomly_seed"):
            # The same for all tests: versions of pytest-randomly keep a state for each seed.
            item.config.option.randomly_seed = seed_for(number, "", attempt) % 2**31
        if (theirs := _hypothesis_of(item)) is not None:
            theirs.global_force_seed = seed

    def note_end(self, *, other: bool) -> None:
        """After a run with the usual or the ``other`` seed, note the generators' states."""
        if self.matter:
            self._ends[other] = RandomState()

    def next_try(self) -> bool:
        """Whether another seed is left after a run that failed; the next run has it."""
        if not self.matter or self._attempt + 1 >= MOST_TRIES:
            return False
        self._attempt += 1
        return True


def plugins_reseeded(item: pytest.Item, undo: Undo) -> None:
    """Restore what `Seeds.set` tells other plugins that seed generators."""
    option: Any = item.config.option
    if hasattr(option, "randomly_seed"):
        undo.callback(setattr, option, "randomly_seed", option.randomly_seed)
    if (theirs := _hypothesis_of(item)) is not None:
        before = theirs.global_force_seed
        undo.callback(setattr, theirs, "global_force_seed", before)


def _hypothesis_of(item: pytest.Item) -> Any | None:
    """Hypothesis' module, if it draws the test's arguments, and has a seed to set."""
    if not getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
        return None
    core = sys.modules.get("hypothesis.core")
    return core if hasattr(core, "global_force_seed") else None
