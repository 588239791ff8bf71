"""What a rule is: a row of data, and one function from a trace to its matches."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

import numpy as np
from msgspec import field
from msgspec.structs import replace

from pytest_torchprof.core.lazy_regex import late
from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.core.units import SCALES
from pytest_torchprof.trace.name_index import names_of

if TYPE_CHECKING:
    from pytest_torchprof.core.reasons import Reason
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

#: What a trace must contain for a rule to be checked on it, see `rules.engine.check.lacks`; the
#: first one that is missing is reported.
RuleNeed = Literal["live", "device", "shapes"]
NEEDS: Final[tuple[RuleNeed, ...]] = get_args(RuleNeed)

#: Regular expressions for the start of event names, and how many events each needs: see
#: `Rule.triggers`.
Triggers: TypeAlias = str | Mapping[str, float | str] | None

#: The headings of a rule's docstring, which is the Markdown of its page, in order.
HEADINGS = ("What it does", "Why it is slow", "Example", "Use instead")

_CODE = late(r"[a-z0-9]+(-[a-z0-9]+)*")


class Threshold(Frozen, frozen=True):
    """The size below (or above) which a rule ignores a match; users may change it.

    ``unit`` is a key of `units.SCALES`: ``1``, ``B``, ``ms``, ``FLOP`` or a rate.
    """

    default: float
    unit: str
    why: str

    def __post_init__(self) -> None:
        if self.unit not in SCALES:
            raise ValueError(
                f"threshold in {self.unit!r}: its unit must be one of {', '.join(SCALES)}"
            )


class Matches(Frozen, frozen=True):
    """Where a rule matched, one row per match.

    Attributes:
        event: the host event (operator or annotation) whose place is reported, int64; -1 if no
            event has the place.
        message: what was found, one for all rows or one per row; rows with the same message and
            place become one finding.
        count: how many matches a row stands for; None: 1 each.
        cost_ns: the estimated time to gain, -1 if unknown; None: all that the event is worth. The
            reported cost is at most what the match is worth: where the trace has all of a device's
            work, the exposed device time of what the host launches from begin to end, and the idle
            time that the host causes in it; else its length. Matches that cover the same time share
            it, see ``span_ns``.
        bytes: bytes that it moves needlessly, -1 if unknown; None: not that kind of rule.
        location: ``file:line`` of each row if the rule itself knows it, else None.
        fix: what to do instead, one per row, if it differs from the rule's own.
        span_ns: begin and end of each row's match, on the host; None: those of the event if
            ``cost_ns`` is None, else unknown, so all of the trace.
        wants_tensors: a capture that identifies tensors may have other matches;
            a live test is then captured once more.
        wants_module_calls: fewer may match in a trace that tells calls of modules; a live test then
            runs once more, with its modules marked.
        parts: the events of each row, if it stands for a stretch of events instead of only
            ``event``. Its place is then the innermost line around all of them outside of any
            module's forward, and its module the outermost one; None: each row has one event.
        in_steps: ``parts`` are what a loop does, from its first step to its last. Where a function
            that each step calls has a line around all of them, the place is the line that calls it.
        apart: events that the place of a stretch must not enclose, such as what must not be wrapped
            with it; the place is then the line around most of the stretch, which encloses none.
        last: the last event of each row, if a row is a loop that begins with ``event``. Its place
            is then the line that is repeated, even if that calls a function which does the work.
        by_constructor: the events are steps of an optimizer, or fetches of a loader, whose
            options are to be changed: the place is the line that constructed it, if known.
    """

    event: Ints
    message: str | Sequence[str]
    count: Ints | None = None
    cost_ns: Ints | None = None
    bytes: Ints | None = None
    location: Sequence[str | None] | None = None
    fix: Sequence[str] | None = None
    span_ns: tuple[Ints, Ints] | None = None
    wants_tensors: bool = False
    wants_module_calls: bool = False
    parts: Sequence[Ints] | None = None
    apart: Ints | None = None
    last: Ints | None = None
    by_constructor: bool = False
    in_steps: bool = False

    def __len__(self) -> int:
        return len(self.event)

    def where(self, chosen: Bools) -> Matches:
        """Only these matches."""

        def column(values: Any) -> Any:
            if values is None or isinstance(values, str):
                return values
            return values[chosen] if isinstance(values, np.ndarray) else [*compress(values, chosen)]

        return replace(
            self,
            event=self.event[chosen],
            message=column(self.message),
            count=column(self.count),
            cost_ns=column(self.cost_ns),
            bytes=column(self.bytes),
            location=column(self.location),
            fix=column(self.fix),
            span_ns=None if self.span_ns is None else tuple(map(column, self.span_ns)),
            parts=column(self.parts),
            last=column(self.last),
        )


NO_MATCHES = Matches(np.zeros(0, np.int64), "")
#: The same of each small trace with these names, kinds, nesting and selected events, whatever else
#: it says: the rule is not asked about the next one.
NO_MATCHES_OF_CALLS = Matches(np.zeros(0, np.int64), "")
#: No matches by what is known, but a capture that identifies tensors may have some.
NONE_SO_FAR = Matches(np.zeros(0, np.int64), "", wants_tensors=True)


class Rule(Frozen, frozen=True, eq=False):
    """One row of the registry.

    Attributes:
        code: its name in markers, options and reports, lower case with dashes.
        find: the function from a trace, and the thresholds by name, to the matches: `Matches`, or
            just event indices. It is pure. Its docstring is the rule's page, see `HEADINGS`.
        fix: what to do instead, in one line.
        triggers: a trace has a match only if some event's name starts with a match of this regular
            expression; for most traces, the rule is finished after that check. Or several
            expressions with the number of events that each needs: a number, or the name of a
            threshold. None: always run the rule.
        needs: what the trace must contain; otherwise the rule is *not checked* on it.
        thresholds: by name, as keyword arguments of ``find``.
        ready: returns what else a trace lacks for this rule, a reason or words, or None. The first
            line of its docstring describes the condition on the rule's page.
        blind: returns why the rule cannot see some of what ran, likewise, or None: its matches
            still count, but without matches the trace is not clean.
        sees_host: a live capture without device events shows all that the rule looks at, so that
            ``blind`` is not asked there; an expression: unless some event's name starts with a
            match.
        gated_by: the metric that is compared with a baseline instead of the rule's matches, for a
            rule whose readiness depends on what ran earlier in the process.
        timed: its matches depend on time, or are no slip everywhere, so they are advice: told, but
            not compared with a baseline; a marker may still forbid them.
        on_request: it is checked only in tests that ask for an estimate of a device's work.
        memory: its matches cost memory as well as time, so `torchprof lint` shows them even if
            they gain little time.
    """

    code: str
    find: Callable[..., Matches | Iterable[int]]
    fix: str
    triggers: Triggers = None
    needs: frozenset[RuleNeed] = frozenset()
    thresholds: Mapping[str, Threshold] = field(default_factory=dict)
    ready: Callable[[Events], Reason | str | None] | None = None
    blind: Callable[[Events], Reason | str | None] | None = None
    gated_by: str | None = None
    timed: bool = False
    memory: bool = False
    on_request: bool = False
    sees_host: bool | str = False

    def __post_init__(self) -> None:
        if not _CODE.fullmatch(self.code):
            raise ValueError(f"rule code {self.code!r}: use lower-case words joined by dashes")
        if isinstance(self.sees_host, str):
            names_of(self.sees_host)
        for pattern, least in self.least.items():
            names_of(pattern)  # known before the first trace, so that each name is looked at once
            if isinstance(least, str) and least not in self.thresholds:
                raise ValueError(
                    f"rule {self.code}: triggers name {least!r}, which is not a threshold"
                )

    @property
    def least(self) -> Mapping[str, float | str]:
        """How many events each expression needs."""
        if self.triggers is None:
            return {}
        return {self.triggers: 1} if isinstance(self.triggers, str) else self.triggers

    @property
    def summary(self) -> str:
        """The first sentence of the docstring, joined into one line."""
        return " ".join(self.page.partition("\n\n")[0].split())

    @property
    def page(self) -> str:
        """The whole docstring, or the fix without one."""
        return inspect.getdoc(self.find) or self.fix


def rule(
    code: str,
    *,
    fix: str,
    triggers: Triggers = None,
    needs: str = "",
    ready: Callable[[Events], Reason | str | None] | None = None,
    blind: Callable[[Events], Reason | str | None] | None = None,
    gated_by: str | None = None,
    timed: bool = False,
    memory: bool = False,
    on_request: bool = False,
    sees_host: bool | str = False,
    **thresholds: Threshold,
) -> Callable[[Callable[..., Matches | Iterable[int]]], Rule]:
    """Make a `Rule` of the decorated function; ``needs`` are words, thresholds keyword arguments.

    Raises:
        ValueError: an invalid code, an unknown need, or a trigger that names an unknown threshold.
    """
    wanted = frozenset(needs.split())
    if unknown := wanted.difference(NEEDS):
        raise ValueError(f"rule {code}: unknown needs {', '.join(sorted(unknown))}")

    def make(find: Callable[..., Matches | Iterable[int]]) -> Rule:
        return Rule(
            code,
            find,
            fix,
            triggers,
            wanted,  # type: ignore[arg-type]
            thresholds,
            ready,
            blind,
            gated_by,
            timed,
            memory,
            on_request,
            sees_host,
        )

    return make
