"""--torchprof-seed-imports: what test files draw while they are imported."""

from __future__ import annotations

import random
import re
import sys
import textwrap
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.sessions import accept, run

from pytest_torchprof.capture.state import OutsideDraws, drawn_between, generators
from pytest_torchprof.session.imports import mentions_seed

#: Draws a number of calls while it is imported.
DRAWS = """
    import torch
    TIMES = int(torch.randint(1, 10**3, ()))
    def test_it():
        for _ in range(TIMES): torch.ones(2) + 1
"""
#: A helper that draws, and another one that seeds, as many suites have them.
HELPERS = {
    "inputs": "import torch\nTIMES = int(torch.randint(1, 10**3, ()))",
    "seeds": "import torch\ntorch.manual_seed(42)",
}
USES = """
    import torch
    from inputs import TIMES
    import seeds
    def test_it():
        for _ in range(TIMES): torch.ones(2) + 1
"""
#: Prints what it draws, in the file and in the first run.
PRINTS = """
    import random, numpy, torch
    DRAWN = random.random(), numpy.random.rand(), float(torch.rand(()))
    def test_it():
        print("drawn", *DRAWN, random.random(), numpy.random.rand(), float(torch.rand(())))
"""
NAMED = "draws random numbers while imported, so its tests may differ in another process: "
FIXTURE = "draws random numbers, so its tests may differ in another process: "
REMEDY = "seed them there, or use --torchprof-seed-imports"


def counts(
    pytester: pytest.Pytester, *args: str, processes: int = 2, of: str = "test_it"
) -> list[Any]:
    """The different numbers of operators in several processes."""
    ran = [run(pytester, "--torchprof", *args, subprocess=True) for _ in range(processes)]
    return sorted({one.metric("ops", of)["value"] for one in ran})


def printed(pytester: pytest.Pytester, *args: str, processes: int = 2) -> list[set[str]]:
    """The different values of each drawn number in several processes."""
    rows = [
        re.findall("drawn (.*)", run(pytester, "-s", *args, subprocess=True).out)[0].split()
        for _ in range(processes)
    ]
    return [set(column) for column in zip(*rows, strict=True)]


@pytest.mark.thorough
def test_a_file_draws_the_same_in_each_process(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=DRAWS)
    (seeded,) = counts(pytester)
    (everything,) = counts(pytester, "--torchprof-seed-imports")
    assert seeded == everything
    assert counts(pytester, "--torchprof-seed=1", processes=1) != [seeded]
    assert len(counts(pytester, "--torchprof-seed=keep", processes=3)) > 1
    assert len(counts(pytester, "--no-torchprof-seed-imports", processes=3)) > 1
    pytester.makeini("[pytest]\ntorchprof_seed_imports = false\n")
    assert len(counts(pytester, processes=3)) > 1


@pytest.mark.thorough
def test_a_helper_draws_the_same_whoever_imports_it_first(pytester: pytest.Pytester) -> None:
    """A helper that seeds at its import, as torchmetrics has it, changes nothing of that."""
    first = "import torch\nX = torch.rand(7)\nfrom inputs import TIMES\ndef test_first(): pass"
    pytester.makepyfile(**HELPERS, test_1=first, test_2=USES)
    (whole,) = counts(pytester)
    assert counts(pytester, "test_2.py") == [whole]
    with_workers = counts(pytester, "-p", "xdist", "-n", "1", processes=1)
    assert with_workers == [whole]
    assert counts(pytester, "--import-mode=importlib", "test_2.py", "-o", "pythonpath=.") == [whole]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "conftest",
    [
        # It is the first to import torch.
        "import torch\nTIMES = int(torch.randint(1, 10**3, ()))",
        "import inputs\nTIMES = inputs.TIMES",
        "import numpy\nTIMES = numpy.random.randint(1, 10**3)",
    ],
)
def test_a_conftest_draws_the_same_in_each_process(
    conftest: str, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(**HELPERS, test_it=USES.replace("inputs", "conftest"))
    pytester.makeconftest(conftest)
    pytester.makeini("[pytest]\npythonpath = .\n")
    (seeded,) = counts(pytester)
    assert seeded > 1


@pytest.mark.one_in(3)
@pytest.mark.parametrize("scope", ["module", "class", "session"])
def test_a_wider_fixture_draws_the_same_in_each_process(
    scope: str, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(
        test_it=f"""
            import pytest, torch
            @pytest.fixture(scope="{scope}")
            def times(request):
                yield int(torch.randint(1, 10**3, ()))
            def test_it(times):
                for _ in range(times): torch.ones(2) + 1
        """
    )
    (seeded,) = counts(pytester)
    assert counts(pytester, "--torchprof-seed=1", processes=1) != [seeded]


@pytest.mark.thorough
def test_arguments_that_a_file_draws_for_its_tests_are_seeded(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
            import torch
            def pytest_generate_tests(metafunc):
                metafunc.parametrize("times", [int(torch.randint(1, 10**3, ()))], ids=["it"])
            class Test:
                def test_it(self, times):
                    for _ in range(times): torch.ones(2) + 1
        """
    )
    assert len(counts(pytester, of="Test::test_it[it]")) == 1


@pytest.mark.thorough
def test_only_imports_are_seeded_and_names_and_ports_differ_still(
    pytester: pytest.Pytester,
) -> None:
    """Python's generator is often asked for a name or a port that nobody else has."""
    pytester.makepyfile(test_it=PRINTS)
    differ = [len(values) > 1 for values in printed(pytester, "--torchprof")]
    assert differ == [True, False, False, True, True, True]
    whole = printed(pytester, "--torchprof", "--torchprof-seed-imports")
    assert [len(values) > 1 for values in whole] == [False, False, False, True, True, True]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "seeds", ["conftest", "test_it", "fixture"], ids=["before", "in the file", "in a fixture"]
)
def test_what_a_user_has_seeded_is_drawn_as_without_us(
    seeds: str, pytester: pytest.Pytester
) -> None:
    seeding = "import random, numpy, torch\nrandom.seed(5), numpy.random.seed(5), "
    seeding += "torch.manual_seed(5)\n"
    test = textwrap.dedent(PRINTS)
    if seeds == "fixture":
        test += textwrap.dedent("""
            import pytest
            @pytest.fixture(scope="module", autouse=True)
            def seed():
                random.seed(5), numpy.random.seed(5), torch.manual_seed(5)
        """)
        test = test.replace("*DRAWN, ", "")
    elif seeds == "test_it":
        test = seeding + test
    else:
        pytester.makeconftest(seeding)
    pytester.makepyfile(test_it=test)
    plain = printed(pytester)
    assert all(len(values) == 1 for values in plain)
    assert plain == printed(pytester, "--torchprof", processes=1)
    whole = printed(pytester, "--torchprof", "--torchprof-seed-imports", processes=1)
    # A file that nobody has seeded for itself draws its own.
    assert (whole == plain) is (seeds != "conftest")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["one process", "xdist"])
def test_accepting_names_who_draws_in_spite_of_it(
    workers: tuple[str, ...], pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(
        helper="import random\nDRAWN = random.random()",
        test_uses="import helper\ndef test_it(): pass",
        test_seeds="import torch\ntorch.manual_seed(0)\nX = torch.rand(3)\ndef test_it(): X + X",
        test_draws_in_it="import random\ndef test_it(): random.random()",
        test_fixture="""
            import pytest, random
            def setup_module(): random.random()
            def test_it(): pass
        """,
    )
    args = ("-p", "xdist", *workers) if workers else ()
    out = accept(pytester, *args).out
    assert NAMED + "helper.py (random)\n" in out
    assert FIXTURE + f"test_fixture.py::setup_module (random)\n  {REMEDY}" in out
    assert "differ in another" not in run(pytester, "--torchprof", *args).out
    assert "differ in another" not in accept(pytester, *args, "--torchprof-seed-imports").out


@pytest.mark.one_in(3)
@pytest.mark.parametrize("how", ["torch.manual_seed", "random.seed", "numpy.random.seed"])
def test_files_that_all_start_from_the_same_seed_draw_nothing_by_chance(
    how: str, pytester: pytest.Pytester
) -> None:
    module = how.rpartition(".")[0]
    name, draw = {
        "torch": ("torch", "torch.rand({})"),
        "random": ("random", "[random.random() for _ in range({})]"),
        "numpy.random": ("numpy.random", "numpy.random.rand({})"),
    }[module]
    files = {
        f"test_{number}": f"""
            import {module}
            {how}(42)
            X = {draw.format(number)}
            def test_it(): pass
        """
        for number in (50, 700, 9000)
    }
    helper = f"import {module}\nX = {draw.format(20)}"
    pytester.makepyfile(**files, helper=helper, test_last="import helper\ndef test_it(): pass")
    assert NAMED + f"helper.py ({name})\n" in accept(pytester).out


def test_a_file_that_draws_before_it_imports_what_seeds_is_named(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(**HELPERS, test_it=USES)
    out = accept(pytester, "--no-torchprof-seed-imports").out
    assert NAMED + "inputs.py (torch)\n" in out


@pytest.mark.one_in(8)
@pytest.mark.parametrize("args", [(), ("--torchprof-seed-imports",)], ids=["default", "all"])
@pytest.mark.parametrize(
    "broken",
    ["import helper", "import missing", "1 / 0", "def broken(:"],
    ids=["in a helper", "import", "error", "syntax"],
)
def test_errors_and_warnings_of_an_import_look_as_without_us(
    args: tuple[str, ...], broken: str, pytester: pytest.Pytester
) -> None:
    warns = "import warnings\nfor level in range(1, 7): warnings.warn('here', stacklevel=level)\n"
    pytester.makepyfile(helper="1 / 0", test_1=warns + broken, test_2=warns + "def test_it(): pass")
    # Before Python 3.11, a frame of Python's own import is shown twice where all are shown.
    whole = ["--tb=native"], ["-vv"]
    for more in ([], *(whole if sys.version_info >= (3, 11) else ())):
        plain, profiled = (
            run(pytester, *more, *ours, subprocess=True).out.partition("= ERRORS =")[2]
            for ours in ([], ["--torchprof", *args])
        )
        said = plain.partition("-- Docs:")[0]
        assert "test_1.py" in said
        assert "test_2.py:2" in said
        assert said == profiled.partition("-- Docs:")[0]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("args", [(), ("--torchprof-seed-imports",)], ids=["default", "all"])
def test_a_file_that_replaces_torch_while_it_is_imported_changes_no_outcome(
    args: tuple[str, ...], pytester: pytest.Pytester
) -> None:
    replaces = """
        import sys, types
        sys.real_torch = sys.modules["torch"]
        sys.modules["torch"] = types.SimpleNamespace()
        def test_first(): pass
    """
    restores = """
        import sys
        sys.modules["torch"] = sys.real_torch
        def test_second(): pass
    """
    pytester.makepyfile(test_1=replaces, test_2=restores)
    pytester.makeconftest("import torch")
    ran = run(pytester, "--torchprof", *args, subprocess=True)
    assert {"passed": 2} == ran.outcomes, ran.out


def test_nothing_of_it_is_left_after_collection_or_without_profiling(
    pytester: pytest.Pytester,
) -> None:
    looks = """
        from importlib.machinery import SourceFileLoader
        from _pytest.assertion.rewrite import AssertionRewritingHook
        def test_it():
            assert "exec_module" not in vars(SourceFileLoader)
            assert AssertionRewritingHook.exec_module.__module__ == "_pytest.assertion.rewrite"
    """
    pytester.makepyfile(test_it=looks)
    assert run(pytester, "--torchprof", subprocess=True).outcomes == {"passed": 1}
    pytester.makeconftest(textwrap.dedent(looks) + "test_it()\n")
    assert run(pytester, "--torchprof-seed-imports", subprocess=True).outcomes == {"passed": 1}


@pytest.mark.parametrize(
    ("draw", "drawn"),
    [
        (lambda: None, []),
        (random.random, ["random"]),
        (lambda: random.seed(3), []),
        (lambda: np.random.rand(3), ["numpy.random"]),  # noqa: NPY002
        (lambda: np.random.seed(3), []),  # noqa: NPY002
        (lambda: (random.random(), np.random.randn()), ["numpy.random", "random"]),  # noqa: NPY002
        (lambda: random.Random(3).random(), []),
        (lambda: np.random.rand(50, 50), ["numpy.random"]),  # noqa: NPY002
        (lambda: [random.random() for _ in range(10**4)], ["random"]),
    ],
)
def test_drawing_is_told_from_seeding(draw: Any, drawn: list[str]) -> None:
    states = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002
        # A generator that was just seeded makes its numbers with the first one.
        random.random()
        np.random.rand()  # noqa: NPY002
        before = generators()
        draw()
        assert drawn_between(before, generators()) == drawn
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002


def test_a_block_in_which_the_generators_cannot_be_read_ends_and_its_outer_one_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draws = OutsideDraws(0, whole=True)
    before = random.getstate()
    draws.begin("outer")
    first = random.random()
    with monkeypatch.context() as broken:
        broken.setattr(random, "getstate", lambda: None)
        with pytest.raises(TypeError):
            draws.begin("inner")
        with pytest.raises(TypeError):
            draws.end()
    draws.end()
    assert random.getstate() == before
    draws.begin("outer")
    assert random.random() == first
    draws.end()


@pytest.mark.parametrize(
    ("code", "mentions"),
    [
        ("import torch\ntorch.manual_seed(1)", True),
        ("from helpers import seed_everything as fix\nfix()", True),
        ("import torch\ndef set_up(): torch.manual_seed(1)\nset_up()", True),
        ("import torch\nclass Data:\n    X = torch.manual_seed(1)", True),
        ("import torch\ndef test_it(): torch.manual_seed(1)\nX = torch.rand(1)", False),
        ("# no seed\nX = 'seed'", False),
        ("def broken(:", False),
        ("import torch\nX = '\\d'\ntorch.manual_seed(1)", True),
    ],
)
def test_what_a_file_runs_at_once_tells_whether_it_seeds(
    code: str, mentions: bool, tmp_path: Path
) -> None:
    path = tmp_path / "x.py"
    path.write_text(code)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert mentions_seed(str(path)) is mentions
    assert told == []
    assert mentions_seed(str(tmp_path / "missing.py")) is False


def test_a_fixture_seeds_if_its_own_function_does(tmp_path: Path) -> None:
    path = tmp_path / "conftest.py"
    path.write_text(
        "import torch\ntorch.manual_seed(0)\ndef a(): return torch.rand(1)\n"
        "def b(): torch.manual_seed(1)\n"
    )
    assert mentions_seed(f"{path}::a") is False
    assert mentions_seed(f"{path}::b") is True
