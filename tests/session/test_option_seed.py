"""--torchprof-seed: a test's runs after its first draw the same in every process."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from support.sessions import accept, read_baseline, run

#: Writes what each run draws to a file.
DRAWS = """
    import random
    from pathlib import Path
    import numpy, torch

    def draw():
        return random.random(), float(numpy.random.rand()), float(torch.rand(()))

    def test_draws():
        with Path("drawn").open("a") as file:
            print(*draw(), file=file)
"""

#: A loop of drawn length.
LOOPS = """
    import random
    import torch

    def test_loops():
        for _ in range(random.randrange(10**{digits})): torch.ones(2) + 1
"""


def drawn(pytester: pytest.Pytester, *args: str, seed: int) -> list[str]:
    """What each run of the test draws, in a session with generators in some state."""
    file = Path(pytester.path / "drawn")
    file.unlink(missing_ok=True)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the global generator
    torch.manual_seed(seed)
    ran = run(pytester, "--torchprof", *args)
    assert {"test_draws": "new"} == ran.statuses
    return file.read_text("utf-8").splitlines()


def test_runs_after_the_first_draw_the_same_in_each_process(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=DRAWS)
    one, other = (drawn(pytester, seed=seed) for seed in (1, 2))
    assert 3 == len(one)
    assert one[0] != other[0]
    assert one[1:] == other[1:]
    assert 1 == len(set(one[1:]))
    assert not set(one[0].split()) & set(one[1].split())


@pytest.mark.thorough
def test_the_seed_decides_what_is_drawn(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=DRAWS)
    pytester.makeini("[pytest]\ntorchprof_seed = 7")
    of_ini = drawn(pytester, seed=1)
    assert of_ini[0] == drawn(pytester, "--torchprof-seed=0", seed=1)[0]
    assert of_ini[1:] != drawn(pytester, "--torchprof-seed=0", seed=1)[1:]
    assert of_ini == drawn(pytester, "--torchprof-seed=7", seed=1)


def test_keep_leaves_all_runs_alike(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=DRAWS)
    assert 1 == len(set(drawn(pytester, "--torchprof-seed=keep", seed=1)))


@pytest.mark.thorough
def test_the_only_run_is_not_seeded(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=DRAWS)
    once = ("--torchprof-warmup=0", "--torchprof-rounds=0")
    assert drawn(pytester, "--torchprof-seed=keep", seed=1)[:1] == drawn(pytester, *once, seed=1)


@pytest.mark.parametrize(
    ("args", "shown"),
    [
        ((), "1 profiled"),
        (("--torchprof-seed=5",), "1 profiled; seed 5"),
        (("--torchprof-seed=keep",), "1 profiled; not seeded"),
        (("--torchprof-warmup=0", "--torchprof-rounds=0"), "1 profiled; not seeded"),
    ],
)
@pytest.mark.one_in(2)
def test_the_header_names_a_seed_that_is_not_the_usual_one(
    pytester: pytest.Pytester, args: tuple[str, ...], shown: str
) -> None:
    pytester.makepyfile(test_it="def test_it(): pass")
    lines = run(pytester, "--torchprof", *args).out.splitlines()
    assert next(line for line in lines if line.startswith("torchprof: ")).endswith(shown)


@pytest.mark.parametrize("text", ["-1", "x", "", str(2**63)])
@pytest.mark.one_in(2)
def test_what_is_no_seed_is_a_usage_error(pytester: pytest.Pytester, text: str) -> None:
    message = run(pytester, "--torchprof", f"--torchprof-seed={text}").usage_error()
    expected = f"--torchprof-seed: {text!r} is not a seed, a whole number from 0 on, or 'keep'"
    assert expected in message


def test_a_plugin_that_seeds_at_random_gets_our_seed(pytester: pytest.Pytester) -> None:
    """As pytest-randomly does, before each phase of a test."""
    pytester.makepyfile(test_it=DRAWS)
    pytester.makeconftest("""
        import random

        def pytest_addoption(parser):
            parser.addoption("--randomly-seed", type=int)

        def reseed(item):
            random.seed(item.config.option.randomly_seed)

        pytest_runtest_setup = pytest_runtest_call = reseed

        def pytest_runtest_teardown(item):
            reseed(item)

        def pytest_sessionfinish(session):
            print("at the end:", session.config.option.randomly_seed)
    """)
    one, other = (drawn(pytester, f"--randomly-seed={seed}", seed=1) for seed in (11, 22))
    assert one[0] != other[0]
    assert one[1:] == other[1:]


@pytest.mark.thorough
def test_a_baseline_accepted_with_a_seed_is_compared_with_that_alone(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_it=LOOPS.format(digits=3))
    accept(pytester)
    (entry,) = read_baseline(pytester)["tests"]["test_loops"].values()
    assert 0 == entry["seed"]
    again = run(pytester, "--torchprof")
    assert {"test_loops": "ok"} == again.statuses
    assert "1 test profiled in 3 runs" in again.out


@pytest.mark.thorough
def test_workers_and_another_order_draw_the_same(pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    pytester.makepyfile(test_it=LOOPS.format(digits=2), test_that=LOOPS.format(digits=3))
    accept(pytester, "--no-torchprof-check-stable")
    for args in ((), ("-n2",), ("test_that.py", "test_it.py")):
        ran = run(pytester, "--torchprof", *args, needs=["xdist"])
        assert [("test_loops", "ok")] == list(ran.statuses.items()), ran.out


@pytest.mark.thorough
def test_arguments_of_hypothesis_are_the_same(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        import torch
        from hypothesis import given, settings, strategies as st

        @settings(max_examples=20, database=None)
        @given(st.lists(st.integers(0, 5), max_size=9))
        def test_it(sizes):
            for _ in sizes: torch.ones(2) + 1
        """
    )
    accept(pytester, "--no-torchprof-check-stable", needs=["hypothesispytest"])
    for _ in range(3):
        ran = run(pytester, "--torchprof", needs=["hypothesispytest"])
        assert {"test_it": "ok"} == ran.statuses, ran.out


@pytest.mark.thorough
def test_a_generator_of_the_tests_own_is_left_alone(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        import torch
        OWN, SEEN = torch.Generator().manual_seed(1), []

        def test_it():
            SEEN.append(float(torch.rand((), generator=OWN)))

        def test_later():
            other = torch.Generator().manual_seed(1)
            assert SEEN == [float(torch.rand((), generator=other)) for _ in SEEN]
        """
    )
    assert {"passed": 2} == run(pytester, "--torchprof").outcomes
