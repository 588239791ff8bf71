"""Two operator tables side by side: what appeared, vanished, changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Change = Literal["appeared", "vanished", "more", "fewer", "same"]

#: Which column of the stored operator rows accounts for a change in a metric.
COLUMN_OF = {
    "flops": "flops",
    "ops": "calls",
    "kernels": "kernels",
    "allocated_cpu_bytes": "allocated_cpu_bytes",
    "allocated_cuda_bytes": "allocated_cuda_bytes",
    "peak_cpu_bytes": "peak_cpu_bytes",
    "peak_cuda_bytes": "peak_cuda_bytes",
    "leaked_cpu_bytes": "leaked_cpu_bytes",
    "leaked_cuda_bytes": "leaked_cuda_bytes",
}


@dataclass(frozen=True)
class Delta:
    """One operator's or kernel's count of something, before and now."""

    name: str
    before: int
    now: int

    @property
    def change(self) -> Change:
        """How it changed, in the words of reports."""
        if self.before == self.now:
            return "same"
        if not self.before:
            return "appeared"
        if not self.now:
            return "vanished"
        return "more" if self.now > self.before else "fewer"


def deltas(
    before: Mapping[str, Mapping[str, int]], now: Mapping[str, Mapping[str, int]], column: str
) -> list[Delta]:
    """What changed in this column, largest absolute change first, then by name."""
    found = [
        Delta(name, before.get(name, {}).get(column, 0), now.get(name, {}).get(column, 0))
        for name in before.keys() | now.keys()
    ]
    changed = [d for d in found if d.before != d.now]
    return sorted(changed, key=lambda d: (-abs(d.now - d.before), d.name))
