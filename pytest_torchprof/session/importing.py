"""Test files that draw random numbers while they are imported, which no seed of a test reaches."""

from __future__ import annotations

import random
import sys
from collections.abc import Generator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from pytest_torchprof.capture.patch_guard import PATCH_GUARD
from pytest_torchprof.capture.seeding import seed_for, seed_generators
from pytest_torchprof.capture.state import RandomState, bytes_of

if TYPE_CHECKING:
    from pytest_torchprof.core.settings import Settings
    from pytest_torchprof.session.reporting.collected import Collected


class ImportingHooks:
    """Notes which files draw; with ``--torchprof-seed-imports``, they draw the same each time."""

    settings: Settings
    collected: Collected

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Collecting a file imports it."""
        if not isinstance(collector, pytest.Module):
            return (yield)
        seed = self.settings.seed if self.settings.seed_imports else None
        state, before = None, dict[str, tuple[Any, Any]]()
        # A file may replace torch or NumPy for those that follow.
        with suppress(Exception), PATCH_GUARD:
            if seed is None:
                before = generators()
            else:
                state = RandomState()
                seed_generators(seed_for(seed, collector.path.name))
        try:
            return (yield)
        finally:
            with suppress(Exception), PATCH_GUARD:
                if state is None:
                    drawn = drawn_between(before, generators())
                    self.collected.note_drawn(collector.path, drawn)
                else:
                    state.restore()


def generators() -> dict[str, tuple[Any, Any]]:
    """Of each generator of the process: what seeding it changes, and what drawing changes."""
    numbers = random.getstate()[1]
    found: dict[str, tuple[Any, Any]] = {"random": (numbers[:-1], numbers[-1])}
    room = sys.modules.get("numpy.random")
    state = room.get_state() if room is not None else None
    if isinstance(state, tuple):  # another bit generator's is a mapping
        found["numpy.random"] = state[1].tobytes(), state[2:]
    torch = sys.modules.get("torch")
    if torch is not None:
        own = torch.default_generator
        found["torch"] = own.initial_seed(), bytes_of(own.get_state())
    return found


def drawn_between(
    before: dict[str, tuple[Any, Any]], after: dict[str, tuple[Any, Any]]
) -> list[str]:
    """The generators that were drawn from in between, and that nobody has seeded.

    More than 624 numbers of Python's or NumPy's look like a seed, and are not noticed.

    >>> drawn_between({"a": (1, 2), "b": (1, 2)}, {"a": (1, 3), "b": (2, 3), "c": (1, 1)})
    ['a']
    """
    both = before.keys() & after.keys()
    alike = [name for name in sorted(both) if before[name][0] == after[name][0]]
    return [name for name in alike if before[name][1] != after[name][1]]
