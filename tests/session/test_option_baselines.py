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
