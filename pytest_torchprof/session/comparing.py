"""Comparisons of a test's own: two callables, and the numbers of two regions."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from pytest_torchprof.capture.clock import Callables
from pytest_torchprof.core.errors import SettingsError
from pytest_torchprof.core.units import parse_share
from pytest_torchprof.core.unknown import Reason, because
from pytest_torchprof.render import escape
from pytest_torchprof.session.stats import Unchecked
from pytest_torchprof.session.verdicts import OwnFailure
from pytest_torchprof.verdict.paired import MOST_FOR_FEW, MOST_SPENT

if TYPE_CHECKING:
    from pytest_torchprof.session.measurement import Gatherer
    from pytest_torchprof.session.runs import Runner
    from pytest_torchprof.verdict.paired import Decision, PairedVerdict, Side


# ---- ``torchprof.ab``: two callables within a test, by the procedure of the command.

#: Functions whose call only makes something that will do the work.
_LAZY = inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR


@dataclass(frozen=True, repr=False)
class AbResult:
    """The result of `Torchprof.ab`.

    ``ratio`` estimates the time of ``b`` over that of ``a``, with the interval ``low`` to ``high``
    at 99 %; ``verdict`` is ``"slower"``, ``"faster"``, ``"same"``, or ``"unclear"``; ``pairs`` is
    the number of pairs of turns; ``a`` and ``b`` are the median calls in ms. In a run that does not
    compare, each is an `Unchecked`, so every comparison holds.
    """

    ratio: float | Unchecked
    low: float | Unchecked
    high: float | Unchecked
    verdict: PairedVerdict | Unchecked
    pairs: int | Unchecked
    a: float | Unchecked
    b: float | Unchecked
    _decision: Decision | None = None
    _names: tuple[str, str] = ("a", "b")

    @classmethod
    def not_made(cls) -> AbResult:
        """The result where nothing is timed."""
        said = "callables are compared in one run of a test, under --torchprof"
        return cls(*[Unchecked(because("run_not_compared", said))] * 7)  # type: ignore[arg-type]

    @property
    def gap(self) -> Reason | None:
        """Why there is no answer: there were too few pairs of turns."""
        why = None if self._decision is None else self._decision.reason
        return (
            None
            if why is None
            else because(
                "comparison_unanswered",
                "torchprof.ab has no answer: {why}; give it a larger min_time",
                why=why,
            )
        )

    def assert_not_slower(self, by: float | str) -> None:
        """Fail the test if ``b`` is certain to take longer than ``a`` by more than a share of it.

        That is, if the whole interval is beyond ``by``, ``"5 %"`` or ``0.05``, after enough pairs.

        Raises:
            UnitError: ``by`` is no share.
        """
        __tracebackhide__ = True
        share = parse_share(by, "by")
        if self._decision is None or not self._decision.is_slower_by(share):
            return
        from pytest_torchprof.render.failure import slower_message

        message = slower_message(self.a, self.b, self._decision, share, self._names)  # type: ignore[arg-type]
        raise OwnFailure(message)

    def __repr__(self) -> str:
        if self._decision is None:
            return repr(self.ratio)
        from pytest_torchprof.render.failure import comparison_line

        return f"<{comparison_line(self.a, self.b, self._decision)}>"  # type: ignore[arg-type]


@dataclass(frozen=True)
class Wanted:
    """What a test asks to be compared."""

    callables: Callables
    min_time_s: float
    threshold: float

    @property
    def names(self) -> tuple[str, str]:
        """The names of the callables in the code."""
        a, b = map(_name, self.callables.sides.values())
        return a, b


def wanted(
    a: Callable[..., object],
    b: Callable[..., object],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None,
    setup: Callable[[], tuple[Any, ...]] | None,
    min_time: float,
    threshold: float | str,
    timeout: float,
) -> Wanted:
    """Check the arguments of `Torchprof.ab`.

    Raises:
        SettingsError, UnitError: one of them is invalid.
    """
    __tracebackhide__ = True
    named: dict[str, object] = {"a": a, "b": b, **({} if setup is None else {"setup": setup})}
    for name, function in named.items():
        if not callable(function):
            raise _error(f"{name} must be callable", f"it is {_kind(function)}", "pass a function")
        if getattr(getattr(function, "__code__", None), "co_flags", 0) & _LAZY:
            found = "a call of it does nothing yet: it makes a coroutine or a generator"
            raise _error(
                f"{name} must do its work when called", found, "pass a function that runs it"
            )
    if not isinstance(args, tuple | list):
        raise _error("args must be a tuple", f"it is {_kind(args)}", "write args=(x,)")
    if not isinstance(kwargs, Mapping | None):
        raise _error("kwargs must be a dict", f"it is {_kind(kwargs)}", 'write kwargs={"name": x}')
    if setup is not None and args:
        raise _error("there are args and setup", "setup makes the args of each call", "drop one")
    for name, seconds in (("min_time", min_time), ("timeout", timeout)):
        if not _is_duration(seconds):
            raise _error(f"{name} must be a number of seconds above 0", f"it is {seconds!r}", "")
    names: dict[Side, str] = {"A": f"a ({_name(a)})", "B": f"b ({_name(b)})"}

    def overdue(side: Side) -> BaseException:
        what = f"torchprof.ab: {names[side]} did not return within {timeout:g} s"
        return pytest.fail.Exception(escape.line(f"{what}; timeout= allows it more"), pytrace=False)

    made = Callables(
        {"A": a, "B": b}, timeout, overdue, tuple(args), dict(kwargs or {}), _checked(setup)
    )
    return Wanted(made, min_time, parse_share(threshold, "threshold"))


def compare(asked: Wanted, runner: Runner | None, gatherer: Gatherer | None) -> AbResult:
    """Compare in the run that is for it; elsewhere, call each once."""
    __tracebackhide__ = True
    run = runner.run if runner is not None else None
    compares = run is not None and run.kind == "pairs"
    asked_of = gatherer.asked if gatherer is not None else None
    if compares and asked_of is not None:
        asked_of.has_compared = asked_of.is_comparing = True
    if runner is None or compares or (run is not None and run.first):
        for side in asked.callables.sides:
            with asked.callables.limited(side):
                asked.callables.call_once(side)
    else:
        for side in asked.callables.sides:  # the run as a whole has a limit
            asked.callables.call_once(side)
    if run is None or asked_of is None:
        return AbResult.not_made()
    if not compares:
        asked_of.pairs_s += 2 * MOST_FOR_FEW * MOST_SPENT * asked.min_time_s
        return AbResult.not_made()
    result = _compared(asked)
    asked_of.is_comparing = False
    asked_of.unanswered = asked_of.unanswered or result.gap
    return result


def _compared(asked: Wanted) -> AbResult:
    """Measure in turn, and decide."""
    __tracebackhide__ = True
    from random import Random

    from pytest_torchprof.capture.clock import CallableTurns
    from pytest_torchprof.capture.patches import REAL
    from pytest_torchprof.verdict import paired as paired_decision
    from pytest_torchprof.verdict.paired import Pace, PairedTurns

    answers = paired_decision.Comparison(threshold=asked.threshold, precise=True)
    pace = Pace(2e9 * asked.min_time_s, least=answers.needed)
    paired = PairedTurns(answers, pace, Random(0), REAL.clock)  # noqa: S311 - an order
    paired.measure(CallableTurns(asked.callables).take)
    found = answers.decide()
    a, b = paired.wall_ms("A"), paired.wall_ms("B")
    assert a is not None  # noqa: S101 - there is a pair
    assert b is not None  # noqa: S101
    return AbResult(
        found.ratio,
        found.low,
        found.high,
        found.verdict,
        found.pairs,
        a.median,
        b.median,
        found,
        asked.names,
    )


def _checked(
    setup: Callable[[], tuple[Any, ...]] | None,
) -> Callable[[], tuple[Any, ...]] | None:
    """The setup, with an error where it does not return a tuple."""
    if setup is None:
        return None

    def fresh() -> tuple[Any, ...]:
        __tracebackhide__ = True
        made: object = setup()
        if not isinstance(made, tuple):
            found = f"it returned {_kind(made)}"
            raise _error("setup must return a tuple of arguments", found, "write `return (x,)`")
        return made

    return fresh


def _is_duration(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return 0 < value < math.inf


def _error(what: str, found: str, next_step: str) -> SettingsError:
    return SettingsError(f"torchprof.ab: {what}", found, next_step)


def _kind(value: object) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"


def _name(function: object) -> str:
    """``Model.forward``; for an object that has no name, that of its type."""
    name = getattr(function, "__qualname__", None)
    return str(name or type(function).__qualname__).rpartition("<locals>.")[2]
