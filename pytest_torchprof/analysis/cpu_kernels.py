"""Whether the CPU's instruction set decides which operators run, and how much they allocate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pytest_torchprof.core.lazy_regex import late
from pytest_torchprof.trace.kinds import DEVICE_KINDS, Kind

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events

#: Operators of libraries that choose kernels and memory layouts by instruction set, and those that
#: stand in for them where there are none. Source: oneDNN's dispatcher (onednn.readthedocs.io, "CPU
#: Dispatcher Control"); seen with ONEDNN_MAX_CPU_ISA set to SSE41, AVX and AVX2.
_BY_CPU = late(r"mkldnn|onednn|nnpack|slow_conv|thnn_conv|^quantized::|^aten::_upsample_\w+_aa")
#: These do so too if they are the CPU's; a transposed one calls oneDNN under no other name.
_CONVOLUTIONS = late(r"^aten::_?convolution")
#: With operands of 16 bits, these run in oneDNN too, where the CPU has instructions for it.
_PRODUCTS = late(r"^aten::(mm|addmm|bmm|baddbmm|_scaled_dot_product_flash_attention_for_cpu)$")
_LOW = {"c10::Half", "c10::BFloat16"}


def depends_on_cpu(trace: Events) -> bool:
    """Whether counts of operators and bytes may differ on a CPU with other instructions.

    Convolutions are stored in blocks of 8 or of 16 channels, for example, which is why a backward
    pass copies more on one CPU than on another.
    """
    operators = trace.selection & trace.is_kind(Kind.OP)
    if bool((operators & trace.names_where(_BY_CPU.search)).any()):
        return True
    if trace.has(*DEVICE_KINDS):  # the others are the device's
        return False
    if bool((operators & trace.names_where(_CONVOLUTIONS.search)).any()):
        return True
    products = np.flatnonzero(operators & trace.names_where(_PRODUCTS.search))
    return any(not _LOW.isdisjoint(types) for types in trace.input_types(products))
