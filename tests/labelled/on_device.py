"""Examples that run on a GPU: their files, the state in which they run, and what rules say.

Their files are `gpu_*.py`. They build their tensors when they are called, so that importing them
needs no GPU. `MARK`, where one has it, is the line of its findings.
"""

from __future__ import annotations

import gc
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from labelled import corpus
from labelled.case import MARK
from labelled.gpu_models import split_up_to
from support.live import captured_file, placing
from support.recorded import quiet

from pytest_torchprof.rules.registry import RULES

if TYPE_CHECKING:
    from labelled.case import Case, Examples
    from labelled.corpus import Answer

    from pytest_torchprof.core.values import Finding
    from pytest_torchprof.trace.events import Events

#: Rules in which time decides: a small example may match them as well, and rightly.
TIMED = frozenset(code for code, rule in RULES.items() if rule.timed) | {"launch-bound"}
#: An example that leaves more in cycles than this is cleaned up after at once: it takes a while.
_MUCH_BYTES = 1 << 30


@cache
def themes() -> Mapping[str, Examples]:
    """The examples of each file."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("gpu_*.py"))
    modules = {name: importlib.import_module(f"labelled.{name}") for name in names}
    return {name: module.ON_GPU for name, module in modules.items() if hasattr(module, "ON_GPU")}


def cases() -> list[Case]:
    """Every example."""
    return [case for examples in themes().values() for case in examples]


@contextmanager
def settled() -> Iterator[None]:
    """The settings of a careful script, TF32 on, and those of before afterwards."""
    cudnn = torch.backends.cudnn
    before = torch.get_float32_matmul_precision(), cudnn.benchmark, cudnn.allow_tf32
    torch.set_float32_matmul_precision("high")
    cudnn.benchmark, cudnn.allow_tf32 = False, True
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        cudnn.benchmark, cudnn.allow_tf32 = before[1:]
        torch.use_deterministic_algorithms(False)
        torch.autograd.set_detect_anomaly(False)
        torch.set_grad_enabled(True)
        gc.unfreeze()
        if torch.cuda.is_available():
            if torch.cuda.memory_allocated() > _MUCH_BYTES:
                gc.collect()
            torch.cuda.set_per_process_memory_fraction(1.0)
            split_up_to()
            torch.cuda.empty_cache()


@dataclass
class Ran:
    """What all rules say to one example, and where."""

    answer: Answer
    findings: tuple[Finding, ...] = ()
    #: The stored trace, which says the same.
    path: Path | None = None
    #: What is wrong; a sentence each.
    problems: list[str] = field(default_factory=list)


def run(case: Case, folder: Path, *, warm: bool = True, locate: bool = True) -> Ran:
    """Run an example after a warm-up, as a test is, and ask all rules.

    ``locate``: run it once more, to find out which lines its findings name.
    """
    with quiet():
        torch.manual_seed(0)
        made: Any = case.make()
        if warm:
            made()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        trace, path = _captured(made, folder)
    own = replace(case, also=case.also | (TIMED - {case.rule}))
    answer = corpus.asked(own, trace)
    ran = Ran(answer, path=path)
    silent = corpus.without_tensors(answer)
    if silent.counts != answer.checked.counts and not silent.wants_tensors:
        ran.problems.append(f"finds {silent.counts} without tensors, and does not ask for them")
    if answer.checked.wants_module_calls or (locate and answer.checked.matches):
        with quiet():
            located = placing(made, trace, folder)
        if answer.checked.wants_module_calls:
            trace = replace(answer.checked.trace, module_calls=located.module_calls(trace))
            ran.answer = corpus.asked(own, trace)
        ran.findings = ran.answer.checked.findings(located)
        ran.problems += _misplaced(case, ran.findings) if locate else []
    ran.problems += ran.answer.problems
    return ran


def run_moved(case: Case, folder: Path) -> Ran | None:
    """Run an example of the CPU on the GPU; None if it is no payload, or cannot be moved.

    What it creates is created there. Tensors that its file makes on import are not.
    """
    torch.manual_seed(0)
    try:
        with _default_device():
            made: Any = case.make()
            if not corpus.is_live(made) or hasattr(made, "capture"):
                return None
            made()
    except (RuntimeError, TypeError, ValueError, NotImplementedError, AssertionError):
        return None

    def block() -> None:
        with _default_device():
            made()

    return run(replace(case, make=lambda: block), folder, locate=False)


@contextmanager
def _default_device() -> Iterator[None]:
    before = torch.get_default_device()
    torch.set_default_device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        yield
    finally:
        torch.set_default_device(before)


def _captured(made: Any, folder: Path) -> tuple[Events, Path | None]:
    capture: Callable[[Path], Events] | None = getattr(made, "capture", None)
    if capture is not None:
        return capture(folder), None
    return captured_file(made, folder, tensors=True)


# -------------------------------------------------------------------------------- marked lines


def marked_lines(case: Case, every: list[Case]) -> set[int]:
    """Lines marked in the example's function, or else in what its file's examples share."""
    path = file_of(case)
    marked = {
        number
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if line.endswith(MARK)
    }
    spans = {other.make: _span(other) for other in every if file_of(other) == path}
    own = marked & spans[case.make]
    return own or marked - set().union(*spans.values())


def file_of(case: Case) -> Path:
    """Where the example is written."""
    return Path(inspect.getsourcefile(case.make) or "")


def _span(case: Case) -> set[int]:
    lines, first = inspect.getsourcelines(case.make)
    return set(range(first, first + len(lines)))


def misplaced(case: Case, findings: list[Finding], lines: set[int]) -> list[str]:
    """Findings that name another file, an unmarked line, or none."""
    wanted = {f"{file_of(case).name}:{line}" for line in lines}
    return [
        f"{case.name}: {finding.location or finding.path}, not {' or '.join(sorted(wanted))}"
        for finding in findings
        if (finding.location or "").replace("\\", "/").rpartition("/")[2] not in wanted
    ]


def _misplaced(case: Case, findings: tuple[Finding, ...]) -> list[str]:
    lines = marked_lines(case, cases()) if case in cases() else None
    own = [finding for finding in findings if finding.rule == case.rule]
    return misplaced(case, own, lines) if lines else []
