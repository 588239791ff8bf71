"""Plan the tests of a session, once everybody has added their markers."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from pytest_torchprof.core.errors import BaselineError, TorchprofError
from pytest_torchprof.render import escape
from pytest_torchprof.session.judging.own_failure import OwnFailure
from pytest_torchprof.session.markers import is_ours
from pytest_torchprof.session.plan import Plan, plan_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_torchprof.baseline.source_files import Sources
    from pytest_torchprof.capture.machine import Machine
    from pytest_torchprof.core.settings import Settings

PLAN = pytest.StashKey[Plan]()
#: Our markers that a test had when it was planned.
_MARKS = pytest.StashKey[list[pytest.Mark]]()
#: Invalid markers that are shown.
_SHOWN = 10


def plan_tests(items: Iterable[pytest.Item], settings: Settings, sources: Sources | None) -> None:
    """Plan each test; and while accepting, read the sources with inline expectations.

    Raises:
        pytest.UsageError: invalid markers, with their tests.
    """
    problems = []
    for item in items:
        try:
            plan_again(item, settings)
        except TorchprofError as error:
            problems.append(f"{item.nodeid}: {error}")
            continue
        if sources is not None and "torchprof" in getattr(item, "fixturenames", ()):
            with suppress(BaselineError):  # reported where the literal is compared
                sources.of(str(item.path))
    if problems:
        more = len(problems) - _SHOWN
        shown = problems[:_SHOWN] + ([f"… and {more} more"] if more > 0 else [])
        raise pytest.UsageError("torchprof: " + "\n".join(map(escape.line, shown)))


def plan_late(
    item: pytest.Item, settings: Settings, machine: Machine, *, prepared: bool
) -> Plan | None:
    """The plan of a test to which hooks or fixtures have added markers since; None if none have.

    A test that was not ``prepared`` to be measured is left out, and its limits are unchecked.

    Raises:
        OwnFailure: one of the markers is invalid.
    """
    try:
        plan = plan_again(item, settings)
    except TorchprofError as error:
        raise OwnFailure(escape.block(f"torchprof: {error}")) from None
    if plan is None:
        return None
    plan = plan.on(machine)
    item.stash[PLAN] = plan = plan if prepared else replace(plan, left_out=True)
    return plan


def plan_again(item: pytest.Item, settings: Settings) -> Plan | None:
    """Plan a test whose markers are not those that it was planned by; None for others, and for one
    that is not profiled.

    Raises:
        SettingsError: an invalid marker.
    """
    known = item.stash.get(_MARKS, None)
    if known is not None and not _new([*filter(is_ours, item.iter_markers())], known):
        return None
    own = item.own_markers
    if known is not None:
        # A fixture adds its marker each time that it is set up.
        item.own_markers = [one for one in own if not is_ours(one)] + _distinct(
            [one for one in own if is_ours(one)], known
        )
    try:
        item.stash[_MARKS] = [*filter(is_ours, item.iter_markers())]
        plan = plan_of(item, settings)
    finally:
        item.own_markers = own
    if plan is not None:
        item.stash[PLAN] = plan
    return plan


def _new(now: list[pytest.Mark], known: list[pytest.Mark]) -> list[pytest.Mark]:
    """Markers that are not among others; their arguments, which may be anything, do not matter."""
    ids = set(map(id, known))
    return [one for one in now if id(one) not in ids]


def _distinct(own: list[pytest.Mark], known: list[pytest.Mark]) -> list[pytest.Mark]:
    """Without new markers that say what an earlier one has said."""
    new, said, out = set(map(id, _new(own, known))), set[str](), list[pytest.Mark]()
    for one in own:
        text = repr((one.name, one.args, one.kwargs))
        if id(one) not in new or text not in said:
            out.append(one)
        said.add(text)
    return out
