"""The lines of a text table with aligned columns, including wide characters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pytest_torchprof.render.text_width import width_of

Align = Literal["left", "right"]

_GAP = "  "


def aligned_columns(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    align: Sequence[Align],
    *,
    padding: int = 0,
) -> list[str]:
    r"""Lines: headers, a rule, rows. A column is at least as wide as its header and ``padding``.

    >>> rows = [["テスト", "12"], ["a", "3"]]
    >>> print("\n".join(aligned_columns(["name", "n"], rows, ["left", "right"])))
    name     n
    ------  --
    テスト  12
    a        3
    """
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(headers)
    widths = [
        max(width_of(header) + padding, *map(width_of, column), 0)
        for header, column in zip(headers, columns, strict=True)
    ]
    lines = [headers, ["-" * width for width in widths], *rows]
    return [
        _GAP.join(_padded(*cell) for cell in zip(line, widths, align, strict=True)).rstrip()
        for line in lines
    ]


def _padded(text: str, width: int, side: Align) -> str:
    blanks = " " * (width - width_of(text))
    return text + blanks if side == "left" else blanks + text
