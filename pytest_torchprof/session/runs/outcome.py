"""The outcome of a run, beyond what it raised."""

from __future__ import annotations

import ast
import inspect
import os
import sys
from pathlib import Path

import pytest

from pytest_torchprof.core.errors import error_line
from pytest_torchprof.core.reasons import Reason, Why, because
from pytest_torchprof.session.runs.deadline import Overdue

_FIXTURE = "torchprof"


def cannot_rerun(error: BaseException, kind: str = "", threads: int | None = None) -> Reason:
    """Why a test is not profiled after a run of this kind raised the error."""
    what = error_line(error)
    if isinstance(error, Overdue):
        return error.reason
    if kind == "profile" and threads is not None and isinstance(error, AssertionError):
        return because(Why.FAILS_WHEN_PROFILED, threads=threads, error=what)
    return because(Why.RERUN_RAISED, error=what)


def hide_own_frames(error: pytest.ExceptionInfo[BaseException]) -> None:
    """Hide our frames in a test's traceback; if no other frames are left, pytest shows all."""
    package = str(Path(__file__).parents[1])
    names = ("hooks.py", "runs/deadline.py", "runs/rerun_hooks.py", "runs/reruns.py")
    ours = {os.path.join(package, *name.split("/")) for name in names}  # noqa: PTH118
    if any(str(entry.path) in ours for entry in error.traceback):
        error.traceback = error.traceback.filter(lambda entry: str(entry.path) not in ours)


def functional_failure(item: pytest.Item) -> Reason | None:
    """Why a test failed although its call raised nothing: unittest, subtests."""
    if collected := getattr(item, "_excinfo", None):
        if isinstance(collected[0].value, pytest.xfail.Exception):
            return because(Why.XFAILED)
        skipped = isinstance(collected[0].value, pytest.skip.Exception)
        return because(Why.SKIPPED if skipped else Why.FAILED)
    return None


def is_strict_xfail(item: pytest.Item) -> bool:
    """Whether pytest will fail the test because it passes."""
    from _pytest.skipping import xfailed_key

    xfailed = item.stash.get(xfailed_key, None)
    return bool(xfailed and xfailed.strict and not item.config.getoption("runxfail", False))


def uses_setprofile(item: pytest.Item, session_hook: object) -> bool:
    """Whether the test uses a profile hook: one is set, or its code names the function."""
    if sys.getprofile() is not session_hook:
        return True
    pending = [getattr(getattr(item, "function", None), "__code__", None)]
    while pending:
        code = pending.pop()
        if "setprofile" in getattr(code, "co_names", ()):
            return True
        pending += [const for const in getattr(code, "co_consts", ()) if hasattr(const, "co_names")]
    return False


def may_measure_part(item: pytest.Item) -> bool:
    """Whether the test function itself enters, calls or hands on its argument ``torchprof``.

    Reading an attribute of it measures nothing, and a named region belongs to the whole test.
    """
    function = getattr(item, "function", None)
    function = inspect.unwrap(function) if function is not None else None
    code = getattr(function, "__code__", None)
    if (
        code is None
        or _FIXTURE not in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    ):
        return False
    try:
        source = inspect.getsource(code)
        tree = ast.parse(f"if True:\n{source}" if source[0].isspace() else source)
    except (OSError, SyntaxError):  # generated, or changed since
        return False
    nodes = list(ast.walk(tree))
    read = {id(node.value) for node in nodes if isinstance(node, ast.Attribute | ast.Subscript)}
    read |= {id(node.func) for node in nodes if isinstance(node, ast.Call) and _names(node)}
    named = (node for node in nodes if isinstance(node, ast.Name) and node.id == _FIXTURE)
    return any(id(name) not in read for name in named)


def _names(call: ast.Call) -> bool:
    """Whether the first argument is a text: ``torchprof("decode")``."""
    first = call.args[0] if call.args else None
    return isinstance(first, ast.JoinedStr) or (
        isinstance(first, ast.Constant) and isinstance(first.value, str)
    )
