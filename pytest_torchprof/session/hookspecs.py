"""The hooks that conftest files and other plugins may implement."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

    from pytest_torchprof.rules.rule import Rule
    from pytest_torchprof.verdict.metrics import Metric


def pytest_torchprof_rules(config: pytest.Config) -> Iterable[Rule] | None:
    """Return anti-pattern rules of your own, made with ``@pytest_torchprof.rule``.

    Called only when tests are profiled.
    """


def pytest_torchprof_metrics(config: pytest.Config) -> Iterable[Metric] | None:
    """Return metrics of your own, made of functions of a trace with ``@pytest_torchprof.metric``.

    Called when tests are profiled, and where a test records a metric, whose name must be another.
    """
