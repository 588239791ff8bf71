"""Generators and other state of the process that a rerun must not change."""

from __future__ import annotations

import ctypes
import hashlib
import os
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, Final, NamedTuple

from pytest_torchprof.capture.patches import PATCH_GUARD

# ---- States of random generators, decoded only if they changed, which few tests cause.
#
# Decoding a state takes as long as a small test, and restoring it just as long. The generators of
# CPython and NumPy keep all of their state inside C objects, whose bytes show whether it changed.
# If that does not hold, which is tried out, each check decodes the state.

_HEAD = object.__basicsize__
_read = ctypes.string_at


class State(NamedTuple):
    """A state, and a fingerprint of it; None if there is none."""

    fingerprint: tuple[Any, ...] | None
    whole: Any


class Generator:
    """One generator of the process; ``tell`` returns the fingerprint of its state."""

    def __init__(self, tell: Callable[[], tuple[Any, ...] | None]) -> None:
        self._tell = tell
        self._last = State(None, None)

    def now(self, decode: Callable[[], Any]) -> State:
        """Its state, which ``decode`` reads."""
        fingerprint = self._tell()
        if fingerprint is None or fingerprint != self._last.fingerprint:
            self._last = State(fingerprint, decode())
        return self._last

    def restore(self, state: State, put: Callable[[Any], object]) -> None:
        """Restore the state, unless it is unchanged."""
        if state.fingerprint is None or state.fingerprint != self._tell():
            put(state.whole)


def _bytes_of(thing: Any, kind: Any) -> bytes:
    return _read(id(thing) + _HEAD, kind.__basicsize__ - _HEAD)


def _tell_python() -> tuple[Any, ...] | None:
    return _python(random._inst) if _python_tells() else None


def _python(generator: Any) -> tuple[Any, ...]:
    return _bytes_of(generator, random.Random.__base__), generator.gauss_next


def _tell_numpy() -> tuple[Any, ...] | None:
    if not _numpy_tells():
        return None
    generator = getattr(sys.modules["numpy.random"].get_state, "__self__", None)
    bits = getattr(generator, "_bit_generator", None)
    kinds = type(generator).__name__, type(bits).__module__, type(bits).__name__
    return _numpy(generator, bits) if kinds == _KINDS else None  # else replaced functions


_KINDS = "RandomState", "numpy.random._mt19937", "MT19937"


def _numpy(generator: Any, bits: Any) -> tuple[Any, ...]:
    return _bytes_of(generator, type(generator)), _bytes_of(bits, type(bits)), bits


PYTHON, NUMPY = Generator(_tell_python), Generator(_tell_numpy)


@cache
def _python_tells() -> bool:
    mine = random.Random(1)  # noqa: S311 - nothing is a secret here
    try:
        return _tells(
            lambda: _python(mine),
            [mine.random, mine.gauss, mine.gauss, mine.gauss],
            lambda: mine.setstate(mine.getstate()),
        )
    except (AttributeError, TypeError):
        return False


@cache
def _numpy_tells() -> bool:
    try:
        room = sys.modules["numpy.random"]
        mine = room.RandomState(1)
        bits = mine._bit_generator
        return _tells(
            lambda: _numpy(mine, bits),
            [mine.rand, mine.normal, mine.normal, mine.normal, bits.random_raw],
            lambda: mine.set_state(mine.get_state()),
        )
    except (AttributeError, KeyError, TypeError):
        return False


def _tells(
    tell: Callable[[], tuple[Any, ...]],
    draws: list[Callable[[], object]],
    same: Callable[[], object],
) -> bool:
    """Whether the fingerprint changes with each drawn number, and only then."""
    if sys.implementation.name != "cpython":
        return False
    for draw in draws:
        before = tell()
        if before != tell():
            return False
        draw()
        after = tell()
        same()
        if before == after or after != tell():
            return False
    return True


# ---- Seeds for the random generators of the process: Python's, NumPy's, and torch's on all
# devices.

#: Backends whose modules keep a generator for each device.
_BACKENDS = ("cuda", "xpu")


def seed_for(number: int, name: str, attempt: int = 0) -> int:
    """The seed of a test's runs: 63 bits of a digest, the same on every machine.

    ``name`` is the test's; ``attempt`` counts the seeds that were tried before.

    >>> seed_for(0, "test_a.py::test_a") == seed_for(0, "test_a.py::test_a")
    True
    >>> seed_for(0, "test_a.py::test_a") == seed_for(0, "test_a.py::test_b")
    False
    """
    text = f"{number} {attempt} {name}".encode(errors="backslashreplace")
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1


def accelerators() -> Iterator[Any]:
    """The modules of backends in use, such as ``torch.cuda``; none is initialized by asking."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    own = getattr(torch._C, "_get_privateuse1_backend_name", str)()
    for name in (*_BACKENDS, own):
        module = getattr(torch, name, None) if name else None
        started = getattr(module, "is_initialized", None)
        if started is not None and hasattr(module, "get_rng_state_all") and started():
            yield module


def seed_generators(
    seed: int, *, python: bool = True, numpy: bool = True, torch: bool = True
) -> None:
    """Seed torch's generators on all devices in use, Python's, and NumPy's if it is loaded.

    A generator that somebody made, such as a `torch.Generator`, stays as it is.
    """
    if python:
        random.seed(seed)
    room = sys.modules.get("numpy.random") if numpy else None
    if room is not None:
        with suppress(AttributeError, TypeError):  # another bit generator, which has no such seed
            room.seed(seed % 2**32)
    loaded = sys.modules.get("torch") if torch else None
    if loaded is not None:
        loaded.default_generator.manual_seed(seed)
        for module in accelerators():
            module.manual_seed_all(seed)
        if _has_mps(loaded):
            loaded.mps.manual_seed(seed)


def mps() -> Any | None:
    """``torch.mps`` on a machine that has Metal; else None."""
    torch = sys.modules.get("torch")
    return torch.mps if torch is not None and _has_mps(torch) else None


def _has_mps(torch: Any) -> bool:
    return bool(getattr(torch, "_C", None) and getattr(torch._C, "_has_mps", False))


# ---- Save and restore process state that a rerun must not change.


class Differing(NamedTuple):
    """Which generators two states differ in; ``torch``: on any device."""

    python: bool
    numpy: bool
    torch: bool


class RandomState:
    """The generators' states, so that a rerun neither sees nor leaves other random numbers."""

    def __init__(self) -> None:
        numpy = sys.modules.get("numpy.random")
        self._python = PYTHON.now(random.getstate)
        self._numpy = NUMPY.now(numpy.get_state) if numpy is not None else None
        torch = sys.modules.get("torch")
        self._torch = torch.default_generator.get_state() if torch is not None else None
        self._devices: list[tuple[Any, list[Any]]] = []
        with suppress(RuntimeError):  # a device reports an error of earlier work
            self._devices = [(module, module.get_rng_state_all()) for module in accelerators()]
        metal = mps()
        self._mps = metal.get_rng_state() if metal is not None else None

    def restore(self, but: Differing | None = None) -> None:
        """Restore the generators' states, ``but`` these."""
        if but is None or not but.python:
            PYTHON.restore(self._python, random.setstate)
        if self._numpy is not None and (but is None or not but.numpy):
            NUMPY.restore(self._numpy, sys.modules["numpy.random"].set_state)
        if but is not None and but.torch:
            return
        if self._torch is not None:
            sys.modules["torch"].default_generator.set_state(self._torch)
        with suppress(RuntimeError):  # as above
            for module, states in self._devices:
                module.set_rng_state_all(states)
        if self._mps is not None:
            sys.modules["torch"].mps.set_rng_state(self._mps)

    def complete(self, later: RandomState) -> None:
        """Take over the states of generators that did not exist when this one was taken."""
        if self._numpy is None:
            self._numpy = later._numpy
        if self._torch is None:
            self._torch, self._devices, self._mps = later._torch, later._devices, later._mps

    def differs(self, other: RandomState) -> Differing:
        """Which generators are in another state; those that cannot tell count as such."""
        ours, theirs = (self._numpy, other._numpy)
        devices = [[s for _, states in one._devices for s in states] for one in (self, other)]
        return Differing(
            python=_differ(self._python, other._python),
            numpy=_differ(ours, theirs) if ours and theirs else theirs is not ours,
            torch=_unequal([self._torch], [other._torch])
            or _unequal(*devices)
            or _unequal([self._mps], [other._mps]),
        )


def _differ(one: State, other: State) -> bool:
    return one.fingerprint is None or one.fingerprint != other.fingerprint


def _unequal(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether states of torch's generators differ: tensors of bytes on the host."""
    if len(some) != len(others):
        return True
    return any(
        a is not b and (a is None or b is None or bytes_of(a) != bytes_of(b))
        for a, b in zip(some, others, strict=True)
    )


def bytes_of(state: Any) -> bytes:
    """A generator's state, read without an operator: a mode that a test left may refuse those.

    Raises:
        TypeError: it is a mock's, which has no address.
    """
    address, count = state.data_ptr(), state.nbytes
    if type(address) is not int or type(count) is not int:
        raise TypeError(f"an address is needed, not {type(address).__name__}")
    return ctypes.string_at(address, count)


class World:
    """State that a test may change for later tests, but its reruns must not."""

    def __init__(self) -> None:
        self.random = RandomState()
        self._filters = list(warnings.filters)
        self._environ = dict(_variables())
        self._depth = PATCH_GUARD.depth_of_test
        self._folder: str | None = None
        with suppress(OSError):  # a test has deleted it
            self._folder = os.getcwd()  # noqa: PTH109 - nothing of this is a Path

    def restore(self, but: Differing | None = None) -> None:
        """Put it back; the generators named by ``but`` stay as they are."""
        self.random.restore(but)
        if PATCH_GUARD.depth_of_test != self._depth:
            PATCH_GUARD.set_depth_of_test(self._depth)
        warnings.filters[:] = self._filters  # type: ignore[index]
        if _variables() != self._environ:
            _restore_variables(self._environ)
        warnings._filters_mutated()  # type: ignore[attr-defined]
        if self._folder is not None:
            with suppress(OSError):
                os.chdir(self._folder)


def _variables() -> Mapping[Any, Any]:
    """The environment in the system's encoding, if Python keeps it so, to avoid decoding it."""
    found: Mapping[Any, Any] = getattr(os.environ, "_data", os.environ)
    return found


def _restore_variables(before: Mapping[Any, Any]) -> None:
    """Restore only what differs: pytest itself sets a variable in each phase."""
    now = _variables()
    for key in [key for key in now if key not in before]:
        del os.environ[os.fsdecode(key)]
    for key, value in before.items():
        if now.get(key) != value:
            os.environ[os.fsdecode(key)] = os.fsdecode(value)


# ---- Random numbers drawn outside of a test's runs: while files are imported, and by wider
# fixtures.
#
# Such code runs once, so no further run of a test draws it anew. It is given a seed of its own,
# and afterwards the generators go on as if it had not drawn, unless it has seeded them itself.

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
            block.python = _python_draws().words
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
            python = continues(block.python or (), _python_draws().words, _MOST_TURNS)
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
    found = {"random": _python_draws()}
    room = sys.modules.get("numpy.random")
    state = room.get_state() if room is not None else None
    if isinstance(state, tuple):  # another bit generator's is a mapping
        found["numpy.random"] = Now(state[1].tolist(), state[2:])
    torch = sys.modules.get("torch")
    if torch is not None:
        own = torch.default_generator
        found["torch"] = Now(own.initial_seed(), bytes_of(own.get_state()))
    return found


def _python_draws() -> Now:
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
