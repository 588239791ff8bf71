"""What a test records itself, run by run, and which of its runs counts for which metric."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_torchprof.core.reasons import Reason, Why, because
from pytest_torchprof.core.results import MissingValue
from pytest_torchprof.core.samples import Sample
from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.verdict.recorded import Recorded

if TYPE_CHECKING:
    from pytest_torchprof.core.own_metrics import OwnMetric
    from pytest_torchprof.core.results import Number
    from pytest_torchprof.session.plan import RunKind
    from pytest_torchprof.session.runs.one_run import Run

#: Runs that count for what is not a time, the first of them that has a value.
_KINDS = ("profile", "threads", "numbers")
_NO_ROUND = because(Why.RECORDED_IN_NO_ROUND)

_Key = tuple["str | None", str]


class _OfRun(Frozen, frozen=True):
    """What one run recorded, by region and name: numbers, and reasons where it has none."""

    kind: RunKind
    first: bool
    values: dict[_Key, list[Number | Reason]]

    def add(self, key: _Key, value: Number | Reason) -> None:
        """One more value of a metric."""
        self.values.setdefault(key, []).append(value)

    def numbers(self, key: _Key) -> list[Number]:
        """The numbers of one metric, in order."""
        return [value for value in self.values.get(key, ()) if not isinstance(value, Reason)]


class RunRecordings:
    """Takes what each run records, until it is asked for the values that count."""

    def __init__(self) -> None:
        self._metrics: dict[_Key, OwnMetric] = {}
        self._runs: list[_OfRun] = []
        self._now: Run | None = None
        self._outside: set[_Key] = set()
        self._first_is_round = False
        self._are_calls = False

    def count_first(self) -> None:
        """The first run was so long that it is a timed round, too."""
        self._first_is_round = True

    def count_calls(self) -> None:
        """The timed runs are calls of a callable, within which nothing is recorded."""
        self._are_calls = True

    def note(
        self, run: Run | None, region: str | None, metric: OwnMetric, value: Number | Reason
    ) -> None:
        """Note a value, or why there is none yet; without a run, it is not of the call phase."""
        key = region, metric.name
        self._metrics[key] = metric
        if run is None:
            self._outside.add(key)
            return
        if run is not self._now:
            self._now = run
            self._runs.append(_OfRun(run.kind, run.first, {}))
        self._runs[-1].add(key, value)

    def taken(self) -> dict[str | None, dict[str, Recorded]]:
        """By region, None for the whole test, what was recorded of each metric."""
        found: dict[str | None, dict[str, Recorded]] = {}
        for key, metric in self._metrics.items():
            found.setdefault(key[0], {})[key[1]] = self._recorded(key, metric)
        return found

    def reseeded(self) -> dict[str | None, dict[str, Recorded]]:
        """What the run with another seed recorded that is no time."""
        found: dict[str | None, dict[str, Recorded]] = {}
        for run in self._runs:
            for key, metric in self._metrics.items() if run.kind == "reseeded" else ():
                if metric.compare not in ("time", "never") and (numbers := run.numbers(key)):
                    found.setdefault(key[0], {})[key[1]] = Recorded(metric, numbers[-1])
        return found

    def _recorded(self, key: _Key, metric: OwnMetric) -> Recorded:
        if metric.compare in ("time", "never"):
            rounds = [numbers for run in self._rounds if (numbers := run.numbers(key))]
            if rounds:
                values = [Sample.of(numbers).median for numbers in rounds]
                sample = Sample.of(values)
                whole = len(rounds) == 1 and len(rounds[0]) == 1
                best = min(values) if metric.better == "lower" else max(values)
                return Recorded(
                    metric,
                    rounds[0][0] if whole else sample.median,
                    sample,
                    best if metric.compare == "time" else None,
                )
            no_round = because(Why.RECORDED_BESIDE_CALLABLE) if self._are_calls else _NO_ROUND
            return Recorded(metric, MissingValue(self._gap(key) or no_round))
        for run in self._that_count:
            if numbers := run.numbers(key):
                return Recorded(metric, numbers[-1])
        return Recorded(metric, MissingValue(self._gap(key) or because(Why.WAS_NOT_MEASURED)))

    @property
    def _rounds(self) -> Sequence[_OfRun]:
        return [r for r in self._runs if r.kind == "round" or (r.first and self._first_is_round)]

    @property
    def _that_count(self) -> Sequence[_OfRun]:
        """The runs for what is not a time: the last profiled one first."""
        ordered = [run for kind in _KINDS for run in reversed(self._runs) if run.kind == kind]
        return [*ordered, *(run for run in self._runs if run.first)]

    def _gap(self, key: _Key) -> Reason | None:
        if key in self._outside:
            return because(Why.RECORDED_OUTSIDE_CALL)
        given = (value for run in self._runs for value in run.values.get(key, ()))
        reasons = [value for value in given if isinstance(value, Reason)]
        return reasons[-1] if reasons else None
