"""Test files may put something else in the place of a library, or of a part, and leave it there."""

from __future__ import annotations

import types
from unittest import mock

import pytest
import torch
from support.sessions import run

from pytest_torchprof.capture.machine import is_torch
from pytest_torchprof.capture.state import bytes_of

#: What a file does when it is imported, and what the tests of later files then find.
REPLACEMENTS = {
    "torch by a mock": ('sys.modules["torch"] = mock.MagicMock()', "isinstance(torch, mock.Mock)"),
    "torch by a spec": (
        'sys.modules["torch"] = mock.create_autospec(sys.modules["torch"])',
        "type(torch).__name__ != 'module'",
    ),
    "torch by a module": (
        'sys.modules["torch"] = types.ModuleType("torch")',
        "not hasattr(torch, 'ones')",
    ),
    "torch by none": ('sys.modules["torch"] = None', "torch is None"),
    "all of torch": (
        'sys.modules.update({n: mock.MagicMock() for n in sys.modules if n.startswith("torch")})',
        "isinstance(torch, mock.Mock)",
    ),
    "a part of torch": (
        'sys.modules["torch.profiler"] = sys.modules["torch.autograd.profiler"] = mock.MagicMock()',
        "isinstance(sys.modules['torch.profiler'], mock.Mock)",
    ),
    "NumPy": (
        'sys.modules["numpy"] = sys.modules["numpy.random"] = mock.MagicMock()',
        "isinstance(sys.modules['numpy'], mock.Mock)",
    ),
    "torch's profiler": (
        'sys.modules["torch.autograd.profiler"].profile = None',
        "torch.autograd.profiler.profile is None",
    ),
    "torch's generator": ("torch = sys.modules['torch']; torch.default_generator = None", "torch"),
    "a part of torch in C++": ("sys.modules['torch']._C._profiler = None", "torch"),
    "functions of NumPy": ("import numpy; numpy.array = numpy.zeros = None", "torch"),
    "Python's generator": ("import random; random.getstate = random.setstate = None", "torch"),
    "the temporary folder": ("import tempfile; tempfile.tempdir = '/nowhere'", "torch"),
}


@pytest.mark.parametrize(
    "what",
    [
        pytest.param(what, marks=[] if what == "torch by a mock" else [pytest.mark.thorough])
        for what in REPLACEMENTS
    ],
)
def test_a_file_that_replaces_a_library_breaks_no_session(
    what: str, pytester: pytest.Pytester
) -> None:
    """The tests see it; where torch itself is gone, none is profiled."""
    replace, found = REPLACEMENTS[what]
    pytester.makepyfile(
        test_a="""
    import torch

    def test_bound(): torch.ones(8, 8) @ torch.ones(8, 8)
""",
        test_b=f"""
    import sys, types
    from unittest import mock

    {replace}

    def test_replaced():
        torch = sys.modules["torch"]
        assert {found}
""",
        test_c=f"""
    import sys
    from unittest import mock

    def test_later():
        torch = sys.modules["torch"]
        assert {found}
""",
    )
    ran = run(pytester, "--torchprof", subprocess=True)
    assert {"passed": 3} == ran.outcomes, ran.out
    if what.startswith(("torch by", "all of torch")):
        assert 0 == ran.result.ret
        reason = "a test file has put something else in the place of torch"
        assert dict.fromkeys(ran.tests, reason) == {n: t["reason"] for n, t in ran.tests.items()}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("what", "kind"),
    [("mock.MagicMock()", "MagicMock"), ('types.ModuleType("torch")', "module")],
)
def test_without_torch_in_its_place_the_session_says_so(
    what: str, kind: str, pytester: pytest.Pytester
) -> None:
    """A suite that never imports torch has nothing to measure."""
    pytester.makeconftest(
        f"import sys, types\nfrom unittest import mock\nsys.modules['torch'] = {what}\n"
    )
    pytester.makepyfile("def test_it(): pass")
    ran = pytester.runpytest_subprocess("--torchprof")
    assert pytest.ExitCode.USAGE_ERROR == ran.ret
    error = next(line for line in ran.errlines if line.startswith("ERROR"))
    assert f"what is imported by that name is a {kind}." in error
    assert "Leave torch in place, or drop --torchprof." in error
    assert {"passed": 1} == pytester.runpytest_subprocess().parseoutcomes()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is faked")
@pytest.mark.parametrize(
    "fake",
    [
        "torch.cuda.is_available = lambda: True",
        pytest.param("torch.cuda = mock.MagicMock()", marks=pytest.mark.thorough),
    ],
)
def test_a_suite_that_fakes_a_gpu_is_measured_on_the_cpu(
    fake: str, pytester: pytest.Pytester
) -> None:
    """What it says of itself is not asked."""
    pytester.makeconftest(f"from unittest import mock\nimport torch\n{fake}\n")
    pytester.makepyfile(
        test_it="""
    import torch

    def test_it():
        assert torch.cuda.is_available()
        torch.ones(8, 8) @ torch.ones(8, 8)
"""
    )
    ran = run(pytester, "--torchprof", subprocess=True)
    assert {"passed": 1} == ran.outcomes, ran.out
    assert {"test_it": "new"} == ran.statuses
    assert 2 * 8**3 == ran.metric("flops", "test_it")["value"]
    assert "torchprof: cpu, " in ran.out


@pytest.mark.thorough
def test_what_breaks_the_start_is_an_error_of_usage(pytester: pytest.Pytester) -> None:
    """It says what, and where, in a line."""
    pytester.makeconftest("import platform\nplatform.processor = None\n")
    pytester.makepyfile("def test_it(): pass")
    ran = pytester.runpytest_subprocess("--torchprof")
    assert pytest.ExitCode.USAGE_ERROR == ran.ret
    error = next(line for line in ran.errlines if line.startswith("ERROR"))
    assert "internal error, please report it: TypeError: 'NoneType'" in error
    assert "machine.py:" in error


def test_only_torch_is_torch() -> None:
    stub = types.ModuleType("torch")
    assert is_torch(torch)
    others = [stub, mock.MagicMock(), mock.create_autospec(torch, instance=True), None]
    assert not any(map(is_torch, others))


def test_a_mock_of_a_state_has_no_address() -> None:
    """Its numbers convert to 1, which is nobody's address."""
    with pytest.raises(TypeError, match="an address is needed, not MagicMock"):
        bytes_of(mock.MagicMock())
