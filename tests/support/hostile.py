"""Hostile text, and what no output may hold of it."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.trace_builder import TraceBuilder

HOSTILE = (
    "\x1b[31mred\x1b[0m",
    "\x1b]8;;http://evil.example\x1b\\link\x1b]8;;\x1b\\",
    "\x9b2J\x85\x7f",
    "\u202etxt.exe\u2066\u200f",
    "a\nb\r\nc\u2028d",
    "\r\tOK",
    "nul\x00\x08\x07",
    "a|b\\|c",
    "`tick` ``two`` \\`",
    "<script>alert(1)</script><img src=x>",
    "@everyone see #123 and org/repo#7, GH-8",
    "![i](http://evil.example/i.png) [l](javascript:x) https://evil.example www.evil.example",
    "<https://evil.example> me@evil.example &amp; $x$ :tada: ~~no~~ **b** _i_ __b__",
    "=cmd|' /C calc'!A0",
    "+1+cmd",
    "-2+3",
    "@SUM(A1)",
    "\t=1",
    " =1",
    "\uff1d1",
    "# heading",
    "- item",
    "1. item",
    "> quote",
    "lone \ud800 \udcff",
    "tag \U000e0041\ufeff\u200b",
    "%(prog)s %s {0} {desc}",
)


LEGIT = "テスト[日本語-é-😀-👩‍💻] Ω×–…→"


EVERY = "".join(HOSTILE)


#: Independently of the product: what no stream of text may hold.
_ACTIVE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


def assert_terminal(text: str) -> None:
    """No control code, no direction, nothing invisible."""
    assert not (found := _ACTIVE.search(text)), repr(text[max(0, found.start() - 40) :][:80])


def assert_json(text: str) -> Any:
    """Valid, in characters that any terminal can be shown."""
    assert_terminal(text)
    text.encode("utf-8")
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


_MARKUP = re.compile(
    r"<[a-zA-Z/!?]|@\w|\]\(|!\[|\w?#\d|://|www\.|GH-\d|\*\w|~~|&\w+;|\$\w|:[a-z]+:|(?<!\w)_+\w|<h"
)


def without_code(line: str) -> str:
    """A line of Markdown without its code spans: a run of backquotes up to the next as long."""
    out, at = "", 0
    while opening := re.compile("`+").search(line, at):
        ticks = opening[0]
        closing = re.compile(rf"(?<!`){ticks}(?!`)").search(line, opening.end())
        assert closing, f"a span that does not end: {line!r}"
        out += line[at : opening.start()]
        at = closing.end()
    return out + line[at:]


def assert_markdown(text: str, *, strong: bool = False) -> None:
    """Outside of code there is nothing that Markdown or GitHub makes something of."""
    assert_terminal(text)
    columns = 0
    for line in text.splitlines():
        cells = [line]
        if line.startswith("|"):
            cells = re.split(r"(?<!\\)\|", line)[1:-1]
            assert columns in (0, len(cells)), f"a cell was split: {line!r}"
            columns = len(cells)
            assert "\\\\|" not in line
            cells = [cell.replace("\\|", "|") for cell in cells]
        else:
            columns = 0  # a table has ended
        for cell in cells:
            bare = without_code(cell)
            if strong:
                bare = re.sub(r"^ \*\*(slower|failed|error)\*\* +$", "", bare)
            assert not _MARKUP.search(bare), (bare, line)
            assert not re.match(r"- (#|>|[-+*] |\d+[.)] )", bare), line


def assert_csv(text: str) -> list[list[str]]:
    """No cell is a formula, and none holds a control."""
    assert_terminal(text)
    cells = list(csv.reader(io.StringIO(text)))
    assert len({len(row) for row in cells}) == 1
    for cell in (cell for row in cells for cell in row):
        number = re.fullmatch(r"[-+]?[0-9.]+([eE][-+]?[0-9]+)?", cell)
        assert number or not re.match(r"\s*[=+\-@\uff1d\uff0b\uff0d\uff20]", cell), cell
    return cells


def in_utf8(text: str) -> str:
    """As a file has it."""
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def hostile_trace(path: Path, texts: Sequence[str]) -> Path:
    """A trace in which every name is hostile: of these texts, one after the other."""
    text = itertools.cycle(map(in_utf8, texts)).__next__
    b = TraceBuilder(device=f"{text()} NVIDIA")
    b.metadata("distributedInfo", {"rank": 0, "world_size": 2, "backend": text()})
    b.metadata("host", text())
    b.metadata("traceName", text())
    with b.annotation("ProfilerStep#1"), b.annotation(text()):
        with b.python(f"{text()}.py(3): {text()}"), b.module(f"{text()}_0"):
            for at in range(12):
                name, shapes = ("aten::mm", "aten::select", text())[at % 3], [[64, 64], [64, 64]]
                with b.op(name, shapes, [text(), "float"], [text(), ""]):
                    b.memory(4096, "cpu")
                    b.memory(1024)
                    b.launch(f"void {text()}<int>(int)", 5)
                    b.launch(text(), 5)
                with b.op("aten::item", [[]]):
                    b.memcpy("DtoH", 4)
        b.sync("cudaDeviceSynchronize", 50)
        b.kernel_without_runtime(text(), 1)
    document = b.document()
    document["traceEvents"] += [
        {
            "ph": "M",
            "name": kind,
            "pid": 1,
            "tid": 1,
            "ts": 0,
            "args": {"name": text(), "labels": text()},
        }
        for kind in ("process_name", "process_labels", "thread_name")
    ]
    path.write_text(json.dumps(document), "utf-8")
    return path
