"""What a test exchanges with other ranks: limits, baselines, regions, and true zeros."""

from __future__ import annotations

import re

import pytest
from support.sessions import accept, run

GROUP = """
    import pytest
    import torch
    import torch.distributed as dist

    @pytest.fixture(autouse=True, scope="module")
    def group(tmp_path_factory):
        store = f"file://{tmp_path_factory.mktemp('group') / 'store'}"
        dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
        yield
        dist.destroy_process_group()

    X = torch.ones(10)
"""
TESTS = """
    @pytest.mark.max_collectives(2)
    @pytest.mark.max_comm_bytes("80 B")
    @pytest.mark.max_collectives(0, op="aten::*")
    @pytest.mark.max_collectives(1, region="later")
    def test_two(torchprof):
        dist.all_reduce(X)
        with torchprof("later"):
            work = dist.all_reduce(X, async_op=True)
            work.wait()

    @pytest.mark.max_collectives(1)
    def test_too_many():
        dist.all_reduce(X)
        dist.broadcast(X, 0)

    @pytest.mark.max_collectives(0)
    @pytest.mark.max_exposed_comm_ms(0)
    def test_none():
        X + X
"""


def test_limits_and_regions_know_what_a_test_exchanges(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=GROUP + TESTS)
    ran = run(pytester, "--torchprof")
    assert {"test_two": "ok", "test_none": "ok", "test_too_many": "over_budget"} == {
        name.rpartition("::")[2]: {"new": "ok"}.get(test["status"], test["status"])
        for name, test in ran.tests.items()
    }
    two = next(test for name, test in ran.tests.items() if name.endswith("test_two"))
    values = {name: row["value"] for name, row in two["metrics"].items()}
    assert (2, 80) == (values["collectives"], values["comm_bytes"])
    assert 0 < values["exposed_comm_ms"] <= values["comm_ms"]
    assert 1 == two["regions"]["later"]["metrics"]["collectives"]["value"]
    assert "collectives 2 is over the budget of 1" in ran.out


@pytest.mark.thorough
def test_one_more_all_reduce_fails_with_its_line(pytester: pytest.Pytester) -> None:
    before = "    def test_step():\n        dist.all_reduce(X)\n"
    pytester.makepyfile(test_it=GROUP + before)
    accept(pytester)
    pytester.makepyfile(test_it=GROUP + before + "        dist.all_reduce(X)\n")
    output = run(pytester, "--torchprof", subprocess=True).out  # which reads the new lines
    assert re.search(r"collectives +1 → 2", output)
    assert re.search(r"comm_bytes +40 B → 80 B", output)
    text = (pytester.path / "test_it.py").read_text("utf-8").splitlines()
    first, second = (n for n, line in enumerate(text, 1) if "dist.all_reduce" in line)
    cause = rf"test_it.py:{first} \(test_step\): c10d::allreduce_ is called 2 times instead of 1 — "
    assert re.search(rf"^{cause}.*\n  also at test_it.py:{second}$", output, re.MULTILINE)
