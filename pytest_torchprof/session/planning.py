"""Plan the tests of a session, once everybody has added their markers."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from pytest_torchprof.core.errors import BaselineError, TorchprofError
from pytest_torchprof.render import escape
from pytest_torchprof.session.judging.own_failure import OwnFailure
from pytest_torchprof.session.plan import Plan, plan_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_torchprof.baseline.source_files import Sources
    from pytest_torchprof.core.settings import Settings

PLAN = pytest.StashKey[Plan]()
#: The markers that a test had when it was planned.
_MARKS = pytest.StashKey[tuple[pytest.Mark, ...]]()
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
            _plan(item, settings)
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


def planned_again(item: pytest.Item, settings: Settings) -> Plan | None:
    """The plan of a test to which a fixture has added markers; None if none has.

    Raises:
        OwnFailure: one of them is invalid.
    """
    if item.stash.get(_MARKS, ()) == tuple(item.iter_markers()):
        return None
    try:
        return _plan(item, settings)
    except TorchprofError as error:
        raise OwnFailure(escape.block(f"torchprof: {error}")) from None


def _plan(item: pytest.Item, settings: Settings) -> Plan | None:
    item.stash[_MARKS] = tuple(item.iter_markers())
    plan = plan_of(item, settings)
    if plan is not None:
        item.stash[PLAN] = plan
    return plan
