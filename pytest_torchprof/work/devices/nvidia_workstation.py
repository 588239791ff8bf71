"""NVIDIA's workstation cards, oldest first. A name is what the driver prints.

Their tensor cores run at the full rate with fp32 accumulation. Where no whitepaper lists a card,
its figures are computed from the chip's rates at the clock of the datasheet's fp32 figure; the
tests have both. Laptop chips have other clocks and are left out.
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
_RTX_A = (
    "NVIDIA RTX A series datasheets and GA102 whitepaper, "
    "https://www.nvidia.com/en-us/products/workstations/"
)
_RTX_ADA = (
    "NVIDIA RTX Ada Generation datasheets and Ada whitepaper, "
    "https://www.nvidia.com/en-us/products/workstations/"
)
_ADA_PRO = (
    "NVIDIA Ada Lovelace Professional GPU Architecture whitepaper, "
    "https://images.nvidia.com/aem-dam/en-zz/Solutions/technologies/NVIDIA-ADA-GPU-PROVIZ-Architecture-Whitepaper_1.1.pdf"
)
_RTX_PRO = (
    "NVIDIA RTX PRO 6000 Blackwell datasheets and RTX Blackwell whitepaper, "
    "https://www.nvidia.com/en-us/products/workstations/professional-desktop-gpus/rtx-pro-6000/"
)
_RTX_PRO_SERVER = (
    "NVIDIA RTX PRO 6000 Blackwell Server Edition specifications, "
    "https://www.nvidia.com/en-us/data-center/rtx-pro-6000-blackwell-server-edition/"
)

# fmt: off
WORKSTATION: tuple[Device, ...] = (
    # Turing.
    make_row("Quadro RTX 6000", cuda=(7, 5), sms=72, gb=24, gb_per_s=672, source=_TURING,
             peaks={"fp32": 16.3, "fp16": 130.5, "int8": 261.0}),
    make_row("Quadro RTX 8000", cuda=(7, 5), sms=72, gb=48, gb_per_s=672, source=_TURING,
             peaks={"fp32": 16.3, "fp16": 130.5, "int8": 261.0}),

    # Ampere.
    make_row("RTX A4000", cuda=(8, 6), sms=48, gb=16, gb_per_s=448, source=_RTX_A,
             peaks={"fp32": 19.17, "tf32": 38.34, "bf16": 76.68, "fp16": 76.68, "int8": 153.4}),
    make_row("RTX A4500", cuda=(8, 6), sms=56, gb=20, gb_per_s=640, source=_RTX_A,
             peaks={"fp32": 23.65, "tf32": 47.31, "bf16": 94.62, "fp16": 94.62, "int8": 189.2}),
    make_row("RTX A5000", cuda=(8, 6), sms=64, gb=24, gb_per_s=768, source=_RTX_A,
             peaks={"fp32": 27.77, "tf32": 55.54, "bf16": 111.1, "fp16": 111.1, "int8": 222.2}),
    make_row("RTX A5500", cuda=(8, 6), sms=80, gb=24, gb_per_s=768, source=_RTX_A,
             peaks={"fp32": 34.1, "tf32": 68.2, "bf16": 136.4, "fp16": 136.4, "int8": 272.8}),
    make_row("RTX A6000", cuda=(8, 6), sms=84, gb=48, gb_per_s=768, source=_GA102,
             peaks={"fp32": 38.7, "tf32": 77.4, "bf16": 154.8, "fp16": 154.8, "int8": 309.7}),

    # Ada.
    make_row("RTX 2000 Ada Generation", cuda=(8, 9), sms=22, gb=16, gb_per_s=224, source=_RTX_ADA,
             peaks={"fp32": 12.0, "tf32": 23.99, "bf16": 47.98, "fp16": 47.98, "fp8": 95.97,
                    "int8": 95.97}),
    make_row("RTX 4000 SFF Ada Generation", cuda=(8, 9), sms=48, gb=20, gb_per_s=280,
             source=_RTX_ADA,
             peaks={"fp32": 19.17, "tf32": 38.34, "bf16": 76.68, "fp16": 76.68, "fp8": 153.4,
                    "int8": 153.4}),
    make_row("RTX 4000 Ada Generation", cuda=(8, 9), sms=48, gb=20, gb_per_s=360, source=_RTX_ADA,
             peaks={"fp32": 26.73, "tf32": 53.45, "bf16": 106.9, "fp16": 106.9, "fp8": 213.8,
                    "int8": 213.8}),
    make_row("RTX 4500 Ada Generation", cuda=(8, 9), sms=60, gb=24, gb_per_s=432, source=_RTX_ADA,
             peaks={"fp32": 39.63, "tf32": 79.26, "bf16": 158.5, "fp16": 158.5, "fp8": 317.0,
                    "int8": 317.0}),
    make_row("RTX 5000 Ada Generation", cuda=(8, 9), sms=100, gb=32, gb_per_s=576, source=_RTX_ADA,
             peaks={"fp32": 65.28, "tf32": 130.6, "bf16": 261.1, "fp16": 261.1, "fp8": 522.2,
                    "int8": 522.2}),
    make_row("RTX 5880 Ada Generation", cuda=(8, 9), sms=110, gb=48, gb_per_s=960, source=_RTX_ADA,
             peaks={"fp32": 69.27, "tf32": 138.5, "bf16": 277.1, "fp16": 277.1, "fp8": 554.2,
                    "int8": 554.2}),
    make_row("RTX 6000 Ada Generation", cuda=(8, 9), sms=142, gb=48, gb_per_s=960, source=_ADA_PRO,
             peaks={"fp32": 91.1, "tf32": 182.1, "bf16": 364.2, "fp16": 364.2, "fp8": 728.5,
                    "int8": 728.5}),

    # Blackwell.
    make_row("RTX PRO 6000 Blackwell Workstation Edition", cuda=(12, 0), sms=188,
             gb=96, gb_per_s=1792, source=_RTX_PRO,
             peaks={"fp32": 126.0, "tf32": 251.9, "bf16": 503.8, "fp16": 503.8, "fp8": 1008.0,
                    "int8": 1008.0}),
    make_row("RTX PRO 6000 Blackwell Max-Q Workstation Edition", cuda=(12, 0), sms=188,
             gb=96, gb_per_s=1792, source=_RTX_PRO,
             peaks={"fp32": 109.7, "tf32": 219.5, "bf16": 438.9, "fp16": 438.9, "fp8": 877.9,
                    "int8": 877.9}),
    # Its page states rounded figures, sparse ones for the tensor cores: 4 PFLOP/s of fp4.
    make_row("RTX PRO 6000 Blackwell Server Edition", cuda=(12, 0), sms=188, gb=96, gb_per_s=1597,
             source=_RTX_PRO_SERVER,
             peaks={"fp32": 120.0, "tf32": 250.0, "bf16": 500.0, "fp16": 500.0, "fp8": 1000.0,
                    "int8": 1000.0}),
)
# fmt: on
