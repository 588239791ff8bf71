"""On a GPU, now: each payload's numbers are those of its table, of CUDA events, and of torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from gpu_payloads import catalog, recording

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    "name",
    [*catalog.PLAIN, *(pytest.param(n, marks=pytest.mark.thorough) for n in catalog.COMPILED)],
)
def test_numbers_are_as_known(name: str, tmp_path: Path) -> None:
    recorded = recording.record(catalog.PAYLOADS[name], "cuda", tmp_path)
    assert [] == recorded.measured["live"]["differences"]
    assert [] == recorded.measured["stored"]["differences"]
    assert "doubts" not in recorded.answers
