"""Mark the user's running line: a tracer opens and closes markers in the profile.

``with_stack`` is not enough: torch records where a Python function starts, not which line runs.
A line's marker is open while the line runs, including its callees' markers, so the innermost marker
around an operator names the line that called it. Another kind of marker is open while an
``nn.Module`` runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from functools import cache
from types import CodeType, FrameType
from typing import Any

from pytest_torchprof.capture import constructors, module_classes
from pytest_torchprof.capture.constructors import Constructors
from pytest_torchprof.capture.machine import real_torch
from pytest_torchprof.capture.module_names import ModuleNames
from pytest_torchprof.capture.unpatched import REAL
from pytest_torchprof.capture.user_frames import frames_of_test, is_users
from pytest_torchprof.core.reasons import Reason, Why, because
from pytest_torchprof.places.markers import LINE, MODULE

_OWN_TRACER = because(Why.OWN_TRACER)
#: Each marker is an event of the trace; beyond this number, a test's lines are not located.
MOST_MARKS = 200_000
#: Lines that run without a marker still cost a call of ours each.
_MOST_UNMARKED = 5_000_000
#: Once half of the markers are used, lines that have run this often get no more of them,
_OFTEN = 200
#: except every so often, to see whether they still call nothing.
_SAMPLED = 1000
#: How much deeper than its caller the tracer is switched on, to have room for switching it off.
_SPARE_DEPTH = 30


class LineTracer:
    """Marks lines and modules of the thread that calls `start`, until `stop`.

    ``own`` are files that count as the user's in any folder. ``gap`` says why lines are missing,
    ``usable`` whether the existing ones are correct.

    Only lines that call operators matter. A test that uses up half of the markers gets the rest for
    lines that have run rarely; the others are ``doubted`` until the trace shows that nothing ran in
    them. ``plain`` are lines, as ``file:line``, of which another run has shown it: with these, no
    line is doubted.
    """

    #: Whether metrics are taken from the run, so that shapes and memory are recorded.
    measures = False
    _TOO_MANY = Why.TOO_MANY_LINES

    def __init__(self, own: Collection[str] = (), plain: Collection[str] | None = None) -> None:
        self.gap: Reason | None = None
        self.usable = True
        self._lines: dict[tuple[str, int | None], _Line] = {}
        self._plain = plain
        #: Codes, by their id, of which each line is unmarked.
        self._silent: dict[int, CodeType] = {}
        #: Module path → its marker's name, which ends in its number.
        self._modules: dict[str, str] = {}
        self._users: dict[str, bool] = dict.fromkeys(own, True)
        #: Open markers, from the outermost in: the frame, the marker, whether it is a module's.
        self._open: list[tuple[FrameType, Any, bool]] = []
        self._left = MOST_MARKS
        self._left_unmarked = _MOST_UNMARKED
        self._names: Any = ModuleNames(self._is_users)
        self._read: set[int] = self._names.read
        self._on = False
        self._thread = 0
        self._depth = 0
        self._previous: Any = None
        #: Frames that ran before us, and their own tracers.
        self._older: list[tuple[FrameType, Any]] = []
        t = real_torch()
        self._mark, self._calls_modules = t.mark, t.calls_modules
        self._call_names = {code.co_name for code in t.calls_modules}  # a code's hash is slow
        self._constructors = Constructors(self._line_around)
        self._ours: Any = self._called
        self._local: Any = self._stepped
        self._module_local: Any = self._left_module

    @property
    def lines(self) -> list[str | None]:
        """``file:line`` of each line's marker, by its number."""
        return [_written(*key) for key in self._lines]

    @property
    def doubted(self) -> frozenset[int]:
        """The numbers of lines that were not marked each time they ran."""
        if self._plain is not None:
            return frozenset()
        lines = enumerate(self._lines.values())
        return frozenset(number for number, line in lines if line.unmarked)

    @property
    def unseen(self) -> frozenset[str]:
        """Classes of modules that may have run unmarked."""
        return frozenset()

    @property
    def modules(self) -> list[str]:
        """The path of each module's marker, by its number."""
        return list(self._modules)

    # ---------------------------------------------------------------- on and off

    def start(self) -> None:
        """Begin, with the current lines of the frames around."""
        self._previous = REAL.gettrace()
        if _debugs(self._previous):
            self.gap, self.usable = because(Why.TRACED_BY_DEBUGGER), False
            return
        _hide_from_dynamo()
        self._thread = REAL.current_thread()
        self._begin(REAL.frame(1))
        _deeper(_SPARE_DEPTH, self._switch_on)

    def _begin(self, innermost: FrameType) -> None:
        """Mark what is already running, from this frame outwards."""
        older = [f for f in frames_of_test(innermost) if self._is_users(f)]
        for frame in reversed(older):
            self._older.append((frame, frame.f_trace))
            self._enter(frame)
            frame.f_trace = self._local

    def stop(self) -> None:
        """End, and restore the thread's tracer; can be called at any time, and repeatedly."""
        if not self._on:
            self._give_frames_back()
            return
        if REAL.current_thread() != self._thread:  # its tracing cannot be ended from here
            self.gap, self.usable = (
                because(Why.OTHER_THREAD),
                False,
            )
            self._left = 0
            return
        self._on = False
        # A tracer that counts calls and returns, as coverage's does, must not miss any: it is
        # replaced and restored at the same depth.
        _deeper(self._depth - _depth() - 2, self._switch_off)
        self._give_frames_back()
        self._close(0)
        # Unfinished generators keep us alive, and through us the test's modules.
        self._names.forget()
        self._constructors.forget()

    def _give_frames_back(self) -> None:
        for frame, tracer in self._older:
            if frame.f_trace is self._local:
                frame.f_trace = tracer
        self._older.clear()

    def _switch_on(self) -> None:
        self._depth = _depth()
        self._on = True
        REAL.settrace(self._ours)

    def _switch_off(self) -> None:
        if REAL.gettrace() is (self._ours if self._left else None):
            REAL.settrace(self._previous)
        elif self._left:  # markers that were open then have stayed open
            self.gap, self.usable = _OWN_TRACER, False

    def _give_up(self, why: Reason) -> None:
        """From here on nothing is known; the previous tracer is restored at the end."""
        self.gap = self.gap or why
        self._left = 0
        self._close(0)
        if REAL.gettrace() is self._ours:
            REAL.settrace(None)

    # ---------------------------------------------------------------- what Python calls

    def _called(self, frame: FrameType, _: str, __: object) -> Any:
        """A function begins, or a generator continues."""
        if not (self._on and self._left):
            if self._on and REAL.gettrace() is self._ours:  # another thread has ended the region
                REAL.settrace(self._previous)
            return None
        try:
            code = frame.f_code
            if id(code) in self._silent:
                return None
            if code.co_name in self._call_names and code in self._calls_modules:
                return self._enter_module(frame)
            if code.co_name in self._constructors.names and (
                entered := self._enter_constructed(frame)
            ):
                return entered
            if self._is_users(frame):
                self._enter(frame)
                return self._local
        except Exception as error:  # noqa: BLE001 - a fault of ours must not reach the test
            self._give_up(because(Why.TRACER_RAISED, error=f"{type(error).__name__}: {error}"))
        return None

    def _stepped(self, frame: FrameType, event: str, _: object) -> Any:
        """A line of a user's function begins, or the function returns."""
        if event == "exception" or not (self._on and self._left):
            return self._local
        try:
            if id(frame) in self._read:
                frame.f_locals  # noqa: B018 - without what the test has deleted since
            self._close(self._place(frame))
            if REAL.gettrace() is not self._ours:  # our tracer no longer sees calls
                self.gap, self.usable = _OWN_TRACER, False
            if event == "line":
                self._enter(frame)
        except Exception as error:  # noqa: BLE001 - see above
            self._give_up(because(Why.TRACER_RAISED, error=f"{type(error).__name__}: {error}"))
        return self._local

    def _left_module(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "return" and self._on and self._left:
            try:
                self._close(self._place(frame))
            except Exception as error:  # noqa: BLE001 - see above
                self._give_up(because(Why.TRACER_RAISED, error=f"{type(error).__name__}: {error}"))
        return self._module_local

    # ---------------------------------------------------------------- markers

    def _enter(self, frame: FrameType) -> None:
        line = self._line(frame.f_code.co_filename, frame.f_lineno)
        line.times += 1
        if line.unmarked or self._is_saving(line):
            self._left_unmarked -= 1
            if not self._left_unmarked:
                self._give_up(because(self._TOO_MANY, most=_MOST_UNMARKED))
                return
            if line.times % _SAMPLED:
                return
            self._note_silent(frame.f_code)
        self._push(frame, line.name, module=False)

    def _line(self, file: str, number: int | None) -> _Line:
        key = file, number
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line(len(self._lines))
            line.unmarked = self._plain is not None and _written(*key) in self._plain
        return line

    def _is_saving(self, line: _Line) -> bool:
        """Whether the line gets no more markers, so that they last for others."""
        few = self._left < MOST_MARKS // 2
        line.unmarked = few and self._plain is None and line.times > _OFTEN
        return line.unmarked

    def _note_silent(self, code: CodeType) -> None:
        """No longer follow the lines of a code if each of them is unmarked."""
        file = code.co_filename
        for number in {line for _, _, line in code.co_lines() if line is not None}:
            line = self._lines.get((file, number))
            if line is None or not line.unmarked:
                return
        self._silent[id(code)] = code

    def _enter_module(self, frame: FrameType) -> Any:
        path = self._names.enter(frame)
        name = self._modules.get(path)
        if name is None:
            name = self._modules[path] = f"{MODULE}{len(self._modules)}"
        self._push(frame, name, module=True)
        frame.f_trace_lines = False
        return self._module_local

    def _enter_constructed(self, frame: FrameType) -> Any:
        marker = self._constructors.marker_of(frame)
        if marker is None:
            return None
        self._push(frame, marker, module=False)
        frame.f_trace_lines = False
        return self._module_local

    def _line_around(self, frame: FrameType) -> int | None:
        """The number of the user's innermost line around a call."""
        caller = next(filter(self._is_users, frames_of_test(frame.f_back)), None)
        if caller is None:
            return None
        return self._line(caller.f_code.co_filename, caller.f_lineno).number

    def _push(self, frame: FrameType, name: str, *, module: bool) -> None:
        marker = self._mark(name)
        marker.__enter__()
        self._open.append((frame, marker, module))
        self._left -= 1
        if not self._left:
            self._give_up(because(self._TOO_MANY, most=MOST_MARKS))

    def _place(self, frame: FrameType) -> int:
        """The index of the frame's marker among the open ones, or their number."""
        for place in range(len(self._open) - 1, -1, -1):
            if self._open[place][0] is frame:
                return place
        return len(self._open)

    def _close(self, place: int) -> None:
        """Close this marker, and all that are still open within it."""
        while len(self._open) > place:
            _, marker, module = self._open.pop()
            marker.__exit__(None, None, None)
            if module:
                self._names.leave()

    def _is_users(self, frame: FrameType) -> bool:
        file = frame.f_code.co_filename
        known = self._users.get(file)
        if known is None:
            known = self._users[file] = is_users(file)
        return known


class _Line:
    """A line that ran: its number, the name of its marker, and how often it ran."""

    __slots__ = ("name", "number", "times", "unmarked")

    def __init__(self, number: int) -> None:
        self.number = number
        self.name = f"{LINE}{number}"
        self.times = 0
        #: It gets only every so many markers.
        self.unmarked = False


# -------------------------------------------------------------------- at the edges


def _written(file: str, line: int | None) -> str | None:
    return None if line is None else f"{file}:{line}"


def _debugs(tracer: Any) -> bool:
    """Whether it belongs to a debugger: pdb and its kind, or pydevd's."""
    if tracer is None:
        return False
    owner = type(getattr(tracer, "__self__", tracer))
    return any(kind.__name__ == "Bdb" for kind in owner.__mro__) or "pydevd" in sys.modules


def _depth() -> int:
    """The depth of the caller's stack."""
    depth, frame = -1, REAL.frame()
    while frame.f_back is not None:
        depth, frame = depth + 1, frame.f_back
    return depth


def _deeper(levels: int, function: Callable[[], None]) -> None:
    if levels > 0:
        _deeper(levels - 1, function)
    else:
        function()


@cache
def _hide_from_dynamo() -> None:
    """Dynamo compiles what compiled code calls, which includes our functions."""
    tracers = LineTracer, *LineTracer.__subclasses__()
    rooms = (
        *tracers,
        ModuleNames,
        Constructors,
        module_classes.RunningModules,
        module_classes,
        _Line,
    )
    methods = [method for room in rooms for method in vars(room).values()]
    functions: list[Any] = [
        *methods,
        *vars(constructors).values(),
        is_users,
        frames_of_test,
        _written,
        _debugs,
        _depth,
        _deeper,
    ]
    codes = [f.__code__ for f in functions if hasattr(f, "__code__")]
    while codes:
        code = codes.pop()
        real_torch().skip_code(code)
        codes += [const for const in code.co_consts if isinstance(const, CodeType)]
