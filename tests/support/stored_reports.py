"""Reports of `--torchprof-json`, made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ENVIRONMENT: dict[str, Any] = {
    "accelerator": None,
    "device_type": None,
    "torch_version": "2.13.0",
    "threads": 1,
    "host": "runner-1",
    "key": "cpu, torch 2.13",
}


def metric(value: float | None, unit: str = "1", **values: Any) -> dict[str, Any]:
    """A metric; one without a value is not measured."""
    unknown = {} if value is not None else {"status": "not_measured", "reason": "no device"}
    return {
        "value": value,
        "unit": unit,
        "class": "exact",
        "baseline": None,
        "limit": None,
        "status": "ok",
        **unknown,
        **values,
    }


def finding(**values: Any) -> dict[str, Any]:
    """A finding on a line."""
    return {
        "rule": "host-sync",
        "count": 3,
        "message": "reads back",
        "location": "train.py:21",
        "fix": "keep it",
        "accepted": False,
        "cost_ms": 1.5,
        "bytes": None,
        "path": "aten::item",
        "module": None,
        "reason": None,
        "modules": None,
        **values,
    }


def cause(**values: Any) -> dict[str, Any]:
    """A cause on a line of a library."""
    return {
        "kind": "new_operators",
        "file": "lib/model.py",
        "line": 59,
        "function": "Block.forward",
        "message": "clone ×6 is new",
        "metrics": {"ops": 6, "moved_bytes": 4096},
        "finding": None,
        "evidence": ["gone: view ×6"],
        **values,
    }


def test(nodeid: str, /, **values: Any) -> dict[str, Any]:
    """A test that passed."""
    return {
        "nodeid": nodeid,
        "outcome": "passed",
        "status": "ok",
        "reason": None,
        "metrics": {"ops": metric(3)},
        "findings": [],
        "unchecked": {},
        "trace": None,
        **values,
    }


test.__test__ = False  # type: ignore[attr-defined]


def report(*tests: dict[str, Any], **values: Any) -> dict[str, Any]:
    """A report of these tests."""
    return {
        "schema": "torchprof-report/1",
        "environment": ENVIRONMENT,
        "tests": list(tests),
        **values,
    }


def save(path: Path, document: Any) -> Path:
    """Write it as JSON."""
    path.write_text(json.dumps(document), "utf-8")
    return path
