"""The user's running lines and modules, as markers in the profile, and tensors' identities."""

from __future__ import annotations

import inspect
import sys
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Collection
from functools import cache
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any
from weakref import ref

from pytest_torchprof.capture.dynamo import frames_of_test, is_users
from pytest_torchprof.capture.machine import real_torch
from pytest_torchprof.capture.patches import REAL
from pytest_torchprof.core.records import cached
from pytest_torchprof.core.unknown import Reason, Why, because
from pytest_torchprof.places.place import CONSTRUCTOR, LINE, MODULE, FunctionCalls, Marks
from pytest_torchprof.trace.names import MODULE_MARK
from pytest_torchprof.trace.tensors import ListedTensors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pytest_torchprof.trace.tensors import Taken


# ---- Which class a running module is of, and which ones run inside it unseen.

#: The name that a class has, whatever its metaclass or an attribute says.
_name_of = type.__dict__["__name__"].__get__


def class_name(module: Any) -> str:
    """The class of a module as its author knows it.

    For one that `torch.compile`, ``torch.jit.script`` or ``torch.jit.trace`` made, it is that of
    the original.
    """
    try:
        original = _original(module)
        if _is_scripted(original):
            return str(original.original_name or _name_of(type(original)))
        return str(_name_of(type(original)))
    except Exception:  # noqa: BLE001 - attributes of users' objects may do anything
        return str(_name_of(type(module)))


def _original(module: Any) -> Any:
    """The module that `torch.compile` has wrapped, else the module itself."""
    if _is_scripted(module):  # its dictionaries are of another kind
        return module
    original = (vars(module).get("_modules") or {}).get("_orig_mod")
    return module if original is None else original


def _is_scripted(module: Any) -> bool:
    return issubclass(type(module), real_torch().scripted)


def _hides_modules(module: Any) -> bool:
    """Whether its parts may run without their Python calls."""
    if _is_scripted(module) or _original(module) is not module:
        return True
    return vars(module).get("_compiled_call_impl") is not None


def _inner_classes(module: Any) -> dict[int, str]:
    """By id, the class of each part that may run unseen while this module runs."""
    try:
        if not _hides_modules(module):
            return {}
        parts = [part for _, part in module.named_modules()]
        return {id(part): class_name(part) for part in parts if part is not module}
    except Exception:  # noqa: BLE001 - see above
        return {}


def weakly(module: Any) -> Callable[[], Any]:
    """Returns the module when it is called, or None once nobody else has it.

    A module must end when it would without us. Its end may do anything: that of a DDP model may end
    its process group, which holds Python's lock while it waits for threads that need the lock, if
    the user has destroyed the group before. Source: torch/csrc/distributed/c10d, where the binding
    of ``ProcessGroup`` releases the lock and that of ``Reducer`` does not.
    """
    try:
        return ref(module)
    except TypeError:  # an object of another kind that says it is a module
        return lambda: module


class RunningModules:
    """The running modules, from the outermost in; none is kept alive, see `weakly`."""

    def __init__(self) -> None:
        #: Each with its class, and the parts of it that have not been seen to run.
        self._running: list[tuple[Callable[[], Any], str, dict[int, str]]] = []
        #: By id: the module, and its parts' classes.
        self._known: dict[int, tuple[Callable[[], Any], dict[int, str]]] = {}
        #: Classes of modules that may have run unseen.
        self.unseen: set[str] = set()

    def innermost(self) -> Any:
        """The module that was entered last."""
        return self._running[-1][0]() if self._running else None

    def enter(self, module: Any) -> str:
        """A module runs; return its class."""
        for _, _, parts in self._running:
            parts.pop(id(module), None)
        name = class_name(module)
        known = self._known.get(id(module))
        if known is None or known[0]() is not module:  # an id is reused
            known = self._known[id(module)] = weakly(module), _inner_classes(module)
        me, parts = known
        # What is inside another one of its class counts anyway.
        around = {name, *(kind for _, kind, _ in self._running)}
        self._running.append((me, name, {i: k for i, k in parts.items() if k not in around}))
        return name

    def leave(self) -> None:
        """The last module has returned."""
        self.unseen |= set(self._running.pop()[2].values())

    def forget(self) -> None:
        """Release all of them."""
        self._running.clear()
        self._known.clear()


# ---- Where the user's code constructed the optimizers that step, and the loaders that fetch.


class Constructors:
    """Names the marker of a step or a fetch, by the line that constructed what takes it.

    ``line_of`` gives the number of the user's innermost line around a frame, None if there is none.
    No optimizer or loader is kept alive.
    """

    def __init__(self, line_of: Callable[[FrameType], int | None]) -> None:
        self._line_of = line_of
        #: By id: the object, and the marker of what it does.
        self._known: dict[int, tuple[Callable[[], Any], str]] = {}
        codes = real_torch().constructor_codes
        self._roles = {
            **{id(code): self._constructed for code in codes.constructors},
            **{id(code): self._iterates for code in codes.iterators},
            **{id(code): self._steps for code in codes.steps},
            **{id(code): self._fetches for code in codes.fetches},
        }
        #: The names of all functions that `marker_of` knows.
        self.names = frozenset(code.co_name for some in codes for code in some)

    def marker_of(self, frame: FrameType) -> str | None:
        """The marker of a step or fetch that begins; notes what is constructed. None for others."""
        role = self._roles.get(id(frame.f_code))
        return None if role is None else role(frame)

    def forget(self) -> None:
        """Release all names."""
        self._known.clear()

    def _constructed(self, frame: FrameType) -> None:
        number = self._line_of(frame)
        if number is not None:
            self._note(_argument(frame, 0), f"{CONSTRUCTOR}{number}")

    def _iterates(self, frame: FrameType) -> None:
        marker = self._marker(_argument(frame, 1))
        if marker is not None:
            self._note(_argument(frame, 0), marker)

    def _steps(self, frame: FrameType) -> str | None:
        arguments = _argument(frame, 0)
        return self._marker(arguments[0]) if arguments else None

    def _fetches(self, frame: FrameType) -> str | None:
        return self._marker(_argument(frame, 0))

    def _note(self, made: Any, marker: str) -> None:
        self._known[id(made)] = weakly(made), marker

    def _marker(self, made: Any) -> str | None:
        known = self._known.get(id(made))
        return None if known is None or known[0]() is not made else known[1]


def _argument(frame: FrameType, number: int) -> Any:
    """What a function that begins was called with."""
    return frame.f_locals.get(frame.f_code.co_varnames[number])


# ---- Paths of running modules, as a user writes them.


class ModuleNames:
    """Paths of the running modules, such as ``model.layers.3.attn``.

    The outermost has the name that a user's frame has for it, else that of its class. No module is
    kept alive: see `weakly`.
    """

    def __init__(self, is_users: Callable[[FrameType], bool]) -> None:
        self._is_users = is_users
        self._kind: type = real_torch().module
        #: The ids of frames whose local variables were read. Up to Python 3.12, that keeps them
        #: alive until they are read again.
        self.read: set[int] = set()
        #: The running ones: what is below the root, and the root's path.
        self._running: list[tuple[dict[int, str], str]] = []
        #: By id: the module, and names below it.
        self._known: dict[int, tuple[Callable[[], Any], dict[int, str]]] = {}
        #: By id and caller: the module, and its path.
        self._roots: dict[tuple[int, CodeType | None], tuple[Callable[[], Any], str]] = {}

    def enter(self, frame: FrameType) -> str:
        """The path of the module whose call this frame is."""
        module = frame.f_locals["self"]
        if self._running:
            names, path = self._running[-1]
            below = names.get(id(module))
            if below is not None:
                self._running.append((names, path))
                return f"{path}.{below}" if below else path
        callers = [f for f in frames_of_test(frame.f_back) if self._is_users(f)]
        key = id(module), callers[0].f_code if callers else None
        names = self._below(module)
        known = self._roots.get(key)
        if known is None or known[0]() is not module:
            try:
                path = self._as_known(module, callers)
            except Exception:  # noqa: BLE001 - attributes of users' objects may do anything
                path = class_name(module)
            known = self._roots[key] = weakly(module), path
        self._running.append((names, known[1]))
        return known[1]

    def leave(self) -> None:
        """The module that was entered last has returned."""
        self._running.pop()

    def forget(self) -> None:
        """Release all names."""
        for known in (self._running, self._known, self._roots):
            known.clear()

    def _below(self, root: Any, *, anew: bool = False) -> dict[int, str]:
        known = self._known.get(id(root))
        if known is None or known[0]() is not root:  # an id is reused
            known = self._known[id(root)] = weakly(root), {}
            anew = True
        names = known[1]
        if anew:
            names.clear()  # in place, for those that run
            names.update(_names_below(root))
        return names

    def _as_known(self, module: Any, callers: list[FrameType]) -> str:
        tail = ""
        for frame in callers:
            self.read.add(id(frame))
            # pytest's own names for the intermediate values of an ``assert`` are not the user's.
            names = {n: value for n, value in frame.f_locals.items() if n.isidentifier()}
            me = names.pop("self", None)
            if me is module:  # its own method: check the caller
                continue
            if isinstance(me, self._kind):
                below = self._below(me).get(id(module)) or self._below(me, anew=True).get(
                    id(module)
                )
                if below:
                    tail, module = f".{below}{tail}", me
                    continue
            everything = names, getattr(me, "__dict__", {}), frame.f_globals
            pairs = [pair for known in everything for pair in known.items()]
            for name, value in pairs:
                if value is module:
                    return name + tail
            for name, value in pairs:
                if isinstance(value, self._kind):
                    below = self._below(value).get(id(module))
                    if below:
                        return f"{name}.{below}{tail}"
        return class_name(module) + tail


def _names_below(root: Any) -> dict[int, str]:
    """The path of each module in this one, by its id."""
    try:
        # A module wrapped by torch.compile has the wrapper's name.
        return {
            id(module): ".".join(part for part in name.split(".") if part != "_orig_mod")
            for name, module in root.named_modules()
        }
    except Exception:  # noqa: BLE001 - a user may have overridden it
        return {id(root): ""}


# ---- Mark the user's running line: a tracer opens and closes markers in the profile.
#
# ``with_stack`` is not enough: torch records where a Python function starts, not which line runs.
# A line's marker is open while the line runs, including its callees' markers, so the innermost
# marker around an operator names the line that called it. Another kind of marker is open while an
# ``nn.Module`` runs.

_OWN_TRACER = because("own_tracer", "the test uses sys.settrace itself")
#: Each marker is an event of the trace; beyond this number, a test's lines are not located.
MOST_MARKS = 200_000
#: How much deeper than its caller the tracer is switched on, to have room for switching it off.
_SPARE_DEPTH = 30


class LineTracer:
    """Marks lines and modules of the thread that calls `start`, until `stop`.

    ``own`` are files that count as the user's in any folder. ``gap`` says why lines are missing,
    ``usable`` whether the existing ones are correct.
    """

    #: Whether metrics are taken from the run, so that shapes and memory are recorded.
    measures = False
    _TOO_MANY = Why.TOO_MANY_LINES

    def __init__(self, own: Collection[str] = ()) -> None:
        self.gap: Reason | None = None
        self.usable = True
        #: The number of each line that ran.
        self._lines: dict[tuple[str, int | None], int] = {}
        #: The qualified name of each line's function, by the line's number.
        self._functions: list[str] = []
        #: How often each function began: by its file and name, the line that called it, and the
        #: library's function in between, if there is one.
        self._calls: Counter[tuple[str, str, int, str]] = Counter()
        #: Module path → its marker's name, which ends in its number.
        self._modules: dict[str, str] = {}
        self._users: dict[str, bool] = dict.fromkeys(own, True)
        #: Open markers, from the outermost in: the frame, the marker, whether it is a module's.
        self._open: list[tuple[FrameType, Any, bool]] = []
        self._left = MOST_MARKS
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
        return [None if line is None else f"{file}:{line}" for file, line in self._lines]

    @property
    def unseen(self) -> frozenset[str]:
        """Classes of modules that may have run unmarked."""
        return frozenset()

    @property
    def marks(self) -> Marks:
        """What the numbers of the markers stand for, and which functions ran."""
        calls = tuple(FunctionCalls(*key, n) for key, n in self._calls.items())
        return Marks(tuple(self.lines), tuple(self._modules), tuple(self._functions), calls)

    # ---------------------------------------------------------------- on and off

    def start(self) -> None:
        """Begin, with the current lines of the frames around."""
        self._previous = REAL.gettrace()
        if _debugs(self._previous):
            self.gap, self.usable = (
                because("traced_by_debugger", "a debugger traces the test"),
                False,
            )
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
                because("other_thread", "the test starts and ends its region in different threads"),
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
            if code.co_name in self._call_names and code in self._calls_modules:
                return self._enter_module(frame)
            if code.co_name in self._constructors.names and (
                entered := self._enter_constructed(frame)
            ):
                return entered
            if self._is_users(frame):
                if not (code.co_flags & _GENERATORS or code.co_name.startswith("<")):
                    self._count(frame)
                self._enter(frame)
                return self._local
        except Exception as error:  # noqa: BLE001 - a fault of ours must not reach the test
            self._give_up(because(*Why.TRACER_RAISED, error=f"{type(error).__name__}: {error}"))
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
            self._give_up(because(*Why.TRACER_RAISED, error=f"{type(error).__name__}: {error}"))
        return self._local

    def _left_module(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "return" and self._on and self._left:
            try:
                self._close(self._place(frame))
            except Exception as error:  # noqa: BLE001 - see above
                self._give_up(because(*Why.TRACER_RAISED, error=f"{type(error).__name__}: {error}"))
        return self._module_local

    # ---------------------------------------------------------------- markers

    def _enter(self, frame: FrameType) -> None:
        self._push(frame, f"{LINE}{self._line(frame)}", module=False)

    def _line(self, frame: FrameType) -> int:
        """The number of the line that a frame is at."""
        known = self._lines.setdefault((frame.f_code.co_filename, frame.f_lineno), len(self._lines))
        if known == len(self._functions):
            self._functions.append(qualified(frame.f_code))
        return known

    def _count(self, frame: FrameType) -> None:
        """Count that a function of the user begins, and what has called it."""
        via, caller = "", frame.f_back
        while caller is not None and not self._is_users(caller):
            module = str(caller.f_globals.get("__name__"))
            if not via and not module.startswith(_NO_CALLERS):
                via = f"{module}.{qualified(caller.f_code)}"
            caller = caller.f_back
        line = -1 if caller is None else self._line(caller)
        self._calls[frame.f_code.co_filename, qualified(frame.f_code), line, via] += 1

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
        return None if caller is None else self._line(caller)

    def _push(self, frame: FrameType, name: str, *, module: bool) -> None:
        marker = self._mark(name)
        marker.__enter__()
        self._open.append((frame, marker, module))
        self._left -= 1
        if not self._left:
            self._give_up(because(*(self._TOO_MANY), most=MOST_MARKS))

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


#: A generator's frame begins anew each time that it continues, and is not counted.
_GENERATORS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
#: Modules through which a call passes to get to the function that is meant.
_NO_CALLERS = ("torch.nn.modules.module", "torch.utils._contextlib", "contextlib", "functools")


def qualified(code: CodeType) -> str:
    """A function's qualified name, where Python has it (3.11), without the scopes within it.

    >>> qualified(compile("", "", "exec"))
    '<module>'
    """
    name: str = getattr(code, "co_qualname", code.co_name)
    return name.replace("<locals>.", "").partition(".<")[0]


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
    rooms = (*tracers, ModuleNames, Constructors, RunningModules)
    methods = [method for room in rooms for method in vars(room).values()]
    ours = [one for one in globals().values() if getattr(one, "__module__", "") == __name__]
    functions: list[Any] = [*methods, *ours]
    codes = [f.__code__ for f in functions if hasattr(f, "__code__")]
    while codes:
        code = codes.pop()
        real_torch().skip_code(code)
        codes += [const for const in code.co_consts if isinstance(const, CodeType)]


# ---- Mark the running ``nn.Module``: a tracer opens and closes markers in a measuring profile.
#
# ``with_stack`` is not an option: torch keeps an event for each call of a Python function, so a
# test that compiles, or makes a million calls, exhausts the memory.


class ModuleTracer(LineTracer):
    """Marks modules by their class, in the thread that calls `start`, until `stop`.

    A module runs while it is called, including hooks, or while its ``forward`` is called directly.
    """

    measures = True
    _TOO_MANY = Why.TOO_MANY_MODULES

    def __init__(self) -> None:
        super().__init__()
        self._names = self._inside = RunningModules()
        self._module = real_torch().module
        self._entries = {*self._call_names, "forward"}

    @property
    def unseen(self) -> frozenset[str]:
        """Classes of modules that may have run inside scripted or compiled ones, unmarked."""
        return frozenset(self._inside.unseen)

    def _begin(self, innermost: FrameType) -> None:
        """Modules that are already running do not belong to the measured region."""

    def _called(self, frame: FrameType, event: str, arg: object) -> Any:
        """A function begins: all except modules' calls continue untraced."""
        if not (self._on and self._left):
            return super()._called(frame, event, arg)
        code = frame.f_code
        if code.co_name not in self._entries or not code.co_argcount:
            return None
        try:
            module = frame.f_locals.get(code.co_varnames[0])
            if self._inside.innermost() is not module and issubclass(type(module), self._module):
                name = self._inside.enter(module)
                self._push(frame, f"{MODULE_MARK}{name}", module=True)
                frame.f_trace_lines = False
                return self._module_local
        except Exception as error:  # noqa: BLE001 - a fault of ours must not reach the test
            self._give_up(because(*Why.TRACER_RAISED, error=f"{type(error).__name__}: {error}"))
        return None


# ---- The tensors that an operator took and made, identified by the profiler's storage numbers.
#
# They are in what the profiler keeps in memory, not in the file that it writes, and creating them
# takes as long as that file. So only captures that need them keep them.

#: The number for something that is not a tensor, or is unknown.
_NONE = -1
#: The profiler's name of an allocation or a release.
_MEMORY = "[memory]"


class StorageNumbers:
    """The numbers of the tensors of a capture's operators; decoded on request.

    Views of a tensor have its number, and no later tensor reuses it. See `events.Tensors`.
    ``base_ns`` is the offset from the trace's clock to the profiler's.
    """

    def __init__(self, results: Any, base_ns: int) -> None:
        self._results = results
        self._base_ns = base_ns
        self._known: dict[tuple[int, str], tuple[Any, Any] | None] = {}
        self._taken: dict[tuple[int, str], tuple[Taken, ...]] = {}

    def taken(self, starts: Iterable[int], names: Iterable[str]) -> list[tuple[Taken, ...]]:
        """What each argument is, for operators given by their starts (ns) and names.

        A number for a tensor, numbers for a list of tensors, -1 for anything else; empty for an
        operator that is not found.
        """
        known, found = self._taken, []
        for key in zip(starts, names, strict=True):
            if key not in known:
                one = self._find(*key)
                known[key] = () if one is None else tuple(map(_taken, one[1]))
            found.append(known[key])
        return found

    def made(self, starts: Iterable[int], names: Iterable[str]) -> list[frozenset[int]]:
        """The numbers of the tensors whose memory was allocated within each operator, and kept."""
        found = self._found(starts, names)
        return [frozenset() if one is None else self._within(one[0]) for one in found]

    def objects(self, starts: Iterable[int], names: Iterable[str]) -> list[tuple[Taken, ...]]:
        """The address of each argument's object, -1 if that is not a tensor; as for `taken`."""
        found = self._found(starts, names)
        return [() if one is None else tuple(map(_object, one[1])) for one in found]

    def lifetimes(self) -> Mapping[int, tuple[int, int]]:
        """When each tensor's memory was allocated and released, -1 for not within the trace."""
        return self._lifetimes

    def addresses(self, starts: Iterable[int], names: Iterable[str]) -> list[int]:
        """Where the memory of each operator's first argument begins, -1 if that is no tensor."""
        first = self._first(starts, names)
        return [getattr(one, "storage_data_ptr", None) or _NONE for one in first]

    def listed(self, starts: Iterable[int], names: Iterable[str]) -> list[ListedTensors | None]:
        """The list of tensors that each operator's first argument is, None if it is none."""
        return [_listed(one) for one in self._first(starts, names)]

    def _first(self, starts: Iterable[int], names: Iterable[str]) -> Iterator[Any]:
        for one in self._found(starts, names):
            yield one[1][0] if one is not None and one[1] else None

    def _found(
        self, starts: Iterable[int], names: Iterable[str]
    ) -> Iterator[tuple[Any, Any] | None]:
        for start, name in zip(starts, names, strict=True):
            yield self._find(start, name)

    def _find(self, start: int, name: str) -> tuple[Any, Any] | None:
        """The event of this start and name, and its inputs, each read once: that takes long."""
        key = start, name
        if key not in self._known:
            self._known[key] = None
            for one in self._indexed.get(int(start) + self._base_ns, ()):
                if one.name == name:
                    inputs = getattr(one.typed[1], "inputs", None)
                    if inputs is not None:
                        self._known[key] = one, inputs
                        break
        return self._known[key]

    def _within(self, event: Any) -> frozenset[int]:
        starts, made = self._allocations
        begin, end = event.start_time_ns - self._base_ns, event.end_time_ns - self._base_ns
        some = made[bisect_left(starts, begin) : bisect_right(starts, end)]
        if not some:
            return frozenset()
        thread = event.start_tid
        return frozenset(
            number
            for number, owner, released in some
            if owner == thread and not begin <= released <= end
        )

    @cached
    def _indexed(self) -> dict[int, list[Any]]:
        """The events of the profiler's tree by start, an outer one before those below it.

        What is below an event need not run within it. Torch puts the thread of backward passes
        below what is open in the forward one when the first pass begins, and keeps it there. That
        may be what a region runs on the device. When it ends, torch ends an operator that began
        meanwhile, too. Source: build_tree in torch/csrc/profiler/collection.cpp.
        """
        events = dict[int, list[Any]]()
        todo = list(self._results.experimental_event_tree())
        while todo:
            event = todo.pop()
            # Each attribute of an event costs half a microsecond or more, so no other one is read.
            events.setdefault(event.start_time_ns, []).append(event)
            todo += event.children
        return events

    @cached
    def _lifetimes(self) -> dict[int, tuple[int, int]]:
        starts, made = self._allocations
        known = {one: (at, end) for at, (one, _, end) in zip(starts, made, strict=True)}
        return {number: (_NONE, end) for number, end in self._changes[1].items()} | known

    @cached
    def _allocations(self) -> tuple[list[int], list[tuple[int, int, int]]]:
        """When tensors were allocated, in order; and each one's number, thread, and release."""
        made, ends = self._changes
        return [at for at, _, _ in made], [(n, t, ends.get(n, _NONE)) for _, n, t in made]

    @cached
    def _changes(self) -> tuple[list[tuple[int, int, int]], dict[int, int]]:
        """Allocations in order: when, which number, on which thread; and when numbers ended."""
        made, ends = list[tuple[int, int, int]](), dict[int, int]()
        for start in self._starts:
            for one in self._indexed[start]:
                # Without an id nothing took it. A number has one allocation, and one release.
                if one.name == _MEMORY and (change := one.typed[1]).id is not None:
                    number, at = int(change.allocation_id), start - self._base_ns
                    if change.alloc_size > 0:
                        made.append((at, number, one.start_tid))
                    else:
                        ends[number] = at
        return made, ends

    @cached
    def _starts(self) -> list[int]:
        return sorted(self._indexed)


def _taken(argument: Any) -> Taken:
    if isinstance(argument, list):
        return tuple(_number(one) for one in argument)
    return _number(argument)


def _number(argument: Any) -> int:
    # Not its ``id``: two tensors share it if their Python objects had the same address.
    number = getattr(argument, "allocation_id", None)
    # Tensors wrapped by torch.func have no memory of their own, and share one number.
    return _NONE if number is None or not argument.storage_data_ptr else int(number)


def _object(argument: Any) -> Taken:
    if isinstance(argument, list):
        return tuple(getattr(one, "impl_ptr", _NONE) for one in argument)
    return getattr(argument, "impl_ptr", _NONE)


def _listed(one: Any) -> ListedTensors | None:
    if not isinstance(one, list) or not one:
        return None
    shapes = tuple(tuple(tensor.sizes) for tensor in one)
    return ListedTensors(shapes, max(tensor.dtype.itemsize for tensor in one))
