"""What was measured, as properties of a test that a JUnit report lists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pytest_torchprof.render import escape
from pytest_torchprof.render.json_report import test_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pytest

    from pytest_torchprof.core.results import Record


#: What our properties begin with.
_OURS: Final = "torchprof"


def note(item: pytest.Item, report: pytest.TestReport, record: Record) -> None:
    """Put what is known of the test now in the place of what an earlier phase or run noted."""
    found = properties_of(record)
    # Pytest reads the properties of the teardown's report, which it takes from the item.
    for properties in (item.user_properties, report.user_properties):
        properties[:] = [one for one in properties if not str(one[0]).startswith(f"{_OURS}.")]
        properties.extend(found)


def properties_of(record: Record) -> list[tuple[str, str]]:
    """Names and values: the status, each metric, and each metric of a region.

    They are called ``torchprof.METRIC`` and ``torchprof.REGION.METRIC``, with the names and numbers
    of the JSON report. What was not measured has no property.
    """
    test = test_of(record)
    found = [(f"{_OURS}.status", str(test["status"])), *_values(_OURS, test["metrics"])]
    for name, region in test.get("regions", {}).items():
        found += _values(f"{_OURS}.{name}", region["metrics"])
    return [(escape.line(name), value) for name, value in found]


def _values(prefix: str, metrics: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, metric in metrics.items():
        if metric["value"] is not None:
            yield f"{prefix}.{name}", str(metric["value"])
