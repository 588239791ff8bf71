"""FLOPs: against numbers worked out by hand, against torch's own convolutions, against FCM."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.reasons import words
from support.trace_builder import TraceBuilder
from torch import nn
from torch.nn import functional as F  # noqa: N812  # its usual name
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from pytest_torchprof.analysis.operators import op_rows
from pytest_torchprof.core.units import format_quantity
from pytest_torchprof.core.values import MissingValue, Value
from pytest_torchprof.render.table import ops_table
from pytest_torchprof.trace.read import parse_trace
from pytest_torchprof.verdict.metrics import METRICS, measure
from pytest_torchprof.work.counting import unknown_flops
from pytest_torchprof.work.flops import FORMULAS, flops

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events

Count = Callable[[Callable[[], object]], int]

# ------------------------------------------------------------------------------------- by hand

MATRICES = [
    ("aten::mm", [[4, 5], [5, 6]], 240),  # 2 × 4 × 5 × 6
    ("aten::mm", [[4, 5], [5, 6], [4, 6]], 240),  # out-variant
    ("aten::mm", [[0, 5], [5, 6]], 0),
    ("aten::addmm", [[6], [4, 5], [5, 6], [], []], 240),
    ("aten::addmm_", [[4, 6], [4, 5], [5, 6], [], []], 240),
    ("aten::_addmm_activation", [[6], [4, 5], [5, 6], [], [], []], 240),
    ("aten::_int_mm", [[32, 32], [32, 32]], 65_536),
    ("aten::bmm", [[2, 3, 4], [2, 4, 5]], 240),
    ("aten::baddbmm", [[1, 3, 5], [2, 3, 4], [2, 4, 5], [], []], 240),  # broadcast bias
    ("aten::_scaled_mm", [[16, 32], [32, 16], [], [], [], [], [], []], 16_384),
    ("aten::_grouped_mm", [[16, 32], [2, 32, 16], [2], [], []], 16_384),  # rows are split
    ("aten::_grouped_mm", [[2, 8, 32], [32, 16], [2], [], []], 8_192),  # columns are split
    ("aten::_grouped_mm", [[16, 32], [32, 16], [2], [], []], 16_384),  # the inner axis is
    ("aten::_grouped_mm", [[2, 16, 32], [2, 32, 16], [], [], []], 32_768),  # nothing is
    ("aten::mv", [[4, 5], [5]], 40),
    ("aten::addmv_", [[4], [4, 5], [5], [], []], 40),
    ("aten::dot", [[5], [5]], 10),
    ("aten::vdot", [[5], [5]], 10),
    ("aten::_weight_int8pack_mm", [[4, 32], [16, 32], [16]], 4_096),
    ("aten::_weight_int4pack_mm", [[4, 64], [4, 1, 32, 4], [], [2, 32, 2]], 16_384),
    ("aten::_weight_int4pack_mm_for_cpu", [[4, 64], [32, 32], [], [2, 32, 2]], 16_384),
    ("aten::mkldnn_linear", [[2, 8, 64], [32, 64], []], 65_536),
    ("aten::mkldnn_linear_backward_input", [[], [2, 8, 32], [32, 64]], 65_536),
    ("aten::mkldnn_linear_backward_weights", [[2, 8, 32], [2, 8, 64], [32, 64], []], 65_536),
    ("mkldnn::_linear_pointwise", [[16, 64], [32, 64], [32], [], [], []], 65_536),
    ("mkldnn::_linear_pointwise", [[16, 64], [16, 32], [32, 64], [32], []], 65_536),
    ("mkl::_mkl_linear", [[16, 64], [1459233, 1], [32, 64], [], []], 65_536),
    ("onednn::qlinear_pointwise", [[16, 64], [], [], [64, 32], [32], [32], []], 65_536),
    ("aten::mm", [[4, 5], [6, 5]], None),
    ("aten::mm", [[4, 5]], None),
    ("aten::bmm", [[2, 3, 4], [1, 4, 5]], None),
    ("aten::mv", [[4, 5], [4]], None),
    ("aten::mkldnn_linear", [[2, 8, 64], [32, 63], []], None),
    ("aten::linear", [[4, 5], [6, 5], [6]], None),  # its parts count
    ("quantized::linear_dynamic", [[3, 64], [], []], None),  # the weight is not in the trace
]


@pytest.mark.parametrize(("name", "dims", "expected"), MATRICES)
def test_matrix_products(name: str, dims: list[list[int]], expected: int | None) -> None:
    """A matrix product costs two operations for each pair of numbers that meet."""
    assert flops(name, dims, ["float"] * len(dims), [""] * len(dims)) == expected


def test_packed_four_bit_numbers() -> None:
    """Two numbers of four bits share an element, so a product costs twice what its shape says."""
    types = ["c10::Float4_e2m1fn_x2", "c10::Float4_e2m1fn_x2"]
    assert flops("aten::_scaled_mm", [[16, 32], [32, 16]], types, ["", ""]) == 32_768


X, W = [2, 4, 9, 9], [6, 2, 3, 3]  # two groups
STEM = [[1, 3, 224, 224], [64, 3, 7, 7]]
PLAIN = ["", "", "", "[2, 2]", "[3, 3]", "[1, 1]", "False", "[0, 0]", "1"]

CONVOLUTIONS = [
    # 112 × 112 places × 64 × 3 × 7 × 7 weights × 2
    ("aten::convolution", STEM, PLAIN, 236_027_904),
    ("aten::_convolution", STEM, [*PLAIN, "False", "False", "True", "True"], 236_027_904),
    (
        "aten::mkldnn_convolution",
        STEM,
        ["", "", "", "[3, 3]", "[2, 2]", "[1, 1]", "1"],
        236_027_904,
    ),
    ("aten::cudnn_convolution", STEM, ["", "", "[3, 3]", "[2, 2]", "[1, 1]", "1"], 236_027_904),
    ("aten::cudnn_convolution_relu", STEM, PLAIN, 236_027_904),
    (
        "aten::cudnn_convolution_add_relu",
        [*STEM, [1, 64, 112, 112]],
        ["", "", "", "1", "", "[2, 2]", "[3, 3]", "[1, 1]", "1"],
        236_027_904,
    ),
    ("aten::thnn_conv2d", STEM, ["", "", "[7, 7]", "", "[2, 2]", "[3, 3]"], 236_027_904),
    # groups: 2 images × 5 × 5 places × 108 weights × 2
    ("aten::convolution", [X, W], ["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "False"], 10_800),
    # one number for all axes
    ("aten::convolution", [X, W], ["", "", "", "[2]", "[1]", "[1]", "False"], 10_800),
    # dilated: 5 × 5 places × 54 weights × 2
    (
        "aten::slow_conv_dilated2d",
        [[1, 2, 9, 9], [3, 2, 3, 3]],
        ["", "", "[3, 3]", "", "[1, 1]", "[0, 0]", "[2, 2]"],
        2_700,
    ),
    # depthwise: 2 images × 7 × 7 places × 36 weights × 2
    (
        "aten::_conv_depthwise2d",
        [X, [4, 1, 3, 3]],
        ["", "", "[3, 3]", "", "[1, 1]", "[0, 0]", "[1, 1]"],
        7_056,
    ),
    # 1-D: 2 × 5 places × 36 weights × 2;  3-D: 2 × 5³ places × 324 weights × 2
    ("aten::convolution", [[2, 4, 9], [6, 2, 3]], ["", "", "", "[2]", "[1]", "[1]", "False"], 720),
    (
        "aten::convolution",
        [[2, 4, 9, 9, 9], [6, 2, 3, 3, 3]],
        ["", "", "", "[2, 2, 2]", "[1, 1, 1]", "[1, 1, 1]", "False"],
        162_000,
    ),
    # transposed: 2 images × 9 × 9 places of the input × 108 weights × 2, whatever the stride
    ("aten::convolution", [X, [4, 3, 3, 3]], ["", "", "", "[2, 2]", "", "", "True"], 34_992),
    ("aten::cudnn_convolution_transpose", [X, [4, 3, 3, 3]], [], 34_992),
    ("aten::slow_conv_transpose2d", [X, [4, 3, 3, 3]], None, 34_992),
    ("mkldnn::_convolution_transpose_pointwise", [[1, 4, 9, 9], [6, 2, 3, 3]], [""] * 11, 17_496),
    # oneDNN, plain and with an operand to add:  9 × 9 places × 81 weights × 2
    (
        "mkldnn::_convolution_pointwise",
        [[1, 3, 9, 9], [3, 3, 3, 3], [3]],
        ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "1", "", "", ""],
        13_122,
    ),
    (
        "mkldnn::_convolution_pointwise",
        [[1, 3, 9, 9], [1, 3, 9, 9], [3, 3, 3, 3], [3]],
        ["", "", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "1", "", "1.", "", "", ""],
        13_122,
    ),
    (
        "mkldnn::_convolution_pointwise_",
        [[1, 3, 9, 9], [1, 3, 9, 9], [3, 3, 3, 3], [3]],
        ["", "", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "1", "", "1.", "", "", ""],
        13_122,
    ),
    (
        "onednn::qconv2d_pointwise",
        [[1, 3, 9, 9], [], [], [3, 3, 3, 3], [3], [3], [3]],
        ["", "0.5", "0", "", "", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "1"],
        13_122,
    ),
    (
        "onednn::qconv2d_pointwise",
        [[1, 3, 9, 9], [], [], [3, 3, 3, 3], [3], [3], [1, 3, 9, 9], [3]],
        ["", "0.5", "0", "", "", "", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "1"],
        13_122,
    ),
    ("aten::convolution", STEM, None, None),  # a trace without concrete inputs
    ("aten::convolution", STEM, [], None),
    ("aten::convolution", [[1, 3, 4, 4], [8, 3, 7, 7]], [*PLAIN[:4], "[0, 0]", *PLAIN[5:]], None),
    ("aten::convolution", [[1, 5, 9, 9], [8, 3, 3, 3]], PLAIN, None),
    ("aten::convolution", STEM, [*PLAIN[:3], "[0, 0]", *PLAIN[4:]], None),
    ("aten::convolution", STEM, [*PLAIN[:3], "[1, 1, 1]", *PLAIN[4:]], None),
]


@pytest.mark.parametrize(("name", "dims", "concrete", "expected"), CONVOLUTIONS)
def test_convolutions(
    name: str, dims: list[list[int]], concrete: list[str] | None, expected: int | None
) -> None:
    """A convolution multiplies the whole weight at each place: of the input, if transposed."""
    assert flops(name, dims, None, concrete) == expected


@pytest.mark.parametrize(
    ("mask", "times"),
    [("[True, True, True]", 2), ("[False, True, False]", 1), ("[False, False, True]", 0)],
)
@pytest.mark.parametrize(
    ("name", "dims", "before", "forward"),
    [
        (
            "aten::convolution_backward",
            [[2, 6, 5, 5], X, W],
            ["", "", "", "[6]", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "2"],
            10_800,
        ),
        (
            "aten::convolution_backward",
            [[2, 6, 18, 18], X, [4, 3, 3, 3]],
            ["", "", "", "[0]", "[2, 2]", "[1, 1]", "[1, 1]", "True", "[1, 1]", "2"],
            34_992,
        ),
        ("aten::_slow_conv2d_backward", [[2, 3, 7, 7], [2, 2, 9, 9], [3, 2, 3, 3]], [], 10_584),
        ("aten::mps_convolution_backward", [X, [2, 6, 5, 5], W], [], 10_800),
    ],
)
def test_convolution_backward(
    name: str, dims: list[list[int]], before: list[str], forward: int, mask: str, times: int
) -> None:
    """Each gradient that is asked for costs what the forward pass costs, with groups too."""
    assert flops(name, dims, None, [*before, mask]) == times * forward


def test_convolution_backward_without_its_mask() -> None:
    """A trace that does not say which gradients were computed has no number for them."""
    assert flops("aten::convolution_backward", [[2, 6, 5, 5], X, W], None, None) is None


Q, K, V = [2, 4, 8, 16], [2, 4, 6, 16], [2, 4, 6, 12]
K_GQA, V_GQA = [2, 2, 6, 16], [2, 2, 6, 12]
FORWARD = 21_504  # 2 × 2 batches × 4 heads × 8 × 6 pairs × (16 + 12)
BACKWARD = 55_296  # 2 × 2 × 4 × 8 × 6 × (3 × 16 + 2 × 12)
OUT = [2, 4, 8, 12]


def tokens_first(*shapes: list[int]) -> list[list[int]]:
    """Shapes with tokens before heads."""
    return [[b, s, h, d] for b, h, s, d in shapes]


LAYOUT_2 = tokens_first(Q, K, V)
NO_OFFSETS: list[list[int]] = [[], [], [], []]
RAGGED = [[16, 4, 16], [12, 4, 16], [12, 4, 12]]  # 2 sequences packed
ATTENTION = [
    *(
        (f"aten::_scaled_dot_product_{kind}", [Q, K, V], None, FORWARD)
        for kind in (
            "flash_attention",
            "flash_attention_for_cpu",
            "efficient_attention",
            "cudnn_attention",
            "fused_attention_overrideable",
        )
    ),
    *(
        (f"aten::_scaled_dot_product_{kind}_backward", [OUT, Q, K, V, OUT], None, BACKWARD)
        for kind in (
            "flash_attention",
            "flash_attention_for_cpu",
            "efficient_attention",
            "cudnn_attention",
            "fused_attention_overrideable",
        )
    ),
    ("aten::_scaled_dot_product_flash_attention", [Q, K_GQA, V_GQA], None, FORWARD),
    (
        "aten::_scaled_dot_product_flash_attention_backward",
        [OUT, Q, K_GQA, V_GQA, OUT],
        None,
        BACKWARD,
    ),
    # tokens before heads
    ("aten::_flash_attention_forward", [*LAYOUT_2, *NO_OFFSETS], None, FORWARD),
    ("aten::_efficient_attention_forward", [*LAYOUT_2, *NO_OFFSETS], None, FORWARD),
    ("flash_attn::_flash_attn_forward", LAYOUT_2, None, FORWARD),
    ("flash_attn_3::fwd", LAYOUT_2, None, FORWARD),
    ("aten::_flash_attention_backward", [[], *LAYOUT_2, [], [], [], []], None, BACKWARD),
    ("flash_attn::_flash_attn_backward", [[], *LAYOUT_2], None, BACKWARD),
    ("aten::_cudnn_attention_forward", [Q, K, V, *NO_OFFSETS], None, FORWARD),
    # packed: each sequence has 8 queries and 6 keys
    ("aten::_flash_attention_forward", [*RAGGED, [3], [3]], [*[""] * 5, "8", "6"], FORWARD),
    # only the keys are of one length, only the queries are, neither is
    ("aten::_flash_attention_forward", [*RAGGED, [3], [3]], [*[""] * 5, "9", "6"], FORWARD),
    ("aten::_flash_attention_forward", [*RAGGED, [3], [3]], [*[""] * 5, "8", "7"], FORWARD),
    ("aten::_flash_attention_forward", [*RAGGED, [3], [3]], [*[""] * 5, "9", "7"], None),
    ("aten::_flash_attention_forward", [*RAGGED, [3], [3]], None, None),
    (
        "aten::_efficient_attention_forward",
        [[1, *s] for s in RAGGED] + [[], [3], [3]],
        [*[""] * 6, "8", ""],
        FORWARD,
    ),
    (
        "aten::_flash_attention_backward",
        [[], *RAGGED, [], [], [3], [3]],
        [*[""] * 8, "8", "6"],
        BACKWARD,
    ),
    (
        "aten::_flash_attention_forward",
        [*RAGGED, [3], [3], *[[]] * 10, [2, 7]],  # a page table
        [*[""] * 5, "8", "6"],
        None,
    ),
    ("aten::_scaled_dot_product_flash_attention", [[], [], []], None, None),  # nested tensors
    # nothing to attend with, and no heads at all: a true zero
    ("aten::_scaled_dot_product_flash_attention", [[2, 4, 0, 16], K, V], None, 0),
    ("aten::_scaled_dot_product_flash_attention", [[2, 0, 8, 16]] * 3, None, 0),
    ("aten::_flash_attention_forward", [[0, 4, 16]] * 3 + [[3], [3]], None, 0),
    ("aten::_scaled_dot_product_flash_attention", [Q, [2, 3, 6, 16], [2, 3, 6, 12]], None, None),
    ("aten::_scaled_dot_product_flash_attention", [Q, K, [2, 4, 7, 12]], None, None),
]


@pytest.mark.parametrize(("name", "dims", "concrete", "expected"), ATTENTION)
def test_attention(
    name: str, dims: list[list[int]], concrete: list[str] | None, expected: int | None
) -> None:
    """Attention is two products over all pairs of tokens forward, and five backward."""
    assert flops(name, dims, None, concrete) == expected


LAYER = [[40, 6], [40, 10], [40], [40]]
CUDNN = ["2", "10", "0", "1", "False", "0.", "True", "False", "[]", ""]
DEEP = ["2", "10", "5", "4", "False", "0.", "True", "True", "[]", ""]
RECURRENT = [
    # 6 tokens × 40 rows × (6 + 10) × 2
    ("aten::mkldnn_rnn_layer", [[3, 2, 6], *LAYER], None, 7_680),
    ("aten::mkldnn_rnn_layer_backward", [[3, 2, 6], *LAYER], None, 15_360),
    ("aten::_cudnn_rnn", [[3, 2, 6], LAYER, [], [], []], None, 7_680),
    ("aten::_cudnn_rnn", [[6, 6], LAYER, [], [], []], None, 7_680),  # packed
    ("aten::miopen_rnn", [[3, 2, 6], LAYER], None, 7_680),
    ("aten::_cudnn_rnn", [[3, 2, 6], [], [], [], []], [*[""] * 6, *CUDNN], 7_680),
    # projected to 5: 6 tokens × 2 × (40 × (6 + 5) + 10 × 5), and 4 layers in both directions:
    ("aten::_cudnn_rnn", [[3, 2, 6], [[40, 6], [40, 5], [40], [40], [5, 10]]], None, 5_880),
    # 6 tokens × 2 × 2 × (40 × (6 + 5) + 3 × 40 × (10 + 5) + 4 × 10 × 5)
    ("aten::_cudnn_rnn", [[3, 2, 6], []], [*[""] * 6, *DEEP], 58_560),
    (
        "aten::miopen_rnn",
        [[3, 2, 6], []],
        [*[""] * 5, "2", "10", "1", "False", "0.", "True", "False", "[]", ""],
        7_680,
    ),
    (
        "aten::_cudnn_rnn_backward",
        [[3, 2, 6], LAYER],
        ["[True, False, False, True]"],
        15_360,
    ),
    ("aten::_cudnn_rnn_backward", [[3, 2, 6], LAYER], ["[True, False, False, False]"], 7_680),
    ("aten::_cudnn_rnn_backward", [[3, 2, 6], LAYER], None, None),
    ("aten::_cudnn_rnn", [[3, 2, 6], []], None, None),
    ("aten::lstm", [[3, 2, 6], [[1, 2, 10], [1, 2, 10]], LAYER], None, None),  # its parts count
]


@pytest.mark.parametrize(("name", "dims", "concrete", "expected"), RECURRENT)
def test_recurrent_layers(
    name: str, dims: list[Any], concrete: list[str] | None, expected: int | None
) -> None:
    """Every token meets every weight once, in each of the passes."""
    assert flops(name, dims, None, concrete) == expected


# ---------------------------------------------------------------------------------- properties

JUNK: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    | st.sampled_from(["[1, 1]", "True", "[", "[]", "[True, True]", "2", 10**400]),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=40,
)  # fmt: skip
SHAPES = st.lists(st.lists(st.integers(0, 9), max_size=5) | JUNK, max_size=12)


@pytest.mark.thorough
@given(st.sampled_from([*FORMULAS, "aten::add"]), JUNK | SHAPES, JUNK, JUNK)
@settings(max_examples=400)
def test_junk_has_no_flops(name: str, dims: Any, types: Any, concrete: Any) -> None:
    """Whatever a trace contains, the answer is a count or `None`."""
    count = flops(name, dims, types, concrete)
    assert count is None or 0 <= count < 2**63


@pytest.mark.thorough
@given(JUNK)
def test_a_junk_name_has_no_flops(name: Any) -> None:
    """A name that is not a string has no formula."""
    assert flops(name, [[4, 5], [5, 6]], [], []) is None


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[list[int], list[int], dict[str, Any]]:
    """Shapes and arguments of a small convolution, transposed or not."""
    rank, groups, transposed = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.booleans())
    kernel, stride, dilation, padding, size = (
        draw(st.lists(values, min_size=rank, max_size=rank))
        for values in (*[st.integers(1, 3)] * 3, st.integers(0, 2), st.integers(7, 9))
    )
    n, c_in, c_out = draw(st.integers(0, 2)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    weight = [c_in * groups, c_out] if transposed else [c_out * groups, c_in]
    extra = [min(s, d) - 1 if transposed else 0 for s, d in zip(stride, dilation, strict=True)]
    arguments = {
        "stride": stride, "padding": padding, "dilation": dilation, "transposed": transposed,
        "output_padding": extra, "groups": groups,
    }  # fmt: skip
    return [n, c_in * groups, *size], [*weight, *kernel], arguments


@given(convolutions())
def test_convolutions_agree_with_torch(case: tuple[list[int], list[int], dict[str, Any]]) -> None:
    """The count is what torch's output has: its elements, times the products summed in each."""
    x, w, arguments = case
    tensors = torch.empty(x, device="meta"), torch.empty(w, device="meta")
    out = torch.convolution(*tensors, None, **arguments)
    concrete = ["", "", "", *map(str, arguments.values())]
    if arguments["transposed"]:  # each number of the input goes into w[1] channels
        expected = 2 * prod(x) * prod(w[1:])
    else:  # each number of the output comes from w[1] channels
        expected = 2 * out.numel() * prod(w[1:])
    assert flops("aten::convolution", [x, w, []], [], concrete) == expected
    dims, mask = [list(out.shape), x, w, []], "[True, True, False]"
    given_back = flops("aten::convolution_backward", dims, [], ["", *concrete, mask])
    assert given_back == 2 * expected


# ------------------------------------------------------------------- what nobody knows in a trace

# The first and the last have numbers; the second says nothing of strides, as in a trace of 2023.
LINEAR = ("aten::addmm", [[6], [4, 5], [5, 6], [], []])
BARE = ("aten::convolution", STEM)
CUDNN_CALL = ("aten::cudnn_convolution", STEM, None, ["", "", "[3, 3]", "[2, 2]", "[1, 1]", "1"])
PACKED = ("aten::_flash_attention_forward", [*RAGGED, [3], [3]])
Nested = tuple[Any, ...]


def traced(*calls: Nested) -> Events:
    """A trace of these operators; one that is followed by a list has those inside."""
    b = TraceBuilder()

    def add(calls: tuple[Nested, ...]) -> None:
        for op, *inside in calls:
            with b.op(*op):
                add(tuple(inside))

    add(calls)
    return parse_trace(b.to_bytes())


NO_STRIDES = "aten::convolution (1 call) lacks Concrete Inputs in this trace"
NO_SHAPES = "aten::mm (1 call) lacks Input Dims in this trace"


def timeless(value: Value) -> Value:
    """Without what part of the time the unknown part took."""
    if not isinstance(value, MissingValue):
        return value
    return replace(value, reason=words(re.sub(r", \d+ % of the time", "", value.reason.text)))


def at_least(count: int, why: str) -> MissingValue:
    """A sum of which a part is unknown."""
    known = f"at least {format_quantity(count, 'FLOP')}: " if count else ""
    return MissingValue(words(known + why), count, at_least=True)


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([(LINEAR,)], 240),
        ([(LINEAR,), (BARE,)], at_least(240, NO_STRIDES)),
        (
            [(LINEAR,), (BARE,), (BARE,), (PACKED,)],
            at_least(
                240,
                "aten::convolution (2 calls), aten::_flash_attention_forward (1 call): "
                "each lacks Concrete Inputs in this trace",
            ),
        ),
        ([(BARE, (CUDNN_CALL,))], 236_027_904),  # the part has the number
        ([(BARE, (("aten::_convolution", STEM), (CUDNN_CALL,)))], 236_027_904),
        ([(BARE, (BARE, (BARE,)))], at_least(0, NO_STRIDES)),  # the outermost only
        ([(BARE, (CUDNN_CALL,), (BARE,))], at_least(236_027_904, NO_STRIDES)),  # one part of two
        ([(LINEAR, (BARE,))], 240),  # the whole has the number
        ([(("aten::conv2d", STEM), (BARE,))], at_least(0, NO_STRIDES)),
        ([(LINEAR,), (("aten::mm",),)], at_least(240, NO_SHAPES)),
        (
            [(("aten::mm", [[4, 5], [6, 5]]),)],
            at_least(
                0, "aten::mm (1 call) has arguments that its formula does not support in this trace"
            ),
        ),
        ([(("aten::mm", [[0, 5], [5, 6]]),)], 0),  # empty, not unknown
        ([(("aten::add", STEM),)], 0),  # no formula: not counted, by definition
    ],
)
def test_flops_of_a_trace_are_known_or_reported_as_unknown(
    calls: list[Nested], expected: int | MissingValue
) -> None:
    """An operator that has a formula and no number makes the sum a lower bound."""
    trace = traced(*calls)
    assert unknown_flops(trace).any() == isinstance(expected, MissingValue)
    value = measure(METRICS["flops"], trace)
    assert timeless(value) == expected


def test_flops_of_a_part_do_not_depend_on_what_is_unknown_elsewhere() -> None:
    """A limit on an operator whose calls are all known can be checked."""
    trace = traced((LINEAR,), (BARE,))
    assert measure(METRICS["flops"], trace.within(op="aten::addmm")) == 240
    gap = measure(METRICS["flops"], trace.within(op="aten::convolution"))
    assert timeless(gap) == at_least(0, NO_STRIDES)


def test_unknown_flops_in_the_rows_of_operators() -> None:
    """A row with an unknown call has no FLOPs, and its cell is a dash."""
    trace = traced((LINEAR,), (BARE,), (("aten::convolution", STEM, None, PLAIN),))
    rows = op_rows(trace)
    assert (rows["aten::addmm"].flops, rows["aten::convolution"].flops) == (240, None)
    lines = {line.split()[0]: line.split() for line in ops_table(trace, "flops", 0).splitlines()}
    assert lines["aten::convolution"][-1] == "–"


# ------------------------------------------------------------------------------ real profiles


@pytest.fixture
def counted(tmp_path: Path) -> Count:
    """Profile a function, and sum the FLOPs of the outermost operators that have a number."""

    def count(function: Callable[[], object]) -> int:
        function()
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True
        ) as profile:
            function()
        profile.export_chrome_trace(str(tmp_path / "trace.json"))
        events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
        ops = [e for e in events if e.get("cat") == "cpu_op"]
        total, inside = 0, dict[int, float]()
        for op in sorted(ops, key=lambda e: (e["ts"], -e["dur"])):
            if op["ts"] < inside.get(op["tid"], 0):
                continue
            args = op["args"]
            described = (args.get(key) for key in ("Input Dims", "Input type", "Concrete Inputs"))
            value = flops(op["name"], *described)
            if value is not None:
                total += value
                inside[op["tid"]] = op["ts"] + op["dur"]
        return total

    return count


def math_attention() -> AbstractContextManager[None]:
    """Attention as matrix products, which FCM counts on a CPU."""
    return sdpa_kernel(SDPBackend.MATH)


class Block(nn.Module):
    """A residual block with a projection, after a stem, before a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8))
        self.long = nn.Sequential(
            nn.Conv2d(8, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, 1, 1)
        )
        self.short = nn.Conv2d(8, 16, 1, 2)
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x).relu()
        y: torch.Tensor = self.head((self.long(x) + self.short(x)).relu().mean((2, 3)))
        return y


def train(module: nn.Module, *inputs: torch.Tensor) -> Callable[[], None]:
    """One training step of a module."""
    optimizer = torch.optim.SGD(module.parameters(), 0.01)

    def step() -> None:
        optimizer.zero_grad()
        with math_attention():
            out = module(*inputs)
            (out[0] if isinstance(out, tuple) else out).square().mean().backward()
        optimizer.step()

    return step


def encoder() -> Callable[[], object]:
    layer = nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True)
    return train(nn.TransformerEncoder(layer, 2), torch.randn(2, 5, 16))


def sequence_to_sequence() -> Callable[[], object]:
    model = nn.Transformer(16, 4, 1, 1, 32, 0.0, batch_first=True)
    return train(model, torch.randn(2, 7, 16), torch.randn(2, 5, 16))


def residual_block() -> Callable[[], object]:
    return train(Block(), torch.randn(2, 3, 32, 32))


def gated_recurrent() -> Callable[[], object]:
    return train(nn.GRU(6, 10, 2, bidirectional=True), torch.randn(3, 2, 6))


def grouped_and_transposed() -> Callable[[], object]:
    model = nn.Sequential(
        nn.Conv2d(4, 8, 3, groups=2), nn.Conv2d(8, 8, 3, dilation=2),
        nn.ConvTranspose2d(8, 6, 3, 2, 1, 1, groups=2), nn.Conv2d(6, 4, 3, padding="same"),
    )  # fmt: skip
    x = torch.randn(1, 4, 16, 16)
    return torch.no_grad()(lambda: model(x))


def dilated_and_transposed_training() -> Callable[[], object]:
    model = nn.Sequential(nn.Conv1d(4, 8, 3, dilation=2), nn.ConvTranspose1d(8, 6, 3, 2, 1, 1))
    return train(model, torch.randn(2, 4, 16))


def volumes() -> Callable[[], object]:
    return train(nn.Conv3d(2, 4, 3, 2, 1), torch.randn(2, 2, 8, 8, 8))


def products() -> Callable[[], object]:
    a, b, v = torch.randn(2, 3, 4), torch.randn(2, 4, 5), torch.randn(4)

    def function() -> None:
        torch.einsum("bij,bjk->ki", a, b)
        torch.einsum("bij,cjk->bcik", a, b)
        torch.baddbmm(torch.randn(1, 3, 5), a, b)
        F.linear(v, torch.randn(6, 4), torch.randn(6))
        torch.tensordot(a, b, ([0, 2], [0, 1]))

    return function


PARITY = [
    encoder,
    sequence_to_sequence,
    residual_block,
    gated_recurrent,
    grouped_and_transposed,
    dilated_and_transposed_training,
    volumes,
    products,
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("make", PARITY)
def test_real_profiles_agree_with_torch(make: Callable[[], Any], counted: Count) -> None:
    """What is counted from a profile is what FCM counts in the running program."""
    function = make()
    with FlopCounterMode(display=False) as counter:
        function()
    assert counted(function) == counter.get_total_flops() > 0


def test_a_convolution_forward_and_backward(counted: Count) -> None:
    """`with_flops` says 169,344: it does not know the backward pass."""
    convolution = nn.Conv2d(3, 16, 3)
    x = torch.randn(1, 3, 16, 16, requires_grad=True)

    def function() -> None:
        torch.autograd.backward(convolution(x).sum())

    with FlopCounterMode(display=False) as counter:
        function()
    assert counted(function) == counter.get_total_flops() == 508_032


def test_the_weight_gradient_of_a_grouped_convolution(counted: Count) -> None:
    """A training step costs three forward passes, where FCM multiplies one by the groups."""
    x = torch.randn(2, 4, 9, 9, requires_grad=True)
    w = torch.randn(4, 1, 3, 3, requires_grad=True)
    forward = 2 * 2 * 7 * 7 * 4 * 3 * 3

    def function() -> None:
        torch.autograd.backward(F.conv2d(x, w, groups=4).sum())

    with FlopCounterMode(display=False) as counter:
        function()
    assert (counted(function), counter.get_total_flops()) == (3 * forward, 6 * forward)


def test_attention_on_a_cpu(counted: Count) -> None:
    """The flash kernel of the CPU counts as the attention that it is, where FCM says 0."""
    q, k, v = (torch.randn(2, 4, n, 16, requires_grad=True) for n in (8, 6, 6))

    def function() -> None:
        torch.autograd.backward(F.scaled_dot_product_attention(q, k, v).sum())

    assert counted(function) == 2 * (2 * 4 * 8 * 6) * 16 * (2 + 5)


@pytest.mark.parametrize(
    ("layer", "forward"),
    [
        (nn.RNN(6, 10), 2 * 6 * 10 * (6 + 10)),
        (nn.GRU(6, 10), 2 * 6 * 30 * (6 + 10)),
        (nn.LSTM(6, 10), 2 * 6 * 40 * (6 + 10)),
        (nn.LSTM(6, 10, 2, bidirectional=True), 2 * 2 * 6 * 40 * ((6 + 10) + (20 + 10))),
        (nn.LSTM(6, 10, 4, bidirectional=True), 2 * 2 * 6 * 40 * ((6 + 10) + 3 * (20 + 10))),
    ],
)
def test_recurrent_layers_in_real_profiles(layer: nn.RNNBase, forward: int, counted: Count) -> None:
    """A step of training costs three forward passes where all inputs need gradients."""
    x = torch.randn(3, 2, 6, requires_grad=True)
    shape = (layer.num_layers * (2 if layer.bidirectional else 1), 2, 10)
    states = [torch.zeros(shape, requires_grad=True) for _ in range(2)]
    hidden = tuple(states) if isinstance(layer, nn.LSTM) else states[0]
    assert counted(torch.no_grad()(lambda: layer(x, hidden))) == forward
    assert counted(lambda: layer(x, hidden)[0].sum().backward()) == 3 * forward


def test_the_fast_path_of_a_transformer(counted: Count) -> None:
    """The fused layer of evaluation costs as much as the modules that it replaces."""
    layer = nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True)
    x = torch.randn(2, 5, 16)
    with FlopCounterMode(display=False) as counter, torch.no_grad(), math_attention():
        layer(x)
    layer.eval()
    assert counted(torch.inference_mode()(lambda: layer(x))) == counter.get_total_flops()


def test_a_packed_weight_leaves_flops_unknown(tmp_path: Path) -> None:
    from support.trace_builder import TraceBuilder

    from pytest_torchprof.trace.read import parse_trace
    from pytest_torchprof.verdict.metrics import METRICS, measure

    builder = TraceBuilder()
    builder.op("quantized::linear_dynamic", [[2, 8], [], []])
    value = measure(METRICS["flops"], parse_trace(builder.to_bytes()))
    assert isinstance(value, MissingValue)
    assert "has a packed weight" in value.reason.text
