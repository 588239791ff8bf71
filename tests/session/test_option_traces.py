"""--torchprof-traces and --torchprof-traces-of: whose traces are kept, and what is in them."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import pytest
from support.sessions import NO_OTHER_PLUGINS, accept, doctor, run

from pytest_torchprof.core.values import MissingValue
from pytest_torchprof.trace.read import read_trace
from pytest_torchprof.verdict.metrics import measure_all

TESTS = """
    import pytest
    import torch

    X = torch.ones(4, 4)

    def test_ok(): X @ X

    @pytest.mark.max_ops(0)
    def test_over(): X @ X

    def test_compares(torchprof):
        with torchprof:
            X @ X
        assert torchprof.stats.ops <= 0

    def test_fails(): assert X is None
"""


def kept(pytester: pytest.Pytester) -> list[str]:
    """Names of the kept traces."""
    return sorted(path.name for path in (pytester.path / "traces").glob("*"))


OVER = ["test_it.py.test_compares.pt.trace.json.gz", "test_it.py.test_over.pt.trace.json.gz"]
OK = ["test_it.py.test_ok.pt.trace.json.gz"]


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ((), []),
        (("--torchprof-traces-of=all",), []),
        (("--torchprof-traces=traces",), OVER),
        (("--torchprof-traces=traces", "--torchprof-traces-of=failed"), OVER),
        (("--torchprof-traces=traces", "--torchprof-traces-of=all"), sorted(OVER + OK)),
    ],
)
def test_traces_of_failed_or_of_all_tests_are_kept(
    pytester: pytest.Pytester, args: tuple[str, ...], expected: list[str]
) -> None:
    pytester.makepyfile(test_it=TESTS)
    ran = run(pytester, "--torchprof", *args)
    assert expected == kept(pytester)
    traces = [test["trace"] for test in ran.tests.values() if test["trace"]]
    assert expected == sorted(Path(trace).name for trace in traces)
    assert all(Path(trace).is_absolute() for trace in traces)


@pytest.mark.thorough
def test_the_ini_names_the_folder_and_the_command_line_another(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=TESTS)
    pytester.makeini("[pytest]\ntorchprof_traces = traces")
    run(pytester, "--torchprof")
    assert OVER == kept(pytester)
    run(pytester, "--torchprof", "--torchprof-traces=deep/er")
    assert 2 == len(list((pytester.path / "deep" / "er").iterdir()))


def test_a_kept_trace_is_a_gzipped_chrome_trace_with_the_metrics_of_the_report(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_it=TESTS)
    ran = run(pytester, "--torchprof", "--torchprof-traces=traces", "--torchprof-traces-of=all")
    for name in ("test_ok", "test_over"):
        test = ran.tests[name]
        data = json.loads(gzip.decompress(Path(test["trace"]).read_bytes()))
        assert isinstance(data["traceEvents"], list)
        again = {
            name: None if isinstance(value, MissingValue) else value
            for name, value in measure_all(read_trace(Path(test["trace"]))).items()
        }
        assert {name: row["value"] for name, row in test["metrics"].items()} == again
        assert 128 == again["flops"]


def test_a_regressed_test_keeps_its_trace(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=TESTS)
    accept(pytester, "-k", "test_ok")
    doctor(pytester, "test_ok", flops=1)
    run(pytester, "--torchprof", "--torchprof-traces=traces", "-k", "test_ok")
    assert OK == kept(pytester)


def test_tests_of_like_names_keep_a_trace_each(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it=f"""
        import pytest

        @pytest.mark.parametrize("p", ["a b", "a/b", "a_b", "ä", {"x" * 300!r}, {"x" * 301!r}])
        def test_p(p): pass
        """
    )
    ran = run(pytester, "--torchprof", "--torchprof-traces=traces", "--torchprof-traces-of=all")
    assert {"passed": 6} == ran.outcomes
    assert 6 == len(kept(pytester)) == len({test["trace"] for test in ran.tests.values()})


def test_tests_whose_names_differ_in_a_separator_keep_a_trace_each(
    pytester: pytest.Pytester,
) -> None:
    nested = pytester.mkpydir("a")
    (nested / "b.py").write_text("def test_t(): pass\n", "utf-8")
    (pytester.path / "a.b.py").write_text("def test_t(): pass\n", "utf-8")
    (pytester.path / "a+b.py").write_text("def test_t(): pass\n", "utf-8")
    pytester.makepyfile(
        test_it="""
        import pytest

        class TestP:
            def test_t(self): pass

            @pytest.mark.parametrize("p", ["0.5", "0::5", "0/5", "0+5"])
            def test_p(self, p): pass
        """
    )
    files = ("a/b.py", "a.b.py", "a+b.py", "test_it.py")
    options = ("--torchprof-traces=traces", "--torchprof-traces-of=all")
    ran = run(pytester, "--torchprof", "--import-mode=importlib", *options, *files)
    assert {"passed": 8} == ran.outcomes
    names = kept(pytester)
    assert 8 == len(names) == len({test["trace"] for test in ran.report["tests"]})
    plain = (
        "a+b.py.test_t",
        "a.b.py.test_t",
        "test_it.py.TestP.test_t",
        "test_it.py.TestP.test_p[0.5]",
    )
    assert {f"{name}.pt.trace.json.gz" for name in plain} < set(names)


def test_a_folder_that_cannot_be_made_is_one_error_and_no_test_fails(
    pytester: pytest.Pytester,
) -> None:
    # Made while pytest runs, so that it is no usage error.
    made = "open('traces', 'w').close()"
    pytester.makepyfile(test_it=f"{made}\ndef test_ok(): pass\ndef test_too(): pass")
    ran = run(pytester, "--torchprof", "--torchprof-traces=traces", "--torchprof-traces-of=all")
    assert ({"passed": 2}, 1) == (ran.outcomes, ran.ret)
    (line,) = (line for line in ran.result.outlines if line.startswith("ERROR"))
    assert (
        f"ERROR: traces cannot be kept in {pytester.path / 'traces'}: File exists; "
        "name another with --torchprof-traces (in 2 tests: test_it.py::test_ok, …)"
    ) == line


@pytest.mark.parametrize("name", ["test_it.py", "test_it.py/deep", "{path}/test_it.py", "gone"])
@pytest.mark.parametrize("where", ["command line", "ini"])
def test_a_file_in_place_of_the_folder_is_a_usage_error(
    pytester: pytest.Pytester, where: str, name: str
) -> None:
    pytester.makepyfile(test_it=TESTS)
    (pytester.path / "gone").symlink_to("nowhere")
    name = name.format(path=pytester.path)
    args = [f"--torchprof-traces={name}"] if where == "command line" else []
    pytester.makeini("[pytest]" + ("" if args else f"\ntorchprof_traces = {name}"))
    source = "--torchprof-traces" if args else "ini option torchprof_traces"
    file = pytester.path / ("gone" if name == "gone" else "test_it.py")
    folder = pytester.path / name
    what = "it" if file == folder else file
    assert (
        f"ERROR: {source}: {folder} cannot be a folder: {what} exists and is a file; "
        "name another folder"
    ) == run(pytester, "--torchprof", *args).usage_error()


@pytest.mark.skipif(sys.platform != "linux", reason="a folder in which nobody can make files")
def test_a_folder_that_cannot_be_written_is_a_usage_error(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=TESTS)
    assert (
        "ERROR: --torchprof-traces: /proc/foo/bar cannot be written to: No such file or directory; "
        "name another folder"
    ) == run(pytester, "--torchprof", "--torchprof-traces=/proc/foo/bar").usage_error()


def test_an_unknown_choice_is_a_usage_error(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=TESTS)
    message = run(pytester, "--torchprof", "--torchprof-traces-of=fail").usage_error()
    assert (
        "ERROR: --torchprof-traces-of: 'fail' is not one of failed, all. Did you mean failed?"
        == message
    )


def test_whose_traces_are_kept_says_nothing_without_a_folder(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=TESTS)
    outcome = pytester.runpytest(*NO_OTHER_PLUGINS, "--torchprof", "--torchprof-traces-of=all")
    assert pytest.ExitCode.USAGE_ERROR == outcome.ret
    outcome.stderr.fnmatch_lines(["*--torchprof-traces-of does nothing without a folder; add *"])


def test_no_temporary_files_are_left(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(test_it=TESTS)
    folder = pytester.mkdir("temporary")
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    run(pytester, "--torchprof", "-p", "no:tmpdir")
    assert [] == list(folder.iterdir())


def test_a_trace_that_cannot_be_written_leaves_no_part_of_itself(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(test_it=TESTS)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfileobj", full)
    ran = run(pytester, "--torchprof", "--torchprof-traces=traces", "--torchprof-traces-of=all")
    assert "cannot be kept in" in ran.out
    assert "traces: No space left on device; name another with --torchprof-traces" in ran.out
    assert [] == kept(pytester)


@pytest.mark.parametrize(
    "option", ["--torchprof-traces=", "--torchprof-json=", "--torchprof-baselines="]
)
def test_an_empty_name_is_a_usage_error(pytester: pytest.Pytester, option: str) -> None:
    pytester.makepyfile(test_it=TESTS)
    result = pytester.runpytest_inprocess("--torchprof", option, *NO_OTHER_PLUGINS)
    assert pytest.ExitCode.USAGE_ERROR == result.ret
    result.stderr.fnmatch_lines(["*the name of the file or folder is empty*"])


@pytest.mark.parametrize("text", ["0", "-1", "many"])
def test_a_wrong_number_of_threads_is_a_usage_error(pytester: pytest.Pytester, text: str) -> None:
    pytester.makepyfile(test_it=TESTS)
    message = run(pytester, "--torchprof", f"--torchprof-threads={text}").usage_error()
    assert f"{text!r} is not a number of threads, 1 or more, or 'keep'" in message


def test_a_name_of_many_bytes_is_cut_and_stays_its_own(pytester: pytest.Pytester) -> None:
    name = "試" * 120
    pytester.makepyfile(test_it=f"def test_{name}(): pass\ndef test_{name}い(): pass")
    ran = run(pytester, "--torchprof", "--torchprof-traces=traces", "--torchprof-traces-of=all")
    assert (0, {"passed": 2}) == (ran.ret, ran.outcomes)
    names = kept(pytester)
    assert 2 == len(names) == len({test["trace"] for test in ran.tests.values()})
    assert all(len(name.encode()) <= 255 for name in names)
    assert all(name.endswith(".pt.trace.json.gz") for name in names)
