"""What a test offers to be accepted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from pytest_torchprof.baseline.inline import Edit  # noqa: TC001 - msgspec reads it
from pytest_torchprof.core.results import Baseline  # noqa: TC001 - msgspec reads it
from pytest_torchprof.core.structs import Frozen


class Offer(Frozen, frozen=True):
    """What ``--accept`` would write of a test that passes; the controller decides.

    ``times_changed``: its times are to replace those that are accepted. ``edits`` are inline
    expectations to be rewritten.
    """

    path: str
    test: str
    environment: str
    baseline: Baseline
    times_changed: bool = False
    edits: tuple[Edit, ...] = ()

    def sent(self) -> dict[str, Any]:
        """As plain values, which cross to another process."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain

    @classmethod
    def read(cls, sent: Mapping[str, Any]) -> Offer:
        """As it has come from another process."""
        return msgspec.convert(sent, cls)
