"""What a session knows: its machine, rules, and users' metrics from hooks."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pytest

from pytest_torchprof.core.errors import SettingsError
from pytest_torchprof.verdict.metrics import Metric

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pytest_torchprof.rules.registry import Rulebook


# ---- What the hooks answer that conftest files and plugins implement, each with its source.


def answers_of(hooks: Iterable[Any], name: str, config: pytest.Config) -> list[tuple[str, object]]:
    """(source, answer) of each implementation of the hook of this name.

    Raises:
        SettingsError: an implementation raises.
    """
    return [(_source(config, impl), _answer(config, impl, name)) for impl in hooks]


def _answer(config: pytest.Config, impl: Any, name: str) -> object:
    """Call one hook implementation by itself, so that an error can name its source."""
    try:
        return impl.function(*[{"config": config}[argument] for argument in impl.argnames])
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise SettingsError(
            f"{name} in {_source(config, impl)} raised", f"{type(error).__name__}: {error}"
        ) from error


def _source(config: pytest.Config, impl: Any) -> str:
    """The conftest file, or the plugin's name."""
    file = getattr(impl.plugin, "__file__", None)
    if file and os.path.basename(file) == "conftest.py":  # noqa: PTH119 - a name, not a file
        return os.path.relpath(file, config.rootpath)
    return f"the plugin {impl.plugin_name}"


# ---- The anti-pattern rules of one pytest session.

_BOOKS = pytest.StashKey[dict[tuple[int, ...], "Rulebook"]]()


def rules_of(config: pytest.Config, item: pytest.Item | None = None) -> Rulebook:
    """Built-in rules, those of entry points, and those of plugins and conftest files.

    With ``item``, only conftest files that apply to that test; otherwise all that are loaded.

    Raises:
        SettingsError: a duplicate rule code, something that is not a rule, or a hook that
            raises.
    """
    from pytest_torchprof.rules.registry import gather

    caller = (config.hook if item is None else item.ihook).pytest_torchprof_rules
    hooks = caller.get_hookimpls()
    books = config.stash.setdefault(_BOOKS, {})
    key = tuple(map(id, hooks))
    if key not in books:
        books[key] = gather(answers_of(hooks, "pytest_torchprof_rules", config))
    return books[key]


def check_rules(codes: Iterable[str], config: pytest.Config) -> frozenset[str]:
    """Return these codes if each names a rule, built in or the user's own.

    Raises:
        SettingsError: an unknown code, with close matches, or an invalid user rule.
    """
    from pytest_torchprof.rules.rule import checked

    return checked(codes, rules_of(config).rules)


def thresholds_of(text: str, config: pytest.Config) -> dict[str, dict[str, float]]:
    """Rule → name → value.

    Raises:
        SettingsError: an unknown rule or threshold, or a wrong unit.
    """
    from pytest_torchprof.rules.rule import parse_thresholds

    return parse_thresholds(text, rules_of(config).rules.values()) if text.strip() else {}


# ---- The metrics that conftest files and plugins define as functions of a trace.

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
