"""What writers of Chrome traces do differently: a style changes a document as Kineto writes it.

Versions of torch from 2021 on, other tools, and processes that were killed. `STYLES` are changes of
the document, `LAYOUTS` are changes of its text.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any

Event = dict[str, Any]
Style = Callable[[Event], Event]  # from document to document; it does not change its argument


def layout(document: Event) -> str:
    """One key per line, `args` on one, as Kineto prints."""
    events, name = document["traceEvents"], document.get("traceName", "")
    top = [f"  {json.dumps(k)}: {json.dumps(v)}," for k, v in document.items()]
    top = [line for line in top if not line.startswith(('  "traceEvents"', '  "traceName"'))]
    lines = (
        ",\n    ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in e.items()) for e in events
    )
    body = ",\n".join("  {\n    " + text + "\n  }" for text in lines)
    start = "\n".join(["{", *top, '  "traceEvents": [', body])
    return f'{start}\n  ],\n  "traceName": {json.dumps(name)}\n}}\n'


def _map(document: Event, change: Callable[[Event], Event | None]) -> Event:
    changed = (change(event) for event in document["traceEvents"])
    return document | {"traceEvents": [event for event in changed if event is not None]}


def times(events: Sequence[Event], convert: Callable[[Any], Any]) -> list[Event]:
    """Times converted so that nesting stays: a duration is a difference of converted times."""
    done = [event | {"ts": convert(event["ts"])} for event in events]
    for new, old in zip(done, events, strict=True):
        if "dur" in old and isinstance(new["ts"], int):
            new["dur"] = convert(old["ts"] + old["dur"]) - new["ts"]
        elif "dur" in old:
            new["dur"] = old["dur"] if isinstance(new["ts"], str) else convert(old["dur"])
    return done


def without(*keys: str, every: int = 1) -> Style:
    """A style: every n-th event lacks these keys, looked for in the event and in its args."""
    turns = itertools.count()

    def change(event: Event) -> Event:
        if next(turns) % every:
            return event
        kept = {k: v for k, v in event.items() if k not in keys}
        if "args" in kept:
            kept["args"] = {k: v for k, v in kept["args"].items() if k not in keys}
        return kept

    return lambda document: _map(document, change)


def _string_numbers(event: Event) -> Event:
    args = event.get("args", {}).items()
    numbers = {k: str(v) for k, v in args if isinstance(v, (int, float))}
    return event | {"args": event["args"] | numbers} if numbers else event


def _in_ns(document: Event) -> Event:
    base = document["baseTimeNanoseconds"]
    events = times(document["traceEvents"], lambda us: base + round(us * 1000))
    return document | {"traceEvents": events, "displayTimeUnit": "ns"}


def _unnamed(document: Event) -> Event:
    return document | {"deviceProperties": [d | {"name": ""} for d in document["deviceProperties"]]}


def _stray(document: Event) -> Event:
    """More events, without args, cat, dur or anything; no known answer changes."""
    ts, bare = document["traceEvents"][-1]["ts"], {"ph": "X", "name": "stray", "pid": 1, "tid": "a"}
    more = [{}, {"ph": "X"}, bare, bare | {"ts": ts}, bare | {"ts": ts, "dur": 0, "cat": "unknown"}]
    more += [bare | {"ts": ts, "cat": "unknown", "args": None}, {"ph": "C", "ts": ts, "name": "c"}]
    return document | {"traceEvents": document["traceEvents"] + more}


OLD = {"cpu_op": "Operator", "user_annotation": "Operator", "cuda_runtime": "Runtime"}
OLD |= {
    "cuda_driver": "Runtime",
    "kernel": "Kernel",
    "gpu_memcpy": "Memcpy",
    "gpu_memset": "Memset",
}
OLD_OP_ARGS = ("Input Dims", "Input type", "Fwd thread id", "Sequence number")


def _schema_2021(document: Event) -> Event:
    """Whole microseconds, string threads, neither frames nor cuda_sync nor addresses."""
    document = document | {"traceEvents": times(document["traceEvents"], int)}
    devices = {d["id"] for d in document["deviceProperties"]}
    events = document["traceEvents"]
    linked = {e["id"] for e in events if e["ph"] == "f" and e["pid"] in devices}
    ops = {e["args"]["External id"]: e["ts"] for e in events if e.get("cat") == "cpu_op"}

    def change(event: Event) -> Event | None:
        args, cat, tid = event.get("args", {}), event.get("cat", "Trace"), event["tid"]
        if event["pid"] in devices and event["ph"] in "Xf":
            event = event | {"tid": f"stream {tid}"}
        if cat == "ac2g":
            host_end = event["ph"] == "f" and event["pid"] not in devices
            kept = event["id"] in linked and not host_end
            return event | {"cat": "async", "name": "launch"} if kept else None
        if cat == "cpu_instant_event":
            event = event | {"args": {k: args[k] for k in ("Device Type", "Device Id", "Bytes")}}
            return {k: v for k, v in event.items() if k != "cat"}
        if cat not in OLD:
            return event if cat == "Trace" else None
        external = args.get("External id")
        if OLD[cat] == "Operator":
            new = {"Device": tid, "External id": external, "Trace name": "PyTorch Profiler"}
            new |= {"Trace iteration": 0} | {k: args[k] for k in OLD_OP_ARGS if k in args}
        else:
            new = {k: v for k, v in args.items() if k != "External id"}
            new |= {} if external is None else {"external id": external}
            new |= (
                {"external ts": ops[external]} if OLD[cat] == "Runtime" and external in ops else {}
            )
        return event | {"cat": OLD[cat], "tid": str(event["tid"]), "args": new}

    return _map(document, change)


def _roctracer(document: Event) -> Event:
    """ROCm until kineto's 2024: the correlation id stands as "External id", and little else."""

    def change(event: Event) -> Event:
        args = event.get("args", {})
        if event["ph"] != "X" or "correlation" not in args:
            return event
        rest = {k: v for k, v in args.items() if k in {"kind", "bytes", "kernel"}}
        return event | {"args": {"External id": args["correlation"], **rest}}

    return {k: v for k, v in _map(document, change).items() if k != "deviceProperties"}


LAYOUTS = {"bare_list", "compact", "truncated"}  # compact: as re-written by json, events first
STYLES: dict[str, Style] = {
    "string_numbers": lambda d: _map(d, _string_numbers),
    "string_ids": lambda d: _map(d, lambda e: e | {"pid": str(e["pid"]), "tid": str(e["tid"])}),
    "ts_string": lambda d: d | {"traceEvents": times(d["traceEvents"], str)},
    "ts_int": lambda d: d | {"traceEvents": times(d["traceEvents"], int)},
    "ts_ns": _in_ns,  # ts and dur in nanoseconds since 1970, over 2**53
    "no_args": without("args"),
    "no_cat": without("cat"),
    "no_dur": without("dur"),
    "no_device_name": _unnamed,
    "no_properties": lambda d: {"traceEvents": d["traceEvents"]},
    "stray": _stray,
    "schema_2021": _schema_2021,
    "roctracer": _roctracer,
}
