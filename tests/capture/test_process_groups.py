"""What a trace says about the groups of torch.distributed."""

from __future__ import annotations

import json

import pytest

from pytest_torchprof.capture import processes
from pytest_torchprof.capture.processes import add_facts, described_groups
from pytest_torchprof.trace.facts import FACTS_KEY, Facts

TWO, FOUR = '{"world_size": 2}', '{"world_size": 4}'


class Profiler:
    """Takes metadata as torch.profiler does."""

    def __init__(self) -> None:
        self.metadata: dict[str, str] = {}

    def add_metadata_json(self, key: str, text: str) -> None:
        """Keep the text."""
        self.metadata[key] = text


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ({TWO}, TWO, TWO),
        ({TWO}, None, TWO),  # destroyed by now
        (set(), TWO, TWO),
        (set(), None, None),
        ({None}, None, None),
        ({None}, TWO, None),  # made, perhaps not as the first one, in the region
        ({TWO}, FOUR, None),
        ({TWO, FOUR}, None, None),
    ],
)
def test_groups_that_changed_are_left_out(
    before: set[str | None],
    now: str | None,
    expected: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processes, "described_groups", lambda: now)
    profiler = Profiler()
    add_facts(profiler, Facts(), before)
    assert FACTS_KEY in profiler.metadata
    assert expected == profiler.metadata.get("distributedInfo")


def test_a_group_is_described_while_it_exists(tmp_path: object) -> None:
    dist = pytest.importorskip("torch.distributed")
    if not dist.is_gloo_available():
        pytest.skip("this torch has no gloo")
    assert described_groups() is None
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        found = json.loads(described_groups() or "null")
    finally:
        dist.destroy_process_group()
    assert (found["backend"], found["rank"], found["world_size"]) == ("gloo", 0, 1)
    assert [1] == [group["pg_size"] for group in found["pg_config"]]
    assert described_groups() is None
