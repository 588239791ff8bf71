"""One labelled example of a rule: a payload or a trace, and how often the rule must match."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from support.trace_builder import TraceBuilder

    #: What an example makes: a block to run on the CPU, a built trace, or a stored one.
    Made = Callable[[], Any] | TraceBuilder | Path

#: The line that a finding of a live payload must name ends so.
MARK = "# <- here"

#: The number of matches of a positive that leaves open how a rule counts: one at least.
ANY = -1


@dataclass(frozen=True)
class Case:
    """An example: ``make`` sets it up, unmeasured; 0 ``matches`` is a near miss.

    ``also``: other rules that rightly match it. ``thresholds`` are the rule's, where not default.
    """

    rule: str
    matches: int
    make: Callable[[], Made]
    also: frozenset[str] = frozenset()
    thresholds: tuple[tuple[str, float], ...] = ()

    @property
    def name(self) -> str:
        """The example's name, which says in words what it is."""
        return self.make.__name__.strip("_")


class Examples(list[Case]):
    """The examples of one file, in order, filled by the decorators below."""

    def positive(
        self,
        rule: str,
        matches: int = 1,
        *,
        also: str = "",
        unlike: str = "",
        **thresholds: float,
    ) -> Callable[[Callable[[], Made]], Callable[[], Made]]:
        """The function below makes something in which the rule matches so often.

        ``unlike``: the start of torch's version where torch itself does another thing there.
        """

        def add(make: Callable[[], Made]) -> Callable[[], Made]:
            if unlike and torch.__version__.startswith(unlike):
                return make
            more = frozenset(also.split())
            self.append(Case(rule, matches, make, more, tuple(sorted(thresholds.items()))))
            return make

        return add

    def near_miss(
        self, rule: str, *, also: str = "", unlike: str = "", **thresholds: float
    ) -> Callable[[Callable[[], Made]], Callable[[], Made]]:
        """The function below makes something that looks like it, and is none."""
        return self.positive(rule, 0, also=also, unlike=unlike, **thresholds)
