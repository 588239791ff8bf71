"""Rules about graphs that no backward pass uses."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.rules.evidence.autograd import (
    all_used,
    are_last,
    are_passes,
    flat,
    made_bytes,
    makers,
    node_steps,
    numbers,
    once_a_call,
    recorded,
    recording_ns,
    unprofiled_recording_ns,
)
from pytest_torchprof.rules.evidence.calls import (
    LAYER,
    PRODUCT,
    guessed,
    kept_bytes,
    least_ns,
    own_tensors,
    running_again,
)
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, Threshold, rule
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.names import STEP, Names, are_named, marks_named
from pytest_torchprof.trace.tree import BACKWARD, FETCH, are_gradchecked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_torchprof.rules.evidence.autograd import Recorded
    from pytest_torchprof.rules.evidence.calls import Own
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

#: These end a forward pass.
_BOUNDARY: Final = Names(rf"{BACKWARD}|Optimizer\.|{re.escape(FETCH)}|{STEP.pattern}")
_OPTIMIZER_STEP: Final = Names(r"Optimizer\.step#")
_BESIDE_TRAINING: Final = (
    "wrap it in torch.no_grad(): a backward pass cannot use what torch.inference_mode() makes"
)


@rule(
    "missing-no-grad",
    memory=True,
    fix="wrap it in torch.inference_mode(), or under autocast in torch.no_grad(), which keeps "
    "autocast's cache of weights",
    triggers=LAYER.pattern,
    blind=lambda trace: guessed(trace, LAYER),
    sees_host=True,
    layers=Threshold(2, "1", "an unused head or a metric in a training step is not a forward pass"),
    repeats=Threshold(3, "1", "a test that calls a model once or twice is not about its speed"),
    share=Threshold(0.1, "1", "one evaluation after long training costs almost nothing"),
    bytes=Threshold(16 << 20, "B", "less is soon dropped, and always fits"),
    cpu_share=Threshold(
        0.005, "1", "of all that the test does on a CPU, by counts, not times; less does not matter"
    ),
)
def missing_no_grad(
    trace: Events,
    *,
    layers: float,
    repeats: float,
    share: float,
    bytes: float,  # noqa: A002 - as users set it
    cpu_share: float,
) -> Matches:
    """A forward pass records a graph for a backward pass that never comes.

    ## What it does

    Looks for forward passes whose layers autograd recorded and that no backward pass in the trace
    used. They count if layers with the same weights run `repeats` (3) times in them (validation,
    sampling, a teacher); next to training, from `layers` (2) on, if they are `share` (0.1) of all
    that is recorded; or if the layers keep `bytes` (16 MiB) of their inputs. The place is the line
    outside of any module's `forward` around all of it, where `no_grad` belongs.

    Not counted: a model that is called once or twice, a look at the output before training, an
    unused head of a trained model, the steps of a recurrent network, `gradcheck`, and on a CPU
    graphs that take less than `cpu_share` (0.005) of the test, decided by counts. A stored trace
    tells weights apart by shapes alone.

    ## Why it is slow

    Every operator makes a node of the graph, and the activations are kept until the result is
    dropped: more memory, often several times as much, and some time for each operator.

    ## Example

    ```python
    model.eval()
    for batch in loader:
        predictions.append(model(batch).argmax(1))
    ```

    ## Use instead

    ```python
    model.eval()
    with torch.inference_mode():
        for batch in loader:
            predictions.append(model(batch).argmax(1))
    ```

    Beside training, use `torch.no_grad()`: a backward pass cannot use what
    `torch.inference_mode()` makes.
    """
    if all_used(trace, LAYER):
        return NO_MATCHES
    found = recorded(trace, LAYER)
    found = found.where(~are_gradchecked(trace, found.rows))
    if not len(found.rows):
        return NO_MATCHES
    nodes = node_steps(trace)
    ran = nesting.distinct(numbers(trace, nodes))
    stepped = bool(len(marks_named(trace, _OPTIMIZER_STEP)))
    if ran[-1:].max(initial=-1) < 0 and stepped:
        return NO_MATCHES  # an optimizer's step follows a backward pass, on a thread not recorded
    used = np.searchsorted(ran, found.first) < np.searchsorted(ran, found.after)
    boundaries = marks_named(trace, _BOUNDARY)
    part = _numbered(
        np.searchsorted(boundaries, found.rows), trace.thread[found.rows].astype(np.int64)
    )
    stretch = _numbered(part, used)
    starts = np.flatnonzero(np.diff(stretch, prepend=-1))
    size = np.bincount(stretch)
    made = np.bincount(stretch, found.after - found.first)
    counts = ~used[starts] & trace.selection[found.rows[starts]]
    if trace.region is None and used.any():
        counts &= np.bincount(stretch, are_last(trace, found.rows)) == 0
    # A stretch in a part that was used must be long enough.
    mixed = np.bincount(part, used)[part[starts]] > 0
    counts &= (size >= layers) | ~mixed
    if not counts.any():
        return NO_MATCHES
    mine = np.flatnonzero(counts[stretch])
    least = np.where(mixed, layers, 1)
    owns, asks = _again(trace, found.rows[mine], repeats)
    match = _kinds(owns, stretch[mine], len(starts)) >= least
    again = bool(match.any())
    passes = len(nesting.distinct(np.searchsorted(np.sort(found.rows), nodes)))
    if stepped or passes >= repeats:
        own = ~are_named(trace, found.rows, PRODUCT)
        beside = counts & (np.bincount(stretch, own) >= layers)
        if passes >= repeats:  # a single run of weights that are trained is a look at the output
            owns, _ = _again(trace, found.rows[mine], 2)
            single = _kinds(owns, stretch[mine], len(starts)) < least
            again |= bool((beside & ~match & ~single).any())
            tensors = own_tensors(trace, found.rows)
            asks |= tensors is None and bool((beside & ~match & single).any())
            if tensors is not None:
                beside &= match | ~(single & _are_trained(tensors, used, stretch))
        match |= beside & (made[beside].sum() >= share * made.sum())
    large = np.zeros(len(starts), bool)
    for one in np.flatnonzero(counts & ~match & (size >= layers)).tolist():
        large[one] = kept_bytes(trace, found.rows[stretch == one]) >= bytes
    match |= large
    for one in np.flatnonzero(match & mixed).tolist():
        is_head = _takes_what_was_used(trace, int(found.rows[starts[one]]), ran)
        asks |= is_head is None
        match[one] = not is_head
    chosen = np.flatnonzero(match)
    matters, unsure = _matter(trace, found, [stretch == one for one in chosen.tolist()], cpu_share)
    chosen = chosen[matters | large[chosen]]
    of_each = [stretch == one for one in chosen.tolist()]
    parts = [found.rows[one] for one in of_each]
    cost = [recording_ns(trace, *_graph(trace, found, one)) for one in of_each]
    rows = found.rows[starts[chosen]]
    last = np.array([part[-1] for part in parts], np.int64)
    begin, end = trace.ts[rows], trace.ts[last] + trace.dur[last]
    return Matches(
        rows,
        [
            f"{n} layer{'s' * (n > 1)} recorded a graph that no backward used"
            for n in size[chosen].tolist()
        ],
        # At least half of the time is that of the layers themselves.
        cost_ns=np.minimum(np.array(cost, np.int64), (end - begin) // 2),
        span_ns=(begin, end),
        parts=parts,
        fix=[_BESIDE_TRAINING] * len(rows) if len(nodes) else None,
        apart=found.rows[used],
        wants_tensors=asks or unsure,
        wants_module_calls=again and bool(len(chosen)),
    )


def _again(trace: Events, rows: Ints, repeats: float) -> tuple[list[Own | None], bool]:
    """Like `running_again`, without layers that only run again within one pass."""
    owns, asks = running_again(trace, rows, repeats)
    return once_a_call(trace, rows, _of_passes(trace, rows, owns), repeats), asks


def _are_trained(own: Sequence[set[Own]], used: Bools, stretch: Ints) -> Bools:
    """In which stretches most layers have weights that a backward pass uses, and no other unused
    stretch.
    """
    trained = {one for some, hit in zip(own, used, strict=True) if hit for one in some}
    each = zip(own, stretch.tolist(), used, strict=True)
    unused = Counter(one for one, _ in {(x, at) for some, at, hit in each if not hit for x in some})
    known = np.bincount(stretch, [bool(some) for some in own])
    hits = [any(one in trained and unused[one] < 2 for one in some) for some in own]
    out: Bools = 2 * np.bincount(stretch, hits) > known
    return out


def _takes_what_was_used(trace: Events, row: int, ran: Ints) -> bool | None:
    """Whether a layer takes what came with a graph that a backward pass ran, as an unused head of a
    trained model does; None if tensors are not identified.
    """
    if (taken := trace.taken(np.array([row], np.int64))) is None:
        return None
    made_by = makers(trace, row)
    from_rows = [made_by[one] for one in flat(taken) if one in made_by]
    every = recorded(trace, None)
    used = np.searchsorted(ran, every.first) < np.searchsorted(ran, every.after)
    return bool(nesting.among(np.array(from_rows, np.int64), every.rows[used]).any())


def _graph(trace: Events, found: Recorded, layers: Bools) -> tuple[int, int]:
    """The nodes of the graph of these layers, and what it keeps in bytes, also of what is between
    them.
    """
    rows = found.rows[layers]
    made = made_bytes(trace, rows)
    number = int(found.after[layers].max() - found.first[layers].min())
    return number, kept_bytes(trace, rows) if made is None else made


def _matter(
    trace: Events, found: Recorded, stretches: Sequence[Bools], share: float
) -> tuple[Bools, bool]:
    """Which stretches take enough of what the test does on a CPU, with all that run layers of the
    same weights; and whether that is unsure, as tensors are not identified.
    """
    every = np.ones(len(stretches), bool)
    if not stretches:
        return every, False
    ns = [unprofiled_recording_ns(trace, *_graph(trace, found, one)) for one in stretches]
    least = least_ns(trace, share)
    if min(ns) >= least:
        return every, False
    owns = [own_tensors(trace, found.rows[one]) for one in stretches]
    keys = [frozenset().union(*own) if own is not None else None for own in owns]
    total = defaultdict[object, float](float)
    for key, one in zip(keys, ns, strict=True):
        total[key] += one
    return np.array([total[key] >= least for key in keys], bool), trace.tensors is None


def _numbered(*columns: Ints | Bools) -> Ints:
    """Numbers from 0 on that increase wherever one of the columns changes."""
    change = np.zeros(max(len(columns[0]) - 1, 0), bool)
    for column in columns:
        change |= column[1:] != column[:-1]
    return np.concatenate([[0], np.cumsum(change)]).astype(np.int64)


def _of_passes(trace: Events, rows: Ints, owns: list[Own | None]) -> list[Own | None]:
    """The same without layers that run again within one pass, if tensors are identified."""
    if trace.tensors is None:
        return owns
    at: dict[Own, list[int]] = {}
    for row, own in zip(rows.tolist(), owns, strict=True):
        if own is not None:
            at.setdefault(own, []).append(row)
    # Layers with the same number of runs form one loop, which begins with the first of them.
    apart = dict[int, bool]()
    for runs in sorted(at.values()):
        if len(runs) not in apart:
            apart[len(runs)] = are_passes(trace, rows, np.array(runs))
    return [own if own is not None and apart[len(at[own])] else None for own in owns]


def _kinds(owns: Sequence[Own | None], stretch: Ints, count: int) -> Ints:
    """How many layers of each stretch run again and again; 0 if it is a single product."""
    found: list[set[Own]] = [set() for _ in range(count)]
    for own, number in zip(owns, stretch.tolist(), strict=True):
        if own is not None:
            found[number].add(own)
    one_product = [len(kinds) == 1 and PRODUCT.match(min(kinds)[0]) for kinds in found]
    counts = [0 if alone else len(kinds) for kinds, alone in zip(found, one_product, strict=True)]
    return np.array(counts, np.int64)
