"""The rule about convolutions between which the layout of tensors changes back and forth."""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from pytest_torchprof.analysis.missing import blind_kernels
from pytest_torchprof.core.process import late
from pytest_torchprof.rules.chip import chip_of
from pytest_torchprof.rules.products import LAUNCHES
from pytest_torchprof.rules.rule import (
    NO_MATCHES,
    Matches,
    Threshold,
    launched_between,
    rule,
)
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.arguments import LaunchArgs, decode, decode_list
from pytest_torchprof.trace.names import Kind, Names, are_named, operators_named
from pytest_torchprof.trace.tree import marked, operators_around, within_named

if TYPE_CHECKING:
    from pytest_torchprof.core.unknown import Reason
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

#: Kernels of cuDNN and of MIOpen that change the layout of a tensor.
_LAYOUT: Final = late(
    r"nchwToNhwcKernel|nhwcToNchwKernel|batched_transpose|transpose_(NCHW2|CNHW2)"
)
#: Convolutions of the libraries, forward and backward.
_CONVOLUTION: Final = Names(
    r"aten::((cudnn|miopen)_\w*convolution\w*|convolution_backward|convolution_overrideable)$"
)
_FORWARD: Final = Names(r"aten::((cudnn|miopen)_(?!\w*backward)\w*convolution\w*)$")
#: They have no channels_last layout.
_OF_LINES: Final = Names(r"aten::(conv1d|conv_transpose1d)$")
_COPY: Final = Names(r"aten::copy_$")
_CONVERT: Final = (
    "model.to(memory_format=torch.channels_last), and the same for its inputs{}: then no layer "
    "converts (channels_last_3d for volumes)"
)
_MIXED: Final = (
    "one layout for all: the model, its inputs, and no contiguous() between layers, in "
    "memory_format=torch.channels_last"
)


def _unseen_layouts(trace: Events) -> Reason | None:
    """Changes of the layout that graphs launched, without their convolutions."""
    why = blind_kernels(trace, _LAYOUT.search)
    if why is None:
        return None
    rows = trace.device_rows[trace.selection[trace.device_rows]]
    changes = trace.names_where(_LAYOUT.search)[rows] & (trace.kind[rows] == Kind.KERNEL)
    least = layout_transpose.thresholds["share"].default * trace.dur[rows].sum()
    return why if trace.dur[rows[changes]].sum() >= least else None


@rule(
    "layout-transpose",
    fix=_CONVERT.format(""),
    triggers={r"aten::(cudnn|miopen)_\w*convolution": 1, LAUNCHES: 1},
    needs="device",
    blind=_unseen_layouts,
    timed=True,
    share=Threshold(0.01, "1", "below, other things matter more"),
    layers=Threshold(3, "1", "the input of a model is converted once in any layout"),
)
def layout_transpose(trace: Events, *, share: float, layers: float) -> Matches:
    """Convolutions convert their tensors from one layout to the other, and back, in each layer.

    ## What it does

    Matches once for a device if kernels of its convolutions that change a tensor's layout (cuDNN's
    `nchwToNhwcKernel`, MIOpen's `batched_transpose` and so on) take `share` or more of the time of
    all that the device ran, in at least `layers` convolutions of one pass; or if convolutions copy
    their operands to the other layout. Layers are told apart by the shapes of their weights. The
    cost is the time of these kernels, less that of one layer.

    Not counted: tensors that already are channels_last, `conv1d`, which has no such layout, and
    copies and transposes outside of convolutions. Times decide, so the matches may change with the
    machine.

    ## Why it is slow

    Tensor cores and matrix cores want the channels of a pixel side by side (NHWC). torch's default
    is NCHW, so the library transposes the input and the weights before each convolution, and its
    result after it: each time a whole tensor is read and written.

    ## Example

    ```python
    model = torchvision.models.resnet50().cuda()
    with torch.autocast("cuda"):
        model(images)
    ```

    ## Use instead

    ```python
    model = torchvision.models.resnet50().cuda().to(memory_format=torch.channels_last)
    with torch.autocast("cuda"):
        model(images.to(memory_format=torch.channels_last))
    ```

    On AMD, torch uses this layout only with `PYTORCH_MIOPEN_SUGGEST_NHWC=1` in the environment.
    """
    found = _conversions(trace)
    every = trace.device_rows[trace.selection[trace.device_rows]]
    out: list[tuple[int, Ints, int, str, str]] = []
    spans = list[tuple[int, int]]()
    for device in nesting.distinct(trace.device[found.kernel]).tolist():
        total = int(trace.dur[every[trace.device[every] == device]].sum())
        for copied in (False, True):
            mine = (trace.device[found.kernel] == device) & (found.copied == copied)
            calls, ns = nesting.distinct(found.call[mine]), int(trace.dur[found.kernel[mine]].sum())
            if not len(calls) or ns < share * total:
                continue
            of_a_pass = _layers(trace, found, mine, calls)
            if of_a_pass < layers:
                continue
            amd = chip_of(trace, device).vendor == "amd"
            more = ", with PYTORCH_MIOPEN_SUGGEST_NHWC=1 in the environment" if amd else ""
            fix = _MIXED if copied else _CONVERT.format(more)
            out.append((int(ns * (1 - 1 / of_a_pass)), calls, device, _MESSAGES[copied], fix))
            spans.append(launched_between(trace, found.kernel[mine]))
    if not out:
        return NO_MATCHES
    forward = [calls[are_named(trace, calls, _FORWARD)] for _, calls, *_ in out]
    parts = [own if len(own) else calls for own, (_, calls, *_) in zip(forward, out, strict=True)]
    begin, end = np.array(spans, np.int64).T
    return Matches(
        np.array([own[0] for own in parts], np.int64),
        [f"{message} on device {device}" for _, _, device, message, _ in out],
        count=np.array([len(calls) for _, calls, *_ in out], np.int64),
        cost_ns=np.array([ns for ns, *_ in out], np.int64),
        fix=[fix for *_, fix in out],
        span_ns=(begin, end),
        parts=parts,
    )


_MESSAGES: Final = {
    False: "convolutions convert their tensors between NCHW and NHWC",
    True: "convolutions copy their operands to the other layout",
}


class _Conversions(NamedTuple):
    """Kernels that change a layout, the convolution of each, and whether it is torch's copy."""

    kernel: Ints
    call: Ints
    copied: Bools


def _conversions(trace: Events) -> _Conversions:
    kernel = np.flatnonzero(trace.selection & trace.is_kind(Kind.KERNEL) & (trace.launch >= 0))
    inner = operators_around(trace, trace.launch[kernel])
    is_one = marked(trace, operators_named(trace, _CONVOLUTION))
    call = nesting.nearest(is_one, trace.parent, inner)
    kernel, inner, call = (column[call >= 0] for column in (kernel, inner, call))
    changes = trace.names_where(_LAYOUT.search)[kernel]
    copied = are_named(trace, inner, _COPY)
    if copied.any():
        copies, at = np.unique(inner[copied], return_inverse=True)
        flips = np.array([_flips(args) for args in trace.operands(copies)], bool)
        copied[copied] = flips[at]
    if changes.any():
        calls, at = np.unique(call[changes], return_inverse=True)
        fits = np.array([_is_converted(args) for args in trace.operands(calls)], bool)
        fits &= ~within_named(trace, calls, _OF_LINES)
        changes[changes] = fits[at]
    chosen = changes | copied
    return _Conversions(kernel[chosen], call[chosen], copied[chosen])


def _is_converted(args: Any) -> bool:
    """Whether a convolution's tensors may be in the wrong layout, as far as the trace tells."""
    dims, strides = decode_list(args.dims), decode_list(args.strides)
    tensors = [one for one in dims if isinstance(one, list) and len(one) > 3][:2]
    if tensors and all(one[2] == 1 for one in tensors):
        return False  # a sequence, as `conv1d` calls it
    for one, apart in zip(dims, strides, strict=False):
        if isinstance(one, list) and len(one) > 3 and one[1] > 1 and prod(one[2:]) > 1:
            return not _is_channels_last(one, apart)
    return True


def _is_channels_last(shape: list[int], apart: Any) -> bool:
    return isinstance(apart, list) and len(apart) == len(shape) and apart[1] == 1


def _flips(args: Any) -> bool:
    """Whether a copy changes the layout of an image or a volume: all of it, and nothing else."""
    dims, strides = decode_list(args.dims)[:2], decode_list(args.strides)[:2]
    if len(dims) < 2 or len(strides) < 2 or dims[0] != dims[1]:
        return False
    shape = dims[0]
    if not (isinstance(shape, list) and len(shape) in (4, 5)):
        return False
    if shape[1] < 2 or prod(shape[2:]) < 2:
        return False
    contiguous = [prod(shape[axis + 1 :]) for axis in range(len(shape))]
    spatial = shape[2:]
    last = [prod(shape[1:]), 1, *(shape[1] * prod(spatial[at + 1 :]) for at in range(len(spatial)))]
    return sorted([list(strides[0]), list(strides[1])]) == sorted([contiguous, last])


def _layers(trace: Events, found: _Conversions, mine: Bools, calls: Ints) -> int:
    """How many convolutions of a forward pass convert: all, by the runs of the rarest usual one."""
    forward = calls[are_named(trace, calls, _FORWARD)]
    weight = 1
    if not len(forward):
        forward, weight = calls, 2
    kinds = [_weight(args, weight) for args in trace.operands(forward)]
    if not all(kinds):
        rows = found.kernel[mine]
        grids = decode(LaunchArgs, trace.args[rows])
        known: dict[int, str] = {}
        for call, name, launched in zip(
            found.call[mine].tolist(), trace.name[rows].tolist(), grids, strict=True
        ):
            known[call] = known.get(call, "") + f"{name}{bytes(launched.grid)!r}"
        kinds = [known[call] for call in forward.tolist()]
    # Several layers may have weights of one shape, and some may run in one of many passes only.
    counts = sorted(Counter(kinds).values())
    usual = counts[(len(counts) - 1) // 2]
    return len(forward) // min(count for count in counts if 2 * count >= usual)


def _weight(args: Any, at: int) -> str:
    """The shape of a convolution's weight, which is this operand; empty if unknown."""
    dims = decode_list(args.dims)
    return str(dims[at]) if len(dims) > at and dims[at] else ""
