"""--torchprof-seed-imports: what test files draw while they are imported."""

from __future__ import annotations

import re
import textwrap
from typing import Any

import pytest
from support.sessions import run

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
THOROUGH = pytest.mark.thorough
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
@pytest.mark.parametrize(
    "scope", ["module", *(pytest.param(one, marks=THOROUGH) for one in ("class", "session"))]
)
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


@pytest.mark.thorough
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
