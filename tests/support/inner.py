"""A session of pytest within a test, over one file, and its report."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest  # noqa: TC002 - named in signatures
import torch  # noqa: F401 - once, before an inner session forgets what it imports

ACCEPT, CHECK = ("--accept",), ("--torchprof", "--torchprof-json=r.json")
#: Plugins that an inner session does without.
OTHERS = ("anyio", "asyncio", "cacheprovider", "hypothesispytest", "randomly", "timeout", "xdist")


def session(
    pytester: pytest.Pytester, source: str, *options: str
) -> tuple[pytest.RunResult, list[dict[str, Any]]]:
    """The result of a session over this test file, and the tests of the last report."""
    sys.dont_write_bytecode = True  # of a file that is rewritten within its time stamp
    pytester.makepyfile(test_it=source)
    found = pytester.runpytest_inprocess(*(f"-pno:{name}" for name in OTHERS), *options)
    report = Path("r.json")
    return found, json.loads(report.read_text())["tests"] if report.exists() else [{}]
