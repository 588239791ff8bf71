"""Measured numbers as a test sees them: `Stats`, and `Unchecked` for a missing one."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from pytest_torchprof.core.errors import near
from pytest_torchprof.verdict.metrics import METRICS

if TYPE_CHECKING:
    from pytest_torchprof.core.unknown import Reason


class Unchecked:
    """Stands for a missing number; any comparison with it is true.

    So a test that asserts on a device's numbers passes where there is no device, and the report
    says *not measured*; under ``--torchprof-strict`` that fails.
    """

    def __init__(self, reason: Reason) -> None:
        self.why = reason

    @property
    def reason(self) -> str:
        """Why there is no number, in words."""
        return self.why.text

    def __repr__(self) -> str:
        return f"<not measured: {self.reason}>"

    def __format__(self, spec: str) -> str:
        return repr(self)

    def __float__(self) -> float:
        return math.nan

    def __int__(self) -> int:
        raise TypeError(f"a number that is {self.reason} has no int: compare it as it is")

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

    def __init__(
        self, metric: Callable[[str], Any], own: Callable[[], Collection[str]] = tuple
    ) -> None:
        self._metric = metric
        self._own = own

    def __getattr__(self, name: str) -> Any:
        """The metric's value; an `Unchecked` if it was not measured."""
        __tracebackhide__ = True

        if name.startswith("_"):
            raise AttributeError(name)
        if name not in METRICS and name not in self._own():
            known = [*METRICS, *self._own()]
            raise AttributeError(f"there is no metric {name!r}. {near(name, known)}")
        return self._metric(name)

    def __dir__(self) -> list[str]:
        """The metric names, for completion."""
        return sorted([*METRICS, *self._own()])
