"""AMD's accelerators, oldest first. A name is what the driver prints, without the vendor.

`fp32` and `fp64` are the matrix cores' figures where those support them. MI250 and MI250X are two
dies in one package, and torch sees each die (GCD) as a device: their rows have half of the
datasheet's figures. CDNA 4 has no TF32 of its own, so none is given.
"""

from __future__ import annotations

from pytest_torchprof.work.devices.device import Device, make_row

_ACCELERATORS = "https://www.amd.com/en/products/accelerators/instinct"
_MI100 = (
    "AMD Instinct MI100 datasheet and CDNA whitepaper, "
    "https://www.amd.com/system/files/documents/amd-cdna-whitepaper.pdf"
)
_MI210 = f"AMD Instinct MI210 datasheet, {_ACCELERATORS}/mi200/mi210.html"
_MI250 = f"AMD Instinct MI250 datasheet, a half, {_ACCELERATORS}/mi200/mi250.html"
_MI250X = f"AMD Instinct MI250X datasheet, a half, {_ACCELERATORS}/mi200/mi250x.html"
_MI300A = f"AMD Instinct MI300A datasheet, {_ACCELERATORS}/mi300/mi300a.html"
_MI300X = f"AMD Instinct MI300X datasheet, {_ACCELERATORS}/mi300/mi300x.html"
_MI325X = f"AMD Instinct MI325X datasheet, {_ACCELERATORS}/mi300/mi325x.html"
_MI350X = f"AMD Instinct MI350X datasheet, {_ACCELERATORS}/mi350/mi350x.html"
_MI355X = f"AMD Instinct MI355X datasheet, {_ACCELERATORS}/mi350/mi355x.html"

_RX_7900_XTX = (
    "AMD Radeon RX 7900 XTX specifications, "
    "https://www.amd.com/en/products/graphics/desktops/radeon/7000-series/amd-radeon-rx-7900xtx.html"
)
_W7900 = (
    "AMD Radeon PRO W7900 specifications, "
    "https://www.amd.com/en/products/graphics/workstations/radeon-pro/w7900.html"
)
_RX_9070_XT = (
    "AMD Radeon RX 9070 XT specifications, "
    "https://www.amd.com/en/products/graphics/desktops/radeon/9000-series/amd-radeon-rx-9070xt.html"
)
_R9700 = (
    "AMD Radeon AI PRO R9700 specifications, "
    "https://www.amd.com/en/products/graphics/workstations/radeon-ai-pro/ai-9000-series/amd-radeon-ai-pro-r9700.html"
)

_CDNA3_304 = {"fp64": 163.4, "fp32": 163.4, "tf32": 653.7, "bf16": 1307.4, "fp16": 1307.4,
              "fp8": 2614.9, "int8": 2614.9}  # fmt: skip

# fmt: off
AMD: tuple[Device, ...] = (
    make_row("MI100", gfx="gfx908", sms=120, gb=32, gb_per_s=1228.8, source=_MI100,
             peaks={"fp64": 11.5, "fp32": 46.1, "bf16": 92.3, "fp16": 184.6, "int8": 184.6}),
    make_row("MI210", gfx="gfx90a", sms=104, gb=64, gb_per_s=1638.4, source=_MI210,
             peaks={"fp64": 45.3, "fp32": 45.3, "bf16": 181.0, "fp16": 181.0, "int8": 181.0}),
    # The driver prints one name for both packages; they differ in compute units.
    make_row("MI250 (one GCD)", "MI250", "MI250X/MI250", gfx="gfx90a", sms=104, gb=64,
             gb_per_s=1638.4, source=_MI250,
             peaks={"fp64": 45.25, "fp32": 45.25, "bf16": 181.05, "fp16": 181.05, "int8": 181.05}),
    make_row("MI250X (one GCD)", "MI250X", "MI250X/MI250", gfx="gfx90a", sms=110, gb=64,
             gb_per_s=1638.4, source=_MI250X,
             peaks={"fp64": 47.85, "fp32": 47.85, "bf16": 191.5, "fp16": 191.5, "int8": 191.5}),
    make_row("MI300A", gfx="gfx942", sms=228, gb=128, gb_per_s=5300, source=_MI300A,
             peaks={"fp64": 122.6, "fp32": 122.6, "tf32": 490.3, "bf16": 980.6, "fp16": 980.6,
                    "fp8": 1961.2, "int8": 1961.2}),
    make_row("MI300X", gfx="gfx942", sms=304, gb=192, gb_per_s=5300, peaks=_CDNA3_304,
             source=_MI300X),
    make_row("MI325X", gfx="gfx942", sms=304, gb=256, gb_per_s=6000, peaks=_CDNA3_304,
             source=_MI325X),
    make_row("MI350X", gfx="gfx950", sms=256, gb=288, gb_per_s=8000, source=_MI350X,
             peaks={"fp64": 72.1, "fp32": 144.2, "bf16": 2306.9, "fp16": 2306.9, "fp8": 4613.7,
                    "int8": 4613.7}),
    make_row("MI355X", gfx="gfx950", sms=256, gb=288, gb_per_s=8000, source=_MI355X,
             peaks={"fp64": 78.6, "fp32": 157.3, "bf16": 2516.6, "fp16": 2516.6, "fp8": 5033.2,
                    "int8": 5033.2}),

    # RDNA: fp32 assumes dual issue, the others use the matrix instructions. Drivers report pairs of
    # compute units or single ones, so their number is left out.
    make_row("Radeon PRO W7900", gfx="gfx1100", gb=48, gb_per_s=864, source=_W7900,
             peaks={"fp32": 61.3, "bf16": 122.6, "fp16": 122.6, "int8": 122.6}),
    make_row("Radeon RX 7900 XTX", gfx="gfx1100", gb=24, gb_per_s=960, source=_RX_7900_XTX,
             peaks={"fp32": 61.4, "bf16": 122.8, "fp16": 122.8, "int8": 122.8}),
    make_row("Radeon RX 9070 XT", gfx="gfx1201", gb=16, gb_per_s=640, source=_RX_9070_XT,
             peaks={"fp32": 48.7, "bf16": 195.0, "fp16": 195.0, "fp8": 389.0, "int8": 389.0}),
    make_row("Radeon AI PRO R9700", gfx="gfx1201", gb=32, gb_per_s=640, source=_R9700,
             peaks={"fp32": 47.8, "bf16": 191.0, "fp16": 191.0, "fp8": 383.0, "int8": 383.0}),
)
# fmt: on
