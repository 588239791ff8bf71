"""How many traces are read at a time."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from pytest_torchprof.fleet.sources import Source
from pytest_torchprof.fleet.workers import BASE_BYTES, PER_BYTE, Budget, text_bytes

MIB = 2**20


def test_a_trace_waits_until_it_fits_beside_the_others() -> None:
    need = BASE_BYTES + int(100 * MIB * PER_BYTE)
    budget = Budget(int(2.5 * need / 0.9))
    budget.take(0, 100 * MIB)
    assert budget.allows(100 * MIB)
    budget.take(1, 100 * MIB)
    assert not budget.allows(100 * MIB)
    budget.give_back(0)
    assert budget.allows(100 * MIB)


def test_a_trace_may_always_be_read_alone() -> None:
    budget = Budget(0)
    assert budget.allows(10**15)
    budget.take(0, 1)
    assert not budget.allows(1)


def test_what_a_worker_has_needed_is_expected_of_the_next() -> None:
    budget = Budget(10**12)
    assert BASE_BYTES + int(1000 * MIB * PER_BYTE) == budget.needs(1000 * MIB)
    budget.take(0, 1000 * MIB)
    budget.give_back(0, 1000 * MIB, BASE_BYTES + 5000 * MIB)
    assert BASE_BYTES + 5000 * MIB == budget.needs(1000 * MIB)
    budget.give_back(0, 1000, BASE_BYTES * 7)  # a small one tells nothing
    assert BASE_BYTES + 5000 * MIB == budget.needs(1000 * MIB)


@pytest.mark.parametrize(
    ("content", "size"), [(b"{}", 2), (gzip.compress(b"x" * 999, mtime=0), 999), (b"", 0)]
)
def test_the_size_of_the_text_is_known_without_reading_it(
    tmp_path: Path, content: bytes, size: int
) -> None:
    path = tmp_path / "a"
    path.write_bytes(content)
    assert size == text_bytes(Source(str(path), True, len(content)))


def test_the_text_of_several_members_or_of_a_url_is_estimated(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(gzip.compress(b"x" * 999, mtime=0) + gzip.compress(b"x"))
    stored = path.stat().st_size
    assert 20 * stored == text_bytes(Source(str(path), True, stored))
    urls = [Source(f"s3://b/a.json{end}", True, 5, remote=True) for end in ("", ".gz")]
    assert [5, 100] == [text_bytes(url) for url in urls]
    assert 0 == text_bytes(Source("missing", True, 0))
