"""A pytest plugin for ``benchmarks.device_processes``: other orders of tests, an empty pool.

``TORCHPROF_BENCH_ORDER``: a seed by which tests are shuffled, ``reversed``, or unset for the usual
order. ``TORCHPROF_BENCH_EMPTY``: before the first run of a test, which is not measured, give free
blocks back to the driver.
"""

from __future__ import annotations

import os
import random

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Change the order of all tests, whatever file they are in."""
    order = os.environ.get("TORCHPROF_BENCH_ORDER", "")
    if order == "reversed":
        items.reverse()
    elif order:
        random.Random(int(order)).shuffle(items)


@pytest.fixture(autouse=True)
def _empty_pool(request: pytest.FixtureRequest) -> None:
    if "TORCHPROF_BENCH_EMPTY" in os.environ and request.node.nodeid not in _STARTED:
        import torch

        _STARTED.add(request.node.nodeid)
        torch.cuda.empty_cache()


#: Tests that have run before.
_STARTED: set[str] = set()
