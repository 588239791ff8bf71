"""The bytes that each call that communicates carries, their dtype, and the group of ranks."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pytest_torchprof.analysis.comm_calls import comm_calls
from pytest_torchprof.core.lazy_regex import late
from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.arguments import CollectiveArgs, decode, decode_list, whole_number
from pytest_torchprof.work.dtypes import BY_TYPE, TABLE

if TYPE_CHECKING:
    from pytest_torchprof.trace.arguments import OpArgs
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

#: By the name of a call, without its namespace: which argument is the larger of what a rank gives
#: and gets, or whether it is the part of one rank, so that all have as much as there are ranks.
#: Source: the schemas in torch/csrc/distributed/c10d/Ops.cpp and Functional.cpp.
_ARGUMENTS: Final[Mapping[str, tuple[int, bool]]] = {
    "allgather_": (1, True),
    "allgather_coalesced_": (1, True),
    "_allgather_base_": (0, False),
    "allgather_into_tensor_coalesced_": (0, False),
    "reduce_scatter_": (0, True),
    "_reduce_scatter_base_": (1, False),
    "reduce_scatter_tensor_coalesced_": (1, False),
    "gather_": (1, True),
    "scatter_": (0, True),
    "alltoall_": (1, False),
    "alltoall_base_": (1, False),
}
#: Of all others: the first argument is what the rank gives, so these get as much of each rank.
_GETS_OF_ALL: Final = frozenset({"all_gather", "gather"})
#: Where a functional collective has the number of ranks. Source: Functional.cpp.
_RANKS_AT: Final = {
    "all_gather_into_tensor": 1,
    "all_gather_into_tensor_out": 1,
    "all_gather_into_tensor_coalesced": 1,
    "reduce_scatter_tensor": 2,
    "reduce_scatter_tensor_coalesced": 2,
}
#: Output and input, the larger of which is the other by the number of ranks.
_WHOLE_AND_PART: Final = {"_allgather_base_": (0, 1), "_reduce_scatter_base_": (1, 0)}
#: How ``record_param_comms`` names dtypes. Source: c10/core/ScalarType.h.
_SCALARS: Final = {
    "Byte": "uint8", "Char": "int8", "Short": "int16", "Int": "int32", "Long": "int64",
    "Half": "float16", "Float": "float32", "Double": "float64", "Bool": "bool",
    "BFloat16": "bfloat16", "ComplexHalf": "complex32", "ComplexFloat": "complex64",
    "ComplexDouble": "complex128", "UInt16": "uint16", "UInt32": "uint32", "UInt64": "uint64",
}  # fmt: skip
_ITEM_BYTES: Final = {row.name: row.item_bytes for row in TABLE}
#: What torch writes for a group without a description.
_NAMELESS: Final = ("", "undefined")
#: No memory is as large; damaged files may say so.
_TOO_LARGE: Final = 2**50
_MOST_RANKS: Final = 2**31
#: Their tensors are no lists, so that a dtype is recorded.
_FUNCTIONAL: Final = late(r"_?c10d_functional(_autograd)?::")
#: They carry nothing.
_EMPTY: Final = "barrier"


class CommSizes(Frozen, frozen=True):
    """Of each of `comm_calls`, in the same order.

    ``size`` is what nccl-tests call so, in bytes: the larger of what a rank gives and gets, which
    is the whole of an all-gather's output and of a reduce-scatter's input; 0 of a barrier, -1 if
    unknown. ``dtype`` is torch's name, "" if unknown. ``group`` is the description of the group of
    ranks, else its name, "" if unknown; ``key`` tells groups apart; ``ranks`` is the number of its
    ranks, 0 if unknown.

    Source: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
    """

    size: Ints
    dtype: list[str]
    group: list[str]
    key: list[str]
    ranks: Ints


class _Sent(Frozen, frozen=True):
    """What an event says: elements of the call's size (-1 unknown), and dtype ("" unknown)."""

    elements: int = -1
    dtype: str = ""


def comm_sizes(trace: Events) -> CommSizes:
    """The sizes and groups of the selected calls."""
    return trace.once(_sizes)


def _sizes(trace: Events) -> CommSizes:
    calls = comm_calls(trace)
    noted = _noted(trace, calls.kernel, calls.noted)
    own = trace.operands(calls.event)
    marks = _marks(trace, calls.event, calls.work)
    inner = trace.operands(np.maximum(marks, 0))
    around = _functional(trace, calls.event, marks)
    outer = trace.operands(np.maximum(around, 0))
    only = _only_group(trace.metadata)
    common = _common_ranks(trace.metadata)
    size = np.full(len(calls), -1, np.int64)
    ranks = np.zeros(len(calls), np.int64)
    dtypes, groups, keys = list[str](), list[str](), list[str]()
    for i, (args, event, mark, functional, operation) in enumerate(
        zip(noted, own, inner, outer, calls.operation, strict=True)
    ):
        name = _short_name(trace, calls.event[i])
        group, key = args.description, f"{args.group} {args.members}".strip()
        if group in _NAMELESS:
            group = args.group
        count = args.ranks or _ranks_of(name, event)
        if not group and only is not None:
            group, key, count = only[0], only[1], count or only[2]
        ranks[i] = count = min(max(count or common, 0), _MOST_RANKS)
        known = [
            _of_parameters(args, operation, count),
            _of_operands(name, operation, event, count),
        ]
        if marks[i] >= 0:
            known.append(_of_operands("", operation, mark, count))
        if around[i] >= 0:
            known.append(_of_operands(_short_name(trace, around[i]), operation, functional, count))
        elements = next((one.elements for one in known if one.elements >= 0), -1)
        dtype = next((one.dtype for one in known if one.dtype), "")
        if operation == _EMPTY:
            size[i] = 0
        elif elements >= 0 and dtype in _ITEM_BYTES:
            carried = elements * _ITEM_BYTES[dtype]
            size[i] = carried if carried < _TOO_LARGE else -1
        dtypes.append("" if operation == _EMPTY else dtype)
        groups.append(group)
        keys.append(key)
    return CommSizes(size, dtypes, _apart(groups, keys), keys, ranks)


def _noted(trace: Events, kernel: Ints, noted: Ints) -> list[CollectiveArgs]:
    """The parameters of each call: of its kernel, else of the event around the call."""
    of_kernel = decode(CollectiveArgs, trace.args[np.maximum(kernel, 0)])
    of_event = decode(CollectiveArgs, trace.args[np.maximum(noted, 0)])
    nothing = CollectiveArgs()
    return [
        first if k >= 0 and first.collective else second if n >= 0 else nothing
        for first, second, k, n in zip(
            of_kernel, of_event, kernel.tolist(), noted.tolist(), strict=True
        )
    ]


def _marks(trace: Events, event: Ints, work: Ints) -> Ints:
    """The back end's annotation of each call, -1 for none; it has the tensors' dtypes."""
    found = work.copy()
    missing = np.flatnonzero(found < 0)
    if len(missing):
        mark = np.zeros(len(trace), bool)
        mark[event[missing]] = True
        inner = np.flatnonzero(trace.names_where(lambda name: name.startswith(_MARKS)))
        around = trace.parent[inner]
        while len(inner):
            found_it = (around >= 0) & mark[around]
            by_call = dict(zip(around[found_it][::-1].tolist(), inner[found_it][::-1].tolist(),
                               strict=True))  # fmt: skip
            for i in missing.tolist():
                if found[i] < 0:
                    found[i] = by_call.get(int(event[i]), -1)
            left = ~found_it & (around >= 0)
            inner, around = inner[left], trace.parent[around[left]]
    return found


def _functional(trace: Events, event: Ints, mark: Ints) -> Ints:
    """The functional collective around each call without an annotation, -1 for none.

    Gloo's is not recorded if nobody has waited for the work before the end of the recording.
    """
    found = np.full(len(event), -1, np.int64)
    missing = np.flatnonzero(mark < 0)
    is_functional = trace.names_where(_FUNCTIONAL.match)
    if len(missing) and is_functional.any():
        found[missing] = nesting.nearest(is_functional, trace.parent, trace.parent[event[missing]])
    return found


def _short_name(trace: Events, event: np.integer[Any]) -> str:
    name: str = trace.names[int(trace.name[event])]
    return name.rpartition("::")[2]


_MARKS: Final = ("nccl:", "rccl:", "xccl:", "gloo:", "mpi:", "ucc:")


def _of_parameters(args: CollectiveArgs, operation: str, ranks: int) -> _Sent:
    """What ``record_param_comms`` says."""
    if not args.collective:
        return _Sent()
    dtype = _SCALARS.get(args.dtype, args.dtype.lower())
    given, got = args.elements, args.out_elements
    if operation == "gather":
        return _Sent(max(got, given * ranks), dtype) if ranks else _Sent(dtype=dtype)
    if operation == "scatter":
        return _Sent(max(given, got * ranks), dtype) if ranks else _Sent(dtype=dtype)
    if operation in ("all_gather", "reduce_scatter"):
        return _Sent(max(given, got), dtype)
    return _Sent(got if operation == "receive" else given, dtype)


def _of_operands(name: str, operation: str, args: OpArgs, ranks: int) -> _Sent:
    """What the recorded shapes say, if they do."""
    dims = decode_list(args.dims)
    types = [one if isinstance(one, str) else "" for one in decode_list(args.types)]
    at, partial = _ARGUMENTS.get(name, (0, operation in _GETS_OF_ALL))
    if at >= len(dims):
        return _Sent()
    kind = types[at] if at < len(types) else ""
    if kind == "TensorList":
        lists = dims[at]
        known = isinstance(lists, list) and bool(lists) and all(map(_is_shape, lists))
        elements = sum(map(prod, lists)) if known else -1
        dtype = ""
    else:
        # An annotation lists its tensors one by one.
        chosen = dims if not name else dims[at : at + 1]
        kinds = {*(types if not name else types[at : at + 1])}
        known = bool(kind) and all(map(_is_shape, chosen)) and len(kinds) == 1
        elements = sum(map(prod, chosen)) if known else -1
        found = BY_TYPE.get(kind)
        dtype = found.name if found else kind.removeprefix("c10::")
    if (name and partial) or (not name and operation in _GETS_OF_ALL):
        elements = elements * ranks if elements >= 0 and ranks else -1
    elif not name and operation in ("reduce_scatter", "scatter", "send", "receive"):
        # What a back end works on may be the part or the whole.
        elements = elements if operation in ("send", "receive") else -1
    return _Sent(elements, dtype)


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int and size >= 0 for size in value)


def _ranks_of(name: str, args: OpArgs) -> int:
    """The number of ranks, as far as the operator's arguments tell; 0 if unknown."""
    if name in _RANKS_AT:
        values = decode_list(args.concrete)
        at = _RANKS_AT[name]
        return max(whole_number(values[at]), 0) if at < len(values) else 0
    if name in _WHOLE_AND_PART:
        dims = decode_list(args.dims)
        whole, part = (
            prod(dims[at]) if at < len(dims) and _is_shape(dims[at]) else 0
            for at in _WHOLE_AND_PART[name]
        )
        return whole // part if part and whole % part == 0 else 0
    return 0


def _config(metadata: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The groups of the job that the trace lists: torch writes them since 2.4."""
    info = metadata.get("distributedInfo")
    listed = info.get("pg_config") if isinstance(info, dict) else None
    groups = listed if isinstance(listed, list) else []
    return [group for group in groups if isinstance(group, dict)]


def _only_group(metadata: Mapping[str, Any]) -> tuple[str, str, int] | None:
    """Label, key and size of the group, if there is just one."""
    groups = _config(metadata)
    if len(groups) != 1:
        return None
    name = str(groups[0].get("pg_name", ""))
    described = str(groups[0].get("pg_desc", ""))
    ranks = groups[0].get("ranks")
    members = str(ranks) if isinstance(ranks, list) else ""
    label = name if described in _NAMELESS else described
    return label, f"{name} {members}".strip(), max(whole_number(groups[0].get("pg_size")), 0)


def _common_ranks(metadata: Mapping[str, Any]) -> int:
    """The size that all groups have; 0 if they differ, or none is listed."""
    sizes = {max(whole_number(group.get("pg_size")), 0) for group in _config(metadata)}
    return sizes.pop() if len(sizes) == 1 else 0


def _apart(groups: list[str], keys: list[str]) -> list[str]:
    """The labels, with the group's name where two groups have the same."""
    known: dict[str, set[str]] = {}
    for group, key in zip(groups, keys, strict=True):
        known.setdefault(group, set()).add(key)
    return [
        f"{group} {key.partition(' ')[0]}" if len(known[group]) > 1 and group else group
        for group, key in zip(groups, keys, strict=True)
    ]
