"""How much of attention a mask leaves: the work of a kernel that skips the rest.

`flops` counts all pairs of a query and a key, as `FlopCounterMode` does. Flash kernels skip what a
causal mask or a window hides, so rating them by all pairs would overstate them up to twofold. Only
arguments count here: a mask tensor may hold anything, and is added, not skipped.

Positions and meanings are from the schemas in PyTorch's `native_functions.yaml`, from
`torch/nn/attention/varlen.py`, and from flash-attention's `flash_attn_interface.py` and
`hopper/flash_api.cpp`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.work.flops import FORMULAS
from pytest_torchprof.work.formulas.sdpa import Attention
from pytest_torchprof.work.operands import Operands, UnknownOperandError

_CAUSAL: Final = frozenset({"True", "1", "2"})
_TOLD: Final = _CAUSAL | {"False", "0"}

Corner = Literal["upper left", "lower right", "square", "by type"]


class Mask(Frozen, frozen=True):
    """Positions of the mask's arguments, and where the diagonal of a causal mask begins.

    ``corner``: a causal mask aligns the first query with the first key (``upper left``) or the last
    query with the last key (``lower right``); it is known only for as many queries as keys
    (``square``); or the argument, 1 or 2, says which (``by type``). ``window``: how many keys
    before and after the diagonal are visible, as two arguments or as one list.
    """

    causal: int
    corner: Corner
    window: int | None = None

    def share(self, call: Operands, attention: Attention) -> float:
        """The share of all pairs of a query and a key that is visible."""
        kind = call.concrete[self.causal]
        before, after = self._sides(call)
        after = 0 if kind in _CAUSAL else after
        if before is None and after is None:
            return 1.0
        tokens, keys = attention.lengths(call)
        if self.corner == "square" and tokens != keys:
            raise UnknownOperandError
        left = self.corner == "upper left" or (self.corner == "by type" and kind == "1")
        shift = 0 if left else keys - tokens
        seen = _up_to(tokens, keys, keys if after is None else shift + after)
        if before is not None:
            seen -= _up_to(tokens, keys, shift - before - 1)
        return seen / (tokens * keys)

    def _sides(self, call: Operands) -> tuple[int | None, int | None]:
        if self.window is None:
            return None, None
        at = self.window
        listed = call.concrete[at][:1] == "["
        given = call.concrete[at : at + 2]
        sides = call.per_axis(at, 2) if listed else [int(item or -1) for item in given]
        before, after = (None if side < 0 else side for side in sides)
        return before, after


def _up_to(tokens: int, keys: int, last: int) -> int:
    """Pairs (i, j) of ``tokens`` and ``keys`` with j at most ``last`` + i.

    >>> _up_to(3, 3, 0), _up_to(2, 4, 2), _up_to(3, 2, -1)
    (6, 7, 3)
    """
    first = max(0, -last)  # the first query that sees any key
    full = max(first, min(tokens, keys - 1 - last))  # the first that sees all keys
    some = full - first if first < tokens else 0
    growing = some * (first + last + 1) + some * (some - 1) // 2
    return growing + max(0, tokens - max(full, first)) * keys


_LEFT: Final[Corner] = "upper left"
_RIGHT: Final[Corner] = "lower right"

MASKS: Final[Mapping[str, Mask]] = {
    "aten::_scaled_dot_product_flash_attention": Mask(4, _RIGHT),
    "aten::_scaled_dot_product_flash_attention_for_cpu": Mask(4, _LEFT),
    "aten::_scaled_dot_product_efficient_attention": Mask(6, _LEFT),
    "aten::_scaled_dot_product_cudnn_attention": Mask(6, _LEFT),
    "aten::_scaled_dot_product_fused_attention_overrideable": Mask(5, "square"),
    "aten::_flash_attention_forward": Mask(8, _RIGHT, 11),
    "aten::_efficient_attention_forward": Mask(9, "by type"),
    "aten::_cudnn_attention_forward": Mask(10, _LEFT),
    "torch_attn::_varlen_attn": Mask(7, _RIGHT, 9),
    "torch_attn::_varlen_attn_out": Mask(8, _RIGHT, 10),
    "flash_attn::_flash_attn_forward": Mask(5, _RIGHT, 6),
    "flash_attn::_flash_attn_varlen_forward": Mask(9, _RIGHT, 10),
    "flash_attn_3::fwd": Mask(24, _RIGHT, 25),
    "aten::_scaled_dot_product_flash_attention_backward": Mask(11, _RIGHT),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": Mask(7, _LEFT),
    "aten::_scaled_dot_product_efficient_attention_backward": Mask(11, _LEFT),
    "aten::_scaled_dot_product_cudnn_attention_backward": Mask(14, _LEFT),
    "aten::_scaled_dot_product_fused_attention_overrideable_backward": Mask(13, "square"),
    "aten::_flash_attention_backward": Mask(11, _RIGHT, 15),
    "aten::_efficient_attention_backward": Mask(14, "by type"),
    "aten::_cudnn_attention_backward": Mask(14, _LEFT),
    "torch_attn::_varlen_attn_backward": Mask(10, _RIGHT, 13),
    "flash_attn::_flash_attn_backward": Mask(11, _RIGHT, 12),
    "flash_attn::_flash_attn_varlen_backward": Mask(15, _RIGHT, 16),
    "flash_attn_3::bwd": Mask(16, _RIGHT, 17),
}


def is_known(name: str, concrete: Any) -> bool:
    """Whether a call says if it is causal, or needs no such argument.

    >>> is_known("aten::_scaled_dot_product_flash_attention", ["", "", "", "0.", "", "False", ""])
    False
    """
    try:
        return name not in MASKS or concrete[MASKS[name].causal] in _TOLD
    except (LookupError, TypeError):
        return False


def share(name: str, dims: Any, types: Any, concrete: Any) -> float | None:
    """The share of all pairs that the mask leaves, 0 to 1; None where the lengths are unknown.

    It is 1 for a call that does not say whether it is causal.

    >>> flash = "aten::_scaled_dot_product_flash_attention"
    >>> share(flash, [[1, 2, 3, 64]] * 3, None, ["", "", "", "0.", "True", "False", ""])
    0.6666666666666666
    """
    formula = FORMULAS.get(name)
    if name not in MASKS or not isinstance(formula, Attention) or not is_known(name, concrete):
        return 1.0
    try:
        return MASKS[name].share(Operands(dims, types, concrete), formula)
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError):
        return None  # malformed, or not in this trace
