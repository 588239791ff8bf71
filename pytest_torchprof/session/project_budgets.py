"""Budgets of a whole project, from the ini option ``torchprof_budgets``."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

import pytest
from msgspec.structs import replace

from pytest_torchprof.core.errors import SettingsError, near
from pytest_torchprof.core.lazy_regex import late
from pytest_torchprof.session.known_metrics import metrics_of
from pytest_torchprof.session.markers import make_budget, named_budget
from pytest_torchprof.verdict.metrics import METRICS

if TYPE_CHECKING:
    from pytest_torchprof.core.results import Budget

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
    ours = [f"{kind}_{metric}" for kind in ("max", "min") for metric in METRICS]
    value, *others = _ARGUMENT.split(found["rest"])
    arguments = {key: text.strip() for key, text in zip(others[::2], others[1::2], strict=True)}
    if name in ("max_metric", "min_metric"):
        named = arguments.pop("name", "")
        budget = named_budget(name, [named, _number(value)], arguments, metrics_of(config))
        return ProjectBudget(found["glob"] or "*", budget)
    if name not in ours:
        raise SettingsError(f"{name}: no such metric. {near(name, ours)}")
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
