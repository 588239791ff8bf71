"""How wide a text is in a terminal, and cutting it to a width."""

from __future__ import annotations

import unicodedata


def width_of(text: str) -> int:
    """Terminal columns: two for a wide character, none for a combining one.

    >>> width_of("test_a"), width_of("テスト"), width_of("e\u0301")
    (6, 6, 1)
    """
    return len(text) if text.isascii() else sum(map(_columns, text))


def _columns(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def start_of(text: str, width: int) -> str:
    """As many of the first characters as fit."""
    if text.isascii():
        return text[:width]
    for end, character in enumerate(text):
        width -= _columns(character)
        if width < 0:
            return text[:end]
    return text


def end_of(text: str, width: int) -> str:
    """As many of the last characters as fit."""
    if text.isascii():
        return text[len(text) - width :]
    for end in range(len(text), 0, -1):
        width -= _columns(text[end - 1])
        if width < 0:
            return text[end:]
    return text


def shorten(text: str, width: int) -> str:
    """Cut the middle, where long names differ least.

    >>> shorten("tests/test_a.py::test_step", 16)
    'tests/t…est_step'
    """
    if width_of(text) <= width:
        return text
    head = (width - 1) // 2
    tail = width - 1 - head
    return f"{start_of(text, head)}…{end_of(text, tail)}"


def shorten_text(text: str, width: int) -> str:
    """Cut the end of a sentence, between words, and before a name in backticks that does not fit.

    >>> shorten_text("Call `model.eval()` before the loop", 22)
    'Call `model.eval()` …'
    >>> shorten_text("Call `model.eval()` before the loop", 12)
    'Call …'
    """
    if width_of(text) <= width:
        return text
    words = start_of(text, width - 1).rpartition(" ")[0]  # of which the last one may be cut
    while words.count("`") % 2:
        words = words.rpartition("`")[0].rstrip()
    return f"{words} …" if words else f"{start_of(text, width - 1)}…"
