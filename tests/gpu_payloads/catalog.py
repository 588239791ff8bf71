"""All payloads by name, in the order in which they are recorded: those that compile come last."""

from __future__ import annotations

from collections.abc import Mapping

from gpu_payloads import attending, graphs, memory, moving, products, training, waiting
from gpu_payloads.payload import Payload

#: Each in a process of its own, beside each other: compiling takes seconds.
COMPILED: tuple[str, ...] = tuple(payload.name for payload in graphs.COMPILED)

PAYLOADS: Mapping[str, Payload] = {
    payload.name: payload
    for file in (
        *(moving.PAYLOADS, waiting.PAYLOADS, memory.PAYLOADS, products.PAYLOADS),
        *(attending.PAYLOADS, training.PAYLOADS, graphs.PAYLOADS, graphs.COMPILED),
    )
    for payload in file
}

#: The others, in one process.
PLAIN: tuple[str, ...] = tuple(name for name in PAYLOADS if name not in COMPILED)
