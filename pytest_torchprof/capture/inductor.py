"""Collect the graphs with matrix products that inductor has compiled in this process.

Torch keeps the text of each graph with the compiled code, even if that came from a disk cache. The
objects are found through the garbage collector, after something was compiled: nothing of torch's is
replaced, and if inductor is not imported there is nothing to search.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pytest_torchprof.capture.unpatched import REAL
from pytest_torchprof.trace.facts import Facts, Graph
from pytest_torchprof.work.compiled_graphs import loops_of_products, read_graph

if TYPE_CHECKING:
    from pytest_torchprof.capture.undo import Undo

_objects = gc.get_objects
#: Longer texts would take more than a second to read.
_LONGEST = 20_000_000
#: Counters that dynamo increases whenever something is compiled, or loaded from a cache.
_COUNTERS = ("inductor", "aot_autograd", "stats")
#: Modules with the class of a package, by version.
_PACKAGE_ROOMS = ("torch.export.pt2_archive._package", "torch._inductor.package.package")


class _Graphs:
    """Everything found so far; one per process."""

    def __init__(self) -> None:
        self.known: dict[str, Graph] = {}
        #: By the key of the code: its loops of products, if there is no graph of it.
        self.lost: dict[str, list[str]] = {}
        self._seen: set[str] = set()
        self._modules = 0
        self._counted: Any = None

    def look(self) -> None:
        """Add what is new."""
        codecache = sys.modules.get("torch._inductor.codecache")
        room = sys.modules.get("torch._inductor.output_code")
        modules = getattr(getattr(codecache, "PyCodeCache", None), "modules", [])
        kind = getattr(room, "CompiledFxGraph", None)
        counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
        counted = len(modules), *(dict(counters.get(name, {})) for name in _COUNTERS)
        if kind is None or counted == self._counted:
            return
        self._counted = counted
        new = modules[self._modules :] if len(modules) > self._modules else modules[:]
        self._modules = len(modules)
        for found in _objects():
            if type(found) is kind:
                self._add(vars(found))
        for module in new:
            if (key := str(getattr(module, "key", None))) not in self._seen:
                self._add_lost(key, module)

    def _add(self, graph: Mapping[str, Any]) -> None:
        key, name = graph.get("cache_key"), graph.get("_fx_graph_cache_key")
        text, source = graph.get("inductor_post_grad_graph_str"), graph.get("source_code")
        if not (isinstance(name, str) and isinstance(text, str) and isinstance(source, str)):
            return
        self._seen.add(str(key))
        self.lost.pop(str(key), None)
        if name not in self.known and len(text) <= _LONGEST:
            self.known[name] = read_graph(text, source)

    def _add_lost(self, key: str, module: Any) -> None:
        with suppress(OSError, UnicodeError), REAL.open(module.__file__, encoding="utf-8") as file:
            if loops := loops_of_products(file.read()):
                self.lost[key] = loops


_GRAPHS = _Graphs()


def look_for_graphs() -> None:
    """Find what was compiled since the last call, before objects are hidden from collections."""
    _GRAPHS.look()


def graph_facts() -> Facts:
    """The facts on compiled graphs for a trace; none if none was compiled."""
    _GRAPHS.look()
    if not (_GRAPHS.known or _GRAPHS.lost):
        return Facts()
    some = {
        name: graph for name, graph in _GRAPHS.known.items() if _GRAPHS.lost or not graph.is_plain
    }
    return Facts(
        graphs=some,
        lost_loops=tuple(sorted(set().union(*_GRAPHS.lost.values()))),
        marks_graphs=_marks_graphs(),
    )


def _marks_graphs() -> bool:
    """Whether this torch annotates calls of graphs, see `work.compiled_graphs.CALL`."""
    kind = getattr(sys.modules.get("torch._inductor.output_code"), "CompiledFxGraph", None)
    code = getattr(getattr(kind, "__dict__", {}).get("__call__"), "__code__", None)
    return any("## Call CompiledFxGraph" in str(const) for const in getattr(code, "co_consts", ()))


class Packages:
    """Notices calls of AOTInductor packages, which leave no operators in a trace."""

    def __init__(self) -> None:
        self.calls = 0

    def watch(self, replace: Callable[..., None], undo: Undo) -> None:
        """Watch until ``undo``, if there can be a package at all."""
        rooms = map(sys.modules.get, _PACKAGE_ROOMS)
        kinds = {kind for room in rooms if (kind := getattr(room, "AOTICompiledModel", None))}
        for kind in kinds:
            replace(kind, "__call__", self._noted, undo)

    def _noted(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return original(*args, **kwargs)

        return call
