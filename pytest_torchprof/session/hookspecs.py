"""The hook that conftest files and other plugins may implement."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

    from pytest_torchprof.rules.engine.rule import Rule


def pytest_torchprof_rules(config: pytest.Config) -> Iterable[Rule] | None:
    """Return anti-pattern rules of your own, made with ``@pytest_torchprof.rule``.

    Called only when tests are profiled.
    """
