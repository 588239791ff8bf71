"""What a rule is: its row, thresholds, answers, and the cost of a finding."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import compress
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

import numpy as np
from msgspec import field
from msgspec.structs import replace

from pytest_torchprof.analysis.breakdown import Elapsed, gain
from pytest_torchprof.analysis.device_time import idle, spans_of
from pytest_torchprof.analysis.missing import slowdown_share
from pytest_torchprof.core.errors import SettingsError, TorchprofError, error_line, near
from pytest_torchprof.core.process import late
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.core.units import SCALES, parse_quantity
from pytest_torchprof.core.unknown import Reason, Why, because
from pytest_torchprof.trace.names import names_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pytest_torchprof.analysis.breakdown import Gain
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints


# ---- What a rule is: a row of data, and one function from a trace to its matches.

#: What a trace must contain for a rule to be checked on it, see `rules.check.lacks`; the
#: first one that is missing is reported.
RuleNeed = Literal["live", "device", "shapes"]
NEEDS: Final[tuple[RuleNeed, ...]] = get_args(RuleNeed)

#: Regular expressions for the start of event names, and how many events each needs: see
#: `Rule.triggers`.
Triggers: TypeAlias = str | Mapping[str, float | str] | None

#: Columns of matches: the kinds of their numbers, or what each of their texts may be.
_COLUMNS: Final[Mapping[str, str | tuple[type, ...]]] = {
    "message": (str,),
    "count": "iu",
    "cost_ns": "iuf",
    "bytes": "iu",
    "location": (str, type(None)),
    "fix": (str,),
    "parts": (object,),
    "last": "iu",
}

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
        cost_ns: the time to gain, -1 if unknown; None: all that the event is worth: where the trace
            has all of a device's work, the exposed device time of what the host launches from begin
            to end, and the idle time that the host causes in it; else its length. The reported cost
            is at most that. Matches that cover the same time share it, see ``span_ns``.
        bytes: bytes that it moves needlessly, -1 if unknown; None: not that kind of rule.
        location: ``file:line`` of each row if the rule itself knows it, else None.
        fix: what to do instead, one per row, if it differs from the rule's own.
        span_ns: begin and end of each row's match, on the host; None: those of the event if
            ``cost_ns`` is None, else unknown, so all of the trace.
        wants_tensors: a capture that identifies tensors may have other matches; a live test is then
            captured once more.
        wants_module_calls: fewer may match in a trace that tells calls of modules; a live test then
            runs once more, with its modules marked.
        parts: the events of each row that stands for a stretch of events: its place is the
            innermost line around all of them outside of any module's forward; None: one event each.
        in_steps: ``parts`` are what a loop does. Where a function that each step calls has a line
            around all of them, the place is the line that calls it.
        apart: events that the place of a stretch must not enclose; the place is then the line
            around most of the stretch.
        last: the last event of each row, if a row is a loop that begins with ``event``: its place
            is the line that is repeated.
        by_constructor: the events are steps of an optimizer, or fetches of a loader: the place is
            the line that constructed it, if known.
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
            if isinstance(values, tuple):
                return tuple(map(column, values))
            return values[chosen] if isinstance(values, np.ndarray) else [*compress(values, chosen)]

        told = {name: getattr(self, name) for name in ("event", "span_ns", *_COLUMNS)}
        rows = {n: column(v) for n, v in told.items() if v is not None and not isinstance(v, str)}
        return replace(self, **rows)


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
            expression. Or several expressions with the number of events that each needs: a number,
            or the name of a threshold. None: always run the rule.
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
        timed: its matches depend on time, or are no slip everywhere: they are told, but not
            compared with a baseline; a marker may still forbid them.
        on_request: it is checked only in tests that ask for an estimate of a device's work.
        memory: its matches cost memory, too: `torchprof lint` shows them even if they gain no time.
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

    more = (ready, blind, gated_by, timed, memory, on_request, sees_host)
    row = (fix, triggers, wanted, thresholds, *more)
    return lambda find: Rule(code, find, *row)  # type: ignore[arg-type]


# ---- Thresholds of rules as users write them: ``pageable-copy.bytes=1 MiB,
# other-rule.count=20``.

#: Thresholds by rule, then by name.
Thresholds = dict[str, dict[str, float]]


def words(text: str) -> list[str]:
    """Words separated by commas or line ends."""
    return [word.strip() for word in text.replace("\n", ",").split(",") if word.strip()]


def codes(text: str, known: Iterable[str]) -> frozenset[str]:
    """The named rules, separated by commas.

    Raises:
        SettingsError: there is no such rule.
    """
    return checked(words(text), known)


def checked(named: Iterable[str], known: Iterable[str]) -> frozenset[str]:
    """These rules, if all are known.

    Raises:
        SettingsError: there is no such rule, with the near matches.
    """
    named, known = list(named), list(known)
    for word in named:
        if word not in known:
            raise SettingsError(f"there is no anti-pattern rule {word!r}. {near(word, known)}")
    return frozenset(named)


def parse_thresholds(text: str, rules: Iterable[Rule]) -> Thresholds:
    """Rule → name → value in the threshold's unit. A plain number is in that unit already.

    Raises:
        SettingsError: an unknown rule, name or unit, with the near matches.
    """
    known = {rule.code: rule for rule in rules}
    found: Thresholds = {}
    for word in words(text):
        place, equals, written = (part.strip() for part in word.partition("="))
        code, dot, name = place.partition(".")
        if not (equals and dot and code and name and written):
            raise SettingsError(f"{word!r} is not a threshold", "", "write RULE.NAME=VALUE")
        codes(code, known)
        thresholds = known[code].thresholds
        if not thresholds:
            raise SettingsError(f"the rule {code} has no thresholds")
        if name not in thresholds:
            raise SettingsError(f"{code} has no threshold {name!r}. {near(name, thresholds)}")
        values = found.setdefault(code, {})
        if name in values:
            raise SettingsError(f"{code}.{name} is given twice. Keep one.")
        values[name] = _value(f"{code}.{name}", written, thresholds[name].unit)
    return found


def _value(what: str, written: str, unit: str) -> float:
    value: object = written
    with suppress(ValueError):
        value = int(written) if written.isdecimal() else float(written)
    try:
        return parse_quantity(value, unit)
    except TorchprofError as error:
        raise SettingsError(f"{what}: {error}") from None


# ---- What findings cost: what the device would gain, no time counted twice.
#
# A finding costs at most what the stretches of its matches are worth, see `Matches.cost_ns` and
# `analysis.breakdown`. Where several claim more of the same stretch than it is worth, each gets a
# share. So all together cost at most what the trace is worth.

if TYPE_CHECKING:
    Floats: TypeAlias = NDArray[np.float64]

#: More than any stretch is worth, in ns.
_MOST: Final = np.iinfo(np.int64).max


def costs_ms(
    trace: Events, matches: Mapping[Rule, Matches], finding: Ints, count: int
) -> list[float | None]:
    """What each of ``count`` findings costs, in ms without the profiler; None if unknown.

    ``finding``: the number of the finding that each match is of, for the matches of all rules in
    order.
    """
    claimed = (_claimed(trace, found) for found in matches.values())
    ns, begin, end = (np.concatenate(column) for column in zip(*claimed, strict=True))
    # What dynamo recorded is from an earlier run, which was not profiled.
    noted = trace.facts.compiled is not None
    of_earlier = [noted and rule.gated_by is not None for rule in matches]
    elsewhere = np.repeat(of_earlier, [*map(len, matches.values())])
    known = ns >= 0
    here, other = known & ~elsewhere, known & elsewhere
    own = _shared(gain(trace), finding[here], ns[here], begin[here], end[here], count)
    if isinstance(gain(trace), Elapsed):
        own *= slowdown_share(trace)
    total = float(own.sum())
    own *= min(span_ns(trace) / total, 1) if total else 1
    own += np.bincount(finding[other], ns[other], count)
    unknown = np.bincount(finding, ~known, count) > 0
    return [
        None if not_all else ns / 1e6 for ns, not_all in zip(own.tolist(), unknown, strict=True)
    ]


def _claimed(trace: Events, found: Matches) -> tuple[Ints, Ints, Ints]:
    """What each match costs, if all its stretch is worth is its own; begin and end of that."""
    rows, known = np.maximum(found.event, 0), found.event >= 0
    if found.span_ns is not None:
        (begin, end), known = found.span_ns, np.ones(len(found), bool)
    elif found.cost_ns is None:
        begin, end = (np.where(known, time, 0) for time in around(trace, rows))
    else:
        begin, end = (np.full(len(found), time) for time in trace.once(span))
    # Else all that the stretch is worth.
    ns = np.where(known, _MOST, -1) if found.cost_ns is None else found.cost_ns
    return ns, begin, end


def _shared(
    measure: Gain | Elapsed, owner: Ints, ns: Ints, begin: Ints, end: Ints, count: int
) -> Floats:
    """What each finding gets of the stretches of its claims, if moments are divided that several
    claim.
    """
    claimed = np.bincount(owner, np.minimum(ns, measure.between(begin, end)), count)
    owner, begin, end = _merged(owner, begin, end)
    worth = np.bincount(owner, measure.between(begin, end), count)
    # Of each moment that a finding covers, it claims this share.
    rate = np.minimum(np.divide(claimed, worth, out=np.zeros(count), where=worth > 0), 1)
    times = np.concatenate([begin, end])
    order = np.argsort(times, kind="stable")
    times, place = times[order], np.argsort(order)
    together = np.cumsum(np.concatenate([rate[owner], -rate[owner]])[order])[:-1]
    each = measure.between(times[:-1], times[1:]) / np.maximum(together, 1)
    until = np.concatenate([[0], np.cumsum(each)])
    first, last = place[: len(owner)], place[len(owner) :]
    return rate * np.bincount(owner, until[last] - until[first], count)


def _merged(owner: Ints, begin: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
    """The union of each owner's stretches, as disjoint ones: owner, begin, end."""
    if not len(owner):
        return owner, begin, end
    end = np.maximum(begin, end)
    order = np.lexsort((begin, owner))
    owner, begin, end = owner[order], begin[order], end[order]
    # Those of each owner come later than all of the previous one.
    shift = owner * (end.max() - begin.min() + 1) - begin.min()
    reach = np.maximum.accumulate(end + shift)
    first = np.flatnonzero(np.append(True, (begin + shift)[1:] > reach[:-1]))
    last = np.append(first[1:], len(owner)) - 1
    return owner[first], begin[first], (reach - shift)[last]


def around(trace: Events, events: Ints) -> tuple[Ints, Ints]:
    """When each of these events begins and ends, as `Matches.span_ns`."""
    return trace.ts[events], trace.ts[events] + trace.dur[events]


def launched_between(trace: Events, events: Ints) -> tuple[int, int]:
    """When the host began to launch the first of these device events, and ended with the last."""
    call = np.where(trace.launch[events] >= 0, trace.launch[events], events)
    return int(trace.ts[call].min()), int((trace.ts[call] + trace.dur[call]).max())


def span(trace: Events) -> tuple[int, int]:
    """From the first to the last selected event, on host and device."""
    rows = np.flatnonzero(trace.selection)
    if not len(rows):
        return trace.region or (0, 0)
    return int(trace.ts[rows].min()), int((trace.ts[rows] + trace.dur[rows]).max())


def span_ns(trace: Events) -> int:
    """How long the selected part of the trace lasted, without the profiler if that is known: of its
    devices, where gains are theirs.
    """
    begin, end = trace.once(span)
    slowed = slowdown_share(trace)
    if isinstance(gain(trace), Elapsed):
        return int(max(end - begin, 0) * slowed)
    of_devices = np.array(list(spans_of(trace).values()), np.int64)
    begin, end = int(of_devices[:, 0].min()), int(of_devices[:, 1].max())
    (unused,) = idle(trace).between(np.array([begin]), np.array([end])).tolist()
    return int(end - begin - unused * (1 - slowed))


# ---- Check what a rule returns, and describe its errors with the place of the rule.

_OURS: Final = "pytest_torchprof.rules."
_WANTED = "Matches, or the indices of events"


class AnswerError(TypeError):
    """A rule's function returned something that it must not."""

    def __init__(self, function: Callable[..., object], found: str, wanted: str) -> None:
        super().__init__(f"it returned {found}, but must return {wanted}{_place(function)}")


def is_own(rule: Rule) -> bool:
    """Whether it is one of this package, whose answers have tests."""
    return str(getattr(rule.find, "__module__", "")).startswith(_OURS)


def matches_of(
    trace: Events, rule: Rule, thresholds: Mapping[str, float], *, own: bool = False
) -> Matches:
    """What a rule finds; a plain list of events gets the rule's summary as its message.

    ``own``: see `is_own`; the answer is then taken as it is.

    Raises:
        AnswerError: the rule returned neither, or columns of wrong types, lengths or events.
        BaseException: whatever the rule raises.
    """
    find = rule.find
    found = find(trace, **thresholds)
    if found is NO_MATCHES or found is NONE_SO_FAR or (own and isinstance(found, Matches)):
        return found
    if not isinstance(found, Matches):
        found = Matches(_indices(found, find), rule.summary)
    try:
        _check(found, len(trace), find)
    except AnswerError:
        raise
    except Exception as error:
        fault = f"Matches that cannot be read ({type(error).__name__}: {error})"
        raise AnswerError(find, fault, "columns with one value for each event") from error
    return found


def reason_of(answer: object, function: Callable[..., object]) -> Reason:
    """The reason that ``ready`` or ``blind`` gives; users' rules give it in words.

    Raises:
        AnswerError: it is neither a reason nor text.
    """
    if isinstance(answer, Reason):
        return answer
    if not isinstance(answer, str):
        raise AnswerError(function, _shown(answer), "a reason in words, or None")
    return because(*Why.SOMEBODY_SAID, text=answer)


def fault_of(error: BaseException) -> str:
    """What a rule raised, and the line that raised it."""
    if isinstance(error, AnswerError):
        return str(error)
    last = [*walk_tb(error.__traceback__)][-1:]
    line = "".join(f" ({frame.f_code.co_filename}:{number})" for frame, number in last)
    return f"{error_line(error)}{line}"


def _indices(found: object, find: Callable[..., object]) -> Ints:
    """An iterable of events as a column."""
    if not isinstance(found, Iterable) or isinstance(found, str | bytes):
        raise AnswerError(find, _shown(found), _WANTED)
    rows = list(found)
    if any(isinstance(row, bool | np.bool_) for row in rows):
        raise AnswerError(find, "a mask", "the indices of events: np.flatnonzero(mask)")
    if not all(isinstance(row, int | np.integer) for row in rows):
        first = "an array" if isinstance(found, np.ndarray) else f"a {type(found).__name__}"
        raise AnswerError(find, f"{first} that is not a column of whole numbers", _WANTED)
    return np.array(rows, np.int64)


def _check(found: Matches, length: int, find: Callable[..., object]) -> None:
    """Raise an error for a column of a wrong type or length, or an event that does not exist."""
    events = np.asarray(found.event)
    if events.ndim != 1 or events.dtype.kind not in "iu":
        what = f"Matches with events of {events.ndim} dimensions and type {events.dtype}"
        raise AnswerError(find, what, "one column of whole numbers")
    count, each = len(events), "one value for each event"
    for name, allowed in _COLUMNS.items():
        column = getattr(found, name)
        if isinstance(column, str) or (column is None and name != "message"):
            continue
        if not hasattr(column, "__len__"):
            raise AnswerError(find, f"{_shown(column)} as {name}", each)
        if len(column) != count:
            raise AnswerError(find, f"{count} events, but {len(column)} values of {name}", each)
        if not isinstance(allowed, str):
            for text in column:
                if not isinstance(text, allowed):
                    raise AnswerError(find, f"{_shown(text)} as a {name}", f"each {name} as text")
        elif (kind := np.asarray(column).dtype).kind not in allowed:
            numbers = "numbers" if "f" in allowed else "whole numbers"
            raise AnswerError(find, f"{name} of type {kind}", f"{name} as a column of {numbers}")
    if found.span_ns is not None and not count == len(found.span_ns[0]) == len(found.span_ns[1]):
        raise AnswerError(find, "a span_ns of another length", "a start and an end for each event")
    last = () if found.last is None else (found.last,)
    events = np.concatenate([events, *last, *(found.parts or ())])
    wrong_events = events[(events < -1) | (events >= length)]
    if len(wrong_events):
        what = f"the event {int(wrong_events[0])}"
        raise AnswerError(find, what, f"events from 0 to {length - 1}, or -1")


def _shown(value: object) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"


def _place(function: Any) -> str:
    """File and line of a function, in parentheses; empty if it has none."""
    while isinstance(function, partial):
        function = function.func
    function = inspect.unwrap(function)
    if not inspect.isroutine(function):  # an instance that can be called
        function = type(function).__call__
    code = getattr(function, "__code__", None)
    return "" if code is None else f" ({code.co_filename}:{code.co_firstlineno})"
