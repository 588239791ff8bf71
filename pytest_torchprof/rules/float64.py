"""A rule about unintended work in double precision."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec.structs import replace

from pytest_torchprof.analysis.device_time import launched_in
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.rules.evidence.calls import LAYER, are_called, called, may_be_called, sizes
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, Threshold, rule
from pytest_torchprof.trace.arguments import alike, decode_part
from pytest_torchprof.trace.names import Names, are_named, operators_named
from pytest_torchprof.trace.tree import engine_steps, once_selected

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

#: Products of any matrices, not only a layer's.
_PRODUCT: Final = Names(r"aten::(einsum|matmul|mm|bmm|addmm|addbmm|baddbmm|addmv|mv)$")
#: Operators that compute nothing: casts, copies, views, parts, comparisons.
_IDLE: Final = Names(
    r"aten::(to|_to_copy|copy_|type_as|lift_fresh\w*|detach_?|alias|view\w*|reshape\w*|expand\w*"
    r"|permute|transpose_?|t_?|numpy_T|movedim|select|slice|narrow|diagonal|unsqueeze_?|squeeze_?"
    r"|index|index_select|index_put_|gather|take|broadcast_\w+|resolve_\w+|contiguous|clone|stack"
    r"|cat|concat\w*|unbind|chunk|split\w*|unflatten|flatten|empty\w*|item|is_\w+|isnan|isinf"
    r"|isfinite|isclose|allclose|equal|eq|ne|lt|gt|le|ge|bucketize|searchsorted|argmax|argmin"
    r"|requires_grad_|set_|resize_)$"
)
#: Operators that may need double precision.
_ALGEBRA: Final = Names(
    r"aten::(linalg_(?!vector_norm|matmul)\w+|_linalg\w+|cholesky\w*|inverse|logdet|slogdet|svd|qr"
    r"|lu\w*|geqrf|lstsq|triangular_solve|pinverse|matrix_exp|ormqr|orgqr)$"
)
_DIFFERENCE: Final = Names(r"aten::(sub|rsub)$")
_CAST: Final = Names(r"aten::(to|_to_copy)$")
_SUBTRACTION: Final = Names(r"aten::(sub_?|subtract_?|rsub)$")
#: Operators whose results are digits that float32 lacks, or errors that add up.
_EXACT: Final = Names(
    r"aten::(diff|remainder_?|fmod_?|frac_?|floor_divide_?|cumsum_?|cumprod_?|logcumsumexp"
    r"|trapezoid|cumulative_trapezoid|lgamma_?|mvlgamma_?|digamma_?|polygamma|igammac?_?|erfinv_?"
    r"|special_(gamma\w+|multigammaln|digamma|psi|polygamma|zeta|erfinv|erfcx|ndtri|log_ndtr"
    r"|bessel_\w+|modified_bessel_\w+|scaled_modified_bessel_\w+|i[01]e?))$"
)
#: Operators whose results, one number for many, are not what is cast later.
_STATISTICS: Final = Names(
    r"aten::(mean|nanmean|sum|nansum|prod|std|var|std_mean|var_mean|norm|linalg_vector_norm|amin"
    r"|amax|aminmax|min|max|median|nanmedian|quantile|nanquantile|logsumexp|any|all)$"
)
#: Operators that make a tensor of a given dtype.
_MAKERS: Final = Names(
    r"aten::(randn?|randperm|normal|zeros|ones|full|arange|linspace|logspace|eye|empty)(_like)?$"
)
#: A tensor in double precision among the types of operands.
_DOUBLE: Final = b'"double"'
#: In a trace with more events, all of its text is searched first.
_MANY: Final = 2000
#: torch's numbers for float32 and float64, as arguments of casts. Source: c10/core/ScalarType.h.
_FLOAT32, _FLOAT64 = "6", "7"
#: The saved share of an operator's time in double precision: half the bytes, half the lanes.
_SAVED = 0.5


class _Call(Frozen, frozen=True):
    """A call that takes tensors in double precision, with their shapes and those of float32."""

    row: int
    doubles: list[tuple[int, ...]]
    floats: list[tuple[int, ...]]
    cast_to: str

    @property
    def elements(self) -> int:
        return max(math.prod(one) for one in (*self.doubles, *self.floats))


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
    tensors whose result is later cast to float32. There must be layers in float32.

    Not counted, because double precision is intended: layers in float64, casts to float64, linear
    algebra in float64, tensors that torch creates in float64, the difference of a comparison; and
    where digits would be lost: what leads to a cast by a last subtraction, or with a `diff`, a
    remainder, a running sum, a gamma function or the like.

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
    if len(trace) > _MANY and not trace.args.may_contain(_DOUBLE):
        return NO_MATCHES
    # The selected calls that have a number or a tensor in double precision. Most operators are
    # directly in torch's own: only those left are looked at.
    rows = once_selected(trace, _may_be_called)
    doubles = rows[trace.args[rows].containing(_DOUBLE)]
    doubles = doubles[are_called(trace, doubles)] if len(doubles) else doubles
    if not len(doubles) or are_named(trace, doubles, _ALGEBRA).any():
        return NO_MATCHES
    rows = np.flatnonzero(called(trace) & trace.selection)
    kinds, calls = _kinds(trace, doubles)
    if all(call.elements < elements for call in calls if call is not None):
        return NO_MATCHES
    if _casts_up(trace, rows) or not _is_fp32(trace):
        return NO_MATCHES
    each = [(calls[kind], row) for kind, row in zip(kinds.tolist(), doubles.tolist(), strict=True)]
    alone = (replace(call, row=row) for call, row in each if call is not None)
    known = sorted(alone, key=lambda call: call.row)
    large = [call for call in known if call.elements >= elements]
    events = np.array([call.row for call in large], np.int64)
    busy = ~are_named(trace, events, _IDLE)
    work = [call for call, one in zip(large, busy.tolist(), strict=True) if one]
    mixed = [call for call in work if call.floats and not _compares(trace, call)]
    casts = [call for call in large if call.cast_to == _FLOAT32]
    if any(call.floats for call in work):
        work = [call for call in work if mixed and call.row >= mixed[0].row]
        found = mixed
    else:
        found = work = list(_needless(trace, [call.row for call in casts], work, known))
        if found and _makes_doubles(trace):
            return NO_MATCHES
    if not found:
        return NO_MATCHES
    shown = np.array([call.row for call in found], np.int64)
    cost, until = _costs(trace, work)
    # What follows a promotion counts toward its cost.
    at = np.maximum(np.searchsorted(shown, [call.row for call in work], side="right") - 1, 0)
    ends = trace.ts[shown] + trace.dur[shown]
    np.maximum.at(ends, at, until)
    return Matches(
        shown,
        [_message(trace, call) for call in found],
        cost_ns=np.bincount(at, cost, len(shown)).astype(np.int64),
        span_ns=(trace.ts[shown], ends),
    )


def _may_be_called(trace: Events) -> Ints:
    rows = may_be_called(trace)
    selected: Ints = rows[trace.selection[rows]]
    return selected


def _message(trace: Events, call: _Call) -> str:
    name = trace.names[trace.name[call.row]]
    if call.floats:
        return f"{name} takes float32 and float64, and computes in float64"
    return f"{name} computes in float64 what is cast to float32 later"


def _costs(trace: Events, work: list[_Call]) -> tuple[Ints, Ints]:
    """What each operator costs for its precision, including its gradient; and when it ended."""
    rows = np.array([call.row for call in work], np.int64)
    first, below = launched_in(trace, rows)
    took = np.where(first >= 0, below, trace.dur[rows])
    passes = 2 if len(engine_steps(trace)) else 1
    return (took * _SAVED * passes).astype(np.int64), trace.ts[rows] + trace.dur[rows] * passes


def _kinds(trace: Events, rows: Ints) -> tuple[Ints, list[_Call | None]]:
    """For each of these calls the number of its kind, and the first call of each kind.

    None for those that neither take tensors with dimensions in double precision nor cast to it.
    """
    kinds, firsts, _ = alike(trace.name[rows], trace.args[rows])
    return kinds, list(_calls(trace, rows[firsts]))


def _calls(trace: Events, rows: Ints) -> Iterator[_Call | None]:
    """These calls, as far as they take tensors with dimensions in double precision."""
    casts = are_named(trace, rows, _CAST).tolist()
    for row, args, casting in zip(rows.tolist(), trace.operands(rows), casts, strict=True):
        types, dims = decode_part(args.types) or [], decode_part(args.dims) or []
        pairs = list(zip(types, map(sizes, dims), strict=False))
        doubles = [shape for kind, shape in pairs if kind == "double" and shape]
        floats = [shape for kind, shape in pairs if kind == "float" and shape]
        to = _target(args.concrete) if casting else ""
        yield _Call(row, doubles, floats, to) if doubles else None


def _needless(
    trace: Events, casts: list[int], work: list[_Call], known: list[_Call]
) -> Iterator[_Call]:
    """Of this work, what leads to one of these casts to float32 and does not need its precision.

    What leads to a cast is all that was called since the one before. It is needed where digits
    cancel in the last step, or in any if that is what the step is for.
    """
    events = np.array([call.row for call in known], np.int64)
    needs, ends, aside = (
        frozenset(events[are_named(trace, events, names)].tolist())
        for names in (_EXACT, _SUBTRACTION, _STATISTICS)
    )
    before = -1
    for cast in casts:
        inside = [call for call in work if before < call.row < cast]
        rows = [call.row for call in inside if call.row not in aside]
        steps = range(before + 1, cast)
        before = cast
        if rows and rows[-1] not in ends and not any(row in steps for row in needs):
            yield from inside


def _unlike(trace: Events, rows: Ints) -> Ints:
    """These calls, but of those that are alike only the first."""
    return rows[alike(trace.name[rows], trace.args[rows])[1]]


def _target(concrete: bytes) -> str:
    """The dtype that a cast converts to."""
    parts = decode_part(concrete) or []
    return next((part for part in parts[1:4] if part in {_FLOAT32, _FLOAT64}), "")


def _casts_up(trace: Events, rows: Ints) -> bool:
    """Whether float32 tensors with dimensions are explicitly cast to float64."""
    for args in trace.operands(_unlike(trace, rows[are_named(trace, rows, _CAST)])):
        types, dims = decode_part(args.types) or [""], decode_part(args.dims) or [[]]
        if types[0] == "float" and dims[0] and _target(args.concrete) == _FLOAT64:
            return True
    return False


def _is_fp32(trace: Events) -> bool:
    """Whether layers run in float32, and none in float64."""
    rows = operators_named(trace, LAYER)
    rows = _unlike(trace, rows[trace.selection[rows]])
    found = False
    products = are_named(trace, rows, _PRODUCT).tolist()
    for args, product in zip(trace.operands(rows), products, strict=True):
        types = decode_part(args.types) or [""]
        if types[0] == "double" and not product:
            return False
        found |= types[0] == "float"
    return found


def _compares(trace: Events, call: _Call) -> bool:
    """Whether it is a difference of two tensors of one shape without a gradient."""
    difference = bool(are_named(trace, np.array([call.row]), _DIFFERENCE)[0])
    alike = call.floats[:1] == call.doubles[:1]
    return difference and alike and not (engine_steps(trace) > call.row).any()


def _makes_doubles(trace: Events) -> bool:
    """Whether torch creates tensors with dimensions in float64, as requested."""
    rows = np.flatnonzero(called(trace) & trace.selection)
    for args in trace.operands(_unlike(trace, rows[are_named(trace, rows, _MAKERS)])):
        parts = decode_part(args.concrete) or []
        if _FLOAT64 in parts[1:] and parts[0] not in {"[]", ""}:
            return True
    return False
