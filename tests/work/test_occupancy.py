"""How many blocks fit on a multiprocessor."""

from __future__ import annotations

import gzip
import json
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.real_traces import CORPUS

from pytest_torchprof.work import devices
from pytest_torchprof.work.devices import Multiprocessor, multiprocessor, resident_blocks

#: As Kineto writes it.
H100: dict[str, Any] = {
    "id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85018279936, "computeMajor": 9,
    "computeMinor": 0, "maxThreadsPerBlock": 1024, "maxThreadsPerMultiprocessor": 2048,
    "regsPerBlock": 65536, "warpSize": 32, "sharedMemPerBlock": 49152, "numSms": 132,
    "regsPerMultiprocessor": 65536, "sharedMemPerBlockOptin": 232448,
    "sharedMemPerMultiprocessor": 233472,
}  # fmt: skip
HOPPER = Multiprocessor(132, (9, 0), 2048, 65536, 233472)
VOLTA = Multiprocessor(80, (7, 0), 2048, 65536, 98304)


def fit(sm: Multiprocessor, threads: int, registers: int, shared: int) -> int:
    columns = (np.array([value]) for value in (threads, registers, shared))
    return int(resident_blocks(sm, *columns)[0])


@pytest.mark.parametrize(
    ("sm", "threads", "registers", "shared", "expected"),
    [
        (HOPPER, 128, 16, 0, 16),  # 64 warps
        (HOPPER, 32, 16, 0, 32),  # at most 32 blocks
        (HOPPER, 33, 16, 0, 32),  # two warps
        (HOPPER, 128, 152, 147456, 1),  # shared memory: 145 of 228 KiB
        (HOPPER, 128, 32, 113 * 1024, 2),  # with the driver's KiB exactly a half
        (HOPPER, 128, 32, 113 * 1024 + 1, 1),
        (HOPPER, 128, 168, 0, 3),  # 5,376 registers a warp: 3 warps a partition, 12 in all
        (HOPPER, 384, 168, 0, 1),
        (HOPPER, 1024, 255, 0, 0),  # cannot be launched
        (VOLTA, 128, 86, 32768, 3),  # no KiB of the driver's
        (VOLTA, 128, 86, 0, 5),
        (HOPPER, -1, 16, 0, -1),
        (HOPPER, 128, 0, 0, -1),
        (HOPPER, 128, 16, -1, -1),
    ],
)
def test_the_least_of_the_limits_decides(
    sm: Multiprocessor, threads: int, registers: int, shared: int, expected: int
) -> None:
    assert expected == fit(sm, threads, registers, shared)


@pytest.mark.parametrize(
    ("capability", "expected"),
    [((7, 0), 32), ((7, 5), 16), ((8, 0), 32), ((8, 6), 16), ((8, 9), 24), ((9, 0), 32),
     ((10, 0), 32), ((10, 1), 24), ((10, 3), 32), ((11, 0), 24), ((12, 0), 24), ((13, 0), None)],
)  # fmt: skip
def test_the_most_blocks_depend_on_the_capability(
    capability: tuple[int, int], expected: int | None
) -> None:
    assert expected == Multiprocessor(1, capability, 2048, 65536, 2**20).most_blocks


def test_kinetos_properties_describe_a_multiprocessor() -> None:
    assert HOPPER == multiprocessor(H100)
    assert HOPPER == multiprocessor({key: str(value) for key, value in H100.items()})


@pytest.mark.parametrize(
    "change",
    [
        {"regsPerMultiprocessor": None},
        {"sharedMemPerMultiprocessor": -1},
        {"maxThreadsPerMultiprocessor": "many"},
        {"warpSize": 64},
        {"computeMajor": 99},
        {"computeMajor": None},
        {"numSms": 2**40},
    ],
)
def test_a_property_that_is_missing_or_junk_leaves_it_unknown(change: dict[str, Any]) -> None:
    assert multiprocessor(H100 | change) is None


@pytest.mark.parametrize("junk", [None, 7, "text", []])
def test_what_is_no_entry_describes_nothing(junk: object) -> None:
    assert multiprocessor(junk) is None


def test_the_table_of_devices_knows_the_number_of_multiprocessors() -> None:
    without = {key: value for key, value in H100.items() if key != "numSms"}
    device = devices.find(H100)
    assert (None, HOPPER) == (multiprocessor(without), multiprocessor(without, device))


def test_other_vendors_devices_are_unknown() -> None:
    """An RDNA chip has warps of 32, and reports a capability of 11.0."""
    device = next(device for device in devices.known_chips() if device.architecture == "gfx1100")
    assert multiprocessor(H100 | {"computeMajor": 11}, device) is None


@given(st.integers(1, 1024), st.integers(1, 255), st.integers(0, 232448), st.integers(0, 3))
def test_what_needs_more_never_fits_more_often(
    threads: int, registers: int, shared: int, which: int
) -> None:
    less, more = [threads, registers, shared], [threads, registers, shared]
    more[which % 3] += 1
    assert 0 <= fit(HOPPER, *more) <= fit(HOPPER, *less) <= 32


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "kernels"),
    [("a100_alexnet", 73), ("a100_sam_compiled", 1192), ("h100_bert_inference", 51),
     ("h100_vit_inference", 80), ("v100_dlrm_rank0", 245), ("v100_dlrm_rank1", 310)],
)  # fmt: skip
def test_kinetos_own_occupancy_follows_from_it(name: str, kernels: int) -> None:
    """Kineto calls NVIDIA's calculator and writes whole percents; 0 where it believes none fits."""
    path = CORPUS / f"{name}.pt.trace.json.gz"
    if not path.exists():
        pytest.skip(f"no real traces: {path.parent} has no {path.name}")
    document = json.loads(gzip.decompress(path.read_bytes()))
    listed = {entry["id"]: multiprocessor(entry) for entry in document["deviceProperties"]}
    compared = 0
    for event in document["traceEvents"]:
        args = event.get("args", {})
        recorded = args.get("est. achieved occupancy %")
        if recorded is None:
            continue
        sm, threads = listed[args["device"]], prod(args["block"])
        assert sm is not None
        blocks = fit(sm, threads, args["registers per thread"], args["shared memory"])
        expected = 100 * min(blocks, args["blocks per SM"]) * threads / sm.threads
        if recorded or expected <= 0.5:
            assert recorded == pytest.approx(expected, abs=0.501)
            compared += 1
    assert kernels == compared
