"""Words in a list of columns that stand for several."""

from __future__ import annotations

#: All metrics of users' own.
OWN_COLUMNS = "own"
