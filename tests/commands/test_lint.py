"""`torchprof lint` and `torchprof rules`, with rules made for the test."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from labelled.communication import layers, reduced
from support.command_line import Say, say
from support.sessions import replaced_rules
from support.trace_builder import TraceBuilder

from pytest_torchprof import Trace
from pytest_torchprof.core.errors import SettingsError
from pytest_torchprof.render.findings import findings, gaps
from pytest_torchprof.render.notes import NotMeasured
from pytest_torchprof.rules.exposed_communication import exposed_communication
from pytest_torchprof.rules.registry import RULES
from pytest_torchprof.rules.rule import Matches, Threshold, rule
from pytest_torchprof.trace.names import selected_operators

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events

__all__ = ["say"]  # a fixture

H100 = "NVIDIA H100 80GB HBM3"
DOCS = Path(__file__).parents[2] / "docs" / "traces.md"


@rule("slow-add", fix="add less", triggers="aten::add$", times=Threshold(2, "1", "one is fine"))
def slow_add(trace: Events, *, times: float) -> Matches:
    """Many additions, the threshold is their number.

    ## What it does

    Finds `aten::add`.
    """
    found = selected_operators(trace, "aten::add")
    found = found if len(found) >= times else found[:0]
    return Matches(found, "an addition", cost_ns=np.full(len(found), 3_000))


@rule("large-copy", fix="copy once", triggers="aten::copy_", size=Threshold(4096, "B", "small"))
def large_copy(trace: Events, *, size: float) -> Matches:
    """Large copies.

    ## What it does

    Finds `aten::copy_` above a threshold.
    """
    found = selected_operators(trace, "aten::copy_")
    moved = np.full(len(found), 8192)
    found, moved = found[moved >= size], moved[moved >= size]
    messages = [f"copy of kind {n % 2}" for n in range(len(found))]
    cost = np.arange(len(found)) * 1_000
    return Matches(found, messages, cost_ns=cost, bytes=moved)


@rule("on-device", fix="wait less", triggers="aten::", needs="device shapes")
def on_device(trace: Events) -> list[int]:
    """Waits for the device."""
    return list(selected_operators(trace, "aten::item"))


@rule("broken", fix="mend it", triggers="aten::broken")
def broken(_: Events) -> list[int]:
    """Breaks."""
    raise ValueError("no such luck")


@pytest.fixture(autouse=True)
def four_rules() -> Iterator[None]:
    """Only the rules above."""
    with replaced_rules() as known:
        known.update({r.code: r for r in (slow_add, large_copy, on_device, broken)})
        yield


def builder_of(device: str | None = None, rank: int | None = None) -> TraceBuilder:
    """Three additions in two places, three copies in one."""
    b = TraceBuilder(device)
    if rank is not None:
        b.metadata("distributedInfo", {"rank": rank, "world_size": 2})
    with b.annotation("encode"):
        b.op("aten::add", [[4], [4]])
        b.op("aten::add", [[4], [4]])
    with b.annotation("decode"):
        b.op("aten::add", [[4], [4]])
        for _ in range(3):
            b.op("aten::copy_", [[4], [4]])
        if device:
            b.launch("kernel")
    return b


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return builder_of().save(tmp_path / "step.json")


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    b = TraceBuilder(H100)
    with b.op("aten::mm", [[4, 4], [4, 4]]):
        b.launch("gemm")
    return b.save(tmp_path / "clean.json")


def linted(say: Say, *arguments: str | Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(say("lint", *arguments, "--format", "json")[1])
    return document


# -------------------------------------------------------------------- what is found


def test_findings_have_the_fields_that_are_promised(say: Say, trace: Path) -> None:
    document = linted(say, trace)
    fields = (
        "rule count message location fix accepted cost_ms bytes path module reason modules gated"
        " page share"
    )
    assert "torchprof-lint/1" == document["schema"]
    assert {tuple(fields.split())} == {tuple(row) for row in document["findings"]}
    first = document["findings"][0]
    assert ("slow-add", 2, 0.006, None) == tuple(
        first[key] for key in ("rule", "count", "cost_ms", "bytes")
    )
    assert ("encode > aten::add", "encode > aten::add", None) == tuple(
        first[key] for key in ("location", "path", "module")
    )
    assert ("docs/rules/slow-add.md", False) == (first["page"], first["accepted"])


def test_the_costliest_come_first(say: Say, trace: Path) -> None:
    costs = [row["cost_ms"] for row in linted(say, trace)["findings"]]
    assert sorted(costs, reverse=True) == costs
    assert 4 == len(costs)


def test_unchecked_rules_are_reported_with_the_reason(say: Say, tmp_path: Path) -> None:
    b = builder_of()
    b.op("aten::broken")
    trace = b.save(tmp_path / "x.json")
    document = linted(say, trace)
    assert {"on-device": "no accelerator in this capture"} == document["unchecked"]
    assert ["broken"] == list(document["errors"])
    assert document["errors"]["broken"].startswith("ValueError: no such luck (")
    _, out, _ = say("lint", trace)
    assert "not checked: on-device (no accelerator in this capture)" in out
    assert "failed, so not checked: broken (ValueError: no such luck" in out


def test_a_clean_trace_says_so_and_passes(say: Say, clean: Path) -> None:
    status, out, err = say("lint", clean, "--fail")
    assert (0, "", True) == (status, err, "no findings" in out)
    assert "not checked" not in out


def test_fail_is_about_any_finding(say: Say, trace: Path) -> None:
    assert 0 == say("lint", trace)[0]
    assert 1 == say("lint", trace, "--fail")[0]
    assert 0 == say("lint", trace, "--fail", "--ignore", "slow-add, large-copy")[0]
    assert 1 == say("lint", trace, "--fail", "--ignore", "slow-add")[0]


@pytest.mark.parametrize("kind", ["empty", "cut", "no operators", "all ignored", "broken"])
def test_what_was_not_checked_has_not_passed(
    say: Say, tmp_path: Path, clean: Path, kind: str
) -> None:
    path, extra = tmp_path / "x.json", list[str]()
    if kind == "empty":
        path.write_text('{"traceEvents": [], "schemaVersion": 1}')
    elif kind == "cut":
        whole = clean.read_bytes()
        path.write_bytes(whole[: whole.index(b'"gemm"') - 30])
    elif kind == "no operators":
        b = TraceBuilder(H100)
        b.launch("gemm")
        b.save(path)
    elif kind == "all ignored":
        path, extra = clean, ["--ignore", ",".join(RULES)]
    else:
        b = TraceBuilder()
        b.op("aten::broken")
        b.save(path)
    status, out, _ = say("lint", path, "--fail", *extra)
    assert (1, True) == (status, "no findings" in out), out
    assert "checked" in out or "nothing to check" in out
    assert 0 == say("lint", path, *extra)[0]


#: Contents of a file beside a good rank, and whether it may be a rank.
BESIDE = {
    "rank1.json": [(b"", True), (b'{"traceEvents": [{"ph": "X", "na', True), (b"{}", True)],
    "b.json": [(b"garbage", True), (b"\x1f\x8b\x08", True)],
    "config.json": [(b'{"lr": 0.1}', False), (b"[1, 2]", False)],
    "chrome.json": [(b'{"traceEvents": [{"ph": "X", "name": "a", "cat": "toplevel"}]}', False)],
}


@pytest.mark.thorough
@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("name", "content", "fails"),
    [(name, content, fails) for name, all_of in BESIDE.items() for content, fails in all_of],
)
def test_a_check_fails_if_a_file_that_may_be_a_rank_cannot_be_read(
    say: Say, tmp_path: Path, clean: Path, name: str, content: bytes, *, fails: bool
) -> None:
    folder = tmp_path / "ranks"
    folder.mkdir()
    good = folder / "rank0.json"
    good.write_bytes(clean.read_bytes())
    (folder / name).write_bytes(content)
    checks = (
        ("lint", folder, "--fail"),
        ("diff", folder, clean, "--fail-over", "5"),
        ("diff", clean, folder, "--fail-over", "5"),
    )
    for check in checks:
        status, out, err = say(*check)
        assert fails == status == (f"{name}: nothing was checked" in out), out
        assert err.startswith(f"torchprof: warning: left out: {folder / name}: ")
        assert 1 == err.count("\n")
        assert str(good) not in err
        assert 0 == say(*[word for word in check if word not in ("--fail", "--fail-over", "5")])[0]
    document = json.loads(say("diff", clean, folder, "--fail-over", "5", "--format", "json")[1])
    assert fails == document["failed"]
    assert any(name in warning for warning in document["warnings"])


def test_the_metric_is_the_sum_of_what_lint_finds(say: Say, trace: Path, tmp_path: Path) -> None:
    counts = [row["count"] for row in linted(say, trace)["findings"]]
    metrics = Trace.load(trace).metrics()
    assert 6 == sum(counts) == metrics["findings"]
    empty = tmp_path / "empty.json"
    empty.write_text('{"traceEvents": [], "schemaVersion": 1}')
    assert isinstance(Trace.load(empty).metrics()["findings"], NotMeasured)


# -------------------------------------------------------------------- options


def test_thresholds_are_set_with_units(say: Say, trace: Path) -> None:
    def codes(thresholds: str) -> set[str]:
        return {row["rule"] for row in linted(say, trace, "--thresholds", thresholds)["findings"]}

    assert {"slow-add", "large-copy"} == codes("large-copy.size=8 KiB")
    assert {"slow-add"} == codes("large-copy.size=8.1 KiB")
    assert {"large-copy"} == codes("slow-add.times=4")
    assert set() == codes("slow-add.times=4, large-copy.size=1 MiB")


@pytest.mark.parametrize(
    ("option", "value", "expected_text"),
    [
        ("--ignore", "slow-ad", "Did you mean slow-add?"),
        ("--thresholds", "slow-ad.times=3", "Did you mean slow-add?"),
        ("--thresholds", "slow-add.time=3", "Did you mean times?"),
        ("--thresholds", "slow-add.times=3 MiB", 'the unit "MiB"'),
        ("--thresholds", "large-copy.size=-1", "it is negative"),
        ("--thresholds", "broken.x=1", "has no thresholds"),
        ("--thresholds", "slow-add", "write RULE.NAME=VALUE"),
        ("--limit", "-1", "--limit"),
        ("--rank", "3", "rank"),
    ],
)
def test_bad_usage_is_one_line(
    say: Say, trace: Path, option: str, value: str, expected_text: str
) -> None:
    status, out, err = say("lint", trace, option, value)
    assert (2, "", 1) == (status, out, err.count("\n"))
    assert expected_text in err


def test_a_limited_table_has_the_costliest_of_each_rule(say: Say, trace: Path) -> None:
    _, out, _ = say("lint", trace, "--limit", "2")
    headings = re.findall(r"^[a-z-]+: .* matches in .*", out, re.MULTILINE)
    assert [
        "slow-add: 3 matches in 2 places, 9 us to gain (26.1 %)",
        "large-copy: 3 matches in 2 places, 3 us to gain (8.7 %), 24 KiB",
    ] == headings
    assert 2 == out.count("  … and 1 more place\n")
    assert "… and 2 more places: --limit 0 shows all" in out
    document = linted(say, trace, "--limit", "1")
    assert (1, 3) == (len(document["findings"]), document["left_out"])


def test_what_gains_too_little_is_counted_and_not_shown(say: Say, tmp_path: Path) -> None:
    b = builder_of(H100)
    b.advance(10)
    b.launch("long", 10_000)
    b.launch("next", 10)
    path = b.save(tmp_path / "x.json")
    status, out, _ = say("lint", path, "--fail")
    assert (1, 0) == (status, out.count("slow-add: "))
    hidden = "hidden: 4 places that gain less than 0.1 % of the time (--min-gain 0 shows all): "
    assert f"{hidden}slow-add, large-copy" in " ".join(out.split())
    assert "slow-add: 3 matches" in say("lint", path, "--min-gain", "0")[1]
    shares = [row["share"] for row in linted(say, path)["findings"]]
    assert 4 == len(shares)
    assert 0 < min(shares) <= max(shares) < 0.001


def test_a_share_is_of_the_time_from_the_first_event_to_the_last(say: Say, trace: Path) -> None:
    document = linted(say, trace)
    first = document["findings"][0]
    assert first["share"] == pytest.approx(first["cost_ms"] / 0.0345, rel=0.01)


def a_rank(number: int, compute_ms: float, reduce_ms: float) -> TraceBuilder:
    """Steps of one of two ranks, whose collectives end together."""
    b = TraceBuilder(H100)
    b.metadata("distributedInfo", {"backend": "nccl", "rank": number, "world_size": 2})
    for _ in range(4):
        layers(b, compute_ms)
        reduced(b, reduce_ms)
    layers(b, 1)
    return b


def test_a_wait_for_another_rank_is_no_communication_that_is_not_hidden(
    say: Say, tmp_path: Path
) -> None:
    folder = tmp_path / "ranks"
    folder.mkdir()
    a_rank(0, 4, 10).save(folder / "rank0.json")
    a_rank(1, 12, 2).save(folder / "rank1.json")
    wanted = {0: 4 * 10.0, 1: 4 * 2.0}
    with replaced_rules() as known:
        known[exposed_communication.code] = exposed_communication
        for rank, cost_ms in wanted.items():
            (alone,) = linted(say, folder, "--rank", str(rank))["findings"]
            assert alone["cost_ms"] == pytest.approx(cost_ms, rel=0.05)
        both = linted(say, folder)["findings"]
    assert {0, 1} == {row["rank"] for row in both}
    assert all(row["cost_ms"] == pytest.approx(4 * 2, rel=0.05) for row in both)


def test_several_ranks_are_distinguished(say: Say, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    for rank in (0, 1):
        builder_of(H100 if rank else None, rank).save(folder / f"rank{rank}.json")
    document = linted(say, folder)
    assert {0, 1} == {row["rank"] for row in document["findings"]}
    assert "rank 0: no accelerator" in document["unchecked"]["on-device"]
    out = say("lint", folder)[1]
    assert re.search(r"rank 0  ×2 +6 us", out)
    assert "slow-add: 6 matches in 4 places, up to 9 us to gain on a rank\n" in out
    assert re.search(r"rank 1  ×2 +\d", say("lint", folder)[1])
    one = linted(say, folder, "--rank", "1")
    assert "rank" not in one["findings"][0]
    rows = list(csv.DictReader(io.StringIO(say("lint", folder, "--format", "csv")[1])))
    assert ["0", "1"] == sorted({row["rank"] for row in rows})


def test_every_format_has_all_findings(say: Say, trace: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(say("lint", trace, "--format", "csv")[1])))
    table = say("lint", trace, "--format", "markdown")[1]
    assert 4 == len(rows) == sum(line.startswith("| ") for line in table.splitlines()) - 1
    assert "not checked: on-device" in table


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_table_fits_the_terminal(
    say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    b = TraceBuilder()
    b.annotation("an annotation of the user")
    frame = b.python("a/very/long/way/to/the/model/of/the/user/model.py(12): forward")
    with frame, b.module("nn.Module: AVeryLongNameOfAModule_0"), b.module("nn.Module: Another_3"):
        b.op("aten::add")
        b.op("aten::add")
    trace = b.save(tmp_path / "x.json")
    monkeypatch.setenv("COLUMNS", str(width))
    _, out, _ = say("lint", trace)
    body = out.partition("\n\n")[2]
    assert max(map(len, body.splitlines())) <= width, out
    assert "model.py:12" in body
    assert body.count("fix: add less") == body.count("an addition") == 1


def test_names_cannot_move_the_cursor(say: Say, tmp_path: Path) -> None:
    b = TraceBuilder()
    with b.annotation("\x1b[31mred\n\u202eback"):
        b.op("aten::add")
        b.op("aten::add")
    _, out, _ = say("lint", b.save(tmp_path / "x.json"))
    assert not {"\x1b", "\u202e"} & set(out)


# -------------------------------------------------------------------- from Python, and the rules


def test_findings_from_python(trace: Path) -> None:
    stored = Trace.load(trace)
    assert ["slow-add", "slow-add"] == [f.rule for f in stored.findings(ignore="large-copy")]
    assert ["large-copy"] * 2 == [f.rule for f in stored.findings(thresholds="slow-add.times=9")]
    assert {"on-device"} == set(stored.lint(ignore=["large-copy"]).unchecked)
    with pytest.raises(SettingsError):
        stored.findings(ignore="nothing")


def test_rules_are_listed_with_what_they_need(say: Say) -> None:
    status, out, _ = say("rules")
    assert 0 == status
    assert "slow-add    Many additions, the threshold is their number." in out
    assert "needs device, shapes" in out
    assert "times=2" in out
    document = json.loads(say("rules", "--format", "json")[1])
    assert "torchprof-rules/1" == document["schema"]
    first = document["rows"][0]
    assert {"name": "times", "default": 2, "unit": "1", "why": "one is fine"} in first["thresholds"]
    for form in ("csv", "markdown"):
        assert "size=4 KiB" in say("rules", "--format", form)[1]


def test_the_page_of_a_rule_is_printed(say: Say) -> None:
    status, out, _ = say("rules", "large-copy")
    assert (0, True) == (status, out.startswith("# large-copy\n"))
    assert "| `size` | 4 KiB | small |" in out
    assert '--torchprof-thresholds="large-copy.size=4 KiB"' in out
    assert (
        out
        in "\n" + json.loads(say("rules", "large-copy", "--format", "json")[1])["rows"][0]["text"]
    )
    status, out, err = say("rules", "large-cop")
    assert (2, "", True) == (status, out, "Did you mean large-copy?" in err)


# -------------------------------------------------------------------- rendering


def row(**more: Any) -> dict[str, Any]:
    known = {"rule": "r", "count": 1, "message": "m", "location": "a.py:1", "fix": "f"}
    return {
        **known,
        "cost_ms": 1.0,
        "bytes": None,
        "path": "f() > aten::mm",
        "module": None,
        "modules": None,
        **more,
    }


def test_a_message_shared_by_all_places_is_printed_once() -> None:
    text = findings([row(), row(location="b.py:2")], 80)
    assert 1 == text.count("\n  m\n")
    text = findings([row(), row(message="another")], 80)
    assert "another" in text


def test_a_place_without_cost_or_location_is_unknown() -> None:
    assert "×1  –  –" in findings([row(cost_ms=None, location=None, path=None)], 80)
    assert "×1  0 ms  –" in findings([row(cost_ms=0.0, location=None, path=None)], 80)


def test_a_place_says_how_many_modules_run_it() -> None:
    assert "a.py:1  f() > aten::mm  in net.0\n" in findings([row(module="net.0", modules=1)], 80)
    text = findings([row(module="net.0", modules=14)], 80)
    assert "a.py:1  f() > aten::mm  in net.0 and 13 more modules\n" in text
    assert "in net.0 and 1 more module\n" in findings([row(module="net.0", modules=2)], 80)


def test_gaps_are_grouped_by_reason() -> None:
    why = {"a": "no device", "b": "no shapes", "c": "no device"}
    assert ["not checked: a, c (no device); b (no shapes)"] == gaps("not checked", why)
    assert [] == gaps("not checked", {})


def test_the_documented_output_has_the_form_of_the_real_one(say: Say, trace: Path) -> None:
    """`tools/docs.py --check` compares the text itself."""
    (shown,) = re.findall(
        r"generated: lint -->\n```text\n(.*?)```", DOCS.read_text("utf-8"), re.DOTALL
    )
    for printed in (shown, say("lint", trace)[1]):
        assert re.search(r"^[a-z0-9-]+: \d+ matches in \d+ places?, ", printed, re.MULTILINE)
        assert re.search(r"^  fix: ", printed, re.MULTILINE)
        assert re.search(r"^torchprof rules [a-z0-9-]+ explains it", printed, re.MULTILINE)
