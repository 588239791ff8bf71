"""The rows of a table: dataclasses that print as text, HTML, or dictionaries."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from pytest_torchprof.render import row_formats

R = TypeVar("R")


class Rows(list[R], Generic[R]):
    """The rows of one table: a list of dataclasses that prints as a table.

    ``ADDS_UP`` of their class names the fields that can be summed over rows.
    """

    def __init__(
        self,
        rows: Iterable[R],
        fields: Sequence[str],
        unknown: Iterable[str] = (),
        columns: Sequence[str] | None = None,
    ) -> None:
        super().__init__(rows)
        #: What `to_dicts` holds, in order.
        self.fields = tuple(fields)
        #: The columns of a table, in order, if they are not the same.
        self.columns = self.fields if columns is None else tuple(columns)
        #: Columns with unknown parts, whose sums are unknown too.
        self.unknown = frozenset(unknown)

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dictionary per row, as ``--format json`` prints it; unknown values are None."""
        return [{field: _plain(getattr(row, field)) for field in self.fields} for row in self]

    def total(self) -> dict[str, Any]:
        """Sums of the fields that add up; None where no row has a value."""
        adds_up = getattr(self[0], "ADDS_UP", ()) if self else ()
        return {
            field: None
            if field.removeprefix("self_") in self.unknown
            else sum_of(getattr(row, field) for row in self)
            for field in adds_up
            if field in self.fields
        }

    def __str__(self) -> str:
        """The table as the command prints it, without cutting anything."""
        return row_formats.text_table(self.to_dicts(), self.columns)

    def _repr_html_(self) -> str:
        return row_formats.text_table(self.to_dicts(), self.columns, style="html")


def fields_of(row: type) -> list[str]:
    """The columns of a table of such rows."""
    return [field.name for field in dataclasses.fields(row)]


def sum_of(values: Iterable[float | None]) -> float | None:
    """The sum of the known values, in any order the same; None if there are none."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return math.fsum(known) if any(isinstance(value, float) for value in known) else sum(known)


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {key: _plain(inner) for key, inner in dataclasses.asdict(value).items()}
    return dict(value) if isinstance(value, Mapping) else value
