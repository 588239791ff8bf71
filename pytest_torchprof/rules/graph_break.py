"""The rule about graph breaks of torch.compile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pytest_torchprof.analysis import compilations
from pytest_torchprof.core.process import late
from pytest_torchprof.core.unknown import Reason, Why, because
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, rule
from pytest_torchprof.trace.names import Kind

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events

#: dynamo's name for the rest of a function after a graph break, as a Python frame of a trace.
#: Source: torch/_dynamo/resume_execution.py, ``TORCH_DYNAMO_RESUME_IN_PREFIX``.
_RESUMED = late(r"(?P<file>.+)\(\d+\): torch_dynamo_resume_in_(?P<name>.+)_at_(?P<line>\d+)")


def _is_ready(trace: Events) -> Reason | None:
    """What dynamo recorded about the code that ran; else stacks, or that nothing was compiled."""
    if trace.facts.compiled is not None:
        found = trace.once(compilations.graph_breaks)
        return found.gap if found.rows is None else None
    unknown = compilations.regions(trace) and not trace.is_kind(Kind.PYTHON).any()
    return because(*Why.ONLY_LIVE) if unknown else None


@rule(
    "graph-break",
    fix="keep what dynamo cannot trace out of compiled code; fullgraph=True finds it at once",
    ready=_is_ready,
    gated_by="graph_breaks",
)
def graph_break(trace: Events) -> Matches:
    """torch.compile gives up on a graph, and the rest runs from Python or is not compiled at all.

    ## What it does

    Counts the graph breaks that dynamo reports while it compiles what the first run of the test
    calls, each with dynamo's reason and the line; those that raise because of `fullgraph=True`,
    too. In a stored trace of another tool, they are recognized by the functions with which Python
    resumes, if stacks were recorded. What a break costs is unknown: no record tells how one graph
    would have done.

    ## Why it is slow

    Each piece is a separate graph: it is called from Python, nothing is fused across the break, and
    values return to Python between the two.

    ## Example

    ```python
    @torch.compile
    def step(x):
        y = x.sin()
        print(y.mean())
        return y.cos()
    ```

    ## Use instead

    ```python
    @torch.compile(fullgraph=True)
    def step(x):
        y = x.sin()
        return y.cos(), y.mean()
    ```
    """
    if trace.facts.compiled is not None:
        notes = trace.once(compilations.graph_breaks).rows or ()
        return Matches(
            np.array([compilations.first_run(trace, row.id) for row in notes], np.int64),
            [row.reason for row in notes],
            cost_ns=np.full(len(notes), -1),
            location=[row.location for row in notes],
        )
    rows: dict[tuple[str, ...], int] = {}
    for name in trace.names:
        found = "torch_dynamo_resume_in_" in name and _RESUMED.fullmatch(name)
        if found and (event := compilations.first(trace, name)) >= 0:
            rows.setdefault(found.group("file", "line", "name"), event)
    if not rows:
        return NO_MATCHES
    return Matches(
        np.array([*rows.values()], np.int64),
        [f"{name} continues in Python after a graph break" for *_, name in rows],
        cost_ns=np.full(len(rows), -1),
        location=[f"{file}:{line}" for file, line, _ in rows],
    )
