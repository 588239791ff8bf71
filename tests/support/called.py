"""A pytest plugin that notes what is called while tests run, and where a test could replace it.

Loaded by name into sessions with us and without; `names` are the difference. What is called below a
frame of ``pytest_torchprof`` is called by us.

As a program it runs sessions one after the other and writes the names found after each.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import pytest

OURS = "pytest_torchprof"
#: Of others than us, within a call of ours.
NOT_OURS = ("/_pytest/", "/pluggy/", "/test_it.py")
#: The harness, which is not for tests to replace, nor is what all imports need.
HARNESS = (OURS, "pytest", "_pytest", "pluggy", "called", "test_", "conftest", "_distutils_hack")

#: What we called in sessions with us, and what was called in sessions without.
_ours: set[CodeType | BuiltinFunctionType] = set()
_needed: set[CodeType | BuiltinFunctionType] = set()
#: Modules whose code was called by us: what they call is looked up in them.
_modules: set[str] = set()
_within: list[bool] = []


def names_after(pytester: pytest.Pytester, *sessions: tuple[str, ...]) -> list[list[str]]:
    """`names` after each session with these arguments, which all pass.

    They have a process of their own: in this one, other tests have loaded more of our modules, and
    have had torch replace functions that pytest needs.
    """
    (pytester.path / "sessions.json").write_text(json.dumps(sessions), "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        here = str(Path(__file__).parents[1])
        patch.setenv("PYTHONPATH", os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]))
        ran = pytester.run(sys.executable, "-msupport.called", timeout=600)
    assert ran.ret == 0, ran.outlines
    found: list[list[str]] = json.loads((pytester.path / "names.json").read_text("utf-8"))
    return found


def names() -> list[str]:
    """What we call and pytest does not: "module:name" or "module:Class.name" of each place."""
    used = dict(_used())
    homes = {name.partition(":")[0] for name in used} | _modules
    places = _places({name for name in homes if not name.startswith(HARNESS)})
    found = {place for called in _ours - _needed for place in places.get(called, ())}
    # Of a class there is no call to be seen.
    return sorted(found | {name for name, value in used.items() if isinstance(value, type)})


def _note(frame: FrameType, event: str, called: Any) -> None:
    if event == "call":
        file = frame.f_code.co_filename
        ours = f"/{OURS}/" in file
        within = ours or (
            bool(_within) and _within[-1] and not any(part in file for part in NOT_OURS)
        )
        _within.append(within)
        if within and not ours:
            _ours.add(frame.f_code)
            if not file.startswith("<"):
                _modules.add(str(frame.f_globals.get("__name__")))
    elif event == "return":
        if _within:
            _within.pop()
    elif event == "c_call" and isinstance(called, BuiltinFunctionType) and _within and _within[-1]:
        _ours.add(called)


def _note_needed(frame: FrameType, event: str, called: Any) -> None:
    if event == "call":
        _needed.add(frame.f_code)
    elif event == "c_call" and isinstance(called, BuiltinFunctionType):
        _needed.add(called)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    session: Any = item.config.pluginmanager.get_plugin("torchprof-session")
    note = _note_needed
    if session is not None:
        session.runner._session_hook = note = _note  # of the session, not of the test
    before = sys.getprofile()
    _within.clear()
    sys.setprofile(note)
    try:
        return (yield)
    finally:
        sys.setprofile(before)


def _used() -> Iterator[tuple[str, Any]]:
    """What our own code may look up in other modules."""
    for name, module in list(sys.modules.items()):
        if not name.startswith(OURS) or not isinstance(module, ModuleType):
            continue
        rooms = {n: m for n, m in vars(module).items() if isinstance(m, ModuleType)}
        names = {name for code in _codes_in(module) for name in code.co_names}
        for room in rooms.values():
            for used in names & vars(room).keys():
                theirs = not room.__name__.startswith((*HARNESS, "builtins"))
                if theirs and callable(vars(room)[used]):
                    yield f"{room.__name__}:{used}", vars(room)[used]


def _codes_in(module: ModuleType) -> Iterator[CodeType]:
    pending = [_code_of(value) for value in vars(module).values()]
    for value in vars(module).values():
        if isinstance(value, type) and value.__module__ == module.__name__:
            pending += [_code_of(method) for method in vars(value).values()]
    while pending:
        if (code := pending.pop()) is not None:
            yield code
            pending += [const for const in code.co_consts if isinstance(const, CodeType)]


def _places(modules: set[str]) -> dict[CodeType | BuiltinFunctionType, list[str]]:
    """Where in these modules code or a builtin function can be replaced."""
    found: dict[CodeType | BuiltinFunctionType, list[str]] = {}
    for module_name in modules & sys.modules.keys():
        for name, value in list(vars(sys.modules[module_name]).items()):
            place = f"{module_name}:{name}"
            if type(value) is BuiltinFunctionType:  # to ask `isinstance` is to ask the value
                found.setdefault(value, []).append(place)
            elif type(value) is FunctionType:
                found.setdefault(value.__code__, []).append(place)
            elif type(value) is type and value.__module__ == module_name:
                for inner, method in list(vars(value).items()):
                    if (code := _code_of(method)) is not None:
                        found.setdefault(code, []).append(f"{place}.{inner}")
    return found


def _code_of(method: Any) -> CodeType | None:
    if isinstance(method, classmethod | staticmethod):
        method = method.__func__
    if isinstance(method, property):
        method = method.fget
    while hasattr(method, "__wrapped__"):
        method = method.__wrapped__
    return method.__code__ if isinstance(method, FunctionType) else None


if __name__ == "__main__":
    from support import called  # as pytest loads it, which is another module than this

    after = []
    for arguments in json.loads(Path("sessions.json").read_text("utf-8")):
        if status := pytest.main(["-psupport.called", *arguments]):
            sys.exit(status)
        after.append(called.names())
    Path("names.json").write_text(json.dumps(after), "utf-8")
