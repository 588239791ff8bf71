"""What calls are given, which layers they are, and how much of a test they make up."""

from __future__ import annotations

from math import inf, prod
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pytest_torchprof.core.process import late
from pytest_torchprof.trace.arguments import alike, decode_part
from pytest_torchprof.trace.names import DEVICE_KINDS, Names, are_named, are_operators
from pytest_torchprof.trace.tree import are_outermost, once_selected
from pytest_torchprof.work.autograd import flat
from pytest_torchprof.work.operands import ELEMENT_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

# ---- The shapes of what they take.


def shapes(trace: Events, rows: Ints) -> list[list[tuple[int, ...] | None]]:
    """The shape of each argument of each operator; None if it is not a tensor, or unknown."""
    kinds, firsts, _ = alike(trace.name[rows], trace.args[rows])
    each = [bytes(args.dims) for args in trace.operands(rows[firsts])]
    known = {key: [sizes(one) for one in decode_part(key) or []] for key in {*each}}
    found = [known[key] for key in each]
    return [found[kind] for kind in kinds.tolist()]


def sizes(dims: object) -> tuple[int, ...] | None:
    """A decoded shape, or None if it is not a shape."""
    if not isinstance(dims, list):
        return None
    for n in dims:
        if type(n) is not int or n < 0:
            return None
    return tuple(dims)


def mean_elements(trace: Events, rows: Ints) -> float:
    """The mean number of elements of these operators' first operands, without scalars; inf if
    unknown.
    """
    first = [prod(dims[0]) for dims in shapes(trace, rows) if dims and dims[0]]
    return sum(first) / len(first) if first else inf


# ---- How much of a test they are: by counts, which repeat from run to run while times do not.


def is_trifle(trace: Events, calls: float, share: float) -> bool:
    """Whether so many calls are less than this share of all that the test makes on a CPU.

    Never where a device did work: there, each call is a launch.
    """
    return not trace.has(*DEVICE_KINDS) and calls < share * once_selected(trace, _called)


def _called(trace: Events) -> int:
    operators = (trace.selection & are_operators(trace)[:-1]).nonzero()[0]
    return int(are_outermost(trace, operators).sum())


# ---- Layers, by their weights.

#: Operators of modules: products, convolutions, normalizations, look-ups, attention.
LAYER: Final = Names(
    r"aten::(linear|bilinear|einsum|matmul|mm|bmm|addmm|addbmm|baddbmm|addmv|mv"
    r"|_?conv\w*|(_native_)?batch_norm|layer_norm|group_norm|instance_norm|rms_norm"
    r"|embedding(_bag)?|lstm(_cell)?|gru(_cell)?|rnn_(tanh|relu)(_cell)?"
    r"|scaled_dot_product_attention)$"
    r"|(CompiledFunction|CheckpointFunction|forward)$"  # the last: TorchScript
)
#: Operators that are often used for something other than a layer.
PRODUCT: Final = Names(r"aten::(einsum|matmul|mm|bmm|addmm|addbmm|baddbmm|addmv|mv)$")
#: The positions of a layer's own arguments; for others, such as compiled code, any may be.
_OWN: Final = (
    (late(r"aten::(linear|_?conv\w*)$"), (1, 2)),
    (late(r"aten::bilinear$"), (2, 3)),
    (late(r"aten::((_native_)?batch_norm|instance_norm)$"), (1, 2, 3)),
    (late(r"aten::(layer_norm|group_norm|lstm|gru|rnn_tanh|rnn_relu)$"), (2, 3)),
    (late(r"aten::(rms_norm|addmm|addbmm|baddbmm)$"), (2,)),
    (late(r"aten::(embedding(_bag)?|mv)$"), (0,)),
    (late(r"aten::(matmul|mm|bmm|addmv|einsum)$"), (1,)),
    # A cell is applied repeatedly within one forward pass, attention has no arguments of its own.
    (late(r"aten::(\w+_cell|scaled_dot_product_attention)$"), ()),
)
#: Identifies a layer: its operator's name, and the number or the shapes of its own tensors.
Own: TypeAlias = tuple[str, object]


def own_tensors(trace: Events, rows: Ints) -> list[set[Own]]:
    """For each layer its identities, by its own tensors, or else by all their shapes."""
    names = [trace.names[number] for number in trace.name[rows].tolist()]
    if (taken := trace.taken(rows)) is not None:
        return [
            {(name, number) for number in flat([_own(name, one)])}
            for name, one in zip(names, taken, strict=True)
        ]
    return [
        {(name, repr(mine))} if (mine := _own(name, one)) else set()
        for name, one in zip(names, shapes(trace, rows), strict=True)
    ]


def _own(name: str, arguments: Sequence[Any]) -> tuple[Any, ...]:
    """A layer's own arguments among all of them."""
    at = _positions(name)
    return tuple(arguments if at is None else (arguments[i] for i in at if i < len(arguments)))


def kept_bytes(trace: Events, rows: Ints) -> int:
    """What a graph keeps of these layers' inputs, except the first's, as far as shapes tell."""
    rows = rows[1:]
    rows = rows[~are_named(trace, rows, PRODUCT)]
    found = 0
    for row, dims, args in zip(rows, shapes(trace, rows), trace.operands(rows), strict=True):
        own, types = _positions(trace.names[trace.name[row]]), decode_part(args.types)
        if own is not None and 0 not in own and dims and dims[0] and types:
            found += prod(dims[0]) * ELEMENT_BYTES.get(types[0], 0)
    return found


def _positions(name: str) -> tuple[int, ...] | None:
    """Which arguments of such an operator are the layer's own; None if any may be."""
    return next((at for pattern, at in _OWN if pattern.match(name)), None)
