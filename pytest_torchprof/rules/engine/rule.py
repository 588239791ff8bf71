"""What a rule is: a row of data, and one function from a trace to where it matches."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import numpy as np
from msgspec import field

from pytest_torchprof.core.late import late
from pytest_torchprof.core.plain import Plain
from pytest_torchprof.core.units import SCALES
from pytest_torchprof.trace.names import names_of

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Trace
    from pytest_torchprof.trace.nesting import Ints

#: What a trace must hold for a rule to say anything about it, see `rules.check.lacking`.
Need = Literal["shapes", "device", "live"]

#: Expressions that begin names of events, and how many events each takes: see `Rule.triggers`.
Triggers: TypeAlias = str | Mapping[str, float | str] | None

#: The headings of a rule's docstring, in order; its page is made of them.
HEADINGS = ("What it does", "Why it is slow", "Example", "Use instead")

_CODE = late(r"[a-z0-9]+(-[a-z0-9]+)*")


class Threshold(Plain, frozen=True):
    """A number below (or above) which a match is a trifle; users may set another.

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


class Matches(Plain, frozen=True):
    """Where a rule matched, a row a match.

    Attributes:
        event: the host event (operator or annotation) whose place is reported, int64; -1 where no
            event tells the place.
        message: what was found, one for all rows or one a row; rows of one message and one place
            become one finding.
        count: how many of the rule's matches a row stands for; None: 1 each.
        cost_ns: the time that it costs in this run, an estimate; None: the event's duration.
            More than what it is of lasted is never reported, see ``span_ns``.
        bytes: bytes that it moves for nothing, -1 where unknown; None: not that kind of rule.
        location: ``file:line`` of each row where the rule itself knows it, else None.
        fix: what to do instead, a row each, where it is not the rule's own for all.
        span_ns: when what a row is of began and when it ended, on host and device; None: with the
            event, where its duration is the cost; else not known.
        wants_tensors: a capture that knows which tensor is which may have other matches, see
            `rules.identity`; a live test is then captured once more.
        parts: the events that a row is of, where it is of a stretch of them and not of ``event``
            alone: its place is then the innermost line around them all that is outside of any
            module's forward, and its module the outermost; None: each row is of its event.
        apart: events that must not be within the place of a stretch, such as what would be wrong to
            wrap with it; the place is then nearer to the first of the stretch.
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
    parts: Sequence[Ints] | None = None
    apart: Ints | None = None

    def __len__(self) -> int:
        return len(self.event)


#: Columns of matches, and the kinds of numbers that are in them.
_COLUMNS: Final = (
    ("message", ""),
    ("count", "iu"),
    ("cost_ns", "iuf"),
    ("bytes", "iu"),
    ("location", ""),
    ("fix", ""),
    ("parts", ""),
)
NO_MATCHES = Matches(np.zeros(0, np.int64), "")
#: None by what is known, but a capture that knows tensors may have some.
NONE_SO_FAR = Matches(np.zeros(0, np.int64), "", wants_tensors=True)


class Rule(Plain, frozen=True, eq=False):
    """One row of the registry.

    Attributes:
        code: what markers, options and reports call it, lower case with dashes.
        find: from a trace, and the thresholds by name, to its matches: `Matches`, or just the
            numbers of the events. Pure. Its docstring is the rule's page, see `HEADINGS`.
        fix: what to do instead, in a line.
        triggers: a trace has a match only if some event's name begins with a match of this
            expression; most rules are done with after that look. Or several expressions, each with
            how many events it takes: a number, or the threshold that says so. None: always look.
        needs: what the trace must hold, else the rule is *not checked* on it.
        thresholds: by name, as ``find`` takes them.
        ready: what else a trace lacks for this rule, in words, or None. The first line of its
            docstring says on the rule's page what it looks for.
        blind: why it cannot see some of what ran, in words, or None: what it matches counts all the
            same, and that it matches nothing says nothing.
        gated_by: the metric that is compared with a baseline in place of the rule's matches,
            where what ran earlier in the process decides whether a trace is ready for it.
        timed: time decides whether it matches, so its matches are compared with no baseline; a
            marker may forbid them all the same.
    """

    code: str
    find: Callable[..., Matches | Iterable[int]]
    fix: str
    triggers: Triggers = None
    needs: frozenset[Need] = frozenset()
    thresholds: Mapping[str, Threshold] = field(default_factory=dict)
    ready: Callable[[Trace], str | None] | None = None
    blind: Callable[[Trace], str | None] | None = None
    gated_by: str | None = None
    timed: bool = False

    def __post_init__(self) -> None:
        if not _CODE.fullmatch(self.code):
            raise ValueError(f"rule code {self.code!r}: lower-case words joined by dashes, please")
        for pattern, least in self.least.items():
            names_of(pattern)  # known before the first trace, so that each name is looked at once
            if isinstance(least, str) and least not in self.thresholds:
                raise ValueError(
                    f"rule {self.code}: triggers name {least!r}, which is no threshold"
                )

    @property
    def least(self) -> Mapping[str, float | str]:
        """How many events each expression takes."""
        if self.triggers is None:
            return {}
        return {self.triggers: 1} if isinstance(self.triggers, str) else self.triggers

    @property
    def summary(self) -> str:
        """The first sentence of the docstring, on however many lines."""
        return " ".join(self.page.partition("\n\n")[0].split())

    @property
    def page(self) -> str:
        """The whole docstring."""
        return inspect.getdoc(self.find) or self.fix


def rule(
    code: str,
    *,
    fix: str,
    triggers: Triggers = None,
    needs: str = "",
    ready: Callable[[Trace], str | None] | None = None,
    blind: Callable[[Trace], str | None] | None = None,
    gated_by: str | None = None,
    timed: bool = False,
    **thresholds: Threshold,
) -> Callable[[Callable[..., Matches | Iterable[int]]], Rule]:
    """Make a `Rule` of the function below; ``needs`` are words, thresholds its keyword arguments.

    Raises:
        ValueError: a code that is none, an unknown need, or a trigger's threshold that is none.
    """
    wanted = frozenset(needs.split())
    if unknown := wanted - {"shapes", "device", "live"}:
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
        )

    return make


def matches_of(found: Matches | Iterable[int], trace: Trace, by: Rule) -> Matches:
    """What a rule has returned, in full; a plain list of events has the rule's summary to say.

    Raises:
        TypeError: it is neither, or a mask, or a column is of another type.
        ValueError: columns of different lengths.
        IndexError: events that the trace does not have.
    """
    if found is NO_MATCHES or found is NONE_SO_FAR:
        return found
    if not isinstance(found, Matches):
        if isinstance(found, np.ndarray) and found.dtype.kind == "b":
            raise TypeError("a rule returns the numbers of events, not a mask: np.flatnonzero(…)")
        found = Matches(np.fromiter(found, np.int64), by.summary)
    events = np.asarray(found.event)
    if events.ndim != 1 or events.dtype.kind not in "iu":
        raise TypeError(f"events are one column of whole numbers, not {events.dtype}")
    for name, kinds in _COLUMNS:
        column = getattr(found, name)
        if column is None or isinstance(column, str):
            continue
        if len(column) != len(events):
            raise ValueError(f"{len(events)} events, and {len(column)} of {name}")
        if kinds and np.asarray(column).dtype.kind not in kinds:
            raise TypeError(f"{name} is a column of numbers, not {np.asarray(column).dtype}")
    messages = (found.message,) if isinstance(found.message, str) else found.message
    if not all(isinstance(said, str) for said in messages):
        raise TypeError("a message is text")
    every = events if found.parts is None else np.concatenate([events, *found.parts])
    if len(every) and (every.min() < -1 or every.max() >= len(trace)):
        raise IndexError(f"event {int(every.max())} of a trace of {len(trace)}")
    return found
