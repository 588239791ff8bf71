"""Record training loops, and ask torch's own memory profiler what their blocks are for."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from pytest_torchprof.analysis.memory import (
    Category,
    categories_of,
    changes_of,
    lives_of,
    memory_of_devices,
    selected,
)
from pytest_torchprof.trace.read import read_trace

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events

#: One step of training, called once per step.
Step = Callable[[], Any]


def recorded(make: Callable[[], Step], steps: int, path: Path) -> tuple[Events, Any]:
    """The trace of a loop, with the model made inside, and torch's memory profile of it."""
    options: dict[str, Any] = {"profile_memory": True, "record_shapes": True, "with_stack": True}
    with profile(activities=[ProfilerActivity.CPU], **options) as prof:
        step = make()
        for _ in range(steps):
            step()
            prof.step()
    prof.export_chrome_trace(str(path))
    return read_trace(path), prof._memory_profile()


#: A block: its address, and how many blocks were there before.
Block = tuple[int, int]


def told(trace: Events) -> dict[Block, tuple[str, int]]:
    """The category and the bytes of each block."""
    ((_, memory),) = memory_of_devices(trace)
    changes = changes_of(memory, selected(trace, memory), on_device=False)
    lives = lives_of(trace, memory, *changes)
    categories, _ = categories_of(trace, lives)
    assert memory.addr is not None
    addresses = memory.addr[changes[0][changes[2] > 0]].tolist()
    found, seen = dict[Block, tuple[str, int]](), Counter[int]()
    for address, category, size in zip(addresses, categories, lives.bytes.tolist(), strict=True):
        found[address, seen[address]] = Category(category).name, size
        seen[address] += 1
    return found


def told_by_torch(memory_profile: Any) -> dict[Block, str]:
    """What torch calls each block when it is allocated; NONE for what is no tensor to it."""
    allocated = defaultdict[int, list[tuple[int, Any]]](list)
    for event in memory_profile._op_tree.sorted_nodes:
        if event.typed[0] == torch._C._profiler._EventType.Allocation:
            fields = event.typed[1]
            if fields.alloc_size > 0:
                key = torch.profiler._memory_profiler.TensorKey.from_allocation(fields)
                allocated[fields.ptr].append((event.start_time_ns, key))
    found = dict[Block, str]()
    for address, events in allocated.items():
        for number, (_, key) in enumerate(sorted(events, key=lambda one: one[0])):
            category = None if key is None else memory_profile._categories.get(key, 0)
            found[address, number] = "NONE" if category is None else category.name
    return found


def compared(trace: Events, memory_profile: Any) -> Counter[tuple[str, str]]:
    """Bytes by our category and torch's."""
    theirs = told_by_torch(memory_profile)
    total = Counter[tuple[str, str]]()
    for block, (category, size) in told(trace).items():
        total[category, theirs[block]] += size
    return total


# -------------------------------------------------------------------- what is trained


def mlp_with_sgd() -> Step:
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    return _step(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), (128, 64))


def cnn_with_adam() -> Step:
    model = nn.Sequential(
        *(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        nn.Linear(32, 10),
    )
    return _step(model, torch.optim.Adam(model.parameters()), (8, 3, 32, 32))


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, shape: tuple[int, ...]) -> Step:
    def step() -> None:
        x, y = torch.randn(shape), torch.randint(0, 10, shape[:1])
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step
