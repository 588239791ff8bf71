"""Parts of a trace that limits name: what of such a kind ran, for those that match nothing."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from pytest_torchprof.core.reasons import Reason, Why, because
from pytest_torchprof.core.scopes import is_of_name
from pytest_torchprof.trace.kinds import DEVICE_KINDS, Kind
from pytest_torchprof.trace.known_names import MODULE, MODULE_MARK, REGION, region_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.verdict.measured import CouldRun

#: How a scope is called in a sentence.
_WORDS = {"op": "operator", "kernel": "kernel", "module": "module", "region": "region"}
_MOST_SHOWN = 3
#: Why a part of a test has no number: nothing of its name ran.
DID_NOT_RUN = frozenset({Why.SCOPE_DID_NOT_RUN, Why.SCOPE_DID_NOT_RUN_NEAR, Why.SCOPE_UNKNOWN})


def did_not_run(trace: Events, how: str, what: str) -> Reason:
    """Why there is no number for a scope: nothing of this name or glob ran.

    Names that did run and are spelled alike are part of it.
    """
    near = _near(what, frozenset(_ran(trace, how)))
    if near:
        return because(Why.SCOPE_DID_NOT_RUN_NEAR, scope=_WORDS[how], name=what, near=near)
    return because(Why.SCOPE_DID_NOT_RUN, scope=_WORDS[how], name=what)


def is_unknown(trace: Events, how: str, what: str, could_run: CouldRun) -> Reason | None:
    """Why nothing of this name or glob could run; None if something could, or nobody knows.

    Nobody can list the names of kernels.
    """
    if how == "kernel":
        return None
    ran, known = frozenset(_ran(trace, how)), could_run()
    names = known.get(how, frozenset())
    if not known or _has(what, ran) or _has(what, names):
        return None
    near = _near(what, frozenset((*_near(what, ran), *_near(what, names)))) or ("none",)
    return because(Why.SCOPE_UNKNOWN, scope=_WORDS[how], name=what, near=near)


@lru_cache(maxsize=64)
def _has(what: str, names: frozenset[str]) -> bool:
    return what in names or any(is_of_name(what, name) for name in names)


@lru_cache(maxsize=64)
def _near(what: str, names: frozenset[str]) -> tuple[str, ...]:
    """Up to three names that are spelled alike, sorted."""
    import difflib

    return tuple(sorted(difflib.get_close_matches(what, sorted(names), _MOST_SHOWN)))


def _ran(trace: Events, how: str) -> list[str]:
    """The distinct names of this kind in the measured region."""
    kinds = {"op": (Kind.OP,), "kernel": DEVICE_KINDS, "region": (Kind.ANNOTATION,)}
    rows = trace.is_kind(*kinds.get(how, (Kind.ANNOTATION, Kind.PYTHON))) & trace.in_region
    names = [trace.names[number] for number in dict.fromkeys(trace.name[rows].tolist())]
    if how == "module":
        return sorted(set(_classes(names)))
    if how == "region":
        return [region_name(name) for name in names if name != REGION]
    return names


def _classes(names: list[str]) -> Iterator[str]:
    for name in names:
        if name.startswith(MODULE_MARK):
            yield name.removeprefix(MODULE_MARK)
        elif (found := MODULE.match(name)) is not None:
            yield found[1]
