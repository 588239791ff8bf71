"""Steps of optimizers: whose they are, and what they call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_torchprof.core.process import late
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.trace.names import (
    Names,
    are_named,
    marks_named,
    once_per_trace,
    operators_named,
)
from pytest_torchprof.trace.nesting import among
from pytest_torchprof.trace.tree import engine_steps_between

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

STEP: Final = Names(r"Optimizer\.step#(\w+)\.step$")
_CLASS: Final = late(STEP.pattern)
_TOGETHER: Final = late(r"aten::_(foreach|fused)_")


class Form(Frozen, frozen=True):
    """An optimizer of torch's: the operator that its loop over parameters runs once for each, and
    one whose calls are to be subtracted; the faster form on a CPU, if any, and on a device.
    """

    update: str
    less: str = ""
    cpu: str = ""
    device: str = "foreach"


#: By class, for those with a form for all parameters at once. ASGD's takes longer than the loop on
#: a CPU, Adafactor's and Rprop's gain little; Adagrad's fused form was on CPUs alone for long.
#: Source: the functions ``_single_tensor_…`` and ``fused`` in torch/optim, 1.8 to 2.13.
FORMS: Final[Mapping[str, Form]] = {
    "ASGD": Form("aten::mul_", "aten::sub"),  # the second mul_ is of the average
    "Adadelta": Form("aten::div_", cpu="foreach"),
    "Adafactor": Form("aten::rsqrt_"),
    "Adagrad": Form("aten::addcmul_", cpu="fused"),
    "Adam": Form("aten::addcdiv_", cpu="fused", device="fused"),
    "AdamW": Form("aten::addcdiv_", cpu="fused", device="fused"),
    "Adamax": Form("aten::addcdiv_", cpu="foreach"),
    "NAdam": Form("aten::addcmul_", cpu="foreach"),
    "RAdam": Form("aten::addcmul_", cpu="foreach"),
    "RMSprop": Form("aten::addcmul_", cpu="foreach"),
    "Rprop": Form("aten::clamp_"),
    "SGD": Form("aten::add_", "aten::mul_", "fused", "fused"),  # the second add_ is of momentum
}
#: torch's other classes, which have no form for all parameters at once.
_NO_FORM: Final = frozenset({"LBFGS", "Muon", "SparseAdam"})


class OptimizerStep(Frozen, frozen=True):
    """An optimizer's step: its event and class, and the operators that it calls directly once its
    loss is known, with their names.
    """

    event: int
    name: str
    rows: Ints
    calls: tuple[str, ...]

    @property
    def loops(self) -> bool:
        """Whether it does not use a form for all parameters at once."""
        return not any(map(_TOGETHER.match, set(self.calls)))

    @property
    def own(self) -> bool:
        """Whether it is of none of torch's classes."""
        return self.name not in FORMS and self.name not in _NO_FORM


@once_per_trace
def optimizer_steps(trace: Events) -> list[OptimizerStep]:
    """The selected steps of optimizers, without additions of sparse gradients."""
    marks = marks_named(trace, STEP)
    if not len(marks):
        return []
    sparse = trace.parent[operators_named(trace, "aten::add")]  # they call the form with an output
    sparse = sparse[are_named(trace, sparse, "aten::add_")]
    found = []
    for step in marks[trace.selection[marks]].tolist():
        stop = int(trace.ts.searchsorted(trace.ts[step] + trace.dur[step]))
        ran = engine_steps_between(trace, step, stop)  # of a closure: the updates follow it
        begin = int(ran[-1]) if len(ran) else step + 1
        rows = begin + (trace.parent[begin:stop] == step).nonzero()[0]
        rows = rows[~among(rows, sparse)]
        known = _CLASS.match(trace.names[trace.name[step]])
        names = tuple(map(trace.names.__getitem__, trace.name[rows].tolist()))
        found.append(OptimizerStep(step, known[1] if known else "", rows, names))
    return found
