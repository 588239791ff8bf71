"""One row of the zoo: a module or function, and how its FLOPs compare with FlopCounterMode's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from support.live import captured
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from pytest_torchprof.analysis.uncounted import uncounted_flops
from pytest_torchprof.core.values import MissingValue
from pytest_torchprof.verdict.metrics import METRICS, measure

Payload = Callable[[], object]

#: What FlopCounterMode does not count, or counts otherwise.
FORMULA = "it has no formula"
VECTORS = "it has no formula for products with vectors"
CPU_ATTENTION = "it has no formula for the fused attention of a CPU"
RECURRENT = "it has no formula for fused recurrent layers"
INSIDE = "it does not look inside, where the products are"
GROUPS = "it counts the gradient of a grouped weight once for each group"
SPARSE = "zeros are not multiplied, and how many there are is not recorded"
PACKED = "it has no formula, and the shape of a packed weight is not recorded"
NESTED = "it fails on nested tensors"
CALL = "it counts the call of a tensor subclass, and not what that does"
OPAQUE = "nobody has a formula"


@dataclass(frozen=True)
class Exhibit:
    """``make`` sets it up, and what it returns is run once to warm up, then counted in both ways.

    ``why``: why the two counts differ, where they do. ``ours`` is ours, worked out by hand, and has
    to be given then; ``missing`` are the operators that make ours no more than a lower bound.
    """

    name: str
    make: Callable[[], Payload]
    why: str = ""
    ours: int | None = None
    missing: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Seen:
    """What was counted: by FlopCounterMode (None: it fails), by us, and what we say is missing."""

    theirs: int | None
    ours: int
    missing: frozenset[str]


def equal(name: str, make: Callable[[], Payload]) -> Exhibit:
    """Both count the same."""
    return Exhibit(name, make)


def differs(name: str, make: Callable[[], Payload], why: str, ours: int) -> Exhibit:
    """We count so much, and FlopCounterMode not, for this reason."""
    return Exhibit(name, make, why, ours)


def attends(name: str, make: Callable[[], Payload], ours: int) -> Exhibit:
    """It has the fused attention of a CPU, for which a newer FlopCounterMode has a formula."""
    known = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu in flop_registry
    return Exhibit(name, make, "" if known else CPU_ATTENTION, ours)


def lower(
    name: str, make: Callable[[], Payload], missing: str, ours: int = 0, why: str = OPAQUE
) -> Exhibit:
    """These operators are not counted by anybody; of the rest, we count so much."""
    return Exhibit(name, make, why, ours, frozenset(missing.split()))


def look(exhibit: Exhibit, folder: Path) -> Seen:
    """Count an exhibit in both ways."""
    torch.manual_seed(0)
    payload = exhibit.make()
    payload()
    try:
        with FlopCounterMode(display=False) as counter:
            payload()
        theirs = counter.get_total_flops()
    except (RuntimeError, TypeError):  # it cannot look at this kind of tensor
        theirs = None
    trace = captured(payload, folder)
    value, gap = measure(METRICS["flops"], trace), uncounted_flops(trace)
    count = value.at_hand if isinstance(value, MissingValue) else value
    assert isinstance(count, int), value
    names = {part.name for part in gap.parts} if gap else set()
    return Seen(theirs, count, frozenset(names))


def problem(exhibit: Exhibit, seen: Seen) -> str:
    """What of this row is not as it says; empty if all is."""
    if seen.missing != exhibit.missing:
        return f"not counted: {sorted(seen.missing)}, not {sorted(exhibit.missing)}"
    if exhibit.ours not in {None, seen.ours}:
        return f"{seen.ours:,} is not {exhibit.ours:,}"
    if not exhibit.why:
        same = seen.ours == seen.theirs
        return "" if same else f"{seen.ours:,} is not FlopCounterMode's {seen.theirs}"
    if not exhibit.missing and seen.ours == seen.theirs:
        return f"equal, and not different because {exhibit.why}"
    return ""


# -------------------------------------------------------------------- payloads


def rand(*shape: int, **options: Any) -> torch.Tensor:
    """Random numbers that need no gradient."""
    return torch.randn(shape, **options)


def leaf(*shape: int, **options: Any) -> torch.Tensor:
    """Random numbers that need a gradient."""
    return torch.randn(shape, requires_grad=True, **options)


def train(function: Callable[..., Any], *inputs: Any, **options: Any) -> Payload:
    """The function, and the gradients of what it returns."""

    def step() -> None:
        out = function(*inputs, **options)
        outs = [o for o in (out if isinstance(out, tuple) else (out,)) if o.requires_grad]
        torch.autograd.backward([o.abs().sum() if o.is_complex() else o.sum() for o in outs])

    return step


def infer(function: Callable[..., Any], *inputs: Any, **options: Any) -> Payload:
    """The function alone, without gradients."""

    def step() -> None:
        with torch.no_grad():
            function(*inputs, **options)

    return step
