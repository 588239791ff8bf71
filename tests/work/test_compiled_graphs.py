"""Products that inductor writes as loops of its own: counted from the graph, or named."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
import torch
from support.trace_builder import TraceBuilder

from pytest_torchprof.capture.dynamo import Packages, graph_facts, look_for_graphs
from pytest_torchprof.core.values import MissingValue
from pytest_torchprof.trace.facts import FACTS_KEY, Facts, Graph
from pytest_torchprof.trace.names import REGION, Kind
from pytest_torchprof.trace.read import parse_trace
from pytest_torchprof.verdict.metrics import METRICS, measure
from pytest_torchprof.work.counting import op_flops, read_graph

# ------------------------------------------------------------------------------- graphs

HEAD = "class <lambda>(torch.nn.Module):\n    def forward(self, "
X, W = 'x: "f32[8, 1, 64][64, 64, 1]cpu"', 'w: "f32[8, 64, 32][2048, 32, 1]cpu"'
BMM = (
    '        bmm: "f32[8, 1, 32][32, 32, 1]cpu" = torch.ops.aten.bmm.default(x, w);  x = w = None\n'
)
M, V = 'm: "f32[32, 64][64, 1]cpu"', 'v: "f32[64][1]cpu"'
MUL = '        mul: "f32[32, 64][64, 1]cpu" = torch.ops.aten.mul.Tensor(m, v);  m = v = None\n'
SUM = '        sum_1: "f32[32][1]cpu" = torch.ops.aten.sum.dim_IntList(mul, [1]);  mul = None\n'
IN, F = 'i: "f32[1, 3, 224, 224][1, 1, 1, 1]cpu"', 'f: "f32[64, 3, 7, 7][1, 1, 1, 1]cpu"'
CONVOLVED = (
    '        c: "f32[1, 64, 112, 112][1, 1, 1, 1]cpu" = torch.ops.aten.convolution.default('
    "i, f, None, [2, 2], [3, 3], [1, 1], False, [0, 0], 1);  i = f = None\n"
)
A, B = 'a: "f32[4, 5][5, 1]cpu"', 'b: "f32[5, 6][6, 1]cpu"'
PRODUCT = '        mm: "f32[4, 6][6, 1]cpu" = torch.ops.aten.mm.default(a, b);  a = b = None\n'
BIASED = '        add: "f32[4, 6][6, 1]cpu" = torch.ops.aten.add.Tensor(mm, c);  mm = c = None\n'
PADDED = (
    '        p: "f32[4, 8][8, 1]cpu" = torch.ops.aten.constant_pad_nd.default(a, [0, 3], 0.0)\n'
)
FLEX = (
    "        flex_attention = torch.ops.higher_order.flex_attention(q, q, q, score0, (1, 1, full, "
    "None), 0.25, {'BACKEND': 'AUTO'}, (), ());  q = None\n"
)
INNER = '\n    class score0(torch.nn.Module):\n        def forward(self, q: "f32[][]cpu"):\n'


@pytest.mark.parametrize(
    ("text", "source", "expected"),
    [
        (f"{HEAD}{X}, {W}):\n{BMM}", "cpp_fused_bmm_0(x, w)", Graph(32_768, 1)),
        (f"{HEAD}{X}, {W}):\n{BMM}{BMM}", "extern_kernels.bmm(x, w)", Graph(65_536, 2)),
        (  # a stride, a padding
            f"{HEAD}{IN}, {F}):\n{CONVOLVED}",
            "",
            Graph(236_027_904, 1),
        ),
        (  # names of the inner graph are its own
            f'{HEAD}q: "f32[1, 2, 128, 16][4096, 2048, 16, 1]cpu"):\n{FLEX}{INNER}',
            "cpp_fused_flex_attention_0(q)",
            Graph(4 * 2 * 128 * 128 * 16, 1),
        ),
        (f"{HEAD}{M}, {V}):\n{MUL}{SUM}", "cpp_fused_mv_0(m, v)", Graph(4_096, 1)),
        # a multiplication that is not a product, and one for which that is unknown
        (f"{HEAD}{M}, {V}):\n{MUL}{SUM}", "cpp_fused_mul_sum_0(m, v)", Graph()),
        (
            f"{HEAD}{M}, {V}):\n{MUL}{SUM}",
            "cpp_fused_add_mul_mv_sum_0(m, v)",
            Graph(0, 0, (), ("cpp_fused_add_mul_mv_sum_0",)),
        ),
        # the bias of an addmm whose product the library does
        (
            f"{HEAD}{A}, {B}):\n{PRODUCT}",
            "extern_kernels.mm(a, b)\ncpp_fused_addmm_relu_0(c)",
            Graph(240, 1),
        ),
        # the same where something else is multiplied, and a bias that the graph does not add
        (
            f"{HEAD}{A}, {B}, {M}, {V}):\n{PRODUCT}{BIASED}{MUL}",
            "extern_kernels.mm(a, b)\ncpp_fused_addmm_gelu_mul_0(c)",
            Graph(240, 1),
        ),
        (
            f"{HEAD}{A}, {B}, {M}, {V}):\n{PRODUCT}{MUL}{SUM}",
            "extern_kernels.mm(a, b)\ncpp_fused_addmm_relu_0(m, v)",
            Graph(240 + 4_096, 2),
        ),
        # a product that is lost beside another of its name: of a row and a column, or of vectors
        (
            f"{HEAD}{A}, {B}, {M}, {V}):\n{PRODUCT}{MUL}{SUM}",
            "cpp_fused_mm_0(m, v)\nextern_kernels.mm(a, b)",
            Graph(240 + 4_096, 2),
        ),
        (
            f"{HEAD}{A}, {B}, {M}, {V}):\n{PRODUCT}{MUL}",
            "cpp_fused_mm_0(m, v)\ncpp_fused_cos_1(m)\nextern_kernels.mm(a, b)",
            Graph(240, 1, (), ("cpp_fused_mm_0",)),
        ),
        # a loop that is the graph's own product, a template, and what is padded for the library
        (
            f"{HEAD}{A}, {B}, {M}, {V}):\n{PRODUCT}{MUL}",
            "triton_tem_fused_mm_0.run(a, b)\ntriton_poi_fused_mul_1.run(m, v)",
            Graph(240, 1),
        ),
        (
            f"{HEAD}{A}, {B}, {M}, {V}):\n{PADDED}{PRODUCT}{MUL}",
            "triton_poi_fused_mm_0.run(a)\nextern_kernels.mm(a, b)\ntriton_poi_fused_mul_1.run(m)",
            Graph(240, 1),
        ),
        (  # shapes that are not known before the call
            f'{HEAD}{X.replace("8, 1", "s17, 1")}, {W.replace("8, 64", "s17, 64")}):\n{BMM}',
            "cpp_fused_bmm_0(x, w)",
            Graph(0, 1, ("aten::bmm",)),
        ),
        ("nothing", "of the kind", Graph()),
        (f"{HEAD}{X}):\n{BMM[:-20]}", "", Graph(0, 1, ("aten::bmm",))),  # broken off
    ],
)  # fmt: skip
def test_the_products_of_a_graph(text: str, source: str, expected: Graph) -> None:
    assert read_graph(text, source) == expected


# ------------------------------------------------------------------------------- traces

CALL = "## Call CompiledFxGraph fabc ##"
MM = ("aten::mm", [[4, 5], [5, 6]])


def called(facts: dict[str, Any] | None, *inside: tuple[str, Any]) -> Any:
    """A trace with one call of a compiled graph; of our own if there are facts."""
    b = TraceBuilder()
    if facts is not None:
        b.metadata(FACTS_KEY, {"torch": "2.13.0", **facts})
    with b.annotation(REGION if facts is not None else "step"), b.annotation(CALL):
        for name, dims in inside:
            b.op(name, dims)
    return parse_trace(b.to_bytes())


@pytest.mark.parametrize(
    ("graph", "inside", "expected"),
    [
        ([1_000, 1, [], []], [], 1_000),
        ([1_000, 2, [], []], [MM], 1_000),  # the library did 240 of them
        ([240, 1, [], []], [MM], 240),
        ([200, 1, [], []], [MM], 240),  # padded, as before
        ([0, 1, ["aten::bmm"], []], [MM], 240),  # as many products ran as there are
        (None, [MM], 240),
        (None, [], 0),
    ],
)
def test_loops_count_what_the_graph_has_and_the_trace_does_not_show(
    graph: list[Any] | None, inside: list[tuple[str, Any]], expected: int
) -> None:
    graphs = {} if graph is None else {"fabc": graph}
    trace = called({"graphs": graphs, "lost_loops": []}, *inside)
    assert measure(METRICS["flops"], trace) == expected
    assert int(op_flops(trace).sum()) == expected


def test_the_range_on_the_device_is_not_another_call_of_the_graph() -> None:
    b = TraceBuilder("NVIDIA H100")
    graphs = {"fabc": [240, 1, [], []]}
    b.metadata(FACTS_KEY, {"torch": "2.11.0", "graphs": graphs, "lost_loops": []})
    with b.annotation(REGION), b.annotation(CALL), b.op(*MM):
        b.launch("gemm")
    trace = parse_trace(b.to_bytes())
    assert trace.is_kind(Kind.GPU_ANNOTATION).any()
    assert measure(METRICS["flops"], trace) == 240


@pytest.mark.parametrize(
    ("facts", "inside", "message"),
    [
        ({"graphs": {"fabc": [0, 1, ["aten::bmm"], []]}, "lost_loops": []}, [],
         "aten::bmm (1 call) was compiled to loops whose shapes the trace does not contain"),
        ({"graphs": {"fabc": [0, 2, ["aten::bmm"], []]}, "lost_loops": []}, [MM],
         "at least 240 FLOP: aten::bmm (1 call"),
        ({"graphs": {"fabc": [0, 0, [], ["cpp_fused_mul_mv_0"]]}, "lost_loops": []}, [],
         "cpp_fused_mul_mv_0 (1 call) was compiled to loops that the trace does not contain"),
        ({"graphs": {}, "lost_loops": ["cpp_fused_mv_3"]}, [], "cpp_fused_mv_3 (1 call)"),
        (None, [], "torch.compile's code (1 call) was compiled to loops"),
        ({"packages": 2}, [], "an AOTInductor package (2 calls) does not show the operators"),
    ],
)  # fmt: skip
def test_unknown_loops_are_named(
    facts: dict[str, Any] | None, inside: list[tuple[str, Any]], message: str
) -> None:
    value = measure(METRICS["flops"], called(facts, *inside))
    assert isinstance(value, MissingValue)
    assert message in value.reason.text


@pytest.mark.parametrize(
    ("inside", "unknown"), [([], True), ([MM], False)], ids=["a loop", "the library"]
)
def test_an_older_torch_marks_no_more_than_the_compiled_function(
    inside: list[tuple[str, Any]], unknown: bool
) -> None:
    b = TraceBuilder()
    b.metadata(FACTS_KEY, {"graphs": {}, "lost_loops": ["cpp_fused_bmm_0"]})
    with b.annotation(REGION), b.op("Torch-Compiled Region: 0/0"):
        for name, dims in inside:
            b.op(name, dims)
    value = measure(METRICS["flops"], parse_trace(b.to_bytes()))
    assert isinstance(value, MissingValue) == unknown
    assert ("cpp_fused_bmm_0" in str(value)) == unknown


@pytest.mark.parametrize(
    "facts",
    [
        {"graphs": "junk", "lost_loops": "junk", "packages": "junk"},
        {"graphs": {"fabc": [1, 2]}, "lost_loops": []},
        {"graphs": {"fabc": [2**80, 1, [], []]}, "lost_loops": []},
        {"graphs": {"fabc": ["many", 1, 7, None]}, "lost_loops": []},
    ],
)
def test_junk_for_facts_of_graphs_is_left_out(facts: dict[str, Any]) -> None:
    assert measure(METRICS["flops"], called(facts, MM)) == 240


def test_operators_that_dynamo_runs_while_compiling_are_not_counted() -> None:
    b = TraceBuilder()
    with (
        b.annotation("_compile.compile_inner (dynamo_timed)"),
        b.op(*MM),
        b.op("PythonDispatchMode", MM[1]),
    ):
        b.op(*MM)
    b.op(*MM)
    assert measure(METRICS["flops"], parse_trace(b.to_bytes())) == 240


# ------------------------------------------------------------------------------- live


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # torch's own
def test_a_compiled_product_of_one_row(tmp_path: Path) -> None:
    """Inductor on a CPU writes it as a loop: the trace has no operator, and the graph has it."""
    pytest.importorskip("torch._inductor.output_code")
    rows, matrices = torch.randn(8, 1, 64), torch.randn(8, 64, 32)
    try:
        compiled = torch.compile(lambda a, b: torch.bmm(a, b).cos(), dynamic=False)
        compiled(rows, matrices)
    except Exception as error:  # noqa: BLE001 - no compiler on this machine
        pytest.skip(f"inductor cannot compile here: {type(error).__name__}")
    look_for_graphs()
    cpu = torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[cpu], record_shapes=True) as profile:
        with torch.profiler.record_function(REGION):
            compiled(rows, matrices)
        profile.add_metadata_json(FACTS_KEY, (Facts(torch="") | graph_facts()).stored())
    if not any("CompiledFxGraph" in str(event.name) for event in profile.events()):
        pytest.skip("this torch does not mark the calls of compiled graphs")
    profile.export_chrome_trace(str(tmp_path / "trace.json"))
    trace = parse_trace((tmp_path / "trace.json").read_bytes())
    assert measure(METRICS["flops"], trace) == 2 * 8 * 64 * 32


def test_calls_of_packages_are_noticed_while_watched() -> None:
    """Their class is as it was afterwards; nothing is imported for it."""

    class AOTICompiledModel:
        def __call__(self, x: int) -> int:
            return x + 1

    room: Any = ModuleType("room")
    room.AOTICompiledModel = AOTICompiledModel
    before = AOTICompiledModel.__call__

    def replace(where: Any, name: str, wrap: Any, undo: ExitStack) -> None:
        old = getattr(where, name)
        undo.callback(setattr, where, name, old)
        setattr(where, name, wrap(old))

    packages, model = Packages(), AOTICompiledModel()
    with mock.patch.dict(sys.modules, {"torch._inductor.package.package": room}):
        with ExitStack() as undo:
            packages.watch(replace, undo)
            assert model(1) == 2
        assert model(1) == 2
    assert packages.calls == 1
    assert AOTICompiledModel.__call__ is before


def test_the_collector_is_asked_only_after_a_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    look_for_graphs()
    asked = mock.Mock(return_value=[])
    monkeypatch.setattr("pytest_torchprof.capture.dynamo._objects", asked)
    look_for_graphs()
    asked.assert_not_called()
