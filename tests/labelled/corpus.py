"""All labelled examples together: what the rules say to each, and how right they are."""

from __future__ import annotations

import importlib
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import torch
from labelled.case import ANY
from support.live import captured, placing
from support.recorded import quiet
from support.trace_builder import TraceBuilder

from pytest_torchprof.rules.check import Checked, check
from pytest_torchprof.rules.registry import RULES
from pytest_torchprof.trace.facts import FACTS_KEY
from pytest_torchprof.trace.read import parse_trace, read_trace

if TYPE_CHECKING:
    from labelled.case import Case, Examples

    from pytest_torchprof.trace.events import Events

#: The rule of examples in which no rule must match.
CLEAN = "clean"
#: A count moves by this when its threshold does; larger ones move by a quarter.
_SMALL = 16


@dataclass(frozen=True)
class Answer:
    """What all rules say to one example."""

    case: Case
    checked: Checked

    @property
    def found(self) -> int:
        """Matches of the example's own rule."""
        return self.checked.counts.get(self.case.rule, 0)

    @property
    def wanted(self) -> int:
        """How many of them are meant."""
        return max(self.found, 1) if self.case.matches == ANY else self.case.matches

    @property
    def foreign(self) -> dict[str, int]:
        """Matches of rules that have no business there."""
        known = {self.case.rule, *self.case.also}
        return {code: n for code, n in self.checked.counts.items() if code not in known}

    @property
    def unchecked(self) -> str | None:
        """Why the example's own rule said nothing to it."""
        why = self.checked.unchecked.get(self.case.rule)
        return None if why is None else why.text

    @property
    def problems(self) -> list[str]:
        """What is wrong, a sentence each; none when all is as labelled."""
        case, out = self.case, []
        if self.found != self.wanted:
            why = f" (not checked: {self.unchecked})" if self.unchecked else ""
            out.append(f"{case.rule} matches {self.found} times, not {self.wanted}{why}")
        out += [f"{code} matches {n} times, and should not" for code, n in self.foreign.items()]
        out += [f"{code} raises {error}" for code, error in self.checked.errors.items()]
        return out


@dataclass
class Score:
    """How right one rule is: matches that are meant, and those that are not or are missing."""

    code: str
    positives: int = 0
    near_misses: int = 0
    true: int = 0
    false: int = 0
    missing: int = 0

    @property
    def precision(self) -> float | None:
        """The share of its matches that are meant; None where there is no match."""
        return self.true / (self.true + self.false) if self.true + self.false else None

    @property
    def recall(self) -> float | None:
        """The share of the matches meant that it finds; None where none is meant."""
        return self.true / (self.true + self.missing) if self.true + self.missing else None


@cache
def themes() -> Mapping[str, Examples]:
    """The examples of each file of this folder that has any."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("*.py"))
    modules = {name: importlib.import_module(f"labelled.{name}") for name in names}
    return {name: m.EXAMPLES for name, m in modules.items() if getattr(m, "EXAMPLES", None)}


def cases() -> list[Case]:
    """Every example."""
    return [case for examples in themes().values() for case in examples]


def prepared(case: Case) -> Any:
    """What the example makes, from the same random numbers every time; a payload ran once."""
    with quiet():
        torch.manual_seed(0)
        made: Any = case.make()
        if is_live(made):
            made()
    return made


def is_live(made: Any) -> bool:
    """Whether an example made a payload, and not a trace."""
    return callable(made) and not isinstance(made, TraceBuilder | Path)


def trace_of(made: Any, folder: Path) -> Events:
    """The trace of what `prepared` gave."""
    if isinstance(made, TraceBuilder):
        return parse_trace(made.to_bytes())
    if isinstance(made, Path):
        return read_trace(made)
    with quiet():
        # One that knows how it is to be captured, such as a compiled payload with facts of dynamo.
        capture: Callable[[Path], Events] | None = getattr(made, "capture", None)
        return captured(made, folder, tensors=True) if capture is None else capture(folder)


def requested(case: Case, trace: Events) -> Events:
    """The trace as of a test that asks for what the example's own rule is about."""
    rule = RULES.get(case.rule)
    if rule is None or not rule.on_request:
        return trace
    facts = {**trace.metadata.get(FACTS_KEY, {}), "asked": ["host_reads"]}
    return replace(trace, metadata={**trace.metadata, FACTS_KEY: facts})


def asked(case: Case, trace: Events) -> Answer:
    """What all rules say to this trace of the example."""
    trace = requested(case, trace)
    return Answer(case, check(trace, RULES.values(), thresholds={case.rule: dict(case.thresholds)}))


def without_tensors(answer: Answer) -> Checked:
    """What all rules say to the same trace where it knows neither tensors nor calls of modules."""
    trace = replace(answer.checked.trace, tensors=None, module_calls=None)
    return check(trace, RULES.values(), thresholds={answer.case.rule: dict(answer.case.thresholds)})


@cache
def evaluate(case: Case) -> Answer:
    """What all rules say to the example, captured once a process."""
    with tempfile.TemporaryDirectory() as folder:
        made = prepared(case)
        answer = asked(case, trace_of(made, Path(folder)))
        if not (is_live(made) and answer.checked.wants_module_calls):
            return answer
        trace = answer.checked.trace
        with quiet():
            located = placing(made, trace, Path(folder))
        return asked(case, replace(trace, module_calls=located.module_calls(trace)))


def at_other_times(trace: Events) -> Events:
    """The same events in the same order, each after a fifth of the time, to five times of it."""
    begin, end = trace.ts, trace.ts + trace.dur
    times = np.unique([*begin, *end])
    random = np.random.default_rng(0)
    gaps = np.maximum((np.diff(times) * 5 ** random.uniform(-1, 1, len(times) - 1)).astype(int), 1)
    later = np.append(0, np.cumsum(gaps)) + (times[0] if len(times) else 0)
    starts = later[np.searchsorted(times, begin)]
    tensors = trace.tensors and Retimed(trace.tensors, dict(zip(starts, begin, strict=True)))
    ends = later[np.searchsorted(times, end)]
    return replace(trace, ts=starts, dur=ends - starts, tensors=tensors)


class Retimed:
    """Which tensors operators took, by their new starts."""

    def __init__(self, tensors: Any, starts: Mapping[int, int]) -> None:
        self._tensors, self._starts = tensors, starts

    def __getattr__(self, name: str) -> Any:
        ask = getattr(self._tensors, name)
        return lambda starts, names: ask([self._starts[one] for one in starts], names)

    def lifetimes(self) -> dict[int, tuple[int, int]]:
        """When memory events tell that tensors begin and end."""
        now = {-1: -1, **{before: start for start, before in self._starts.items()}}
        known = self._tensors.lifetimes()
        return {number: (now[begin], now[end]) for number, (begin, end) in known.items()}


def overlooked(answer: Answer) -> list[Any]:
    """What the rules say only if they are asked whatever occurs in the trace, and what they say
    otherwise: with their thresholds, and with lower ones.
    """
    out = []
    always = [msgspec.structs.replace(rule, triggers=None) for rule in RULES.values()]
    own = {answer.case.rule: dict(answer.case.thresholds)}
    quarter = {
        code: {name: one.default / 4 for name, one in rule.thresholds.items()}
        for code, rule in RULES.items()
    }
    for tensors, thresholds in product({answer.checked.trace.tensors, None}, (own, quarter)):
        trace = replace(answer.checked.trace, tensors=tensors)
        freed, kept = (
            check(trace, rules, thresholds=thresholds) for rules in (always, RULES.values())
        )
        if (freed.counts, freed.wants_tensors) != (kept.counts, kept.wants_tensors):
            out += [freed.counts, kept.counts]
    return out


def scores(answers: Iterable[Answer]) -> dict[str, Score]:
    """How right each rule is, counted in matches."""
    out = {code: Score(code) for code in RULES}
    for answer in answers:
        case = answer.case
        for code, number in answer.foreign.items():
            out[code].false += number
        if case.rule != CLEAN:
            own = out.setdefault(case.rule, Score(case.rule))
            own.positives += bool(case.matches)
            own.near_misses += not case.matches
            own.true += min(answer.found, answer.wanted)
            own.false += max(answer.found - answer.wanted, 0)
            own.missing += max(answer.wanted - answer.found, 0)
    return out


def kinds(code: str) -> Counter[str]:
    """How many positives and near misses a rule has, without those that it was not checked on."""
    own = [evaluate(case) for case in cases() if case.rule == code]
    return Counter(
        "positive" if answer.case.matches else "near miss"
        for answer in own
        if answer.unchecked is None
    )


def one_sided(code: str, name: str) -> set[str]:
    """Directions in which a small move of the threshold changes no example's count.

    Examples that set the threshold themselves, a positive and a near miss, are both sides too.
    """
    rule = RULES[code]
    own = [case for case in cases() if case.rule == code]
    setting = {bool(case.matches) for case in own if name in dict(case.thresholds)}
    if setting == {True, False}:
        return set()
    default = rule.thresholds[name].default
    step = 1 if default == int(default) and 2 <= default < _SMALL else default / 4
    out = set()
    for direction, value in {"lower": default - step, "higher": default + step}.items():
        for case in own:
            if name in dict(case.thresholds):
                continue
            answer = evaluate(case)
            moved = {code: {**dict(case.thresholds), name: value}}
            counts = check(answer.checked.trace, [rule], thresholds=moved).counts
            if counts.get(code, 0) != answer.found:
                break
        else:
            out.add(direction)
    return out
