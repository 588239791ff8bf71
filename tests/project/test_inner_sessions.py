"""Our own tests run sessions within a session; what registers operators is loaded once."""

import sys

import pytest


def test_an_inner_session_leaves_the_modules_of_torch_loaded(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "torch.utils.throughput_benchmark", raising=False)
    pytester.makepyfile(
        test_loads="""
        def test_it():
            import torch.utils.throughput_benchmark
        """
    )
    pytester.inline_run("-pno:cacheprovider", "-pno:asyncio").assertoutcome(passed=1)
    assert "torch.utils.throughput_benchmark" in sys.modules
    assert "test_loads" not in sys.modules
