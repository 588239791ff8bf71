"""Who may write what: the state of a process is listed here, and fields have one writer."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import pytest_torchprof

PACKAGE = Path(pytest_torchprof.__file__).parent

#: What is written after import, at the level of a module or a class, and why there is one only.
PROCESS_WIDE = {
    "capture/compiling.py:_LOG": "dynamo counts compilations by process",
    "capture/compiling.py:CUDA_GRAPHS": "all capture through one class of torch's",
    "capture/threads.py:_PROFILERS": "torch's profiler leaves threads in the process",
    "capture/dynamo.py:_GRAPHS": "inductor keeps compiled graphs by process",
    "capture/children.py:HERE": "a process has one capture from its start to its end",
    "capture/startup/arming.py:_Armed.handed": "a process is told of its job once, by its parent",
    "capture/sessions.py:OTHERS": "torch has one profiler, whose functions are wrapped",
    "capture/profiler.py:_DEVICE_RECORDS": "the first profiler session of a process is special",
    "capture/processes.py:_FORKS_WATCHED": "Python takes no hook of forks back",
    "capture/processes.py:_STARTS": "code objects are constants of the process",
    "capture/processes.py:_WATCHING": "Python calls hooks of forks by process",
    "capture/profiler.py:Capture.current": "torch has one profiler",
    "capture/patches.py:REAL": "modules of Python that tests patch in place are there once",
    "capture/clock.py:_OTHERS": "threads belong to the process",
    "capture/threads.py:PROCESS_TASKS": "threads belong to the process",
    "trace/names.py:_ALL": "rules have expressions as constants, made at import",
    "trace/names.py:_KNOWN": "a cache, by name",
}

#: Objects of pytest and of Python: what we change of them is undone, or is how they are used.
THEIRS = {
    "OwnFailure",
    "config",
    "crash",
    "error",
    "factory",
    "item",
    "plugin",
    "loader",
    "untyped",
    "session",
    "sys",
}
THEIRS |= {"terminal", "theirs"}

_MUTATORS = {"append", "extend", "add", "update", "clear", "pop", "popitem", "remove", "insert"}
_MUTATORS |= {"discard", "setdefault"}


def written(tree: ast.AST) -> Iterator[ast.expr]:
    """What assignments, and methods of lists, sets and dicts, write to."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.Delete):
            pending: list[ast.expr] = list(node.targets)
        elif isinstance(node, ast.AnnAssign | ast.AugAssign):
            pending = [node.target]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            pending = [node.func.value] if node.func.attr in _MUTATORS else []
        else:
            continue
        while pending:
            one = pending.pop()
            if isinstance(one, ast.Tuple | ast.List):
                pending += one.elts
            else:
                yield one.value if isinstance(one, ast.Subscript) else one


def process_wide(source: str) -> set[str]:
    """Names of a module that functions write to, and attributes of its classes."""
    tree = ast.parse(source)
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    names = {one.id for node in tree.body for one in _assigned(node)}
    found = {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}
    for function in functions:
        own = {arg.arg for arg in ast.walk(function.args) if isinstance(arg, ast.arg)}
        own |= {one.id for node in ast.walk(function) for one in _assigned(node)}
        for one in written(function):
            if isinstance(one, ast.Name) and one.id in names - own:
                found.add(one.id)
            elif isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name):
                owner = one.value.id
                if owner == "cls":
                    owner = next(n for n, c in classes.items() if function in ast.walk(c))
                found |= {f"{owner}.{one.attr}"} if owner in classes else set()
    for node in tree.body:
        value = getattr(node, "value", None)
        kind = getattr(value.func, "id", "") if isinstance(value, ast.Call) else ""
        if (kind in classes and _changes(classes[kind])) or kind == "SimpleNamespace":
            found |= {one.id for one in _assigned(node)}
    return found


def _assigned(node: ast.AST) -> list[ast.Name]:
    targets = getattr(node, "targets", None) or [getattr(node, "target", None)]
    is_set = isinstance(node, ast.Assign | ast.AnnAssign)
    return [one for one in targets if is_set and isinstance(one, ast.Name)]


def _changes(kind: ast.ClassDef) -> bool:
    """Whether methods write fields."""
    methods = [node for node in kind.body if isinstance(node, ast.FunctionDef)]
    return any(
        ast.unparse(one).startswith("self.")
        for method in methods
        if method.name not in {"__init__", "__new__"}
        for one in written(method)
    )


#: Plain data of a test that is being measured: whoever sees something notes it there.
NOTED = {"asked", "asked_of", "captures", "recent", "faults", "runs", "started_ns"}


def foreign(source: str) -> set[str]:
    """Fields that are written from outside of their object."""
    found = set()
    for one in written(ast.parse(source)):
        root: ast.expr = one
        while isinstance(root, ast.Attribute | ast.Subscript):
            root = root.value
        text = ast.unparse(one)
        own = isinstance(one, ast.Attribute) and text.count(".") == 1 and text.startswith("self.")
        theirs = text.startswith(("self.config.", "self._item."))
        data = not NOTED.isdisjoint(re.split(r"\W+", text))
        if isinstance(one, ast.Attribute) and not own and not theirs and not data:
            found |= {text} if getattr(root, "id", "") not in THEIRS else set()
    return found


def modules(folder: str) -> list[Path]:
    return sorted((PACKAGE / folder).rglob("*.py"))


@pytest.mark.thorough
def test_state_of_the_process_is_listed_with_a_reason() -> None:
    found = {
        f"{path.relative_to(PACKAGE).as_posix()}:{name}"
        for path in modules("")
        for name in process_wide(path.read_text("utf-8"))
    }
    assert set(PROCESS_WIDE) == found


@pytest.mark.parametrize(
    "source",
    [
        "A = []\ndef f(): A.append(1)",
        "A = {}\ndef f(): A['x'] = 1",
        "A = 1\ndef f():\n    global A\n    A = 2",
        "class B:\n    def f(self): self.x = 1\nA = B()",
    ],
)
def test_state_of_a_module_is_found(source: str) -> None:
    assert {"A"} == process_wide(source)


def test_state_of_a_class_is_found_and_names_of_a_function_are_not() -> None:
    assert {"B.x"} == process_wide(
        "class B:\n    x = 0\n    @classmethod\n    def f(cls): cls.x = 1"
    )
    assert not process_wide("A = []\ndef f():\n    A = []\n    A.append(1)")
    assert not process_wide("A = []\nA.append(1)\ndef f(A): A.append(1)")


def test_fields_of_a_session_are_written_by_their_owners() -> None:
    found = {
        path.relative_to(PACKAGE).as_posix(): names
        for path in modules("session")
        if (names := foreign(path.read_text("utf-8")))
    }
    assert not found


@pytest.mark.parametrize("line", ["a.x = 1", "self.a.x += 1", "a.x.append(1)", "self.a.x['k'] = 1"])
def test_a_field_of_another_object_is_found(line: str) -> None:
    assert foreign(f"def f(self, a): {line}")


def test_own_fields_and_those_of_pytest_are_free() -> None:
    assert not foreign("def f(self, item): self.x = 1; self.y.append(1); item.stash[1] = 2")
