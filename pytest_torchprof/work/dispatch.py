"""Operators that torch's dispatcher makes of others, and those that only make views."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

# ---- Operators that make a view of a tensor: the same memory, and no work.
#
# Source: the views that https://docs.pytorch.org/docs/stable/tensor_view.html lists, and
# PyTorch's ``native_functions.yaml`` for their overloads and for what they call.


def aten(words: str) -> frozenset[str]:
    """Full names of these operators.

    >>> sorted(aten("t view"))
    ['aten::t', 'aten::view']
    """
    return frozenset(f"aten::{word}" for word in words.split())


#: All elements of the tensor, each once, of the same dtype.
WHOLE: Final = aten(
    "_reshape_alias _unsafe_view adjoint alias as_strided as_strided_ detach detach_ "
    "lift_fresh mH mT matrix_H moveaxis movedim numpy_T permute positive requires_grad_ "
    "resolve_conj resolve_neg squeeze squeeze_ swapaxes swapaxes_ swapdims swapdims_ t t_ "
    "transpose transpose_ unflatten unsqueeze unsqueeze_ view view_as"
)
#: All elements, some of them repeated.
EXPANSIONS: Final = aten("broadcast_to expand expand_as")
#: Several parts that together are the whole.
SPLITS: Final = aten("chunk dsplit hsplit split split_with_sizes tensor_split unbind vsplit")
#: Part of the elements; the arguments say which.
PARTS: Final = SPLITS | aten("diagonal narrow select slice")
#: Another dtype, or overlapping windows.
OTHER_VIEWS: Final = aten("imag real unfold view_as_complex view_as_real")
#: A view or the tensor itself, unless a copy is necessary, which is then nested in the call.
MAY_COPY: Final = aten(
    "atleast_1d atleast_2d atleast_3d contiguous flatten ravel reshape reshape_as to type_as"
)
VIEWS: Final = WHOLE | EXPANSIONS | PARTS | OTHER_VIEWS | MAY_COPY
#: Operators that compute nothing if no operator is nested in them. Autograd has its own detach.
IDLE: Final = (
    VIEWS
    | {"detach", "detach_"}
    | aten("_has_compatible_shallow_copy_type dropout is_pinned result_type set_")
)


# ---- Names of operators by their kinds of work, and those that torch's dispatcher makes of others.

_SECTION: Final = re.compile(r"(\w+) (\w+):")


@cache
def operator_names() -> Mapping[tuple[str, str], tuple[str, ...]]:
    """The names and patterns of each section of operators.txt, which says what they are."""
    found: dict[tuple[str, str], list[str]] = {}
    own: list[str] = []
    for line in (Path(__file__).parent / "operators.txt").read_text("utf-8").splitlines():
        if head := _SECTION.fullmatch(line):
            own = found.setdefault((head[1], head[2]), [])
        elif not line.startswith("#"):
            own += line.split()
    return {section: tuple(names) for section, names in found.items()}


def _dispatched(*sections: str) -> frozenset[str]:
    return aten(" ".join(name for one in sections for name in operator_names()["dispatch", one]))


COMPOSITES: Final = _dispatched("implicit", "explicit")
#: Operators that only call others, return views, allocate, or ask for what is known of a tensor.
PLUMBING: Final = (
    IDLE
    | _dispatched("implicit", "plumbing")
    | aten(
        "empty empty_like empty_strided new_empty new_empty_strided empty_quantized empty_permuted "
        "resize_ meshgrid broadcast_tensors item"
    )
)


_EXPLICIT: Final = _dispatched("explicit")


def has_kernel(name: str) -> bool:
    """Whether it is one of torch's operators that reads or writes the data of tensors itself.

    >>> [has_kernel(name) for name in ("aten::mm", "aten::view", "aten::linear", "aten::clone")]
    [True, False, False, False]
    """
    return name.startswith(("aten::", "prims::")) and not (name in PLUMBING or name in _EXPLICIT)


#: Namespaces of names that no kernel has: autograd's steps, tools, and TorchScript's own.
_NO_WORK: Final = ("autograd::", "prim::", "profiler::", "streams::", "mempool::", "coor::")


def may_compose(name: str) -> bool:
    """Whether it counts by the operators nested in it, and else computes: as others' operators do.

    >>> [may_compose(name) for name in ("aten::clone", "mylib::op", "aten::mm", "MmBackward0")]
    [True, True, False, False]
    """
    return "::" in name and not (name.startswith(_NO_WORK) or name in PLUMBING or has_kernel(name))
