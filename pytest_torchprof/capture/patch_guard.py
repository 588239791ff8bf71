"""Protect our code from a test's patches by restoring the originals while it runs.

A test or a fixture may replace anything: `os.getcwd`, `re.sub`, `sys.modules["torch"]`. Our hooks,
and the libraries they use, run among these patches. While the guard is entered, everything listed
in `originals` is as it was when the session started; on leaving, the patches are back.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from gc import get_referents
from operator import itemgetter
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple

from pytest_torchprof.capture.originals import NAMES, ROOTS, WATCHED
from pytest_torchprof.capture.unpatched import REAL
from pytest_torchprof.capture.versions import version_of

_MISSING: Any = object()

# Bound here, as a test may replace any of them.
_dict, _id, _isinstance, _zip = dict, id, isinstance, zip
_joined, _number = b"".join, int.from_bytes
#: Bits of a dict's version.
_WORD = 64
#: After this many changes to other names, a dict's version is no longer used.
_RESTLESS, _MOST_RESTLESS = 20, 8


class _Place(NamedTuple):
    """Names of a module, a class or `sys.modules`, and their original values."""

    owner: Any
    seen: Mapping[str, Any]
    names: tuple[str, ...]
    values: tuple[Any, ...]
    fetch: Callable[[Mapping[str, Any]], tuple[Any, ...]]
    #: Names that are also checked if one of the names differs.
    also: Mapping[str, Any]


_Look = tuple[Any, Mapping[str, Any], tuple[Any, ...], _Place]


class PatchGuard:
    """``with PATCH_GUARD:`` restores the originals; ``with PATCH_GUARD.suspended:`` the patches.

    Both may be nested, in one thread. Entering costs about 6 us while nothing is replaced, and up
    to 300 us if Python does not number the states of its dicts, because each name is then compared.
    """

    def __init__(self) -> None:
        self.suspended = _Suspended(self)
        self._places: list[_Place] = []
        #: What is compared on the way in, which happens often.
        self._looks: list[_Look] = []
        #: The dicts' versions, and those without patches; empty if there are no versions.
        self._versions: list[Any] = []
        self._sound = b""
        #: Places that change all the time, but not in the listed names: their names are compared.
        self._restless: list[_Look] = []
        self._changes: dict[int, int] = {}
        self._inside = False
        self._before: list[bool] = []
        #: What has been replaced, by (owner, name), with the value that the test sees.
        self._away: dict[tuple[int, str], tuple[Any, str, Any]] = {}
        self._known: set[tuple[int, str]] = set()
        #: Modules that nothing has imported so far.
        self._later: tuple[str, ...] = ()
        self._thread = 0
        self._depth = self._lowered = 0
        self._finders: list[Any] = []
        #: The list of finders that the test has emptied.
        self._emptied: list[Any] | None = None

    def learn(self) -> None:
        """Take the current values as the originals for this thread's tests."""
        self._thread = REAL.current_thread()
        self._depth = sys.getrecursionlimit()
        self._finders = list(sys.meta_path)
        self._places, self._known = [], set()
        modules = {
            name: module
            for name, module in list(sys.modules.items())
            if name.partition(".")[0] in ROOTS or name in NAMES
        }
        self._add(_place(sys.modules, sys.modules, [*NAMES, *WATCHED], modules))
        self._later = tuple(NAMES)
        self.learn_more()

    def learn_more(self) -> None:
        """Add modules that were imported since; called before a test, not during one."""
        new = [name for name in self._later if name in sys.modules]
        if new:
            self._later = tuple(name for name in self._later if name not in new)
            self._add(place for name in new for place in _places(name))

    def _add(self, places: Iterable[_Place]) -> None:
        for place in places:
            self._places.append(place)
            self._known |= {(id(place.owner), name) for name in place.names}
        self._look_at(self._places)

    def _look_at(self, places: Sequence[_Place]) -> None:
        looks = [(one.fetch, one.seen, one.values, one) for one in places]
        many = {at for at, times in self._changes.items() if times >= _RESTLESS}
        self._restless = [look for look in looks if _id(look[1]) in many]
        self._looks = [look for look in looks if _id(look[1]) not in many]
        versions = [version_of(seen) for _, seen, *_ in self._looks if isinstance(seen, dict)]
        self._versions = [one for one in versions if one is not None]
        if len(self._versions) < len(self._looks):
            self._looks, self._restless, self._versions = looks, [], []
        self._sound = bytes(8 * len(self._versions))

    def forget(self) -> None:
        """Forget the originals, for another session with other plugins in this process."""
        self._places, self._known, self._later = [], set(), ()
        self._looks, self._versions, self._sound = [], [], b""
        self._restless, self._changes = [], {}
        self._finders, self._depth = [], 0

    # ---------------------------------------------------------------- in and out

    def __enter__(self) -> None:
        if REAL.current_thread() != self._thread:
            return
        self._before.append(self._inside)
        if not self._inside:
            self._go_in()

    def __exit__(self, *_: object) -> None:
        self.turn_back()

    def turn(self, *, inside: bool) -> None:
        """Go in or out, until `turn_back`."""
        if REAL.current_thread() != self._thread:
            return  # a thread of the test's own keeps its patches
        self._before.append(self._inside)
        if inside != self._inside:
            self._go_in() if inside else self._come_out()

    def turn_back(self) -> None:
        """Restore the state before the last turn."""
        if REAL.current_thread() != self._thread or not self._before:
            return
        inside = self._before.pop()
        if inside != self._inside:
            self._go_in() if inside else self._come_out()

    def _go_in(self) -> None:
        self._inside = True
        if REAL.recursion_limit() < self._depth:
            self._lowered = REAL.recursion_limit()
            REAL.set_recursion_limit(self._depth)
        if not sys.meta_path and self._finders:
            sys.meta_path[:] = self._finders
            self._emptied = sys.meta_path
        for look in self._restless:
            if not _is_sound(look):
                self._restore(look[3])
        now = _joined(self._versions)  # one call for all of them
        if not now:
            for look in self._looks:
                if not _is_sound(look):
                    self._restore(look[3])
        elif now != self._sound:
            known, restless = True, False
            for look in _differing(self._looks, now, self._sound):
                if not _is_sound(look):
                    self._restore(look[3])
                    known = False
                    continue
                at = _id(look[1])
                self._changes[at] = times = self._changes.get(at, 0) + 1
                restless |= times == _RESTLESS
            if restless and len(self._restless) < _MOST_RESTLESS:
                self._look_at(self._places)
                known = False
            self._sound = now if known else _joined(self._versions)

    def _restore(self, place: _Place) -> None:
        owner, seen = place.owner, place.seen
        for originals in (_zip(place.names, place.values, strict=True), place.also.items()):
            for name, real in originals:
                now = seen.get(name, _MISSING)
                if now is not real:
                    self._away[_id(owner), name] = owner, name, now
                    _put(owner, name, real)

    def _come_out(self) -> None:
        self._inside = False
        while self._away:
            owner, name, patch = self._away.popitem()[1]
            _put(owner, name, patch)
        if self._emptied is not None:
            self._emptied.clear()
            self._emptied = None
        if self._lowered:
            lowered, self._lowered = self._lowered, 0
            try:
                REAL.set_recursion_limit(lowered)
            except RecursionError:  # we are deeper in the stack than the test was
                self._lowered = 0

    # ---------------------------------------------------------------- patches of our own

    @property
    def depth_of_test(self) -> int:
        """The recursion limit as the test sees it."""
        return self._lowered or int(REAL.recursion_limit())

    def set_depth_of_test(self, depth: int) -> None:
        """Set it, now or on the way out."""
        if self._inside and depth < self._depth:
            self._lowered = depth
            depth = self._depth
        elif self._inside:
            self._lowered = 0
        REAL.set_recursion_limit(depth)

    def seen_by_test(self, owner: Any, name: str) -> Any:
        """An attribute as the test sees it."""
        if (patched := self._away.get((_id(owner), name))) is not None:
            return patched[2]
        return getattr(owner, name)

    def show_test(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute as the test sees it; our code still sees the original."""
        if self._inside and (_id(owner), name) in self._known:
            self._away[_id(owner), name] = owner, name, value
        else:
            setattr(owner, name, value)


class _Suspended:
    """The way out of the guard, and in again."""

    def __init__(self, guard: PatchGuard) -> None:
        self._guard = guard

    def __enter__(self) -> None:
        self._guard.turn(inside=False)

    def __exit__(self, *_: object) -> None:
        self._guard.turn_back()


def _is_sound(look: _Look) -> bool:
    fetch, seen, values, _ = look
    try:
        same: bool = fetch(seen) == values
    except Exception:  # noqa: BLE001 - a name is gone, or cannot even be compared
        return False
    return same


def _differing(looks: Sequence[_Look], now: bytes, before: bytes) -> list[_Look]:
    """Those whose version has changed: usually few, so found without comparing each one."""
    found, at = [], 0
    changed = _number(now, "little") ^ _number(before, "little")
    while changed:
        skipped = ((changed & -changed).bit_length() - 1) // _WORD
        at += skipped + 1
        found.append(looks[at - 1])
        changed >>= (skipped + 1) * _WORD
    return found


def _put(owner: Any, name: str, value: Any) -> None:
    if _isinstance(owner, type):
        if value is _MISSING:
            type.__delattr__(owner, name)
        else:
            type.__setattr__(owner, name, value)
        return
    names = owner if _isinstance(owner, _dict) else owner.__dict__
    if value is _MISSING:
        names.pop(name, None)
    else:
        names[name] = value


def _places(module_name: str) -> Iterator[_Place]:
    """All names in `NAMES` that a module has."""
    module = sys.modules.get(module_name)
    if not isinstance(module, ModuleType):
        return
    by_owner: dict[str, list[str]] = {}
    for dotted in NAMES[module_name].split():
        owner_name, _, name = dotted.rpartition(".")
        by_owner.setdefault(owner_name, []).append(name)
    for owner_name, names in by_owner.items():
        owner = vars(module).get(owner_name) if owner_name else module
        if isinstance(owner, ModuleType | type):
            yield from _place(owner, vars(owner), names)


def _place(
    owner: Any,
    seen: Mapping[str, Any],
    names: list[str],
    also: Mapping[str, Any] | None = None,
) -> Iterator[_Place]:
    if "*" in names:
        # For a class, what is bound on access: functions, properties, class methods.
        called = _bound if isinstance(owner, type) else callable
        names = [*names, *(name for name, value in seen.items() if called(value))]
    there = tuple(dict.fromkeys(name for name in names if name in seen))
    # The first name twice: for a single name, `itemgetter` makes no tuple.
    if there := there and (*there, there[0]):
        fetch = itemgetter(*there)
        if isinstance(seen, MappingProxyType):  # twice as slow as the dict itself
            seen = next((one for one in get_referents(seen) if isinstance(one, dict)), seen)
        yield _Place(owner, seen, there, fetch(seen), fetch, also or {})


def _bound(value: Any) -> bool:
    return hasattr(type(value), "__get__")


PATCH_GUARD = PatchGuard()
