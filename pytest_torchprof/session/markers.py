"""The markers: their names, arguments, and effect on a test."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pytest_torchprof.core.errors import SettingsError, TorchprofError, near
from pytest_torchprof.session.options import OPTIONS

if TYPE_CHECKING:
    import pytest

    from pytest_torchprof.core.results import Budget


def add_markers(config: pytest.Config) -> None:
    """Register the markers for ``--markers`` and ``--strict-markers``."""
    from pytest_torchprof.verdict.metrics import METRICS

    arguments = ", ".join(f"{option.name}={option.metavar}" for option in OPTIONS if option.marker)
    lines = [
        f"torchprof({arguments}, enabled=True): settings of this test, when profiled",
        "no_antipatterns(*rules): fail on any anti-pattern finding, or on those named",
        "allow_antipatterns(*rules, reason): accept findings of these rules",
    ]
    for metric in METRICS.values():
        scope = ", op=None, module=None" if metric.scopable else ""
        lines.append(f"max_{metric.name}(limit{scope}): fail above this; {metric.help}")
    for line in lines:
        config.addinivalue_line("markers", line)


def budgets_of(item: pytest.Item) -> list[Budget]:
    """The limits that ``max_<metric>`` markers set on this test, at any level.

    Raises:
        SettingsError: an invalid limit, an unknown metric, or two limits for one metric.
    """
    from pytest_torchprof.verdict.metrics import METRICS

    found: dict[str, Budget] = {}
    for mark in item.iter_markers():
        if not mark.name.startswith("max_"):
            continue
        if mark.name[4:] not in METRICS:
            lines: list[str] = item.config.getini("markers")
            if mark.name in {line.partition("(")[0].partition(":")[0].strip() for line in lines}:
                continue  # another plugin's marker
            known = near(mark.name, [f"max_{name}" for name in METRICS])
            raise SettingsError(f"{mark.name}: no such metric. {known}")
        budget = _budget(mark)
        if budget.label in found:
            raise SettingsError(
                f"{mark.name} is given twice for {budget.label}: "
                f"{found[budget.label].limit} and {budget.limit}. Keep one."
            )
        found[budget.label] = budget
    return list(found.values())


def limits_of_excluded(
    item: pytest.Item, budgets: Iterable[Budget], forbidden: Collection[Budget]
) -> tuple[Budget, ...]:
    """For a test excluded by a marker, the limits beside that marker or closer.

    These were meant to be checked; limits of its class do not apply to an excluded test.
    ``forbidden`` are those that ``no_antipatterns`` sets.
    """
    close, place = set(), None
    for node, mark in item.iter_markers_with_node():
        if place is not None and node is not place:
            break
        close.add(mark.name)
        if mark.name == "torchprof" and "enabled" in mark.kwargs:
            place = node
    return tuple(
        budget
        for budget in budgets
        if ("no_antipatterns" if budget in forbidden else f"max_{budget.metric}") in close
    )


def _budget(mark: pytest.Mark) -> Budget:
    from pytest_torchprof.core.results import Budget
    from pytest_torchprof.core.units import parse_quantity
    from pytest_torchprof.verdict.metrics import METRICS

    metric = METRICS[mark.name[4:]]
    _check_arguments(mark, ("op", "module") if metric.scopable else ())
    if len(mark.args) != 1:
        found = f"{len(mark.args)} limits" if mark.args else "none"
        raise SettingsError(f"{mark.name} takes one limit, got {found}: {mark.name}(5)")
    if {"op", "module"} <= mark.kwargs.keys():
        raise SettingsError(f"{mark.name} takes op= or module=, not both")
    for scope, what in mark.kwargs.items():
        if not isinstance(what, str) or not what:
            raise SettingsError(f"{mark.name}: {scope}= takes a name, got {what!r}")
    try:
        limit = parse_quantity(mark.args[0], metric.unit)
    except TorchprofError as error:
        raise SettingsError(f"{mark.name}: {error}") from None
    return Budget(metric.name, limit, **mark.kwargs)


def _check_arguments(mark: pytest.Mark, known: Sequence[str]) -> None:
    for key in mark.kwargs:
        if key not in known:
            hint = near(key, known) if known else "It takes none."
            raise SettingsError(f"{mark.name} has no argument {key!r}. {hint}")


def overrides_of(item: pytest.Item) -> dict[str, Any]:
    """What ``@pytest.mark.torchprof(...)`` sets for this test; the closest marker wins.

    Raises:
        SettingsError: an unknown argument or an invalid value.
    """
    rows = {option.name: option for option in OPTIONS if option.marker}
    values: dict[str, Any] = {}
    for mark in item.iter_markers("torchprof"):
        if mark.args:
            raise SettingsError(f"the marker torchprof takes no positional argument: {mark.args}")
        _check_arguments(mark, [*rows, "enabled"])
        for key, value in mark.kwargs.items():
            if key in rows:
                try:
                    parsed = rows[key].parse(str(value))
                except SettingsError as error:
                    raise SettingsError(f"marker torchprof({key}=…): {error}") from None
            elif isinstance(value, bool):
                parsed = value
            else:
                raise SettingsError(f"marker torchprof({key}=…): {value!r} is not True or False")
            values.setdefault(key, parsed)
    # Precedence: the command line is stronger than the marker.
    for name, option in rows.items():
        if item.config.getoption(option.dest) is not None:
            values.pop(name, None)
    return values


def antipatterns_of(item: pytest.Item) -> tuple[list[Budget], dict[str, str]]:
    """(limits of 0 set by ``no_antipatterns``; rule → reason, set by ``allow_antipatterns``).

    Markers at all levels count. If one forbids by name what another allows, the closer one wins;
    at the same level, the one that allows.

    Raises:
        SettingsError: an unknown rule, or an allowance without a reason.
    """
    from pytest_torchprof.core.results import Budget

    any_rule, named = False, set[str]()
    places: dict[int, tuple[dict[str, str], set[str]]] = {}
    for node, mark in item.iter_markers_with_node():
        allowed, forbidden = places.setdefault(id(node), ({}, set()))
        if mark.name == "no_antipatterns":
            _check_arguments(mark, ())
            forbidden |= _rules_of(mark, item.config)
            any_rule |= not mark.args
        elif mark.name == "allow_antipatterns":
            _check_arguments(mark, ("reason",))
            reason = mark.kwargs.get("reason")
            if not mark.args or not isinstance(reason, str) or not reason.strip():
                raise SettingsError(
                    'allow_antipatterns takes rules and a reason: ("host-sync", reason="…")'
                )
            allowed.update(dict.fromkeys(_rules_of(mark, item.config), reason))
    reasons: dict[str, str | None] = {}
    for allowed, forbidden in places.values():  # closest first
        reasons = {**dict.fromkeys(forbidden), **allowed, **reasons}
        named |= forbidden
    budgets = [Budget("findings", 0)] if any_rule else []
    if named:
        budgets.append(Budget("findings", 0, rules=tuple(sorted(named))))
    return budgets, {rule: reason for rule, reason in reasons.items() if reason is not None}


def _rules_of(mark: pytest.Mark, config: pytest.Config) -> frozenset[str]:
    from pytest_torchprof.session.known_rules import check_rules

    return check_rules(map(str, mark.args), config)


def is_marked(item: pytest.Item) -> bool:
    """Whether the test asks to be profiled, by a torchprof marker or the fixture."""
    ours = ("torchprof", "no_antipatterns", "allow_antipatterns")
    if "torchprof" in getattr(item, "fixturenames", ()):
        return True
    return any(m.name in ours or m.name.startswith("max_") for m in item.iter_markers())
