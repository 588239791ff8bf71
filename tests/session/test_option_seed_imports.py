"""--torchprof-seed-imports: what test files draw while they are imported."""

from __future__ import annotations

import random
import re
from typing import Any

import numpy as np
import pytest
from support.sessions import accept, run

from pytest_torchprof.session.importing import drawn_between, generators

#: Draws a number of calls while it is imported.
DRAWS = """
    import torch
    TIMES = int(torch.randint(1, 10**3, ()))
    def test_it():
        for _ in range(TIMES): torch.ones(2) + 1
"""
NAMED = "draws random numbers while imported, so its tests may differ in another process: "


def counts(pytester: pytest.Pytester, *args: str, processes: int = 2) -> set[Any]:
    """The number of operators in several processes."""
    return {
        run(pytester, "--torchprof", *args, subprocess=True).metric("ops", "test_it")["value"]
        for _ in range(processes)
    }


@pytest.mark.thorough
def test_a_file_draws_the_same_in_each_process_only_if_asked(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=DRAWS)
    assert len(counts(pytester, processes=3)) > 1
    seeded = counts(pytester, "--torchprof-seed-imports")
    assert len(seeded) == 1
    other = ("--torchprof-seed-imports", "--torchprof-seed=1")
    assert seeded != counts(pytester, *other, processes=1)
    pytester.makeini("[pytest]\ntorchprof_seed_imports = true\n")
    assert seeded == counts(pytester, processes=1)
    assert len(counts(pytester, "--torchprof-seed=keep", processes=3)) > 1


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["one process", "xdist"])
def test_accepting_names_the_files_that_draw(
    workers: tuple[str, ...], pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(
        test_draws=DRAWS,
        test_seeds="import torch\ntorch.manual_seed(0)\nX = torch.rand(3)\ndef test_it(): X + X",
        test_draws_in_it="import torch\ndef test_it(): torch.rand(3)",
    )
    args = ("-p", "xdist", *workers) if workers else ()
    out = accept(pytester, *args).out
    assert NAMED + "test_draws.py (torch)\n  seed them there, or use" in out
    assert NAMED not in run(pytester, "--torchprof", *args).out
    assert NAMED not in accept(pytester, *args, "--torchprof-seed-imports").out


def test_later_files_and_tests_draw_as_without_us(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        "import random, numpy, torch\nrandom.seed(5), numpy.random.seed(5), torch.manual_seed(5)"
    )
    first = """
        import random, numpy, torch
        DRAWN = random.random(), numpy.random.rand(), torch.rand(())
        def test_first(): pass
    """
    second = """
        import random, numpy, torch
        DRAWN = random.random(), numpy.random.rand(), float(torch.rand(()))
        def test_second(): print("drawn", DRAWN)
    """
    pytester.makepyfile(test_1=first, test_2=second)
    drawn = [
        re.findall("drawn .*", run(pytester, "-s", *args, subprocess=True).out)[0]
        for args in ([], ["--torchprof"])
    ]
    assert drawn[0] == drawn[1]
    # With seeds, each file has its own, and none sees what another one drew.
    assert drawn[0] not in run(pytester, "-s", "--torchprof", "--torchprof-seed-imports").out


@pytest.mark.parametrize("args", [(), ("--torchprof-seed-imports",)], ids=["named", "seeded"])
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


def test_off_it_is_no_error(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=DRAWS)
    assert run(pytester, "--torchprof-seed-imports").ret == 0


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
