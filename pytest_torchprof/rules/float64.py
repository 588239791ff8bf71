"""The rule about unintended work in double precision."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.analysis.device_time import took_ns
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.rules.calls import LAYER, PRODUCT, sizes
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, Threshold, around, rule
from pytest_torchprof.trace.arguments import decode_list
from pytest_torchprof.trace.names import Names, are_named, selected_operators
from pytest_torchprof.trace.tree import called

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

#: Operators that compute nothing: casts, copies, views, parts, comparisons.
_IDLE: Final = Names(
    r"aten::(to|_to_copy|copy_|type_as|lift_fresh\w*|detach_?|alias|view\w*|reshape\w*|expand\w*"
    r"|permute|transpose_?|t_?|numpy_T|movedim|select|slice|narrow|diagonal|unsqueeze_?|squeeze_?"
    r"|index|index_select|index_put_|gather|take|broadcast_\w+|resolve_\w+|contiguous|clone|stack"
    r"|cat|concat\w*|unbind|chunk|split\w*|unflatten|flatten|empty\w*|item|is_\w+|isnan|isinf"
    r"|isfinite|isclose|allclose|equal|eq|ne|lt|gt|le|ge|bucketize|searchsorted|argmax|argmin"
    r"|requires_grad_|set_|resize_)$"
)
#: Operators that may need double precision: linear algebra, and those whose results are digits that
#: float32 lacks, or errors that add up.
_EXACT: Final = Names(
    r"aten::(linalg_(?!vector_norm|matmul)\w+|_linalg\w+|cholesky\w*|inverse|logdet|slogdet|svd|qr"
    r"|lu\w*|geqrf|lstsq|triangular_solve|pinverse|matrix_exp|ormqr|orgqr"
    r"|diff|remainder_?|fmod_?|frac_?|floor_divide_?|cumsum_?|cumprod_?|logcumsumexp"
    r"|trapezoid|cumulative_trapezoid|m?v?lgamma_?|digamma_?|polygamma|igammac?_?|erfinv_?"
    r"|special_\w+)$"
)
_DIFFERENCE: Final = Names(r"aten::(sub_?|subtract_?|rsub)$")
_CAST: Final = Names(r"aten::(to|_to_copy)$")
#: Operators that make a tensor of a given dtype.
_MAKERS: Final = Names(
    r"aten::(randn?|randperm|normal|zeros|ones|full|arange|linspace|logspace|eye|empty)(_like)?$"
)
#: torch's numbers for float32 and float64, as arguments of casts. Source: c10/core/ScalarType.h.
_FLOAT32, _FLOAT64 = "6", "7"


@rule(
    "float64",
    fix="create the tensor in float32: torch.from_numpy(array).float(), or dtype=torch.float32 "
    "(NumPy arrays are float64 by default)",
    triggers=LAYER.pattern,
    needs="shapes",
    elements=Threshold(16_384, "1", "fewer cost only the call, in any precision"),
)
def float64(trace: Events, *, elements: float) -> Matches:
    """A model runs in float32, and code around it in float64, because of a NumPy array.

    ## What it does

    Counts operators that combine float32 and float64 tensors of at least `elements` elements:
    everything is then computed in float64. If there are none, it counts operators on float64
    tensors before a cast of such a tensor to float32. There must be layers in float32.

    Not counted, because double precision is intended: code with layers in float64, casts to
    float64, linear algebra in float64, running sums, remainders or gamma functions of it; and where
    nothing is combined, with tensors that torch creates in float64, or a difference as last step.

    ## Why it is slow

    Each element takes twice the memory, and a processor handles half as many at a time; on most
    GPUs, a 32nd or a 64th.

    ## Example

    ```python
    mean = torch.from_numpy(np.array([0.485, 0.456, 0.406]))[:, None, None]
    loss = criterion(model((images - mean).float()), target)
    ```

    ## Use instead

    ```python
    mean = torch.tensor([0.485, 0.456, 0.406])[:, None, None]
    loss = criterion(model(images - mean), target)
    ```
    """
    if not trace.args.may_contain(b'"double"'):
        return NO_MATCHES
    rows = np.flatnonzero(called(trace) & trace.selection)
    doubles = rows[trace.args[rows].containing(b'"double"')]
    large = [call for call in _calls(trace, doubles) if call.elements >= elements]
    if not large or not _is_fp32(trace) or _needs_doubles(trace, rows, doubles):
        return NO_MATCHES
    idle = are_named(trace, np.array([call.row for call in large], np.int64), _IDLE).tolist()
    work = [call for call, none in zip(large, idle, strict=True) if not none]
    mixed = [call for call in work if call.mixes]
    if mixed:
        work = [call for call in work if call.row >= mixed[0].row]
    elif not _makes_doubles(trace, rows):
        casts = [call.row for call in large if call.to == _FLOAT32]
        work = [call for call in work if casts and call.row < casts[-1]]
        last = np.array([call.row for call in work[-1:]], np.int64)
        mixed = [] if are_named(trace, last, _DIFFERENCE).any() else work
    if not mixed:
        return NO_MATCHES
    shown, rows = (np.array([call.row for call in some], np.int64) for some in (mixed, work))
    # Half of the bytes, and of the numbers; what follows a promotion counts toward its cost.
    took = took_ns(trace, rows) // 2
    at = np.searchsorted(shown, rows, side="right") - 1
    said = "computes in float64 what is cast to float32 later"
    if mixed[0].mixes:
        said = "takes float32 and float64, and computes in float64"
    begin, end = around(trace, shown)
    np.maximum.at(end, at, around(trace, rows)[1])
    return Matches(
        shown,
        [f"{trace.names[name]} {said}" for name in trace.name[shown].tolist()],
        cost_ns=np.bincount(at, took, len(shown)).astype(np.int64),
        span_ns=(begin, end),
    )


class _Call(Frozen, frozen=True):
    """A call on a float64 tensor: elements of its largest one, and the dtype that it casts to."""

    row: int
    elements: int
    mixes: bool
    to: str


def _calls(trace: Events, rows: Ints) -> Iterator[_Call]:
    """Those of these calls that take a float64 tensor with dimensions."""
    casts = are_named(trace, rows, _CAST).tolist()
    for row, args, casting in zip(rows.tolist(), trace.operands(rows), casts, strict=True):
        pairs = zip(decode_list(args.types), map(sizes, decode_list(args.dims)), strict=False)
        found = [(kind, shape) for kind, shape in pairs if shape and kind in {"double", "float"}]
        if any(kind == "double" for kind, _ in found):
            largest = max(math.prod(shape) for _, shape in found)
            mixes = any(kind == "float" for kind, _ in found)
            yield _Call(row, largest, mixes, _target(args.concrete) if casting else "")


def _target(concrete: bytes) -> str:
    """The dtype that a cast converts to."""
    return next((one for one in decode_list(concrete)[1:4] if one in {_FLOAT32, _FLOAT64}), "")


def _is_fp32(trace: Events) -> bool:
    """Whether layers run in float32, and none in float64."""
    rows = selected_operators(trace, LAYER)
    product = are_named(trace, rows, PRODUCT).tolist()
    types = [(decode_list(args.types) or [""])[0] for args in trace.operands(rows)]
    doubles = [kind == "double" and not any_ for kind, any_ in zip(types, product, strict=True)]
    return "float" in types and not any(doubles)


def _needs_doubles(trace: Events, rows: Ints, doubles: Ints) -> bool:
    """Whether operators need double precision, or code asks for it: a cast from float32."""
    if are_named(trace, doubles, _EXACT).any():
        return True
    for args in trace.operands(rows[are_named(trace, rows, _CAST)]):
        types, dims = decode_list(args.types), decode_list(args.dims)
        if types[:1] == ["float"] and dims[:1] != [[]] and _target(args.concrete) == _FLOAT64:
            return True
    return False


def _makes_doubles(trace: Events, rows: Ints) -> bool:
    """Whether torch creates tensors with dimensions in float64, as requested."""
    made = trace.operands(rows[are_named(trace, rows, _MAKERS)])
    parts = [decode_list(args.concrete) for args in made]
    return any(_FLOAT64 in one[1:] and one[0] not in {"[]", ""} for one in parts)
