"""Names with their counts, as one text that still knows its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Self


class CountedNames(str):
    """Names with their counts; a single name alone.

    It is text in the Python API and in JSON. Tables shorten and cut its ``parts``.

    >>> names = CountedNames([("gemm", 3), ("fill", 2)])
    >>> print(names, names.parts)
    gemm ×3, fill ×2 (('gemm', 3), ('fill', 2))
    >>> print(CountedNames([("gemm", 3)]))
    gemm
    """

    __slots__ = ("counted", "parts")
    parts: tuple[tuple[str, int], ...]
    counted: bool

    def __new__(cls, parts: Sequence[tuple[str, int]], counted: bool | None = None) -> Self:
        """Join the parts; ``counted``: with counts, by default only of several."""
        counted = len(parts) > 1 if counted is None else counted
        whole = [f"{name} ×{count}" if counted else name for name, count in parts]
        made = super().__new__(cls, ", ".join(whole))
        made.parts, made.counted = tuple(parts), counted
        return made

    def __getnewargs__(self) -> tuple[Any, ...]:
        """For copies and pickles."""
        return (self.parts, self.counted)

    def renamed(self, change: Callable[[str], str]) -> CountedNames:
        """With each name changed; names that become equal are counted together.

        >>> print(CountedNames([("f<1>", 3), ("g", 1), ("f<2>", 2)]).renamed(lambda name: name[0]))
        f ×5, g ×1
        >>> print(CountedNames([("f<1>", 3), ("f<2>", 2)]).renamed(lambda name: name[0]))
        f ×5
        """
        total: dict[str, int] = {}
        for name, count in self.parts:
            total[change(name)] = total.get(change(name), 0) + count
        return CountedNames(list(total.items()), self.counted)
