"""The metrics that conftest files and plugins define as functions of a trace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import pytest

from pytest_torchprof.core.errors import SettingsError
from pytest_torchprof.session.hook_answers import answers_of
from pytest_torchprof.verdict.metric import Metric

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

_TABLES = pytest.StashKey[dict[tuple[int, ...], Mapping[str, Metric]]]()


def metrics_of(config: pytest.Config, item: pytest.Item | None = None) -> Mapping[str, Metric]:
    """The metrics of plugins and conftest files, by name.

    With ``item``, only conftest files that apply to that test; otherwise all that are loaded.

    Raises:
        SettingsError: two metrics of one name, something that is no metric, or a hook that raises.
    """
    caller = (config.hook if item is None else item.ihook).pytest_torchprof_metrics
    hooks = caller.get_hookimpls()
    tables = config.stash.setdefault(_TABLES, {})
    key = tuple(map(id, hooks))
    if key not in tables:
        tables[key] = gathered(answers_of(hooks, "pytest_torchprof_metrics", config))
    return tables[key]


def names_for(item: pytest.Item) -> Callable[[], Collection[str]]:
    """What tells the names of the metrics that apply to a test."""
    return lambda: metrics_of(item.config, item)


def gathered(answers: Iterable[tuple[str, object]]) -> dict[str, Metric]:
    """The metrics of these (source, answer).

    Raises:
        SettingsError: two metrics of one name, or something that is no metric.
    """
    found: dict[str, Metric] = {}
    sources: dict[str, str] = {}
    for source, answer in answers:
        for one in _metrics_in(answer, source):
            if one.name in found:
                raise SettingsError(
                    f"the metric {one.name!r} of {source}",
                    f"{sources[one.name]} has a metric of this name",
                    "give it another name",
                )
            found[one.name], sources[one.name] = one, source
    return found


def _metrics_in(answer: object, source: str) -> list[Metric]:
    """The metrics in a metric, or in a list of metrics."""
    if answer is None:
        return []
    several = isinstance(answer, Iterable) and not isinstance(answer, str | Metric | Mapping)
    answers: list[object] = list(answer) if several else [answer]  # type: ignore[call-overload]
    for one in answers:
        if not isinstance(one, Metric) or one.own is None:
            raise SettingsError(
                f"{one!r} of {source} is not a metric of one's own",
                f"its type is {type(one).__name__}",
                "make one with @pytest_torchprof.metric(name, unit=…)",
            )
    return answers  # type: ignore[return-value]
