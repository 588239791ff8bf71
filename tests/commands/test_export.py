"""`torchprof export`: a report in the formats of other trackers."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.command_line import Say, say
from support.hostile import EVERY, HOSTILE, assert_json, assert_terminal, in_utf8
from support.stored_reports import ENVIRONMENT, metric, report, save, test

__all__ = ["say"]  # a fixture

FORMATS = ("bmf", "gha-benchmark", "openmetrics", "csv")
ROUNDS = {"class": "time", "n": 5, "low": 1.25, "high": 1.75, "min": 1.2, "spread": 0.17}
REPORT = report(
    test(
        "t.py::test_a",
        metrics={
            "wall_ms": metric(1.5, "ms", **ROUNDS),
            "cpu_ms": metric(2, "ms", n=1, low=2, high=2),
            "peak_cpu_bytes": metric(0, "B"),
            "kernels": metric(None),
            "flops": metric(None, "FLOP", at_least=7),
            "allocated_cpu_bytes": metric(9, "B", at_least=9, status="over_budget", limit=5),
            "ops[op=aten::mm]": metric(4, limit=9),
            "images_per_s": metric(10.5, "1/s", better="higher"),
        },
        regions={"decode": {"laps": 2, "metrics": {"ops": metric(8)}, "findings": []}},
    ),
    test("t.py::test_b", status="not_profiled", reason="skipped", metrics={}),
)


@pytest.fixture
def exported(say: Say, tmp_path: Path) -> Callable[..., tuple[str, str]]:
    """Export a report; what is printed, and what stderr has."""

    def run(style: str, document: Any = REPORT) -> tuple[str, str]:
        status, out, err = say("export", save(tmp_path / "r.json", document), "--format", style)
        assert 0 == status, err
        assert_terminal(out)
        return out, err

    return run


Exported = Callable[..., tuple[str, str]]


def test_bmf_has_a_measure_per_metric(exported: Exported) -> None:
    out, err = exported("bmf")
    assert "" == err
    assert {
        "t.py::test_a": {
            "wall_ms": {"value": 1.5, "lower_value": 1.25, "upper_value": 1.75},
            "cpu_ms": {"value": 2},
            "peak_cpu_bytes": {"value": 0},  # a known zero
            "ops[op=aten::mm]": {"value": 4},
            "images_per_s": {"value": 10.5},
        },
        "t.py::test_a (decode)": {"ops": {"value": 8}},
    } == json.loads(out)


def test_names_fit_into_bencher_and_stay_distinct(exported: Exported) -> None:
    names = [f"t.py::test[{'x' * 10_000}{n}]" for n in range(3)]
    metrics = {f"ops[module={'m' * 100}{n}]": metric(n) for n in range(3)}
    found = json.loads(exported("bmf", report(*(test(n, metrics=metrics) for n in names)))[0])
    assert [1024] * 3 == [len(name) for name in found]
    assert all([64] * 3 == [len(name) for name in measures] for measures in found.values())


def test_gha_benchmark_has_what_is_better_smaller(exported: Exported) -> None:
    out, err = exported("gha-benchmark")
    rows = json.loads(out)
    first = {"name": "t.py::test_a: wall_ms", "unit": "ms", "value": 1.5, "range": "± 0.25"}
    assert {**first, "extra": "cpu, torch 2.13"} == rows[0]
    assert [
        "t.py::test_a: wall_ms",
        "t.py::test_a: cpu_ms",
        "t.py::test_a: peak_cpu_bytes",
        "t.py::test_a: ops[op=aten::mm]",
        "t.py::test_a (decode): ops",
    ] == [row["name"] for row in rows]
    assert "left out: 1 number of which a higher value is better" in err


def test_openmetrics_is_read_by_the_parser_of_prometheus(exported: Exported) -> None:
    parser = pytest.importorskip(
        "prometheus_client.openmetrics.parser", reason="prometheus_client is not installed"
    )
    out, _ = exported("openmetrics")
    families = {f.name: f for f in parser.text_string_to_metric_families(out)}
    assert {
        "torchprof_wall_ms",
        "torchprof_cpu_ms",
        "torchprof_peak_cpu_bytes",
        "torchprof_ops",
        "torchprof_images_per_s",
    } == families.keys()
    wall = families["torchprof_wall_ms"]
    assert ("gauge", "ms", True) == (wall.type, wall.unit, bool(wall.documentation))
    labels = {"test": "t.py::test_a", "environment": "cpu, torch 2.13"}
    assert [(labels, 1.5)] == [(s.labels, s.value) for s in wall.samples]
    assert [
        ({**labels, "scope": "op=aten::mm"}, 4),
        ({**labels, "region": "decode"}, 8),
    ] == [(s.labels, s.value) for s in families["torchprof_ops"].samples]


@pytest.mark.parametrize("text", [*HOSTILE, EVERY, "a\\", '"} 1', "x" * 10_000, "\x1b", r"\x1b"])
def test_openmetrics_is_read_whatever_the_names(exported: Exported, text: str) -> None:
    parser = pytest.importorskip(
        "prometheus_client.openmetrics.parser", reason="prometheus_client is not installed"
    )
    text = in_utf8(text)
    regions = {text or "r": {"laps": 1, "metrics": {"ops": metric(1)}, "findings": []}}
    both = (test(text, regions=regions), test(text), test("\x1b"), test(r"\x1b"))
    metrics = {text: metric(1.5), "größe": metric(2), "gr__e": metric(3)}
    out, _ = exported("openmetrics", report(*both, test("t", metrics=metrics)))
    found = [s for f in parser.text_string_to_metric_families(out) for s in f.samples]
    assert 8 == len(found)
    assert 8 == len({(s.name, *sorted(s.labels.items())) for s in found})


def test_csv_has_a_row_per_metric_and_nothing_for_the_unknown(exported: Exported) -> None:
    out, _ = exported("csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    by_metric = {(row["metric"], row["region"]): row for row in rows}
    assert 9 == len(rows)
    assert ("1.5", "1.25", "cpu, torch 2.13") == tuple(
        by_metric["wall_ms", ""][field] for field in ("value", "low", "environment")
    )
    assert "0" == by_metric["peak_cpu_bytes", ""]["value"]
    assert ("", "not_measured") == tuple(
        by_metric["kernels", ""][field] for field in ("value", "status")
    )
    assert ("", "7") == tuple(by_metric["flops", ""][field] for field in ("value", "at_least"))
    assert "op=aten::mm" == by_metric["ops", ""]["scope"]
    assert "8" == by_metric["ops", "decode"]["value"]


@pytest.mark.parametrize("style", FORMATS)
def test_a_report_without_numbers_is_an_empty_file_of_the_format(
    exported: Exported, style: str
) -> None:
    out, _ = exported(style, report())
    expected = {"bmf": "{}\n", "gha-benchmark": "[]\n", "openmetrics": "# EOF\n"}
    assert expected.get(style, out) == out
    assert 1 == out.count("\n")


@pytest.mark.parametrize("style", FORMATS)
@pytest.mark.parametrize("text", [EVERY, "]]>", "x" * 10_000])
def test_hostile_names_make_valid_files(exported: Exported, style: str, text: str) -> None:
    text = in_utf8(text)
    document = report(test(text, metrics={text: metric(1), f"ops[op={text}]": metric(2)}))
    out, _ = exported(style, document)
    if style in ("bmf", "gha-benchmark"):
        assert_json(out)
    elif style == "csv":
        assert 2 == len(list(csv.DictReader(io.StringIO(out))))
    out.encode("utf-8")


def test_an_interrupted_report_is_said(exported: Exported) -> None:
    out, err = exported("bmf", {**REPORT, "interrupted": True})
    assert exported("bmf")[0] == out
    assert (1, True) == (err.count("\n"), "the session was interrupted" in err)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a report: it is not JSON"),
        (b"{", "not a report: it is not JSON"),
        (b"[" * 100_000, "not a report: it is not JSON"),
        (b"\xff", "not a report: it is not JSON"),
        (b'{"a": NaN}', "not a report: it is not JSON"),
        (b'"\\ud800"', "not a report: it is not JSON"),
        (b"[]", "it has no schema torchprof-report/1"),
        (b'{"traceEvents": []}', "it has no schema torchprof-report/1"),
        (b'{"schema": "torchprof-baseline/1"}', "its schema is 'torchprof-baseline/1'"),
        (b'{"schema": "torchprof-report/2"}', "newer than torchprof-report/1; update torchprof"),
        (b'{"schema": "torchprof-report/1"}', "missing required field `environment`"),
        (json.dumps(report({"nodeid": 3})).encode(), "at `$.tests[0]"),
        (json.dumps(report(test("a", metrics={"b": 1}))).encode(), "at `$.tests[0].metrics[...]`"),
        (json.dumps({"schema": in_utf8(EVERY)}).encode(), "its schema is "),
    ],
)
def test_a_file_that_is_no_report_is_one_line_on_stderr(
    say: Say, tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "r.json"
    path.write_bytes(content)
    status, out, err = say("export", path, "--format", "csv")
    assert (2, "", 1) == (status, out, err.count("\n"))
    assert "r.json" in err
    assert message in err
    assert_terminal(err)


def test_a_missing_file_or_format_is_one_line_on_stderr(say: Say, tmp_path: Path) -> None:
    for arguments in (
        ["missing.json", "--format", "csv"],
        ["missing.json"],
        [tmp_path, "--format", "csv"],
    ):
        status, out, err = say("export", *arguments)
        assert (2, "", 1) == (status, out, err.count("\n"))


def test_the_environment_is_the_report_s(exported: Exported) -> None:
    document = report(test("t"), environment={**ENVIRONMENT, "key": 'a"b'})
    assert 'environment="a\\"b"' in exported("openmetrics", document)[0]
    assert "environment" not in exported("openmetrics", report(test("t"), environment={}))[0]
