"""Seeds: of each run of a test after its first, and of what is drawn outside of tests."""

from __future__ import annotations

import random
import sys
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from pytest_torchprof.capture.state import Differing, RandomState, seed_for, seed_generators
from pytest_torchprof.core.errors import TorchprofError
from pytest_torchprof.session.options import OPTIONS, seed_imports

if TYPE_CHECKING:
    from pytest_torchprof.capture.state import World

#: torch seeds itself with 53 bits of the system's, and we with 63; people with numbers that they
#: remember. Source: ``c10::detail::getNonDeterministicRandom``, c10/core/GeneratorImpl.cpp.
_REMEMBERED: Final = 2**32

#: Made before the first conftest.py files are imported.
_IMPORTS = pytest.StashKey["ImportSeeds"]()


class ImportSeeds:
    """Seeds what test files draw while they are imported, and fixtures that serve several tests.

    That runs once, so no further run of a test draws it anew. Only NumPy's and torch's generators
    are seeded, and only where nobody has; ``whole``: in any case, and Python's too, with which
    people choose names and ports. ``number`` is the user's seed, None for none.
    """

    def __init__(self, number: int | None, *, whole: bool) -> None:
        self._number, self._whole = number, whole
        #: The words of NumPy's generator as nobody else has seeded it.
        self._words = set[bytes]() if number is None else _numpy_words()

    @classmethod
    def of(cls, config: pytest.Config) -> ImportSeeds:
        """Those of a session. Invalid values of options are told when all of them are read."""
        if _IMPORTS not in config.stash:
            given, number, whole = config.known_args_namespace, None, None
            with suppress(TorchprofError, pytest.UsageError, ValueError):
                row = next(option for option in OPTIONS if option.name == "seed")
                text = getattr(given, row.dest, None) or config.getini(row.dest) or row.default
                number, whole = row.parse(str(text)), seed_imports(config, given)
            number = None if whole is False else number
            config.stash[_IMPORTS] = cls(number, whole=whole is True)
        return config.stash[_IMPORTS]

    @contextmanager
    def block(self, name: str) -> Iterator[None]:
        """While a file or a fixture draws: with a seed made of its name.

        Afterwards the generators go on as if it had not drawn, but for those that it has seeded, or
        has drawn hundreds of numbers from.
        """
        if self._number is None:
            yield
            return
        before, seed = None, seed_for(self._number, name)
        ours = Differing(python=False, numpy=False, torch=False)
        python: set[bytes] = set()
        with suppress(Exception):  # a file may have replaced anything
            before = RandomState()
            free = self._whole or _numpy_words() & self._words
            torch = self._whole or _seed_of_torch() >= _REMEMBERED
            ours = Differing(self._whole, bool(free), torch)
            seed_generators(seed, python=ours.python, numpy=ours.numpy, torch=ours.torch)
            self._words = _numpy_words() if ours.numpy else self._words
            python = _python_words()
        try:
            yield
        finally:
            with suppress(Exception):
                own = Differing(
                    ours.python and bool(python & _python_words()),
                    ours.numpy and bool(self._words & _numpy_words()),
                    ours.torch and _seed_of_torch() == seed,
                )
                if before is not None:
                    before.restore(but=Differing(*(not one for one in own)))
                self._words = _numpy_words() if own.numpy else self._words


def _seed_of_torch() -> int:
    """The seed of torch's generator; 0 without torch."""
    torch = sys.modules.get("torch")
    return int(torch.default_generator.initial_seed()) if torch is not None else 0


def _numpy_words() -> set[bytes]:
    """The words of NumPy's generator now, and those that the next draw may make of them."""
    import numpy as np

    state: Any = np.random.get_state()  # noqa: NPY002 - the generator that tests use
    if not isinstance(state, tuple):
        return set()
    (copy := np.random.RandomState()).set_state((*state[:2], 624, *state[3:]))
    copy.bytes(4)
    return {state[1].tobytes(), copy.get_state()[1].tobytes()}  # type: ignore[index]


def _python_words() -> set[bytes]:
    """The same of Python's generator."""
    version, words, gauss = random.getstate()
    (copy := random.Random()).setstate((version, (*words[:-1], 624), gauss))  # noqa: S311
    copy.random()
    return {repr(words[:-1]).encode(), repr(copy.getstate()[1][:-1]).encode()}


class ImportingHooks:
    """Files and wider fixtures draw the same in each process, see `ImportSeeds`."""

    imports: ImportSeeds

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Files are imported, and asked for the arguments of their tests, as classes are."""
        if not isinstance(collector, pytest.Module | pytest.Class):
            return (yield)
        with self.imports.block(f"{collector.path.name}::{collector.nodeid.partition('::')[2]}"):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Generator[None, object, object]:
        """A fixture with a wider scope than the function is set up once, for all runs."""
        if fixturedef.scope == "function":
            return (yield)
        file = getattr(getattr(fixturedef.func, "__code__", None), "co_filename", "")
        number = getattr(request, "param_index", 0)
        with self.imports.block(f"{Path(file).name}::{fixturedef.argname}[{number}]"):
            return (yield)


# ---- The seeds of one test's runs after the first, so that they draw the same in every process.

_NOTHING = Differing(python=False, numpy=False, torch=False)


def seeded_name(item: pytest.Item) -> str:
    """A test's file and name, whatever folder pytest calls the root."""
    return f"{item.path.name}::{item.nodeid.partition('::')[2] or item.name}"


class Seeds:
    """Chooses a seed for each run of a test, and sets it.

    ``number`` is the user's, None to leave the generators in the state of the first run.
    """

    def __init__(self, number: int | None, name: str, start: World) -> None:
        #: The user's seed, None for none.
        self.number = number
        self._name = name
        self._start = start
        #: The generators that the first run has used, or seeded itself; None if it is the only one.
        self._used: Differing | None = None
        #: The states at the end of the profiled run, and of the one with another seed.
        self._ends: dict[bool, RandomState] = {}
        #: Hypothesis draws the arguments.
        self._has_arguments = False

    @property
    def matter(self) -> bool:
        """Whether the first run has used a generator at all, so that a seed may matter."""
        return self.number is not None and (any(self._used or ()) or self._has_arguments)

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
        number = self.number or 0
        seed = seed_for(number, self._name, other=other)
        seed_generators(seed, python=chosen.python, numpy=chosen.numpy)
        if hasattr(item.config.option, "randomly_seed"):
            # The same for all tests: versions of pytest-randomly keep a state for each seed.
            item.config.option.randomly_seed = seed_for(number, "", other=other) % 2**31
        if (theirs := _hypothesis_of(item)) is not None:
            theirs.global_force_seed = seed

    def note_end(self, *, other: bool) -> None:
        """After a run with the usual or the ``other`` seed, note the generators' states."""
        if self.matter:
            self._ends[other] = RandomState()


def plugins_reseeded(item: pytest.Item, undo: ExitStack) -> None:
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
