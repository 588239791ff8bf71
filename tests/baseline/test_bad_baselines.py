"""Baseline files that cannot be read or written, names that clash, and a machine without torch."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.sessions import ADD, accept, baseline_file, doctor, read_baseline, run

from pytest_torchprof.baseline import store

TORN = '{"schema": "torchprof-baseline/2", "tests": {"test_add": {'
CONFLICT = """\
{
  "schema": "torchprof-baseline/2",
<<<<<<< HEAD
  "tests": {}
=======
  "tests": {"test_add": {}}
>>>>>>> feature
}
"""
BAD = {
    "truncated": (TORN, "is not JSON: ", "Restore it from version control, or delete it and"),
    "empty": ("", "is not JSON: ", "Restore it from version control, or delete it and accept"),
    "conflict": (CONFLICT, "is not JSON: ", "It has merge conflict markers: resolve them, or"),
    "foreign": ('{"name": "x"}', "has no schema; expected 'torchprof-baseline/2'. ", "Restore it"),
    "empty object": ("{}", "has no schema; expected 'torchprof-baseline/2'. ", "Restore it from"),
    "list": ("[1, 2]", "is a list, not a JSON object. ", "Restore it from version control"),
    "null": ("null", "is null, not a JSON object. ", "Restore it from version control"),
    "schema null": ('{"schema": null}', "has the schema null; expected 'torchprof-", "Restore it"),
    "schema list": ('{"schema": [1]}', "has the schema a list; expected 'torchprof-", "Restore it"),
    "other tool": ('{"schema": "x/1"}', "has the schema 'x/1'; expected 'torchprof-", "Restore it"),
    "newer": (
        '{"schema": "torchprof-baseline/3", "tests": {}}',
        "has the schema 'torchprof-baseline/3'; expected 'torchprof-baseline/2'. ",
        "A newer pytest-torchprof wrote it: upgrade, or delete it and accept again.",
    ),
    "no tests": ('{"schema": "torchprof-baseline/2"}', "is malformed: 'tests' must map", "Restore"),
    "bad tests": (
        '{"schema": "torchprof-baseline/2", "tests": {"test_add": {"cpu, torch 2": 7}}}',
        "is malformed: 'tests' must map test → environment → sections; metrics must be numbers. ",
        "Restore it from version control, or delete it and accept again.",
    ),
    "deep": ("[" * 99999, "is not readable JSON: it is nested too deeply", "Restore it"),
    "a test twice": (
        '{"schema": "torchprof-baseline/2", "tests": {"test_add": {}, "test_add": {}}}',
        "has 'test_add' twice, in 'tests'. ",
        "A merge can cause this: keep one of the two, or delete the file and accept again.",
    ),
    "a metric twice": (
        '{"schema": "torchprof-baseline/2", "tests": {"test_add": {"cpu": {"metrics": '  # noqa: ISC004
        '{"ops": 7, "flops": 0, "ops": 1}}}}}',
        "has 'ops' twice, in 'tests', 'test_add', 'cpu', 'metrics'. ",
        "A merge can cause this: keep one of the two, or delete the file and accept again.",
    ),
}


def put(pytester: pytest.Pytester, text: str | bytes) -> Path:
    """A test with this text as its baseline."""
    pytester.makepyfile(test_it=ADD)
    path = baseline_file(pytester)
    path.parent.mkdir()
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.one_in(6)
@pytest.mark.parametrize("case", BAD)
def test_a_damaged_or_foreign_file_fails_its_tests_with_what_where_and_what_to_do(
    pytester: pytest.Pytester, case: str
) -> None:
    text, found, mend = BAD[case]
    path = put(pytester, text)
    ran = run(pytester, "--torchprof")
    assert {"failed": 1} == ran.outcomes
    (line,) = (line for line in ran.out.splitlines() if line.startswith("torchprof: baseline "))
    assert f"torchprof: baseline {path} {found}" in line
    assert mend in line
    assert "not_profiled" == ran.statuses["test_add"]
    assert str(path) in ran.tests["test_add"]["reason"]
    assert text == path.read_text("utf-8")


@pytest.mark.one_in(5)
@pytest.mark.parametrize("case", sorted(BAD.keys() - {"conflict"}))
def test_accept_does_not_overwrite_what_it_cannot_read(
    pytester: pytest.Pytester, case: str
) -> None:
    text, found, _ = BAD[case]
    path = put(pytester, text)
    ran = run(pytester, "--accept")
    assert (1, text) == (ran.ret, path.read_text("utf-8"))
    assert f"baseline {path} {found}" in ran.out


def test_a_conflict_is_accepted_away_and_both_sides_tests_stay(pytester: pytest.Pytester) -> None:
    sides = [f"""\
  "tests": {{
    "test_add": {{"cpu, torch 0": {{"metrics": {{"ops": {ops}}}}}}},
    "test_{name}": {{"cpu, torch 0": {{"metrics": {{"ops": {ops}}}}}}}
  }}
""" for name, ops in (("ours", 1), ("theirs", 2))]  # fmt: skip
    text = CONFLICT.replace('  "tests": {}\n', sides[0])
    put(pytester, text.replace('  "tests": {"test_add": {}}\n', sides[1]))
    pytester.makepyfile(
        test_it=ADD
        + """
    def test_ours(): pass
    def test_theirs(): pass
    """
    )
    told = run(pytester, "--torchprof")
    assert ({"failed": 3}, "or accept again" in told.out) == (told.outcomes, True)
    ran = accept(pytester, "-k", "test_add")
    assert {"test_add", "test_ours", "test_theirs"} == set(read_baseline(pytester)["tests"])
    assert "test_add has two entries, as it was in conflict and did not run: the first" in ran.out
    assert "ok" == run(pytester, "--torchprof").statuses["test_add"]


def test_key_like_text_in_names_and_unknown_numbers_is_not_a_repeated_key(tmp_path: Path) -> None:
    path = tmp_path / "test_it.json"
    tests: dict[str, Any] = {f"test_a[{name}]": {} for name in ('x":y', 'x\\":', '" :')}
    data = {"schema": "torchprof-baseline/2", "tests": tests, "newer": 10**30}
    path.write_text(json.dumps(data, indent=1), "utf-8")
    found = store.read_baseline(path)
    assert found is not None
    assert tests == found.data["tests"]


def test_bytes_that_are_not_text_are_reported(pytester: pytest.Pytester) -> None:
    path = put(pytester, b"\xff\xfe\x00")
    ran = run(pytester, "--torchprof")
    assert {"failed": 1} == ran.outcomes
    assert f"torchprof: baseline {path} cannot be read: " in ran.out


def test_a_folder_in_its_place_is_reported(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=ADD)
    baseline_file(pytester).mkdir(parents=True)
    for option in ("--torchprof", "--accept"):
        ran = run(pytester, option)
        assert {"failed": 1} == ran.outcomes
        assert f"baseline {baseline_file(pytester)} cannot be read: Is a directory" in ran.out


def test_a_pipe_in_its_place_is_reported(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=ADD)
    baseline_file(pytester).parent.mkdir()
    os.mkfifo(baseline_file(pytester))
    ran = run(pytester, "--torchprof")
    assert {"failed": 1} == ran.outcomes
    shown = (
        "cannot be read: it is not a file; restore the file, or name another folder with --torchp"
    )
    assert f"baseline {baseline_file(pytester)} {shown}" in ran.out


def test_a_file_in_place_of_the_folder_is_a_usage_error(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=ADD)
    (folder := baseline_file(pytester).parent).touch()
    for option in ("--torchprof", "--accept"):
        error = run(pytester, option).usage_error()
        assert f"ERROR: --torchprof-baselines: {folder} cannot be a folder: it exists " in error


@pytest.mark.parametrize("option", ["--torchprof", "--accept"])
def test_a_bad_file_is_told_once(pytester: pytest.Pytester, option: str) -> None:
    path = put(pytester, TORN)
    pytester.makepyfile(test_it=f"{ADD}\n    def test_b(): pass\n\n    def test_c(): pass\n")
    ran = run(pytester, option)
    assert (1, {"failed": 3}) == (ran.ret, ran.outcomes)
    assert 1 == ran.out.count(f"{path} is not JSON")
    assert 1 == ran.out.count("delete it and accept again")
    again = "torchprof: its baseline cannot be used: see test_it.py::test_add"
    assert 2 == [*ran.out.splitlines()].count(again)
    assert "not profiled: baseline" not in ran.out


def test_one_bad_file_concerns_only_its_own_tests(pytester: pytest.Pytester) -> None:
    put(pytester, TORN)
    pytester.makepyfile(test_other="def test_other(): pass")
    ran = run(pytester, "--accept")
    assert {"passed": 1, "failed": 1} == ran.outcomes
    assert ["test_other"] == list(read_baseline(pytester, "test_other")["tests"])


# -------------------------------------------------------------------- that cannot be written


def refuse_access(path: Any, mode: int, **rest: Any) -> bool:
    return False


def refuse_fsync(handle: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def refuse_replace(source: Any, target: Any, **rest: Any) -> None:
    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("call", "fake", "why"),
    [
        ("os.access", refuse_access, "Permission denied"),
        ("os.fsync", refuse_fsync, "No space left on device"),
        ("os.replace", refuse_replace, "Invalid cross-device link"),
    ],
)
def test_a_failed_write_is_reported_and_the_old_file_stays(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    fake: Any,
    why: str,
) -> None:
    pytester.makepyfile(test_it=ADD)
    accept(pytester)
    doctor(pytester, ops=7)
    path = baseline_file(pytester)
    before = {file: file.read_bytes() for file in path.parent.iterdir()}
    real = getattr(os, call.removeprefix("os."))

    def only_there(first: Any, *args: Any, **rest: Any) -> Any:
        concerned = isinstance(first, int) or "__torchprof__" in str(first)
        return (fake if concerned else real)(first, *args, **rest)

    monkeypatch.setattr(call, only_there)
    ran = run(pytester, "--accept")
    monkeypatch.undo()
    assert (1, {"passed": 1}) == (ran.ret, ran.outcomes)
    (line,) = (line for line in ran.out.splitlines() if line.startswith("ERROR: baseline"))
    assert f"ERROR: baseline {path} cannot be written: {why} (nothing was changed); " in line
    assert "free the folder or the disk, or name another with --torchprof-baselines" in line
    assert before == {file: file.read_bytes() for file in path.parent.iterdir()}
    assert {path, store.detail_path(path)} == before.keys()


def test_permissions_and_links_survive(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=ADD)
    accept(pytester)
    path = baseline_file(pytester)
    real = pytester.path / "elsewhere.json"
    path.rename(real)
    real.chmod(0o640)
    path.symlink_to(real)
    doctor(pytester, ops=7)
    accept(pytester)
    assert path.is_symlink()
    assert 0o640 == real.stat().st_mode & 0o777
    (entry,) = json.loads(real.read_text("utf-8"))["tests"]["test_add"].values()
    assert 1 == entry["metrics"]["ops"]


# -------------------------------------------------------------------- names that clash


@pytest.mark.parametrize("option", ["--torchprof", "--accept"])
def test_two_tests_with_the_same_name_are_refused_with_a_message(
    pytester: pytest.Pytester, option: str
) -> None:
    pytester.makepyfile(test_it=ADD, test_other="def test_other(): pass")
    files = ("test_it.py", "test_other.py", "test_it.py")
    ran = run(pytester, option, "--keep-duplicates", *files)
    assert {"passed": 3} == ran.outcomes
    assert {"test_add": "not_profiled", "test_other": "new"} == ran.statuses
    expected = "another test has the same name, so one baseline cannot serve both"
    assert expected == ran.tests["test_add"]["reason"]
    assert not baseline_file(pytester).exists()


def test_files_of_one_name_in_different_folders_do_not_clash(pytester: pytest.Pytester) -> None:
    for folder in ("one", "two"):
        package = pytester.mkpydir(folder)
        (package / "test_it.py").write_text("def test_it(): pass\n", "utf-8")
    accept(pytester)
    for folder in ("one", "two"):
        assert (pytester.path / folder / "__torchprof__" / "test_it.json").is_file()


# -------------------------------------------------------------------- no torch


@pytest.mark.thorough
@pytest.mark.parametrize(
    "option", ["--torchprof", pytest.param("--accept", marks=pytest.mark.thorough)]
)
def test_without_torch_there_is_one_clear_usage_error(
    pytester: pytest.Pytester, option: str
) -> None:
    pytester.makepyfile(
        test_it="def test_it(): pass",
        no_torch="""
        import importlib.abc
        import sys

        class Finder(importlib.abc.MetaPathFinder):
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] == "torch":
                    raise ModuleNotFoundError("No module named 'torch'", name="torch")

        sys.meta_path.insert(0, Finder())
        """,
    )
    pytester.syspathinsert()
    message = run(pytester, "-pno_torch", option, subprocess=True).usage_error()
    spread = run(pytester, "-pno_torch", option, "-n1", subprocess=True, needs=["xdist"])
    assert "--torchprof needs torch" in spread.usage_error()
    assert "--torchprof needs torch, but importing it failed: No module named 'torch'" in message
    assert "Install torch (pip install torch), or drop --torchprof." in message


def test_without_torch_and_off_tests_run(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it="def test_it(torchprof):\n    with torchprof: pass")
    pytester.makeconftest("import sys\nsys.modules['torch'] = None")
    assert {"passed": 1} == run(pytester, subprocess=True).outcomes


def test_an_unreadable_folder_is_reported_and_holds_no_tests(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(test_it=ADD)
    inside = put(pytester, "{}").parent
    (inside / "test_inside.py").write_text("def test_inside(): pass", "utf-8")
    read, access = Path.read_bytes, os.access

    def refuse(path: Path) -> bytes:
        if path.parent == inside:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    monkeypatch.setattr("os.access", lambda path, mode: path != inside and access(path, mode))
    for option in ("--torchprof", "--accept"):
        ran = run(pytester, option)
        assert (1, {"failed": 1}) == (ran.ret, ran.outcomes)
        assert f"baseline {inside / 'test_it.json'} cannot be read: Permission denied" in ran.out


def test_an_undecodable_file_name_gets_a_baseline_trace_and_report(
    pytester: pytest.Pytester,
) -> None:
    name = os.fsdecode(b"test_\xff.py")
    try:
        (pytester.path / name).write_text("def test_it(): pass\n", "utf-8")
    except OSError as error:
        pytest.skip(f"this file system has no such names: {error}")
    options = ("--import-mode=importlib", "--torchprof-traces=traces", "--torchprof-traces-of=all")
    for expected in ("new", "ok"):
        ran = run(pytester, "--accept", *options, ".")
        assert (0, {"test_it": expected}) == (ran.ret, ran.statuses)
    report = msgspec.json.decode((pytester.path / "report.json").read_bytes())
    assert ["test_\\udcff.py::test_it"] == [test["nodeid"] for test in report["tests"]]
    assert 1 == len(list((pytester.path / "traces").iterdir()))
