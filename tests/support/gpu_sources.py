"""Sources of tests on a GPU within tests, and what was measured of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from support.outcomes import Session

#: Launches kernels that allocate nothing.
HEAD = """
    import os
    import subprocess
    import sys
    import threading
    import time
    import pytest
    import torch

    X = torch.ones(64, device="cuda")

    def launch(count, x=None):
        x = X if x is None else x
        for _ in range(count): x.mul_(1.0)
"""


def values(ran: Session, metric: str, *tests: str) -> dict[str, Any]:
    """By test: the value, or the reason for having none."""
    found = {}
    for test in tests:
        record = ran.records[test]
        one = record["metrics"].get(metric, {"value": None, "reason": record["reason"]})
        found[test] = one["reason"] if one["value"] is None else one["value"]
    return found


def counts(ran: Session, metric: str, **expected: int) -> None:
    """Each test has this number, see `values`."""
    found = values(ran, metric, *expected)
    wrong = {test: seen for test, seen in found.items() if seen != expected[test]}
    assert not wrong, f"{metric}: {wrong}, expected { ({test: expected[test] for test in wrong}) }"
