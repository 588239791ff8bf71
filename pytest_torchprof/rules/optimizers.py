"""A rule about torch's optimizers that update one parameter after the other."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.analysis.device_time import launched_in
from pytest_torchprof.core.lazy_regex import late
from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.rules.engine.costs import around
from pytest_torchprof.rules.engine.rule import NO_MATCHES, Matches, Threshold, rule
from pytest_torchprof.rules.evidence.estimated_cpu_time import estimated_cpu_ns, guessed
from pytest_torchprof.rules.evidence.nodes import numbers
from pytest_torchprof.rules.evidence.shapes import mean_elements
from pytest_torchprof.trace.levels import engine_steps, frames_around
from pytest_torchprof.trace.name_index import Names, are_named, marks_named, selected_operators
from pytest_torchprof.trace.tree import has_frames, marked

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

#: By torch's class: the operator that its loop over single parameters runs once for each, and one
#: whose calls are to be subtracted; for classes with a foreach or a fused form.
#: Source: the functions ``_single_tensor_…`` in torch/optim, 1.8 to 2.13.
_UPDATES: Final[Mapping[str, tuple[str, str | None]]] = {
    "ASGD": ("aten::mul_", "aten::sub"),  # the second mul_ is of the average
    "Adadelta": ("aten::div_", None),
    "Adafactor": ("aten::rsqrt_", None),
    "Adagrad": ("aten::addcmul_", None),
    "Adam": ("aten::addcdiv_", None),
    "AdamW": ("aten::addcdiv_", None),
    "Adamax": ("aten::addcdiv_", None),
    "NAdam": ("aten::addcmul_", None),
    "RAdam": ("aten::addcmul_", None),
    "RMSprop": ("aten::addcmul_", None),
    "Rprop": ("aten::clamp_", None),
    "SGD": ("aten::add_", "aten::mul_"),  # the second add_ is of the momentum
}
#: torch's other classes, which have no form for all parameters at once.
_NO_FORM: Final = frozenset({"LBFGS", "Muon", "SparseAdam"})
#: What such a loop does to each parameter, for classes that have another name in the trace: those
#: that users derive from torch's. Each begins with torch's own count of steps, or has two of its
#: operators that hand-written ones lack. Source: as above, 2.6 to 2.13.
_LOOPS: Final = {
    name: late(pattern)
    for name, pattern in {
        "Adam": r"add_ (mul_ |add )?lerp_ mul_ addcmul_ (div )?(maximum )?sqrt div add_ addcdiv_ ",
        "Adagrad": r"add_ (add )?addcmul_ sqrt add_ addcdiv_ ",
        "RMSprop": r"add_ (add )?mul_ addcmul_ (sqrt|lerp_ addcmul sqrt_) add_ "
        r"(addcdiv_|mul_ addcdiv_ add_) ",
        "NAdam": r"add_ (add )?(mul_ ){1,2}lerp_ mul_ addcmul_ div sqrt add_ addcdiv_ addcdiv_ ",
        "RAdam": r"add_ (mul_ |add )?lerp_ mul_ addcmul_ div mul add_ |"
        r"add_ (mul_ |add )?lerp_ mul_ addcmul_ div (sqrt add_ )?\w+ mul mul mul add_ ",
        "Adamax": r"add_ (add )?lerp_ mul_ abs add_ maximum addcdiv_ ",
        "Adadelta": r"add_ (add )?mul_ addcmul_ add sqrt_ add sqrt_ div_ mul_ mul_ addcmul_ add_ ",
    }.items()
}
#: What may come between them, with some options or in some versions.
_BETWEEN: Final = frozenset({"aten::item", "aten::neg", "aten::_local_scalar_dense"})

#: Classes that take ``fused=True``; others raise. Adagrad's was CPU-only for a long time.
#: Source: ``fused`` in torch/optim, 2.6 to 2.13.
_FUSED_ANYWHERE: Final = frozenset({"SGD", "Adam", "AdamW"})
_FUSED_ON_CPU: Final = frozenset({"Adagrad"})
#: Classes whose foreach form is faster on a CPU. ASGD's takes 1.2 to 2.5 times as long as the
#: loop there; Adafactor's and Rprop's gain a fifth at most.
_FOREACH_ON_CPU: Final = frozenset({"Adadelta", "Adamax", "NAdam", "RAdam", "RMSprop"})
#: What a form for all parameters saves of the time to call a loop's operators: the share for many
#: parameters, and the number at which it is half of that, by class. Measured with torch 2.13 on one
#: CPU thread in scripts and between other work; in a bare loop of steps, two to eight parameters
#: save up to 1.7 times as much.
_SAVED: Final = {"SGD": (0.75, 10), "Adam": (0.8, 5), "AdamW": (0.8, 5), "Adagrad": (0.7, 7)}
#: What a fused form saves of the time for elements: it reads and writes each once.
_SAVED_OF_ELEMENTS: Final = 0.5
_SAVED_BY_FOREACH: Final = (0.5, 6)
_SAVED_OF_PLAIN_SGD: Final = (0.6, 25)
#: The same on a device, where each operator is a launch.
_SAVED_ON_DEVICE: Final = (0.8, 2)

#: The time of an operator of the loop, and for each element.
_LOOP_CALL_NS, _LOOP_ELEMENT_NS = 3_000, 0.3

_BY_FUNCTION: Final = {name.lower(): name for name in _UPDATES}
STEP: Final = Names(r"Optimizer\.step#(\w+)\.step$")
_SINGLE: Final = late(r"_single_tensor_(\w+)$")
TOGETHER: Final = ("aten::_foreach_", "aten::_fused_")


class OptimizerStep(Frozen, frozen=True):
    """An optimizer's step: its event and class, torch's class according to its calls, the operators
    that it calls directly once its loss is known, and their names; and how long it takes from then
    on.
    """

    event: int
    name: str
    known: str | None
    rows: Ints
    calls: Sequence[str]
    took_ns: int

    @property
    def together(self) -> bool:
        """Whether it already uses a form for all parameters at once."""
        return any(call.startswith(TOGETHER) for call in set(self.calls))

    @property
    def own(self) -> bool:
        """Whether its loop, if it has any, is not torch's."""
        return self.known is None and self.name not in _NO_FORM

    @property
    def updated(self) -> int:
        """How many parameters a class of torch's updates one by one."""
        if self.known is None:
            return 0
        if self.name != self.known and self.known in _LOOPS:
            found = len(_LOOPS[self.known].findall(_text(self.calls)))
            if found:
                return found
        once, off = _UPDATES[self.known]
        calls = list(self.calls)
        return calls.count(once) - (calls.count(off) if off else 0)


@rule(
    "single-tensor-optimizer",
    fix="pass foreach=True to the optimizer, or fused=True to SGD, Adam, AdamW and Adagrad",
    triggers=r"Optimizer\.step#",
    blind=lambda trace: guessed(trace, STEP),
    parameters=Threshold(2, "1", "one parameter has nothing to be grouped with"),
    cpu_parameters=Threshold(
        10, "1", "on a CPU, foreach=True, and fused=True of a plain SGD, take longer for fewer"
    ),
    cpu_elements=Threshold(
        4096, "1", "on a CPU, for larger parameters the time for memory outweighs the savings"
    ),
    cpu_share=Threshold(
        0.05, "1", "next to a model that takes much longer, a step does not matter"
    ),
)
def single_tensor_optimizer(
    trace: Events,
    *,
    parameters: float,
    cpu_parameters: float,
    cpu_elements: float,
    cpu_share: float,
) -> Matches:
    """An optimizer updates its parameters one by one, though it has a form for all at once.

    ## What it does

    Counts the steps of torch's optimizers that updated at least `parameters` (2) parameters
    in a loop, where another form of that class is faster. It recognizes them by the operators
    within torch's annotation of the step, and also classes derived from torch's: by what such
    a loop does to each parameter, or by torch's own functions if the trace has Python frames. A
    derived class whose loop could just as well be hand-written, like that of SGD, is left to
    `per-parameter-loop`. Updates with sparse gradients do not count, because they have no other
    form; nor do LBFGS, Muon and SparseAdam, nor a step with `differentiable=True`, whose
    operators record a graph. For complex parameters, which `fused=True` does not support,
    `foreach=True` is recommended on a device, and nothing on a CPU.

    On a device, every class that takes `foreach` or `fused` counts. On a CPU, those count
    that gain, measured with torch 2.13 on one thread: `fused=True` of Adam, AdamW, Adagrad
    and SGD with momentum or weight decay from two parameters on, of any size (a step takes 0.2
    to 0.8 of the time); `fused=True` of a plain SGD, and `foreach=True` of Adadelta,
    Adamax, NAdam, RAdam and RMSprop, from `cpu_parameters` (10) on that have `cpu_elements`
    (4,096) elements or fewer on average (0.5 to 0.9). There, `foreach=True` gains a fifth at
    most for Adafactor and Rprop, and loses for ASGD. All this holds for parameters in one
    group, or a few, which traces do not record: if each is a separate group, only
    `fused=True` of Adam, AdamW and Adagrad still gains (0.5 to 0.8), and `foreach=True`
    takes half as long again. On a CPU, a step counts only if the other form would save at least
    `cpu_share` (0.05) of everything that the test does: a few parameters beside large
    convolutions do not matter. That is decided by counts, not times: operators, FLOPs, and
    bytes of memory.

    ## Why it is slow

    Each parameter takes several small operators, each with its own launch, where a few would do
    for all. On the CPU, this loop is the default. The cost is the part of the step's time,
    without that of a closure, that the other form saved in our measurements, by class, number
    and size of parameters.

    ## Example

    ```python
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    ```

    ## Use instead

    ```python
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    ```
    """
    found = optimizer_steps(trace)
    if not found:
        return NO_MATCHES
    events = np.array([step.event for step in found], np.int64)
    on_device = launched_in(trace, events)[0] >= 0
    kept, messages, fixes, costs = [], [], [], []
    saved_on_cpu_ns, on_cpu = 0.0, True
    in_loop_ns = _InLoop(trace)
    for step, device in zip(found, on_device.tolist(), strict=True):
        if step.known is None or step.together or (count := step.updated) < parameters:
            continue
        if not device and _is_small(step, count):
            small = mean_elements(trace, step.rows) <= cpu_elements
            if step.known in _SLOWER_ON_CPU or count < cpu_parameters or not small:
                continue
        complex_ = _has_complex(trace, step, step.known)
        if (complex_ and not device) or _records_a_graph(trace, step):
            continue
        if device:
            saved = _share(_SAVED_ON_DEVICE, count)
        else:
            calls_ns, elements_ns = in_loop_ns(step)
            saved_ns = _saved_on_cpu_ns(step, count, calls_ns, elements_ns)
            saved = saved_ns / (calls_ns + elements_ns)
            saved_on_cpu_ns += saved_ns
        kept.append(step.event)
        messages.append(f"{step.name} updates {count} parameters one by one")
        fixes.append(_BY_FOREACH if complex_ else _together(step.known, on_device=device))
        costs.append(int(step.took_ns * saved))
        on_cpu &= not device
    if not kept:
        return NO_MATCHES
    if on_cpu and saved_on_cpu_ns < cpu_share * estimated_cpu_ns(trace):
        return NO_MATCHES
    rows, cost_ns = np.array(kept, np.int64), np.array(costs, np.int64)
    return Matches(rows, messages, fix=fixes, cost_ns=cost_ns, span_ns=around(trace, rows))


#: How many operators of a step are checked for whether they record a graph, and for their sizes.
_SOME: Final = 20
_FEW: Final = 200
_COMPLEX: Final = b"c10::complex"
_BY_FOREACH: Final = "pass foreach=True to the optimizer"
#: Classes without a form that is faster on a CPU.
_SLOWER_ON_CPU: Final = frozenset(_UPDATES) - _FUSED_ANYWHERE - _FUSED_ON_CPU - _FOREACH_ON_CPU


def _is_small(step: OptimizerStep, count: int) -> bool:
    """Whether so little is done to each parameter, or so little saved, that the CPU may lose."""
    if step.known == "SGD":
        return len(step.calls) < 2 * count
    return step.known not in _FUSED_ANYWHERE | _FUSED_ON_CPU


def _share(saved: tuple[float, float], count: int) -> float:
    """What a form for all of so many parameters saves; see `_SAVED`."""
    share, half = saved
    return share * count / (count + half)


def _saved_on_cpu_ns(step: OptimizerStep, count: int, calls_ns: float, elements_ns: float) -> float:
    """What another form would save of the time to call this step's operators, and for elements."""
    if step.known == "SGD" and _is_small(step, count):
        return _share(_SAVED_OF_PLAIN_SGD, count) * (calls_ns + elements_ns)
    if step.known in _SAVED:
        calls = _share(_SAVED[step.known], count)
        return calls * calls_ns + _SAVED_OF_ELEMENTS * elements_ns
    return _share(_SAVED_BY_FOREACH, count) * (calls_ns + elements_ns)


class _InLoop:
    """The estimated time of a step's loop on a CPU: to call its operators, and for elements.

    Steps of one class with as many operators are assumed to have parameters of the same size.
    """

    def __init__(self, trace: Events) -> None:
        self._trace = trace
        self._elements: dict[tuple[str, int], float] = {}

    def __call__(self, step: OptimizerStep) -> tuple[float, float]:
        """Both, in ns; 0 for elements of unknown number."""
        key = step.name, len(step.rows)
        if key not in self._elements:
            # One operator for each parameter: the others have operands of the same size.
            once = step.rows[are_named(self._trace, step.rows, _UPDATES[step.known or ""][0])]
            elements = mean_elements(self._trace, once[:: 1 + len(once) // _SOME])
            self._elements[key] = elements if elements < math.inf else 0
        calls = len(step.rows)
        return calls * _LOOP_CALL_NS, calls * self._elements[key] * _LOOP_ELEMENT_NS


def _together(known: str, *, on_device: bool) -> str:
    """What to pass to an optimizer of this class so that it updates all parameters at once."""
    if known in _FUSED_ANYWHERE or (known in _FUSED_ON_CPU and not on_device):
        return "pass fused=True to the optimizer"
    return _BY_FOREACH


def _has_complex(trace: Events, step: OptimizerStep, known: str) -> bool:
    """Whether some parameters are complex, which no fused form takes."""
    if "aten::view_as_real" in step.calls:
        return True
    # To look at all text takes as long as at some hundred operators.
    if len(step.rows) > _FEW and not trace.args.may_contain(_COMPLEX):
        return False
    updates = step.rows[are_named(trace, step.rows, _UPDATES[known][0])]
    return _COMPLEX in trace.args[updates].as_list()


def _records_a_graph(trace: Events, step: OptimizerStep) -> bool:
    """Whether a gradient can go through the step: its operators are nodes, each with a number."""
    some = step.rows[:: 1 + len(step.rows) // _SOME]
    if b"Sequence number" not in trace.args[some].as_list():
        return False  # as mostly
    return len({*numbers(trace, some).tolist()} - {-1}) > 1


# ------------------------------------------------------------------------- what a step is and does


def optimizer_steps(trace: Events) -> list[OptimizerStep]:
    """The selected steps of optimizers."""
    return trace.once(_steps)


def _steps(trace: Events) -> list[OptimizerStep]:
    events = marks_named(trace, STEP)
    events = events[trace.selection[events]]
    if not len(events):
        return []
    named = [_class_name(trace.names[number]) for number in trace.name[events].tolist()]
    rows, took = _called(trace, events, sparse="SGD" in named)
    calls = [[trace.names[number] for number in trace.name[one].tolist()] for one in rows]
    found = [
        name if name in _UPDATES else None if name in _NO_FORM else _by_loop(names)
        for name, names in zip(named, calls, strict=True)
    ]
    if None in found and has_frames(trace):
        _by_frames(trace, events, found)
    return [*map(OptimizerStep, events.tolist(), named, found, rows, calls, took)]


def _by_loop(calls: Sequence[str]) -> str | None:
    """The class of torch with such a loop; cached by the text, of which there are few."""
    text = _text(calls)
    return next((name for name, loop in _LOOPS.items() if loop.search(text)), None)


def _text(calls: Sequence[str]) -> str:
    return "".join(f"{name.removeprefix('aten::')} " for name in calls if name not in _BETWEEN)


def _by_frames(trace: Events, events: Ints, found: list[str | None]) -> None:
    """By the functions of torch that ran according to Python frames, for any class name."""
    updates = selected_operators(trace, *{once for once, _ in _UPDATES.values()})
    updates = updates[marked(trace, events)[trace.parent[updates]]]
    frames = frames_around(trace, _SINGLE, updates)
    for row, frame in zip(updates.tolist(), frames.tolist(), strict=True):
        at = int(np.searchsorted(events, trace.parent[row]))
        if frame >= 0 and found[at] is None:
            function = _SINGLE.search(trace.names[trace.name[frame]])
            found[at] = _BY_FUNCTION.get(function[1] if function else "")


def _called(trace: Events, events: Ints, *, sparse: bool) -> tuple[list[Ints], list[int]]:
    """What each step calls directly once its loss is known, and how long it takes from then on."""
    ts = trace.ts
    left_out = _sparse_additions(trace) if sparse else None
    ends = ts[events] + trace.dur[events]
    stops = ts.searchsorted(ends)
    # With a closure, the updates follow its backward pass.
    engine = engine_steps(trace)
    ran = engine.searchsorted(stops)
    closure = ran > engine.searchsorted(events)
    since = events.copy()
    since[closure] = engine[ran[closure] - 1]
    begins = (since + ~closure).tolist()
    called = []
    for step, begin, stop in zip(events.tolist(), begins, stops.tolist(), strict=True):
        mine = trace.parent[begin:stop] == step
        if left_out is not None:
            mine[left_out[(left_out >= begin) & (left_out < stop)] - begin] = False
        called.append(begin + mine.nonzero()[0])
    return called, (ends - ts[since]).tolist()


@lru_cache(maxsize=1000)
def _class_name(name: str) -> str:
    found = STEP.match(name)
    return found[1] if found else ""


def _sparse_additions(trace: Events) -> Ints:
    """In-place additions of a sparse tensor: they call the form with an output."""
    above = trace.parent[selected_operators(trace, "aten::add")]
    return above[are_named(trace, above, "aten::add_")]
