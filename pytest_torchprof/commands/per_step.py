"""Two traces of different length, compared per step."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pytest_torchprof.commands.inputs import notes_of
from pytest_torchprof.core.step_range import ALL_STEPS, StepRange
from pytest_torchprof.core.units import plural
from pytest_torchprof.trace.steps import steps_of

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping

    from pytest_torchprof.api import Trace
    from pytest_torchprof.commands.inputs import Ranks


class Sides(NamedTuple):
    """What is compared of two traces, and by how many steps their numbers are divided, if so.

    ``note`` says why.
    """

    a: Trace
    b: Trace
    steps: tuple[int, int] | None
    note: str

    @property
    def for_order(self) -> tuple[Trace, Trace]:
        """What to compare the order of execution of: per step, the last step of each."""
        if self.steps is None:
            return self.a, self.b
        return _last_step(self.a), _last_step(self.b)


def side_by_side(a: Trace, b: Trace, options: Namespace) -> Sides:
    """Both traces, or all their steps if asked for, or if both have steps, but not as many.

    A guess at what the steps are is not enough: it may be a part of each, such as the forward pass.
    Nor does a limit on the growth pass over what is outside of steps, unless asked to.

    Raises:
        SettingsError: ``--per-step``, and a trace has no steps.
    """
    wanted, name = options.per_step, options.step_name or ""
    steps = [steps_of(trace.events, name) for trace in (a, b)]
    if wanted is None:
        one, other = (len(_numbers(trace, name)) for trace in (a, b))
        if not (one and other) or one == other or steps[0].name != steps[1].name:
            return Sides(a, b, None, "")
        if options.fail_over is not None or any(side.guessed for side in steps):
            many = f"a has {plural(one, 'step')}, b {other} ({steps[0].name})"
            return Sides(a, b, None, f"{many}: --per-step compares them per step")
    elif not wanted:
        return Sides(a, b, None, "")
    a, b = (t.step(ALL_STEPS, name) if t.selected_steps is None else t for t in (a, b))
    one, other = (len(_numbers(trace, name)) for trace in (a, b))
    note = f"per step: a has {plural(one, 'step')}, b {other} ({steps[0].name}); what is outside of"
    note += " steps is left out"
    if options.per_step is None:
        note += "; --no-per-step compares the totals"
    return Sides(a, b, (one, other), note)


def notes_on_steps(ranks: Ranks, sides: Mapping[int, Sides]) -> list[str]:
    """What is divided by what, if anything is."""
    by_trace = {id(ranks[rank]): side.note for rank, side in sides.items()}
    return [note for note in notes_of(ranks, lambda trace: by_trace[id(trace)] or None) if note]


def steps_by_rank(ranks: Ranks, sides: Mapping[int, Sides]) -> object:
    """The numbers of steps of both sides, None for totals; by rank if there are several."""
    numbers = {
        str(ranks.value(rank)): side.steps and dict(zip("ab", side.steps, strict=True))
        for rank, side in sides.items()
    }
    return numbers if len(ranks) > 1 else next(iter(numbers.values()))


def _numbers(trace: Trace, name: str) -> list[int]:
    if (chosen := trace.selected_steps) is not None:
        return chosen
    numbers: list[int] = steps_of(trace.events, name).number.tolist()
    return numbers


def _last_step(trace: Trace) -> Trace:
    last = (trace.selected_steps or [0])[-1]
    scope = trace.events.scope
    return trace.step(StepRange(last, last + 1), scope[1] if scope else "")
