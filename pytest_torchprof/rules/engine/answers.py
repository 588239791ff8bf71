"""Check what a rule returns, and describe its errors with the place of the rule."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pytest_torchprof.core.errors import error_line
from pytest_torchprof.core.reasons import Reason, Why, because
from pytest_torchprof.rules.engine.rule import NO_MATCHES, NONE_SO_FAR, Matches

if TYPE_CHECKING:
    from pytest_torchprof.rules.engine.rule import Rule
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

#: Columns of matches, and the kinds of their numbers, if they are numbers.
_COLUMNS: Final = (
    ("message", ""),
    ("count", "iu"),
    ("cost_ns", "iuf"),
    ("bytes", "iu"),
    ("location", ""),
    ("fix", ""),
    ("parts", ""),
    ("last", "iu"),
)
#: Of columns of texts, what each may be.
_TEXTS: Final[Mapping[str, type | tuple[type, ...]]] = {
    "message": str,
    "fix": str,
    "location": (str, type(None)),
}
_OURS: Final = "pytest_torchprof.rules."
_WANTED = "Matches, or the indices of events"
#: Matches of which each is looked at by itself.
_FEW: Final = 50


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
    return because(Why.SOMEBODY_SAID, text=answer)


def fault_of(error: BaseException) -> str:
    """What a rule raised, and the line that raised it."""
    if isinstance(error, AnswerError):
        return str(error)
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    code = at.tb_frame.f_code if at is not None else None
    line = f" ({code.co_filename}:{at.tb_lineno})" if code is not None and at is not None else ""
    return f"{error_line(error)}{line}"


def _indices(found: object, find: Callable[..., object]) -> Ints:
    """An iterable of events as a column."""
    if not isinstance(found, Iterable) or isinstance(found, str | bytes):
        raise AnswerError(find, _shown(found), _WANTED)
    column = found if isinstance(found, np.ndarray) else _column(list(found))
    if column.dtype.kind == "b":
        raise AnswerError(find, "a mask", "the indices of events: np.flatnonzero(mask)")
    if column.ndim != 1 or (len(column) and column.dtype.kind not in "iu"):
        first = "an array" if isinstance(found, np.ndarray) else f"a {type(found).__name__}"
        raise AnswerError(find, f"{first} that is not a column of whole numbers", _WANTED)
    return column.astype(np.int64, copy=False)


def _column(values: list[Any]) -> np.ndarray[Any, Any]:
    try:
        return np.asarray(values)
    except ValueError:  # lists of different lengths
        return np.asarray(values, dtype=object)


def _check(found: Matches, length: int, find: Callable[..., object]) -> None:
    """Raise an error for a column of a wrong type or length, or an event that does not exist."""
    events = _array(found.event)
    if events.ndim != 1 or events.dtype.kind not in "iu":
        what = f"Matches with events of {events.ndim} dimensions and type {events.dtype}"
        raise AnswerError(find, what, "one column of whole numbers")
    count = len(events)
    for name, kinds in _COLUMNS:
        column = getattr(found, name)
        if isinstance(column, str) or (column is None and name != "message"):
            continue
        if not hasattr(column, "__len__"):
            raise AnswerError(find, f"{_shown(column)} as {name}", "one value for each event")
        if len(column) != count:
            what = f"{count} events, but {len(column)} values of {name}"
            raise AnswerError(find, what, "one value for each event")
        if kinds and (kind := _array(column).dtype).kind not in kinds:
            numbers = "numbers" if "f" in kinds else "whole numbers"
            raise AnswerError(find, f"{name} of type {kind}", f"{name} as a column of {numbers}")
        if name in _TEXTS:
            allowed = _TEXTS[name]
            wrong = [text for text in column if not isinstance(text, allowed)]
            if wrong:
                raise AnswerError(find, f"{_shown(wrong[0])} as a {name}", f"each {name} as text")
    if found.span_ns is not None and not count == len(found.span_ns[0]) == len(found.span_ns[1]):
        raise AnswerError(find, "a span_ns of another length", "a start and an end for each event")
    last = () if found.last is None else (found.last,)
    if last or found.parts:
        events = np.concatenate([events, *last, *(found.parts or ())])
    least, most = _range(events)
    if least < -1 or most >= length:
        wrong_event = least if least < -1 else most
        raise AnswerError(find, f"the event {wrong_event}", f"events from 0 to {length - 1}, or -1")


def _range(numbers: np.ndarray[Any, Any]) -> tuple[int, int]:
    """The least and the largest of these; both -1 if there are none."""
    if not len(numbers):
        return -1, -1
    # Of few numbers, Python finds them sooner.
    some = numbers.tolist() if len(numbers) < _FEW else [int(numbers.min()), int(numbers.max())]
    return min(some), max(some)


def _array(column: object) -> np.ndarray[Any, Any]:
    return column if isinstance(column, np.ndarray) else np.asarray(column)


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
