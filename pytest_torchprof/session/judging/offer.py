"""What a test offers for ``--accept``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from pytest_torchprof.baseline.inline import Edit  # noqa: TC001 - msgspec reads it
from pytest_torchprof.core.results import Baseline  # noqa: TC001 - msgspec reads it
from pytest_torchprof.core.structs import Frozen


class Offer(Frozen, frozen=True):
    """What ``--accept`` would write for a passing test; the controller decides.

    ``times_changed``: its times replace the accepted ones. ``edits`` are inline expectations to
    rewrite.
    """

    path: str
    test: str
    environment: str
    baseline: Baseline
    times_changed: bool = False
    edits: tuple[Edit, ...] = ()

    def sent(self) -> dict[str, Any]:
        """As plain values, to send to another process."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain

    @classmethod
    def read(cls, sent: Mapping[str, Any]) -> Offer:
        """From plain values that another process sent."""
        return msgspec.convert(sent, cls)
