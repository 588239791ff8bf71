"""What a test offers for ``--accept``."""

from __future__ import annotations

from pytest_torchprof.baseline.inline import Edit  # noqa: TC001 - msgspec reads it
from pytest_torchprof.core.own_metrics import OwnMetric  # noqa: TC001 - msgspec reads it
from pytest_torchprof.core.results import Baseline  # noqa: TC001 - msgspec reads it
from pytest_torchprof.core.structs import Sendable


class Offer(Sendable, frozen=True):
    """What ``--accept`` would write for a passing test; the controller decides.

    ``times_changed``: its times replace the accepted ones. ``edits`` are inline expectations to
    rewrite. ``dropped`` are metrics of which only a lower bound is known, above the accepted value.
    ``own`` are the metrics that the user has defined.
    """

    path: str
    test: str
    environment: str
    baseline: Baseline
    times_changed: bool = False
    edits: tuple[Edit, ...] = ()
    dropped: tuple[str, ...] = ()
    own: tuple[OwnMetric, ...] = ()
