"""Measured numbers as a test sees them: `Stats`, and what stands for one that is not there."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from pytest_torchprof.core.errors import near


class Unchecked:
    """Stands for a number that is not there; any comparison with it holds.

    So a test that asserts on a device's numbers passes where there is no device, and the report
    says *not measured*; under ``--torchprof-strict`` that fails.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def __repr__(self) -> str:
        return f"<not measured: {self.reason}>"

    def __format__(self, spec: str) -> str:
        return repr(self)

    def __float__(self) -> float:
        return math.nan

    def __int__(self) -> int:
        return 0

    def __bool__(self) -> bool:
        return True

    def _holds(self, other: object) -> bool:  # noqa: ARG002 - every comparison has one
        return True

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _holds
    __hash__ = object.__hash__

    def _itself(self, *others: object) -> Unchecked:  # noqa: ARG002 - arithmetic with anything
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _itself
    __truediv__ = __rtruediv__ = __neg__ = __abs__ = __round__ = _itself
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = _itself


class Stats:
    """The measured metrics as attributes, in their units: ``torchprof.stats.flops``."""

    def __init__(self, metric: Callable[[str], Any]) -> None:
        self._metric = metric

    def __getattr__(self, name: str) -> Any:
        """The metric's value; an `Unchecked` where it was not measured."""
        __tracebackhide__ = True
        from pytest_torchprof.verdict.metrics import METRICS

        if name.startswith("__"):
            raise AttributeError(name)
        if name not in METRICS:
            raise AttributeError(f"there is no metric {name!r}. {near(name, METRICS)}")
        return self._metric(name)

    def __dir__(self) -> list[str]:
        """The metric names, for completion."""
        from pytest_torchprof.verdict.metrics import METRICS

        return sorted(METRICS)
