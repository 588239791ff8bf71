"""The table of views against what torch's operators really do."""

from __future__ import annotations

import pytest
import torch

from pytest_torchprof.work.dispatch import MAY_COPY, OTHER_VIEWS, PARTS, VIEWS, WHOLE

#: Arguments after the tensor, of those that need some.
ARGUMENTS = {
    "_reshape_alias": ((8, 6), (6, 1)),
    "_unsafe_view": ((8, 6),),
    "as_strided": ((8, 6), (6, 1)),
    "broadcast_to": ((2, 4, 6),),
    "diagonal": (),
    "dsplit": (2,),
    "expand": ((2, 4, 6),),
    "movedim": (0, 1),
    "moveaxis": (0, 1),
    "narrow": (0, 0, 1),
    "permute": ((2, 0, 1),),
    "reshape": ((8, 6),),
    "select": (0, 0),
    "split_with_sizes": ([1, 1],),
    "swapaxes": (0, 1),
    "swapdims": (0, 1),
    "to": (torch.float32,),
    "transpose": (0, 1),
    "unflatten": (2, (2, 3)),
    "unfold": (2, 2, 1),
    "unsqueeze": (0,),
    "view": ((8, 6),),
} | dict.fromkeys(("chunk", "hsplit", "split", "tensor_split", "vsplit"), (2,))
AS_ANOTHER = {"expand_as", "reshape_as", "type_as", "view_as"}
COMPLEX = {"imag", "real", "view_as_real"}
MATRICES = {"adjoint", "mH", "matrix_H", "numpy_T", "t"}


@pytest.mark.parametrize("name", sorted(name[6:] for name in VIEWS if name[-1] != "_"))
def test_it_has_the_memory_of_its_argument(name: str) -> None:
    x = torch.zeros((4, 6) if name in MATRICES else (2, 4, 6))
    if name in COMPLEX:
        x = x.to(torch.complex64)
    if name == "view_as_complex":
        x = torch.zeros(4, 2)
    operator = getattr(torch.ops.aten, name)
    out = operator(x, *((x,) if name in AS_ANOTHER else ARGUMENTS.get(name, ())))
    for part in out if isinstance(out, tuple | list) else [out]:
        if name != "_unsafe_view":  # by its contract nobody uses its argument again
            assert x.untyped_storage().data_ptr() == part.untyped_storage().data_ptr()
        if f"aten::{name}" in WHOLE:
            assert (x.numel(), x.dtype) == (part.numel(), part.dtype)


def test_each_kind_is_apart() -> None:
    kinds = (WHOLE, PARTS, OTHER_VIEWS, MAY_COPY)
    assert sum(map(len, kinds)) == len(frozenset().union(*kinds))
