"""A bound that was accepted for another chip only advises, and the reason names both."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace
from support.trace_builder import TraceBuilder

from pytest_torchprof.baseline.store import Entry, entry_of, load, update
from pytest_torchprof.core.reasons import Why, because
from pytest_torchprof.places.roots import Roots
from pytest_torchprof.render.failure import sentence
from pytest_torchprof.rules.engine.check import check
from pytest_torchprof.trace.facts import Facts
from pytest_torchprof.trace.known_names import REGION
from pytest_torchprof.trace.read import parse_trace
from pytest_torchprof.verdict.judgement import Judged, Terms, compared, judged
from pytest_torchprof.verdict.measured import Measured

if TYPE_CHECKING:
    from pytest_torchprof.core.results import Baseline, Verdict

LARGE = [4096, 4096]
ASKED = ("host_reads", "launches", "bound_ms", "estimated_cuda_bytes")


def measured(chip: str | None, products: int = 1) -> Measured:
    b = TraceBuilder()
    with b.annotation(REGION):
        for _ in range(products):
            with b.op("aten::mm", [LARGE, LARGE], ["float", "float"]):
                pass
    b.facts(Facts(asked=ASKED, chip=chip))
    return Measured(check(parse_trace(b.to_bytes()), ()), "cpu", "here")


def against(baseline: Baseline | None, now: Measured, terms: Terms | None = None) -> Judged:
    terms = terms or Terms()
    return judged(now, compared(now, baseline, terms), {}, Roots(Path.cwd()), terms)


def accepted(chip: str | None) -> Baseline:
    found = against(None, measured(chip), Terms(accept=True)).accepts
    assert found is not None
    return found


def bound(found: Judged) -> Verdict:
    return next(v for v in found.verdicts if v.metric == "bound_ms")


def test_another_chips_bound_only_advises() -> None:
    found = against(accepted("H100 SXM"), measured("T4"))
    why = because(Why.OTHER_CHIP, accepted="H100 SXM", here="T4")
    assert ("advisory", why) == (bound(found).status, bound(found).reason)
    assert ("ok", why) == (found.status, found.reason)


@pytest.mark.parametrize(("products", "status"), [(1, "ok"), (2, "regressed")])
def test_the_same_chips_is(products: int, status: str) -> None:
    assert status == bound(against(accepted("T4"), measured("T4", products))).status


def test_strictly_another_chips_bound_fails_with_the_reason() -> None:
    found = against(accepted("H100 SXM"), measured("T4"), Terms(strict=True))
    (said,) = [sentence(cause) for cause in found.causes if cause.metric == "bound_ms"]
    assert said.endswith("only advises: the baseline's is of H100 SXM, and this one of T4")


def test_accepting_keeps_the_chip_that_the_bound_is_of(tmp_path: Path) -> None:
    path = tmp_path / "test_x.json"

    def accept(chip: str | None) -> str | None:
        update(path, [Entry("test", "cpu", accepted(chip))], existing=None)
        known = entry_of(load(path), "test", "cpu")
        assert known is not None
        return known.chip

    # Without a chip there is no bound; one that was accepted stays, and so does its chip.
    assert [None, "T4", "T4", "H100 SXM"] == [accept(c) for c in (None, "T4", None, "H100 SXM")]


def test_the_chip_of_equal_bounds_is_kept_too(tmp_path: Path) -> None:
    path, known = tmp_path / "test_x.json", accepted("T4")
    for chip in ("T4", "L4"):
        update(path, [Entry("test", "cpu", replace(known, chip=chip))], existing=None)
        kept = entry_of(load(path), "test", "cpu")
        assert kept is not None
        assert chip == kept.chip
