"""A trace of any size: repetitions of a real one, in Kineto's format."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAME = "h100_bert_inference.pt.trace.json.gz"
CORPUS = Path(
    os.environ.get("TORCHPROF_TRACE_CORPUS")
    or Path(__file__).resolve().parents[2] / "shared" / "traces"
)

#: Numbers that identify a call; each repetition has its own.
_NUMBERS = ("External id", "correlation", "Ev Idx", "Python id", "Python parent id")


def source() -> Path | None:
    """The real trace, if available."""
    path = CORPUS / NAME
    return path if path.exists() else None


def write(real: Path, target: Path, count: int) -> int:
    """Write a trace of at least ``count`` events, and return their number."""
    document = json.loads(gzip.decompress(real.read_bytes()))
    events = [event for event in document.pop("traceEvents") if event["ph"] != "M"]
    name = document.pop("traceName", "")
    head = "".join(
        f"  {json.dumps(key)}: {json.dumps(value)},\n" for key, value in document.items()
    )
    repetitions = -(-count // len(events))
    with target.open("w", encoding="utf-8") as file:
        file.write(f'{{\n{head}  "traceEvents": [')
        for number in range(repetitions):
            file.write(",".join(printed(events, number)) + "," * (number + 1 < repetitions))
        file.write(f'\n  ],\n  "traceName": {json.dumps(name)}\n}}\n')
    return repetitions * len(events)


def printed(events: list[dict[str, Any]], number: int) -> Iterator[str]:
    """Each event of a repetition, as Kineto prints it."""
    start = min(event["ts"] for event in events)
    span = max(event["ts"] + event.get("dur", 0) for event in events) - start + 10
    step = 1 + max(_largest(event) for event in events)
    for event in events:
        args = dict(event.get("args", {}))
        for key in _NUMBERS:
            if isinstance(args.get(key), int):
                args[key] += number * step
        rest = {key: event[key] for key in event if key not in {"ts", "dur", "args"}}
        if "id" in rest:
            rest["id"] += number * step
        text = f'    {json.dumps(rest)[1:-1]},\n    "ts": {event["ts"] + number * span:.3f}'
        if "dur" in event:
            text += f', "dur": {event["dur"]:.3f}'
        if args:
            text += f',\n    "args": {{\n      {json.dumps(args)[1:-1]}\n    }}'
        yield f"\n  {{\n{text}\n  }}"


def _largest(event: dict[str, Any]) -> int:
    args = event.get("args", {})
    numbers = [int(args[key]) for key in _NUMBERS if isinstance(args.get(key), int)]
    return max(numbers, default=0)
