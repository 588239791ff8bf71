"""Thresholds of rules as users write them: ``pageable-copy.bytes=1 MiB, other-rule.count=20``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pytest_torchprof.core.errors import SettingsError, TorchprofError, near
from pytest_torchprof.core.units import parse_quantity

if TYPE_CHECKING:
    from pytest_torchprof.rules.engine.rule import Rule

#: Thresholds by rule, then by name.
Thresholds = dict[str, dict[str, float]]


def words(text: str) -> list[str]:
    """Words separated by commas or line ends."""
    return [word.strip() for word in text.replace("\n", ",").split(",") if word.strip()]


def codes(text: str, known: Iterable[str]) -> frozenset[str]:
    """The named rules, separated by commas.

    Raises:
        SettingsError: there is no such rule.
    """
    return checked(words(text), known)


def checked(named: Iterable[str], known: Iterable[str]) -> frozenset[str]:
    """These rules, if all are known.

    Raises:
        SettingsError: there is no such rule, with the near matches.
    """
    named, known = list(named), list(known)
    for word in named:
        if word not in known:
            raise SettingsError(f"there is no anti-pattern rule {word!r}. {near(word, known)}")
    return frozenset(named)


def parse_thresholds(text: str, rules: Iterable[Rule]) -> Thresholds:
    """Rule → name → value in the threshold's unit. A plain number is in that unit already.

    Raises:
        SettingsError: an unknown rule, name or unit, with the near matches.
    """
    known = {rule.code: rule for rule in rules}
    found: Thresholds = {}
    for word in words(text):
        place, equals, written = (part.strip() for part in word.partition("="))
        code, dot, name = place.partition(".")
        if not (equals and dot and code and name and written):
            raise SettingsError(f"{word!r} is not a threshold", "", "write RULE.NAME=VALUE")
        codes(code, known)
        thresholds = known[code].thresholds
        if not thresholds:
            raise SettingsError(f"the rule {code} has no thresholds")
        if name not in thresholds:
            raise SettingsError(f"{code} has no threshold {name!r}. {near(name, thresholds)}")
        values = found.setdefault(code, {})
        if name in values:
            raise SettingsError(f"{code}.{name} is given twice. Keep one.")
        values[name] = _value(f"{code}.{name}", written, thresholds[name].unit)
    return found


def _value(what: str, written: str, unit: str) -> float:
    try:
        value: object = float(written)
    except ValueError:
        value = written
    else:
        value = int(written) if written.isdecimal() else value
    try:
        return parse_quantity(value, unit)
    except TorchprofError as error:
        raise SettingsError(f"{what}: {error}") from None
