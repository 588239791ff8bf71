"""All payloads by name, and which are recorded together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gpu_payloads import attending, graphs, memory, moving, products, training, waiting

if TYPE_CHECKING:
    from gpu_payloads.payload import Payload

#: In this order they are recorded, but for those that take time into account, which come first.
PAYLOADS: Mapping[str, Payload] = {
    payload.name: payload
    for file in (
        *(moving.PAYLOADS, waiting.PAYLOADS, memory.PAYLOADS, products.PAYLOADS),
        *(attending.PAYLOADS, training.PAYLOADS, graphs.PAYLOADS, graphs.COMPILED),
    )
    for payload in file
}

#: Each in a process of its own: compiling takes seconds.
COMPILED: tuple[str, ...] = tuple(payload.name for payload in graphs.COMPILED)

#: Nothing else shall run beside these.
ALONE: tuple[str, ...] = tuple(
    name for name, one in PAYLOADS.items() if one.timed or "launch-bound" in one.rules
)

#: In one process, in this order.
PLAIN: tuple[str, ...] = (
    *ALONE,
    *(name for name in PAYLOADS if name not in COMPILED and name not in ALONE),
)
