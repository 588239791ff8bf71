"""Rules about tensors that grow by being copied."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.analysis.device_time import launched_ns
from pytest_torchprof.analysis.missing import slowdown_share
from pytest_torchprof.core.process import late
from pytest_torchprof.rules.evidence.calls import BYTE_NS, CALL_NS, guessed, least_ns
from pytest_torchprof.rules.evidence.loops import JOIN, between, call_of, chains, may_have_more
from pytest_torchprof.rules.rule import NO_MATCHES, NONE_SO_FAR, Matches, Threshold, rule
from pytest_torchprof.trace.names import DEVICE_KINDS
from pytest_torchprof.trace.tensors import listed
from pytest_torchprof.work.operands import ELEMENT_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_torchprof.rules.evidence.loops import BodyCall, Chain, Link
    from pytest_torchprof.trace.events import Events

#: Layers with parameters for each of the joined features.
_PARAMETERS: Final = late(r"aten::(linear|addmm|matmul|mm|_?conv\w*|\w+_norm|prelu)$")
#: Layers that take the features along the last dimension.
_PRODUCT: Final = late(r"aten::(linear|addmm|matmul|mm)$")
#: The number of links of a chain that are analyzed, and of calls between two links.
_LINKS: Final = 16
_LOOKED: Final = 200
#: A tensor that doubles each time copies its final size once in total; above this, it counts.
_AGAIN: Final = 2
#: What a tensor that is allocated once saves on a CPU for each byte that is not copied again, less
#: the call that writes the new part. Measured with torch 2.13 on one thread for parts of 5 to 800
#: KiB: it gains from 64 KiB on, 0.02 to 0.05 ns a byte.
_COPIED_NS, _WRITTEN_NS = 0.03, 1_500
_COLLECT: Final = "collect the parts in a list, and join them once after the loop"
_ALLOCATE: Final = (
    "allocate it once at its final length, and write each part in place (for keys and values: a "
    "static cache)"
)


@rule(
    "growing-cat",
    fix=f"{_COLLECT}; or {_ALLOCATE}",
    triggers={JOIN.pattern: "repeats"},
    needs="shapes",
    blind=lambda trace: guessed(trace, JOIN),
    sees_host=True,
    repeats=Threshold(10, "1", "a few parts are joined as fast one by one"),
    operators=Threshold(50, "1", "with more operators per iteration, the join hardly matters"),
    bytes=Threshold(
        1 << 20, "B", "of a tensor that is needed each time; copying less takes almost no time"
    ),
    cpu_share=Threshold(
        0.003, "1", "of all that the test does on a CPU, by counts, not times; less does not matter"
    ),
)
def growing_cat(
    trace: Events,
    *,
    repeats: float,
    operators: float,
    bytes: float,  # noqa: A002 - as users set it
    cpu_share: float,
) -> Matches:
    """A tensor grows by being copied as a whole each time.

    ## What it does

    Counts tensors that `cat`, `hstack`, `pad` and so on extended `repeats` times or more, each time
    from the previous result; and growing lists of tensors that are joined again each time. A tensor
    counts if `bytes` or more were copied again in total, or at any size if almost nothing takes it
    in between and at most `operators` are called in each iteration. A live test identifies the
    tensors; in a stored trace, the shapes must fit each time.

    Not counted: a list that is joined once; a moving window; features for each of which layers have
    parameters, as in DenseNet; a tensor that doubles each time; and on a CPU, what is less than
    `cpu_share` of all that the test does, by counts.

    ## Why it is slow

    Each time, everything so far is copied, and memory for it is allocated: for n parts, n²/2
    are copied.

    ## Example

    ```python
    out = torch.empty(0, 8)
    for batch in batches:
        out = torch.cat([out, model(batch)])
    ```

    ## Use instead

    ```python
    out = torch.cat([model(batch) for batch in batches])
    ```
    """
    kept: list[tuple[Chain, bool, int]] = []
    on_cpu = not trace.has(*DEVICE_KINDS)
    for chain in chains(trace, int(repeats)):
        again = sum(link.old for link in chain.links)
        if again < _AGAIN * np.prod(chain.links[-1].out):
            continue
        copied = again * _item_bytes(trace, chain)
        if copied < bytes and _every(trace, chain) > operators:
            continue
        kind = _collects(trace, chain)
        if not kind and on_cpu and _saved_by_writing_ns(chain, copied) <= 0:
            continue
        if kind is not None and (kind or copied >= bytes):
            kept.append((chain, kind, copied))
    found, messages, fix, cost, moved = [], [], [], [], []
    for chain, kind, copied in _that_matter(kept, least_ns(trace, cpu_share)):
        rows = np.array(chain.rows)
        ns = trace.dur[rows]
        if trace.has(*DEVICE_KINDS):
            ns = ns + trace.once(launched_ns)[rows]
        # What a list does not copy; what a preallocated tensor does not copy again.
        new = np.array([max(np.prod(link.out), 1) for link in chain.links], float)
        old = np.array([link.old for link in chain.links], float)
        saved = float(ns[:-1].sum() if kind else (ns * old / new).sum())
        if not kind and on_cpu:
            saved = min(saved, _saved_by_writing_ns(chain, copied) / slowdown_share(trace))
        found.append(chain)
        cost.append(int(saved))
        moved.append(copied)
        fix.append(_COLLECT if kind and not chain.listed else _ALLOCATE)
        messages.append(_message(trace, chain))
    if not found:
        more = trace.could_know_tensors and may_have_more(trace, int(repeats), bytes)
        return NONE_SO_FAR if more else NO_MATCHES
    first = np.array([chain.rows[0] for chain in found])
    last = np.array([chain.rows[-1] for chain in found])
    return Matches(
        np.array([chain.rows[1] for chain in found]),
        messages,
        cost_ns=np.array(cost, np.int64),
        bytes=np.array(moved, np.int64),
        fix=fix,
        span_ns=(trace.ts[first], trace.ts[last] + trace.dur[last]),
        wants_tensors=True,
    )


def _that_matter(
    some: Sequence[tuple[Chain, bool, int]], least: float
) -> list[tuple[Chain, bool, int]]:
    """Those that take that many ns on a CPU, with all others of the same sizes, by counts."""
    total = defaultdict[object, float](float)
    for chain, collects, copied in some:
        if collects:
            ns = copied * BYTE_NS + len(chain.links) * CALL_NS
        else:
            ns = _saved_by_writing_ns(chain, copied)
        total[chain.links[-1].out, len(chain.links)] += ns
    return [one for one in some if total[one[0].links[-1].out, len(one[0].links)] >= least]


def _saved_by_writing_ns(chain: Chain, copied: int) -> float:
    """What a CPU saves if parts are written into a tensor that is allocated once; it may lose."""
    return copied * _COPIED_NS - len(chain.links) * _WRITTEN_NS


def _item_bytes(trace: Events, chain: Chain) -> int:
    """The size of an element; 4 where it is unknown, as for lists in a stored trace."""
    (known,) = listed(trace, np.array(chain.rows[-1:])) or [None]
    if known is not None:
        return known.item_bytes
    kinds = chain.links[0].call.types
    return ELEMENT_BYTES.get(kinds[0], 4) if kinds else 4


def _message(trace: Events, chain: Chain) -> str:
    begin, end = chain.links[0].out, chain.links[-1].out
    least = "at least " * (trace.tensors is None and chain.is_cut)
    name = chain.links[-1].call.name
    return f"{name} grows a tensor by copying it, from {list(begin)} to {least}{list(end)}"


def _collects(trace: Events, chain: Chain) -> bool | None:
    """Whether almost nothing takes the tensor before it is extended again.

    None if growing is necessary, because each layer has parameters for all that was joined; and if
    only shapes fit, but new tensors of them are made each time.
    """
    import json

    taken, with_parameters, anew = 0, 0, 0
    links = list(pairwise(chain.links))
    links = links[:: -(-len(links) // _LINKS)]
    for one, other in links:
        rows = between(trace, one.row, other.row)[:_LOOKED]
        made_of = [
            call_of(trace.names[trace.name[row]], args)
            for row, args in zip(rows.tolist(), trace.operands(rows), strict=True)
        ]
        takers = [call for call in made_of if any(one.out in s for s in call.shapes)]
        taken += bool(takers)
        with_parameters += any(_has_parameters(call, one) for call in takers)
        made = json.dumps(list(one.out)).encode()
        anew += trace.tensors is None and any(made in call.concrete for call in made_of)
    if 2 * max(with_parameters, anew) >= len(links):
        return None
    return 2 * taken < len(links) and not chain.listed


def _every(trace: Events, chain: Chain) -> float:
    """The number of calls per join."""
    return len(between(trace, chain.rows[0], chain.rows[-1])) / (len(chain.links) - 1)


def _has_parameters(call: BodyCall, link: Link) -> bool:
    """Whether a layer takes what was joined, with parameters for each of the features."""
    if not _PARAMETERS.match(call.name):
        return False
    product = _PRODUCT.match(call.name) is not None
    if product and link.axis != len(link.out) - 1:
        return False  # more samples, not features: keys and values of attention
    first = 1 if call.base == "addmm" else 0
    inputs, weights = ([*call.shapes, (), ()])[first : first + 2]
    size = link.out[link.axis]
    return link.out in inputs and any(size in shape[:2] for shape in weights)
