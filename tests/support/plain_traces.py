"""Traces of a few events, with the times and numbers that a test gives them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def x(cat: str, name: str, ts: int, dur: int, number: int = 0, **args: Any) -> dict[str, Any]:
    """An event; those of one number belong to one launch."""
    on_device = cat == "kernel"
    where = {"pid": 0, "tid": 7} if on_device else {"pid": 1, "tid": 1}
    args |= {"External id": number, "correlation": number} if number else {}
    args |= {"device": 0, "stream": 7} if on_device else {}
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "args": args, **where}


def write(path: Path, events: list[dict[str, Any]], **metadata: Any) -> Path:
    """A trace of an H100."""
    top = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]}
    path.write_text(json.dumps({**top, **metadata, "traceEvents": events}))
    return path
