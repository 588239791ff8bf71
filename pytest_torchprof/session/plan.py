"""The plan of a test, from options and markers: how to measure it, and against what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from pytest_torchprof.core.records import Frozen
from pytest_torchprof.rules.registry import RULES
from pytest_torchprof.session.known import metrics_of, rules_of
from pytest_torchprof.session.markers import (
    allowances_of,
    antipatterns_of,
    budgets_of,
    is_marked,
    limits_of_excluded,
    overrides_of,
    project_budgets_of,
)
from pytest_torchprof.verdict.metrics import ESTIMATES, METRICS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pytest

    from pytest_torchprof.capture.machine import Machine
    from pytest_torchprof.core.values import Budget, Settings
    from pytest_torchprof.rules.rule import Rule
    from pytest_torchprof.verdict.findings import Allowance
    from pytest_torchprof.verdict.metrics import Metric

RunKind = Literal[
    "warmup",
    "round",
    "alone",
    "pairs",
    "profile",
    "modules",
    "threads",
    "numbers",
    "tensors",
    "reseeded",
    "lines",
]
#: Optional runs: the numbers are complete without them, so a failure in one is ignored.
EXTRA_KINDS: Final = frozenset({"alone", "tensors", "reseeded", "lines"})


class Plan(Frozen, frozen=True):
    """How to measure one test, and what to compare it with.

    ``rules`` are checked, with these ``thresholds``; ``allowed`` maps rules that may match to the
    reason, and ``ignored`` are switched off. Rounds repeat for ``min_time_s`` or, if no number of
    rounds was given, ``gate_time_s``. ``time`` is what to do about a time difference; with
    ``shares_laps``, the reference kernel's laps of the test before may be used. ``accepts``: times
    are accepted. ``compares``: callables that the test compares get a run of their own. ``metrics``
    are the user's own. ``seed`` is that of runs after the first, None to leave the generators
    alone; with ``checks_stable``, one more run has another.
    ``asked`` are the metrics of a device's work to measure, on this ``chip``. ``allowances`` are
    findings that markers allow in one place.
    """

    warmup: int
    rounds: int
    threads: int | None = 1
    budgets: tuple[Budget, ...] = ()
    rules: tuple[Rule, ...] = tuple(RULES.values())
    thresholds: Mapping[str, Mapping[str, float]] = msgspec.field(default_factory=dict)
    allowed: Mapping[str, str] = msgspec.field(default_factory=dict)
    ignored: frozenset[str] = frozenset()
    min_time_s: float = 0.0
    gate_time_s: float = 0.0
    time: Literal["advisory", "gate", "off"] = "advisory"
    shares_laps: bool = False
    accepts: bool = False
    compares: bool = True
    metrics: tuple[Metric, ...] = ()
    seed: int | None = None
    checks_stable: bool = False
    asked: tuple[str, ...] = ()
    allowances: tuple[Allowance, ...] = ()
    chip: str | None = None
    #: Excluded from profiling, but with limits, which are then not checked.
    left_out: bool = False

    def with_counts(
        self,
        *,
        warmup: int | None = None,
        rounds: int | None = None,
        min_time: float | None = None,
    ) -> Plan:
        """The plan with these counts and seconds, where given."""
        free = rounds is None and min_time is None
        return msgspec.structs.replace(
            self,
            warmup=self.warmup if warmup is None else warmup,
            rounds=self.rounds if rounds is None else rounds,
            min_time_s=self.min_time_s if min_time is None else min_time,
            gate_time_s=self.gate_time_s if free else 0.0,
        )

    def on(self, machine: Machine) -> Plan:
        """The plan with the limits that are in force on this machine; of several, the tightest.

        Limits in units that do not compare stay apart: only a run tells their metric's unit.
        """
        if all(budget.on is None and not budget.source for budget in self.budgets):
            return self
        from pytest_torchprof.capture.machine import capability
        from pytest_torchprof.work.devices import is_on

        kept: dict[tuple[str, str], Budget] = {}
        for one in self.budgets:
            if one.on and not is_on(one.on, machine.device_type, machine.accelerator, capability):
                continue
            budget = msgspec.structs.replace(one, on=None)
            key = one.label, one.unit
            known = kept.get(key)
            kept[key] = budget if known is None else known.tightened(budget)
        return msgspec.structs.replace(self, budgets=tuple(kept.values()))

    @property
    def round_time_s(self) -> float:
        """The least total time of rounds, in seconds."""
        return self.min_time_s or self.gate_time_s

    @property
    def kinds(self) -> list[RunKind]:
        """The runs in order; the first decides the functional outcome."""
        modules: list[RunKind] = ["modules"] if any(b.module for b in self.budgets) else []
        rounds = max(self.rounds, int(self.round_time_s > 0))  # `Gatherer.runs_of` adds more
        return [*["warmup"] * self.warmup, *["round"] * rounds, "profile", *modules]  # type: ignore[list-item]


def plan_of(item: pytest.Item, settings: Settings) -> Plan | None:
    """The plan for a test, from options and markers; None if it is not profiled.

    Raises:
        SettingsError: an invalid marker.
    """
    overrides = overrides_of(item)
    budgets = tuple(budgets_of(item))
    forbidden, allowed = antipatterns_of(item)
    known = {budget.label for budget in budgets}
    budgets += tuple(budget for budget in forbidden if budget.label not in known)
    if not overrides.pop("enabled", True):
        kept = limits_of_excluded(item, budgets, forbidden)
        return Plan(0, 0, budgets=kept, left_out=True) if kept else None
    s = settings
    if s.select == "marked" and not is_marked(item):
        return None
    budgets += tuple(project_budgets_of(item, budgets))
    budgets = tuple(_in_force(budgets, s.device))
    rules = rules_of(item.config, item).rules
    allowances = allowances_of(item)
    permitted = (*allowed, *(code for one in allowances for code in one.rules))
    asked = asked_for(budgets, permitted, s)
    base = Plan(
        s.warmup,
        s.rounds,
        s.threads,
        budgets,
        rules=tuple(
            rule
            for rule in rules.values()
            if rule.code not in s.ignore and ("host_reads" in asked or not rule.on_request)
        ),
        thresholds=s.thresholds,
        allowed=allowed,
        ignored=s.ignore,
        min_time_s=s.min_time,
        gate_time_s=s.gate_time_s,
        time=s.time,
        shares_laps=s.time == "advisory" and not s.accept,
        accepts=s.time != "off" and s.accept,
        metrics=tuple(metrics_of(item.config, item).values()),
        seed=s.seed,
        checks_stable=s.checks_stable,
        asked=asked,
        chip=s.device,
        allowances=allowances,
    )
    return base.with_counts(**overrides)


def _in_force(budgets: Iterable[Budget], chip: str | None) -> Iterator[Budget]:
    """Without limits on bounds of other chips than the one that is estimated for."""
    for one in budgets:
        metric = METRICS.get(one.metric)
        if one.on is None or metric is None or not metric.of_chip:
            yield one
            continue
        from pytest_torchprof.work.devices import is_of_chip

        mine = is_of_chip(one.on, chip)
        if mine is not False:
            yield one if mine is None else msgspec.structs.replace(one, on=None)


def asked_for(
    budgets: Iterable[Budget], allowed: Iterable[str], settings: Settings
) -> tuple[str, ...]:
    """The metrics of a device's work that limits, columns or a chip ask for, in order.

    A rule on such work that is limited, or allowed somewhere, asks for what it needs.
    """
    names = {*settings.columns, settings.sort, *(one.metric for one in budgets)}
    codes = (*allowed, *(code for one in budgets for code in one.rules))
    names |= {"host_reads" for code in codes if _is_on_request(code)}
    if settings.device is None and names.isdisjoint(ESTIMATES):
        return ()
    return tuple(name for name in ESTIMATES if settings.device is not None or name in names)


def _is_on_request(code: str) -> bool:
    rule = RULES.get(code)
    return rule is not None and rule.on_request
