"""Compulsory bytes: worked out by hand, and against tensors that really were read and written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile, record_function

from pytest_torchprof.trace.arguments import decode_part
from pytest_torchprof.trace.read import read_trace
from pytest_torchprof.work.bytes import TRAFFIC, compulsory_bytes
from pytest_torchprof.work.operands import ELEMENT_BYTES, SCALAR_TYPES, Tensor

Call = tuple[str, list[Any], list[str], list[str] | None]  # name, dims, types, concrete
HALF, BF16, FLOAT, LONG = "c10::Half", "c10::BFloat16", "float", "long int"
FP8, INT8 = "c10::Float8_e4m3fn", "signed char"
NUMBER, LIST, NONE = "Scalar", "ScalarList", ""


def bytes_of(call: Call, strides: Any = None, item_bytes: int | None = None) -> int | None:
    name, dims, types, concrete = call
    return compulsory_bytes(name, dims, types, strides, concrete, item_bytes)


# ------------------------------------------------------------------------------------- by hand

PRODUCTS: list[tuple[Call, int | None]] = [
    # 20 + 30 read, 24 written: not twice anything, and with the output
    (("aten::mm", [[4, 5], [5, 6]], [FLOAT] * 2, None), 4 * (20 + 30 + 24)),
    (("aten::mm", [[4, 5], [5, 6]], [BF16] * 2, None), 2 * (20 + 30 + 24)),
    (("aten::mm", [[4, 5], [5, 6], [0]], [FLOAT] * 3, ["", "", ""]), 296),  # out=, not resized yet
    (("aten::mm", [[4, 5], [5, 6], []], [BF16, BF16, NUMBER], ["", "", "6"]), 2 * 50 + 4 * 24),
    (("aten::mm", [[0, 5], [5, 6]], [FLOAT] * 2, None), 120),
    (("aten::mm", [[4, 5], [6, 5]], [FLOAT] * 2, None), None),
    (
        (
            "aten::addmm",
            [[6], [4, 5], [5, 6], [], []],
            [FLOAT] * 3 + [NUMBER] * 2,
            ["", "", "", "1", "1"],
        ),
        4 * (6 + 20 + 30 + 24),
    ),
    (  # what beta = 0 multiplies is not read
        (
            "aten::addmm",
            [[4, 6], [4, 5], [5, 6], [], []],
            [FLOAT] * 3 + [NUMBER] * 2,
            ["", "", "", "0", "1"],
        ),
        4 * (20 + 30 + 24),
    ),
    (
        ("aten::addmm_", [[4, 6], [4, 5], [5, 6], [], []], [FLOAT] * 3 + [NUMBER] * 2, None),
        4 * (24 + 20 + 30 + 24),
    ),
    (("aten::bmm", [[2, 3, 4], [2, 4, 5]], [HALF] * 2, None), 2 * (24 + 40 + 30)),
    (  # the bias is broadcast, and read once
        (
            "aten::baddbmm",
            [[1, 3, 5], [2, 3, 4], [2, 4, 5], [], []],
            [HALF] * 3 + [NUMBER] * 2,
            ["", "", "", "1", "1"],
        ),
        2 * (15 + 24 + 40 + 30),
    ),
    (("aten::mv", [[4, 5], [5]], [FLOAT] * 2, None), 4 * (20 + 5 + 4)),
    (("aten::dot", [[5], [5]], [FLOAT] * 2, None), 4 * 11),
    (("aten::_int_mm", [[32, 16], [16, 8]], [INT8] * 2, None), 512 + 128 + 4 * 256),
    (
        (
            "aten::_scaled_mm",
            [[16, 32], [32, 16], [], [], [], [], [], []],
            [FP8, FP8, FLOAT, FLOAT, NONE, NONE, NUMBER, NUMBER],
            ["", "", "", "", "", "", "15", "True"],
        ),
        512 + 512 + 4 + 4 + 2 * 256,
    ),
    (
        (
            "aten::_grouped_mm",
            [[16, 32], [2, 32, 16], [2], [], []],
            [BF16, BF16, "int", NONE, NONE],
            None,
        ),
        2 * (512 + 1024 + 256) + 8,
    ),
    (("aten::mm", [[4, 5], [5, 6]], [FLOAT, "c10::Unheard"], None), None),
    (("aten::mm", [[4, 5], [5, 6]], [], None), None),
]

X, W = [2, 4, 9, 9], [6, 2, 3, 3]  # two groups, 5 × 5 places at stride 2
CONVOLVED = ["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "2"]
TURNED = ["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "True", "[1, 1]", "2"]
CONV = [FLOAT] * 3 + [LIST] * 3 + [NUMBER, LIST, NUMBER]
BACK = [FLOAT] * 3 + [LIST] * 4 + [NUMBER, LIST, NUMBER, LIST]
GRADIENTS = ["", "", "", "[6]", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "2"]
CONVOLUTIONS: list[tuple[Call, int | None]] = [
    (
        ("aten::convolution", [X, W, [6], *[[]] * 6], CONV, CONVOLVED),
        4 * (648 + 108 + 6 + 2 * 6 * 25),
    ),
    # transposed: (9 - 1) × 2 - 2 + 2 + 1 + 1 = 18 places, 3 channels in each of 2 groups
    (
        (
            "aten::convolution",
            [X, [4, 3, 3, 3], [], *[[]] * 6],
            [*CONV[:2], NONE, *CONV[3:]],
            TURNED,
        ),
        4 * (648 + 108 + 2 * 6 * 18 * 18),
    ),
    (
        (
            "aten::cudnn_convolution_transpose",
            [X, [4, 3, 3, 3], *[[]] * 8],
            [FLOAT] * 2 + [LIST] * 4 + [NUMBER] * 4,
            ["", "", "[1, 1]", "[1, 1]", "[2, 2]", "[1, 1]", "2", "False", "False", "True"],
        ),
        4 * (648 + 108 + 2 * 6 * 18 * 18),
    ),
    (
        (
            "aten::cudnn_convolution",
            [X, W, *[[]] * 7],
            [BF16] * 2 + [LIST] * 3 + [NUMBER] * 4,
            ["", "", "[1, 1]", "[2, 2]", "[1, 1]", "2", "False", "False", "True"],
        ),
        2 * (648 + 108 + 300),
    ),
    (("aten::convolution", [X, W, [6], *[[]] * 6], CONV, None), None),
    (  # all three gradients: x and w are read and written, the gradient is read
        (
            "aten::convolution_backward",
            [[2, 6, 5, 5], X, W, *[[]] * 8],
            BACK,
            [*GRADIENTS, "[True, True, True]"],
        ),
        4 * (300 + 2 * 648 + 2 * 108 + 6),
    ),
    (  # only the input's: its values are not needed
        (
            "aten::convolution_backward",
            [[2, 6, 5, 5], X, W, *[[]] * 8],
            BACK,
            [*GRADIENTS, "[True, False, False]"],
        ),
        4 * (300 + 648 + 108),
    ),
]

Q, K, V = [2, 8, 4, 16], [2, 6, 4, 16], [2, 6, 4, 12]  # batch, tokens, heads, width
FLASH = [BF16] * 3 + [NONE] * 2 + [NUMBER] * 6
ATTENTION: list[tuple[Call, int | None]] = [
    (  # 1024 + 768 + 576 read, 768 written, and a sum in single precision for each query
        ("aten::_flash_attention_forward", [Q, K, V, *[[]] * 8], FLASH, [""] * 11),
        2 * (1024 + 768 + 576 + 768) + 4 * 64,
    ),
    (
        (
            "aten::_efficient_attention_forward",
            [Q, K, V, [2, 4, 8, 6], *[[]] * 8],
            [BF16] * 4 + [NONE] * 4 + [NUMBER] * 4,
            [*[""] * 11, "False"],
        ),
        2 * (1024 + 768 + 576 + 768 + 384),
    ),
    (
        (
            "aten::_flash_attention_backward",
            [[2, 8, 4, 12], Q, K, V, [2, 8, 4, 12], [2, 4, 8], [], []],
            [BF16] * 5 + [FLOAT, NONE, NONE],
            [""] * 8,
        ),
        2 * (768 + 1024 + 768 + 576 + 768 + 1024 + 768 + 576) + 4 * 64,
    ),
]

ATTENTION += [
    (  # on the host; the mask is the sixth argument
        (
            "aten::_scaled_dot_product_flash_attention_for_cpu",
            [[2, 3, 4, 8], [2, 3, 5, 8], [2, 3, 5, 8], [], [], [4, 5], []],
            [*[FLOAT] * 3, NUMBER, NUMBER, FLOAT, NONE],
            ["", "", "", "0.", "False", "", ""],
        ),
        4 * (192 + 240 + 240 + 20 + 192 + 24),
    ),
]

ELEMENTWISE: list[tuple[Call, int | None]] = [
    (("aten::add", [[4, 5], [5], []], [FLOAT, FLOAT, NUMBER], ["", "", "1"]), 4 * (20 + 5 + 20)),
    # a Python number is recorded as a tensor without dimensions
    (("aten::add", [[4, 5], [], []], [FLOAT, LONG, NUMBER], ["", "", "1"]), 160),
    (("aten::mul", [[4, 5], []], [BF16, "double"], ["", ""]), 80),
    (("aten::mul", [[4, 5], []], [BF16, FLOAT], ["", ""]), 80),
    # … so for an integer and a double, the resulting float type is unknown
    (("aten::mul", [[4, 5], []], ["int", "double"], ["", ""]), None),
    (("aten::mul", [[4, 5], []], ["int", FLOAT], ["", ""]), 160),
    (("aten::add", [[], [], []], [LONG, LONG, NUMBER], ["", "", "1"]), 24),
    # dtypes meet: bf16 and float, half and bf16, uint8 and int8, bool and int
    (("aten::add", [[4], [4], []], [BF16, FLOAT, NUMBER], ["", "", "1"]), 4 * (2 + 4 + 4)),
    (("aten::add", [[4], [4], []], [BF16, HALF, NUMBER], ["", "", "1"]), 4 * (2 + 2 + 4)),
    (("aten::add", [[4], [4], []], [INT8, "unsigned char", NUMBER], ["", "", "1"]), 4 * 4),
    (("aten::sub", [[4], [4], []], ["unsigned char", FLOAT, NUMBER], ["", "", "1"]), 4 * 9),
    (("aten::mul", [[4], [4]], ["bool", LONG], ["", ""]), 4 * 17),
    (("aten::mul", [[4], [4]], ["c10::complex<float>", FLOAT], ["", ""]), 4 * 20),
    (("aten::gt", [[4, 5], []], [FLOAT, NUMBER], ["", "0"]), 100),
    (("aten::eq", [[4], [4]], [LONG, LONG], ["", ""]), 68),
    (("aten::pow", [[4], []], ["int", NUMBER], ["", "0.5"]), 32),
    (("aten::pow", [[4], []], ["int", NUMBER], ["", "2"]), 32),
    # a trace without concrete inputs: among floats, no number decides
    (("aten::pow", [[4], []], [FLOAT, NUMBER], None), 32),
    (("aten::pow", [[4], []], ["int", NUMBER], None), None),
    (("aten::div", [[4], [4]], ["int", "int"], ["", ""]), 48),
    (("aten::div", [[4], [4]], [LONG, LONG], ["", ""]), 80),
    (("aten::div", [[4], [4], []], [LONG, LONG, NUMBER], ["", "", "floor"]), 96),
    (("aten::exp", [[4]], [LONG], [""]), 48),
    (("aten::exp_", [[4]], [FLOAT], [""]), 32),
    (("aten::add_", [[4, 5], [5], []], [FLOAT, FLOAT, NUMBER], ["", "", "1"]), 180),
    # out=: not resized yet, and in a dtype of its own
    (("aten::abs", [[1, 4], [0]], [FLOAT, FLOAT], ["", ""]), 32),
    (
        ("aten::add", [[4], [4], [], [4]], [FLOAT, FLOAT, NUMBER, "double"], ["", "", "1", ""]),
        4 * (4 + 4 + 8),
    ),
    (("aten::where", [[4], [4], []], ["bool", FLOAT, NUMBER], ["", "", "0."]), 36),
    (("aten::addcmul", [[4], [4], [4], []], [FLOAT] * 3 + [NUMBER], ["", "", "", "1"]), 64),
    (("aten::copy_", [[4, 5], [5], []], [BF16, FLOAT, NUMBER], ["", "", "False"]), 60),
    (("aten::_to_copy", [[4], *[[]] * 6], [FLOAT, NUMBER, *[NONE] * 5], ["", "15", *[""] * 5]), 24),
    (("aten::fill_", [[4], []], [FLOAT, NUMBER], ["", "0."]), 16),
    (("aten::native_dropout", [[4], [], []], [HALF, NUMBER, NUMBER], ["", "0.1", "True"]), 20),
    (("aten::add", [[4], [3], []], [FLOAT, FLOAT, NUMBER], ["", "", "1"]), None),
    (("aten::add_", [[4], [3, 4], []], [FLOAT, FLOAT, NUMBER], ["", "", "1"]), None),
]

REDUCTIONS: list[tuple[Call, int | None]] = [
    (("aten::sum", [[4, 5], []], [FLOAT, NONE], ["", ""]), 84),
    (
        ("aten::sum", [[4, 5], [], [], []], [FLOAT, LIST, NUMBER, NONE], ["", "[1]", "False", ""]),
        96,
    ),
    (
        ("aten::sum", [[4, 5], [], [], []], ["bool", LIST, NUMBER, NONE], ["", "[-2]", "True", ""]),
        60,
    ),
    (
        (
            "aten::sum",
            [[4, 5], [], [], []],
            ["bool", LIST, NUMBER, NUMBER],
            ["", "[0]", "True", "3"],
        ),
        40,
    ),
    (("aten::sum", [[4, 5], [], [], []], [FLOAT, NONE, NUMBER, NONE], None), None),
    (("aten::mean", [[4, 5], [], [], []], [BF16, LIST, NUMBER, NONE], ["", "[]", "False", ""]), 42),
    (("aten::max", [[4, 5]], [FLOAT], [""]), 84),
    (("aten::max", [[4, 5], [], []], [FLOAT, NUMBER, NUMBER], ["", "1", "False"]), 80 + 4 * 12),
    (("aten::max", [[4, 5], [5]], [FLOAT, FLOAT], ["", ""]), 180),
    (("aten::any", [[4, 5]], [FLOAT], [""]), 81),
    (("aten::_softmax", [[4, 5], [], []], [HALF, NUMBER, NUMBER], ["", "1", "True"]), 120),
    (("aten::_softmax", [[4, 5], [], []], [FLOAT, NUMBER, NUMBER], None), 160),
    (("aten::_softmax", [[4, 5], [], []], [HALF, NUMBER, NUMBER], None), None),
    (  # input, weight and bias; output, and mean and deviation of 4 rows in single precision
        (
            "aten::native_layer_norm",
            [[4, 8], [], [8], [8], []],
            [BF16, LIST, BF16, BF16, NUMBER],
            ["", "[8]", "", "", "1e-05"],
        ),
        2 * (32 + 8 + 8 + 32) + 2 * 4 * 4,
    ),
    (  # gradients of input, weight and bias; the bias itself is not read
        (
            "aten::native_layer_norm_backward",
            [[4, 8], [4, 8], [], [4, 1], [4, 1], [8], [8], []],
            [FLOAT, FLOAT, LIST, FLOAT, FLOAT, FLOAT, FLOAT, LIST],
            ["", "", "[8]", "", "", "", "", "[True, True, True]"],
        ),
        4 * (32 + 32 + 4 + 4 + 8 + 32 + 8 + 8),
    ),
    (
        (
            "aten::native_batch_norm",
            [[4, 8], [8], [8], [8], [8], [], [], []],
            [FLOAT] * 5 + [NUMBER] * 3,
            ["", "", "", "", "", "True", "0.1", "1e-05"],
        ),
        4 * (32 + 4 * 8 + 32 + 2 * 8 + 2 * 8),
    ),
    (
        (
            "aten::cudnn_batch_norm",
            [[4, 8], [8], [8], [8], [8], [], [], []],
            [FLOAT] * 5 + [NUMBER] * 3,
            ["", "", "", "", "", "False", "0.1", "1e-05"],
        ),
        4 * (32 + 4 * 8 + 32),
    ),
]

TABLE: list[tuple[Call, int | None]] = [
    (  # 6 rows of 8 out of a million, not the table
        (
            "aten::embedding",
            [[1_000_000, 8], [2, 3], [], [], []],
            [FLOAT, LONG, *[NUMBER] * 3],
            None,
        ),
        4 * (48 + 48) + 48,
    ),
    (  # more indices than rows: the whole table, once
        ("aten::embedding", [[4, 8], [100]], [FLOAT, LONG], None),
        4 * (32 + 800) + 800,
    ),
    (
        (
            "aten::embedding_dense_backward",
            [[2, 3, 8], [2, 3], [], [], []],
            [FLOAT, LONG, *[NUMBER] * 3],
            ["", "", "100", "-1", "False"],
        ),
        4 * (48 + 800) + 48,
    ),
    (("aten::index_select", [[10, 8], [], [3]], [FLOAT, NUMBER, LONG], ["", "0", ""]), 216),
    (
        (
            "aten::gather",
            [[10, 8], [], [10, 2], []],
            [FLOAT, NUMBER, LONG, NUMBER],
            ["", "1", "", ""],
        ),
        8 * 20 + 4 * 40,
    ),
    (
        (
            "aten::scatter_add_",
            [[10, 8], [], [3, 8], [3, 8]],
            [FLOAT, NUMBER, LONG, FLOAT],
            ["", "0", "", ""],
        ),
        8 * 24 + 4 * (24 + 2 * 24),
    ),
    (
        (
            "aten::index_add_",
            [[10, 8], [], [3], [3, 8], []],
            [FLOAT, NUMBER, LONG, FLOAT, NUMBER],
            None,
        ),
        8 * 3 + 4 * (24 + 2 * 24),
    ),
    (  # 5 × 5 windows of 2 × 2 in 10 × 10, values and indices
        (
            "aten::max_pool2d_with_indices",
            [[1, 2, 10, 10], *[[]] * 5],
            [FLOAT, *[LIST] * 4, NUMBER],
            ["", "[2, 2]", "[]", "[0, 0]", "[1, 1]", "False"],
        ),
        4 * 200 + 12 * 50,
    ),
    (
        (
            "aten::upsample_bilinear2d",
            [[1, 2, 4, 4], [], [], [], []],
            [BF16, LIST, NUMBER, NONE, NONE],
            ["", "[8, 8]", "False", "", ""],
        ),
        2 * (32 + 128),
    ),
    (("aten::topk", [[4, 10], *[[]] * 4], [FLOAT, *[NUMBER] * 4], ["", "2", "-1", "", ""]), 256),
    (("aten::_local_scalar_dense", [[]], [HALF], [""]), 2),
    (  # 2, 5, 8; the output is resized afterwards
        ("aten::arange", [[], [], [], [0]], [*[NUMBER] * 3, LONG], ["2", "9", "3", ""]),
        8 * 3,
    ),
    (("aten::arange", [[]] * 5, [NUMBER, *[NONE] * 4], ["5", "", "", "", ""]), None),
    (("aten::linspace", [[], [], [], [7]], [*[NUMBER] * 3, FLOAT], ["0", "1", "7", ""]), 7 * 4),
    (("aten::linspace", [[]] * 7, [*[NUMBER] * 3, *[NONE] * 4], ["0", "1", "7", *[""] * 4]), None),
    (
        ("aten::logspace", [[]] * 4 + [[7]], [*[NUMBER] * 4, LONG], ["0", "1", "7", "10.", ""]),
        7 * 8,
    ),
    (("aten::scalar_tensor", [[]] * 5, [NUMBER, NUMBER], ["3", "4", "", "", ""]), 8),
    (("aten::scalar_tensor", [[]] * 5, [NUMBER, NONE], ["3.", "", "", "", ""]), None),
    *(
        (
            ("aten::diagonal_copy", [shape] + [[]] * 3, [FLOAT, *[NUMBER] * 3], ["", *at]),
            2 * n * 4,
        )
        for shape, at, n in (
            ([4, 6], ["0", "0", "1"], 4),
            ([4, 6], ["3", "0", "1"], 3),
            ([4, 6], ["-3", "0", "1"], 1),
            ([4, 6], ["9", "0", "-1"], 0),
            ([3, 4, 5], ["1", "1", "2"], 3 * 4),
        )
    ),
    (("aten::trace", [[4, 6]], [FLOAT], [""]), 4 * 4 + 4),
    (("aten::trace", [[4, 4]], [LONG], [""]), 4 * 8 + 8),
    (  # of each sample its class; the loss, and the sum of the weights
        (
            "aten::nll_loss_forward",
            [[4, 5], [4], [], [], []],
            [FLOAT, LONG, NONE, NUMBER, NUMBER],
            ["", "", "", "1", "-100"],
        ),
        8 * 4 + 4 * (4 + 1 + 1),
    ),
    (  # a loss for each sample, and weights of classes
        (
            "aten::nll_loss_forward",
            [[4, 5], [4], [5], [], []],
            [FLOAT, LONG, FLOAT, NUMBER, NUMBER],
            ["", "", "", "0", "-100"],
        ),
        8 * 4 + 4 * (4 + 4 + 4 + 1),
    ),
    (
        (
            "aten::nll_loss_backward",
            [[], [4, 5], [4], [], [], [], []],
            [FLOAT, FLOAT, LONG, NONE, NUMBER, NUMBER, FLOAT],
            ["", "", "", "", "1", "-100", ""],
        ),
        8 * 4 + 4 * (1 + 20 + 1),
    ),
    (("aten::mse_loss", [[4, 5], [4, 5], []], [FLOAT, FLOAT, NUMBER], ["", "", "1"]), 4 * 41),
    (("aten::mse_loss", [[4, 5], [5], []], [FLOAT, FLOAT, NUMBER], ["", "", "0"]), 4 * 45),
    (
        (
            "aten::mse_loss_backward",
            [[], [4, 5], [4, 5], []],
            [*[FLOAT] * 3, NUMBER],
            ["", "", "", "1"],
        ),
        4 * 60,
    ),
    (("aten::index", [[4, 8], []], [FLOAT, NONE], ["", ""]), None),  # where, is not in a trace
    (("aten::cat", [[[4, 5], [2, 5]], []], ["TensorList", NUMBER], ["", "0"]), None),
    (("mine::kernel", [[4, 5]], [FLOAT], [""]), None),
]


@pytest.mark.parametrize(
    ("call", "expected"),
    [*PRODUCTS, *CONVOLUTIONS, *ATTENTION, *ELEMENTWISE, *REDUCTIONS, *TABLE],
)
def test_every_input_is_read_once_and_every_output_written_once(
    call: Call, expected: int | None
) -> None:
    assert expected == bytes_of(call)


@pytest.mark.parametrize(
    ("call", "strides"),
    [
        (("aten::mm", [[40, 50], [50, 6]], [FLOAT] * 2, ["", ""]), [[], [6, 1]]),
        (("aten::mul", [[40, 50], [40, 50]], [FLOAT] * 2, ["", ""]), [[50, 1], []]),
    ],
)
def test_how_many_bytes_a_sparse_tensor_has_is_unknown(call: Call, strides: Any) -> None:
    """A trace has no strides of it, and the shape of what it stands for."""
    assert bytes_of(call, strides) is None
    assert bytes_of(call, [[50, 1], [6, 1]]) is not None


@pytest.mark.parametrize(
    ("shape", "strides", "expected"),
    [
        ([4, 5], [5, 1], 20),
        ([4, 5], [1, 4], 20),
        ([4, 5], [0, 1], 5),  # expanded
        ([4, 5], [0, 0], 1),
        ([4, 5], [100, 1], 20),  # a slice of rows
        ([7, 3], [1, 1], 9),  # sliding windows
        ([], [], 1),
        ([0, 5], [5, 1], 0),
        ([4, 5], [5], 20),  # junk
        ([4, 5], None, 20),  # a trace of 2023 has none
    ],
)
def test_elements_in_memory(shape: list[int], strides: list[int] | None, expected: int) -> None:
    found = Tensor(tuple(shape), FLOAT, None if strides is None else tuple(strides))
    assert expected == found.distinct


def test_an_expanded_operand_is_read_once() -> None:
    call: Call = ("aten::add", [[4, 5], [4, 5], []], [FLOAT, FLOAT, NUMBER], ["", "", "1"])
    assert bytes_of(call, [[5, 1], [5, 1], []]) == 240
    assert bytes_of(call, [[5, 1], [0, 1], []]) == 180


def test_lists_of_tensors_need_the_size_of_their_elements() -> None:
    """A trace says "TensorList" and no type; the kernel's name may tell."""
    cat: Call = ("aten::cat", [[[4, 5], [2, 5]], []], ["TensorList", NUMBER], ["", "0"])
    assert bytes_of(cat, None, 2) == 2 * 2 * 30  # not the product of all dimensions
    assert bytes_of(cat, [[[0, 1], [5, 1]], []], 2) == 2 * (5 + 10 + 30)
    add: Call = ("aten::_foreach_add_", [[[4], [3]], [[4], [3]]], ["TensorList"] * 2, ["", ""])
    assert bytes_of(add, None, 4) == 4 * 21
    assert (
        bytes_of(("aten::_foreach_add_", [[], []], ["TensorList"] * 2, ["", ""]), None, 4) is None
    )
    lists = [[[4]], [[4]], [[4]], [[4]], [], [[]]]
    adam: Call = ("aten::_fused_adamw_", lists, ["TensorList"] * 6, None)
    assert bytes_of(adam, None, 4) == 4 * (4 * 7 + 1)
    norm: Call = ("aten::_foreach_norm", [[[4], [3]], []], ["TensorList", NUMBER], ["", "2."])
    assert bytes_of(norm, None, 2) == 2 * (7 + 2)


# ---------------------------------------------------------------------------------- against torch

Case = tuple[Callable[..., Any], tuple[torch.Tensor, ...], Sequence[Any]]


def cases() -> list[Case]:
    """An operator, the tensors that it reads, what else it takes."""
    aten = torch.ops.aten
    x, y, z = torch.randn(4, 8), torch.randn(4, 8), torch.randn(8)
    h, i, b = x.to(torch.bfloat16), torch.arange(32).reshape(4, 8), x > 0
    square, wide = torch.randn(8, 8), torch.randn(1, 8).expand(4, 8)
    image, kernel = torch.randn(2, 4, 9, 9), torch.randn(6, 2, 3, 3)
    batch = torch.randn(2, 4, 8)
    conv = [None, [2, 2], [1, 1], [1, 1], False, [0, 0], 2]
    turned = [None, [2, 2], [1, 1], [1, 1], True, [1, 1], 2]
    return [
        (aten.mm, (x, square), ()),
        (aten.mm, (h, square.to(torch.bfloat16)), ()),
        (aten.mm, (x, square.t()), ()),
        (aten.mm, (wide, square), ()),
        (aten.bmm, (batch, batch.transpose(1, 2)), ()),
        (aten.addmm, (z, x, square), ()),
        (aten.baddbmm, (torch.randn(1, 4, 4), batch, batch.transpose(1, 2)), ()),
        (aten.mv, (square, z), ()),
        (aten.dot, (z, z), ()),
        (aten.convolution, (image, kernel), conv),
        (aten.convolution, (image, torch.randn(4, 3, 3, 3)), turned),
        *((op, (x, y), ()) for op in (aten.add, aten.mul, aten.maximum, aten.atan2, aten.eq)),
        *((op, (x, z), ()) for op in (aten.add, aten.div, aten.lt, aten.pow)),
        *((op, (x, wide), ()) for op in (aten.add, aten.gelu_backward)),
        *((op, (h, x), ()) for op in (aten.add, aten.mul, aten.ge)),
        *((op, (i, x), ()) for op in (aten.add, aten.div)),
        *((op, (i, b), ()) for op in (aten.add, aten.mul, aten.div)),
        *((op, (i,), (2,)) for op in (aten.add, aten.mul, aten.gt, aten.remainder, aten.pow)),
        *((op, (x,), (2.5,)) for op in (aten.add, aten.mul, aten.gt, aten.pow, aten.clamp_min)),
        *((op, (x,), ()) for op in (aten.exp, aten.relu, aten.gelu, aten.sqrt, aten.isnan)),
        *((op, (i,), ()) for op in (aten.exp, aten.neg, aten.sigmoid, aten.logical_not)),
        *((op, (h,), ()) for op in (aten.exp, aten.silu, aten.abs)),
        (aten.where, (b, x, wide), ()),
        (aten.addcmul, (x, y, wide), ()),
        (aten.lerp, (x, y), (0.5,)),
        (aten.clamp, (x,), (0, 1)),
        (aten.clone, (x,), ()),
        (aten.flip, (x,), ([0],)),
        (aten.tril, (square,), ()),
        *((op, (t,), ()) for op in (aten.sum, aten.prod, aten.any, aten.all) for t in (x, i, b)),
        *((op, (t,), ([1],)) for op in (aten.sum, aten.amax) for t in (x, h, i)),
        *((op, (x,), ([0], True)) for op in (aten.sum, aten.mean, aten.amin)),
        *((op, (x,), (1,)) for op in (aten.max, aten.min, aten.argmax, aten.any, aten.sort)),
        (aten.argmin, (x,), ()),
        (aten.max, (x, y), ()),
        (aten.var, (x,), ([1],)),
        (aten.linalg_vector_norm, (x,), ()),
        (aten.linalg_vector_norm, (x,), (2, [1])),
        *((aten.cumsum, (t,), (1,)) for t in (x, i, b)),
        (aten._softmax, (x,), (1, False)),
        (aten._log_softmax, (h,), (1, False)),
        (aten._softmax_backward_data, (x, y), (1, torch.float32)),
        (aten.native_dropout, (x,), (0.5, True)),
        (aten.topk, (x,), (3,)),
        (aten.max_pool2d_with_indices, (image,), ([2, 2],)),
        (aten.max_pool2d_with_indices, (image,), ([3, 3], [2, 2], [1, 1], [1, 1], True)),
        (aten.max_pool2d_with_indices, (image,), ([2, 2], [2, 2], [0, 0], [1, 1], True)),
        (aten.avg_pool2d, (image,), ([3, 3], [2, 2], [1, 1])),
        (aten.upsample_nearest2d, (image,), ([18, 18],)),
        (aten._adaptive_avg_pool2d, (image,), ([3, 3],)),
        *((op, (x, y), (1, 20)) for op in (aten.softplus_backward,)),
        *((op, (x, y), ()) for op in (aten.mish_backward, aten.hardsigmoid_backward)),
        *((op, (x, y), (0.5,)) for op in (aten.hardshrink_backward, aten.softshrink_backward)),
        (aten.logit_backward, (x, y), (0.1,)),
        *((op, (t,), ()) for op in (aten.atanh, aten.asinh) for t in (x, i)),
        (aten.logit, (x,), (0.1,)),
        *((aten.aminmax, (t,), ()) for t in (x, h, i)),
        *((aten.var_mean, (x,), rest) for rest in ((), ([1],), ([0, 1],))),
        (aten.std_mean, (x,), ([0],)),
        *((aten.nansum, (x,), rest) for rest in ((), ([1],))),
        (aten._cdist_forward, (x, torch.randn(5, 8)), (2.0, None)),
        (aten._cdist_forward, (torch.randn(2, 1, 4, 8), torch.randn(3, 5, 8)), (1.0, None)),
        (aten.log_sigmoid_backward, (x, y, torch.randn(4, 8)), ()),
    ]


def in_memory(tensor: torch.Tensor) -> int:
    """Bytes at different addresses."""
    places = torch.as_strided(
        torch.arange(tensor.untyped_storage().nbytes() // tensor.element_size()),
        tensor.shape,
        tensor.stride(),
        tensor.storage_offset(),
    )
    return len(set(places.flatten().tolist())) * tensor.element_size()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, int | None, int]]:
    """Of each case: the operator, what its recorded call says, what its tensors hold."""
    results = []
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as session:
        for number, (function, tensors, rest) in enumerate(cases()):
            args = [*tensors, *rest]
            with record_function(f"case {number}"):
                out = function(*args)
            results.append(out if isinstance(out, tuple) else (out,))
    path: Path = tmp_path_factory.mktemp("traffic") / "trace.json"
    session.export_chrome_trace(str(path))
    trace = read_trace(path)
    found = []
    for number, ((_, tensors, _), out) in enumerate(zip(cases(), results, strict=True)):
        (mark,) = np.flatnonzero(trace.named(f"case {number}"))
        (event,) = np.flatnonzero(trace.parent == mark)
        name = trace.names[trace.name[event]]
        (message,) = trace.operands(np.array([event]))
        parts = map(bytes, (message.dims, message.types, message.strides, message.concrete))
        dims, types, strides, concrete = map(decode_part, parts)
        expected = sum(map(in_memory, tensors)) + sum(t.numel() * t.element_size() for t in out)
        found.append((name, compulsory_bytes(name, dims, types, strides, concrete), expected))
    return found


@pytest.mark.parametrize("number", range(len(cases())))
def test_bytes_are_those_of_the_tensors(
    number: int, recorded: list[tuple[str, int | None, int]]
) -> None:
    """Against the tensors that torch's operator took and gave."""
    name, bytes_, expected = recorded[number]
    assert (name, expected) == (name, bytes_)


def test_dtypes_have_the_names_and_numbers_that_torch_gives_them(tmp_path: Path) -> None:
    """A tensor's type is recorded by its C++ name, a dtype that is asked for by its number."""
    names = (
        "uint8 int8 int16 int32 int64 half float double complex64 complex128 bool "
        "bfloat16 float8_e5m2 float8_e4m3fn float8_e5m2fnuz float8_e4m3fnuz uint16 uint32 uint64"
    )
    dtypes = [getattr(torch, name) for name in names.split()]
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as session:
        for dtype in dtypes:
            torch.ops.aten.clone(torch.empty(2, dtype=dtype))
    session.export_chrome_trace(str(tmp_path / "trace.json"))
    trace = read_trace(tmp_path / "trace.json")
    outer = trace.parent < 0
    empty = trace.operands(np.flatnonzero(outer & trace.named("aten::empty")))
    clone = trace.operands(np.flatnonzero(outer & trace.named("aten::clone")))
    sizes = [dtype.itemsize for dtype in dtypes]
    numbers = [decode_part(bytes(args.concrete))[1] for args in empty]
    assert sizes == [ELEMENT_BYTES[SCALAR_TYPES[number]] for number in numbers]
    assert sizes == [ELEMENT_BYTES[decode_part(bytes(args.types))[0]] for args in clone]


# ------------------------------------------------------------------------------------- properties

JUNK: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    | st.sampled_from([*ELEMENT_BYTES, "Scalar", "TensorList", "[1, 1]", "True", "[", "1e400"]),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=40,
)  # fmt: skip
SHAPES = st.lists(st.lists(st.integers(0, 9), max_size=5), max_size=12)
TYPES = st.lists(st.sampled_from([FLOAT, BF16, LONG, "bool", NUMBER, LIST, NONE]), max_size=12)


@pytest.mark.thorough
@given(
    st.sampled_from([*TRAFFIC, "aten::view"]), SHAPES | JUNK, TYPES | JUNK, SHAPES | JUNK, JUNK,
    st.sampled_from([None, 2, 4]),
)  # fmt: skip
@settings(max_examples=500)
def test_junk_has_no_bytes(
    name: str, dims: Any, types: Any, strides: Any, concrete: Any, item: int | None
) -> None:
    """Whatever a trace contains, the answer is a count or None."""
    count = compulsory_bytes(name, dims, types, strides, concrete, item)
    assert count is None or (type(count) is int and 0 <= count < 2**63)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=4), st.data())
def test_strides_only_make_bytes_less(shape: list[int], data: st.DataObject) -> None:
    """No layout holds more elements than the shape has, nor fewer than one of them."""
    strides = data.draw(st.lists(st.integers(0, 9), min_size=len(shape), max_size=len(shape)))
    tensor = Tensor(tuple(shape), FLOAT, tuple(strides))
    addresses = {int(np.dot(at, strides)) for at in np.ndindex(*shape)}
    assert len(addresses) <= tensor.distinct <= prod(shape)
