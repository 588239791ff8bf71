"""A rule about graphs that no backward pass uses."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.rules.calls import LAYER, PRODUCT, is_trifle, kept_bytes, own_tensors
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, Threshold, rule
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.names import STEP, Names, are_named, marks_named, operators_named
from pytest_torchprof.trace.tree import BACKWARD, FETCH, are_gradchecked, calls
from pytest_torchprof.work.autograd import (
    OPTIMIZER_STEP,
    all_used,
    are_used,
    graphs,
    hides_backward,
    node_steps,
    recorded,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_torchprof.rules.calls import Own
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

#: These end a forward pass.
_BOUNDARY: Final = Names(rf"{BACKWARD}|Optimizer\.|{re.escape(FETCH)}|{STEP.pattern}")
#: Operators that draw samples, as in a step of sampling, and no layer except dropout.
_DRAWS: Final = Names(
    r"aten::(randn?|randint|randn?_like|randint_like|normal_?|uniform_|exponential_|multinomial"
    r"|poisson|random_)$"
)
#: Fewer runs of a model that is trained are looks at its output.
_LOOKS: Final = 2
_BESIDE: Final = "wrap it in torch.no_grad(): no backward can use what inference_mode() makes"


@rule(
    "missing-no-grad",
    memory=True,
    fix="wrap it in torch.inference_mode(), or under autocast in torch.no_grad(), which keeps "
    "autocast's cache of weights",
    triggers=LAYER.pattern,
    layers=Threshold(2, "1", "an unused head or a metric in a training step is not a forward pass"),
    repeats=Threshold(3, "1", "a test that calls a model once or twice is not about its speed"),
    share=Threshold(0.1, "1", "one evaluation after long training costs almost nothing"),
    bytes=Threshold(16 << 20, "B", "less is soon dropped, and always fits"),
    cpu_share=Threshold(
        0.005, "1", "of all operators that the test calls on a CPU; less does not matter"
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

    Looks for graphs with layers of which no backward pass ran any node. They count if `repeats` (3)
    of them use the same weights (validation, sampling, a teacher); next to training, from `layers`
    (2) on, if they are `share` (0.1) of all layers that are recorded; or if the layers keep `bytes`
    (16 MiB) of their inputs. The place is the line outside of any module's `forward` around them.

    Not counted: one look at a model that is trained, unused heads of one, the steps of a recurrent
    network, `gradcheck`, and on a CPU less than `cpu_share` (0.005) of the test's operators. A
    stored trace tells weights apart by shapes alone.

    ## Why it is slow

    Every operator makes a node of the graph, and the activations are kept until the result is
    dropped: more memory, often several times as much. What that costs in time is unknown.

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
    """
    if all_used(trace, LAYER) or hides_backward(trace):
        return NO_MATCHES
    every, steps = recorded(trace), node_steps(trace)
    graph, used = graphs(trace, LAYER), are_used(trace, every)
    if graph is not None:
        used = nesting.among(graph, graph[used])  # an unused head of a model that is trained
    chosen = np.flatnonzero(are_named(trace, every.rows, LAYER))
    chosen = chosen[~are_gradchecked(trace, every.rows[chosen])]
    rows, used, nodes = every.rows[chosen], used[chosen], (every.after - every.first)[chosen]
    part = np.searchsorted(marks_named(trace, _BOUNDARY), rows)
    part = part * (int(trace.thread.max(initial=0)) + 1) + trace.thread[rows]
    unused = ~used & trace.selection[rows]
    if trace.region is None and used.any():  # the recording may have ended before its use
        last = calls(trace)[np.argmax(trace.ts[calls(trace)])]
        unused &= ~nesting.among(part, part[rows == last])
    if not unused.any():
        return NO_MATCHES
    trained, mixed, total = rows[used], set(part[used].tolist()), nodes.sum()
    rows, part, nodes = rows[unused], part[unused], nodes[unused]
    owns = own_tensors(trace, rows)
    runs = _runs(trace, rows, owns, None if graph is None else graph[chosen][unused])
    known = set[tuple[str, object]]().union(*own_tensors(trace, trained))
    again, beside, large = list[int](), list[int](), list[int]()
    for one in nesting.distinct(part).tolist():
        mine = np.flatnonzero(part == one)
        kinds = [max(own, key=lambda x: (runs[x], str(x))) for at in mine if (own := owns[at])]
        often = {own for own in kinds if runs[own] >= repeats}
        product = len(often) == 1 and PRODUCT.match(min(often)[0])
        looked = 2 * sum(own in known and runs[own] < _LOOKS for own in kinds) > len(mine)
        if often and not product and len(often) >= (layers if one in mixed else 1):
            again.append(one)
        elif len(mine) >= layers and kept_bytes(trace, rows[mine]) >= bytes:
            large.append(one)
        elif (~are_named(trace, rows[mine], PRODUCT)).sum() >= layers and not looked:
            beside.append(one)
    alike = max(Counter(x for own in owns for x in own).values(), default=0)
    passes = len(nesting.distinct(np.searchsorted(every.rows, steps)))
    most = nodes[nesting.among(part, again + beside)].sum() >= share * total
    if most and (passes >= repeats or len(marks_named(trace, OPTIMIZER_STEP))):
        again += beside
    if is_trifle(trace, int(nesting.among(part, again).sum()), cpu_share):
        again = []
    parts = [rows[part == one] for one in sorted(again + large)]
    first, last = (np.array([one[at] for one in parts], np.int64) for at in (0, -1))
    sizes = [len(one) for one in parts]
    return Matches(
        first,
        [f"{n} layer{'s' * (n > 1)} recorded a graph that no backward used" for n in sizes],
        cost_ns=np.full(len(parts), -1, np.int64),
        span_ns=(trace.ts[first], trace.ts[last] + trace.dur[last]),
        parts=parts,
        fix=[_BESIDE] * len(parts) if len(steps) else None,
        apart=trained,
        wants_tensors=graph is None and bool(parts or beside or alike >= repeats),
        wants_module_calls=bool(again),
    )


def _runs(trace: Events, rows: Ints, owns: Sequence[set[Own]], graph: Ints | None) -> Counter[Own]:
    """In how many graphs, and calls of outermost modules, each layer runs.

    Each step that draws a sample counts, too. Shapes only tell that all layers run again.
    """
    if graph is None:
        product = are_named(trace, rows, PRODUCT)
        kinds = Counter(x for own, one in zip(owns, product, strict=True) if not one for x in own)
        compiled = any(not name.startswith("aten::") for name, _ in kinds)
        few = len(kinds) < (1 if compiled else 2)
        return Counter() if few else Counter(dict.fromkeys(kinds, min(kinds.values())))
    drawn = np.searchsorted(operators_named(trace, _DRAWS), rows)
    run = [*zip(graph.tolist(), drawn.tolist(), strict=True)]
    outer = [-1] * len(rows) if trace.module_calls is None else trace.module_calls[rows].tolist()
    seen = {(x, one) for own, one in zip(owns, run, strict=True) for x in own}
    each = zip(owns, run, outer, strict=True)
    called = {(x, (c, one[1]) if c >= 0 else one) for own, one, c in each for x in own}
    return Counter(x for x, _ in seen) & Counter(x for x, _ in called)
