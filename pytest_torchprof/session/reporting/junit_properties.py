"""What was measured, as properties of a test that a JUnit report lists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pytest_torchprof.render import escape
from pytest_torchprof.render.json_report import test_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_torchprof.core.results import Record


#: What our properties begin with.
_OURS: Final = "torchprof"


def replace_properties(properties: list[tuple[str, Any]], record: Record) -> None:
    """Put what is known of the test now in the place of what an earlier phase or run noted."""
    properties[:] = [one for one in properties if not str(one[0]).startswith(f"{_OURS}.")]
    properties += properties_of(record)


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
