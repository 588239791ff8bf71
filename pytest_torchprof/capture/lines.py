"""Says which of the user's lines runs: markers in the profile, opened and closed by a tracer.

``with_stack`` would not do: torch notes where a Python function begins, not which line of it runs.
A marker is open while a line is, those of callees within it, so the innermost marker around an
operator names the line that called it; another kind of marker is open while an ``nn.Module`` runs.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable, Collection, Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from pytest_torchprof.capture.machine import real_torch
from pytest_torchprof.capture.real import REAL
from pytest_torchprof.rules.located import LINE, MODULE

#: Each is an event of the trace; a test that runs more of its lines is located up to there.
_MOST_MARKS = 200_000
#: How much deeper than its caller we switch the tracer on, to have room when we switch it off.
_SPARE_DEPTH = 30
_PACKAGE = str(Path(__file__).parents[1])


class LineTracer:
    """Marks lines and modules of the thread that calls `start`, until `stop`.

    ``own`` are files that are the user's wherever they lie. ``gap`` says why lines are missing.
    """

    def __init__(self, own: Collection[str] = ()) -> None:
        self.gap: str | None = None
        #: (file, line) → its marker's name, which ends in its number in order; and so for modules.
        self._lines: dict[tuple[str, int | None], str] = {}
        self._modules: dict[str, str] = {}
        self._users: dict[str, bool] = dict.fromkeys(own, True)
        #: Open markers, from the outermost in: the frame, the marker, whether it is a module's.
        self._open: list[tuple[FrameType, Any, bool]] = []
        self._left = _MOST_MARKS
        self._names = ModuleNames(self._is_users)
        self._on = False
        self._thread = 0
        self._depth = 0
        self._previous: Any = None
        #: Frames that ran before us, and their own tracers.
        self._older: list[tuple[FrameType, Any]] = []
        t = real_torch()
        self._mark, self._calls_modules = t.mark, t.calls_modules
        self._call_names = {code.co_name for code in t.calls_modules}  # a code's hash is slow
        self._ours: Any = self._called
        self._local: Any = self._stepped
        self._module_local: Any = self._left_module

    @property
    def lines(self) -> list[str | None]:
        """``file:line`` of each line's marker, by its number."""
        return [None if line is None else f"{file}:{line}" for file, line in self._lines]

    @property
    def modules(self) -> list[str]:
        """The path of each module's marker, by its number."""
        return list(self._modules)

    # ---------------------------------------------------------------- on and off

    def start(self) -> None:
        """Begin, with the lines that the frames around are at."""
        self._previous = sys.gettrace()
        if _debugs(self._previous):
            self.gap = "a debugger traces the test"
            return
        _hide_from_dynamo()
        self._thread = REAL.current_thread()
        older = [f for f in _frames_of_test(sys._getframe(1)) if self._is_users(f)]
        for frame in reversed(older):
            self._older.append((frame, frame.f_trace))
            self._enter(frame)
            frame.f_trace = self._local
        _deeper(_SPARE_DEPTH, self._switch_on)

    def stop(self) -> None:
        """End, and give the thread's tracer back; at any time, again too."""
        if not self._on:
            return
        if REAL.current_thread() != self._thread:
            self._give_up("the test measures in more than one thread")
            return
        self._on = False
        # A tracer that counts calls and returns, as coverage's does, must find none missing: it is
        # taken away and given back at one depth.
        _deeper(self._depth - _depth() - 2, self._switch_off)
        for frame, tracer in self._older:
            if frame.f_trace is self._local:
                frame.f_trace = tracer
        self._older.clear()
        self._close(0)

    def _switch_on(self) -> None:
        self._depth = _depth()
        self._on = True
        sys.settrace(self._ours)

    def _switch_off(self) -> None:
        if sys.gettrace() is self._ours:
            sys.settrace(self._previous)
        elif self.gap is None:
            self.gap = "the test uses sys.settrace itself"

    def _give_up(self, why: str) -> None:
        """From here on nothing is known; the previous tracer comes back at the end."""
        self.gap = self.gap or why
        self._left = 0
        self._close(0)

    # ---------------------------------------------------------------- what Python calls

    def _called(self, frame: FrameType, _: str, __: object) -> Any:
        """A function begins, or a generator goes on."""
        if not (self._on and self._left):
            return None
        try:
            code = frame.f_code
            if code.co_name in self._call_names and code in self._calls_modules:
                return self._enter_module(frame)
            if self._is_users(frame):
                self._enter(frame)
                return self._local
        except Exception as error:  # noqa: BLE001 - a fault of ours must not reach the test
            self._give_up(f"{type(error).__name__}: {error}")
        return None

    def _stepped(self, frame: FrameType, event: str, _: object) -> Any:
        """A line of a user's function begins, or the function is left."""
        if event == "exception" or not (self._on and self._left):
            return self._local
        try:
            self._close(self._place(frame))
            if event == "line":
                self._enter(frame)
        except Exception as error:  # noqa: BLE001 - see above
            self._give_up(f"{type(error).__name__}: {error}")
        return self._local

    def _left_module(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "return" and self._on and self._left:
            self._close(self._place(frame))
        return self._module_local

    # ---------------------------------------------------------------- markers

    def _enter(self, frame: FrameType) -> None:
        key = frame.f_code.co_filename, frame.f_lineno
        name = self._lines.get(key)
        if name is None:
            name = self._lines[key] = f"{LINE}{len(self._lines)}"
        self._push(frame, name, module=False)

    def _enter_module(self, frame: FrameType) -> Any:
        path = self._names.enter(frame)
        name = self._modules.get(path)
        if name is None:
            name = self._modules[path] = f"{MODULE}{len(self._modules)}"
        self._push(frame, name, module=True)
        frame.f_trace_lines = False
        return self._module_local

    def _push(self, frame: FrameType, name: str, *, module: bool) -> None:
        marker = self._mark(name)
        marker.__enter__()
        self._open.append((frame, marker, module))
        self._left -= 1
        if not self._left:
            self._give_up(f"it runs more than {_MOST_MARKS:,} of your lines")

    def _place(self, frame: FrameType) -> int:
        """The place of the frame's marker among the open ones, or behind all."""
        for place in range(len(self._open) - 1, -1, -1):
            if self._open[place][0] is frame:
                return place
        return len(self._open)

    def _close(self, place: int) -> None:
        """Close this marker, and whatever is left open within it."""
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


# -------------------------------------------------------------------- modules


class ModuleNames:
    """Paths of the modules that run, such as ``model.layers.3.attn``.

    The outermost has the name under which a user's frame knows it, else that of its class.
    """

    def __init__(self, is_users: Callable[[FrameType], bool]) -> None:
        self._is_users = is_users
        self._kind: type = real_torch().module
        #: Those that run: the root, and the root's path.
        self._running: list[tuple[Any, str]] = []
        #: By id: the module, which is kept so that the id is not given again, and names below it.
        self._known: dict[int, tuple[Any, dict[int, str]]] = {}
        self._roots: dict[tuple[int, CodeType | None], str] = {}

    def enter(self, frame: FrameType) -> str:
        """The path of the module of which this is the call."""
        module = frame.f_locals["self"]
        if self._running:
            root, path = self._running[-1]
            below = self._below(root).get(id(module))
            if below is not None:
                self._running.append((root, path))
                return f"{path}.{below}" if below else path
        callers = [f for f in _frames_of_test(frame.f_back) if self._is_users(f)]
        key = id(module), callers[0].f_code if callers else None
        if key not in self._roots:
            self._below(module)
            try:
                self._roots[key] = self._as_known(module, callers)
            except Exception:  # noqa: BLE001 - attributes of users' objects may do anything
                self._roots[key] = type(module).__name__
        self._running.append((module, self._roots[key]))
        return self._roots[key]

    def leave(self) -> None:
        """The last one that was entered has been left."""
        self._running.pop()

    def _below(self, root: Any, *, anew: bool = False) -> dict[int, str]:
        if anew or id(root) not in self._known:
            try:
                # What torch.compile wraps is known by the wrapper's name.
                names = {
                    id(module): ".".join(p for p in name.split(".") if p != "_orig_mod")
                    for name, module in root.named_modules()
                }
            except Exception:  # noqa: BLE001 - a user may have overridden it
                names = {id(root): ""}
            self._known[id(root)] = root, names
        return self._known[id(root)][1]

    def _as_known(self, module: Any, callers: list[FrameType]) -> str:
        tail = ""
        for frame in callers:
            names = dict(frame.f_locals)
            me = names.pop("self", None)
            if me is module:  # a method of its own: look who called it
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
        return type(module).__name__ + tail


# -------------------------------------------------------------------- frames and files


def is_users(file: str) -> bool:
    """Whether code of this file is the user's: not a library's, not ours, not generated."""
    if file.startswith("<") or not file:
        return False
    folders = file.replace("\\", "/").split("/")
    if "site-packages" in folders or "dist-packages" in folders:
        return False
    if any(folder.startswith("torchinductor_") for folder in folders):
        return False
    return not file.startswith(foreign())


@cache
def foreign() -> tuple[str, ...]:
    """Folders of which nothing is the user's, wherever they are installed."""
    paths = ("stdlib", "platstdlib", "purelib", "platlib")
    folders: set[str | None] = {sysconfig.get_path(name) for name in paths}
    folders |= {_PACKAGE, os.environ.get("TORCHINDUCTOR_CACHE_DIR")}
    folders |= {_folder_of(name) for name in ("torch", *_FRAMEWORK)}
    return tuple(os.path.join(folder, "") for folder in folders if folder)  # noqa: PTH118 - a prefix


_FRAMEWORK = ("pytest", "_pytest", "pluggy")


def _folder_of(package: str) -> str | None:
    file = getattr(sys.modules.get(package), "__file__", None)
    return os.path.dirname(file) if file else None  # noqa: PTH120 - a prefix of code's file names


@cache
def _framework() -> tuple[str, ...]:
    folders = [folder for name in _FRAMEWORK if (folder := _folder_of(name))]
    return tuple(os.path.join(folder, "") for folder in folders)  # noqa: PTH118 - a prefix


def _frames_of_test(frame: FrameType | None) -> Iterator[FrameType]:
    """From a frame outwards to where pytest calls the test."""
    while frame is not None and not frame.f_code.co_filename.startswith(_framework()):
        yield frame
        frame = frame.f_back


def _debugs(tracer: Any) -> bool:
    """Whether a debugger looks on: pdb and its kind, or pydevd's."""
    if tracer is None:
        return False
    owner = type(getattr(tracer, "__self__", tracer))
    return any(kind.__name__ == "Bdb" for kind in owner.__mro__) or "pydevd" in sys.modules


def _depth() -> int:
    """How many frames the caller has below it."""
    depth, frame = -1, sys._getframe()
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
    """Dynamo compiles what runs under compiled code, and our functions do."""
    methods = [*vars(LineTracer).values(), *vars(ModuleNames).values()]
    functions = [*methods, is_users, _frames_of_test, _debugs, _depth, _deeper]
    codes = [f.__code__ for f in functions if hasattr(f, "__code__")]
    while codes:
        code = codes.pop()
        real_torch().skip_code(code)
        codes += [const for const in code.co_consts if isinstance(const, CodeType)]
