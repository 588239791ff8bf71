"""Collect users' rules, from a hook's results and from entry points, beside the built-in ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING

from pytest_torchprof.core.errors import SettingsError
from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.rules.engine.check import Checked, check
from pytest_torchprof.rules.engine.registry import RULES
from pytest_torchprof.rules.engine.rule import Rule
from pytest_torchprof.rules.engine.thresholds import codes, parse_thresholds

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from pytest_torchprof.trace.events import Events

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

    rules: dict[str, Rule] = dict(RULES)
    sources = dict.fromkeys(rules, BUILT_IN)
    errors: list[str] = []
    offered: list[tuple[str, object]] = []
    for point in entry_points(group=GROUP) if points is None else points:
        source = f"the entry point {point.name} = {point.value}"
        if point.dist is not None:
            source += f" of {point.dist.name}"
        try:
            offered.append((source, point.load()))
        except Exception as error:  # noqa: BLE001 - somebody else's package must not break a session
            errors.append(f"{source} cannot be loaded: {type(error).__name__}: {error}")
    for source, answer in [*offered, *hooked]:
        for rule in _rules_in(answer, source):
            if rule.code in rules:
                raise SettingsError(
                    f"the anti-pattern rule {rule.code!r} of {source}",
                    f"{sources[rule.code]} has a rule with this code",
                    "give it another code",
                )
            rules[rule.code], sources[rule.code] = rule, source
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
        known = {id(rule) for rule in RULES.values()}
        found = {id(v): v for v in vars(answer).values() if isinstance(v, Rule)}
        return [rule for number, rule in found.items() if number not in known]
    if isinstance(answer, Iterable) and not isinstance(answer, str | bytes | Mapping):
        answers = list(answer)
        if all(isinstance(one, Rule) for one in answers):
            return answers
        answer = next(one for one in answers if not isinstance(one, Rule))
    raise SettingsError(
        f"{answer!r} of {source} is not an anti-pattern rule",
        f"its type is {type(answer).__name__}",
        "make one with @pytest_torchprof.rule(code, fix=…)",
    )
