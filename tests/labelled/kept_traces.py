"""Small traces of examples that ran on a GPU: one positive and one near miss of each device rule.

``expected.json`` beside them has how often each rule matches; that of the example's own rule is
what its label says, and what the live run found.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_payloads.scrubbing import own_names, scrubbed
from labelled.case import ANY

from pytest_torchprof.rules.check import check
from pytest_torchprof.rules.registry import RULES
from pytest_torchprof.trace.read import parse_trace

if TYPE_CHECKING:
    from labelled.case import Case
    from labelled.on_device import Ran

#: A kept trace takes so much, compressed.
LARGEST_BYTES = 20 * 1024
#: Rules that say something else, or more, where there is a device.
_ALSO = {"host-sync", "starved-loader", "gc-pause", "manual-attention"}
#: Rules without positives on one GPU.
_ELSEWHERE = {"half-unused", "exposed-communication"}
#: Rules that look at a device's work, and have both kinds of examples on one GPU.
CODES = tuple(
    code
    for code, rule in RULES.items()
    if ("device" in rule.needs or code in _ALSO) and code not in _ELSEWHERE
)


def keep(case: Case, ran: Ran, folder: Path) -> dict[str, Any] | None:
    """Store the trace of an example that is as labelled, if it is small and says so itself.

    Returns its row of ``expected.json``; None if it is not kept.
    """
    if ran.path is None or ran.problems or case.rule not in CODES or case.thresholds:
        return None
    text = scrubbed(ran.path.read_text("utf-8"), own_names())
    packed = gzip.compress(text.encode(), 9, mtime=0)
    if len(packed) > LARGEST_BYTES:
        return None
    checked = check(parse_trace(text.encode()), RULES.values())
    own = checked.counts.get(case.rule, 0)
    # Without tensors, a rule whose count is left open may count otherwise.
    fits = own > 0 if case.matches == ANY else own == case.matches
    if not fits or checked.errors or case.rule in checked.unchecked:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{case.name}.json.gz").write_bytes(packed)
    return {
        "name": case.name,
        "rule": case.rule,
        "positive": own > 0,
        "counts": dict(sorted(checked.counts.items())),
        "packed_bytes": len(packed),
    }


def chosen(rows: Iterable[Mapping[str, Any]], folder: Path, machine: Mapping[str, Any]) -> None:
    """Leave one trace of each rule and kind in the folder, the smallest, and write the answers.

    Of two, that in which fewer other rules match is the better one.
    """
    best: dict[tuple[str, bool], Mapping[str, Any]] = {}
    for row in sorted(rows, key=lambda row: (len(row["counts"]), row["packed_bytes"], row["name"])):
        best.setdefault((row["rule"], row["positive"]), row)
    traces = {
        row["name"]: {key: row[key] for key in ("rule", "positive", "counts")}
        for _, row in sorted(best.items())
    }
    for path in folder.glob("*.json.gz"):
        if path.name.removesuffix(".json.gz") not in traces:
            path.unlink()
    missing = [
        f"{code}: {'positive' if kind else 'near miss'}"
        for code in CODES
        for kind in (True, False)
        if (code, kind) not in best
    ]
    folder.mkdir(parents=True, exist_ok=True)
    answers = {"machine": dict(machine), "missing": missing, "traces": traces}
    (folder / "expected.json").write_text(json.dumps(answers, indent=1) + "\n", "utf-8")
