"""Intel's accelerators. A name is what the driver prints.

`fp64` and `fp32` are the vector engines' figures, the others the matrix engines' (XMX). The Max
1550 is two stacks in one package, and torch sees each stack as a device, as Level Zero reports them
unless ``ZE_FLAT_DEVICE_HIERARCHY=COMPOSITE`` is set: its row is half of the package. A device with
128 GB, which is the whole package, is unknown.
"""

from __future__ import annotations

from pytest_torchprof.work.devices.device import Device, make_row

_MAX = (
    "Intel Data Center GPU Max Series Technical Overview, "
    "https://www.intel.com/content/www/us/en/developer/articles/technical/intel-data-center-gpu-max-series-overview.html"
)
_B580 = (
    "Intel Arc B580 specifications, "
    "https://www.intel.com/content/www/us/en/products/sku/241598/intel-arc-b580-graphics/specifications.html"
)

# fmt: off
INTEL: tuple[Device, ...] = (
    make_row("Data Center GPU Max 1100", "Intel(R) Data Center GPU Max 1100", gb=48,
             gb_per_s=1228.8, source=_MAX,
             peaks={"fp64": 22.2, "fp32": 22.2, "tf32": 177.8, "bf16": 355.5, "fp16": 355.5,
                    "int8": 711.1}),
    make_row("Data Center GPU Max 1550 (one stack)", "Intel(R) Data Center GPU Max 1550", gb=64,
             gb_per_s=1638.4, source=_MAX,
             peaks={"fp64": 26.2, "fp32": 26.2, "tf32": 209.7, "bf16": 419.4, "fp16": 419.4,
                    "int8": 838.9}),
    # The matrix engines' figure is stated at a higher clock.
    make_row("Arc B580", "Intel(R) Arc(TM) B580 Graphics", gb=12, gb_per_s=456, source=_B580,
             peaks={"fp32": 13.67, "bf16": 116.5, "fp16": 116.5, "int8": 233.0}),
)
# fmt: on
