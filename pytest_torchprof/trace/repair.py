"""Repair invalid JSON from Kineto and other writers, and salvage truncated files.

It only works on the text around the failure; this is the slow path.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from pytest_torchprof.core.lazy_regex import late

#: A line with a name that may contain quotes, as Kineto prints it since 2021. It did not escape
#: those of compiled code and of docstrings (pytorch/kineto#1459).
_NAME = late(
    rb'^( *(?:"ph": "[^"\n]*", "cat": "[^"\n]*", )?"name": ")([^\n]*?)'
    rb'(", "pid": [^,\n]*, "tid": [^,\n]*,|",)$',
    re.MULTILINE,
)
_QUOTE = late(rb'(\\.)|"')
#: What begins or ends a string; in one, a backslash, of an escape or of a Windows path
#: (pytorch/kineto#617), and control characters; elsewhere, an invalid number: a bandwidth over no
#: time (pytorch/kineto#105); or a trailing comma. No part is tried twice, whatever the text is.
_FAULT = late(
    rb'"|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})?|[\x00-\x1f]'
    rb"|[-+]?\b(?i:nan|inf(?:inity)?)\b|,(?=\s*[\]}])",
)
_TOKEN = late(rb'"|\\.|{|}|\[|\]', re.DOTALL)


def repaired(text: bytes) -> tuple[bytes, int]:
    """The text with writers' known faults fixed, so that it is valid JSON, and their number."""
    count, inside = 0, False

    def escaped(match: re.Match[bytes]) -> bytes:
        nonlocal count
        count += match[1] is None
        return match[1] or b"\\" + match[0]

    def name(match: re.Match[bytes]) -> bytes:
        return match[1] + _QUOTE.sub(escaped, match[2]) + match[3]

    def token(match: re.Match[bytes]) -> bytes:
        nonlocal count, inside
        word = match[0]
        first = word[:1]
        if first == b'"':
            inside = not inside
        elif first < b" ":
            count += inside
            return b" " if inside else word
        elif first == b"\\":
            count += inside and len(word) == 1
            return b"\\\\" if inside and len(word) == 1 else word
        elif not inside:
            count += 1
            return b"" if word == b"," else b"null"
        return word

    text = _NAME.sub(name, text)
    text = _FAULT.sub(token, text)
    try:
        text.decode()
    except UnicodeDecodeError:
        proper = text.decode(errors="replace")
        count += proper.count("\N{REPLACEMENT CHARACTER}")
        text = proper.encode()
    return text, count


class Whole(NamedTuple):
    """The complete part of a truncated list of events.

    ``end`` is the position after the last whole event, 0 if there is none; ``closed`` is whether
    the list itself is complete, so that only what follows it is lost.
    """

    end: int
    closed: bool


def whole_events(text: bytes) -> Whole:
    """The complete part of a list of objects, which begins with its bracket."""
    depth, end, inside = 0, 0, False
    for match in _TOKEN.finditer(text):
        word = match[0]
        if word == b'"':
            inside = not inside
        elif inside or word[:1] == b"\\":
            continue
        elif word in b"{[":
            depth += 1
        else:
            depth -= 1
            if depth == 1 and word == b"}":
                end = match.end()
            elif depth <= 0:
                return Whole(end, closed=True)
    return Whole(end, closed=False)
