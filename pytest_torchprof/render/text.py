"""Small matters of text that several outputs share."""

from __future__ import annotations


def shorten(text: str, width: int) -> str:
    """Cut in the middle, where long names differ least.

    >>> shorten("tests/test_a.py::test_step", 16)
    'tests/te…st_step'
    """
    if len(text) <= width:
        return text
    head = (width - 1) // 2
    tail = width - 1 - head
    return f"{text[:head]}…{text[len(text) - tail :]}"


def plural(count: int, noun: str) -> str:
    """``1 test``, ``2 tests``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
