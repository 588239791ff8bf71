"""Clean, idiomatic code, in which every rule must be silent; the examples are in clean_*.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from labelled.case import Case, Examples

if TYPE_CHECKING:
    from labelled.case import Made


class Clean(Examples):
    """Examples without a match of any rule."""

    def clean(self, make: Callable[[], Made]) -> Callable[[], Made]:
        """The function below makes a payload without findings."""
        self.append(Case("clean", 0, make))
        return make

    def accepted(self, also: str) -> Callable[[Callable[[], Made]], Callable[[], Made]]:
        """The same, but for what its author accepts by a marker."""
        return self.near_miss("clean", also=also)
