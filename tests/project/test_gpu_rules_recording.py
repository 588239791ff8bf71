"""Which traces of examples that ran on a GPU are kept."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from labelled import kept_traces, on_device
from labelled.attention_cuda import Heads
from labelled.case import Case
from labelled.corpus import asked

from pytest_torchprof.trace.read import read_trace

if TYPE_CHECKING:
    from pathlib import Path


def filled_on_the_host() -> Heads:
    """A tensor that is filled on the host, in a trace that names a folder."""
    from labelled.copies import filled, up

    b = Heads()
    filled(b, "zeros", [64, 64])
    up(b, [64, 64])
    b.metadata("where", "/home/ann/run.py")
    return b


def ran(matches: int, folder: Path) -> on_device.Ran:
    path = filled_on_the_host().save(folder / "raw.json")
    answer = asked(Case("extra-cuda-copy", matches, filled_on_the_host), read_trace(path))
    return on_device.Ran(answer, path=path)


@pytest.mark.parametrize(("matches", "kept"), [(1, True), (-1, True), (2, False), (0, False)])
def test_an_example_is_kept_if_its_stored_trace_says_what_its_label_does(
    matches: int, kept: bool, tmp_path: Path
) -> None:
    one = ran(matches, tmp_path)
    row = kept_traces.keep(one.answer.case, one, tmp_path / "kept")
    assert kept == (row is not None)
    if row is not None:
        assert (row["name"], row["positive"]) == ("filled_on_the_host", True)
        assert row["counts"]["extra-cuda-copy"] == 1
        stored = read_trace(tmp_path / "kept" / "filled_on_the_host.json.gz")
        assert stored.metadata["where"] == "run.py"


def test_an_example_that_is_not_as_labelled_is_not_kept(tmp_path: Path) -> None:
    one = ran(1, tmp_path)
    one.problems.append("extra-cuda-copy matches 0 times, not 1")
    assert kept_traces.keep(one.answer.case, one, tmp_path / "kept") is None


def test_one_trace_of_each_rule_and_kind_stays_that_with_the_fewest_other_matches(
    tmp_path: Path,
) -> None:
    def row(name: str, size: int, *also: str, positive: bool = True) -> dict[str, Any]:
        (tmp_path / f"{name}.json.gz").write_bytes(b"")
        counts = dict.fromkeys(("small-grid", *also), 1) if positive else {}
        return {
            "name": name,
            "rule": "small-grid",
            "positive": positive,
            "counts": counts,
            "packed_bytes": size,
        }

    rows = [row("a", 1, "host-sync"), row("b", 3), row("c", 2), row("d", 9, positive=False)]
    kept_traces.chosen(rows, tmp_path, {"device": "a GPU"})
    answers = json.loads((tmp_path / "expected.json").read_text("utf-8"))
    assert {"c", "d"} == answers["traces"].keys()
    assert {"c", "d"} == {path.name.split(".")[0] for path in tmp_path.glob("*.gz")}
    assert "host-sync: positive" in answers["missing"]
    assert not any(one.startswith("small-grid") for one in answers["missing"])
