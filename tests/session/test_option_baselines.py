"""--torchprof-baselines: where accepted numbers lie."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.sessions import ADD, accept, run

from pytest_torchprof.baseline.store import path_for


def files(pytester: pytest.Pytester) -> set[str]:
    """Every baseline file, as a path below the session's folder."""
    return {
        path.relative_to(pytester.path).as_posix()
        for path in pytester.path.rglob("*.json")
        if path.name != "report.json"
    }


def tree(pytester: pytest.Pytester) -> None:
    """Two test files, one of them in a folder."""
    pytester.makepyfile(test_it=ADD)
    folder = pytester.mkpydir("deep")
    (folder / "test_below.py").write_text("def test_nothing(): pass\n", "utf-8")


@pytest.mark.thorough
@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("ini", "args", "expected"),
    [
        (None, (), {"__torchprof__/test_it.json", "deep/__torchprof__/test_below.json"}),
        (None, ("perf",), {"perf/test_it.json", "deep/perf/test_below.json"}),
        (None, ("a/b",), {"a/b/test_it.json", "deep/a/b/test_below.json"}),
        ("mine", (), {"mine/test_it.json", "deep/mine/test_below.json"}),
        ("mine", ("perf",), {"perf/test_it.json", "deep/perf/test_below.json"}),
    ],
)
def test_a_folder_with_this_name_is_beside_each_test_file(
    pytester: pytest.Pytester, ini: str | None, args: tuple[str, ...], expected: set[str]
) -> None:
    tree(pytester)
    if ini is not None:
        pytester.makeini(f"[pytest]\ntorchprof_baselines = {ini}")
    given = [f"--torchprof-baselines={name}" for name in args]
    accept(pytester, *given)
    assert expected == files(pytester)
    assert {"ok"} == set(run(pytester, "--torchprof", *given).statuses.values())


@pytest.mark.thorough
@pytest.mark.parametrize("where", ["command line", "ini"])
def test_an_absolute_path_holds_all_mirrored(pytester: pytest.Pytester, where: str) -> None:
    tree(pytester)
    store = pytester.path / "store"
    given = [f"--torchprof-baselines={store}"]
    if where == "ini":
        pytester.makeini(f"[pytest]\ntorchprof_baselines = {store}")
        given = []
    else:
        pytester.makeini("[pytest]")
    accept(pytester, *given)
    assert {"store/test_it.json", "store/deep/test_below.json"} == files(pytester)
    assert {"ok"} == set(run(pytester, "--torchprof", *given).statuses.values())


def test_another_folder_has_other_baselines(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=ADD)
    accept(pytester)
    ran = run(pytester, "--torchprof", "--torchprof-baselines=perf")
    assert {"test_add": "new"} == ran.statuses


def a_file(pytester: pytest.Pytester, option: str, where: str, name: str, *args: str) -> str:
    """The usage error for this name of the folder."""
    given = [f"--torchprof-baselines={name}"] if where == "command line" else []
    pytester.makeini("[pytest]" + ("" if given else f"\ntorchprof_baselines = {name}"))
    error = run(pytester, option, *given, *args).usage_error()
    source = "--torchprof-baselines" if given else "ini option torchprof_baselines"
    assert error.startswith(f"ERROR: {source}: ")
    assert 1 == error.count("ERROR: ")
    return error


@pytest.mark.one_in(3)
@pytest.mark.parametrize("option", ["--torchprof", "--accept"])
@pytest.mark.parametrize("where", ["command line", "ini"])
@pytest.mark.parametrize("absolute", [True, False])
def test_a_test_file_as_the_folder_is_a_usage_error(
    pytester: pytest.Pytester, option: str, where: str, absolute: bool
) -> None:
    file = pytester.makepyfile(test_it=ADD)
    error = a_file(pytester, option, where, str(file) if absolute else "test_it.py")
    told = f"{file} cannot be a folder: it exists and is a file; name another folder"
    assert error.endswith(told)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("where", ["command line", "ini"])
@pytest.mark.parametrize("name", ["perf", "perf/deep", "gone"])
def test_a_file_beside_tests_in_a_deeper_folder_is_a_usage_error(
    pytester: pytest.Pytester, where: str, name: str
) -> None:
    tree(pytester)
    (pytester.path / "deep" / "perf").touch()
    (pytester.path / "deep" / "gone").symlink_to("nowhere")
    error = a_file(pytester, "--torchprof", where, name)
    assert f"{pytester.path / 'deep' / name} cannot be a folder: " in error
    assert "exists and is a file" in error


@pytest.mark.thorough
def test_a_file_beside_tests_is_an_error_of_each_test_in_workers(
    pytester: pytest.Pytester,
) -> None:
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    tree(pytester)
    (pytester.path / "deep" / "perf").touch()
    ran = run(pytester, "--torchprof", "--torchprof-baselines=perf", "-n1", needs=["xdist"])
    assert {"passed": 1, "failed": 1} == ran.outcomes
    file = pytester.path / "deep" / "perf" / "test_below.json"
    assert f"baseline {file} cannot be read: Not a directory" in ran.out


def test_a_file_of_that_name_away_from_all_tests_is_none_of_our_business(
    pytester: pytest.Pytester,
) -> None:
    tree(pytester)
    (pytester.path / "perf").touch()
    pytester.makeini("[pytest]\ntorchprof_baselines = perf")
    accept(pytester, "deep")
    assert {"deep/perf/test_below.json"} == files(pytester)


@pytest.mark.parametrize(
    ("file", "folder", "expected"),
    [
        ("/r/t/test_a.py", "__torchprof__", "/r/t/__torchprof__/test_a.json"),
        ("/r/t/test_a.py", "/b", "/b/t/test_a.json"),
        ("/r/test_a.py", "/b", "/b/test_a.json"),
        ("/r/doc/guide.rst", "__torchprof__", "/r/doc/__torchprof__/guide.rst.json"),
        ("/elsewhere/test_a.py", "/b", "/b/elsewhere/test_a.json"),
    ],
)
def test_the_path_of_a_baseline_file(file: str, folder: str, expected: str) -> None:
    assert Path(expected) == path_for(Path(file), folder, Path("/r"))
