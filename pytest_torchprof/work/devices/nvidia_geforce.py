"""NVIDIA's GeForce and TITAN cards, oldest first. A name is what the driver prints.

Tensor cores of GeForce cards run at half the rate with fp32 accumulation, so TF32 is no faster than
fp32. Where no whitepaper lists a card, its figures are computed from the chip's rates at the boost
clock that the vendor states; the tests have both. Laptop chips have other clocks and are left out,
and so are boards that share a name and differ in bandwidth (RTX 3060 Ti).
"""

from __future__ import annotations

from pytest_torchprof.work.devices.device import Device, make_row

_TURING = (
    "NVIDIA Turing GPU Architecture whitepaper, "
    "https://images.nvidia.com/aem-dam/en-zz/Solutions/design-visualization/technologies/turing-architecture/NVIDIA-Turing-Architecture-Whitepaper.pdf"
)
_GA102 = (
    "NVIDIA Ampere GA102 GPU Architecture whitepaper, "
    "https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf"
)
_GEFORCE_30 = (
    "GeForce RTX 30 series specifications and GA102 whitepaper, "
    "https://www.nvidia.com/en-us/geforce/graphics-cards/30-series/"
)
_ADA = (
    "NVIDIA Ada GPU Architecture whitepaper, "
    "https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf"
)
_GEFORCE_40 = (
    "GeForce RTX 40 series specifications and Ada whitepaper, "
    "https://www.nvidia.com/en-us/geforce/graphics-cards/40-series/"
)
_RTX_BLACKWELL = (
    "NVIDIA RTX Blackwell GPU Architecture whitepaper, "
    "https://images.nvidia.com/aem-dam/Solutions/geforce/blackwell/nvidia-rtx-blackwell-gpu-architecture.pdf"
)
_GEFORCE_50 = (
    "GeForce RTX 50 series specifications and RTX Blackwell whitepaper, "
    "https://www.nvidia.com/en-us/geforce/graphics-cards/50-series/"
)

# fmt: off
GEFORCE: tuple[Device, ...] = (
    # Turing. Tensor cores support fp16, at half the rate with fp32 accumulation, and int8.
    make_row("GeForce RTX 2080 Ti", cuda=(7, 5), sms=68, gb=11, gb_per_s=616, source=_TURING,
             peaks={"fp32": 13.4, "fp16": 53.8, "int8": 215.2}),
    # TITANs run at the full rate.
    make_row("TITAN RTX", cuda=(7, 5), sms=72, gb=24, gb_per_s=672, source=_TURING,
             peaks={"fp32": 16.3, "fp16": 130.5, "int8": 261.0}),

    # Ampere.
    make_row("GeForce RTX 3060", cuda=(8, 6), sms=28, gb=12, gb_per_s=360, source=_GEFORCE_30,
             peaks={"fp32": 12.74, "tf32": 12.74, "bf16": 25.48, "fp16": 25.48, "int8": 101.9}),
    make_row("GeForce RTX 3070", cuda=(8, 6), sms=46, gb=8, gb_per_s=448, source=_GA102,
             peaks={"fp32": 20.31, "tf32": 20.31, "bf16": 40.63, "fp16": 40.63, "int8": 162.5}),
    make_row("GeForce RTX 3070 Ti", cuda=(8, 6), sms=48, gb=8, gb_per_s=608, source=_GEFORCE_30,
             peaks={"fp32": 21.75, "tf32": 21.75, "bf16": 43.5, "fp16": 43.5, "int8": 174.0}),
    make_row("GeForce RTX 3080 10GB", "GeForce RTX 3080", cuda=(8, 6), sms=68, gb=10, gb_per_s=760,
             source=_GA102,
             peaks={"fp32": 29.77, "tf32": 29.77, "bf16": 59.54, "fp16": 59.54, "int8": 238.1}),
    make_row("GeForce RTX 3080 12GB", "GeForce RTX 3080", cuda=(8, 6), sms=70, gb=12, gb_per_s=912,
             source=_GEFORCE_30,
             peaks={"fp32": 30.64, "tf32": 30.64, "bf16": 61.29, "fp16": 61.29, "int8": 245.1}),
    make_row("GeForce RTX 3080 Ti", cuda=(8, 6), sms=80, gb=12, gb_per_s=912, source=_GEFORCE_30,
             peaks={"fp32": 34.1, "tf32": 34.1, "bf16": 68.2, "fp16": 68.2, "int8": 272.8}),
    make_row("GeForce RTX 3090", cuda=(8, 6), sms=82, gb=24, gb_per_s=936, source=_GA102,
             peaks={"fp64": 0.556, "fp32": 35.6, "tf32": 35.6, "bf16": 71.0, "fp16": 71.0,
                    "int8": 285.0}),
    make_row("GeForce RTX 3090 Ti", cuda=(8, 6), sms=84, gb=24, gb_per_s=1008, source=_ADA,
             peaks={"fp32": 40.0, "tf32": 40.0, "bf16": 79.99, "fp16": 79.99, "int8": 320.0}),

    # Ada. A later RTX 4070 board of the same name has GDDR6 at 480 GB/s.
    make_row("GeForce RTX 4060", cuda=(8, 9), sms=24, gb=8, gb_per_s=272, source=_GEFORCE_40,
             peaks={"fp32": 15.11, "tf32": 15.11, "bf16": 30.23, "fp16": 30.23, "fp8": 60.46,
                    "int8": 120.9}),
    make_row("GeForce RTX 4060 Ti 8GB", "GeForce RTX 4060 Ti", cuda=(8, 9), sms=34,
             gb=8, gb_per_s=288, source=_GEFORCE_40,
             peaks={"fp32": 22.06, "tf32": 22.06, "bf16": 44.13, "fp16": 44.13, "fp8": 88.26,
                    "int8": 176.5}),
    make_row("GeForce RTX 4060 Ti 16GB", "GeForce RTX 4060 Ti", cuda=(8, 9), sms=34,
             gb=16, gb_per_s=288, source=_GEFORCE_40,
             peaks={"fp32": 22.06, "tf32": 22.06, "bf16": 44.13, "fp16": 44.13, "fp8": 88.26,
                    "int8": 176.5}),
    make_row("GeForce RTX 4070", cuda=(8, 9), sms=46, gb=12, gb_per_s=504.2, source=_GEFORCE_40,
             peaks={"fp32": 29.15, "tf32": 29.15, "bf16": 58.29, "fp16": 58.29, "fp8": 116.6,
                    "int8": 233.2}),
    make_row("GeForce RTX 4070 SUPER", cuda=(8, 9), sms=56, gb=12, gb_per_s=504.2,
             source=_GEFORCE_40,
             peaks={"fp32": 35.48, "tf32": 35.48, "bf16": 70.96, "fp16": 70.96, "fp8": 141.9,
                    "int8": 283.9}),
    make_row("GeForce RTX 4070 Ti", cuda=(8, 9), sms=60, gb=12, gb_per_s=504.2, source=_GEFORCE_40,
             peaks={"fp32": 40.09, "tf32": 40.09, "bf16": 80.18, "fp16": 80.18, "fp8": 160.4,
                    "int8": 320.7}),
    make_row("GeForce RTX 4070 Ti SUPER", cuda=(8, 9), sms=66, gb=16, gb_per_s=672.3,
             source=_GEFORCE_40,
             peaks={"fp32": 44.1, "tf32": 44.1, "bf16": 88.2, "fp16": 88.2, "fp8": 176.4,
                    "int8": 352.8}),
    make_row("GeForce RTX 4080", cuda=(8, 9), sms=76, gb=16, gb_per_s=716.8, source=_ADA,
             peaks={"fp32": 48.74, "tf32": 48.74, "bf16": 97.47, "fp16": 97.47, "fp8": 194.9,
                    "int8": 389.9}),
    make_row("GeForce RTX 4080 SUPER", cuda=(8, 9), sms=80, gb=16, gb_per_s=736.3,
             source=_GEFORCE_40,
             peaks={"fp32": 52.22, "tf32": 52.22, "bf16": 104.4, "fp16": 104.4, "fp8": 208.9,
                    "int8": 417.8}),
    make_row("GeForce RTX 4090 D", cuda=(8, 9), sms=114, gb=24, gb_per_s=1008, source=_GEFORCE_40,
             peaks={"fp32": 73.54, "tf32": 73.54, "bf16": 147.1, "fp16": 147.1, "fp8": 294.2,
                    "int8": 588.3}),
    make_row("GeForce RTX 4090", cuda=(8, 9), sms=128, gb=24, gb_per_s=1008, source=_ADA,
             peaks={"fp64": 1.29, "fp32": 82.6, "tf32": 82.6, "bf16": 165.2, "fp16": 165.2,
                    "fp8": 330.3, "int8": 660.6}),

    # Blackwell. The higher of the whitepaper's two fp8 figures: block-scaled fp8 runs at full rate,
    # with fp32 accumulation too, and torch's scaled matmul reaches it.
    make_row("GeForce RTX 5060", cuda=(12, 0), sms=30, gb=8, gb_per_s=448, source=_GEFORCE_50,
             peaks={"fp32": 19.18, "tf32": 19.18, "bf16": 38.35, "fp16": 38.35, "fp8": 153.4,
                    "int8": 153.4}),
    make_row("GeForce RTX 5060 Ti 8GB", "GeForce RTX 5060 Ti", cuda=(12, 0), sms=36,
             gb=8, gb_per_s=448, source=_GEFORCE_50,
             peaks={"fp32": 23.7, "tf32": 23.7, "bf16": 47.41, "fp16": 47.41, "fp8": 189.6,
                    "int8": 189.6}),
    make_row("GeForce RTX 5060 Ti 16GB", "GeForce RTX 5060 Ti", cuda=(12, 0), sms=36,
             gb=16, gb_per_s=448, source=_GEFORCE_50,
             peaks={"fp32": 23.7, "tf32": 23.7, "bf16": 47.41, "fp16": 47.41, "fp8": 189.6,
                    "int8": 189.6}),
    make_row("GeForce RTX 5070", cuda=(12, 0), sms=48, gb=12, gb_per_s=672, source=_RTX_BLACKWELL,
             peaks={"fp32": 30.87, "tf32": 30.87, "bf16": 61.73, "fp16": 61.73, "fp8": 246.9,
                    "int8": 246.9}),
    make_row("GeForce RTX 5070 Ti", cuda=(12, 0), sms=70, gb=16, gb_per_s=896,
             source=_RTX_BLACKWELL,
             peaks={"fp32": 43.94, "tf32": 43.94, "bf16": 87.88, "fp16": 87.88, "fp8": 351.5,
                    "int8": 351.5}),
    make_row("GeForce RTX 5080", cuda=(12, 0), sms=84, gb=16, gb_per_s=960, source=_RTX_BLACKWELL,
             peaks={"fp32": 56.28, "tf32": 56.28, "bf16": 112.6, "fp16": 112.6, "fp8": 450.2,
                    "int8": 450.2}),
    make_row("GeForce RTX 5090", cuda=(12, 0), sms=170, gb=32, gb_per_s=1792,
             source=_RTX_BLACKWELL,
             peaks={"fp64": 1.64, "fp32": 104.8, "tf32": 104.8, "bf16": 209.5, "fp16": 209.5,
                    "fp8": 838.0, "int8": 838.0}),
)
# fmt: on
