"""--accept: what is written, where, and what is left alone."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from support.sessions import ADD, accept, baseline_file, doctor, read_baseline, run

from pytest_torchprof.baseline.store import detail_path

TWO = """
    import torch
    X = torch.ones(4)

    def test_a(): X + X

    def test_b(): X + X
"""


def after(out: str) -> list[str]:
    """What was printed about the accept: lines between the table and the totals."""
    lines = out[out.index("= torchprof =") :].splitlines()
    end = next(i for i, line in enumerate(lines) if line.startswith("torchprof: "))
    rows = ("test ", "test_", "--", "=")
    return [line for line in lines[1:end] if line and not line.startswith(rows)]


# -------------------------------------------------------------------- files


def test_the_file_holds_schema_tests_environments_and_what_was_measured(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_it=ADD)
    ran = accept(pytester)
    assert "__torchprof__/test_it.json: 1 new test" in ran.out
    data = read_baseline(pytester)
    assert (["schema", "tests"], "torchprof-baseline/2") == (list(data), data["schema"])
    assert ["test_add"] == list(data["tests"])
    ((environment, entry),) = data["tests"]["test_add"].items()
    assert ran.report["environment"]["key"] == environment
    assert {"metrics", "zero", "findings", "times"} == entry.keys()
    values = {name: row["value"] for name, row in ran.tests["test_add"]["metrics"].items()}
    assert {"ops": 1, "peak_cpu_bytes": 16} == {
        name: entry["metrics"][name] for name in ("ops", "peak_cpu_bytes")
    }
    assert "flops" in entry["zero"]
    accepted = entry["metrics"] | dict.fromkeys(entry["zero"], 0)
    assert accepted == {name: values[name] for name in accepted}
    assert not {"wall_ms", "cpu_ms", "self_cpu_ms"} & entry["metrics"].keys()
    assert {"machine", "wall_ms", "cpu_ms"} <= entry["times"].keys()
    (detail,) = detail_path(baseline_file(pytester)).read_text("utf-8").splitlines()
    known = json.loads(detail)
    assert ("test_add", environment) == (known["test"], known["environment"])
    assert {"calls": 1, "ops": 1, "allocated_cpu_bytes": 16, "peak_cpu_bytes": 16} == {
        key: value for key, value in known["operators"]["aten::add"].items() if "leak" not in key
    }
    (row,) = known["rows"]
    assert ["test_it.py::test_add", "aten::add", "float32", 1] == row[:4]


@pytest.mark.parametrize("doctored", [{}, {"ops": 7}])
def test_a_second_accept_changes_no_byte(
    pytester: pytest.Pytester, doctored: dict[str, Any]
) -> None:
    pytester.makepyfile(test_it=TWO)
    accept(pytester)
    if doctored:
        doctor(pytester, "test_a", **doctored)
        accept(pytester)
    before = baseline_file(pytester).read_bytes()
    stamp = baseline_file(pytester).stat().st_mtime_ns
    ran = accept(pytester)
    assert (before, stamp) == (
        baseline_file(pytester).read_bytes(),
        baseline_file(pytester).stat().st_mtime_ns,
    )
    assert [] == after(ran.out)


def test_what_changed_is_printed_old_and_new(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=TWO)
    accept(pytester)
    doctor(pytester, "test_a", ops=7, allocated_cpu_bytes=2048)
    doctor(pytester, "test_b", allocated_cpu_bytes=1000)
    ran = accept(pytester, "--torchprof-time=off")
    assert [
        "__torchprof__/test_it.json: test_a: allocated_cpu_bytes 2 KiB → 16 B, ops 7 → 1",
        "__torchprof__/test_it.json: test_b: allocated_cpu_bytes 1,000 B → 16 B",
    ] == after(ran.out)
    assert {"test_a": "ok", "test_b": "ok"} == run(pytester, "--torchprof").statuses


def test_the_printed_change_has_enough_digits_to_distinguish_the_numbers(
    pytester: pytest.Pytester,
) -> None:
    source = "import torch\ndef test_a(): torch.ones({size}, dtype=torch.uint8)"
    pytester.makepyfile(test_it=source.format(size=2**22))
    accept(pytester)
    pytester.makepyfile(test_it=source.format(size=2**22 + 5000))
    cause, line = after(accept(pytester).out)
    assert "bytes of ones 4 MiB → 4.005 MiB at test_it.py:2" in cause
    assert "allocated_cpu_bytes 4 MiB → 4.005 MiB, " in line


def test_a_regression_is_accepted_and_the_test_passes(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=ADD)
    accept(pytester)
    doctor(pytester, ops=0)
    assert {"failed": 1} == run(pytester, "--torchprof").outcomes
    assert {"passed": 1} == accept(pytester).outcomes
    assert {"passed": 1} == run(pytester, "--torchprof").outcomes


def test_only_tests_that_passed_are_written(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        import pytest

        def test_passes(): pass
        def test_fails(): assert 0
        def test_skips(): pytest.skip("not today")

        @pytest.mark.xfail
        def test_xfails(): assert 0

        @pytest.mark.xfail(strict=True)
        def test_strict(): pass

        @pytest.fixture
        def broken(): raise ValueError
        def test_setup(broken): pass

        @pytest.fixture
        def fragile():
            yield
            raise ValueError
        def test_teardown(fragile): pass

        @pytest.mark.torchprof(enabled=False)
        def test_never(): pass
        """
    )
    run(pytester, "--accept")
    assert ["test_passes"] == list(read_baseline(pytester)["tests"])


@pytest.mark.thorough
def test_a_test_that_now_fails_keeps_its_entry(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=TWO)
    accept(pytester)
    before = read_baseline(pytester)
    pytester.makepyfile(test_it=TWO.replace("def test_b(): X + X", "def test_b(): X + X; assert 0"))
    ran = run(pytester, "--accept")
    assert ({"passed": 1, "failed": 1}, before) == (ran.outcomes, read_baseline(pytester))


def test_other_tests_environments_and_unknown_keys_are_untouched(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=TWO)
    accept(pytester)
    data = read_baseline(pytester)
    (mine,) = data["tests"]["test_a"]
    other = {"metrics": {"ops": 99, "invented": 3}, "news": [1, {"b": 2, "a": 1}]}
    data["tests"]["test_a"]["NVIDIA H200, torch 2.13"] = other
    data["tests"]["test_a"][mine]["metrics"]["of_a_newer_version"] = 12
    data["tests"]["test_a"][mine]["section_of_a_newer_version"] = {"x": None}
    data["tests"]["test_b"][mine]["metrics"]["ops"] = 50
    data["comment"] = "written by a newer version"
    baseline_file(pytester).write_text(json.dumps(data), "utf-8")
    doctor_ops = data["tests"]["test_a"][mine]["metrics"]
    doctor_ops["ops"] = 5
    baseline_file(pytester).write_text(json.dumps(data), "utf-8")

    accept(pytester, "-k", "test_a")
    doctor_ops["ops"] = 1
    found = read_baseline(pytester)
    data["tests"]["test_a"][mine]["times"] = found["tests"]["test_a"][mine]["times"]
    assert data == found


def test_parameters_are_a_part_of_the_name(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        import pytest, torch

        class TestIt:
            @pytest.mark.parametrize("n", [1, 2], ids=["a::b/c", "[d]"])
            def test_p(self, n): torch.ones(n)
        """
    )
    accept(pytester)
    expected = ["TestIt::test_p[[d]]", "TestIt::test_p[a::b/c]"]
    assert expected == list(read_baseline(pytester)["tests"])
    assert {"ok"} == set(run(pytester, "--torchprof").statuses.values())


# -------------------------------------------------------------------- pruning


RENAMED = """
    import torch

    def test_{}(): torch.ones(4) + 1

    def test_other(): torch.ones(8) * 2

    def test_nothing_{}(): pass
"""


@pytest.mark.parametrize("args", [(), ("-n1",)])
def test_a_renamed_test_is_recognized_by_its_numbers(
    pytester: pytest.Pytester, args: tuple[str, ...]
) -> None:
    needs = ("xdist",) if args else ()
    pytester.makepyfile(test_it=RENAMED.format("old", "old"))
    accept(pytester)
    pytester.makepyfile(test_it=RENAMED.format("new", "new"))
    same = "same numbers as test_old, which is gone"
    plain = run(pytester, "--torchprof", *args, needs=needs)
    assert ("new", f"{same}: pytest --accept takes them over") == (
        plain.statuses["test_new"], plain.tests["test_new"]["reason"],
    )  # fmt: skip
    assert same in plain.out
    assert None is plain.tests["test_nothing_new"]["reason"]
    assert same not in run(pytester, "--torchprof", "test_it.py::test_new").out
    ran = run(pytester, "--accept", *args, needs=needs)
    where = "__torchprof__/test_it.json: "
    lines = [line for line in ran.out.splitlines() if line.startswith(where)]
    assert ["1 new test", f"test_new: {same}", "removed: test_nothing_old is gone"] == [
        line.removeprefix(where) for line in lines
    ]
    assert ["test_new", "test_nothing_new", "test_other"] == sorted(
        read_baseline(pytester)["tests"]
    )


@pytest.mark.thorough
@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("args", "pruned"),
    [
        ((), True),
        (("test_it.py",), True),
        (("-k", "test_a"), False),
        (("test_it.py::test_a",), False),
        (("-m", "not slow"), False),
        (("--deselect=test_it.py::test_c",), False),
    ],
)
def test_entries_of_tests_that_are_gone_are_pruned_after_a_full_run_only(
    pytester: pytest.Pytester, args: tuple[str, ...], pruned: bool
) -> None:
    pytester.makeini("[pytest]\nmarkers = slow")
    pytester.makepyfile(test_it=TWO, test_other="def test_other(): pass")
    accept(pytester)
    pytester.makepyfile(
        test_it="""
        import pytest
        def test_a(): pass

        @pytest.mark.slow
        def test_c(): pass
        """
    )
    ran = accept(pytester, *args)
    assert pruned is ("test_b" not in read_baseline(pytester)["tests"])
    message = "__torchprof__/test_it.json: removed: test_b is gone"
    assert pruned is (message in ran.out)
    assert ["test_other"] == list(read_baseline(pytester, "test_other")["tests"])


def test_tests_that_are_not_profiled_do_not_stand_in_the_way_of_pruning(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_it=TWO)
    accept(pytester)
    pytester.makepyfile(
        test_it="""
        import pytest

        @pytest.mark.torchprof(enabled=False)
        def test_a(): pass
        """
    )
    accept(pytester)
    assert ["test_a"] == list(read_baseline(pytester)["tests"])


def test_a_test_that_is_gone_here_may_exist_where_there_is_another_device(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_it=TWO)
    accept(pytester)
    data = read_baseline(pytester)
    (environment,) = data["tests"]["test_b"]
    device = environment.rpartition(", torch ")[0]
    data["tests"]["test_b"]["abacus, torch 2.13"] = {"metrics": {"ops": 3}}
    data["tests"]["test_b"][f"{device}, torch 1.0"] = {"metrics": {"ops": 3}}
    data["tests"]["test_c"] = {"abacus, torch 2.13": {"metrics": {"ops": 3}}}
    baseline_file(pytester).write_text(json.dumps(data), "utf-8")
    pytester.makepyfile(test_it="def test_a(): pass")
    ran = accept(pytester)
    tests = read_baseline(pytester)["tests"]
    only = {"abacus, torch 2.13": {"metrics": {"ops": 3}}}
    assert ({"test_a", "test_b", "test_c"}, only, only) == (
        tests.keys(), tests["test_b"], tests["test_c"],
    )  # fmt: skip
    assert "removed: test_b is gone" in ran.out
    assert "test_c is gone" not in ran.out


@pytest.mark.thorough
@pytest.mark.parametrize("args", [("--lf",), ("--pyargs", "pkg.test_below::test_a")])
def test_nothing_is_pruned_when_pytest_leaves_tests_out_silently(
    pytester: pytest.Pytester, args: tuple[str, ...]
) -> None:
    package = pytester.mkpydir("pkg")
    source = "def test_a(): {body}\ndef test_b(): pass\n"
    (package / "test_below.py").write_text(source.format(body="assert 0"), "utf-8")
    pytester.syspathinsert()
    run(pytester, "--accept", needs=["cacheprovider"])
    (package / "test_below.py").write_text(source.format(body="pass"), "utf-8")
    accept(pytester, *args, needs=["cacheprovider"])
    data = json.loads((package / "__torchprof__" / "test_below.json").read_text("utf-8"))
    assert ["test_a", "test_b"] == list(data["tests"])


def test_nothing_is_pruned_when_the_session_stops_at_a_failure(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=TWO)
    accept(pytester)
    pytester.makepyfile(test_it="def test_a(): assert 0\ndef test_c(): pass")
    run(pytester, "--accept", "-x")
    assert ["test_a", "test_b"] == list(read_baseline(pytester)["tests"])


def test_nothing_is_pruned_when_the_file_cannot_be_collected(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=TWO)
    accept(pytester)
    pytester.makepyfile(test_it="import no_such_module")
    run(pytester, "--accept", "--continue-on-collection-errors")
    assert ["test_a", "test_b"] == list(read_baseline(pytester)["tests"])


def test_without_accept_nothing_is_pruned_or_written(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=TWO)
    accept(pytester)
    before = baseline_file(pytester).read_bytes()
    pytester.makepyfile(test_it="def test_a(): pass\ndef test_c(): pass")
    run(pytester, "--torchprof")
    assert before == baseline_file(pytester).read_bytes()


@pytest.mark.thorough
@pytest.mark.parametrize("baselines", ["__torchprof__", "{path}/all"])
def test_the_baselines_of_a_test_file_that_is_gone_are_named_and_stay(
    pytester: pytest.Pytester, baselines: str
) -> None:
    folder = baselines.format(path=pytester.path)
    option = f"--torchprof-baselines={folder}"
    pytester.makepyfile(test_it=TWO, test_gone=TWO)
    accept(pytester, option)
    (pytester.path / folder / "notes.json").write_text("{}", "utf-8")
    (pytester.path / "test_gone.py").unlink()
    (pytester.path / "test_other.txt").write_text(">>> 1\n1\n", "utf-8")
    name = f"{Path(folder).name}/test_gone.json"
    message = f"{name}: its test file is gone; delete it too"
    assert [message, f"{Path(folder).name}/test_other.txt.json: 1 new test"] == sorted(
        after(accept(pytester, option, "--doctest-glob=*.txt").out)
    )
    assert (pytester.path / name).exists()
    for args in (("-k", "test_a"), ("test_it.py::test_a",)):
        assert message not in accept(pytester, option, *args).out
    assert message not in run(pytester, "--torchprof", option).out


# -------------------------------------------------------------------- inline

INLINE = '''\
import torch

X = torch.ones(2, 2)

def test_a(torchprof):
    with torchprof:
        X + X
    torchprof.assert_expected_inline("""""")  # the first

def test_b(torchprof):
    with torchprof:
        X + X
        X + X
    torchprof.assert_expected_inline(
        """\\
ops                   7
allocated_cpu_bytes   1 KiB
"""
    )

def test_c():
    """Not a word of mine is changed: \'\'\' and \\\\n."""
'''
ACCEPTED = '''\
import torch

X = torch.ones(2, 2)

def test_a(torchprof):
    with torchprof:
        X + X
    torchprof.assert_expected_inline("""\\
flops   0 FLOP
ops     1
""")  # the first

def test_b(torchprof):
    with torchprof:
        X + X
        X + X
    torchprof.assert_expected_inline(
        """\\
ops                   2
allocated_cpu_bytes   32 B
"""
    )

def test_c():
    """Not a word of mine is changed: \'\'\' and \\\\n."""
'''


def write(pytester: pytest.Pytester, text: str, file: str = "test_it.py") -> None:
    """As it stands, where makepyfile would strip and indent."""
    (pytester.path / file).write_text(text, "utf-8")


def source(pytester: pytest.Pytester, file: str = "test_it.py") -> str:
    return (pytester.path / file).read_text("utf-8")


def test_inline_expectations_are_rewritten_in_place(pytester: pytest.Pytester) -> None:
    write(pytester, INLINE)
    before = run(pytester, "--torchprof")
    assert ({"failed": 2, "passed": 1}, INLINE) == (before.outcomes, source(pytester))
    ran = accept(pytester)
    assert ACCEPTED == source(pytester)
    changed = "test_it.py:14 rewritten: ops 7 → 2, allocated_cpu_bytes 1 KiB → 32 B"
    assert ["test_it.py:8 rewritten", changed] == [
        line for line in ran.out.splitlines() if " rewritten" in line
    ]
    assert {"passed": 3} == run(pytester, "--torchprof").outcomes
    again = accept(pytester)
    assert (ACCEPTED, False) == (source(pytester), " rewritten" in again.out)


def test_an_inline_mismatch_shows_both_and_how_to_accept(pytester: pytest.Pytester) -> None:
    write(pytester, INLINE)
    out = run(pytester, "--torchprof", "-k", "test_b").out
    assert "ops 7 → 2: the inline expectation does not match" in out
    for line in ("  -ops                   7", "  +ops                   2",
                 "  -allocated_cpu_bytes   1 KiB", "  +allocated_cpu_bytes   32 B",
                 "accept: pytest --accept test_it.py::test_b"):  # fmt: skip
        assert line in out.splitlines(), line


def test_a_test_that_fails_functionally_is_not_rewritten(pytester: pytest.Pytester) -> None:
    text = INLINE.replace("  # the first", "\n    assert torchprof is None")
    write(pytester, text)
    ran = run(pytester, "--accept", "test_it.py::test_a")
    assert ({"failed": 1}, text) == (ran.outcomes, source(pytester))


PARAMETRIZED = '''\
import pytest, torch

@pytest.mark.parametrize("n", {values})
def test_it(torchprof, n):
    with torchprof:
        for _ in range(n): torch.ones(1)
    torchprof.assert_expected_inline("""""")
'''


def test_one_literal_for_different_values_is_a_clear_error(pytester: pytest.Pytester) -> None:
    text = PARAMETRIZED.format(values="[1, 2]")
    write(pytester, text)
    ran = run(pytester, "--accept")
    assert (text, pytest.ExitCode.TESTS_FAILED) == (source(pytester), ran.ret)
    (line,) = (line for line in ran.out.splitlines() if line.startswith("ERROR: "))
    assert "test_it.py:7 was measured with different values." in line
    assert "A parametrized test needs one assert_expected_inline for each distinct output." in line


def test_one_literal_for_equal_values_is_rewritten_once(pytester: pytest.Pytester) -> None:
    write(pytester, PARAMETRIZED.format(values="[2, 2]"))
    accept(pytester)
    assert 'assert_expected_inline("""\\\nflops   0 FLOP\n' in source(pytester)
    assert {"passed": 2} == run(pytester, "--torchprof").outcomes


LINKED = """\
from pathlib import Path

import torch

X = torch.ones(2, 2)

def test_it(torchprof):
    with torchprof:
        for _ in range(TIMES): X @ X
    torchprof.assert_expected_inline(\"\"\"\"\"\")
"""


def linked(pytester: pytest.Pytester, how: str, times: str) -> None:
    """A test file in a folder, and another name of it outside of the folder."""
    folder = pytester.mkpydir("sub")
    file, link = folder / "test_t.py", pytester.path / "test_link.py"
    file.write_text(LINKED.replace("TIMES", times), "utf-8")
    if how == "symbolic":
        link.symlink_to(file)
    else:
        link.hardlink_to(file)


@pytest.mark.thorough
def test_two_names_of_one_file_are_rewritten_once(pytester: pytest.Pytester) -> None:
    linked(pytester, "symbolic", "1")
    out = accept(pytester, ".").out
    assert 1 == out.count(" rewritten")
    assert "cannot be rewritten" not in out
    assert 1 == source(pytester, "sub/test_t.py").count("flops   16 FLOP\n")
    assert source(pytester, "test_link.py") == source(pytester, "sub/test_t.py")
    assert {"passed": 2} == run(pytester, "--torchprof", ".").outcomes


@pytest.mark.parametrize("how", ["symbolic", "hard"])
def test_different_values_under_two_names_of_one_file_are_one_error_and_change_nothing(
    pytester: pytest.Pytester, how: str
) -> None:
    linked(pytester, how, "len(Path(__file__).stem)")
    before = source(pytester, "test_link.py")
    ran = run(pytester, "--accept", ".")
    (line,) = (line for line in ran.out.splitlines() if line.startswith("ERROR: "))
    assert "was measured with different values under several names of one file" in line
    assert "(test_t.py and test_link.py)" in line or "(test_link.py and test_t.py)" in line
    assert 1 == ran.ret
    assert "rewritten" not in ran.out.replace("cannot be rewritten", "")
    assert before == source(pytester, "test_link.py") == source(pytester, "sub/test_t.py")


def test_a_multi_line_call_with_other_strings_around_is_rewritten_where_it_should(
    pytester: pytest.Pytester,
) -> None:
    write(
        pytester,
        '''\
import torch

def test_it(torchprof):
    """A docstring."""
    with torchprof:
        torch.ones(1)
    before = """kept"""
    (
        torchprof
        .assert_expected_inline(
            expected="""peak_cpu_bytes"""
        )
    )
    after = """kept"""
''',
    )
    accept(pytester)
    text = source(pytester)
    assert 2 == text.count('"""kept"""')
    assert '"""A docstring."""' in text
    assert 'expected="""\\\npeak_cpu_bytes   4 B\n"""' in text
    assert {"passed": 1} == run(pytester, "--torchprof").outcomes


@pytest.mark.thorough
def test_one_bad_place_does_not_stand_in_the_way_of_the_others(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = PARAMETRIZED.format(values="[1]")
    several = """
def test_variable(torchprof):
    with torchprof: pass
    expected = "ops   7\\n"
    torchprof.assert_expected_inline(expected)

@pytest.mark.parametrize("n", [1, 2])
def test_many(torchprof, n):
    with torchprof:
        for _ in range(n): torch.ones(1)
    torchprof.assert_expected_inline(\'\'\'\'\'\')
"""
    write(pytester, good + several, "test_a_bad.py")
    for file in ("test_b_locked.py", "test_c_gone.py", "test_d_good.py"):
        write(pytester, good, file)
    (pytester.path / "test_e_latin.py").write_bytes(
        f"# -*- coding: latin-1 -*-\n# ä\n{good}".encode("latin-1")
    )
    pytester.makeconftest(
        """
        from pathlib import Path
        def pytest_runtest_logfinish(nodeid):
            if nodeid.startswith("test_c_gone.py"): Path("test_c_gone.py").unlink()
        """
    )
    real = os.access
    monkeypatch.setattr("os.access", lambda p, mode: "locked" not in str(p) and real(p, mode))
    ran = run(pytester, "--accept")
    monkeypatch.undo()
    assert pytest.ExitCode.TESTS_FAILED == ran.ret
    places = ["test_a_bad.py:7", "test_d_good.py:7", "test_e_latin.py:9"]
    assert [f"{place} rewritten" for place in places] == [
        line for line in ran.out.splitlines() if line.endswith(" rewritten")
    ]
    for file in ("test_a_bad.py", "test_d_good.py"):
        assert 'assert_expected_inline("""\\\nflops   0 FLOP\n' in source(pytester, file)
    assert source(pytester, "test_a_bad.py").endswith(several)
    errors = [line for line in ran.out.splitlines() if line.startswith("ERROR: ")]
    expected = [
        "test_a_bad.py:12 has no triple-quoted string to rewrite.",
        "test_a_bad.py:18 was measured with different values.",
        "test_b_locked.py:7 cannot be rewritten: Permission denied (nothing was changed); make",
        "test_c_gone.py:7 cannot be rewritten: cannot read the file: No such file",
    ]
    assert len(expected) == len(errors)
    for words, line in zip(expected, errors, strict=True):
        assert line.startswith(f"ERROR: {words}"), errors


def test_windows_line_ends_and_encodings_survive(pytester: pytest.Pytester) -> None:
    text = ("# äöü\n" + PARAMETRIZED.format(values="[1]")).replace("\n", "\r\n")
    (pytester.path / "test_it.py").write_bytes(text.encode())
    accept(pytester)
    data = (pytester.path / "test_it.py").read_bytes()
    assert data.startswith("# äöü\r\nimport pytest, torch\r\n".encode())
    assert data.count(b"\n") == data.count(b"\r\n") == text.count("\n") + 3
    assert {"passed": 1} == run(pytester, "--torchprof").outcomes


def test_a_statement_keeps_its_line_ends_in_a_file_of_both_and_so_do_its_neighbours(
    pytester: pytest.Pytester,
) -> None:
    lines = PARAMETRIZED.format(values="[1]").splitlines()
    before, after = "\n".join(lines[:-1]), "\n# \u2028 the end\n"
    text = f"\ufeff{before}\n{lines[-1]}\r{after}"
    (pytester.path / "test_it.py").write_bytes(text.encode())
    accept(pytester)
    data = (pytester.path / "test_it.py").read_bytes().decode()
    assert data.startswith(f"\ufeff{before}\n")
    assert data.endswith(f'\r\n""")\r{after}')
    assert 4 == data.count("\r\n")


SITES = '''\
from contextlib import nullcontext
import pytest

def test_dict(torchprof):
    with torchprof: pass
    assert {
        """""": """""",
        "b": torchprof.assert_expected_inline(LITERAL),
    } == {"""""": """""", "b": None}

def test_with(torchprof):
    with torchprof: pass
    with nullcontext(""""""), nullcontext(torchprof.assert_expected_inline(LITERAL)):
        """"""

def test_docstring(torchprof):
    """"""; torchprof.__enter__(); torchprof.__exit__(None, None, None); """"""
    """"""; torchprof.assert_expected_inline(LITERAL); """"""

@pytest.mark.parametrize("text", [""""""])
def test_else(torchprof, text):
    with torchprof: pass
    if text: torchprof.assert_expected_inline("""""")
    else: torchprof.assert_expected_inline(LITERAL)
'''


@pytest.mark.thorough
def test_of_several_strings_the_one_that_was_compared_is_rewritten(
    pytester: pytest.Pytester,
) -> None:
    write(pytester, SITES.replace("LITERAL", '""""""'))
    accept(pytester)
    after = '"""\\\nflops   0 FLOP\nops     0\n"""'
    assert SITES.replace("LITERAL", after) == source(pytester)
    assert {"passed": 4} == run(pytester, "--torchprof").outcomes


def test_a_test_file_that_is_saved_while_it_runs_is_left_where_it_changed(
    pytester: pytest.Pytester,
) -> None:
    tests = """
def test_a(torchprof):
    with torchprof: pass
    torchprof.assert_expected_inline(\'\'\'\'\'\')

def test_b(torchprof):
    with torchprof: pass
    torchprof.assert_expected_inline(\'\'\'\'\'\')
"""
    for file in ("test_shifted.py", "test_renamed.py"):
        write(pytester, tests, file)
    pytester.makeconftest(
        """
        from pathlib import Path
        def pytest_runtest_logfinish(nodeid):
            for file, old, new in (
                ("test_shifted.py", "def test_a", "def test_new(): pass\\n\\ndef test_a"),
                ("test_renamed.py", "def test_a", "def test_b2"),
            ):
                path = Path(file)
                text = path.read_text("utf-8")
                if new not in text: path.write_text(text.replace(old, new), "utf-8")
        """
    )
    ran = run(pytester, "--accept")
    assert pytest.ExitCode.TESTS_FAILED == ran.ret
    assert 2 == source(pytester, "test_shifted.py").count("ops     0")
    renamed = source(pytester, "test_renamed.py")
    assert ("ops" not in renamed.partition("def test_b(")[0], 1) == (
        True,
        renamed.count("ops     0"),
    )
    (line,) = (line for line in ran.out.splitlines() if line.startswith("ERROR: "))
    assert (
        "ERROR: test_renamed.py:4 cannot be rewritten: the file was changed while the tests ran; "
        "accept again"
    ) == line


# -------------------------------------------------------------------- shared with other plugins

OTHER = """
    def pytest_addoption(parser):
        parser.{where}addoption("--accept", action="store_true", default=False, help="of another")

    def pytest_configure(config):
        print("the other one says", config.getoption("--accept"))
"""


@pytest.mark.thorough
@pytest.mark.one_in(6)
@pytest.mark.parametrize("where", ["", 'getgroup("other").', 'getgroup("torchprof").'])
@pytest.mark.parametrize("how", ["conftest", "-p", "PYTEST_PLUGINS", "pytest_plugins"])
def test_another_plugins_accept_is_shared(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, where: str, how: str
) -> None:
    pytester.makepyfile(test_it=ADD)
    pytester.syspathinsert()
    args: list[str] = []
    text = OTHER.format(where=where)
    if how == "conftest":
        pytester.makeconftest(text)
    else:
        pytester.makepyfile(other_plugin=text)
        if how == "-p":
            args = ["-pother_plugin"]
        elif how == "pytest_plugins":
            pytester.makeconftest("pytest_plugins = ['other_plugin']")
        else:
            monkeypatch.setenv("PYTEST_PLUGINS", "other_plugin")

    alone = run(pytester, "--accept", *args, "-s")
    assert ({"passed": 1}, {}) == (alone.outcomes, alone.report), alone.out + alone.err
    assert "the other one says True" in alone.out
    assert not baseline_file(pytester).exists()

    both = run(pytester, "--torchprof", "--accept", *args, "-s")
    assert {"passed": 1} == both.outcomes
    assert ["test_add"] == list(read_baseline(pytester)["tests"])

    doctor(pytester, ops=0)
    failed = run(pytester, "--torchprof", *args)
    assert {"failed": 1} == failed.outcomes
    assert "accept: pytest --torchprof --accept test_it.py::test_add" in failed.out


def test_another_plugins_accept_may_keep_its_value_elsewhere(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=ADD)
    pytester.makeconftest(
        """
        def pytest_addoption(parser):
            parser.addoption("--accept", action="store_true", dest="update_everything")
        """
    )
    assert {"passed": 1} == run(pytester, "--torchprof", "--accept").outcomes
    assert ["test_add"] == list(read_baseline(pytester)["tests"])


# -------------------------------------------------------------------- xdist


@pytest.mark.thorough
def test_under_xdist_the_controller_writes_once(pytester: pytest.Pytester) -> None:
    write(pytester, INLINE)
    many = "\n".join(f"def test_{i}(): pass" for i in range(6))
    pytester.makepyfile(test_many=many)
    pytester.makeconftest(
        """
        import os

        real = os.replace

        def pytest_configure(config):
            def replace(source, target, **rest):
                if str(target).endswith(("test_it.json", "test_many.json", "test_it.py")):
                    with open("writes", "a") as file:
                        who = "worker" if hasattr(config, "workerinput") else "controller"
                        file.write(f"{who} {os.path.basename(target)}\\n")
                return real(source, target, **rest)
            os.replace = replace
            os.rename = replace

        def pytest_unconfigure():
            os.replace = real
        """
    )
    ran = run(pytester, "--accept", "-n2", needs=["xdist"])
    assert ({"passed": 9}, 0) == (ran.outcomes, ran.ret)
    writes = sorted((pytester.path / "writes").read_text("utf-8").splitlines())
    files = ["test_it.json", "test_it.py", "test_many.json"]
    assert [f"controller {name}" for name in files] == writes
    assert ACCEPTED == source(pytester)
    assert ["test_a", "test_b", "test_c"] == list(read_baseline(pytester)["tests"])
    assert 6 == len(read_baseline(pytester, "test_many")["tests"])
    assert {"ok"} == set(run(pytester, "--torchprof").statuses.values())
