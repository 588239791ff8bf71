"""Text for a terminal or a file: escaped, cut to a width, and written to a stream."""

from __future__ import annotations

import codecs
import math
import re
import sys
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

from pytest_torchprof.core.process import late
from pytest_torchprof.core.records import in_json

# ---- Escape untrusted text for each kind of output; all output goes through here.
#
# Names in a trace, test IDs, exception messages, the contents of a pull request's baseline: none
# of it may move a cursor, color a terminal, mention somebody in a comment, or be a formula in a
# spreadsheet. Legible text of any script stays as it is. All functions are idempotent, except
# `escape_markdown`, `code` and `csv_value`, which are applied once.

#: Characters that are invisible, move the cursor, change text direction, or are not characters:
#: controls (C0, DEL, C1), soft hyphen, direction marks and embeddings, line separators, word
#: joiners and invisible operators, surrogates, byte order marks, annotations, tags.
_HIDDEN = (
    r"\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    r"\ud800-\udfff\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff"
)
_IN_LINE = late(f"[{_HIDDEN}]")
_IN_BLOCK = late(f"(?![\n\t])[{_HIDDEN}]")
_SHORT = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def line(text: str) -> str:
    r"""For one line of a terminal: hidden characters are shown as Python escapes.

    >>> line("\x1b[31mred\nテスト\u202e")
    '\\x1b[31mred\\nテスト\\u202e'
    """
    return _IN_LINE.sub(_shown, text)


def block(text: str) -> str:
    r"""For several lines of a terminal: line feeds and tabs are kept.

    >>> block("a\n\tb\r\x07")
    'a\n\tb\\r\\x07'
    """
    return _IN_BLOCK.sub(_shown, text)


def _shown(match: re.Match[str]) -> str:
    character = match[0]
    if short := _SHORT.get(character):
        return short
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else _unicode(character)


def _unicode(character: str) -> str:
    r"""As in JSON: ``\u202e``, or a surrogate pair beyond the first plane."""
    code = ord(character)
    if code < 0x10000:
        return f"\\u{code:04x}"
    high, low = divmod(code - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"


# -------------------------------------------------------------------- encodings


def _lacking(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(map(_unicode, lacking)), error.end


#: Write characters that a stream's encoding lacks as JSON escapes, which keeps JSON output equal.
ENCODING_ERRORS = "torchprof.unicode"
codecs.register_error(ENCODING_ERRORS, _lacking)


# -------------------------------------------------------------------- Markdown

#: A word with no meaning in GitHub's Markdown: no markup, HTML, mention, link or formula.
_PLAIN = late(r"(?:[^\W_]|(?<=[^\W_])_+(?=[^\W_])|[.,;:%±×–…→()/'\"+=?-]|<(?=[\d.]))+")
#: … unless GitHub interprets it as a link, an emoji, an issue of any repository, or a commit.
_LINKED = late(
    r"://|www\.|:[\w+-]+:|\b[A-Za-z]{2,}-\d|\b(?:[\da-f]{40}|(?=\d*[a-f])[\da-f]{7,39})\b",
    re.IGNORECASE,
)
#: Code in backticks among words, as our own sentences have it.
_CODE = late(r"(?:(?<![^ ])|(?<= \())`([^`]+)`(?=[.,;:)]*(?: |$))")
#: What separates words: not a space within brackets, as in a shape.
_SPACE = late(r" (?![^\[\]]{0,200}\])")
#: Starts a list, a heading's underline or a rule at the beginning of a line.
_OPENS = late(r"[-+=]+|\d+[.)]")
_TICKS = late("`+")
_BEFORE_PIPE = late(r"(\\?)\|")


def escape_markdown(text: str) -> str:
    r"""For a line of Markdown: words that Markdown or GitHub would interpret become code.

    >>> print(escape_markdown("fixes #1: <b>see</b> @me, 12 % of aten::mm"))
    fixes `#1: <b>see</b> @me,` 12 % of aten::mm
    >>> print(escape_markdown("call `a[0]`, of [64, 16] and [8]"))
    call `a[0]`, of `[64, 16]` and `[8]`
    """
    pieces = enumerate(_CODE.split(line(text)))
    return "".join(code(p) if at % 2 else _marked_words(p, is_first=not at) for at, p in pieces)


def _marked_words(text: str, *, is_first: bool) -> str:
    parts: list[tuple[bool, str]] = []
    for number, word in enumerate(_SPACE.split(text)):
        plain = not word or bool(_PLAIN.fullmatch(word) and not _LINKED.search(word))
        plain = plain and not (is_first and number == 0 and _OPENS.fullmatch(word))
        if parts and parts[-1][0] == plain:
            parts[-1] = plain, f"{parts[-1][1]} {word}"
        else:
            parts.append((plain, word))
    return " ".join(word if plain else code(word) for plain, word in parts)


def code(text: str) -> str:
    r"""A name in Markdown: nothing in it is markup, a mention or a link.

    >>> print(code("a_b"), code("`tick`"))
    `a_b` `` `tick` ``
    """
    text = line(text)
    if not text.strip():
        return ""
    longest = max(map(len, _TICKS.findall(text)), default=0)
    fence = "`" * (longest + 1)
    edge = " " if "`" in (text[0], text[-1]) or text[0] == text[-1] == " " else ""
    return f"{fence}{edge}{text}{edge}{fence}"


def table_cell(text: str) -> str:
    r"""Markdown as a table cell: a ``|`` does not end it.

    A backslash before the ``|`` would undo that, and cannot be escaped in code.

    >>> print(table_cell("`a|b`"), table_cell(r"`a\|b`"))
    `a\|b` `a\\x7cb`
    """
    return _BEFORE_PIPE.sub(lambda match: r"\\x7c" if match[1] else r"\|", text)


# -------------------------------------------------------------------- CSV and JSON

_NUMBER = late(r"[-+]?[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?")
_FORMULA = late(r"\s*[=+\-@\uff1d\uff0b\uff0d\uff20]")


def csv_value(value: Any) -> Any:
    r"""A CSV cell: no spreadsheet takes text for a formula, and numbers stay numbers.

    >>> csv_value("=cmd()"), csv_value(-1.5), csv_value("-1.5"), csv_value([1, "@x"])
    ("'=cmd()", -1.5, '-1.5', '[1, "@x"]')
    """
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping | list | tuple):
        return json_text(value)
    if not isinstance(value, str):
        return value
    text = line(value)
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def json_text(value: Any, indent: int | None = None, *, compact: bool = False) -> str:
    r"""JSON with hidden characters escaped; see `in_json` for what JSON cannot have.

    ``compact``: without spaces.

    >>> print(json_text({"a": "\x9b\u202e テスト \ud800", "b": float("nan")}))
    {"a": "\u009b\u202e テスト \\ud800", "b": null}
    """
    import json

    separators = (",", ":") if compact else None
    text = json.dumps(in_json(value), indent=indent, ensure_ascii=False, separators=separators)
    return _IN_BLOCK.sub(lambda match: _unicode(match[0]), text)


# -------------------------------------------------------------------- commands to paste


def command(words: Iterable[str]) -> str:
    r"""A one-line command that a shell reads as these words; hidden characters are shown.

    >>> print(command(["pytest", "test_a.py::test_b[a b]"]))
    pytest 'test_a.py::test_b[a b]'
    """
    import shlex

    return line(shlex.join(words))


# ---- Print escaped text to standard output and standard error.


def out(text: str) -> None:
    """Print to standard output; characters that its encoding lacks are escaped."""
    encoding = sys.stdout.encoding or "utf-8"
    safe = block(text).encode(encoding, ENCODING_ERRORS)
    sys.stdout.write(safe.decode(encoding))


def say(message: str) -> None:
    """Print one line to standard error, with the command's name."""
    print(line(f"torchprof: {' '.join(message.split())}"), file=sys.stderr)  # noqa: T201


# ---- How wide a text is in a terminal, and cutting it to a width.


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


def tail(text: str, width: int) -> str:
    """Cut the start, where the end tells the most.

    >>> tail("tests/test_a.py::test_step", 11)
    '…:test_step'
    """
    return text if width_of(text) <= width else f"…{end_of(text, width - 1)}"


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
