"""One report of several: those of the shards of a test suite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pytest_torchprof.core.errors import ReportError
from pytest_torchprof.render.json_report import REPORT_SCHEMA
from pytest_torchprof.render.text_width import shorten

if TYPE_CHECKING:
    from pytest_torchprof.render.stored_report import StoredReport

#: What must be the same in all: numbers that differ in it are stored apart in baselines, too.
_SAME = ("key", "accelerator", "device_type", "torch_version", "threads")
#: Keys of a report with a rule of their own.
_KNOWN = ("schema", "environment", "tests", "errors", "interrupted")
#: The longest name in an error: long parametrized ones are whole.
_LONGEST = 300


def merged(reports: Mapping[str, StoredReport]) -> dict[str, Any]:
    """The tests of all reports, by the reports' names, in their order.

    What differs between the machines, such as ``host``, is in the ``environment`` of each test, and
    what is the same in that of the report. A test in several reports with the same content is there
    once.

    Raises:
        ReportError: the environments differ, or a test has different results in two reports.
    """
    documents = {name: report.document for name, report in reports.items()}
    started = {name: one for name, one in documents.items() if one["environment"]}
    for (a, one), (b, other) in pairwise(started.items()):
        _check(a, one["environment"], b, other["environment"])
    shared = _shared([one["environment"] for one in started.values()])
    document: dict[str, Any] = {
        "schema": REPORT_SCHEMA,
        "environment": shared,
        "tests": _tests(documents, shared),
    }
    errors = dict.fromkeys(line for report in reports.values() for line in report.errors)
    document |= {"errors": list(errors)} if errors else {}
    document |= _others(documents)
    if any(report.interrupted for report in reports.values()):
        document["interrupted"] = True
    return document


def _check(a: str, one: Mapping[str, Any], b: str, other: Mapping[str, Any]) -> None:
    """Refuse to merge numbers of different environments."""
    differing = [name for name in _SAME if one.get(name) != other.get(name)]
    if differing:
        found = "; ".join(
            f"{name} is {_quoted(one.get(name))} and {_quoted(other.get(name))}"
            for name in differing
        )
        raise ReportError(
            f"{a} and {b} are of different environments", found, "merge those of each environment"
        )


def _shared(environments: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What all have alike."""
    if not environments:
        return {}
    first, *others = environments
    return {
        name: value
        for name, value in first.items()
        if all(name in other and other[name] == value for other in others)
    }


def _tests(
    documents: Mapping[str, Mapping[str, Any]], shared: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Each test once, with what only its own machine has."""
    tests: dict[str, dict[str, Any]] = {}
    source: dict[str, tuple[str, Any]] = {}
    for name, document in documents.items():
        own = {key: v for key, v in document["environment"].items() if key not in shared}
        for test in document["tests"]:
            nodeid = test["nodeid"]
            if nodeid not in tests:
                source[nodeid] = name, test
                extra = {"environment": {**own, **test.get("environment", {})}} if own else {}
                tests[nodeid] = {**test, **extra}
            elif source[nodeid][1] != test:
                raise ReportError(
                    f"{_quoted(nodeid)} is in {source[nodeid][0]} and in {name}",
                    "its results differ",
                    "merge reports of shards that ran different tests",
                )
    return list(tests.values())


def _others(documents: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Keys of newer versions, if all reports that have them agree."""
    found: dict[str, tuple[str, Any]] = {}
    for name, document in documents.items():
        for key, value in document.items():
            if key in _KNOWN:
                continue
            first, known = found.setdefault(key, (name, value))
            if known != value:
                raise ReportError(
                    f"{first} and {name} cannot be merged",
                    f"{_quoted(key)} differs, which this version does not know",
                    "update torchprof",
                )
    return {key: value for key, (_, value) in found.items()}


def _quoted(value: object) -> str:
    return shorten(repr(value), _LONGEST)
