"""Repair invalid JSON from Kineto and other writers, and salvage truncated files.

It works on the text around the failure only; this is the slow path.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from pytest_torchprof.core.late import late

#: A line with a name in it that may hold quotes, as Kineto prints it since 2021. It wrote those of
#: compiled code and of docstrings as they are (pytorch/kineto#1459).
_NAME = late(
    rb'^( *(?:"ph": "[^"\n]*", "cat": "[^"\n]*", )?"name": ")([^\n]*?)'
    rb'(", "pid": [^\n]*, "tid": [^\n]*,|",)$',
    re.MULTILINE,
)
_QUOTE = late(rb'(\\.)|"')
#: A backslash, of an escape or of a Windows path (pytorch/kineto#617).
_BACKSLASH = late(rb'(\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))|\\')
_CONTROL = late(rb"[\x00-\x1f]")
#: A string, or a number that is none: a bandwidth over no time (pytorch/kineto#105); or a comma
#: after which nothing comes.
_STRING_OR_FAULT = late(
    rb'"(?:[^"\\]|\\.)*"|[-+]?\b(?:nan|inf(?:inity)?)\b|,(?=\s*[\]}])', re.IGNORECASE | re.DOTALL
)
_TOKEN = late(rb'"(?:[^"\\]|\\.)*"|[{}\[\]]|"', re.DOTALL)


def repaired(text: bytes) -> tuple[bytes, int]:
    """The text as valid JSON, as far as writers' known faults go, and how many they were."""
    count = 0

    def escaped(match: re.Match[bytes]) -> bytes:
        nonlocal count
        count += match[1] is None
        return match[1] or b"\\" + match[0]

    def name(match: re.Match[bytes]) -> bytes:
        return match[1] + _QUOTE.sub(escaped, match[2]) + match[3]

    def token(match: re.Match[bytes]) -> bytes:
        nonlocal count
        word = match[0]
        if word[:1] != b'"':
            count += 1
            return b"" if word == b"," else b"null"
        word, controls = _CONTROL.subn(b" ", _BACKSLASH.sub(escaped, word))
        count += controls
        return word

    text = _NAME.sub(name, text)
    text = _STRING_OR_FAULT.sub(token, text)
    try:
        text.decode()
    except UnicodeDecodeError:
        proper = text.decode(errors="replace")
        count += proper.count("\N{REPLACEMENT CHARACTER}")
        text = proper.encode()
    return text, count


class Whole(NamedTuple):
    """How far a list of events goes that breaks off.

    ``end`` is behind the last whole event, 0 if there is none; ``closed`` tells whether the list
    itself is complete, so that only what follows it is lost.
    """

    end: int
    closed: bool


def whole_events(text: bytes) -> Whole:
    """The complete part of a list of objects, which begins with its bracket."""
    depth, end = 0, 0
    for match in _TOKEN.finditer(text):
        word = match[0]
        if word in b"{[":
            depth += 1
        elif word in b"}]":
            depth -= 1
            if depth == 1 and word == b"}":
                end = match.end()
            elif depth <= 0:
                return Whole(end, closed=True)
        elif word == b'"':  # a string that does not end
            break
    return Whole(end, closed=False)
