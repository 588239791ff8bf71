"""Rules about torch.compile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from pytest_torchprof.analysis import compilations
from pytest_torchprof.analysis.idle_causes import compiled_regions
from pytest_torchprof.core.process import late
from pytest_torchprof.core.unknown import Reason, Why, because
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, rule
from pytest_torchprof.trace.facts import CompileNote
from pytest_torchprof.trace.names import Kind

if TYPE_CHECKING:
    from pytest_torchprof.analysis.compilations import Compiled
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.facts import RecompileNote
    from pytest_torchprof.trace.nesting import Bools

_REGION = "Torch-Compiled Region"
#: dynamo's name for the rest of a function after a graph break, as a Python frame of a trace.
#: Source: torch/_dynamo/resume_execution.py, ``TORCH_DYNAMO_RESUME_IN_PREFIX``.
_RESUMED = late(r"(?P<file>.+)\(\d+\): torch_dynamo_resume_in_(?P<name>.+)_at_(?P<line>\d+)")

_VARIES = (
    "mark what varies: dynamic=True or mark_dynamic for sizes, tensors instead of Python numbers "
    "for values"
)
#: Fixes for recompilations with specific causes, see `capture.dynamo.cause`.
_FIXES = {
    "rest": "fix the graph break, so that there is no rest to compile; or mark what varies there",
    "wrapper": "compile the whole model, or a class of your own: built-in modules compiled one "
    "by one share torch's wrapper; for a single module, mark what varies",
    "model": "each model of one class with a different size is compiled once, and marking sizes "
    "dynamic does not help: allow it, or compile a function that calls them all",
    "tensor": "pass tensors of one dtype, device, number of dimensions and requires_grad, or "
    "compile one function for each kind",
    "equal sizes": "dynamo takes sizes that are equal in the first call for one, also with "
    "dynamic=True: mark each with mark_dynamic, or make the first call with sizes that differ",
    "size 0 or 1": "sizes 0 and 1 are compiled on their own, also with dynamic=True: allow it, or "
    "mark the size with torch._dynamo.decorators.mark_unbacked",
    "condition": "the size is dynamic already, but the code or an operator in it distinguishes "
    "sizes: remove the condition, or allow it",
    "value": "what is neither a tensor nor a number is a constant of the graph: compile one "
    "function for each value, or set it when the model is built; if each is wanted, allow them, "
    "and raise dynamo's recompile limit if there are more than 8",
}


def _unknown(found: Compiled) -> Reason | None:
    return found.gap if found.rows is None else None


def _is_ready_for_breaks(trace: Events) -> Reason | None:
    """What dynamo recorded about the code that ran; else stacks, or that nothing was compiled."""
    if trace.facts.compiled is not None:
        return _unknown(trace.once(compilations.graph_breaks))
    compiled = any(name.startswith(_REGION) for name in trace.names)
    return because(*Why.ONLY_LIVE) if compiled and not trace.is_kind(Kind.PYTHON).any() else None


def _is_ready_for_recompilations(trace: Events) -> Reason | None:
    """What dynamo recorded about the code that ran, or the trace's numbers of compilations."""
    if trace.facts.compiled is not None:
        return _unknown(trace.once(compilations.recompilations))
    unnamed = not compilations.regions(trace) and _REGION in trace.names
    return (
        because("not_numbered", "this torch version does not number compilations")
        if unnamed
        else None
    )


@rule(
    "graph-break",
    fix="keep what dynamo cannot trace out of compiled code; fullgraph=True finds it at once",
    ready=_is_ready_for_breaks,
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
        return _noted(trace, trace.once(compilations.graph_breaks))
    return _resumed(trace)


@rule(
    "recompile",
    fix=_VARIES,
    ready=_is_ready_for_recompilations,
    gated_by="recompiles",
)
def recompile(trace: Events) -> Matches:
    """torch.compile compiles the same function again.

    ## What it does

    Counts the recompilations of the first run of the test, each with the guards that failed, which
    decide the fix, and the function, at its definition or your call. Dynamo compiles by function,
    not by object: models of one class share their `forward`. The attempt at which dynamo gives up
    is counted, too. The cost is the time to compile, with the backward graph.

    Not counted: compilations for a new gradient mode, and the first one in a test of a function
    that was compiled earlier; the metric `recompiles` includes both. In a stored trace of another
    tool, these are the regions whose number is not their function's first.

    ## Why it is slow

    Compiling takes seconds where a call takes milliseconds; after eight compilations dynamo gives
    up, and the function runs as plain Python.

    ## Example

    ```python
    scale = torch.compile(lambda x, factor: x * factor)
    for factor in (0.1, 0.2, 0.3):
        scale(x, factor)
    ```

    ## Use instead

    ```python
    scale = torch.compile(lambda x, factor: x * factor)
    for factor in torch.tensor([0.1, 0.2, 0.3]):
        scale(x, factor)
    ```

    Strings, `None` and flags cannot become tensors: compile one function for each, or pass them
    when the model is built.
    """
    if trace.facts.compiled is not None:
        if not trace.once(compilations.recompilations).rows:
            return NO_MATCHES
        noted = trace.facts.recompilations or ()
        rows = [row for row in _after_the_first(noted) if row.cause != "grad mode"]
        found = _matches(trace, rows)
        fixes = [_FIXES.get(row.cause or "", _VARIES) for row in rows]
        return replace(found, fix=fixes) if rows else found
    took: dict[str, int] = {}
    compiles, own = compiled_regions(trace)
    for ns, region in zip(trace.dur[compiles].tolist(), own.tolist(), strict=True):
        name = trace.names[region].removeprefix(f"{_REGION}: ") if region >= 0 else "/0"
        if not name.endswith("/0"):
            took[name] = took.get(name, 0) + ns
    notes = [CompileNote(_attempt(name), id=name, ms=took[name] / 1e6) for name in sorted(took)]
    return _matches(trace, notes)


def _after_the_first(rows: Sequence[RecompileNote]) -> Iterator[RecompileNote]:
    """Recompilations, except those that only happen because others compiled the function."""
    begun = set[str]()
    for row in rows:
        frame = str(row.id).rpartition("/")[0]
        if not row.frame_before or frame in begun:
            yield row
        begun.add(frame)


def _attempt(name: str) -> str:
    frame, _, attempt = name.rpartition("/")
    count = f" (attempt {int(attempt) + 1})" if attempt.isdecimal() else ""
    return f"the compiled function {frame} was compiled again{count}"


def _noted(trace: Events, found: Compiled) -> Matches:
    return _matches(trace, found.rows or ())


def _matches(trace: Events, rows: Sequence[CompileNote]) -> Matches:
    """One match per row, at the place where the compiled code first ran."""
    if not rows:
        return NO_MATCHES
    events = {row.id: -1 for row in rows}
    for name in events:
        events[name] = _first(trace, trace.named(f"{_REGION}: {name}"))
    # Older traces say 0 for what is unknown.
    cost = np.array([int(row.ms * 1e6) if row.ms else -1 for row in rows], np.int64)
    return Matches(
        np.array([events[row.id] for row in rows], np.int64),
        [row.reason for row in rows],
        cost_ns=cost,
        location=[row.location for row in rows],
    )


def _resumed(trace: Events) -> Matches:
    """Functions that resume after a graph break, among the Python frames of a trace."""
    rows: dict[tuple[str, ...], tuple[int, str]] = {}
    for number, name in enumerate(trace.names):
        if "torch_dynamo_resume_in_" in name and (found := _RESUMED.fullmatch(name)):
            event = _first(trace, trace.name == number)
            if event >= 0:
                text = f"{found['name']} continues in Python after a graph break"
                rows.setdefault((found["file"], found["line"], found["name"]), (event, text))
    if not rows:
        return NO_MATCHES
    return Matches(
        np.array([event for event, _ in rows.values()], np.int64),
        [text for _, text in rows.values()],
        cost_ns=np.full(len(rows), -1),
        location=[f"{file}:{line}" for file, line, _ in rows],
    )


def _first(trace: Events, events: Bools) -> int:
    at = np.flatnonzero(events & trace.selection)
    return int(at[0]) if len(at) else -1
