"""Regular expressions compiled on first use, since most sessions need few of them."""

from __future__ import annotations

import re
from typing import Any, AnyStr, cast


class _Late:
    """Compiles the expression on the first access to a method."""

    def __init__(self, pattern: Any, flags: int) -> None:
        self._given = pattern, flags

    def __getattr__(self, name: str) -> Any:
        value = getattr(re.compile(*self._given), name)
        setattr(self, name, value)
        return value


def late(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Like `re.compile`, but deferred, because it costs every session about 0.1 ms each.

    Call the expression's own methods: the functions of `re` do not accept it.

    >>> late(r"a+").match("aab")[0]
    'aa'
    """
    return cast("re.Pattern[AnyStr]", _Late(pattern, flags))
