"""How much of attention its mask keeps: the work of a kernel that skips the rest.

`flops` counts all pairs of a query and a key, as `FlopCounterMode` does. Flash kernels skip what a
causal mask or a window hides, so to rate them by all pairs would say up to twice what they reach.
Only arguments tell: a mask that is a tensor may be anything, and is added, not skipped.

Positions and meanings are those of the schemas, in PyTorch's `native_functions.yaml`, in
`torch/nn/attention/varlen.py`, and in flash-attention's `flash_attn_interface.py` and
`hopper/flash_api.cpp`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from pytest_torchprof.core.plain import Plain
from pytest_torchprof.work.flops import FORMULAS, Attention, Call, UnknownCallError

_CAUSAL: Final = frozenset({"True", "1", "2"})
_TOLD: Final = _CAUSAL | {"False", "0"}

Corner = Literal["upper left", "lower right", "square", "by type"]


class Mask(Plain, frozen=True):
    """Where the arguments are that tell, and where the diagonal of a causal mask begins.

    ``corner``: a causal mask lets the first query see the first key (``upper left``), or the last
    query the last key; it is known only of as many queries as keys (``square``), or the argument is
    a number, 1 or 2, that says which (``by type``). ``window``: how many keys before and after the
    diagonal can be seen, in two arguments, or in one if it is a list.
    """

    causal: int
    corner: Corner
    window: int | None = None

    def share(self, call: Call, attention: Attention) -> float:
        """The part of all pairs of a query and a key that can be seen."""
        kind = call.concrete[self.causal]
        before, after = self._sides(call)
        after = 0 if kind in _CAUSAL else after
        if before is None and after is None:
            return 1.0
        tokens, keys = attention.lengths(call)
        if self.corner == "square" and tokens != keys:
            raise UnknownCallError
        left = self.corner == "upper left" or (self.corner == "by type" and kind == "1")
        shift = 0 if left else keys - tokens
        seen = _up_to(tokens, keys, keys if after is None else shift + after)
        if before is not None:
            seen -= _up_to(tokens, keys, shift - before - 1)
        return seen / (tokens * keys)

    def _sides(self, call: Call) -> tuple[int | None, int | None]:
        if self.window is None:
            return None, None
        at = self.window
        listed = call.concrete[at][:1] == "["
        given = call.concrete[at : at + 2]
        sides = call.integers(at, 2) if listed else [int(item or -1) for item in given]
        before, after = (None if side < 0 else side for side in sides)
        return before, after


def _up_to(tokens: int, keys: int, last: int) -> int:
    """Pairs (i, j) of ``tokens`` and ``keys`` with j at most ``last`` + i.

    >>> _up_to(3, 3, 0), _up_to(2, 4, 2), _up_to(3, 2, -1)
    (6, 7, 3)
    """
    first = max(0, -last)  # the first query that sees any
    full = max(first, min(tokens, keys - 1 - last))  # the first that sees them all
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
    """Whether a call says if it is causal, or there is nothing to say.

    >>> told("aten::_scaled_dot_product_flash_attention", ["", "", "", "0.", "", "False", ""])
    False
    """
    try:
        return name not in MASKS or concrete[MASKS[name].causal] in _TOLD
    except (LookupError, TypeError):
        return False


def share(name: str, dims: Any, types: Any, concrete: Any) -> float | None:
    """The part of all pairs that the mask leaves, 0 to 1; None where the lengths are not told.

    Of a call that does not say whether it is causal, it is 1.

    >>> flash = "aten::_scaled_dot_product_flash_attention"
    >>> share(flash, [[1, 2, 3, 64]] * 3, None, ["", "", "", "0.", "True", "False", ""])
    0.6666666666666666
    """
    formula = FORMULAS.get(name)
    if name not in MASKS or not isinstance(formula, Attention) or not is_known(name, concrete):
        return 1.0
    try:
        return MASKS[name].share(Call(dims, types, concrete), formula)
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError):
        return None  # junk, or not in this trace
