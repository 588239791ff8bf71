"""Arguments of many events in one text, which takes far less memory than an object each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, Final, TypeVar, overload

import msgspec
import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from pytest_torchprof.core.process import late
from pytest_torchprof.trace.nesting import Ints, narrow


class Arguments:
    """A column of raw JSON: one part of ``text`` per event; an empty part is None.

    It is indexed like an array of objects: a number gives ``bytes`` or None; an array of numbers or
    booleans gives another column on the same text.

    >>> column = Arguments.of([b"{}", None, b'{"a": 1}'])
    >>> column[2], column[np.array([1, 0])].tolist()
    (b'{"a": 1}', [None, b'{}'])
    """

    def __init__(
        self, text: bytes, start: npt.NDArray[np.signedinteger[Any]], length: npt.NDArray[np.int32]
    ) -> None:
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

    def containing(self, word: bytes) -> list[bool]:
        """Which parts have this word, found without a copy of each."""
        find, ends = self.text.find, (self.start + self.length).tolist()
        return [find(word, a, b) >= 0 for a, b in zip(self.start.tolist(), ends, strict=True)]

    def tolist(self) -> list[bytes | None]:
        """The parts as objects."""
        text, ends = self.text, (self.start + self.length).tolist()
        return [text[a:b] or None for a, b in zip(self.start.tolist(), ends, strict=True)]

    def as_list(self) -> bytes:
        """One JSON list of all parts, ``null`` for None."""
        text, ends = self.text, (self.start + self.length).tolist()
        parts = [text[a:b] or b"null" for a, b in zip(self.start.tolist(), ends, strict=True)]
        return b"[" + b",".join(parts) + b"]"


def starts(length: npt.NDArray[np.int32]) -> npt.NDArray[np.signedinteger[Any]]:
    """Where consecutive parts of these lengths begin, as int32 if that holds all ends."""
    ends = np.cumsum(length, dtype=np.int64)
    near = not len(ends) or ends[-1] < _FAR
    ends -= length
    return ends.astype(np.int32) if near else ends


# -------------------------------------------------------------------- decoding

#: Below what int32 holds, with room for the word that is read past an end.
_FAR: Final = 2**31 - 64
#: A device that the trace does not name.
NO_DEVICE: Final = -(2**29)
_BLOCK: Final = 2**11


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

    ``members`` is text, or a list.

    Source: torch/csrc/distributed/c10d/ParamCommsUtils.hpp and torch/csrc/profiler/util.cpp.
    """

    collective: str = msgspec.field(name="Collective name", default="")
    group: str = msgspec.field(name="Process Group Name", default="")
    description: str = msgspec.field(name="Process Group Description", default="")
    members: Any = msgspec.field(name="Process Group Ranks", default="")
    ranks: int = msgspec.field(name="Group size", default=0)
    elements: int = msgspec.field(name="In msg nelems", default=0)
    out_elements: int = msgspec.field(name="Out msg nelems", default=0)
    dtype: str = msgspec.field(name="dtype", default="")


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


_Args = TypeVar("_Args", bound=msgspec.Struct)


@cache
def _decoder(of: type[_Args]) -> msgspec.json.Decoder[list[_Args | None]]:
    """Not strict, as numbers come as strings from some versions."""
    return msgspec.json.Decoder(list[of | None], strict=False)  # type: ignore[valid-type]


_NOT_DECODED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def decode(of: type[_Args], raws: Arguments, whole: bytes | None = None) -> list[_Args]:
    """Decode all args; an empty struct if another tool wrote something else.

    ``whole``: what ``raws.as_list()`` gives, if that is at hand.
    A block at a time, since their texts take several times the structs' memory.
    """
    if len(raws) <= _BLOCK:
        return _decoded(of, raws.as_list() if whole is None else whole, raws)
    blocks = [raws[at : at + _BLOCK] for at in range(0, len(raws), _BLOCK)]
    return [args for block in blocks for args in _decoded(of, block.as_list(), block)]


def decode_texts(of: type[_Args], texts: Sequence[bytes | None]) -> list[_Args]:
    """The same of args that are at hand as objects."""
    return _decoded(of, b"[" + b",".join([text or b"null" for text in texts]) + b"]", texts)


def _decoded(of: type[_Args], every_one: bytes, each: Iterable[bytes | None]) -> list[_Args]:
    try:
        every = _decoder(of).decode(every_one)
    except _NOT_DECODED:
        every = [_decode_one(of, raw or b"null") for raw in each]
    return [of() if args is None else args for args in every]


#: A call's operands, which torch writes side by side, with numbers of the call before and after.
_OPERANDS = late(
    rb'"(?:Input |Concrete Inputs")(?:.*"Ev Idx"(?!.*"(?:Input |Concrete Inputs"))|.*)', re.DOTALL
)
#: Of so many calls, those with texts of one length are compared at once, as long as that finds
#: one in `_SHARE` of them alike, and of `_FEW` and more: otherwise, one by one is quicker.
_MANY, _FEW, _SHARE = 1000, 64, 8
#: Bytes of text that are compared at once.
_AT_ONCE = 2**20
_WORD = 8
#: Makes a digit a zero, and a few signs, too, none of which is in a key of operands.
_NO_DIGIT, _ALL = np.uint8(0xF0), np.uint8(0xFF)


def alike(name: Ints, raws: Arguments) -> tuple[Ints, list[int], list[tuple[int, bytes]]]:
    """Find calls of the same name with the same operands, without decoding any.

    Returns:
        for each call the number of its kind; for each kind its first call, and its key: the name,
        and the text of the operands. Files of other tools may have more kinds than necessary.
    """
    known: dict[tuple[int, bytes], int] = {}
    kinds = np.full(len(name), -1, np.int64)
    if len(name) >= _MANY:
        _compare(name, raws, kinds, known)
    rest = (kinds < 0).nonzero()[0]
    search, text = _OPERANDS.search, raws.text
    for first in range(0, len(rest), _BLOCK):
        rows = rest[first : first + _BLOCK]
        some = raws[rows]
        ends = (some.start + some.length).tolist()
        found = []
        for number, start, end in zip(name[rows].tolist(), some.start.tolist(), ends, strict=True):
            part = search(text, start, end)
            key = number, text[start:end] if part is None else part[0]
            found.append(known.setdefault(key, len(known)))
        kinds[rows] = found
    firsts = np.zeros(len(known), np.int64)
    firsts[kinds[::-1]] = np.arange(len(kinds))[::-1]  # of several for a kind, the last one stays
    return kinds, firsts.tolist(), list(known)


def _compare(name: Ints, raws: Arguments, kinds: Ints, known: dict[tuple[int, bytes], int]) -> None:
    """Find the kinds of calls whose text differs from another one only in digits elsewhere."""
    buffer = np.frombuffer(raws.text, np.uint8)
    order = np.lexsort((raws.length, name))
    inside = (raws.length > 0) & (raws.start + raws.length + _WORD <= len(buffer))
    order = order[inside[order]]
    number, length = name[order], raws.length[order]
    differ = (number[1:] != number[:-1]) | (length[1:] != length[:-1])
    for start, stop in pairwise([0, *(differ.nonzero()[0] + 1).tolist(), len(order)]):
        if stop - start < _FEW:
            continue
        size = int(length[start])
        wide = -(-size // _WORD) * _WORD
        step = max(_AT_ONCE // wide, 1)
        for at in range(start, stop, step):
            rows = order[at : min(at + step, stop)]
            while len(rows) >= _FEW:
                begin = int(raws.start[rows[0]])
                part = _OPERANDS.search(raws.text, begin, begin + size)
                first, last = (begin, begin + size) if part is None else part.span()
                texts = sliding_window_view(buffer, wide)[raws.start[rows]]
                # No key of operands contains a digit, so with other digits they are where they are.
                mask = np.where((texts[0] & _NO_DIGIT) == ord("0"), _NO_DIGIT, _ALL)
                mask[first - begin : last - begin] = _ALL
                mask[size:] = 0
                texts &= mask
                words = texts.view(np.uint64)
                mine = (words == words[0]).all(axis=1)
                key = int(number[start]), raws.text[first:last]
                kinds[rows[mine]] = known.setdefault(key, len(known))
                others = rows[~mine]
                if (len(rows) - len(others)) * _SHARE < len(rows):
                    break
                rows = others


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


def device_columns(every: Arguments) -> tuple[Ints, Ints, Ints]:
    """Correlation ids, devices, and bytes of these events; -1 where one lacks it.

    A device that it lacks is `NO_DEVICE`. Decoded a block at a time, since objects take several
    times the columns' memory.
    """
    correlation, device, moved = (np.empty(len(every), np.int64) for _ in range(3))
    for start in range(0, len(every), _BLOCK):
        block = slice(start, start + _BLOCK)
        args = decode(DeviceArgs, every[block])
        correlation[block] = int64_column([a.correlation for a in args])
        device[block] = int64_column([NO_DEVICE if a.device is None else a.device for a in args])
        moved[block] = int64_column([a.bytes for a in args])
    return narrow(correlation), narrow(device), narrow(moved)


def int64_column(values: Sequence[Any]) -> Ints:
    """A column of int64; numbers that do not fit keep their lower bits."""
    try:
        return np.fromiter(values, np.int64, len(values))
    except OverflowError:
        return np.fromiter((v & (2**63 - 1) for v in values), np.int64, len(values))
