"""Arguments of many events in one text, which takes far less memory than an object each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

import msgspec
import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from pytest_torchprof.trace.nesting import Ints


class Arguments:
    """A column of raw JSON: one part of ``text`` per event; an empty part is None.

    It is indexed like an array of objects: a number gives ``bytes`` or None; an array of numbers or
    booleans gives another column on the same text.

    >>> column = Arguments.of([b"{}", None, b'{"a": 1}'])
    >>> column[2], column[np.array([1, 0])].tolist()
    (b'{"a": 1}', [None, b'{}'])
    """

    def __init__(self, text: bytes, start: Ints, length: npt.NDArray[np.int32]) -> None:
        self.text, self.start, self.length = text, start, length

    @classmethod
    def of(cls, parts: Iterable[bytes | None]) -> Arguments:
        """A column of these parts, in order."""
        texts = [part or b"" for part in parts]
        length = np.fromiter(map(len, texts), np.int32, len(texts))
        return cls(b"".join(texts), starts(length), length)

    def __len__(self) -> int:
        return len(self.start)

    @overload
    def __getitem__(self, at: int | np.integer[Any]) -> bytes | None: ...
    @overload
    def __getitem__(self, at: slice | npt.NDArray[Any] | list[int]) -> Arguments: ...
    def __getitem__(self, at: Any) -> Any:
        start, length = self.start[at], self.length[at]
        if isinstance(start, np.ndarray):
            return Arguments(self.text, start, length)
        return self.text[int(start) : int(start) + int(length)] or None

    def __iter__(self) -> Iterator[bytes | None]:
        return iter(self.tolist())

    def may_contain(self, word: bytes) -> bool:
        """Whether the text of which these are parts has this word: a quick check before a search.

        >>> Arguments.of([b'["float"]', b'["int"]']).may_contain(b'"int"')
        True
        """
        return word in self.text

    def tolist(self) -> list[bytes | None]:
        """The parts as objects."""
        text, ends = self.text, (self.start + self.length).tolist()
        return [text[a:b] or None for a, b in zip(self.start.tolist(), ends, strict=True)]

    def as_list(self) -> bytes:
        """One JSON list of all parts, ``null`` for None."""
        text, ends = self.text, (self.start + self.length).tolist()
        parts = [text[a:b] or b"null" for a, b in zip(self.start.tolist(), ends, strict=True)]
        return b"[" + b",".join(parts) + b"]"


def starts(length: npt.NDArray[np.int32]) -> Ints:
    """Where consecutive parts of these lengths begin."""
    ends = np.cumsum(length, dtype=np.int64)
    return ends - length


# -------------------------------------------------------------------- decoding


class DeviceArgs(msgspec.Struct, gc=False):
    """Of a runtime call or device event; -1 and None where the trace lacks the value."""

    correlation: int = -1
    device: int | None = None
    bytes: int = -1


class FormerIds(msgspec.Struct, gc=False):
    """Of a runtime call or device event of ROCm until 2024: its name for the correlation id."""

    correlation: int = msgspec.field(name="External id", default=-1)


class CopyArgs(msgspec.Struct, gc=False):
    """Of a copy call: HIP's number for the direction, which some versions write as text."""

    kind: Any = None


class LaunchArgs(msgspec.Struct, gc=False):
    """How a kernel was launched; -1 where the trace lacks the value.

    ``grid`` and ``block`` are raw JSON, empty for none: few of them differ. ``shared`` are bytes of
    static and dynamic shared memory of a block. ``blocks_per_sm`` are all blocks by all
    multiprocessors, not those that run at once.
    """

    grid: msgspec.Raw = msgspec.Raw()
    block: msgspec.Raw = msgspec.Raw()
    registers: int = msgspec.field(name="registers per thread", default=-1)
    shared: int = msgspec.field(name="shared memory", default=-1)
    occupancy: float = msgspec.field(name="est. achieved occupancy %", default=-1.0)
    blocks_per_sm: float = msgspec.field(name="blocks per SM", default=-1.0)
    warps_per_sm: float = msgspec.field(name="warps per SM", default=-1.0)


class OpArgs(msgspec.Struct, gc=False):
    """The recorded operands of a call, each part as raw JSON, empty for none."""

    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw())
    types: msgspec.Raw = msgspec.field(name="Input type", default=msgspec.Raw())
    concrete: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=msgspec.Raw())
    strides: msgspec.Raw = msgspec.field(name="Input Strides", default=msgspec.Raw())


class CollectiveArgs(msgspec.Struct, gc=False):
    """Of a kernel that communicates, or of the operator that launches it.

    Source: torch/csrc/distributed/c10d/ParamCommsUtils.hpp and torch/csrc/profiler/util.cpp.
    """

    collective: str = msgspec.field(name="Collective name", default="")
    group: str = msgspec.field(name="Process Group Name", default="")
    description: str = msgspec.field(name="Process Group Description", default="")
    ranks: int = msgspec.field(name="Group size", default=0)
    elements: int = msgspec.field(name="In msg nelems", default=0)


class AutogradArgs(msgspec.Struct, gc=False):
    """What links an operator to its backward; a forward operator's ``forward_thread`` is 0."""

    sequence: int = msgspec.field(name="Sequence number", default=-1)
    forward_thread: int = msgspec.field(name="Fwd thread id", default=0)


class MemoryArgs(msgspec.Struct, gc=False):
    """Of an allocation or, with negative bytes, of a free."""

    addr: int | None = msgspec.field(name="Addr", default=None)
    bytes: int = msgspec.field(name="Bytes", default=0)
    device_type: int = msgspec.field(name="Device Type", default=0)
    device_id: Any = msgspec.field(name="Device Id", default=-1)


class MemoryTotals(msgspec.Struct, gc=False):
    """The allocator's totals after an allocation or a free; -1 where the trace lacks them."""

    allocated: int = msgspec.field(name="Total Allocated", default=-1)
    reserved: int = msgspec.field(name="Total Reserved", default=-1)


_Args = TypeVar(
    "_Args",
    DeviceArgs,
    FormerIds,
    CopyArgs,
    LaunchArgs,
    OpArgs,
    CollectiveArgs,
    AutogradArgs,
    MemoryArgs,
    MemoryTotals,
)
# Numbers come as strings from some versions, hence not strict.
_DECODERS: Mapping[type, msgspec.json.Decoder[Any]] = {
    DeviceArgs: msgspec.json.Decoder(list[DeviceArgs | None], strict=False),
    FormerIds: msgspec.json.Decoder(list[FormerIds | None], strict=False),
    CopyArgs: msgspec.json.Decoder(list[CopyArgs | None], strict=False),
    LaunchArgs: msgspec.json.Decoder(list[LaunchArgs | None], strict=False),
    OpArgs: msgspec.json.Decoder(list[OpArgs | None], strict=False),
    CollectiveArgs: msgspec.json.Decoder(list[CollectiveArgs | None], strict=False),
    AutogradArgs: msgspec.json.Decoder(list[AutogradArgs | None], strict=False),
    MemoryArgs: msgspec.json.Decoder(list[MemoryArgs | None], strict=False),
    MemoryTotals: msgspec.json.Decoder(list[MemoryTotals | None], strict=False),
}
_NOT_DECODED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def decode(of: type[_Args], raws: Arguments) -> list[_Args]:
    """Decode all args at once; an empty struct if another tool wrote something else."""
    return _decoded(of, raws.as_list(), raws)


def decode_texts(of: type[_Args], texts: Sequence[bytes | None]) -> list[_Args]:
    """The same of args that are at hand as objects."""
    return _decoded(of, b"[" + b",".join([text or b"null" for text in texts]) + b"]", texts)


def _decoded(of: type[_Args], every_one: bytes, each: Iterable[bytes | None]) -> list[_Args]:
    try:
        every = _DECODERS[of].decode(every_one)
    except _NOT_DECODED:
        every = [_decode_one(of, raw or b"null") for raw in each]
    return [of() if args is None else args for args in every]


#: The keys of operands begin like this; torch writes them side by side, and numbers of the call
#: before and after them.
_OPERANDS, _VALUES, _REST = b'"Input ', b'"Concrete Inputs"', b'"Ev Idx"'


def alike(name: Ints, raws: Arguments) -> tuple[Ints, list[int], list[tuple[int, bytes]]]:
    """Find calls of the same name with the same operands, without decoding any.

    Returns:
        for each call the number of its kind; for each kind its first call, and its key: the name,
        and the text of the operands. Files of other tools may have more kinds than necessary.
    """
    known: dict[tuple[int, bytes], int] = {}
    text, find, rfind = raws.text, raws.text.find, raws.text.rfind
    kinds: list[int] = []
    firsts: list[int] = []
    ends = (raws.start + raws.length).tolist()
    for number, start, end in zip(name.tolist(), raws.start.tolist(), ends, strict=True):
        first, values = find(_OPERANDS, start, end), find(_VALUES, start, end)
        rest = rfind(_REST, start, end)
        if 0 <= values < first or first < 0:
            first = values
        if rest < rfind(_OPERANDS, start, end) or rest < values:
            rest = end
        key = (number, text[first if first >= 0 else start : rest if rest >= 0 else end])
        kind = known.setdefault(key, len(known))
        if kind == len(firsts):
            firsts.append(len(kinds))
        kinds.append(kind)
    return np.array(kinds, np.int64), firsts, list(known)


def _decode_one(of: type[_Args], text: Any) -> _Args | None:
    try:
        return msgspec.json.decode(text, type=of, strict=False)
    except _NOT_DECODED:
        return None


def decode_part(text: bytes) -> Any:
    """A raw part of args, of any type; None if it is missing."""
    try:
        return msgspec.json.decode(text) if text else None
    except _NOT_DECODED:
        return None


def decode_list(part: bytes | memoryview) -> list[Any]:
    """The same, of a list; empty for anything else."""
    decoded = decode_part(bytes(part))
    return decoded if isinstance(decoded, list) else []


def whole_number(value: Any) -> int:
    """A whole number, possibly written as a string; -1 for anything else."""
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return -1


def int64_column(values: Sequence[Any]) -> Ints:
    """A column of int64; numbers that do not fit keep their lower bits."""
    try:
        return np.fromiter(values, np.int64, len(values))
    except OverflowError:
        return np.fromiter((v & (2**63 - 1) for v in values), np.int64, len(values))
