"""The table of accelerators: its numbers, and which device a trace ran on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.real_traces import CORPUS

from pytest_torchprof.trace.read import read_trace
from pytest_torchprof.work import devices
from pytest_torchprof.work.devices import DTYPES, Device, find, known_chips

INTEL = {d.name for d in known_chips() if d.source.startswith("Intel")}
BY_NAME = {device.name: device for device in known_chips()}


def named(name: str, **other: Any) -> str | None:
    """The device that a driver's name and other properties give."""
    device = find({"name": name, **other})
    return None if device is None else device.name


def facts(major: int, minor: int, gib: float, sms: int | None = None) -> dict[str, Any]:
    """Properties without a name."""
    known = {"computeMajor": major, "computeMinor": minor, "totalGlobalMem": int(gib * 2**30)}
    return known | ({} if sms is None else {"numSms": sms})


# ------------------------------------------------------------------------------------ the numbers

# FLOP, or OP, a clock and multiprocessor. GeForce cards do half with fp32 accumulation.
PASCAL = {"fp64": 64, "fp32": 128, "fp16": 256}
TURING = {"fp32": 128, "fp16": 1024, "int8": 2048}
TURING_HALF = TURING | {"fp16": 512}
VOLTA = {"fp64": 64, "fp32": 128, "fp16": 1024}
GA100 = {"fp64": 128, "fp32": 128, "tf32": 1024, "bf16": 2048, "fp16": 2048, "int8": 4096}
GA102 = {"fp32": 256, "tf32": 512, "bf16": 1024, "fp16": 1024, "int8": 2048}
GA102_HALF = {"fp64": 4, "fp32": 256, "tf32": 256, "bf16": 512, "fp16": 512, "int8": 2048}
AD102 = GA102 | {"fp8": 2048}
AD102_HALF = GA102_HALF | {"fp8": 1024}
GB202_HALF = GA102_HALF | {"fp8": 2048}
WIDE = {"tf32": 2048, "bf16": 4096, "fp16": 4096, "fp8": 8192, "int8": 8192}
GH100 = {"fp64": 256, "fp32": 256, **WIDE}
GB100 = {"fp64": 128, "fp32": 256, **{dtype: 2 * rate for dtype, rate in WIDE.items()}}
CDNA2 = {"fp64": 256, "fp32": 256, "bf16": 1024, "fp16": 1024, "int8": 1024}
CDNA3 = {"fp64": 256, "fp32": 256, "tf32": 1024, "bf16": 2048, "fp16": 2048, "fp8": 4096,
         "int8": 4096}  # fmt: skip
RDNA3 = {"fp32": 256, "bf16": 512, "fp16": 512, "int8": 512}
RDNA4 = {"fp32": 256, "bf16": 1024, "fp16": 1024, "fp8": 2048, "int8": 2048}
XE_HPC = {"fp64": 256, "fp32": 256, "tf32": 2048, "bf16": 4096, "fp16": 4096, "int8": 8192}
XE2 = {"fp32": 256, "bf16": 2048, "fp16": 2048, "int8": 4096}
CDNA4 = {"fp64": 128, "fp32": 256, "bf16": 4096, "fp16": 4096, "fp8": 8192, "int8": 8192}
#: Device → multiprocessors, boost clock in GHz, that of the matrix units (fp64 aside), rates.
SILICON: dict[str, tuple[int, float, float, dict[str, int]]] = {
    "V100-SXM2-16GB": (80, 1.530, 1.530, VOLTA),
    "V100-SXM2-32GB": (80, 1.530, 1.530, VOLTA),
    "V100-PCIE-16GB": (80, 1.380, 1.380, VOLTA),
    "V100-PCIE-32GB": (80, 1.380, 1.380, VOLTA),
    "V100S-PCIE-32GB": (80, 1.597, 1.597, VOLTA),
    "T4": (40, 1.590, 1.590, TURING),
    "A100-SXM4-40GB": (108, 1.410, 1.410, GA100),
    "A100-PCIE-40GB": (108, 1.410, 1.410, GA100),
    "A100-SXM4-80GB": (108, 1.410, 1.410, GA100),
    "A100 80GB PCIe": (108, 1.410, 1.410, GA100),
    "A30": (56, 1.440, 1.440, GA100),
    "A10": (72, 1.695, 1.695, GA102),
    "A10G": (80, 1.710, 1.710, GA102_HALF | {"int8": 1024}),
    "A40": (84, 1.740, 1.740, GA102),
    "RTX A6000": (84, 1.800, 1.800, GA102),
    "GeForce RTX 3090": (82, 1.695, 1.695, GA102_HALF),
    "L4": (58, 2.040, 2.040, AD102),
    "L40": (142, 2.490, 2.490, AD102_HALF | {"int8": 1024}),
    "L40S": (142, 2.520, 2.520, AD102),
    "RTX 6000 Ada Generation": (142, 2.505, 2.505, AD102),
    "GeForce RTX 4090": (128, 2.520, 2.520, AD102_HALF),
    "H100 SXM": (132, 1.980, 1.830, GH100),
    "H100 PCIe": (114, 1.755, 1.620, GH100),
    "H100 NVL": (132, 1.785, 1.545, GH100),
    "H200": (132, 1.980, 1.830, GH100),
    "H200 NVL": (132, 1.785, 1.545, GH100),
    "GH200 96GB": (132, 1.980, 1.830, GH100),
    "GH200 144GB": (132, 1.980, 1.830, GH100),
    "B200": (148, 1.965, 1.855, GB100),
    "B300": (148, 1.965, 1.855, GB100 | {"fp64": 4}),
    "GeForce RTX 5090": (170, 2.407, 2.407, GB202_HALF),
    "MI100": (120, 1.502, 1.502, CDNA2 | {"fp64": 64, "bf16": 512}),
    "MI210": (104, 1.700, 1.700, CDNA2),
    "MI250 (one GCD)": (104, 1.700, 1.700, CDNA2),
    "MI250X (one GCD)": (110, 1.700, 1.700, CDNA2),
    "MI300A": (228, 2.100, 2.100, CDNA3),
    "MI300X": (304, 2.100, 2.100, CDNA3),
    "MI325X": (304, 2.100, 2.100, CDNA3),
    "MI350X": (256, 2.200, 2.200, CDNA4),
    "MI355X": (256, 2.400, 2.400, CDNA4),
    "P100-SXM2-16GB": (56, 1.480, 1.480, PASCAL),
    "P100-PCIE-16GB": (56, 1.303, 1.303, PASCAL),
    "V100-DGXS-16GB": (80, 1.530, 1.530, VOLTA),
    "V100-DGXS-32GB": (80, 1.530, 1.530, VOLTA),
    "A800-SXM4-40GB": (108, 1.410, 1.410, GA100),
    "A800 40GB Active": (108, 1.410, 1.410, GA100),
    "A800-SXM4-80GB": (108, 1.410, 1.410, GA100),
    "A800 80GB PCIe": (108, 1.410, 1.410, GA100),
    "A16 (one of four)": (10, 1.755, 1.755, GA102),
    "A2": (10, 1.770, 1.770, GA102),
    "H800 SXM": (132, 1.980, 1.830, GH100 | {"fp64": 4}),
    "H800 PCIe": (114, 1.755, 1.620, GH100 | {"fp64": 4}),
    "Quadro RTX 6000": (72, 1.770, 1.770, TURING),
    "Quadro RTX 8000": (72, 1.770, 1.770, TURING),
    "RTX A4000": (48, 1.560, 1.560, GA102),
    "RTX A4500": (56, 1.650, 1.650, GA102),
    "RTX A5000": (64, 1.695, 1.695, GA102),
    "RTX A5500": (80, 1.665, 1.665, GA102),
    "RTX 2000 Ada Generation": (22, 2.130, 2.130, AD102),
    "RTX 4000 SFF Ada Generation": (48, 1.560, 1.560, AD102),
    "RTX 4000 Ada Generation": (48, 2.175, 2.175, AD102),
    "RTX 4500 Ada Generation": (60, 2.580, 2.580, AD102),
    "RTX 5000 Ada Generation": (100, 2.550, 2.550, AD102),
    "RTX 5880 Ada Generation": (110, 2.460, 2.460, AD102),
    "RTX PRO 6000 Blackwell Workstation Edition": (188, 2.617, 2.617, AD102),
    "RTX PRO 6000 Blackwell Max-Q Workstation Edition": (188, 2.280, 2.280, AD102),
    "RTX PRO 6000 Blackwell Server Edition": (188, 2.490, 2.597, AD102),
    "GeForce RTX 2080 Ti": (68, 1.545, 1.545, TURING_HALF),
    "TITAN RTX": (72, 1.770, 1.770, TURING),
    "GeForce RTX 3060": (28, 1.777, 1.777, GA102_HALF),
    "GeForce RTX 3070": (46, 1.725, 1.725, GA102_HALF),
    "GeForce RTX 3070 Ti": (48, 1.770, 1.770, GA102_HALF),
    "GeForce RTX 3080 10GB": (68, 1.710, 1.710, GA102_HALF),
    "GeForce RTX 3080 12GB": (70, 1.710, 1.710, GA102_HALF),
    "GeForce RTX 3080 Ti": (80, 1.665, 1.665, GA102_HALF),
    "GeForce RTX 3090 Ti": (84, 1.860, 1.860, GA102_HALF),
    "GeForce RTX 4060": (24, 2.460, 2.460, AD102_HALF),
    "GeForce RTX 4060 Ti 8GB": (34, 2.535, 2.535, AD102_HALF),
    "GeForce RTX 4060 Ti 16GB": (34, 2.535, 2.535, AD102_HALF),
    "GeForce RTX 4070": (46, 2.475, 2.475, AD102_HALF),
    "GeForce RTX 4070 SUPER": (56, 2.475, 2.475, AD102_HALF),
    "GeForce RTX 4070 Ti": (60, 2.610, 2.610, AD102_HALF),
    "GeForce RTX 4070 Ti SUPER": (66, 2.610, 2.610, AD102_HALF),
    "GeForce RTX 4080": (76, 2.505, 2.505, AD102_HALF),
    "GeForce RTX 4080 SUPER": (80, 2.550, 2.550, AD102_HALF),
    "GeForce RTX 4090 D": (114, 2.520, 2.520, AD102_HALF),
    "GeForce RTX 5060": (30, 2.497, 2.497, GB202_HALF),
    "GeForce RTX 5060 Ti 8GB": (36, 2.572, 2.572, GB202_HALF),
    "GeForce RTX 5060 Ti 16GB": (36, 2.572, 2.572, GB202_HALF),
    "GeForce RTX 5070": (48, 2.512, 2.512, GB202_HALF),
    "GeForce RTX 5070 Ti": (70, 2.452, 2.452, GB202_HALF),
    "GeForce RTX 5080": (84, 2.617, 2.617, GB202_HALF),
    "Radeon PRO W7900": (96, 2.495, 2.495, RDNA3),
    "Radeon RX 7900 XTX": (96, 2.500, 2.500, RDNA3),
    "Radeon RX 9070 XT": (64, 2.970, 2.970, RDNA4),
    "Radeon AI PRO R9700": (64, 2.920, 2.920, RDNA4),
    "Data Center GPU Max 1100": (56, 1.550, 1.550, XE_HPC),
    "Data Center GPU Max 1550 (one stack)": (64, 1.600, 1.600, XE_HPC),
    "Arc B580": (20, 2.670, 2.850, XE2),
}
UNSTATED_CLOCK = {"GB200", "GB300"}
#: 10 TFLOP/s for eight; "1".
ROUNDED = {("B300", "fp64"): 0.08, ("H800 SXM", "fp64"): 0.05}


@pytest.mark.parametrize("device", known_chips(), ids=lambda d: d.name)
def test_every_row_is_whole(device: Device) -> None:
    assert set(device.peaks) <= set(DTYPES)
    assert {"fp32", "fp16"} <= set(device.peaks)
    assert 0.1e12 < device.bandwidth_bytes_per_s < 10e12
    assert 7 * 2**30 < (device.memory_bytes or 0) < 300 * 2**30
    assert [device.capability, device.architecture].count(None) == (
        2 if device.name in INTEL else 1
    )
    title, _, address = device.source.rpartition(", ")
    assert title
    assert address.startswith("https://")
    assert device.name in BY_NAME
    assert device.names


def test_no_two_rows_have_one_name() -> None:
    assert len(BY_NAME) == len(known_chips())


@pytest.mark.one_in(4)
@pytest.mark.parametrize("device", known_chips(), ids=lambda d: d.name)
def test_a_narrower_type_is_never_slower(device: Device) -> None:
    peaks = device.peaks
    order = [peaks[d] for d in ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8") if d in peaks]
    assert order == sorted(order)
    assert peaks.get("int8", peaks["fp16"]) >= peaks["fp16"]
    assert peaks["fp16"] >= 1.9 * peaks["fp32"]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("device", known_chips(), ids=lambda d: d.name)
def test_peaks_follow_from_the_chip(device: Device) -> None:
    """Multiprocessors × clock × FLOP a clock: a sparse figure would be twice as high."""
    if device.name in UNSTATED_CLOCK:
        pytest.skip("no document states its clock")
    count, vector_ghz, matrix_ghz, rates = SILICON[device.name]
    assert device.multiprocessors in {count, None}
    assert (device.multiprocessors is None) == (device.name in INTEL or "Radeon" in device.name)
    for dtype, peak in device.peaks.items():
        ghz = vector_ghz if dtype in {"fp64", "fp32"} else matrix_ghz
        rel = ROUNDED.get((device.name, dtype), 0.02)
        assert peak == pytest.approx(count * ghz * 1e9 * rates[dtype], rel=rel), dtype


def test_known_figures_are_the_dense_ones() -> None:
    assert BY_NAME["H100 SXM"].peaks["bf16"] == 989.4e12
    assert BY_NAME["A100-SXM4-80GB"].peaks["tf32"] == 156e12
    assert BY_NAME["MI300X"].peaks["fp8"] == 2614.9e12
    assert BY_NAME["H100 SXM"].bandwidth_bytes_per_s == 3352e9
    assert "fp8" not in BY_NAME["A100-SXM4-80GB"].peaks
    assert "bf16" not in BY_NAME["V100-SXM2-16GB"].peaks


# -------------------------------------------------------------------------------------- by name


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Tesla V100-SXM2-16GB", "V100-SXM2-16GB"),
        ("Tesla V100-SXM2-32GB", "V100-SXM2-32GB"),
        ("Tesla V100-PCIE-16GB", "V100-PCIE-16GB"),
        ("Tesla V100-PCIE-32GB", "V100-PCIE-32GB"),
        ("Tesla V100S-PCIE-32GB", "V100S-PCIE-32GB"),
        ("Tesla T4", "T4"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA A30", "A30"),
        ("NVIDIA A40", "A40"),
        ("A40", "A40"),
        ("NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB"),
        ("A100-SXM4-40GB", "A100-SXM4-40GB"),
        ("A100-SXM-80GB", "A100-SXM4-80GB"),
        ("NVIDIA A100-PG509-200", "A100-SXM4-40GB"),
        ("A100-PCIE-40GB", "A100-PCIE-40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("NVIDIA A100 80GB PCIe", "A100 80GB PCIe"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40", "L40"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA RTX A6000", "RTX A6000"),
        ("NVIDIA GeForce RTX 3090", "GeForce RTX 3090"),
        ("GeForce RTX 3090", "GeForce RTX 3090"),
        ("NVIDIA GeForce RTX 4090", "GeForce RTX 4090"),
        ("NVIDIA GeForce RTX 5090", "GeForce RTX 5090"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada Generation"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA H200 NVL", "H200 NVL"),
        ("NVIDIA GH200 480GB", "GH200 96GB"),
        ("NVIDIA GH200 120GB", "GH200 96GB"),
        ("NVIDIA GH200 144G HBM3e", "GH200 144GB"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("NVIDIA GB300", "GB300"),
        ("Tesla P100-SXM2-16GB", "P100-SXM2-16GB"),
        ("Tesla P100-PCIE-16GB", "P100-PCIE-16GB"),
        ("Tesla V100-DGXS-16GB", "V100-DGXS-16GB"),
        ("Tesla V100-DGXS-32GB", "V100-DGXS-32GB"),
        ("NVIDIA PG509-210", "A100-SXM4-80GB"),
        ("NVIDIA A100-PG509-210", "A100-SXM4-80GB"),
        ("NVIDIA A800-SXM4-80GB", "A800-SXM4-80GB"),
        ("NVIDIA A800 80GB PCIe", "A800 80GB PCIe"),
        ("NVIDIA A800 40GB Active", "A800 40GB Active"),
        ("NVIDIA A16", "A16 (one of four)"),
        ("NVIDIA A2", "A2"),
        ("NVIDIA H800", "H800 SXM"),
        ("NVIDIA H800 PCIe", "H800 PCIe"),
        ("Quadro RTX 6000", "Quadro RTX 6000"),
        ("Quadro RTX 8000", "Quadro RTX 8000"),
        ("NVIDIA RTX A4000", "RTX A4000"),
        ("NVIDIA RTX A5000", "RTX A5000"),
        ("NVIDIA RTX 5000 Ada Generation", "RTX 5000 Ada Generation"),
        ("NVIDIA RTX 4000 SFF Ada Generation", "RTX 4000 SFF Ada Generation"),
        (
            "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
            "RTX PRO 6000 Blackwell Workstation Edition",
        ),
        (
            "NVIDIA RTX PRO 6000 Blackwell Server Edition",
            "RTX PRO 6000 Blackwell Server Edition",
        ),
        ("NVIDIA GeForce RTX 2080 Ti", "GeForce RTX 2080 Ti"),
        ("GeForce RTX 2080 Ti", "GeForce RTX 2080 Ti"),
        ("NVIDIA TITAN RTX", "TITAN RTX"),
        ("NVIDIA GeForce RTX 3060", "GeForce RTX 3060"),
        ("NVIDIA GeForce RTX 3080 Ti", "GeForce RTX 3080 Ti"),
        ("NVIDIA GeForce RTX 3090 Ti", "GeForce RTX 3090 Ti"),
        ("NVIDIA GeForce RTX 4060", "GeForce RTX 4060"),
        ("NVIDIA GeForce RTX 4060 Ti", "GeForce RTX 4060 Ti 8GB"),  # or the other, as fast
        ("NVIDIA GeForce RTX 4070", "GeForce RTX 4070"),
        ("NVIDIA GeForce RTX 4070 SUPER", "GeForce RTX 4070 SUPER"),
        ("NVIDIA GeForce RTX 4070 Ti", "GeForce RTX 4070 Ti"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "GeForce RTX 4070 Ti SUPER"),
        ("NVIDIA GeForce RTX 4080", "GeForce RTX 4080"),
        ("NVIDIA GeForce RTX 4080 SUPER", "GeForce RTX 4080 SUPER"),
        ("NVIDIA GeForce RTX 4090 D", "GeForce RTX 4090 D"),
        ("NVIDIA GeForce RTX 5070", "GeForce RTX 5070"),
        ("NVIDIA GeForce RTX 5070 Ti", "GeForce RTX 5070 Ti"),
        ("NVIDIA GeForce RTX 5080", "GeForce RTX 5080"),
        ("AMD Radeon RX 7900 XTX", "Radeon RX 7900 XTX"),
        ("Radeon RX 7900 XTX", "Radeon RX 7900 XTX"),
        ("AMD Radeon PRO W7900", "Radeon PRO W7900"),
        ("AMD Radeon RX 9070 XT", "Radeon RX 9070 XT"),
        ("AMD Radeon AI PRO R9700", "Radeon AI PRO R9700"),
        ("Intel(R) Data Center GPU Max 1100", "Data Center GPU Max 1100"),
        ("Intel(R) Data Center GPU Max 1550", "Data Center GPU Max 1550 (one stack)"),
        ("Intel(R) Arc(TM) B580 Graphics", "Arc B580"),
        ("AMD Instinct MI100", "MI100"),
        ("AMD Instinct MI210", "MI210"),
        ("AMD Instinct MI250X", "MI250X (one GCD)"),
        ("AMD Instinct MI250", "MI250 (one GCD)"),
        ("AMD INSTINCT MI250 (MCM) OAM AC MBA", "MI250 (one GCD)"),
        ("AMD Instinct MI300A", "MI300A"),
        ("AMD Instinct MI300X", "MI300X"),
        ("AMD Instinct MI300X OAM", "MI300X"),
        ("AMD Instinct MI300X VF", "MI300X"),
        ("AMD Instinct MI325X", "MI325X"),
        ("AMD Instinct MI325X OAM", "MI325X"),
        ("AMD Instinct MI350X", "MI350X"),
        ("AMD Instinct MI355X", "MI355X"),
        ("  nvidia   h100 nvl ", "H100 NVL"),
    ],
)
def test_names_as_drivers_print_them(name: str, expected: str) -> None:
    assert named(name) == expected


@pytest.mark.parametrize(
    "name",
    [
        "",
        "NVIDIA",
        "NVIDIA Graphics Device",
        "AMD Radeon Graphics",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA A100-PG509-200 MIG 1g.5gb",
        "NVIDIA H100 80GB HBM3 MIG 7g.80gb",
        "GRID A100-10C",
        "NVIDIA A40-48Q",
        "NVIDIA A100",
        "NVIDIA A100-SXM-64GB",
        "NVIDIA A100X",
        "NVIDIA A10M",
        "NVIDIA H20",
        "NVIDIA H100",
        "NVIDIA H100 64GB HBM2",
        "NVIDIA B100",
        "NVIDIA L2",
        "NVIDIA L20",
        "NVIDIA L40G",
        "NVIDIA T4G",
        "NVIDIA T4 32GB",
        "NVIDIA T400",
        "NVIDIA RTX 6000",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 5090 D",
        "NVIDIA GeForce RTX 5090 Laptop GPU",
        "Quadro RTX 6000 with Max-Q Design",
        "Tesla V100-FHHL-16GB",
        "NVIDIA TITAN V",
        "AMD Instinct MI308X",
        "AMD Instinct MI300X HF",
        "AMD Instinct MI300",
        "AMD Instinct MI250X/MI250",
        "AMD Instinct MI50",
        "A100-SXM4-40GB" * 1000,
        "NVIDIA A100-PG509-200 MIG 3g.20gb",
        "NVIDIA A100-PG509",  # 40 or 80 GB, with two bandwidths
        "NVIDIA H800 NVL",
        "NVIDIA H20-3e",
        "NVIDIA AX800",
        "NVIDIA A800 80GB PCIe LC",
        "NVIDIA GeForce RTX 2080",
        "NVIDIA GeForce RTX 2080 SUPER",
        "NVIDIA GeForce RTX 3060 Ti",  # two bandwidths
        "NVIDIA GeForce RTX 3060 Laptop GPU",
        "NVIDIA GeForce RTX 3080",  # 10 or 12 GB, with two numbers of multiprocessors
        "NVIDIA GeForce RTX 3080 Laptop GPU",
        "NVIDIA GeForce RTX 3080 Ti Laptop GPU",
        "NVIDIA GeForce RTX 4060 Laptop GPU",
        "NVIDIA GeForce RTX 4070 Laptop GPU",
        "NVIDIA GeForce RTX 4080 Laptop GPU",
        "NVIDIA GeForce RTX 5070 Ti Laptop GPU",
        "NVIDIA GeForce RTX 5080 Laptop GPU",
        "NVIDIA GeForce RTX 5090 D v2",
        "NVIDIA RTX 5000 Ada Generation Laptop GPU",
        "NVIDIA RTX A5000 Laptop GPU",
        "NVIDIA RTX PRO 5000 Blackwell",
        "NVIDIA RTX PRO 6000 Blackwell",
        "NVIDIA TITAN Xp",
        "NVIDIA GB10",
        "AMD Radeon RX 7900 XT",
        "AMD Radeon RX 9070",
        "Intel(R) Data Center GPU Max 1450",
        "Intel(R) Data Center GPU Flex 170",
        "Intel(R) Arc(TM) A770 Graphics",
    ],
)
def test_other_names_are_unknown(name: str) -> None:
    assert named(name) is None


@pytest.mark.one_in(4)
@pytest.mark.parametrize("device", known_chips(), ids=lambda d: d.name)
def test_every_name_of_a_row_finds_it_with_all_its_facts(device: Device) -> None:
    capability = device.capability or devices.hip_capability(device.architecture or "") or (0, 0)
    known = facts(*capability, (device.memory_bytes or 0) / 2**30 * 0.99, device.multiprocessors)
    for name in device.names[1:] or device.names:
        assert find({"name": name, **known}) is device


@pytest.mark.parametrize(
    ("name", "other", "expected"),
    [
        ("NVIDIA GeForce RTX 3080", facts(8, 6, 9.77, 68), "GeForce RTX 3080 10GB"),
        ("NVIDIA GeForce RTX 3080", facts(8, 6, 11.76, 70), "GeForce RTX 3080 12GB"),
        ("NVIDIA GeForce RTX 3060", facts(8, 6, 11.76, 28), "GeForce RTX 3060"),
        ("NVIDIA GeForce RTX 3060", facts(8, 6, 7.79, 28), None),  # the one of 8 GB is slower
        ("NVIDIA GeForce RTX 4060 Ti", facts(8, 9, 15.6, 34), "GeForce RTX 4060 Ti 16GB"),
        ("NVIDIA A100-PG509", facts(8, 0, 39.4, 108), "A100-SXM4-40GB"),
        ("NVIDIA A100-PG509", facts(8, 0, 79.2, 108), "A100-SXM4-80GB"),
        ("NVIDIA GeForce RTX 4080 SUPER", facts(8, 9, 15.6, 76), None),  # no such thing
        ("Intel(R) Data Center GPU Max 1550", {"totalGlobalMem": 64 * 2**30},
         "Data Center GPU Max 1550 (one stack)"),
        ("Intel(R) Data Center GPU Max 1550", {"totalGlobalMem": 128 * 2**30}, None),
        ("AMD Radeon RX 7900 XTX", facts(11, 0, 23.98, 48), "Radeon RX 7900 XTX"),
    ],
)  # fmt: skip
def test_boards_with_the_same_name_are_distinguished_by_their_other_properties(
    name: str, other: dict[str, Any], expected: str | None
) -> None:
    assert named(name, **other) == expected


def test_two_chips_with_the_same_name_are_distinguished_by_compute_units() -> None:
    name = "AMD Instinct MI250X/MI250"
    assert named(name, **facts(9, 0, 63.98, 110)) == "MI250X (one GCD)"
    assert named(name, **facts(9, 0, 63.98, 104)) == "MI250 (one GCD)"
    assert named(name, **facts(9, 0, 63.98)) is None


@pytest.mark.parametrize(
    "other",
    [
        {"numSms": 38},
        {"numSms": "38", "totalGlobalMem": "25769803776"},
        {"totalGlobalMem": 24 * 2**30},
        {"computeMajor": 9, "computeMinor": 0},
    ],
)
def test_a_slice_of_a_device_is_unknown(other: dict[str, Any]) -> None:
    """A compute partition keeps the name of the whole."""
    assert named("AMD Instinct MI300X", **other) is None


# -------------------------------------------------------------------------------- without a name

NAMELESS = ["", "NVIDIA Graphics Device", "AMD Radeon Graphics", None, 7]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", NAMELESS)
@pytest.mark.parametrize(
    ("known", "expected"),
    [
        (facts(9, 4, 191.98, 304), "MI300X"),
        (facts(9, 4, 191.98), "MI300X"),
        (facts(9, 4, 255.98, 304), "MI325X"),
        (facts(9, 4, 127.9, 228), "MI300A"),
        (facts(9, 0, 31.98, 120), "MI100"),
        (facts(9, 0, 63.98, 110), "MI250X (one GCD)"),
        (facts(9, 0, 139.8, 132), None),  # H200 or H200 NVL
        (facts(9, 0, 79.2, 132), None),  # H100 SXM or H800, which has no fp64
        (facts(9, 0, 79.2, 114), None),
        (facts(8, 0, 39.4, 108), "A100-SXM4-40GB"),  # or the PCIe card, with the same peaks
        (facts(8, 9, 23.5, 128), "GeForce RTX 4090"),
        (facts(9, 5, 287.98, 256), None),  # MI350X or MI355X
        (facts(9, 0, 63.98, 104), None),  # MI210 or MI250
        (facts(9, 0, 79.2), None),  # H100 SXM or PCIe
        (facts(8, 0, 79.2, 108), None),  # two bandwidths
        (facts(8, 6, 47.5, 84), None),  # A40 or RTX A6000
        (facts(8, 9, 47.5, 142), None),  # L40, L40S or RTX 6000 Ada
        (facts(9, 4, 24, 38), None),  # a partition
        (facts(9, 0, 95.6, 78), None),  # H20
        (facts(8, 0, 4.75, 14), None),  # a MIG slice
        (facts(7, 5, 23.6, 72), "Quadro RTX 6000"),  # or the TITAN RTX, with the same peaks
        (facts(7, 5, 22, 71), None),
        ({"computeMajor": 9, "computeMinor": 4}, None),
        ({"totalGlobalMem": 206141652992, "numSms": 304}, None),
        ({"totalGlobalMem": 206141652992, "computeMajor": 9}, None),
    ],
)
def test_without_a_name_the_facts_decide(
    name: object, known: dict[str, Any], expected: str | None
) -> None:
    device = find({"name": name, **known})
    assert expected == (device and device.name)


def test_numbers_may_be_text() -> None:
    known = {key: str(value) for key, value in facts(9, 4, 191.98, 304).items()}
    assert named("", **known) == "MI300X"
    assert named("", **{key: float(value) for key, value in known.items()}) == "MI300X"


def test_a_name_that_is_not_known_is_not_guessed_from_facts() -> None:
    assert named("NVIDIA H900", **facts(9, 0, 79.2, 132)) is None


# ----------------------------------------------------------------------------- a user's, and junk

X1 = Device("X1", {"bf16": 1e12}, 1e12, names=("Example X1",))


def test_extra_devices_come_first() -> None:
    assert find({"name": "NVIDIA Example X1"}, [X1]) is X1
    mine = replace(X1, name="NVIDIA H200")
    assert find({"name": "NVIDIA H200"}, [mine]) is mine
    nameless = replace(X1, architecture="gfx942", memory_bytes=192 * 2**30)
    assert find({"name": "", **facts(9, 4, 191.98)}, [nameless]) is nameless
    unknown = replace(X1, name="NVIDIA Graphics Device")
    assert find({"name": "NVIDIA Graphics Device"}, [unknown]) is unknown


def test_an_extra_device_without_facts_does_not_take_all() -> None:
    assert find({"name": "", **facts(9, 4, 191.98, 304)}, [X1]) is BY_NAME["MI300X"]
    assert find({}, [X1]) is None
    assert find({"name": "NVIDIA A100"}, [X1]) is None


def test_an_extra_device_that_does_not_fit_is_passed_over() -> None:
    small = replace(X1, name="NVIDIA H200", memory_bytes=2**30)
    assert find({"name": "NVIDIA H200", **facts(9, 0, 139.8, 132)}, [small]) is BY_NAME["H200"]


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=4,
)
KEYS = st.sampled_from(["name", "totalGlobalMem", "computeMajor", "computeMinor", "numSms"])


@given(JUNK | st.dictionaries(KEYS, JUNK | st.just(10**400) | st.just("9" * 5000) | st.just("²")))
def test_junk_does_not_match_a_device(properties: Any) -> None:
    assert find(properties, [X1]) in {None, X1}


@given(
    st.sampled_from([n for d in known_chips() for n in d.names]), st.text(min_size=1, max_size=3)
)
def test_what_is_added_to_a_name_makes_it_another(name: str, more: str) -> None:
    device = find({"name": f"{name} x{more}"})
    assert device is None


# ---------------------------------------------------------------------------------- real traces


@pytest.mark.parametrize(
    ("trace", "expected"),
    [
        ("a100_alexnet", "A100-SXM4-40GB"),
        ("a100_sam_compiled", "A100-SXM4-40GB"),
        ("h100_bert_inference", "H100 SXM"),
        ("h100_vit_inference", "H100 SXM"),
        ("mi300_vllm_graph_replay", "MI300X"),
        ("v100_dlrm_rank0", "V100-SXM2-32GB"),
        ("v100_dlrm_rank1", "V100-SXM2-32GB"),
    ],
)
def test_real_traces(trace: str, expected: str) -> None:
    path = CORPUS / f"{trace}.pt.trace.json.gz"
    if not path.exists():
        pytest.skip(f"no real traces: {path.parent} has no {path.name}")
    properties = read_trace(path).metadata["deviceProperties"]
    assert {device and device.name for device in map(find, properties)} == {expected}
