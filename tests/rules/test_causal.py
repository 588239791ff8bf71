"""Attention that may have a mask counts as causal; a scale, a cast or a view is no mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
import torch
from support.live import captured
from torch.nn.functional import scaled_dot_product_attention

from pytest_torchprof.rules.evidence.attention import sees_later_positions
from pytest_torchprof.trace.tree import calls

if TYPE_CHECKING:
    from pathlib import Path

LENGTH = 6
BIAS = torch.full((LENGTH, LENGTH), -torch.inf).triu(1)
Q, K, V = torch.rand(3, 1, 2, LENGTH, 4)
ONE = torch.tensor(2.0)

Attention = Callable[[], torch.Tensor]


def scores() -> torch.Tensor:
    product: torch.Tensor = Q @ K.mT
    return product


CAUSAL: dict[str, Attention] = {
    "added": lambda: (scores() + BIAS).softmax(-1),
    "added, then a view": lambda: (scores() + BIAS).view(2, LENGTH, LENGTH).softmax(-1),
    "added, then a cast": lambda: (scores() + BIAS).double().softmax(-1),
    "filled, then scaled": lambda: (scores().masked_fill(BIAS < 0, -1e9) / 2).softmax(-1),
    "multiplied": lambda: (scores() * torch.ones(LENGTH, LENGTH).tril()).softmax(-1),
    "in the product": lambda: torch.baddbmm(BIAS, Q[0], K[0].mT).softmax(-1),
    "where": lambda: torch.where(BIAS < 0, BIAS, scores()).softmax(-1),
    "fused": lambda: scaled_dot_product_attention(Q, K, V, is_causal=True),
    "fused with a mask": lambda: scaled_dot_product_attention(Q, K, V, BIAS),
    "one position": lambda: scaled_dot_product_attention(Q[..., :1, :], K, V),
    "other lengths": lambda: (Q[..., :2, :] @ K[..., :2, :].mT).softmax(-1),
    "none": lambda: Q.cumsum(-2),
    "one of two": lambda: scores().softmax(-1) + (scores() + BIAS).softmax(-1),
}
TO_ALL: dict[str, Attention] = {
    "plain": lambda: scores().softmax(-1),
    "scaled": lambda: (scores() / 2).softmax(-1),
    "scaled by a tensor": lambda: (scores() * ONE).softmax(-1),
    "scaled before": lambda: ((Q * 2) @ K.mT).softmax(-1),
    "a view and a cast": lambda: scores().view(2, LENGTH, LENGTH).double().softmax(-1),
    "fused": lambda: scaled_dot_product_attention(Q, K, V),
    "fused, and grouped": lambda: scaled_dot_product_attention(
        Q, K[:, :1], V[:, :1], enable_gqa=True
    ),
}


def sees(attention: Attention, folder: Path) -> bool:
    trace = captured(attention, folder)
    return sees_later_positions(trace, calls(trace), (LENGTH,))


@pytest.mark.parametrize("kind", CAUSAL)
def test_what_may_be_a_mask_is_one(kind: str, tmp_path: Path) -> None:
    assert not sees(CAUSAL[kind], tmp_path)


@pytest.mark.parametrize("kind", TO_ALL)
def test_without_a_mask_all_positions_are_seen(kind: str, tmp_path: Path) -> None:
    assert sees(TO_ALL[kind], tmp_path)
