"""A test's objects end when they would without us, as their end may do anything."""

from __future__ import annotations

import sys

import pytest
from support.sessions import run

pytestmark = pytest.mark.thorough


def test_a_module_ends_though_it_was_marked(pytester: pytest.Pytester) -> None:
    """The limits ask for a run that marks modules by class, and one that marks paths and lines."""
    pytester.makepyfile(
        test_it="""
        import weakref
        import pytest
        import torch

        @pytest.mark.max_ops(0)
        @pytest.mark.max_ops(0, module="Linear")
        def test_it():
            model = torch.nn.Sequential(torch.nn.Linear(2, 2))
            model(torch.ones(1, 2))
            modules = [weakref.ref(model), weakref.ref(model[0])]
            del model
            assert [None, None] == [module() for module in modules]
    """
    )
    ran = run(pytester, "--torchprof", "--torchprof-rounds=0")
    assert "over_budget" == ran.statuses["test_it"]
    assert "cannot be run twice" not in ran.out
    assert "test_it.py:9" in ran.out
    assert 0 < ran.tests["test_it"]["metrics"]["ops[module=Linear]"]["value"]


def test_modules_at_one_address_keep_their_names_apart(pytester: pytest.Pytester) -> None:
    """One that has ended may leave its address to the next one."""
    pytester.makepyfile(
        test_it="""
        import pytest
        import torch

        class A(torch.nn.Module):
            def forward(self, x): return x + 1

        class B(torch.nn.Module):
            def forward(self, x): return x * 2

        @pytest.mark.max_ops(9, module="A")
        @pytest.mark.max_ops(9, module="B")
        @pytest.mark.max_dispatches(30, module="A")
        @pytest.mark.max_dispatches(30, module="B")
        def test_it():
            for kind in [A, B] * 4: kind()(torch.ones(2))
    """
    )
    ran = run(pytester, "--torchprof", "--torchprof-rounds=0")
    metrics = ran.tests["test_it"]["metrics"]
    assert [4, 4] == [metrics[f"ops[module={kind}]"]["value"] for kind in "AB"]
    # … and what converts the number.
    assert [4 * 5, 4 * 5] == [metrics[f"dispatches[module={kind}]"]["value"] for kind in "AB"]


@pytest.mark.skipif(sys.platform != "linux", reason="processes are told by /proc")
def test_a_forked_process_ends_nothing_from_before_it(pytester: pytest.Pytester) -> None:
    """A process group in it would wait for threads that only its parent has."""
    pytester.makepyfile(
        test_it="""
        import gc, multiprocessing
        import torch
        import torch.distributed as dist

        def work(): torch.ones(2) + 1

        def test_it(tmp_path):
            gc.disable()
            dist.init_process_group(
                "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
            )
            model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
            model.me = [model]
            model(torch.ones(1, 2)).sum().backward()
            dist.destroy_process_group()
            del model
            process = multiprocessing.get_context("fork").Process(target=work)
            process.start()
            process.join(20)
            gc.enable()
            assert process.exitcode == 0
    """
    )
    ran = run(pytester, "--torchprof", "--torchprof-rounds=0", subprocess=True)
    assert {"passed": 1} == ran.outcomes, ran.out
    assert "new" == ran.statuses["test_it"], ran.out
