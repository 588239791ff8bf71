"""The processes that a test has started, for its numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_torchprof.analysis.work_elsewhere import work_elsewhere
from pytest_torchprof.places.located import Located
from pytest_torchprof.rules.engine.check import check
from pytest_torchprof.trace.kinds import Kind
from pytest_torchprof.verdict.processes import Process

if TYPE_CHECKING:
    from pytest_torchprof.capture.children.parent import ChildTrace
    from pytest_torchprof.rules.engine.rule import Rule


def processes_of(
    children: Sequence[ChildTrace],
    rules: Iterable[Rule],
    thresholds: Mapping[str, Mapping[str, float]],
) -> tuple[Process, ...]:
    """Each with what the rules find in its trace, ranks first; launchers are left out.

    Where several claim one rank, as in a test of several jobs, none has its rank as its label.
    """
    ranked: list[Process] = []
    numbered: list[Process] = []
    for label, one in zip(labels_of(children), children, strict=True):
        has_rank = label.isdecimal()
        idle = not one.trace.is_kind(Kind.OP).any() and one.trace.once(work_elsewhere) is None
        if idle and not has_rank:
            continue
        made = Process(label, check(one.trace, tuple(rules), thresholds=thresholds))
        (ranked if has_rank else numbered).append(made)
    return (*sorted(ranked, key=lambda one: int(one.label)), *numbered)


def labels_of(children: Sequence[ChildTrace]) -> list[str]:
    """The rank of each as text, or ``process N``, also where several claim one rank."""
    claims = Counter(one.rank for one in children)
    return [
        str(one.rank) if one.rank is not None and claims[one.rank] == 1 else f"process {number}"
        for number, one in enumerate(children, 1)
    ]


def located_by_label(children: Sequence[ChildTrace]) -> dict[str, Located]:
    """What maps events of each process to lines, of those in which lines were marked."""
    return {
        label: Located(one.trace, *one.marks)
        for label, one in zip(labels_of(children), children, strict=True)
        if one.marks is not None
    }


def have_operators(processes: Iterable[Process]) -> bool:
    """Whether any of them ran an operator."""
    return any(one.checked.trace.is_kind(Kind.OP).any() for one in processes)
