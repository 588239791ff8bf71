"""Traces, made up and real, and what damages them."""

from __future__ import annotations

import gzip
import json
import os
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from support.real_traces import CORPUS
from support.small_traces import build

if TYPE_CHECKING:
    from pytest_torchprof.core.errors import TraceError

EXAMPLES = int(os.environ.get("TORCHPROF_FUZZ") or 150)


def slices() -> list[dict[str, Any]]:
    """Of a dozen real traces the metadata and a few events of each category, in order."""
    found = []
    paths = sorted(p for p in CORPUS.glob("*.json.gz") if p.stat().st_size < 2_000_000)
    for path in paths[:: max(len(paths) // 12, 1)]:
        document = json.loads(gzip.decompress(path.read_bytes()))
        if not isinstance(document, dict) or "traceEvents" not in document:
            continue
        seen: dict[Any, int] = {}
        kept = []
        for event in document["traceEvents"]:
            kind = event.get("cat"), event["ph"]
            seen[kind] = seen.get(kind, 0) + 1
            if seen[kind] <= 6:
                kept.append(event)
        found.append(document | {"traceEvents": kept})
    return found


DOCUMENTS = [build().document(), build("amd").document(), *slices()]


TEXTS = [build().to_bytes(style) for style in ((), "compact", "schema_2021", "bare_list")]


TEXTS += [json.dumps(document).encode() for document in DOCUMENTS[2:]]


JUNK = [b"null", b"-", b'"', b"1e999", b"[", b"}", b"\\u0000", b"\xff", b"{}", b"9" * 30, b"true"]


JUNK += [b"NaN", b"\\", b"},{", b'"traceEvents": [', b"\n  },\n  {", b"]}", b"inf", b"\0" * 9]


NUMBERS = st.sampled_from([0, -1, 2**31, 2**53 + 1, 2**63, 10**400, -(2**62), 1e308, 0.5, 1e-300])


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()  # not a number, and infinity, which JSON does not have
    | NUMBERS
    | st.text(max_size=5)
    | st.sampled_from(["7", "0.5", "1e400", "nan", "null", "true", "\ud800", "[1]", "[]", "x" * 99])
)


VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


def refused(error: TraceError, name: str) -> None:
    """Many are, and many are not."""
    assert name in str(error)
    assert "\n" not in str(error)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key or index) of a document."""
    found, todo = [], [value]
    while todo:
        inside = todo.pop()
        keys = list(inside) if isinstance(inside, dict) else range(len(inside))
        found += [(inside, key) for key in keys]
        todo += [inside[key] for key in keys if isinstance(inside[key], dict | list)]
    return found
