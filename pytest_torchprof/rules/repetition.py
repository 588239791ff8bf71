"""Rules about repeated work: casts, and copies that make a tensor contiguous."""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from pytest_torchprof.analysis.device_time import launched_ns
from pytest_torchprof.analysis.missing import blind_kernels
from pytest_torchprof.core.process import late
from pytest_torchprof.core.unknown import Reason, because
from pytest_torchprof.rules.evidence.calls import (
    CALL_NS,
    are_called,
    are_closed,
    guessed,
    in_backward,
    is_trifle,
    passes,
)
from pytest_torchprof.rules.evidence.copies import (
    CAST,
    TO_COPY,
    WEIGHTS,
    CopyRun,
    Finder,
    again,
    by_kind,
    casts_of_weights,
    chain,
    gradients,
    held,
    kinds_of_casts,
    kinds_of_clones,
    layout_fix,
    outer_casts,
    recast,
    written_to,
)
from pytest_torchprof.rules.rule import NO_MATCHES, NONE_SO_FAR, Matches, Threshold, around, rule
from pytest_torchprof.trace.names import DEVICE_KINDS, Names, are_named, count, selected_operators
from pytest_torchprof.work.operands import ELEMENT_BYTES, torch_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_torchprof.rules.evidence.copies import CopiedTensor
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

_COPY: Final = Names(r"aten::(clone|contiguous|reshape|flatten|ravel)$")
_CLONE: Final = Names(r"aten::clone$")
_WEIGHTED: Final = Names("|".join(f"{re.escape(name)}$" for name in WEIGHTS))

_CAST_ONCE = "cast once, before the loop, or keep the tensor in the dtype in which it is used"
_AUTOCAST = (
    "cast the model once (model.to(torch.bfloat16)), or let autocast keep the casts: one "
    "context around all calls, its cache on, weights with requires_grad=True, and no_grad "
    "instead of inference_mode, in which it caches nothing"
)
_COPY_ONCE = (
    "make it contiguous (or clone it) once, before the loop, and use that; or use the operator "
    "on the view, which most operators support"
)
_NEW = "write out of place: x.add(y) instead of x.clone().add_(y)"
_CAST_NEW = f"{_CAST_ONCE}, and then write out of place (x.div(y) instead of x.div_(y))"
#: Time to read or write a byte in a copy. Measured with torch 2.13 on one CPU thread: 0.08.
_COPIED_BYTE_NS: Final = 0.1
_TRIFLE = "fewer cost only the call: a mean per channel, a step number"
_SHARE = "of all that the test does on a CPU, by counts, not times; less does not matter"


class _Found(NamedTuple):
    """Unnecessary copies, and of what; ``fix``: what to do, if not the rule's own."""

    tops: Ints
    source: CopiedTensor
    fix: str | None = None


_CAST_KERNEL: Final = late(r"copy|cast|convert", re.IGNORECASE)
_COPY_KERNEL: Final = late(r"copy|clone", re.IGNORECASE)


def _unseen_casts(trace: Events) -> Reason | None:
    """Casts that graphs launched: what they cast is unknown. Also autocast's casts of weights, if
    neither gradients nor memory events tell the number of weights.
    """
    gap = blind_kernels(trace, _CAST_KERNEL.search)
    unsure = gap is None and trace.tensors is None and count(trace, TO_COPY)
    if unsure and not len(trace.memory.event):
        above = trace.parent[selected_operators(trace, "aten::_to_copy")]
        above = np.concatenate([above, trace.parent[above[above >= 0]]])
        some = np.count_nonzero(are_named(trace, above, _WEIGHTED)) > 1
        if some and not len(selected_operators(trace, "torch::autograd::AccumulateGrad")):
            return because(
                "autocast_unseen",
                (
                    "autocast's casts of weights: recorded without memory events "
                    "(profile_memory=True records them)"
                ),
            )
    return gap or guessed(trace, TO_COPY)


def _unseen_copies(trace: Events) -> Reason | None:
    """Copies that graphs launched: what they copy is unknown."""
    gap = blind_kernels(trace, _COPY_KERNEL.search)
    return gap or guessed(trace, _CLONE)


@rule(
    "repeated-cast",
    fix=_CAST_ONCE,
    triggers={TO_COPY.pattern: "repeats"},
    needs="shapes",
    blind=_unseen_casts,
    sees_host=TO_COPY.pattern,
    repeats=Threshold(5, "1", "per tensor; q, k and v of one input are three casts"),
    elements=Threshold(16, "1", _TRIFLE),
    cpu_share=Threshold(0.01, "1", _SHARE),
)
def repeated_cast(trace: Events, *, repeats: float, elements: float, cpu_share: float) -> Matches:
    """The same tensor is cast between the same dtypes again and again.

    ## What it does

    Looks in each step for at least `repeats` casts of one tensor, or of one part of it, to one
    dtype, while nothing writes to it; the casts after the first one are counted. Under autocast
    only weights count, which it casts again if its cache does not keep them: in a context for each
    call, and always in `torch.inference_mode()`. A live test is captured once more to identify the
    tensors; in a stored trace, casts of one shape count if no operator in between takes a tensor of
    that dtype.

    Not counted: tensors of fewer than `elements` elements; on a CPU, casts that are less than
    `cpu_share` of all that the test does, by counts; a cast whose result is written to, which needs
    the copy; what operators, backward passes, optimizers and loaders cast.

    ## Why it is slow

    Each cast reads and writes the whole tensor and, on an accelerator, launches a kernel.

    ## Example

    ```python
    for x in batches:
        y = F.linear(x, weight.to(torch.bfloat16))
    ```

    ## Use instead

    ```python
    weight_bf16 = weight.to(torch.bfloat16)
    for x in batches:
        y = F.linear(x, weight_bf16)
    ```

    Under autocast, `torch.no_grad()` rather than `torch.inference_mode()`, or a model that is cast
    once: `model.to(torch.bfloat16)`.
    """
    rows, least = outer_casts(trace), int(repeats)
    if len(rows) < least:
        return NO_MATCHES
    top, owner = chain(trace, rows, CAST)
    weighs = are_named(trace, owner, _WEIGHTED)
    keep = weighs | (owner < 0) | ~are_closed(trace, owner)  # nested ones are torch's own
    if np.count_nonzero(keep) < least:
        return NO_MATCHES
    rows, top, owner, weighs = rows[keep], top[keep], owner[keep], weighs[keep]
    explicit = are_called(trace, top)
    wrapped = ~explicit & weighs
    wrapped[wrapped] = ~in_backward(trace, rows[wrapped])
    keep = explicit | wrapped
    rows, top, owner, explicit = rows[keep], top[keep], owner[keep], explicit[keep]
    kinds, kind = kinds_of_casts(trace, rows, elements)
    known = kind >= 0
    rows, top, owner, kind = (column[known] for column in (rows, top, owner, kind))
    explicit = explicit[known]
    counts = np.bincount(np.where(explicit, 2 * kind, 2 * kind + 1))
    if not len(rows) or counts.max() < least:
        return NO_MATCHES
    casts = (rows, top, owner, explicit, kind)
    if trace.tensors is not None:
        same = _same_casts(trace, casts, kinds, least)
        return _matches(trace, same, _CAST_ONCE, cpu_share)
    out: list[_Found] = []
    finder = Finder(trace)
    for group in _by_kind(trace, rows, np.where(explicit, kind, -1), least):
        if not explicit[group[0]]:
            continue
        source = kinds[kind[group[0]]]
        params = gradients(trace, rows[group[0]], source)
        if len(group) < least * params:
            continue
        runs = finder.runs(top[group], rows[group], source, least)
        out += [_Found(run.tops[1:], source) for run in runs if _thrown_away(trace, run, least)]
    own = np.flatnonzero(~explicit)
    recasts = recast(trace, (rows[own], owner[own], kind[own]), kinds, least)
    out += [_Found(top[own[some[1:]]], source, _AUTOCAST) for some, source in recasts]
    return _matches(trace, out, _CAST_ONCE, cpu_share, wants_tensors=True)


@rule(
    "contiguous-copy",
    fix=_COPY_ONCE,
    triggers={_CLONE.pattern: "repeats"},
    needs="shapes",
    blind=_unseen_copies,
    sees_host=True,
    repeats=Threshold(5, "1", "per tensor; fewer are the parts of one layer"),
    elements=Threshold(16, "1", _TRIFLE),
    cpu_share=Threshold(0.01, "1", _SHARE),
)
def contiguous_copy(trace: Events, *, repeats: float, elements: float, cpu_share: float) -> Matches:
    """The same tensor is made contiguous, or cloned, again and again.

    ## What it does

    Looks in each step for at least `repeats` copies of one tensor, or of one part of it, by
    `contiguous`, `clone`, or a `reshape` or `flatten` that has to copy, while nothing writes to it;
    the copies after the first one are counted. A test in which enough copies look alike is captured
    once more to identify the tensors; a stored trace, which does not identify them, is not checked.

    Not counted: tensors of fewer than `elements` elements; on a CPU, copies that are less than
    `cpu_share` of all that the test does, by counts; clones that exist side by side; copies that
    are written to, except by an arithmetic operator that could make a new tensor instead:
    `x.clone().add_(y)` is `x.add(y)`; what operators, backward passes, optimizers and loaders copy.

    ## Why it is slow

    Each copy allocates memory, and reads and writes the whole tensor, with strided access.

    ## Example

    ```python
    for x in batches:
        y = x @ weight.t().contiguous()
    ```

    ## Use instead

    ```python
    transposed = weight.t().contiguous()
    for x in batches:
        y = x @ transposed
    ```
    """
    rows = selected_operators(trace, "aten::clone")
    least = int(repeats)
    if len(rows) < least:
        return NO_MATCHES
    top, _ = chain(trace, rows, _COPY)
    keep = are_called(trace, top)
    if np.count_nonzero(keep) < least:
        return NO_MATCHES
    rows, top = rows[keep], top[keep]
    kinds, kind = kinds_of_clones(trace, rows, elements)
    rows, top, kind = rows[kind >= 0], top[kind >= 0], kind[kind >= 0]
    if not len(rows) or np.bincount(kind).max() < least:
        return NO_MATCHES
    if trace.tensors is not None:
        return _matches(
            trace, _same_copies(trace, (rows, top, kind), kinds, least), _COPY_ONCE, cpu_share
        )
    out: list[_Found] = []
    finder = Finder(trace)
    for group in _by_kind(trace, rows, kind, least):
        source = kinds[kind[group[0]]]
        runs = finder.runs(top[group], rows[group], source, least)
        out += [_Found(run.tops[1:], source) for run in runs if _thrown_away(trace, run, least)]
    return _matches(trace, out, _COPY_ONCE, cpu_share, wants_tensors=True)


def _same_casts(
    trace: Events,
    casts: tuple[Ints, Ints, Ints, Bools, Ints],
    kinds: list[CopiedTensor],
    least: int,
) -> list[_Found]:
    """What is found if tensors are identified."""
    rows, top, owner, explicit, kind = casts
    out: list[_Found] = []
    size = np.array([prod(one.shape) for one in kinds])
    backs = any(one._replace(dtype=one.to, to=one.dtype) in kinds for one in kinds)
    mine = np.flatnonzero(explicit)
    for group in again(trace, rows[mine], kind[mine], size[kind[mine]], least, backs):
        of = mine[group]
        out += _unless_needed(trace, rows[of], top[of], kinds[kind[of[0]]], least)
    mine = np.flatnonzero(~explicit)
    mine = mine[casts_of_weights(trace, rows[mine], owner[mine])]
    for group in again(trace, rows[mine], kind[mine], size[kind[mine]], least):
        out.append(_Found(top[mine[group[1:]]], kinds[kind[mine[group[0]]]], _AUTOCAST))
    return out


def _same_copies(
    trace: Events, copies: tuple[Ints, Ints, Ints], kinds: list[CopiedTensor], least: int
) -> list[_Found]:
    """What is found if tensors are identified."""
    rows, top, kind = copies
    out: list[_Found] = []
    size = np.array([prod(one.shape) for one in kinds])
    for group in again(trace, rows, kind, size[kind], least):
        cloned = are_named(trace, top[group], _CLONE).all()
        own = bool(cloned and _are_kept(trace, rows[group], least))
        out += _unless_needed(trace, rows[group], top[group], kinds[kind[group[0]]], least, own)
    return out


def _unless_needed(
    trace: Events, rows: Ints, top: Ints, source: CopiedTensor, least: int, own: bool = False
) -> list[_Found]:
    """Without the copies that are written to in a way that needs a copy.

    ``own``: also without those that are kept without being written to, in case that happens later.
    """
    written, needed = written_to(trace, rows, prod(source.shape))
    needed |= own & ~written
    top, written = top[~needed], written[~needed]
    if len(top) < least:
        return []
    otherwise = _NEW if source.dtype == source.to else _CAST_NEW
    return [_Found(top[1:], source, otherwise if written.any() else None)]


def _by_kind(trace: Events, rows: Ints, kind: Ints, least: int) -> Iterator[Ints]:
    """Positions of the rows of one kind, thread and step, with no backward pass in between."""
    starts = trace.once(passes)
    return by_kind(trace, rows, kind, least, lambda some: np.searchsorted(starts, trace.ts[some]))


def _are_kept(trace: Events, copies: Ints, least: int) -> bool | None:
    """Whether copies exist side by side, to be changed separately; None if unknown."""
    if (still := held(trace, copies)) is None:
        return None
    return len(copies) < least * max(1, still)


def _thrown_away(trace: Events, run: CopyRun, least: int) -> bool:
    """Whether unused copies did not exist side by side, as those of a model do."""
    return not run.bare or _are_kept(trace, run.copies, least) is False


def _message(source: CopiedTensor, autocast: bool) -> str:
    what = f"of {torch_name(source.dtype)} copied"
    if source.dtype != source.to:
        by = " by autocast" * autocast
        what = f"cast from {torch_name(source.dtype)} to {torch_name(source.to)}{by}"
    return f"{list(source.shape)} {what} again and again"


def _moved_bytes(source: CopiedTensor) -> int:
    return prod(source.shape) * (ELEMENT_BYTES[source.dtype] + ELEMENT_BYTES[source.to])


def _matches(
    trace: Events, found: list[_Found], own: str, share: float, *, wants_tensors: bool = False
) -> Matches:
    if not found:
        return NONE_SO_FAR if wants_tensors else NO_MATCHES
    event = np.concatenate([one.tops for one in found])
    each = [one for one in found for _ in range(len(one.tops))]
    message = [_message(one.source, one.fix is _AUTOCAST) for one in each]
    moved = [_moved_bytes(one.source) for one in each]
    fix = [one.fix or layout_fix(trace, one.tops) or own for one in each]
    cost, moved_bytes = trace.dur[event], np.array(moved, np.int64)
    if trace.has(*DEVICE_KINDS):
        cost = cost + trace.once(launched_ns)[event]
    elif is_trifle(trace, len(event) * CALL_NS + moved_bytes.sum() * _COPIED_BYTE_NS, share):
        return NONE_SO_FAR if wants_tensors else NO_MATCHES
    return Matches(
        event, message, None, cost, moved_bytes, None, fix, around(trace, event), wants_tensors
    )
