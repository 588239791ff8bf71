"""Causal attention: `flops` is of all pairs, a kernel is rated by those that its mask leaves."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.trace_builder import TraceBuilder

from pytest_torchprof import api
from pytest_torchprof.analysis.kernels import kernel_rows
from pytest_torchprof.cli import main
from pytest_torchprof.trace.read import parse_trace
from pytest_torchprof.verdict.metrics import METRICS, measure
from pytest_torchprof.work.flops import FORMULAS, MASKS, Attention, share

FLASH = "aten::_scaled_dot_product_flash_attention"
PART = "aten::_flash_attention_forward"
EFFICIENT = "aten::_efficient_attention_forward"


def arguments(*, causal: str = "True", at: int, more: dict[int, str] | None = None) -> list[str]:
    return [{**(more or {}), at: causal}.get(i, "") for i in range(30)]


def visible(tokens: int, keys: int, low: int | None, high: int | None) -> Fraction:
    """The part of a matrix of scores between two of its diagonals."""
    seen = torch.ones(tokens, keys, dtype=torch.bool)
    seen = seen if high is None else seen.tril(high)
    seen = seen if low is None else seen.triu(low)
    return Fraction(int(seen.sum()), tokens * keys)


@given(st.integers(1, 9), st.integers(1, 9), st.booleans(), st.integers(-1, 9), st.integers(-1, 9))
def test_what_a_mask_leaves_is_what_torch_leaves_between_two_diagonals(
    tokens: int, keys: int, causal: bool, before: int, after: int
) -> None:
    """Flash attention's windows count from the last query, which sees the last key."""
    operands = [[2, tokens, 3, 16], [2, keys, 3, 16], [2, keys, 3, 16], [], []]
    more = {11: str(before), 12: str(after)}
    found = share(PART, operands, None, arguments(causal=str(causal), at=8, more=more))
    shift = keys - tokens
    low = None if before < 0 else shift - before
    high = shift if causal else None if after < 0 else shift + after
    assert found == float(visible(tokens, keys, low, high))


@given(st.integers(1, 9), st.integers(1, 9))
def test_a_causal_mask_begins_at_a_corner(tokens: int, keys: int) -> None:
    heads = [[2, 3, tokens, 16], [2, 3, keys, 16], [2, 3, keys, 16]]
    efficient = "aten::_scaled_dot_product_efficient_attention"
    left, right = visible(tokens, keys, None, 0), visible(tokens, keys, None, keys - tokens)
    assert share(efficient, heads, None, arguments(at=6)) == float(left)
    assert share(FLASH, heads, None, arguments(at=4)) == float(right)
    rows = [[b, s, h, d] for b, h, s, d in heads]
    for kind, expected in (("0", 1), ("1", left), ("2", right)):
        assert share(EFFICIENT, rows, None, arguments(causal=kind, at=9)) == float(expected)


SQUARE = [[1, 2, 4, 64]] * 3
RAGGED = [[8, 4, 16], [8, 4, 16], [8, 4, 16], [3], [3]]  # two sequences


@pytest.mark.parametrize(
    ("name", "dims", "concrete", "expected"),
    [
        (FLASH, SQUARE, arguments(at=4), 10 / 16),
        (FLASH, SQUARE, arguments(causal="False", at=4), 1),
        (FLASH, SQUARE, None, 1),  # a trace that does not tell
        (FLASH, SQUARE, arguments(causal="", at=4), 1),
        ("aten::mm", [[4, 5], [5, 6]], None, 1),  # hides nothing
        (PART, RAGGED, arguments(at=8, more={5: "4", 6: "4"}), 10 / 16),
        (PART, RAGGED, arguments(at=8, more={5: "5", 6: "4"}), None),  # of several lengths
        (PART, RAGGED, arguments(causal="False", at=8, more={5: "5", 6: "4"}), 1),
        ("torch_attn::_varlen_attn", RAGGED, arguments(
            causal="False", at=7, more={5: "4", 6: "4", 9: "[-1, 0]"}), 10 / 16),
        ("flash_attn_3::fwd", [[1, 4, 2, 64]] * 3, arguments(
            at=24, more={25: "-1", 26: "-1"}), 10 / 16),
        ("aten::_scaled_dot_product_fused_attention_overrideable",
         [SQUARE[0], [1, 2, 6, 64], [1, 2, 6, 64]], arguments(at=5), None),  # which corner?
    ],
)  # fmt: skip
def test_the_share_of_a_call(
    name: str, dims: list[Any], concrete: list[str] | None, expected: float | None
) -> None:
    assert share(name, dims, None, concrete) == expected


@pytest.mark.parametrize("name", [name for name in MASKS if not name.startswith("flash_attn")])
def test_positions_are_those_of_torchs_schemas(name: str) -> None:
    space, _, operator = name.partition("::")
    if space != "aten":
        pytest.importorskip("torch.nn.attention.varlen")  # which registers it
    packet = getattr(getattr(torch.ops, space), operator, None)
    if packet is None:
        pytest.skip("not in this version of torch")
    names = [argument.name for argument in packet.default._schema.arguments]
    mask = MASKS[name]
    assert names[mask.causal] in {"is_causal", "custom_mask_type"}
    if mask.window is not None and mask.window < len(names):
        assert names[mask.window] in {"window_size_left", "window_size"}


def test_every_formula_of_attention_has_a_mask() -> None:
    """But for Metal's, of which there are no kernels to rate."""
    attention = {name for name, formula in FORMULAS.items() if isinstance(formula, Attention)}
    assert attention - MASKS.keys() == {"aten::_scaled_dot_product_attention_math_for_mps"}


# ------------------------------------------------------------------------------- kernels

HEADS = [[2, 16, 2048, 64]] * 3
ALL_PAIRS = 4 * 2 * 16 * 2048**2 * 64  # 34.4 GFLOP
LEFT = 4 * 2 * 16 * (2048 * 2049 // 2) * 64


def causal(concrete: list[str] | None) -> TraceBuilder:
    b = TraceBuilder("NVIDIA H100 80GB HBM3", (9, 0))
    with b.op(FLASH, HEADS, ["c10::BFloat16"] * 3, concrete):
        b.launch("flash_fwd_kernel<Flash_fwd_kernel_traits<64>>", 50)
    return b


def test_a_causal_kernel_is_rated_by_what_it_does() -> None:
    """At 50 us, all pairs would be 70 % of an H100's peak; the kernel does half of them."""
    trace = parse_trace(causal(["", "", "", "0.", "True", "False", ""]).to_bytes())
    assert measure(METRICS["flops"], trace) == ALL_PAIRS
    (row,) = kernel_rows(trace)
    assert row.flops == ALL_PAIRS
    assert row.tflops_per_s == pytest.approx(LEFT / 50e-6 / 1e12)
    assert row.compute_pct == pytest.approx(100 * LEFT / 50e-6 / 989.4e12, rel=1e-3)
    (full,) = kernel_rows(parse_trace(causal(["", "", "", "0.", "False", "False", ""]).to_bytes()))
    assert full.tflops_per_s == pytest.approx(ALL_PAIRS / 50e-6 / 1e12)


def test_a_kernel_that_skips_an_unknown_amount_has_no_rate() -> None:
    """It is causal, and the sequences are of several lengths."""
    b = TraceBuilder("NVIDIA H100 80GB HBM3", (9, 0))
    with b.op(PART, RAGGED, ["c10::Half"] * 5, arguments(at=8, more={5: "5", 6: "4"})):
        b.launch("flash_fwd_kernel", 50)
    (row,) = kernel_rows(parse_trace(b.to_bytes()))
    assert (row.flops, row.tflops_per_s, row.compute_pct) == (4 * 4 * 8 * 4 * 16, None, None)


def test_the_output_states_which_of_the_two_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = causal(["", "", "", "0.", "True", "False", ""]).save(tmp_path / "causal.json")
    message = (
        "TFLOP/s and % of 1 kernel count only what a causal mask keeps; flops counts all pairs"
    )
    main(["kernels", str(path)])
    assert message in capsys.readouterr().out
    main(["kernels", str(path), "--format", "json"])
    assert any(note.startswith(message) for note in json.loads(capsys.readouterr().out)["notes"])
    api.augment(path, tmp_path / "more.json")
    events = json.loads((tmp_path / "more.json").read_text())["traceEvents"]
    (args,) = (event["args"] for event in events if event.get("cat") == "kernel")
    assert (args["flops"], args["flops left by the mask"]) == (ALL_PAIRS, LEFT)
    assert args["achieved TFLOP/s"] == pytest.approx(LEFT / 50e-6 / 1e12, rel=1e-3)
    other = causal(["", "", "", "0.", "", "False", ""]).save(tmp_path / "unknown.json")
    main(["kernels", str(other)])
    assert "without arguments, 1 kernel of attention may be causal" in capsys.readouterr().out
