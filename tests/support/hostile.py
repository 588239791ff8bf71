"""Hostile text, and what no output may hold of it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

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


def in_utf8(text: str) -> str:
    """As a file has it."""
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
