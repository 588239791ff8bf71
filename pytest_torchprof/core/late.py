"""Regular expressions that are compiled with their first use: most sessions need few of them."""

from __future__ import annotations

import re
from typing import Any, AnyStr, cast


class _Late:
    """Becomes the expression, method by method, as they are asked for."""

    def __init__(self, pattern: Any, flags: int) -> None:
        self._given = pattern, flags

    def __getattr__(self, name: str) -> Any:
        value = getattr(re.compile(*self._given), name)
        setattr(self, name, value)
        return value


def late(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """As `re.compile`, which takes 0.1 ms or so for each, in every session that profiles.

    It is for the expression's own methods: the functions of `re` do not take it.

    >>> late(r"a+").match("aab")[0]
    'aa'
    """
    return cast("re.Pattern[AnyStr]", _Late(pattern, flags))
