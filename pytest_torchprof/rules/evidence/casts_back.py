"""Which casts only undo what a promotion to double precision did."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pytest_torchprof.trace.nesting import Ints


class Sized(NamedTuple):
    """A call: its event, and the number of elements that it works on."""

    row: int
    elements: int


def casts_back(
    promotions: set[int], work: Iterable[Sized], casts: Iterable[Sized], busy: Ints
) -> Iterator[int]:
    """The events of casts of what such work made, one for each of the events that promote.

    They are of as many elements, or of another number if none of the other calls, ``busy``, ran
    since the work. Other casts are of other tensors, such as the next batch.
    """
    made, last = Counter[int](), -1
    own = {call.row for call in work}
    for row, elements in sorted((*work, *casts)):
        if row in own:
            made[elements] += row in promotions
            last = row
            continue
        follows = np.searchsorted(busy, row) == np.searchsorted(busy, last, "right")
        size = elements if made[elements] or not follows else max(+made, default=elements)
        if made[size]:
            made[size] -= 1
            yield row
