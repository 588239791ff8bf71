"""Random numbers drawn outside of a test's runs: while files are imported, and by wider fixtures.

Such code runs once, so no further run of a test draws it anew. It is given a seed of its own, and
afterwards the generators go on as if it had not drawn, unless it has seeded them itself.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from pytest_torchprof.capture.seeding import seed_for, seed_generators
from pytest_torchprof.capture.state import Differing, RandomState, bytes_of

#: torch seeds itself with 53 bits of the system's, people with numbers that they remember.
#: ``c10::detail::getNonDeterministicRandom``, c10/core/GeneratorImpl.cpp
_REMEMBERED: Final = 2**32
#: The words of a Mersenne Twister, all of which are made anew once they are used up.
_WORDS: Final = 624
#: So many times are they followed to tell drawing from seeding: 1.2 million words in 8 ms.
_MOST_TURNS: Final = 2000
#: The same for a note, which each file costs.
_FEW_TURNS: Final = 50

_NONE: Final = Differing(python=False, numpy=False, torch=False)
_ALL: Final = Differing(python=True, numpy=True, torch=True)
_NAMES: Final = ("random", "numpy.random", "torch")

_Words = Sequence[int]


class Now(NamedTuple):
    """A generator's state: what seeding it changes, and what drawing changes, too."""

    words: Any
    place: Any


class _Block:
    """A block of code while it runs; blocks nest, as imports do."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.state: RandomState | None = None
        #: The generators that have this block's seed, and their words at the start.
        self.seeded = _NONE
        self.python: _Words | None = None
        self.numpy: _Words | None = None
        self.before: dict[str, Now] = {}
        self.drawn: set[str] = set()
        #: The generators that it has drawn from, or seeded as somebody had before.
        self.drawn_or_seeded: set[str] = set()


class OutsideDraws:
    """Seeds blocks of code, and tells which of them draw from generators that it did not seed.

    ``number`` is the user's seed, None for none. ``whole``: also seed generators that somebody has
    seeded, and Python's, with which people choose names and ports; else only NumPy's and torch's,
    where nobody has.
    """

    def __init__(self, number: int | None, *, whole: bool) -> None:
        self._number = number
        self._whole = whole
        self._notes = True
        self._blocks: list[_Block] = []
        #: Each generator when a block first saw it.
        self._first: dict[str, Now] = {}
        #: NumPy's words when it was first seen, where nobody has seeded it.
        self._numpy: _Words | None = None
        self._numpy_is_users = False

    def stop_notes(self) -> None:
        """Nobody asks who draws."""
        self._notes = False

    # ---------------------------------------------------------------- blocks

    def begin(self, name: str) -> None:
        """A block begins: a file that is imported, or a fixture.

        Whatever is raised, as where a file has replaced torch, it has begun, and must end.
        """
        block = _Block(0 if self._number is None else seed_for(self._number, name))
        try:
            self._pause()
        finally:
            self._blocks.append(block)
        if self._number is not None:
            block.state = RandomState()
            self._seed(block, _ALL if self._whole else self._unseeded())
        self._resume()

    def end(self, mentions_seed: Callable[[], bool] = lambda: False) -> list[str]:
        """The innermost block ends; the generators from which it drew as it found them.

        ``mentions_seed``: whether its code does. One seed used again, and drawing on from it, leave
        the same states, so such code is taken to have seeded what was seeded before.
        """
        block = self._blocks[-1]
        try:
            self._pause()
        finally:
            self._blocks.pop()
        if block.state is not None:
            block.state.restore(but=self._left_alone(block))
        self.loaded()
        self._resume()
        unsure = block.drawn_or_seeded - block.drawn
        return sorted(block.drawn | (set() if unsure and mentions_seed() else unsure))

    def loaded(self) -> None:
        """A module with a generator may have been imported, which the innermost block may use."""
        block = self._blocks[-1] if self._blocks else None
        if block is None or block.state is None:
            return
        state = RandomState()
        for one in self._blocks:
            if one.state is not None:
                one.state.complete(state)
        self._seed(block, self._unseeded())

    # ---------------------------------------------------------------- seeds

    def _seed(self, block: _Block, chosen: Differing) -> None:
        here = Differing(True, "numpy.random" in sys.modules, "torch" in sys.modules)
        flags = zip(chosen, here, block.seeded, strict=True)
        python, numpy, torch = new = Differing(*(c and h and not s for c, h, s in flags))
        seed_generators(block.seed, python=python, numpy=numpy, torch=torch)
        block.seeded = Differing(*(a or b for a, b in zip(block.seeded, new, strict=True)))
        if python:
            block.python = _python().words
        if numpy:
            block.numpy = _words_of_numpy()

    def _unseeded(self) -> Differing:
        """The generators that nobody has seeded, or only this class; never Python's."""
        torch = sys.modules.get("torch")
        unseeded = torch is not None and torch.default_generator.initial_seed() >= _REMEMBERED
        return Differing(python=False, numpy=self._numpy_is_ours(), torch=unseeded)

    def _numpy_is_ours(self) -> bool:
        words = None if self._numpy_is_users else _words_of_numpy()
        if words is None:
            return False
        if self._numpy is None:
            self._numpy = words
        starts = [block.numpy for block in self._blocks if block.numpy is not None]
        self._numpy_is_users = not continues([self._numpy, *starts][-1], words, _MOST_TURNS)
        return not self._numpy_is_users

    def _left_alone(self, block: _Block) -> Differing:
        """The generators that the block has seeded itself, and those without its seed."""
        python, numpy, torch = block.seeded
        if python:
            python = continues(block.python or (), _python().words, _MOST_TURNS)
        if numpy and self._whole:
            numpy = continues(block.numpy or (), _words_of_numpy() or (), _MOST_TURNS)
        elif numpy:
            self._blocks.append(block)
            numpy = self._numpy_is_ours()
            self._blocks.pop()
        if torch:
            torch = sys.modules["torch"].default_generator.initial_seed() == block.seed
        return Differing(not python, not numpy, not torch)

    # ---------------------------------------------------------------- notes

    def _pause(self) -> None:
        """The innermost block is interrupted: note what it has drawn since it was resumed."""
        if self._notes and self._blocks:
            block = self._blocks[-1]
            ours = {name for name, one in zip(_NAMES, block.seeded, strict=True) if one}
            drawn = set(drawn_between(block.before, generators())) - ours
            block.drawn_or_seeded |= drawn
            block.drawn |= {name for name in drawn if not self._was_seeded(name, block.before)}

    def _resume(self) -> None:
        if self._notes and self._blocks:
            self._blocks[-1].before = now = generators()
            self._first = {**now, **self._first}

    def _was_seeded(self, name: str, before: dict[str, Now]) -> bool:
        words = before[name].words
        if name == "torch":
            return bool(words < _REMEMBERED)
        return not continues(self._first[name].words, words, _FEW_TURNS)


def generators() -> dict[str, Now]:
    """The state of each generator of the process, by name."""
    found = {"random": _python()}
    room = sys.modules.get("numpy.random")
    state = room.get_state() if room is not None else None
    if isinstance(state, tuple):  # another bit generator's is a mapping
        found["numpy.random"] = Now(state[1].tolist(), state[2:])
    torch = sys.modules.get("torch")
    if torch is not None:
        own = torch.default_generator
        found["torch"] = Now(own.initial_seed(), bytes_of(own.get_state()))
    return found


def _python() -> Now:
    _, numbers, gauss = random.getstate()
    return Now(list(numbers[:-1]), (numbers[-1], gauss))


def _words_of_numpy() -> _Words | None:
    """NumPy's words; None if it is not imported, or has another bit generator."""
    room = sys.modules.get("numpy.random")
    state = room.get_state() if room is not None else None
    return state[1].tolist() if isinstance(state, tuple) else None


def drawn_between(before: dict[str, Now], after: dict[str, Now]) -> list[str]:
    """The generators that were drawn from in between, and that nobody has seeded.

    Some 30,000 numbers of Python's or NumPy's look like a seed, and are not noticed.

    >>> drawn_between({"a": Now(1, 2), "b": Now(1, 2)}, {"a": Now(1, 3), "c": Now(1, 1)})
    ['a']
    """
    changed = [name for name in sorted(before.keys() & after.keys()) if before[name] != after[name]]
    return [name for name in changed if _is_drawn(before[name].words, after[name].words)]


def _is_drawn(before: Any, after: Any) -> bool:
    is_twister = isinstance(before, list)
    return continues(before, after, _FEW_TURNS) if is_twister else bool(before == after)


def continues(before: _Words, now: _Words, most: int) -> bool:
    """Whether a Mersenne Twister with these 624 words comes to the others by drawing.

    ``most``: after so many turns of 624 numbers, it is held to be seeded.
    """
    if before == now:
        return True
    if not len(before) == len(now) == _WORDS:
        return False
    ours, theirs = random.Random(), random.Random()  # noqa: S311 - nothing is a secret here
    ours.setstate((3, (*before, _WORDS), None))
    theirs.setstate((3, (*now, 0), None))
    turn = 32 * _WORDS
    wanted = theirs.getrandbits(turn)
    return any(ours.getrandbits(turn) == wanted for _ in range(most))
