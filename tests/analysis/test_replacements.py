"""Which operators and kernels took the place of which."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.trace_builder import TraceBuilder

from pytest_torchprof.analysis.diff import Replacement, replacements
from pytest_torchprof.trace.read import parse_trace

if TYPE_CHECKING:
    from pytest_torchprof.analysis.diff import DiffBy
    from pytest_torchprof.trace.events import Events


def ran(*names: str) -> Events:
    """Operators one after the other, each with a kernel of its name."""
    b = TraceBuilder("GPU")
    for name in names:
        with b.op(name):
            b.launch(name)
    return parse_trace(b.to_bytes())


def replaced(before: str, after: str, by: DiffBy = "op") -> list[str]:
    found = replacements(ran(*before.split()), ran(*after.split()), by=by)
    assert found.complete
    return [row.text() for row in found.rows]


LAYER = "mm mul add norm gelu "
FUSED = "mm triton_mul_add norm gelu "


@pytest.mark.parametrize("by", ["op", "kernel"])
@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (LAYER, LAYER, []),
        ("", LAYER, []),
        (LAYER, "", []),
        (LAYER, FUSED, ["mul, add → triton_mul_add"]),
        (LAYER * 12, FUSED * 12, ["mul, add → triton_mul_add  ×12"]),
        ("copy " + LAYER * 3, FUSED * 3 + "sum", ["mul, add → triton_mul_add  ×3"]),
        ("mul add " * 6 + "mm", "triton " * 6 + "mm", ["mul, add → triton  ×6"]),
        ("mm relu " * 5, "mm gelu " * 5, ["relu → gelu  ×5"]),  # a rename
        ("a b c d e", "a b x d e", ["c → x"]),
        ("a b c d e", "a b d e", []),  # a row of its own says that it has vanished
        ("a b c d e", "a b c x d e", []),
        ("a b b c d e", "a x c d e", ["b ×2 → x"]),
        (LAYER + "softmax sum", FUSED + "softmax_sum", [
            "mul, add → triton_mul_add",
            "softmax, sum → softmax_sum",
        ]),
    ],
)  # fmt: skip
def test_replacements_of_operators(
    before: str, after: str, expected: list[str], by: DiffBy
) -> None:
    assert replaced(before, after, by) == expected


def test_a_region_larger_than_the_search_nearby_is_bridged() -> None:
    inside = " ".join(f"op{i} " for i in range(120))
    before, after = f"start {inside} mm mul sum mm", "start fused mm mul sum mm"
    (row,) = replacements(ran(*before.split()), ran(*after.split())).rows
    assert (len(row.before), row.after, row.times) == (120, ("fused",), 1)
    assert row.text() == "op0, op1, op2, op3, op4, op5, … and 114 more → fused"


def test_unrelated_programs_have_no_replacements() -> None:
    one, other = (" ".join(f"{kind}{i}" for i in range(150)) for kind in "ab")
    assert replaced(one, other) == []


def test_operators_that_only_wrap_view_or_allocate_are_passed_over() -> None:
    eager, compiled = TraceBuilder(), TraceBuilder()
    with eager.op("aten::linear"):
        with eager.op("aten::t"), eager.op("aten::transpose"):
            eager.op("aten::as_strided")
        eager.op("aten::addmm")
    with eager.op("aten::sum"):
        eager.op("aten::empty")
        eager.op("aten::fill_")
    eager.op("aten::relu")
    eager.op("aten::fill_")
    with compiled.annotation("Torch-Compiled Region: 0/0"), compiled.op("CompiledFunction"):
        compiled.op("aten::addmm")
        compiled.op("triton_per_fused_relu_sum_0")
        compiled.op("aten::fill_")
    found = replacements(parse_trace(eager.to_bytes()), parse_trace(compiled.to_bytes())).rows
    expected = Replacement(("aten::sum", "aten::relu"), ("triton_per_fused_relu_sum_0",), 1)
    assert found == [expected]


def test_threads_and_streams_are_compared_one_by_one() -> None:
    def interleaved(step: int) -> Events:
        b = TraceBuilder("GPU")
        for i in range(12):
            with b.thread(i // step % 2 + 1):
                b.op(f"op{i // step % 2}")
            b.launch(f"kernel{i // step % 2}", stream=7 + i // step % 2)
        return parse_trace(b.to_bytes())

    for by in ("op", "kernel"):
        assert replacements(interleaved(1), interleaved(3), by=by) == ([], True)


def test_names_are_shortened_as_asked() -> None:
    row = Replacement(("long_name", "mul"), ("fused",), 1)
    assert row.text(lambda name: name[:4]) == "long, mul → fuse"


def test_before_and_after_another_order_the_rest_is_compared() -> None:
    before, after = (ran(*(f"{mid} a b c d {mid}").split()) for mid in ("mul add", "fused"))
    other = ran(*["fused", "a", "c", "b", "d", "fused"])
    assert [row.text() for row in replacements(before, after).rows] == ["mul, add → fused  ×2"]
    (row,), complete = replacements(before, other)
    assert (row.text(), complete) == ("mul, add → fused  ×2", False)
