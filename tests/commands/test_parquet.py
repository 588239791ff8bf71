"""`--format parquet -o FILE`."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.fleets import save_ranks

if TYPE_CHECKING:
    from support.command_line import Say


@pytest.fixture(autouse=True)
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_ranks(Path("job"), 2)


def table_of(path: str) -> Any:
    return pytest.importorskip("pyarrow.parquet").read_table(path)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("command", "merge"),
    [(name, merge) for name in ("ops", "kernels", "idle") for merge in (False, True)],
)
def test_parquet_has_the_rows_of_json(say: Say, command: str, merge: bool) -> None:
    pytest.importorskip("pyarrow")
    words = (command, "job", *["--merge"] * merge)
    assert (0, "", "") == say(*words, "--format", "parquet", "-o", "out.parquet")
    table = table_of("out.parquet")
    rows = json.loads(say(*words, "--format", "json")[1])["rows"]
    found = table.to_pylist()
    assert [[row.get(f) for row in rows] for f in ("calls", "time_ms", "name", "share")] == [
        [row.get(f) for row in found] for f in ("calls", "time_ms", "name", "share")
    ]
    assert {None} == {row["reason"] for row in found}
    if not merge:
        assert {(row["trace"], row["rank"]) for row in found} <= {
            ("job/rank0.json.gz", 0),
            ("job/rank1.json.gz", 1),
        }
    facts = json.loads(table.schema.metadata[b"torchprof"])
    assert f"torchprof-{command}/1" == facts["schema"]
    assert ["job/rank0.json.gz", "job/rank1.json.gz"] == facts["traces"]


@pytest.mark.thorough
@pytest.mark.parametrize("command", ["summary", "lint", "memory", "ops", "kernels"])
def test_a_column_has_the_same_type_in_every_file(say: Say, command: str) -> None:
    pytest.importorskip("pyarrow")
    assert 0 == say(command, "job", "--format", "parquet", "-o", "a.parquet")[0]
    Path("empty.json").write_text('{"traceEvents": [], "schemaVersion": 1}')
    assert 0 == say(command, "empty.json", "--format", "parquet", "-o", "b.parquet")[0]
    one, other = (table_of(f"{name}.parquet").schema for name in "ab")
    assert one.names == other.names
    assert {field.name: field.type for field in one} == {f.name: f.type for f in other}


@pytest.mark.thorough
def test_a_file_that_was_not_read_is_a_row(say: Say) -> None:
    pytest.importorskip("pyarrow")
    Path("bad.json").write_text("no")
    words = ("ops", "job", "bad.json", "--jobs", "1", "--format", "parquet", "-o", "out.parquet")
    assert 2 == say(*words)[0]
    last = table_of("out.parquet").to_pylist()[-1]
    assert ("bad.json", None) == (last["trace"], last["name"])
    assert last["reason"].startswith("bad.json: not a Chrome trace")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("job/rank0.json.gz", "it exists and is not a Parquet file"),
        ("notes.md", "notes.md: not replaced: it exists and is not a Parquet file"),
        ("job", "job: is a folder"),
    ],
)
def test_another_file_is_never_replaced(say: Say, target: str, message: str) -> None:
    pytest.importorskip("pyarrow")
    Path("notes.md").write_text("mine")
    before = Path("job/rank0.json.gz").read_bytes()
    status, out, err = say("ops", "job", "--format", "parquet", "-o", target)
    assert (2, "", 1) == (status, out, err.count("\n"))
    assert message in err
    assert ("mine", before) == (
        Path("notes.md").read_text(),
        Path("job/rank0.json.gz").read_bytes(),
    )


def test_without_pyarrow_it_is_one_line(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def missing(name: str, *rest: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(f"No module named {name!r}")
        return original(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    status, out, err = say("ops", "job", "--format", "parquet", "-o", "x.parquet")
    assert (2, "", 1) == (status, out, err.count("\n"))
    assert "pip install 'pytest-torchprof[parquet]'" in err
