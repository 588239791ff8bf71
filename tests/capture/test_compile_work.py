"""Numbers of graphs, caches and CUDA graphs are those that torch itself has."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from pytest_torchprof.capture.compiling import CompileCount, CudaGraphs

if TYPE_CHECKING:
    from pytest_torchprof.trace.facts import CompileWork

X, W = torch.ones(4, 5), torch.ones(5, 6)


def work(block: Callable[[], Any]) -> CompileWork:
    before = CompileCount.now()
    block()
    found = CompileCount.now().since(before).compile_work
    assert found is not None
    return found


def broken(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    torch._dynamo.graph_break()
    return y.cos()


def test_graphs_are_those_that_the_backend_gets() -> None:
    from torch._dynamo.testing import CompileCounter
    from torch._dynamo.utils import counters

    torch.compiler.reset()
    counter, before = CompileCounter(), counters["stats"]["unique_graphs"]
    compiled = torch.compile(broken, backend=counter)
    found = work(lambda: compiled(X))
    assert 2 == counter.frame_count == found.graphs
    assert found.graphs == counters["stats"]["unique_graphs"] - before
    assert 0 == work(lambda: compiled(X)).graphs


def test_the_time_is_that_of_torchs_records() -> None:
    from torch._dynamo.utils import get_compilation_metrics

    torch.compiler.reset()
    CompileCount.now()
    known = len(get_compilation_metrics())
    found = work(lambda: torch.compile(broken, backend="eager")(X))
    records = get_compilation_metrics()[known:]
    if not all(hasattr(record, "duration_us") for record in records):
        pytest.skip("this torch does not record durations")
    expected = sum(record.duration_us or 0 for record in records) / 1e3
    assert found.ms == pytest.approx(expected, abs=0.01)


@pytest.fixture
def _fresh_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("torch._inductor.compile_fx")
        torch.compiler.reset()
        yield
        torch.compiler.reset()


@pytest.mark.thorough
@pytest.mark.usefixtures("_fresh_caches")
def test_hits_and_misses_are_those_of_torchs_two_caches() -> None:
    from torch._dynamo.utils import counters

    def counted() -> tuple[int, int]:
        groups = [
            (counters["inductor"], "fxgraph_cache"),
            (counters["aot_autograd"], "autograd_cache"),
        ]
        hits, misses = (sum(g[f"{n}_{w}"] for g, n in groups) for w in ("hit", "miss"))
        return hits, misses

    def product(x: torch.Tensor) -> torch.Tensor:
        return x @ W  # calls a library, so no C++ compiler is needed

    def block() -> None:
        torch.compiler.reset()
        torch.compile(product)(X)

    before = counted()
    try:
        cold = work(block)
    except Exception as error:  # noqa: BLE001 - inductor works not everywhere
        pytest.skip(str(error).partition("\n")[0])
    between = counted()
    warm = work(block)
    after = counted()
    assert (between[0] - before[0], between[1] - before[1]) == (cold.cache_hits, cold.cache_misses)
    assert (after[0] - between[0], after[1] - between[1]) == (warm.cache_hits, warm.cache_misses)
    assert 0 == cold.cache_hits
    assert 0 == warm.cache_misses
    assert min(cold.cache_misses or 0, warm.cache_hits or 0) > 0


# ------------------------------------------------------------------------------- CUDA graphs


class _Graph:
    """Stands for `torch.cuda.CUDAGraph` where there is no device."""

    def capture_end(self) -> str:
        return "ended"


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[CudaGraphs]:
    kind = type("CUDAGraph", (_Graph,), {"capture_end": lambda _: "ended"})
    monkeypatch.setattr(torch.cuda, "CUDAGraph", kind)
    found = CudaGraphs()
    yield found
    found.stop()


def test_until_somebody_watches_their_number_is_unknown() -> None:
    assert CudaGraphs().captured is None


def test_captures_are_counted_while_watched(graphs: CudaGraphs) -> None:
    original = vars(torch.cuda.CUDAGraph)["capture_end"]
    graphs.watch()
    for _ in range(3):
        assert "ended" == torch.cuda.CUDAGraph().capture_end()  # type: ignore[func-returns-value]
    graphs.watch()  # as for the next test, whatever became of this one
    torch.cuda.CUDAGraph().capture_end()
    assert 4 == graphs.captured
    graphs.stop()
    torch.cuda.CUDAGraph().capture_end()
    assert 4 == graphs.captured
    assert original is vars(torch.cuda.CUDAGraph)["capture_end"]


#: What captures in inductor's trees of graphs, as torch nests it.
TREES = """
class CUDAGraphTreeManager:
    def __init__(self, graph):
        graph.capture_end()


class CUDAGraphNode:
    def __init__(self, graph):
        self._record(graph)

    def _record(self, graph):
        graph.capture_end()
"""


def test_the_graph_without_work_of_inductors_pool_does_not_count(graphs: CudaGraphs) -> None:
    graphs.watch()
    room: dict[str, Any] = {}
    exec(compile(TREES, "/lib/torch/_inductor/cudagraph_trees.py", "exec"), room)
    room["CUDAGraphTreeManager"](torch.cuda.CUDAGraph())
    assert 0 == graphs.captured
    room["CUDAGraphNode"](torch.cuda.CUDAGraph())
    assert 1 == graphs.captured


def test_inductor_captures_where_we_expect_it() -> None:
    text = (Path(torch.__file__).parent / "_inductor" / "cudagraph_trees.py").read_text("utf-8")
    captures = [
        f"{kind.name}.{function.name}"
        for kind in ast.walk(ast.parse(text))
        if isinstance(kind, ast.ClassDef)
        for function in kind.body
        if isinstance(function, ast.FunctionDef) and "torch.cuda.graph(" in ast.unparse(function)
    ]
    assert ["CUDAGraphNode._record", "CUDAGraphTreeManager.__init__"] == captures


def test_what_a_test_has_replaced_meanwhile_stays(graphs: CudaGraphs) -> None:
    graphs.watch()

    def own(_: Any) -> None: ...

    torch.cuda.CUDAGraph.capture_end = own  # type: ignore[assignment,method-assign]
    graphs.stop()
    assert own is vars(torch.cuda.CUDAGraph)["capture_end"]


@pytest.mark.gpu
def test_captures_on_a_device_are_counted() -> None:
    graphs, x = CudaGraphs(), torch.ones(4, device="cuda")
    graphs.watch()
    try:
        for _ in range(2):
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                x.add(1)
    finally:
        graphs.stop()
    assert 2 == graphs.captured
