"""unittest, doctest, asynchronous tests, subtests and other plugins are as without us."""

from __future__ import annotations

import pytest
import torch
from support.outcomes import NO_THREADS, SUBTESTS, needs_subtests, same, session

from pytest_torchprof.capture.sessions import sees_threads

ONLY_RUN = ("--torchprof-warmup=0", "--torchprof-rounds=0")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("args", [(), ONLY_RUN, ("--pdb", "--pdbcls=test_it:Nobody")])
def test_unittest(pytester: pytest.Pytester, args: tuple[str, ...]) -> None:
    source = """
        import unittest
        import torch

        class Nobody:
            def __init__(self, **_): pass
            quitting = False
            def interaction(self, *_): print("looked at")
            def __getattr__(self, name): return lambda *_: None

        class TestIt(unittest.TestCase):
            @classmethod
            def setUpClass(cls):
                print("class")
                cls.addClassCleanup(print, "class cleanup")
            @classmethod
            def tearDownClass(cls): print("end of class")
            def setUp(self):
                print("setUp")
                self.values = []
                self.addCleanup(print, "cleanup")
            def tearDown(self):
                print("tearDown", self.values)
                self.assertLess(len(self.values), 2)
            def test_passes(self):
                self.values.append(torch.ones(2).sum())
            def test_fails(self): self.fail("reason")
            def test_errs(self): raise ValueError("reason")
            def test_skips(self): self.skipTest("reason")
            @unittest.skip("reason")
            def test_skipped(self): pass
            @unittest.expectedFailure
            def test_expected(self): self.fail("reason")
            @unittest.expectedFailure
            def test_unexpected(self): pass
            def test_subtests(self):
                for i in range(3):
                    with self.subTest("of", i=i): print(i)
            def test_failing_subtests(self):
                for i in range(3):
                    with self.subTest(i=i): self.assertNotEqual(1, i)
            def test_skipped_subtests(self):
                for i in range(3):
                    with self.subTest(i=i):
                        if i == 1: self.skipTest("one")
            def test_breaks_its_teardown(self): self.values += [1, 2]

        class TestAsync(unittest.IsolatedAsyncioTestCase):
            async def asyncSetUp(self): self.value = 1
            async def test_awaits(self):
                import asyncio
                await asyncio.sleep(0)
                self.assertEqual(1, self.value)
            async def test_fails(self): self.fail("reason")

        class TestBroken(unittest.TestCase):
            @classmethod
            def setUpClass(cls): raise ValueError("class")
            def test_it(self): pass

        class TestReruns(unittest.TestCase):
            runs = 0
            def setUp(self): type(self).runs += 1
            def test_once(self): self.assertEqual(1, self.runs)
            def test_subtest_once(self):
                with self.subTest(): self.assertLess(self.runs, 6)

        @unittest.skipIf(True, "class")
        class TestSkipped(unittest.TestCase):
            def test_it(self): pass
    """
    seen = same(pytester, source, "-rA", *args, ordered="--pdb" not in args)
    assert "new" == seen.statuses["TestIt::test_passes"]
    assert "new" == seen.statuses["TestIt::test_subtests"]
    assert "new" == seen.statuses["TestAsync::test_awaits"]
    assert "failed" == seen.statuses["TestIt::test_fails"]
    failed = seen.statuses["TestIt::test_failing_subtests"]
    message = "a debugger was entered" if "--pdb" in args else "has failed subtests"
    assert failed == (message if SUBTESTS else "failed")
    if args != ONLY_RUN:
        twice = seen.statuses["TestReruns::test_once"]
        assert twice.startswith("cannot be run twice: AssertionError: 1 != 2")


@pytest.mark.thorough
@needs_subtests
def test_subtests(pytester: pytest.Pytester) -> None:
    source = """
        import pytest
        runs = []

        def test_passing(subtests):
            for i in range(3):
                with subtests.test("of", i=i): print("sub", i)
        def test_failing(subtests):
            for i in range(3):
                with subtests.test(i=i): assert i != 1
        def test_skipping(subtests):
            with subtests.test(): pytest.skip("reason")
        def test_expecting(subtests):
            with subtests.test(): pytest.xfail("reason")
        def test_failing_later(subtests):
            runs.append(1)
            with subtests.test(): assert 1 == len(runs)
        def test_failing_outside(subtests):
            with subtests.test(): pass
            assert False
    """
    for args in (["-x"], ["--maxfail=2"], ["-v"]):
        seen = same(pytester, source, "-rA", *args)
    assert "new" == seen.statuses["test_passing"]
    assert "has failed subtests" == seen.statuses["test_failing"]
    again = "cannot be run twice: AssertionError: the rerun has failed subtests"
    assert again == seen.statuses["test_failing_later"]


@pytest.mark.thorough
def test_doctests(pytester: pytest.Pytester) -> None:
    source = '''
        """
        >>> value = 1
        >>> value += 1
        >>> value
        2
        >>> namespaced.append(1)
        >>> namespaced
        [1]
        >>> print("printed")
        printed
        """
        import torch

        def function():
            """
            >>> function()
            tensor([1.])
            >>> first = globals().setdefault("once", [])
            >>> first.append(1); first
            [1]
            """
            return torch.ones(1)

        def failing():
            """
            >>> 1 + 1
            3
            """

        def skipped():
            """
            >>> 1 / 0  # doctest: +SKIP
            """
    '''
    pytester.maketxtfile(text=">>> x = 3\n>>> x\n3\n>>> getfixture('tmp_path').exists()\nTrue")
    conftest = """
        import pytest

        @pytest.fixture(autouse=True)
        def names(doctest_namespace): doctest_namespace["namespaced"] = []
    """
    args = ("--doctest-modules", "--doctest-glob=*.txt", "-rA", "--ignore=session_log.py")
    seen = same(pytester, source, *args, conftest=conftest)
    assert {
        "test_it": "new",
        "test_it.function": "new",
        "test_it.failing": "failed",
        "test_it.skipped": "skipped",
        "text.txt": "new",
    } == seen.statuses


def test_items_that_are_not_python(pytester: pytest.Pytester) -> None:
    conftest = """
        import pytest

        class Item(pytest.Item):
            runs = 0
            def runtest(self):
                self.runs += 1
                print("run")
                if "fail" in self.name or ("once" in self.name and self.runs > 1):
                    raise ValueError(self.name)
            def repr_failure(self, excinfo): return f"it says {excinfo.value}"
            def reportinfo(self): return self.path, 0, self.name

        class File(pytest.File):
            def collect(self):
                for name in self.path.read_text().split(): yield Item.from_parent(self, name=name)

        def pytest_collect_file(file_path, parent):
            if file_path.suffix == ".list": return File.from_parent(parent, path=file_path)
    """
    pytester.makefile(".list", a="pass fail once")
    seen = same(pytester, "", "-rA", conftest=conftest)
    assert {
        "pass": "new",
        "fail": "failed",
        "once": "cannot be run twice: ValueError: once",
    } == seen.statuses


ASYNC = """
    import asyncio
    import contextvars
    import pytest
    import torch

    here = contextvars.ContextVar("here", default=0)

    @pytest.fixture
    async def value():
        await asyncio.sleep(0)
        yield torch.ones(2)
        print("closed")
        await asyncio.sleep(0)

    @pytest.mark.{mark}
    async def test_passes(value):
        await asyncio.sleep(0)
        assert 0 == here.get()
        here.set(1)
        value.neg()

    @pytest.mark.{mark}
    async def test_fails(value): assert value is None

    @pytest.mark.{mark}
    async def test_gathers():
        async def work(): torch.ones(2).neg()
        await asyncio.gather(work(), asyncio.create_task(work()))

    @pytest.mark.{mark}
    async def test_in_a_thread():
        await asyncio.get_running_loop().run_in_executor(None, torch.ones(2).neg)

    def test_no_coroutine(): asyncio.run(asyncio.sleep(0))
"""


@pytest.mark.thorough
@pytest.mark.one_in(2)
@pytest.mark.parametrize(("plugin", "mark"), [("asyncio", "asyncio"), ("anyio", "anyio")])
def test_coroutines(pytester: pytest.Pytester, plugin: str, mark: str) -> None:
    conftest = """
        import pytest
        @pytest.fixture
        def anyio_backend(): return "asyncio"
    """
    args = [] if plugin == "anyio" else ["-oasyncio_default_fixture_loop_scope=function"]
    if plugin == "asyncio":
        args += ["-oasyncio_mode=auto"]
    source = ASYNC.format(mark=mark)
    seen = same(pytester, source, "-rA", *args, conftest=conftest, needs=[plugin])
    expected = dict.fromkeys(["test_passes", "test_gathers"], "new")
    expected["test_in_a_thread"] = "new" if sees_threads() else NO_THREADS
    assert {**expected, "test_no_coroutine": "new", "test_fails": "failed"} == seen.statuses
    assert 1 == seen.metric("test_passes", "ops")
    assert 2 * 2 == seen.metric("test_gathers", "ops")  # each fills and negates
    assert 2 * 4 == seen.metric("test_gathers", "dispatches")
    if sees_threads():
        assert 2 == seen.metric("test_in_a_thread", "ops")
        assert 4 == seen.metric("test_in_a_thread", "dispatches")
    same(pytester, source, "-rA", *args, *ONLY_RUN, conftest=conftest, needs=[plugin])


@pytest.mark.thorough
def test_hypothesis(pytester: pytest.Pytester) -> None:
    source = """
        import torch
        from hypothesis import given, settings, strategies as st

        @settings(derandomize=True, deadline=None, max_examples=5, database=None)
        @given(st.integers(1, 4))
        def test_numbers(n): torch.ones(n)

        @settings(derandomize=True, deadline=None, database=None)
        @given(st.integers())
        def test_fails(n): assert n < 10
    """
    seen = same(pytester, source, needs=["hypothesispytest"])
    assert {"test_numbers": "new", "test_fails": "failed"} == seen.statuses


@pytest.mark.thorough
def test_tests_that_are_run_again_on_failure(pytester: pytest.Pytester) -> None:
    source = """
        import pytest
        import torch
        tries = []

        @pytest.fixture
        def narrow():
            print("narrow")
            yield
            print("narrow end")

        @pytest.fixture(scope="module")
        def wide():
            print("wide")
            yield
            print("wide end")

        def test_passes_at_the_second_try(narrow, wide):
            tries.append(1)
            assert 1 < len(tries)
            torch.ones(2)

        class TestIt:
            tries = 0
            def test_passes_at_the_third_try(self, narrow):
                type(self).tries += 1
                assert 2 < self.tries

        def test_never_passes(wide): assert False
        def test_passes(wide): pass

        @pytest.fixture
        def broken():
            yield
            assert False, "teardown"
        def test_breaks_its_teardown(broken): pass
    """
    args = ("-rA", "--reruns=2")
    seen = same(pytester, source, *args, needs=["rerunfailures"], subprocess=True)
    assert "new" == seen.statuses["test_passes_at_the_second_try"]
    assert "new" == seen.statuses["TestIt::test_passes_at_the_third_try"]
    assert "new" == seen.statuses["test_passes"]


@pytest.mark.thorough
def test_a_test_over_its_budget_is_run_again_too(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        import torch
        @pytest.mark.max_ops(0)
        def test_it(): torch.ones(2)
        """
    )
    result = pytester.runpytest_subprocess("--torchprof", "--reruns=2", "-p", "no:anyio")
    result.assert_outcomes(failed=1)
    assert 2 == result.parseoutcomes()["rerun"]


@pytest.mark.thorough
def test_workers(pytester: pytest.Pytester) -> None:
    source = """
        import warnings
        import pytest
        import torch

        @pytest.mark.parametrize("n", range(3))
        def test_it(n, record_property, tmp_path):
            record_property("n", n)
            print(n, torch.ones(n).sum())
            warnings.warn("once")

        def test_fails(): assert False
    """
    # Workers report in any order: what they report is compared, sorted.
    pytester.makepyfile(test_it=source)
    plain, ours = (
        session(pytester, "-n2", needs=["xdist"], subprocess=True, profiled=profiled)
        for profiled in (False, True)
    )
    keys = ("test", "when", "outcome", "sections", "properties")
    chosen = [sorted(str([r[key] for key in keys]) for r in ran.reports) for ran in (plain, ours)]
    assert chosen[0] == chosen[1]
    assert sorted(w[2:] for w in plain.warnings) == sorted(w[2:] for w in ours.warnings)
    assert "new" == ours.statuses["test_it[0]"]
    assert plain.ret == ours.ret


@pytest.mark.thorough
def test_a_compiled_function_reaches_the_limit_of_recompilations_no_sooner(
    pytester: pytest.Pytester,
) -> None:
    """A run with one thread compiles each variant again: dynamo guards the number of threads."""
    pytester.makepyfile(
        test_it="""
        import pytest, torch

        @torch.compile(backend="eager", fullgraph=True)
        def waves(x, name): return x.sin() if name else x.cos()

        @pytest.mark.parametrize("name", "abcdefghi")  # one more than dynamo compiles
        def test_it(name): waves(torch.ones(3), name)
        """
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        sessions = [session(pytester, profiled=profiled) for profiled in (False, True)]
    finally:
        torch.set_num_threads(threads)
    plain, ours = (
        [report["outcome"] for report in one.reports if report["when"] == "call"]
        for one in sessions
    )
    assert ["passed"] * 8 + ["failed"] == plain == ours
