"""The rule about functions that torch.compile compiles again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.analysis import compilations
from pytest_torchprof.analysis.idle_causes import compiled_regions
from pytest_torchprof.core.unknown import Reason, because
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, rule
from pytest_torchprof.trace.facts import RecompileNote

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_torchprof.trace.events import Events

_REGION: Final = "Torch-Compiled Region"
_VARIES: Final = (
    "mark what varies: dynamic=True or mark_dynamic for sizes, tensors instead of Python numbers "
    "for values"
)
#: Fixes for recompilations with specific causes, see `capture.dynamo.cause`.
_FIXES: Final = {
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


def _is_ready(trace: Events) -> Reason | None:
    """What dynamo recorded about the code that ran, or the trace's numbers of compilations."""
    if trace.facts.compiled is not None:
        found = trace.once(compilations.recompilations)
        return found.gap if found.rows is None else None
    if compilations.regions(trace) or _REGION not in trace.names:
        return None
    return because("not_numbered", "this torch version does not number compilations")


@rule("recompile", fix=_VARIES, ready=_is_ready, gated_by="recompiles")
def recompile(trace: Events) -> Matches:
    """torch.compile compiles the same function again.

    ## What it does

    Counts the recompilations of the first run of the test. A function is one finding, at its
    definition or your call, with the guards that failed first, which decide the fix. Dynamo
    compiles by function, not by object: models of one class share their `forward`. The attempt at
    which dynamo gives up is counted, too. The cost is the time to compile, with the backward graph.

    Not counted: compilations for a new gradient mode, and the first one in a test of a function
    that was compiled earlier; the metric `recompiles` includes both. In a stored trace of another
    tool, these are compilations whose number is not their function's first.

    ## Why it is slow

    Compiling takes seconds where a call takes milliseconds; after eight compilations dynamo gives
    up, and the function runs as plain Python. What cannot become a tensor, such as a flag, needs a
    function for each value.

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
    """
    live = trace.facts.compiled is not None
    if live and not trace.once(compilations.recompilations).rows:
        return NO_MATCHES
    rows = [*(_after_the_first(trace.facts.recompilations or ()) if live else _recorded(trace))]
    functions: dict[str, list[RecompileNote]] = {}
    for row in rows:
        functions.setdefault(_function(row) or row.reason, []).append(row)
    every = functions.values()
    took = [sum(row.ms or 0 for row in some) for some in every]
    return Matches(
        np.array([compilations.first_run(trace, first.id) for first, *_ in every], np.int64),
        [first.reason for first, *_ in every],
        np.array([*map(len, every)], np.int64),
        cost_ns=np.array([int(ms * 1e6) or -1 for ms in took], np.int64),
        location=[first.location for first, *_ in every],
        fix=[_FIXES.get(first.cause or "", _VARIES) for first, *_ in every],
    )


def _function(row: RecompileNote) -> str:
    """The number of the function in the id of its compilation."""
    return str(row.id or "").rpartition("/")[0]


def _after_the_first(rows: Sequence[RecompileNote]) -> Iterator[RecompileNote]:
    """Recompilations, except those that only happen because others compiled the function."""
    begun = set[str]()
    for row in rows:
        if (not row.frame_before or _function(row) in begun) and row.cause != "grad mode":
            yield row
        begun.add(_function(row))


def _recorded(trace: Events) -> Iterator[RecompileNote]:
    """The same of a trace that has compilations at work, by the regions that they are for."""
    took: dict[str, int] = {}
    compiles, own = compiled_regions(trace)
    for ns, region in zip(trace.dur[compiles].tolist(), own.tolist(), strict=True):
        name = trace.names[region].removeprefix(f"{_REGION}: ") if region >= 0 else "/0"
        if not name.endswith("/0"):
            took[name] = took.get(name, 0) + ns
    for name in sorted(took):
        function = f"the compiled function {name.rpartition('/')[0]}"
        yield RecompileNote(f"{function} was compiled again", id=name, ms=took[name] / 1e6)
