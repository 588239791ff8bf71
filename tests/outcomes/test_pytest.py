"""What pytest itself offers to tests works as without ``--torchprof``, and says the same."""

from __future__ import annotations

import logging
import sys

import pytest
from support.outcomes import needs_subtests, same
from support.sessions import calls, run

#: Everything that prints, logs or warns, in every phase.
LOUD = """
    import logging
    import sys
    import warnings
    import pytest
    import torch

    @pytest.fixture(scope="module")
    def wide():
        print("wide setup")
        yield
        print("wide teardown")
        logging.warning("wide teardown")

    @pytest.fixture
    def narrow():
        print("narrow setup")
        logging.warning("narrow setup")
        yield 1
        print("narrow teardown", file=sys.stderr)
        logging.warning("narrow teardown")
        warnings.warn("narrow teardown")

    def test_passes(narrow, wide, record_property, tmp_path):
        record_property("number", 1)
        print("in the test", tmp_path)
        print("in the test", file=sys.stderr)
        logging.warning("in the test")
        warnings.warn("in the test")
        torch.ones(3)

    def test_fails(narrow, wide):
        print("before it fails")
        assert 4 == torch.ones(3).sum()

    @pytest.fixture
    def broken():
        yield
        print("broken teardown")
        raise ValueError("teardown")

    def test_breaks_its_teardown(broken, caplog):
        logging.warning("in the test")

    def test_has_a_folder(tmp_path):
        print(tmp_path)
"""


@pytest.mark.thorough
@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    "args",
    [
        "",
        "-rA -v",
        "-rA --capture=sys",
        "-x",
        "--maxfail=2 --tb=short",
        "-v --log-cli-level=INFO",
        "--log-file=log --log-file-level=INFO",
        "--setup-show",
        "-p no:logging -rA",
        "-p no:terminal",
        "-p no:warnings",
        "-p no:capture",
        "--collect-only -q",
        "--setup-plan",
        "--pdb --pdbcls=test_it:Nobody",
        "--show-capture=no --no-summary",
        "-k passes",
        "--runxfail",
    ],
)
def test_a_loud_test_is_heard_once(pytester: pytest.Pytester, args: str) -> None:
    source = f"""{LOUD}
    class Nobody:
        def __init__(self, **_): pass
        quitting = False
        def interaction(self, *_): print("looked at")
        def __getattr__(self, name): return lambda *_: None
    """
    immediate = "--pdb" in args or "no:capture" in args  # before the dot, not after it
    seen = same(pytester, source, *args.split(), ordered=not immediate)
    log = pytester.path / "log"
    if "--log-file" in args:
        assert 1 == log.read_text("utf-8").count("in the test\n") / 2
    if args == "":
        assert {
            "test_passes": "new",
            "test_fails": "failed",
            "test_breaks_its_teardown": "teardown failed: ValueError: teardown",
            "test_has_a_folder": "new",
        } == seen.statuses


@pytest.mark.parametrize(
    "args",
    [
        pytest.param("-s", marks=pytest.mark.thorough),
        pytest.param("--capture=tee-sys", marks=pytest.mark.thorough),
        pytest.param("-v --log-cli-level=INFO", marks=pytest.mark.thorough),
    ],
)
def test_a_loud_test_is_heard_once_on_a_real_terminal(pytester: pytest.Pytester, args: str) -> None:
    source = f"""{LOUD}
    import os
    import subprocess

    def test_writes_past_python(capfd):
        os.write(1, b"one\\n")
        subprocess.run(["echo", "two"], check=True)
        with capfd.disabled():
            print("three")
        print("four")
    """
    same(pytester, source, *args.split(), subprocess=True, ordered=args != "-s")


@pytest.mark.thorough
def test_the_length_of_calls_is_the_only_thing_that_durations_show(
    pytester: pytest.Pytester,
) -> None:
    same(pytester, LOUD, "--durations=3", "--durations-min=60")


@pytest.mark.thorough
def test_a_wider_fixture_is_set_up_once(pytester: pytest.Pytester) -> None:
    source = """
        import pytest
        from support.sessions import note

        def fixture_of(scope):
            @pytest.fixture(scope=scope, autouse=True)
            def fixture():
                note(scope)
                yield scope
                note(scope + "-end")
            return fixture

        for scope in ("session", "package", "module", "class", "function"):
            globals()[scope + "_fixture"] = fixture_of(scope)

        @pytest.fixture(scope="module", params=[1, 2])
        def number(request):
            note("number")
            return request.param

        class TestIt:
            def test_one(self, number): pass
            def test_two(self, number): pass
    """
    same(pytester, source, "--setup-show")
    once, function = 2, 4 * 4 + 4  # in two sessions: with four runs a test, less one, and without
    for scope in ("session", "package", "module", "class"):
        assert once == calls(pytester, scope) == calls(pytester, f"{scope}-end"), scope
    assert 2 * once == calls(pytester, "number")
    assert function - 4 == calls(pytester, "function") == calls(pytester, "function-end")


FIXTURES = """
    import gc
    import os
    import sys
    import warnings
    import pytest
    import torch

    def test_tmp_path(tmp_path):
        assert [] == list(tmp_path.iterdir())
        (tmp_path / "file").write_text("x")
        print(tmp_path.name)

    @pytest.mark.parametrize("number", [1, 2])
    def test_the_folders_of_parameters(tmp_path, number):
        assert f"test_the_folders_of_parameters"[:26] in tmp_path.name
        print(tmp_path.name)

    def test_tmpdir(tmpdir, tmp_path_factory):
        tmpdir.join("file").write("x")
        print(tmp_path_factory.mktemp("mine"))

    def test_capsys(capsys):
        print("out")
        print("err", file=sys.stderr)
        assert ("out\\n", "err\\n") == capsys.readouterr()
        print("left")

    def test_capfd(capfd):
        os.write(1, b"out")
        assert "out" == capfd.readouterr().out

    def test_caplog(caplog):
        import logging
        logging.getLogger("a").warning("b")
        assert [("a", 30, "b")] == caplog.record_tuples
        assert [] == caplog.get_records("setup")

    def test_recwarn(recwarn):
        warnings.warn("noted", stacklevel=1)
        assert 1 == len(recwarn)

    def test_warns():
        with pytest.warns(UserWarning, match="noted"):
            warnings.warn("noted", stacklevel=1)

    def test_filters_are_changed_for_good():
        assert "once" != warnings.filters[0][0]
        warnings.simplefilter("once")

    @pytest.mark.filterwarnings("ignore:quiet")
    def test_a_filter(): warnings.warn("quiet", stacklevel=1)

    @pytest.mark.filterwarnings("error:loud")
    def test_a_strict_filter(): warnings.warn("loud", stacklevel=1)

    def test_a_warning_of_a_deleted_coroutine():
        async def never(): pass
        never()

    class Bad:
        def __init__(self): self.me = self
        def __del__(self): raise ValueError("in a finalizer")

    def test_garbage_that_complains():
        Bad()
        gc.collect()

    def test_a_thread_that_fails():
        import threading
        thread = threading.Thread(target=lambda: 1 / 0, name="failing")
        thread.start()
        thread.join()

    VALUES = {"a": 1}

    def test_monkeypatch(monkeypatch):
        monkeypatch.setitem(VALUES, "a", 2)
        monkeypatch.setenv("TORCHPROF_TEST", "1")
        monkeypatch.setattr(torch, "ones", lambda *_: "patched")
        monkeypatch.syspath_prepend("/nowhere")
        assert "patched" == torch.ones(1)

    def test_all_is_back():
        assert {"a": 1} == VALUES
        assert "TORCHPROF_TEST" not in os.environ
        assert "/nowhere" not in sys.path

    def test_a_marker_added_in_the_test(request):
        request.applymarker("slow_one")
        request.applymarker(pytest.mark.xfail(reason="later", strict=False))
        assert False

    def test_properties(record_property, record_xml_attribute, record_testsuite_property):
        record_property("key", "value")
        record_xml_attribute("assertions", "4")
        record_testsuite_property("suite", "value")

    @pytest.mark.parametrize(("a", "b"), [(1, 2), pytest.param(3, 4, id="x")])
    def test_parameters(a, b): assert a + 1 == b

    def test_finalizers(request):
        request.addfinalizer(lambda: print("finalized"))
        assert request.node.funcargs["request"] is request

    def test_a_dynamic_fixture(request):
        assert request.getfixturevalue("tmp_path").exists()

    def test_the_current_test():
        assert os.environ["PYTEST_CURRENT_TEST"].endswith("test_the_current_test (call)")

    def test_cache(pytestconfig): assert pytestconfig.rootpath.exists()
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    "args",
    [
        (),
        pytest.param(
            ("-Werror", "-k", "not garbage and not coroutine"), marks=pytest.mark.thorough
        ),
        pytest.param(("--torchprof-warmup=0", "--torchprof-rounds=0"), marks=pytest.mark.thorough),
    ],
)
def test_the_fixtures_of_pytest(pytester: pytest.Pytester, args: tuple[str, ...]) -> None:
    xml = pytester.path / "report.xml"
    seen = same(pytester, FIXTURES, "--junitxml=report.xml", "-ojunit_family=xunit1", "-rA", *args)
    text = xml.read_text("utf-8")
    if "-Werror" not in args:
        assert 1 == text.count('<property name="suite"')
        assert 1 == text.count('<property name="key"')
    assert "new" == seen.statuses["test_tmp_path"]
    assert "new" == seen.statuses["test_capsys"]


def test_methods_begin_anew(pytester: pytest.Pytester) -> None:
    source = """
        import torch

        class TestIt:
            seen = None
            def setup_method(self, method): self.value = [1]
            def teardown_method(self, method): assert [1, 2] == self.value
            @classmethod
            def setup_class(cls): cls.shared = torch.ones(2)
            @classmethod
            def teardown_class(cls): assert 3 == cls.shared.sum() + 1
            def test_state(self):
                assert self.seen is None
                self.seen = True
                self.value.append(2)
                self.shared.neg()

        state = []
        def setup_function(function): state.append(function.__name__)
        def teardown_function(function): state.pop()
        def setup_module(module): module.state.append("module")
        def test_state(): assert ["module", "test_state"] == state
    """
    seen = same(pytester, source)
    assert {"TestIt::test_state": "new", "test_state": "new"} == seen.statuses
    assert 1 == seen.metric("TestIt::test_state", "ops")


def test_skips_and_expected_failures(pytester: pytest.Pytester) -> None:
    source = """
        import sys
        import pytest

        @pytest.mark.skip(reason="r")
        def test_skip(): raise AssertionError
        @pytest.mark.skipif("sys.platform", reason="r")
        def test_skipif(): raise AssertionError
        def test_imperative_skip(): pytest.skip("r")
        def test_importorskip(): pytest.importorskip("no_such_module_at_all")
        @pytest.mark.xfail(reason="r")
        def test_xfail(): assert False
        @pytest.mark.xfail(reason="r")
        def test_xpass(): pass
        @pytest.mark.xfail(reason="r", strict=True)
        def test_strict_xfail(): assert False
        @pytest.mark.xfail(reason="r", strict=True)
        def test_strict_xpass(): pass
        @pytest.mark.xfail(reason="r", raises=ValueError)
        def test_raises(): raise ValueError
        @pytest.mark.xfail(reason="r", raises=ValueError)
        def test_raises_another(): raise TypeError
        @pytest.mark.xfail(reason="r", run=False)
        def test_not_run(): raise SystemExit
        def test_imperative_xfail(): pytest.xfail("r")
        @pytest.fixture
        def skipping(): pytest.skip("in the fixture")
        def test_skipped_by_its_fixture(skipping): pass
        @pytest.fixture
        def failing(): assert False
        def test_failed_by_its_fixture(failing): pass
        @pytest.fixture
        def skipping_late():
            yield
            pytest.skip("in teardown")
        def test_skipped_in_teardown(skipping_late): pass
    """
    seen = same(pytester, source, "-rA")
    assert "new" == seen.statuses["test_xpass"]
    assert "skipped" == seen.statuses["test_skip"]
    assert "xpassed" == seen.records["test_xpass"]["outcome"]
    assert "passed against a strict xfail, which is a failure" == seen.statuses["test_strict_xpass"]
    same(pytester, source, "-rA", "--runxfail")


ONCE = """
    import pytest
    runs = []

    @pytest.fixture
    def setup_once():
        runs.append("setup")
        assert 1 == runs.count("setup"), "set up again"

    def test_sets_up_once(setup_once): pass

    def test_calls_once():
        runs.append("call")
        assert 1 == runs.count("call"), "called again"

    @pytest.fixture
    def teardown_once():
        yield
        runs.append("teardown")
        assert 1 == runs.count("teardown"), "torn down again"

    def test_tears_down_once(teardown_once): pass

    @pytest.fixture
    def last_teardown_fails():
        yield
        runs.append("last")
        assert 3 > runs.count("last"), "torn down thrice"

    def test_last_teardown_fails(last_teardown_fails): pass

    def test_skips_later():
        runs.append("skip")
        if runs.count("skip") > 1: pytest.skip("again")

    def test_exits_later():
        runs.append("exit")
        if runs.count("exit") > 1: raise SystemExit(3)

    def test_ends_the_session_later():
        runs.append("end")
        if runs.count("end") > 1: pytest.exit("again")

    def test_goes_on(): pass
"""


@pytest.mark.thorough
def test_a_rerun_that_fails_leaves_the_outcome(pytester: pytest.Pytester) -> None:
    seen = same(pytester, ONCE, "-rA")
    again = "cannot be run twice: "
    assert {
        "test_sets_up_once": f"{again}AssertionError: set up again",
        "test_calls_once": f"{again}AssertionError: called again",
        "test_tears_down_once": f"{again}AssertionError: torn down again",
        "test_last_teardown_fails": "cannot be run twice: AssertionError: torn down thrice",
        "test_skips_later": f"{again}Skipped: again",
        "test_exits_later": f"{again}SystemExit: 3",
        "test_ends_the_session_later": f"{again}Exit: again",
        "test_goes_on": "new",
    } == {name: reason.partition("\n")[0] for name, reason in seen.statuses.items()}
    same(pytester, ONCE, "-Werror", "-x")


def test_strange_failures(pytester: pytest.Pytester) -> None:
    source = """
        import sys
        import pytest

        def test_exit(): sys.exit(3)
        def test_memory(): raise MemoryError
        def test_recursion():
            def f(): f()
            f()
        def test_group(): raise ExceptionGroup("g", [ValueError(1)])
        class Odd(BaseException):
            def __str__(self): return ""
        def test_odd(): raise Odd
        def test_pytest_fail(): pytest.fail("reason", pytrace=False)
        def test_generator_exit(): raise GeneratorExit
        def test_stop_iteration(): raise StopIteration(1)
        def test_returns(): return 3
        def test_in_a_block(torchprof):
            with torchprof:
                raise ValueError("inside")
        def test_in_a_callable(torchprof):
            def raises(): raise ValueError("inside")
            torchprof(raises)
        def test_after_all(): pass
    """
    # Python 3.10 has no groups, and pytest before 8.4 shows every frame of one, ours too.
    groups = sys.version_info >= (3, 11) and pytest.version_tuple >= (8, 4)
    args = () if groups else ("-k", "not group")
    seen = same(pytester, source, "-rA", *args)
    assert {"failed", "new"} == set(seen.statuses.values())


@needs_subtests
def test_hooks_of_a_conftest(pytester: pytest.Pytester) -> None:
    conftest = """
        import pytest

        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_call(item):
            item.user_properties.append(("in", "call"))
            return (yield)

        @pytest.hookimpl(hookwrapper=True, trylast=True)
        def pytest_pyfunc_call(pyfuncitem):
            print("before")
            outcome = yield
            if pyfuncitem.name == "test_forced": outcome.force_result(True)
            print("after")

        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_makereport(item, call):
            report = yield
            if call.when == "call": report.sections.append(("args", str(sorted(item.funcargs))))
            return report

        def pytest_runtest_teardown(item): print("hook", item.name)

        def pytest_runtest_logreport(report): print("told", report.nodeid, report.when)

        def pytest_collection_modifyitems(items): items.reverse()
    """
    pytester.makepyfile(
        **{
            "a/conftest": "def pytest_runtest_logreport(report): print('elsewhere')",
            "a/test_a": "def test_other(subtests):\n    with subtests.test(): assert 1",
            "b/test_b": "def test_other(subtests):\n    with subtests.test(): assert 1",
        }
    )
    source = """
        def test_forced(): assert False
        def test_one(tmp_path): print("one")
        def test_two(subtests):
            with subtests.test(msg="a"): print("sub")
    """
    seen = same(pytester, source, "-s", "--import-mode=importlib", conftest=conftest, ordered=False)
    assert {"new", "failed"} >= set(seen.statuses.values())
    assert "new" == seen.statuses["test_two"]


@pytest.mark.thorough
def test_a_protocol_of_a_conftest_that_runs_each_test_in_a_child(pytester: pytest.Pytester) -> None:
    conftest = """
        import os
        import pickle
        import pytest
        from _pytest.runner import runtestprotocol

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_protocol(item, nextitem):
            hook = item.ihook
            hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
            read, write = os.pipe()
            if not (child := os.fork()):
                reports = runtestprotocol(item, log=False, nextitem=nextitem)
                data = [item.config.hook.pytest_report_to_serializable(config=item.config, report=r)
                        for r in reports]
                os.write(write, pickle.dumps(data))
                os._exit(0)
            os.close(write)
            with open(read, "rb") as pipe: data = pickle.loads(pipe.read())
            os.waitpid(child, 0)
            for entry in data:
                report = item.config.hook.pytest_report_from_serializable(
                    config=item.config, data=entry)
                hook.pytest_runtest_logreport(report=report)
            hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
            return True
    """
    source = """
        import torch
        def test_passes(): torch.ones(2) + 1
        def test_fails(): assert False
    """
    seen = same(pytester, source, conftest=conftest, subprocess=True)
    assert {"test_passes": "new", "test_fails": "failed"} == seen.statuses


@pytest.mark.thorough
def test_the_order_of_tests_is_not_ours(pytester: pytest.Pytester) -> None:
    conftest = """
        def pytest_collection_modifyitems(items): items.sort(key=lambda item: hash(item.name) % 7)
    """
    same(pytester, FIXTURES, "-v", conftest=conftest)


def test_without_the_plugin_nothing_of_it_is_loaded(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(request): assert not hasattr(request.config, 'torchprof')")
    result = pytester.runpytest_subprocess("-p", "no:torchprof")
    result.assert_outcomes(passed=1)
    assert "torchprof" not in result.stdout.str().replace("torchprof-", "")


def test_random_numbers_are_those_of_one_run(pytester: pytest.Pytester) -> None:
    source = """
        import random
        import numpy
        import torch

        def draw(): return random.random(), float(numpy.random.rand()), float(torch.rand(()))
        def test_one(): draw()
        def test_two():
            random.seed(1); numpy.random.seed(1); torch.manual_seed(1)
        def test_three(): print(draw())
        def test_four(): print(draw())
    """
    seen = same(pytester, source, "-rA")
    assert {"new"} == set(seen.statuses.values())


@pytest.mark.skipif(
    pytest.version_tuple < (9,),
    reason="this pytest leaves loggers that do not propagate alone",
)
def test_logging_works_in_further_runs(pytester: pytest.Pytester) -> None:
    """Where pytest's handler is attached once for all their phases, too."""
    pytester.makepyfile(
        test_it="""
        import logging
        import pytest
        from _pytest.logging import LogCaptureHandler

        APART = logging.getLogger("apart")
        APART.propagate = False
        ROOT = logging.getLogger()

        @pytest.fixture
        def phase(request):
            logging.warning("setup")
            yield
            assert any(isinstance(h, LogCaptureHandler) for h in ROOT.handlers)

        def test_asks_late_for_records(phase, request):
            logging.warning("in the test")
            caplog = request.getfixturevalue("caplog")
            logging.warning("in the test, too")
            assert caplog.messages == ["in the test", "in the test, too"]
            assert [r.message for r in caplog.get_records("setup")] == ["setup"]

        def test_takes_all_handlers_away(phase):
            ROOT.handlers.clear()

        def test_has_level_and_handlers(phase, capsys):
            assert ROOT.level == logging.INFO
            assert ROOT.hasHandlers()
            APART.warning("for nobody")
            assert capsys.readouterr() == ("", "")

        def test_fails(phase):
            APART.warning("why")
            assert 0
        """
    )
    ran = run(pytester, "--torchprof", "--log-level=INFO")
    ran.result.assert_outcomes(passed=3, failed=1)
    assert ran.out.count("why") == 1 + ran.out.count('APART.warning("why")')
    assert list(ran.statuses.values()) == ["new", "new", "new", "not_profiled"]
    assert len(logging.getLogger().handlers) == len(set(logging.getLogger().handlers))
