"""The rule about convolutions between which the layout of tensors changes back and forth."""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.analysis.missing import blind_kernels
from pytest_torchprof.core.process import late
from pytest_torchprof.rules.chip import chip_of
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, Threshold, launched_between, rule
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.arguments import LaunchArgs, decode, decode_list
from pytest_torchprof.trace.names import LAUNCHES, Kind, Names, are_named, operators_named
from pytest_torchprof.trace.tree import marked, operators_around, within_named

if TYPE_CHECKING:
    from pytest_torchprof.core.unknown import Reason
    from pytest_torchprof.trace.arguments import OpArgs
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

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
_MESSAGE: Final = "convolutions convert their tensors between NCHW and NHWC on device"
_CONVERT: Final = (
    "model.to(memory_format=torch.channels_last), the same for its inputs, and no contiguous() "
    "between layers: then none converts (channels_last_3d for volumes)"
)
_AMD: Final = f"{_CONVERT}; with PYTORCH_MIOPEN_SUGGEST_NHWC=1 in the environment"


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
    fix=_CONVERT,
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
    `nchwToNhwcKernel`, MIOpen's `batched_transpose`, copies to the other layout) take `share` or
    more of the time of all that the device ran, in at least `layers` convolutions of one pass. The
    cost is the time of these kernels, less that of one layer.

    Not counted: tensors that already are channels_last, `conv1d`, which has no such layout, and
    copies outside of convolutions. Times decide, so the matches may change with the machine.

    ## Why it is slow

    Tensor cores want the channels of a pixel side by side (NHWC). torch's default is NCHW, so the
    library transposes input, weights and result of each convolution.

    ## Example

    ```python
    model = torchvision.models.resnet50().cuda().half()
    model(images)
    ```

    ## Use instead

    ```python
    model = model.to(memory_format=torch.channels_last)
    model(images.to(memory_format=torch.channels_last))
    ```

    On AMD, this needs `PYTORCH_MIOPEN_SUGGEST_NHWC=1` in the environment.
    """
    kernel, call = _conversions(trace)
    every = trace.device_rows[trace.selection[trace.device_rows]]
    found: list[tuple[int, Ints, int, tuple[int, int]]] = []
    for device in nesting.distinct(trace.device[kernel]).tolist():
        total = int(trace.dur[every[trace.device[every] == device]].sum())
        mine = trace.device[kernel] == device
        ns, of_a_pass = int(trace.dur[kernel[mine]].sum()), _layers(trace, kernel[mine], call[mine])
        if ns >= share * total and of_a_pass >= layers:
            span = launched_between(trace, kernel[mine])
            found.append((device, nesting.distinct(call[mine]), ns - ns // of_a_pass, span))
    if not found:
        return NO_MATCHES
    forward = [calls[are_named(trace, calls, _FORWARD)] for _, calls, *_ in found]
    parts = [own if len(own) else every[1] for own, every in zip(forward, found, strict=True)]
    begin, end = np.array([span for *_, span in found], np.int64).T
    return Matches(
        np.array([own[0] for own in parts], np.int64),
        [f"{_MESSAGE} {device}" for device, *_ in found],
        count=np.array([len(calls) for _, calls, *_ in found], np.int64),
        cost_ns=np.array([ns for _, _, ns, _ in found], np.int64),
        fix=[_AMD if chip_of(trace, one).vendor == "amd" else _CONVERT for one, *_ in found],
        span_ns=(begin, end),
        parts=parts,
    )


def _conversions(trace: Events) -> tuple[Ints, Ints]:
    """Kernels that change a layout for a convolution: the library's, or torch's copies of its
    operands; and the convolution of each.
    """
    kernel = np.flatnonzero(trace.selection & trace.is_kind(Kind.KERNEL) & (trace.launch >= 0))
    inner = operators_around(trace, trace.launch[kernel])
    is_one = marked(trace, operators_named(trace, _CONVOLUTION))
    call = nesting.nearest(is_one, trace.parent, inner)
    changes = trace.names_where(_LAYOUT.search)[kernel]
    chosen = (call >= 0) & (changes | are_named(trace, inner, _COPY))
    kernel, call, asked = kernel[chosen], call[chosen], np.where(changes, call, inner)[chosen]
    calls, at = np.unique(asked, return_inverse=True)
    copies = are_named(trace, calls, _COPY).tolist()
    fits = np.array([*map(_is_needless, trace.operands(calls), copies)], bool)
    fits &= ~within_named(trace, calls, _OF_LINES)
    return kernel[fits[at]], call[fits[at]]


def _is_needless(args: OpArgs, copy: bool) -> bool:
    """Whether a copy changes the layout, or a convolution's first tensor that has one, as far as
    the trace tells, is in the wrong one.
    """
    dims, strides = decode_list(args.dims), decode_list(args.strides)
    tensors = [one for one in dims if isinstance(one, list) and len(one) > 3][:2]
    if tensors and all(one[2] == 1 for one in tensors):
        return False  # a sequence, as `conv1d` calls it
    last = [
        apart[1] == 1
        for one, apart in zip(dims, strides, strict=False)
        if apart and len(one) > 3 and one[1] > 1 and prod(one[2:]) > 1
    ]
    return last in ([True, False], [False, True]) if copy else last[:1] != [True]


def _layers(trace: Events, kernel: Ints, call: Ints) -> int:
    """How many convolutions of a pass convert: all, by how often the rarest one runs.

    They are told apart by their weights, without shapes by the grids of the kernels.
    """
    forward = nesting.distinct(call[are_named(trace, call, _FORWARD)])
    forward = forward if len(forward) else nesting.distinct(call)
    kinds = [str(decode_list(args.dims)[1:2]) for args in trace.operands(forward)]
    if "[]" in kinds:
        grids: dict[int, str] = {}
        every = decode(LaunchArgs, trace.args[kernel])
        for one, launched in zip(call.tolist(), every, strict=True):
            grids[one] = grids.get(one, "") + str(bytes(launched.grid))
        kinds = [grids[one] for one in forward.tolist()]
    return len(forward) // min(Counter(kinds).values())
