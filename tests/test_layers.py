"""Imports point down only, and heavy libraries stay in the rooms that need them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = "pytest_torchprof"
ROOMS = [  # by level, from L0 up; a room is a module or a package of this name
    {
        "",
        "units",
        "errors",
        "files",
        "late",
        "plain",
        "watchdog",
        "bell",
        "hookspecs",
    },  # "" is the package itself
    {
        "events",
        "arguments",
        "kept",
        "nesting",
        "flops",
        "compiled_graphs",
        "masks",
        "redispatch",
        "devices",
        "stats",
        "settings",
        "samples",
    },
    {"metrics", "rules", "analysis", "compare", "vacuous", "paired", "timing"},
    {"render", "baseline", "trace"},
    {
        "options",
        "markers",
        "rulebook",
        "session",
        "judging",
        "findings",
        "profiles",
        "recorder",
        "rounds",
        "accepting",
        "runs",
        "reruns",
        "running",
        "bystanders",
        "deadline",
        "silence",
        "fixture",
        "capture",
        "ab",
        "api",
    },
    {"plugin", "cli", "commands", "__main__"},
]
ACROSS = {  # what a room may import on its own level
    "units": {"errors", "late"},
    "arguments": {"nesting"},
    "events": {"arguments", "compiled_graphs", "flops", "kept", "nesting", "redispatch"},
    "compiled_graphs": {"flops"},
    "masks": {"flops"},
    "redispatch": {"flops", "nesting"},
    "metrics": {"analysis", "rules"},
    "rules": {"analysis"},
    "compare": {"vacuous", "metrics", "analysis"},
    "vacuous": {"metrics"},
    "options": {"rulebook"},
    "markers": {"options", "rulebook"},
    "rounds": {"capture"},
    "timing": {"metrics"},
    "recorder": {"capture", "rounds"},
    "runs": {"capture", "recorder", "rounds"},
    "accepting": {"options"},
    "fixture": {"accepting", "capture", "recorder", "runs", "reruns"},
    "reruns": {"bystanders", "capture", "deadline", "recorder", "runs", "silence"},
    "deadline": {"capture"},
    "silence": {"capture", "deadline", "recorder"},
    "findings": {"recorder"},
    "profiles": {"findings", "recorder"},
    "judging": {"findings", "profiles", "recorder"},
    "session": {
        "accepting",
        "capture",
        "findings",
        "fixture",
        "judging",
        "markers",
        "recorder",
        "reruns",
        "rulebook",
        "running",
        "runs",
    },
    "ab": {
        "capture",
        "markers",
        "options",
        "recorder",
        "reruns",
        "rulebook",
        "running",
        "runs",
        "session",
        "silence",
    },
    "running": {"reruns"},
    "cli": {"commands"},
    "__main__": {"cli"},
}
ONLY_IN = {  # library → the modules that may import it
    "pytest": {
        "plugin",
        "options",
        "rulebook",
        "session",
        "reruns",
        "running",
        "silence",
        "fixture",
        "ab",
    },
    "torch": {"capture"},
    "tabulate": {"render"},
    "tqdm": {"commands"},
    "expecttest": {"baseline.inline"},
}
LOADED_WHEN_OFF = {
    "plugin",
    "options",
    "markers",
    "settings",
    "units",
    "errors",
    "metrics",
    "hookspecs",
}

LEVEL = {room: level for level, rooms in enumerate(ROOMS) for room in rooms}


def imports(node: ast.AST, *, lazy: bool = False) -> Iterator[tuple[str, bool]]:
    """Every imported name below the node, and whether only a call imports it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from ((alias.name, lazy) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert not child.level, f"line {child.lineno}: a relative import hides its room"
            yield from ((f"{child.module}.{alias.name}", lazy) for alias in child.names)
        elif isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            yield from imports(ast.Module(child.orelse, []), lazy=lazy)
        else:
            function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from imports(child, lazy=lazy or function)


def complaints(module: str, source: str) -> list[str]:
    """What a module, named from inside the package, imports and should not."""
    room = module.partition(".")[0]
    if room not in LEVEL:
        return [f"{module}: a room that no level has; put it on a level in {Path(__file__).name}"]
    at = f"{module} (L{LEVEL[room]}) imports"
    found = []
    for name, lazy in imports(ast.parse(source)):
        library, _, inner = name.lstrip("_").partition(".")  # _pytest is pytest
        if library == PACKAGE:
            other = inner.partition(".")[0]
            other = other if other in LEVEL else ""  # a name of the package itself
            if LEVEL[other] >= LEVEL[room] and other not in {room, *ACROSS.get(room, ())}:
                found.append(f"{at} {other} (L{LEVEL[other]}), which is not below")
        homes = ONLY_IN.get(library, {""})
        if not any(home in {"", module, room} for home in homes):
            found.append(f"{at} {library}, which only {' '.join(sorted(homes))} may")
        elif library == "torch" and not lazy:
            found.append(f"{at} torch outside functions")
    return found


def sources() -> dict[str, str]:
    """Every module, named from inside the package, and its text."""
    root = Path(__file__).parents[1] / PACKAGE
    names = {path: path.relative_to(root).with_suffix("").parts for path in root.rglob("*.py")}
    return {
        ".".join(part for part in parts if part != "__init__"): path.read_text("utf-8")
        for path, parts in sorted(names.items())
    }


def loaded(module: str, modules: dict[str, str]) -> set[str]:
    """Names that importing the module imports, through the package's other modules too."""
    seen, todo = set(), [f"{PACKAGE}.{module}"]
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        if name.startswith(f"{PACKAGE}."):
            todo.append(name.rpartition(".")[0])
            source = modules.get(name.removeprefix(f"{PACKAGE}."), "")
            todo += [other for other, lazy in imports(ast.parse(source)) if not lazy]
    return seen


def test_imports_point_down() -> None:
    modules = sources()
    assert {"units", "errors", "cli"} <= modules.keys()
    found = [words for module in modules.items() for words in complaints(*module)]
    assert found == [], "\n".join(found)


@pytest.mark.parametrize("module", sorted(LOADED_WHEN_OFF))
def test_what_loads_when_the_plugin_is_off_loads_no_numpy(module: str) -> None:
    libraries = {name.partition(".")[0] for name in loaded(module, sources())}
    assert set() == libraries & {"numpy", "torch", "tabulate", "expecttest"}


@pytest.mark.parametrize(
    ("module", "source", "expected"),
    [
        ("trace.read", "from pytest_torchprof.events import Trace", 0),
        ("trace.read", "from pytest_torchprof import events", 0),
        ("trace.read", "from pytest_torchprof.trace import write", 0),
        ("trace.read", "from pytest_torchprof.render import table", 1),
        ("events", "def f():\n    import pytest_torchprof.trace.read", 1),
        ("cli", "from pytest_torchprof import __version__", 0),
        ("compare", "from pytest_torchprof import metrics, rules", 1),
        ("runs", "from pytest_torchprof.session import run", 1),
        ("session", "from pytest_torchprof.runs import run", 0),
        ("capture", "import torch", 1),
        ("capture", "def f():\n    import torch.profiler", 0),
        ("capture", "class C:\n    import torch", 1),
        ("runs", "def f():\n    import torch", 1),
        ("runs", "if TYPE_CHECKING:\n    import torch", 0),
        ("runs", "if typing.TYPE_CHECKING:\n    pass\nelse:\n    import torch", 1),
        ("reruns", "from _pytest.runner import runtestprotocol", 0),
        ("baseline.store", "import expecttest", 1),
        ("baseline.inline", "import expecttest", 0),
        ("render.table", "import tabulate", 0),
        ("analysis.ops", "import numpy as np", 0),
        ("ghost", "", 1),
    ],
)
def test_the_layers_are_told_apart(module: str, source: str, expected: int) -> None:
    assert expected == len(complaints(module, source))


def test_a_library_is_found_behind_other_modules() -> None:
    modules = {
        "plugin": "from pytest_torchprof import options\ndef f():\n    import lazy",
        "options": "from pytest_torchprof.rules.base import Rule",
        "rules": "import first",
        "rules.base": "import second.part",
    }
    libraries = loaded("plugin", modules) & {"lazy", "first", "second.part"}
    assert {"first", "second.part"} == libraries
