"""The markers: their names, arguments, and effect on a test."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest

from pytest_torchprof.core.errors import SettingsError, TorchprofError, near
from pytest_torchprof.core.process import late
from pytest_torchprof.core.scopes import SCOPES
from pytest_torchprof.session.known import metrics_of
from pytest_torchprof.session.options import OPTIONS
from pytest_torchprof.verdict.metrics import METRICS

if TYPE_CHECKING:
    from pytest_torchprof.core.values import Budget, Number
    from pytest_torchprof.verdict.findings import Allowance
    from pytest_torchprof.verdict.metrics import Metric


#: The prefixes of a metric's markers, and which limit of a budget each sets.
_KINDS: Final = {"max_": "limit", "min_": "least"}
#: Metrics whose name is that of their marker.
_MAXIMA: Final = tuple(name for name in METRICS if name.startswith("max_"))
#: The metric of each marker that sets a limit.
_METRIC_OF: Final = {
    **{f"{kind}{name}": name for kind in _KINDS for name in METRICS},
    **dict(zip(_MAXIMA, _MAXIMA, strict=True)),
}
#: Arguments that say of which processes of a test a limit is.
_OF_PROCESSES: Final = ("rank", "each")
#: The name in ``max_metric`` and ``min_metric``, whose first argument names the metric.
_ANY: Final = "metric"


def add_markers(config: pytest.Config) -> None:
    """Register the markers for ``--strict-markers``; for ``--markers``, the two families."""
    lines = listed_markers()
    if not config.getoption("markers", False):
        names = (*_METRIC_OF, *(f"{kind}{_ANY}" for kind in _KINDS))
        lines = [*lines[:3], *names]
    for line in lines:
        config.addinivalue_line("markers", line)


def listed_markers() -> list[str]:
    """What ``--markers`` shows of ours."""
    settings = ", ".join(f"{option.name}={option.metavar}" for option in OPTIONS if option.marker)
    scopes = "".join(f", {name}=" for name in (*SCOPES, "on", *_OF_PROCESSES))
    names = ", ".join(name for name in METRICS if name not in _MAXIMA)
    return [
        f"torchprof({settings}, enabled=True): settings of this test, when profiled",
        "no_antipatterns(*rules): fail on any anti-pattern finding, or on those named",
        "allow_antipatterns(*rules, reason, op=None, module=None, line=None): accept findings",
        f"max_NAME(limit{scopes}): fail above this; NAME is one of {names}",
        f"min_NAME(limit{scopes}): fail below this; the same names",
        *(f"{name}(limit{scopes}): fail above this; {METRICS[name].help}" for name in _MAXIMA),
        f"max_{_ANY}(name, limit{scopes}): of any metric, also one that a test or a hook defines",
        f"min_{_ANY}(name, limit{scopes}): of any metric, also one that a test or a hook defines",
    ]


def budgets_of(item: pytest.Item) -> list[Budget]:
    """The limits that ``max_<metric>`` and ``min_<metric>`` set on this test, at any level.

    Raises:
        SettingsError: an invalid limit, an unknown metric, or two limits for one metric.
    """
    found: dict[tuple[str, str | None, str], Budget] = {}
    for mark in item.iter_markers():
        if not mark.name.startswith(tuple(_KINDS)):
            continue
        if mark.name[4:] == _ANY:
            known = metrics_of(item.config, item)
            budget = named_budget(mark.name, mark.args, mark.kwargs, known)
        elif mark.name in _METRIC_OF:
            budget = make_budget(mark.name, mark.args, mark.kwargs)
        else:
            _check_other(mark.name, item.config)
            continue
        for other in found.values():
            if (other.label, other.on) == (budget.label, budget.on):
                _check_once(mark.name, other, budget)
        key = budget.label, budget.on, budget.unit
        found[key] = _both(mark.name, found[key], budget) if key in found else budget
    return list(found.values())


def _check_other(name: str, config: pytest.Config) -> None:
    """Reject a marker that names no metric, unless it is another plugin's.

    Raises:
        SettingsError: it is not registered. A ``min_`` must look like a metric's, too, because
            people name other things like that.
    """
    lines: list[str] = config.getini("markers")
    if name in {line.partition("(")[0].partition(":")[0].strip() for line in lines}:
        return
    ours = [one for one in (*_METRIC_OF, f"{name[:4]}{_ANY}") if one.startswith(name[:4])]
    if name.startswith("max_") or get_close_matches(name, ours, 1):
        raise SettingsError(f"{name}: no such metric. {near(name, ours)}")


def _check_once(name: str, one: Budget, other: Budget) -> None:
    """Reject two upper limits of one metric and scope, or two lower ones.

    Raises:
        SettingsError: they are.
    """
    for limit in _KINDS.values():
        pair = getattr(one, limit), getattr(other, limit)
        if None not in pair:
            raise SettingsError(
                f"{name} is given twice for {one.label}: {pair[0]} and {pair[1]}. Keep one."
            )


def _both(name: str, one: Budget, other: Budget) -> Budget:
    """The two limits of one metric, in one unit, as one budget.

    Raises:
        SettingsError: nothing is within both.
    """
    from msgspec.structs import replace

    both = replace(one, limit=_given(one.limit, other.limit), least=_given(one.least, other.least))
    if both.limit is not None and both.least is not None and both.least > both.limit:
        raise SettingsError(
            f"{name}: no {one.label} is at least {both.least} and at most {both.limit}"
        )
    return both


def _given(one: Number | None, other: Number | None) -> Number | None:
    return other if one is None else one


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
        named = mark.args[0] if mark.name[4:] == _ANY and mark.args else None
        close |= {mark.name, f"{mark.name[:4]}{_METRIC_OF.get(mark.name, named)}"}
        if mark.name == "torchprof" and "enabled" in mark.kwargs:
            place = node
    return tuple(
        budget
        for budget in budgets
        if not close.isdisjoint(
            {"no_antipatterns"}
            if budget in forbidden
            else {f"{kind}{budget.metric}" for kind in _KINDS}
        )
    )


def _arguments_of(metric: Metric) -> tuple[str, ...]:
    """The named arguments of the metric's markers: scopes, if it has a value in parts; ``on``."""
    if not metric.scopable:
        ranks = _OF_PROCESSES if metric.of_region else ()
        return (*(("region", "on") if metric.timed_by_region else ("on",)), *ranks)
    scopes = (one for one in SCOPES if one != "kernel" or "device" in metric.needs)
    return (*scopes, "on", *_OF_PROCESSES)


def make_budget(name: str, args: Sequence[object], kwargs: Mapping[str, object]) -> Budget:
    """The budget of a marker of this name with these arguments.

    Raises:
        SettingsError: the name is no metric's, or an argument is invalid.
    """
    from pytest_torchprof.core.units import parse_quantity
    from pytest_torchprof.core.values import Budget
    from pytest_torchprof.work.devices import check_target

    kind, metric = name[:4], METRICS[_METRIC_OF[name]]
    if len(args) != 1:
        found = f"{len(args)} limits" if args else "none"
        raise SettingsError(f"{name} takes one limit, got {found}: {name}(5)")
    given = _scope_of(name, kwargs, _arguments_of(metric))
    try:
        if "on" in given:
            check_target(given["on"])
        given[_KINDS[kind]] = parse_quantity(args[0], metric.unit)
    except TorchprofError as error:
        raise SettingsError(f"{name}: {error}") from None
    return Budget(metric.name, **given)


def named_budget(
    kind: str,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    known: Mapping[str, Metric],
) -> Budget:
    """The budget of ``max_metric`` or ``min_metric``, on a metric of the table or the user's own.

    ``known`` are those that hooks define.

    Raises:
        SettingsError: an argument is invalid. Whether there is such a metric, only a run tells.
    """
    from pytest_torchprof.core.units import parse_signed
    from pytest_torchprof.core.values import Budget
    from pytest_torchprof.work.devices import check_target

    if len(args) != 2 or not isinstance(args[0], str) or not args[0].isidentifier():
        raise SettingsError(f'{kind} takes a name and a limit: {kind}("tokens_per_s", 100)')
    name, limit = args[0], args[1]
    if name in METRICS:
        return make_budget(f"{kind[:4]}{name}", [limit], kwargs)
    row = known.get(name)
    arguments = ("region", "on") if row is None else _arguments_of(row)
    given = _scope_of(f"{kind} of {name}", kwargs, arguments)
    try:
        if "on" in given:
            check_target(given["on"])
        given[_KINDS[kind[:4]]], given["unit"] = parse_signed(limit)
    except TorchprofError as error:
        raise SettingsError(f"{kind} of {name}: {error}") from None
    return Budget(name, **given)


def _scope_of(name: str, kwargs: Mapping[str, object], known: Sequence[str]) -> dict[str, Any]:
    """The scope and the device that the arguments name.

    Raises:
        SettingsError: an unknown argument, two scopes, or what is no name.
    """
    check_arguments(name, kwargs, known)
    scopes = [f"{one}=" for one in kwargs if one in SCOPES]
    if scopes[1:]:
        raise SettingsError(f"{name} takes {' or '.join(scopes)}, not both")
    if "rank" in kwargs and "each" in kwargs:
        raise SettingsError(f"{name} takes rank= or each=, not both")
    given: dict[str, Any] = dict(kwargs)
    if "rank" in kwargs:
        given["rank"] = _rank_of(name, kwargs["rank"])
    if "each" in kwargs:
        given["each"] = _flag_of(name, kwargs["each"])
    for scope, what in kwargs.items():
        if scope not in _OF_PROCESSES and (not isinstance(what, str) or not what):
            raise SettingsError(f"{name}: {scope}= takes a name, got {what!r}")
    return given


def _rank_of(name: str, what: object) -> str:
    """A rank as its label; an ini file has it as text.

    Raises:
        SettingsError: it is no rank.
    """
    text = str(what)
    if isinstance(what, bool) or not (text.isascii() and text.isdecimal()):
        raise SettingsError(f"{name}: rank= takes a rank, like rank=0, got {what!r}")
    return str(int(text))


def _flag_of(name: str, what: object) -> bool:
    """True or False; an ini file has it as text.

    Raises:
        SettingsError: it is neither.
    """
    if str(what).lower() not in ("true", "false"):
        raise SettingsError(f"{name}: each= takes True or False, got {what!r}")
    return str(what).lower() == "true"


def check_arguments(name: str, given: Iterable[str], known: Sequence[str]) -> None:
    """Reject keyword arguments of a marker that it does not have.

    Raises:
        SettingsError: there is one; the message has the nearest name.
    """
    for key in given:
        if key not in known:
            hint = near(key, known) if known else "It takes none."
            raise SettingsError(f"{name} has no argument {key!r}. {hint}")


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
        check_arguments(mark.name, mark.kwargs, [*rows, "enabled"])
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


def is_marked(item: pytest.Item) -> bool:
    """Whether the test asks to be profiled, by a torchprof marker or the fixture."""
    return "torchprof" in getattr(item, "fixturenames", ()) or any(
        map(is_ours, item.iter_markers())
    )


def is_ours(mark: pytest.Mark) -> bool:
    """Whether it is one of this plugin's markers."""
    ours = ("torchprof", "no_antipatterns", "allow_antipatterns")
    return mark.name in ours or mark.name.startswith(tuple(_KINDS))


# ---- The markers that forbid or allow findings of rules.


def antipatterns_of(item: pytest.Item) -> tuple[list[Budget], dict[str, str]]:
    """(limits of 0 set by ``no_antipatterns``; rule → reason, set by ``allow_antipatterns``).

    Markers at all levels count. If one forbids by name what another allows, the closer one wins;
    at the same level, the one that allows.

    Raises:
        SettingsError: an unknown rule, or an allowance without a reason.
    """
    from pytest_torchprof.core.values import Budget

    any_rule, named = False, set[str]()
    places: dict[int, tuple[dict[str, str], set[str]]] = {}
    for node, mark in item.iter_markers_with_node():
        allowed, forbidden = places.setdefault(id(node), ({}, set()))
        if mark.name == "no_antipatterns":
            check_arguments(mark.name, mark.kwargs, ())
            forbidden |= _rules_of(mark, item.config)
            any_rule |= not mark.args
        elif mark.name == "allow_antipatterns":
            reason = _reason_of(mark)
            if _PLACES.isdisjoint(mark.kwargs):
                allowed.update(dict.fromkeys(_rules_of(mark, item.config), reason))
    reasons: dict[str, str | None] = {}
    for allowed, forbidden in places.values():  # closest first
        reasons = {**dict.fromkeys(forbidden), **allowed, **reasons}
        named |= forbidden
    budgets = [Budget("findings", 0)] if any_rule else []
    if named:
        budgets.append(Budget("findings", 0, rules=tuple(sorted(named))))
    return budgets, {rule: reason for rule, reason in reasons.items() if reason is not None}


#: Where ``allow_antipatterns`` may allow findings, if not in the whole test.
_PLACES: Final = frozenset({"op", "module", "line"})


def _reason_of(mark: pytest.Mark) -> str:
    """The reason of an allowance.

    Raises:
        SettingsError: it has no rules or no reason, or a place that is none.
    """
    check_arguments(mark.name, mark.kwargs, ("reason", *sorted(_PLACES)))
    reason = mark.kwargs.get("reason")
    if not mark.args or not isinstance(reason, str) or not reason.strip():
        raise SettingsError(
            'allow_antipatterns takes rules and a reason: ("host-sync", reason="…")'
        )
    for name in sorted(_PLACES & mark.kwargs.keys()):
        value = mark.kwargs[name]
        if not isinstance(value, str) or not value.strip():
            raise SettingsError(f"allow_antipatterns: {name}={value!r} is no name; give a text")
    return reason


def allowances_of(item: pytest.Item) -> tuple[Allowance, ...]:
    """What ``allow_antipatterns`` allows at one place only.

    Raises:
        SettingsError: as `antipatterns_of`.
    """
    marks = [
        mark
        for mark in item.iter_markers("allow_antipatterns")
        if not _PLACES.isdisjoint(mark.kwargs)
    ]
    if not marks:
        return ()
    from pytest_torchprof.verdict.findings import Allowance

    return tuple(
        Allowance(
            tuple(sorted(_rules_of(mark, item.config))),
            _reason_of(mark),
            **{name: mark.kwargs[name] for name in _PLACES & mark.kwargs.keys() - {"line"}},
            line=_line(mark.kwargs.get("line")),
        )
        for mark in marks
    )


def _line(line: str | None) -> str | None:
    """The line without what a path may have in it and a location has not: ``./x.py:3``."""
    if line is None:
        return None
    path, separator, number = line.rpartition(":")
    if not (separator and number.isdecimal()):
        path, separator, number = line, "", ""
    return f"{posixpath.normpath(path)}{separator}{number}"


def _rules_of(mark: pytest.Mark, config: pytest.Config) -> frozenset[str]:
    from pytest_torchprof.session.known import check_rules

    return check_rules(map(str, mark.args), config)


# ---- Budgets of a whole project, from the ini option ``torchprof_budgets``.

#: ``GLOB: max_NAME = VALUE, op=…``; the glob and what follows the value are optional.
_LINE = late(r"(?:(?P<glob>[^=]+?)\s*:\s+)?(?P<name>\w+)\s*=\s*(?P<rest>.+)")
_ARGUMENT = late(r",\s*(\w+)\s*=\s*")
_EXAMPLE = "write lines like `tests/unit/*: max_peak_cpu_bytes = 64 MiB, module=Attention`"


class ProjectBudget(NamedTuple):
    """A budget, for the tests of files that the glob matches; ``*`` matches slashes, too."""

    glob: str
    budget: Budget


_PARSED = pytest.StashKey[tuple[ProjectBudget, ...]]()


def project_budgets_of(item: pytest.Item, own: Iterable[Budget]) -> list[Budget]:
    """The project's budgets for this test, without those that its own markers replace.

    Of several lines about one metric and scope, the last one counts.

    Raises:
        SettingsError: a line is invalid.
    """
    config = item.config
    if _PARSED not in config.stash:
        config.stash[_PARSED] = tuple(_parsed(config))
    if not config.stash[_PARSED]:
        return []
    file = item.nodeid.partition("::")[0]
    taken = {(one.label, _is_upper(one)) for one in own}
    taken |= {(one.label, False) for one in own if one.least is not None}
    found: dict[tuple[str, bool, str | None], Budget] = {}
    for glob, budget in config.stash[_PARSED]:
        if fnmatchcase(file, glob) and (budget.label, _is_upper(budget)) not in taken:
            found[budget.label, _is_upper(budget), budget.on] = budget
    return list(found.values())


def _is_upper(budget: Budget) -> bool:
    return budget.limit is not None


def _parsed(config: pytest.Config) -> Iterable[ProjectBudget]:
    from msgspec.structs import replace

    file = config.inipath.name if config.inipath is not None else "the ini file"
    for line in config.getini("torchprof_budgets"):
        try:
            glob, budget = _read(line, config)
        except SettingsError as error:
            raise SettingsError(f"torchprof_budgets in {file}: {line!r}: {error}") from None
        yield ProjectBudget(glob, replace(budget, source=f"torchprof_budgets in {file}"))


def _read(line: str, config: pytest.Config) -> ProjectBudget:
    found = _LINE.fullmatch(line.strip())
    if found is None:
        raise SettingsError("it is no budget", next_step=_EXAMPLE)
    name = found["name"]
    value, *others = _ARGUMENT.split(found["rest"])
    arguments = {key: text.strip() for key, text in zip(others[::2], others[1::2], strict=True)}
    if name in ("max_metric", "min_metric"):
        named = arguments.pop("name", "")
        budget = named_budget(name, [named, _number(value)], arguments, metrics_of(config))
        return ProjectBudget(found["glob"] or "*", budget)
    if name not in _METRIC_OF:
        raise SettingsError(f"{name}: no such metric. {near(name, _METRIC_OF)}")
    return ProjectBudget(found["glob"] or "*", make_budget(name, [_number(value)], arguments))


def _number(text: str) -> float | str:
    """A plain number in the metric's unit, or text that carries its own."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text.strip()
