"""All rules: the built-in ones, and users' from a hook or entry points."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from pytest_torchprof.core.errors import SettingsError
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.rules.check import Checked, check, lacking
from pytest_torchprof.rules.rule import Rule, codes, parse_thresholds
from pytest_torchprof.trace.arguments import Arguments
from pytest_torchprof.trace.events import Events
from pytest_torchprof.trace.names import Kind

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


# ---- The anti-pattern rules: rows of data, each with one function from `Events` to its matches.
#
# To add a rule, write `rules/its_code.py` and add its code here.

#: The codes that markers and options accept; each rule's file is named as its code.
CODES = (
    "sync-dataloader",
    "starved-loader",
    "single-tensor-optimizer",
    "per-parameter-loop",
    "grad-not-none",
    "missing-no-grad",
    "conv-bias-batchnorm",
    "for-loop-indexing",
    "growing-cat",
    "decode-without-cache",
    "fp32-matmul",
    "unaligned-matmul",
    "float64",
    "half-unused",
    "math-attention",
    "manual-attention",
    "unfused-elementwise",
    "small-grid",
    "layout-transpose",
    "host-sync",
    "host-read",
    "launch-bound",
    "warmup-in-capture",
    "extra-cuda-copy",
    "pageable-copy",
    "copy-round-trip",
    "blocked-copy",
    "gc-pause",
    "allocator-retry",
    "exposed-communication",
    "small-collectives",
    "blocking-collective",
    "repeated-cast",
    "contiguous-copy",
    "graph-break",
    "recompile",
    "debug-left-on",
    "all-logits",
    "backward-twice",
    "accumulated-graph",
    "train-mode-inference",
    "growing-graph",
    "recomputed",
    "unused-result",
)


def _load(code: str) -> Rule:
    found = vars(import_module(f"pytest_torchprof.rules.{code.replace('-', '_')}")).values()
    return next(one for one in found if isinstance(one, Rule) and one.code == code)


#: Rules by code.
RULES: Mapping[str, Rule] = {code: _load(code) for code in CODES}


# ---- Do the one-time work of a process's first check in advance.

#: What a small training step calls, each so often in a row.
_CALLS = (
    *("aten::linear", "aten::addmm", "aten::relu", "aten::clone", "aten::select", "aten::zero_"),
    "autograd::engine::evaluate_function: AddmmBackward0",
    "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad",
    *("aten::to", "aten::_to_copy", "aten::copy_", "aten::add_"),
    "Optimizer.step#Adam.step",
)
_OFTEN = 6
_ARGUMENTS = (
    b'{"Input Dims": [[4, 4], [4, 4]], "Input type": ["float", "double"], "Concrete Inputs": '
    b'["", ""], "Sequence number": 3}'
)


def warm_up() -> Events:
    """Check a made-up trace: this compiles expressions, and loads what numpy loads late.

    It takes some milliseconds, once per process. Returns the trace, for other warm-ups.
    """
    total = _OFTEN * len(_CALLS)
    step = np.arange(total) == total - _OFTEN  # what follows is nested in it
    trace = Events(
        ts=np.arange(total, dtype=np.int64) * 10,
        dur=np.where(step, 10 * total, 5),
        kind=np.where(step, Kind.ANNOTATION, Kind.OP).astype(np.int8),
        name=np.repeat(np.arange(len(_CALLS)), _OFTEN),
        thread=np.zeros(total, np.int32),
        names=[*_CALLS],
        args=Arguments.of([_ARGUMENTS] * total),
        threads=((0, 0),),
    )
    known = tuple(RULES.values())
    check(trace, known).findings()
    lacking(trace, known)  # a rule imports what tells it so
    return trace


# ---- Collect users' rules, from a hook's results and from entry points, beside the built-in
# ones.

#: The group of entry points that name rules.
GROUP = "torchprof.rules"
BUILT_IN = "pytest-torchprof itself"


class Rulebook(Frozen, frozen=True):
    """All rules by code, the built-in ones first, and the source of each.

    ``errors`` are entry points that could not be loaded, one sentence each.
    """

    rules: Mapping[str, Rule]
    sources: Mapping[str, str]
    errors: tuple[str, ...] = ()


def gather(
    hooked: Iterable[tuple[str, object]] = (), points: Iterable[EntryPoint] | None = None
) -> Rulebook:
    """The built-in rules, those of entry points, and those of ``hooked``: (source, its result).

    Raises:
        SettingsError: a rule with a code that is in use, or an object that is not a rule.
    """
    from importlib.metadata import entry_points  # takes 20 ms, which only `lint` needs

    rules, sources = dict(RULES), dict.fromkeys(RULES, BUILT_IN)
    errors, offered = list[str](), list[tuple[str, object]]()
    for point in entry_points(group=GROUP) if points is None else points:
        source = f"the entry point {point.name} = {point.value}"
        if point.dist is not None:
            source += f" of {point.dist.name}"
        try:
            offered.append((source, point.load()))
        except Exception as error:  # noqa: BLE001 - somebody else's package must not break a session
            errors.append(f"{source} cannot be loaded: {type(error).__name__}: {error}")
    for source, answer in [*offered, *hooked]:
        for one in _rules_in(answer, source):
            if one.code in rules:
                raise SettingsError(
                    f"the anti-pattern rule {one.code!r} of {source}",
                    f"{sources[one.code]} has a rule with this code",
                    "give it another code",
                )
            rules[one.code], sources[one.code] = one, source
    return Rulebook(rules, sources, tuple(errors))


def check_all(trace: Events) -> Checked:
    """Check all rules, with their default thresholds."""
    return check(trace, gather().rules.values())


def check_chosen(
    trace: Events,
    ignore: str | Iterable[str] = (),
    thresholds: str = "",
    rules: Iterable[Rule] | None = None,
) -> Checked:
    """Check with these settings, as texts; ``rules``: these instead of all installed ones.

    Raises:
        SettingsError: an unknown rule or threshold, or a wrong unit.
    """
    text = ignore if isinstance(ignore, str) else ",".join(ignore)
    known = gather().rules if rules is None else {rule.code: rule for rule in rules}
    left_out = codes(text, known)
    values = parse_thresholds(thresholds, known.values())
    whole = trace.whole
    if rules is None and not left_out and not values:
        found = whole.once(check_all)
    else:
        found = check(whole, known.values(), ignore=left_out, thresholds=values)
    return found if trace.scope is None else found.of_part(trace)


def _rules_in(answer: object, source: str) -> list[Rule]:
    """The rules in a rule, a list of rules, or a module."""
    if answer is None:
        return []
    if isinstance(answer, Rule):
        return [answer]
    if isinstance(answer, ModuleType):
        # A module may import a built-in rule, or have two names for one of its own.
        found = dict.fromkeys(one for one in vars(answer).values() if isinstance(one, Rule))
        return [one for one in found if one not in RULES.values()]
    if isinstance(answer, Iterable) and not isinstance(answer, str | bytes | Mapping):
        answers = list(answer)
        others = [one for one in answers if not isinstance(one, Rule)]
        if not others:
            return answers
        answer = others[0]
    raise SettingsError(
        f"{answer!r} of {source} is not an anti-pattern rule",
        f"its type is {type(answer).__name__}",
        "make one with @pytest_torchprof.rule(code, fix=…)",
    )
