"""Rules about tensors that grow by being copied."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.analysis.device_time import launched_ns
from pytest_torchprof.core.late import late
from pytest_torchprof.rules.bodies import call_of
from pytest_torchprof.rules.chains import JOIN, between, chains
from pytest_torchprof.rules.engine.rule import NO_MATCHES, Matches, Threshold, rule
from pytest_torchprof.trace.kinds import DEVICE_KINDS
from pytest_torchprof.trace.levels import calls
from pytest_torchprof.work.dtypes import ELEMENT_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_torchprof.rules.bodies import Call
    from pytest_torchprof.rules.chains import Chain, Link
    from pytest_torchprof.trace.events import Trace
    from pytest_torchprof.trace.nesting import Ints

#: Layers with parameters for each of the features that were joined.
_PARAMETERS: Final = late(r"aten::(linear|addmm|matmul|mm|_?conv\w*|\w+_norm|prelu)$")
#: Those that take the features along the last dimension.
_PRODUCT: Final = late(r"aten::(linear|addmm|matmul|mm)$")
#: Links of a chain that are looked at, and calls between one and the next.
_LINKS: Final = 16
_LOOKED: Final = 200
#: What is copied again of a tensor that doubles each time is once as much as it gets, in all.
_AGAIN: Final = 2
_STORE: Final = late(r"aten::(copy_|fill_|zero_)$")
_COLLECT: Final = "collect the parts in a list, and join them once after the loop"
_ALLOCATE: Final = (
    "allocate it once, as long as it will get, and write each part into its place (for keys and "
    "values: a static cache)"
)


@rule(
    "growing-cat",
    fix=f"{_COLLECT}; or {_ALLOCATE}",
    triggers={JOIN.pattern: "repeats"},
    needs="shapes",
    repeats=Threshold(10, "1", "a few parts are joined as quickly one after the other"),
    operators=Threshold(50, "1", "beside so many others in each repetition a join is a trifle"),
    bytes=Threshold(
        1 << 20, "B", "of a tensor that is needed each time; less is copied in no time"
    ),
)
def growing_cat(trace: Trace, *, repeats: float, operators: float, bytes: float) -> Matches:  # noqa: A002
    """A tensor gets longer and longer, and is copied as a whole each time.

    What it does
        Counts tensors that ``cat``, ``hstack``, ``vstack`` and so on, or ``pad``, made longer
        ``repeats`` (10) times or more, each time from what the last time made; and lists of tensors
        that are joined again each time they are longer. A live test tells by which tensor is which
        that it is the same; a stored trace by the shapes, which fit each time.

        It counts if ``bytes`` (1 MiB) or more were copied again in all, as for a cache of keys and
        values that attention takes, longer by one each time: a tensor that is allocated once is
        then quicker, and below that it is not. Where hardly anything else takes the tensor in
        between, but to write the new part, parts were only collected: a list does that, so it
        counts however small it is, where at most ``operators`` (50) run in each repetition. A list
        that is joined again each time is needed each time: it counts from ``bytes`` only.

        Not: a list that is joined once; a window that moves, which stays as long as it is; features
        that layers with parameters for each of them take, as in DenseNet, where that is the
        architecture; a tensor that doubles each time, or gets most of its size at once, so that
        little of it is copied again; tensors that grow in one graph of ``torch.compile``.

    Why it is slow
        Each time, all that was there before is copied, and memory for it is allocated: for n parts,
        n²/2 are copied.

    Example
        .. code:: python

            out = torch.empty(0, 8)
            for batch in batches:
                out = torch.cat([out, model(batch)])

    Use instead
        .. code:: python

            out = torch.cat([model(batch) for batch in batches])
    """
    found, said, fix, cost, moved = [], [], [], [], []
    for chain in chains(trace, int(repeats)):
        again = sum(link.old for link in chain.links)
        if again < _AGAIN * np.prod(chain.links[-1].out):
            continue
        copied = again * _size(chain)
        if copied < bytes and _every(trace, chain) > operators:
            continue
        kind = _collects(trace, chain)
        if kind is None or (not kind and copied < bytes):
            continue
        rows = np.array(chain.rows)
        ns = trace.dur[rows]
        if trace.has(*DEVICE_KINDS):
            ns = ns + trace.once(launched_ns)[rows]
        # What a list does not copy; what a tensor that is long enough need not copy again.
        new = np.array([max(np.prod(link.out), 1) for link in chain.links], float)
        old = np.array([link.old for link in chain.links], float)
        saved = _called(trace, rows, ns)[:-1].sum() if kind else (ns * old / new).sum()
        found.append(chain)
        cost.append(int(saved))
        moved.append(int(copied))
        fix.append(_COLLECT if kind and not chain.listed else _ALLOCATE)
        said.append(_said(chain))
    if not found:
        return NO_MATCHES
    first = np.array([chain.rows[0] for chain in found])
    last = np.array([chain.rows[-1] for chain in found])
    return Matches(
        np.array([chain.rows[1] for chain in found]),
        said,
        cost_ns=np.array(cost, np.int64),
        bytes=np.array(moved, np.int64),
        fix=fix,
        span_ns=(trace.ts[first], trace.ts[last] + trace.dur[last]),
        wants_tensors=True,
    )


def _size(chain: Chain) -> int:
    kinds = chain.links[0].call.types
    return ELEMENT_BYTES.get(kinds[0], 4) if kinds else 4


def _said(chain: Chain) -> str:
    begin, end = chain.links[0].out, chain.links[-1].out
    name = chain.links[-1].call.name
    return f"{name} makes a tensor longer by copying it, from {list(begin)} to {list(end)}"


def _collects(trace: Trace, chain: Chain) -> bool | None:
    """Whether hardly anything takes the tensor before it is longer again.

    None where it has to be so, as each layer has parameters for all that was joined; and where
    shapes alone fit, but there are new tensors of them each time.
    """
    taken, with_parameters, anew = 0, 0, 0
    links = list(pairwise(chain.links))
    links = links[:: -(-len(links) // _LINKS)]
    for one, other in links:
        rows = between(trace, one.row, other.row)[:_LOOKED]
        made_of = [
            call_of(trace.names[trace.name[row]], args)
            for row, args in zip(rows.tolist(), trace.operands(rows), strict=True)
        ]
        takers = [call for call in _no_writes(made_of) if any(one.out in s for s in call.shapes)]
        taken += bool(takers)
        with_parameters += any(_has_parameters(call, one) for call in takers)
        made = json.dumps(list(one.out)).encode()
        anew += trace.tensors is None and any(made in call.concrete for call in made_of)
    if 2 * max(with_parameters, anew) >= len(links):
        return None
    return 2 * taken < len(links) and not chain.listed


def _no_writes(some: Sequence[Call]) -> list[Call]:
    """Calls without those that write into a part of a tensor, as ``rows[-1] = row``."""
    out: list[Call] = []
    for call in some:
        if not _STORE.match(call.name):
            out.append(call)
            continue
        into = call.shapes[0][0] if call.shapes and call.shapes[0] else None
        while out and (part := out[-1].part) is not None and part.result == into:
            into = part.shape
            out.pop()
    return out


def _called(trace: Trace, rows: Ints, ns: Ints) -> Ints:
    """What joins take, with what Python needs to call them: until the next call, twice at most."""
    every = calls(trace)
    every = every[trace.thread[every] == trace.thread[rows[0]]]
    after = every[np.minimum(every.searchsorted(rows) + 1, len(every) - 1)]
    longer: Ints = np.clip(trace.ts[after] - trace.ts[rows], ns, 2 * ns)
    return longer


def _every(trace: Trace, chain: Chain) -> float:
    """How many calls there are for each join."""
    return len(between(trace, chain.rows[0], chain.rows[-1])) / (len(chain.links) - 1)


def _has_parameters(call: Call, link: Link) -> bool:
    """Whether a layer takes what was joined, with parameters for each of the features."""
    if not _PARAMETERS.match(call.name):
        return False
    product = _PRODUCT.match(call.name) is not None
    if product and link.axis != len(link.out) - 1:
        return False  # of which the samples are more: an attention's keys and values
    first = 1 if call.base == "addmm" else 0
    inputs, weights = ([*call.shapes, (), ()])[first : first + 2]
    size = link.out[link.axis]
    return link.out in inputs and any(size in shape[:2] for shape in weights)
