"""NVIDIA's accelerators for data centers, oldest first. A name is what the driver prints.

Where a datasheet prints only the sparse figure, the dense one is half of it. The tests have the
clocks behind the numbers and recompute them from the number of multiprocessors.
"""

from __future__ import annotations

from pytest_torchprof.work.devices.device import Device, make_row

_V100 = (
    "NVIDIA V100 Tensor Core GPU datasheet, "
    "https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf"
)
_P100 = (
    "NVIDIA Tesla P100 datasheet, "
    "https://images.nvidia.com/content/tesla/pdf/nvidia-tesla-p100-datasheet.pdf"
)
_DGX_STATION = (
    "NVIDIA DGX Station datasheet, a quarter, "
    "https://images.nvidia.com/content/newsletters/email/pdf/DGX-Station-WS.pdf"
)
_T4 = (
    "NVIDIA T4 datasheet, "
    "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/tesla-t4/t4-tensor-core-datasheet-951643.pdf"
)
_A10 = (
    "NVIDIA A10 datasheet, "
    "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a10/pdf/a10-datasheet.pdf"
)
_A10G = (
    "NVIDIA A10G datasheet of AWS, "
    "https://d1.awsstatic.com/product-marketing/ec2/NVIDIA_AWS_A10G_DataSheet_FINAL_02_17_2022.pdf"
)
_A16 = (
    "NVIDIA A16 datasheet, a quarter, "
    "https://images.nvidia.com/content/Solutions/data-center/vgpu/nvidia-a16-datasheet.pdf"
)
_A2 = (
    "NVIDIA A2 datasheet, "
    "https://www.nvidia.com/content/dam/en-zz/solutions/data-center/a2/pdf/a2-datasheet.pdf"
)
_A800 = (
    "NVIDIA A800 datasheet, as the A100's but for NVLink, "
    "https://www.nvidia.com/en-us/products/workstations/a800/"
)
_A30 = (
    "NVIDIA A30 datasheet, "
    "https://www.nvidia.com/content/dam/en-zz/Solutions/data-center/products/a30-gpu/pdf/a30-datasheet.pdf"
)
_A40 = (
    "NVIDIA A40 datasheet, "
    "https://images.nvidia.com/content/Solutions/data-center/a40/nvidia-a40-datasheet.pdf"
)
_A100 = (
    "NVIDIA A100 Tensor Core GPU datasheet, "
    "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf"
)
_L4 = "NVIDIA L4 Tensor Core GPU datasheet, https://www.nvidia.com/en-us/data-center/l4/"
_L40 = "NVIDIA L40 datasheet, https://www.nvidia.com/en-us/data-center/l40/"
_L40S = "NVIDIA L40S datasheet, https://www.nvidia.com/en-us/data-center/l40s/"
_HOPPER = (
    "NVIDIA H100 Tensor Core GPU Architecture whitepaper, "
    "https://resources.nvidia.com/en-us-tensor-core"
)
_H800 = (
    "ThinkSystem NVIDIA H800 PCIe product guide, "
    "https://lenovopress.lenovo.com/lp1814-thinksystem-nvidia-h800-pcie-gen5-gpu"
)
_H800_SXM = "NVIDIA H100 whitepaper, but for fp64, https://resources.nvidia.com/en-us-tensor-core"
_H100 = "NVIDIA H100 Tensor Core GPU datasheet, https://www.nvidia.com/en-us/data-center/h100/"
_H200 = "NVIDIA H200 Tensor Core GPU datasheet, https://www.nvidia.com/en-us/data-center/h200/"
_GH200 = (
    "NVIDIA GH200 Grace Hopper Superchip datasheet, "
    "https://www.nvidia.com/en-us/data-center/grace-hopper-superchip/"
)
_HGX = "NVIDIA HGX specifications, an eighth, https://www.nvidia.com/en-us/data-center/hgx/"
_GB200 = (
    "NVIDIA GB200 NVL72 specifications, half a superchip, "
    "https://www.nvidia.com/en-us/data-center/gb200-nvl72/"
)

_GB300 = (
    "NVIDIA GB300 NVL72 specifications, half a superchip, "
    "https://www.nvidia.com/en-us/data-center/gb300-nvl72/"
)

_V100_SXM2 = {"fp64": 7.8, "fp32": 15.7, "fp16": 125.0}
_V100_PCIE = {"fp64": 7.0, "fp32": 14.0, "fp16": 112.0}
_GA100 = {"fp64": 19.5, "fp32": 19.5, "tf32": 156.0, "bf16": 312.0, "fp16": 312.0, "int8": 624.0}
_GH100 = {"fp64": 66.9, "fp32": 66.9, "tf32": 494.7, "bf16": 989.4, "fp16": 989.4, "fp8": 1978.9,
          "int8": 1978.9}  # fmt: skip
_GH100_PCIE = {"fp64": 51.2, "fp32": 51.2, "tf32": 378.0, "bf16": 756.0, "fp16": 756.0,
               "fp8": 1513.0, "int8": 1513.0}  # fmt: skip
_GH100_LATER = {"fp64": 67.0, "fp32": 67.0, "tf32": 494.5, "bf16": 989.5, "fp16": 989.5,
                "fp8": 1979.0, "int8": 1979.0}  # fmt: skip
_GH100_NVL = {"fp64": 60.0, "fp32": 60.0, "tf32": 417.5, "bf16": 835.5, "fp16": 835.5,
              "fp8": 1670.5, "int8": 1670.5}  # fmt: skip

# fmt: off
NVIDIA: tuple[Device, ...] = (
    # Pascal has no tensor cores; fp16 runs at twice the rate of fp32.
    make_row("P100-SXM2-16GB", cuda=(6, 0), sms=56, gb=16, gb_per_s=732, source=_P100,
             peaks={"fp64": 5.3, "fp32": 10.6, "fp16": 21.2}),
    make_row("P100-PCIE-16GB", cuda=(6, 0), sms=56, gb=16, gb_per_s=732, source=_P100,
             peaks={"fp64": 4.7, "fp32": 9.3, "fp16": 18.7}),

    # Volta. Tensor cores support only fp16.
    make_row("V100-SXM2-16GB", cuda=(7, 0), sms=80, gb=16, gb_per_s=900, peaks=_V100_SXM2,
             source=_V100),
    make_row("V100-SXM2-32GB", cuda=(7, 0), sms=80, gb=32, gb_per_s=900, peaks=_V100_SXM2,
             source=_V100),
    make_row("V100-PCIE-16GB", cuda=(7, 0), sms=80, gb=16, gb_per_s=900, peaks=_V100_PCIE,
             source=_V100),
    make_row("V100-PCIE-32GB", cuda=(7, 0), sms=80, gb=32, gb_per_s=900, peaks=_V100_PCIE,
             source=_V100),
    make_row("V100-DGXS-16GB", cuda=(7, 0), sms=80, gb=16, gb_per_s=900, peaks=_V100_SXM2,
             source=_DGX_STATION),
    make_row("V100-DGXS-32GB", cuda=(7, 0), sms=80, gb=32, gb_per_s=900, peaks=_V100_SXM2,
             source=_DGX_STATION),
    make_row("V100S-PCIE-32GB", cuda=(7, 0), sms=80, gb=32, gb_per_s=1134, source=_V100,
             peaks={"fp64": 8.2, "fp32": 16.4, "fp16": 130.0}),

    # Turing.
    make_row("T4", cuda=(7, 5), sms=40, gb=16, gb_per_s=320, source=_T4,
             peaks={"fp32": 8.1, "fp16": 65.0, "int8": 130.0}),

    # Ampere.
    # PG509 is the SXM4 module's board as some clouds report it: -200 with 40 GB, -210 with 80.
    make_row("A100-SXM4-40GB", "A100-SXM-40GB", "A100-PG509-200", "PG509-200",
             "A100-PG509", cuda=(8, 0), sms=108, gb=40, gb_per_s=1555, peaks=_GA100, source=_A100),
    make_row("A100-PCIE-40GB", cuda=(8, 0), sms=108, gb=40, gb_per_s=1555, peaks=_GA100,
             source=_A100),
    make_row("A100-SXM4-80GB", "A100-SXM-80GB", "PG509-210", "A100-PG509-210", "A100-PG509",
             cuda=(8, 0), sms=108, gb=80, gb_per_s=2039, peaks=_GA100, source=_A100),
    make_row("A100 80GB PCIe", "A100-PCIE-80GB", cuda=(8, 0), sms=108, gb=80, gb_per_s=1935,
             peaks=_GA100, source=_A100),
    make_row("A800-SXM4-40GB", cuda=(8, 0), sms=108, gb=40, gb_per_s=1555, peaks=_GA100,
             source=_A800),
    make_row("A800 40GB Active", cuda=(8, 0), sms=108, gb=40, gb_per_s=1555, peaks=_GA100,
             source=_A800),
    make_row("A800-SXM4-80GB", cuda=(8, 0), sms=108, gb=80, gb_per_s=2039, peaks=_GA100,
             source=_A800),
    make_row("A800 80GB PCIe", cuda=(8, 0), sms=108, gb=80, gb_per_s=1935, peaks=_GA100,
             source=_A800),
    make_row("A30", cuda=(8, 0), sms=56, gb=24, gb_per_s=933, source=_A30,
             peaks={"fp64": 10.3, "fp32": 10.3, "tf32": 82.0, "bf16": 165.0, "fp16": 165.0,
                    "int8": 330.0}),
    make_row("A10", cuda=(8, 6), sms=72, gb=24, gb_per_s=600, source=_A10,
             peaks={"fp32": 31.2, "tf32": 62.5, "bf16": 125.0, "fp16": 125.0, "int8": 250.0}),
    make_row("A10G", cuda=(8, 6), sms=80, gb=24, gb_per_s=600, source=_A10G,
             peaks={"fp32": 35.0, "tf32": 35.0, "bf16": 70.0, "fp16": 70.0, "int8": 140.0}),
    # Four on a board, each a separate device.
    make_row("A16 (one of four)", "A16", cuda=(8, 6), sms=10, gb=16, gb_per_s=200, source=_A16,
             peaks={"fp32": 4.5, "tf32": 9.0, "bf16": 17.9, "fp16": 17.9, "int8": 35.9}),
    make_row("A2", cuda=(8, 6), sms=10, gb=16, gb_per_s=200, source=_A2,
             peaks={"fp32": 4.5, "tf32": 9.0, "bf16": 18.0, "fp16": 18.0, "int8": 36.0}),
    make_row("A40", cuda=(8, 6), sms=84, gb=48, gb_per_s=696, source=_A40,
             peaks={"fp32": 37.4, "tf32": 74.8, "bf16": 149.7, "fp16": 149.7, "int8": 299.3}),

    # Ada.
    make_row("L4", cuda=(8, 9), sms=58, gb=24, gb_per_s=300, source=_L4,
             peaks={"fp32": 30.3, "tf32": 60.0, "bf16": 121.0, "fp16": 121.0, "fp8": 242.5,
                    "int8": 242.5}),
    make_row("L40", cuda=(8, 9), sms=142, gb=48, gb_per_s=864, source=_L40,
             peaks={"fp32": 90.5, "tf32": 90.5, "bf16": 181.05, "fp16": 181.05, "fp8": 362.0,
                    "int8": 362.0}),
    make_row("L40S", cuda=(8, 9), sms=142, gb=48, gb_per_s=864, source=_L40S,
             peaks={"fp32": 91.6, "tf32": 183.0, "bf16": 362.05, "fp16": 362.05, "fp8": 733.0,
                    "int8": 733.0}),

    # Hopper. The whitepaper prints dense figures, the later datasheets sparse ones.
    make_row("H100 SXM", "H100 80GB HBM3", cuda=(9, 0), sms=132, gb=80, gb_per_s=3352,
             peaks=_GH100, source=_HOPPER),
    make_row("H100 PCIe", "H100 80GB HBM2e", cuda=(9, 0), sms=114, gb=80, gb_per_s=2039,
             peaks=_GH100_PCIE, source=_HOPPER),
    make_row("H100 NVL", cuda=(9, 0), sms=132, gb=94, gb_per_s=3900, peaks=_GH100_NVL,
             source=_H100),
    # Export version: NVLink is slower, and there is almost no fp64.
    make_row("H800 SXM", "H800", cuda=(9, 0), sms=132, gb=80, gb_per_s=3352, source=_H800_SXM,
             peaks={**_GH100, "fp64": 1.0}),
    make_row("H800 PCIe", cuda=(9, 0), sms=114, gb=80, gb_per_s=2039, source=_H800,
             peaks={**_GH100_PCIE, "fp64": 0.8}),
    make_row("H200", cuda=(9, 0), sms=132, gb=141, gb_per_s=4800, peaks=_GH100_LATER,
             source=_H200),
    make_row("H200 NVL", cuda=(9, 0), sms=132, gb=141, gb_per_s=4800, peaks=_GH100_NVL,
             source=_H200),
    # The driver reports the Grace side's memory, 120 or 480 GB, beside 96 GB of HBM3.
    make_row("GH200 96GB", "GH200 480GB", "GH200 120GB", cuda=(9, 0), sms=132, gb=96,
             gb_per_s=4000, peaks=_GH100_LATER, source=_GH200),
    make_row("GH200 144GB", "GH200 144G HBM3e", cuda=(9, 0), sms=132, gb=144, gb_per_s=4900,
             peaks=_GH100_LATER, source=_GH200),

    # Blackwell.
    make_row("B200", cuda=(10, 0), sms=148, gb=180, gb_per_s=7700, source=_HGX,
             peaks={"fp64": 37.0, "fp32": 75.0, "tf32": 1125.0, "bf16": 2250.0, "fp16": 2250.0,
                    "fp8": 4500.0, "int8": 4500.0}),
    make_row("GB200", cuda=(10, 0), gb=186, gb_per_s=8000, source=_GB200,
             peaks={"fp64": 40.0, "fp32": 80.0, "tf32": 1250.0, "bf16": 2500.0, "fp16": 2500.0,
                    "fp8": 5000.0, "int8": 5000.0}),
    # int8 is a small fraction of B200's, and sources disagree.
    make_row("B300", "B300 SXM6 AC", cuda=(10, 3), sms=148, gb=288, gb_per_s=8000, source=_HGX,
             peaks={"fp64": 1.25, "fp32": 75.0, "tf32": 1125.0, "bf16": 2250.0, "fp16": 2250.0,
                    "fp8": 4500.0}),
    # int8: see B300.
    make_row("GB300", cuda=(10, 3), gb=288, gb_per_s=8000, source=_GB300,
             peaks={"fp64": 1.4, "fp32": 80.0, "tf32": 1250.0, "bf16": 2500.0, "fp16": 2500.0,
                    "fp8": 5000.0}),
)
# fmt: on
