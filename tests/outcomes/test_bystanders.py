"""What other tools count, and what is handed out to tests, is that of one run."""

from __future__ import annotations

import json

import pytest
from support.outcomes import same, session

#: Here, before all tests: its C tracer can be imported once in a process.
pytest.importorskip("coverage", reason="coverage.py, of which this is, is not installed")

MODULE = """
runs = []

def work():
    runs.append(1)
    if len(runs) > 1:
        return "reached by a further run only"
    return "first"

def in_a_thread():
    runs.append(2)
    if runs.count(2) > 1:
        return "reached by a further run only"
    return "first"
"""

COVERED = """
import threading
import covered

def test_it(): covered.work()
def test_in_a_thread():
    thread = threading.Thread(target=covered.in_a_thread)
    thread.start()
    thread.join()
"""

#: As pytest-cov does it, with a context for each phase of a test.
MEASURES = """
import json
import coverage
import pytest

measured = coverage.Coverage(data_file=None, include=["*/covered.py"])
measured.start()

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item): measured.switch_context(f"{item.nodeid}|setup")
@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item): measured.switch_context(f"{item.nodeid}|run")
@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item): measured.switch_context(f"{item.nodeid}|teardown")

def pytest_unconfigure(config):
    measured.stop()
    data = measured.get_data()
    found = {str(line): sorted(contexts) for file in data.measured_files()
             for line, contexts in data.contexts_by_lineno(file).items()}
    (config.rootpath / "lines.json").write_text(json.dumps(found))
"""


@pytest.mark.thorough
def test_coverage_is_that_of_one_run(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(covered=MODULE, test_it=COVERED)
    pytester.makeconftest(MEASURES)
    lines = {}
    for profiled in (False, True):
        assert 0 == session(pytester, profiled=profiled).ret
        lines[profiled] = json.loads((pytester.path / "lines.json").read_text("utf-8"))
    assert lines[False] == lines[True]
    assert {"test_it.py::test_it|run"} <= {name for names in lines[True].values() for name in names}
    reached, again, threaded = (
        str(MODULE[1:].splitlines().index(line) + 1)
        for line in (
            "    runs.append(1)",
            '        return "reached by a further run only"',
            "    runs.append(2)",
        )
    )
    assert {reached, threaded} <= lines[True].keys()
    assert again not in lines[True]


def test_the_numbers_of_temporary_folders_are_those_of_one_run(pytester: pytest.Pytester) -> None:
    source = """
        import os
        import pytest

        def test_takes_some(tmp_path_factory, tmp_path):
            print(tmp_path.name, *[tmp_path_factory.mktemp("x").name for _ in range(2)])
        def test_takes_one_more(tmp_path_factory, tmpdir_factory):
            print(tmp_path_factory.mktemp("x").name, tmpdir_factory.mktemp("y").basename)
        @pytest.fixture
        def needs_it_to_the_end(tmp_path_factory):
            folder = tmp_path_factory.mktemp("z")
            yield
            assert folder.is_dir()
        def test_has_a_folder(needs_it_to_the_end): pass
        def test_sees_all(tmp_path_factory):
            print(*sorted(os.listdir(tmp_path_factory.getbasetemp())))
    """
    seen = same(pytester, source, "-rA")
    assert {"new"} == set(seen.statuses.values())


def test_a_test_may_replace_what_coverage_uses(pytester: pytest.Pytester) -> None:
    source = """
        import coverage

        def test_it(monkeypatch):
            def current(): raise RuntimeError("replaced by the test")
            monkeypatch.setattr(coverage.Coverage, "current", current)
    """
    seen = same(pytester, source)
    assert {"new"} == set(seen.statuses.values())


@pytest.mark.thorough
def test_silencing_the_profiler_is_invisible_to_tests(pytester: pytest.Pytester) -> None:
    source = """
        import os
        import subprocess
        import sys
        print("collected with", os.environ.get("KINETO_LOG_LEVEL"))

        def test_environment(): assert "KINETO_LOG_LEVEL" not in os.environ
        def test_of_a_child():
            code = "import os; print('KINETO_LOG_LEVEL' in os.environ)"
            print(subprocess.run([sys.executable, "-c", code], capture_output=True).stdout)
        def test_variables(): print(sorted(set(os.environ) - {"PYTEST_CURRENT_TEST"}))
    """
    seen = same(pytester, source, "-rA", subprocess=True)
    assert {"passed"} == {report["outcome"] for report in seen.reports}


def test_snapshots_are_counted_once(pytester: pytest.Pytester) -> None:
    conftest = """
        import types
        import pytest

        def pytest_configure(config): config._syrupy = types.SimpleNamespace(_assertions=[])

        @pytest.fixture
        def snapshot(request): request.config._syrupy._assertions.append(request.node.name)

        @pytest.hookimpl(tryfirst=True)
        def pytest_terminal_summary(terminalreporter, config):
            terminalreporter.write_line(f"{len(config._syrupy._assertions)} snapshots passed.")
    """
    source = """
        def test_one(snapshot): pass
        def test_two(snapshot): pass
    """
    seen = same(pytester, source, conftest=conftest)
    assert "2 snapshots passed." in seen.terminal
