"""Turns of two callables in this process."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from pytest_torchprof.capture.limited import Limited
from pytest_torchprof.capture.memory_layout import TurnLayout
from pytest_torchprof.capture.patch_guard import PATCH_GUARD
from pytest_torchprof.capture.timed_calls import Meter
from pytest_torchprof.core.structs import Frozen

if TYPE_CHECKING:
    from pytest_torchprof.verdict.paired_turns import PairRequest, Side


class CallableTurn(Frozen, frozen=True):
    """A turn of one side, see `TakenTurn`."""

    wall_ns: array[int]
    cpu_ns: array[int]
    spent_ns: int


@dataclass(frozen=True)
class Callables:
    """Two callables and their arguments.

    ``setup`` makes the arguments of each call, instead of ``args``. A turn may take ``limit_s``
    seconds, after which ``overdue`` makes the error for the side; so it does for a single call.
    """

    sides: Mapping[Side, Callable[..., object]]
    limit_s: float
    overdue: Callable[[Side], BaseException]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    setup: Callable[[], tuple[Any, ...]] | None = None

    def limited(self, side: Side) -> Limited:
        """Within the block, the side may take its time, but not more."""
        return Limited(self.limit_s, partial(self.overdue, side))

    def call_once(self, side: Side) -> None:
        """Call a side untimed. Raises whatever it raises, or that it is overdue."""
        __tracebackhide__ = True
        args = self.args if self.setup is None else self.setup()
        self.sides[side](*args, **self.kwargs)

    def timed(self, side: Side, meter: Meter) -> Callable[[], object]:
        """What a turn of this side calls; with fresh arguments, only the call itself counts."""
        function, args, kwargs, setup = self.sides[side], self.args, self.kwargs, self.setup
        if setup is None:
            return partial(function, *args, **kwargs)

        def call() -> None:
            __tracebackhide__ = True
            fresh = setup()
            meter.enter()
            function(*fresh, **kwargs)
            meter.leave()

        return call


class CallableTurns:
    """Takes the turns of two callables, each with another memory layout."""

    def __init__(self, callables: Callables) -> None:
        self._callables = callables
        self._layout = TurnLayout()
        self._meter = Meter()

    def take(self, wanted: PairRequest) -> tuple[dict[Side, CallableTurn], None]:
        """A turn of each side; call it within `PATCH_GUARD`, which they do not see.

        Raises whatever they raise, or that one is overdue.
        """
        __tracebackhide__ = True
        turns: dict[Side, CallableTurn] = {}
        for side in wanted.order:
            # Old objects are not frozen here, and garbage of calls is young.
            self._layout.renew(wanted.processor, generation=1)
            call = self._callables.timed(side, self._meter)
            with self._callables.limited(side), PATCH_GUARD.suspended:
                self._meter.time(call, wanted.calls)
            turns[side] = CallableTurn(*self._meter.take())
        return turns, None
