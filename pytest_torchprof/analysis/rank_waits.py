"""Who waits for whom: the same collectives of several ranks side by side, on one clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from pytest_torchprof.analysis.communication import comm_calls, comm_sizes
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.trace.names import Kind
from pytest_torchprof.trace.nesting import among

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints


# ---- The calls of one rank that communicate, as little as it takes to compare them with others'.


class CallKind(NamedTuple):
    """What calls have in common: see `CommSizes` for the fields."""

    key: str
    group: str
    operation: str
    dtype: str
    size: int


class RankCalls(Frozen, frozen=True):
    """The calls of one rank, in the order in which its device was done with them, else of the host.

    Attributes:
        kinds: each kind once.
        kind: of each call, its index in ``kinds``.
        begin: of each call, in ns by the trace's clock, -1 if unknown; see `CommCalls`.
        end: likewise.
        base_ns: when that clock began, in ns since the epoch; 0 if the trace does not say so.
        first_ns: when the first event began, by that clock; None without events.
        host: the name of the rank's host, empty if unknown.
    """

    kinds: tuple[CallKind, ...]
    kind: npt.NDArray[np.int32]
    begin: Ints
    end: Ints
    base_ns: int
    first_ns: int | None
    host: str

    def __len__(self) -> int:
        return len(self.kind)


def rank_calls(trace: Events) -> RankCalls:
    """The calls of this rank, of the selected events.

    Hosts run ahead of their devices, each as far as it likes, and what was launched before the
    recording has no call: only the ends on the device are in one order on all ranks. A call without
    a known end comes after the one made before it.
    """
    calls, sizes = comm_calls(trace), comm_sizes(trace)
    done = np.where(calls.kernel >= 0, calls.end, -1)
    made = np.where(trace.is_kind(Kind.KERNEL)[calls.event], -1, done)
    order = np.where(done < 0, np.maximum.accumulate(made), done).argsort(kind="stable")
    kinds: dict[CallKind, int] = {}
    fields = (sizes.key, sizes.group, calls.operation, sizes.dtype, sizes.size.tolist())
    kind = [kinds.setdefault(CallKind(*one), len(kinds)) for one in zip(*fields, strict=True)]
    base, host = trace.metadata.get("baseTimeNanoseconds"), trace.metadata.get("host_name")
    return RankCalls(
        tuple(kinds),
        np.array(kind, np.int32)[order],
        calls.begin[order],
        calls.end[order],
        base if type(base) is int else 0,
        int(trace.ts[0]) if len(trace) else None,
        host if isinstance(host, str) else "",
    )


Floats: TypeAlias = "npt.NDArray[np.float64]"

#: No rank is done with one of these before all ranks have begun it. In others, such as a broadcast,
#: a rank may be done early, so their ends say nothing about clocks.
TOGETHER: Final = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
#: Of these, all ranks have the same size; of others, sizes may differ.
_ALIKE: Final = frozenset({"all_reduce", "reduce_scatter", "broadcast"})
#: Only the root has what tells the dtype.
_OF_ROOT: Final = frozenset({"gather", "scatter"})
_OF_TWO: Final = frozenset({"send", "receive"})
#: By so many calls, a rank's recording may begin before or after that of the others.
_MOST_APART: Final = 64
#: So many times closer must ends be for another pairing than that of the first calls.
_FITS: Final = 4
#: Enough for the clocks of ranks that share no group, but are linked by others.
_ROUNDS: Final = 50
#: If ends on the clocks of hosts are apart by this many times more than on a clock for each rank,
#: and by this many ns, ranks of one host's name run on several hosts.
_FAR, _FAR_NS = 10, 10**6

#: Operation, dtype, and size in bytes, None if ranks may differ in it.
Signature: TypeAlias = "tuple[str, str, int | None]"


class Matched(Frozen, frozen=True):
    """The collectives of one group that its ranks have in common, in order.

    ``ranks`` are those with a trace; ``call`` has the index in `RankCalls` of each rank's, one row
    per collective and one column per rank; ``begin`` and ``end`` are ns since the first event of
    the job, by the recorded clocks, -1 if unknown.
    """

    group: str
    ranks: tuple[int, ...]
    call: Ints
    begin: Ints
    end: Ints


class Mismatch(Frozen, frozen=True):
    """A rank whose collectives of a group are not those of the others; so they are not compared.

    ``number`` is the first that differs, from 1; ``own`` is what this rank has there, ``others``
    what most of the others have: None if there is nothing more.
    """

    rank: int
    group: str
    number: int
    own: Signature | None
    others: Signature | None


class RankWaits(Frozen, frozen=True):
    """How long ranks waited at collectives for the last one to begin.

    Attributes:
        ranks: all ranks, in order.
        collectives: how many collectives were compared.
        wait_ns: by rank and rank: how long the first waited for the second, which began last.
        last: by rank: at how many collectives it was the last to begin.
        met: by rank: how many collectives of it were compared.
        shift_ns: by rank: what is added to its recorded clock; 0 of the first rank.
        apart_ns: half of the ends of collectives are closer to each other than this, on the shifted
            clocks; None without collectives.
        earliest_ns: by rank: the longest wait of a rank at each of its calls, -1 if unknown.
        own_ns: by rank: how long itself waited at each of its calls, -1 if unknown.
        mismatches: what could not be compared.
    """

    ranks: tuple[int, ...]
    collectives: int
    wait_ns: Ints
    last: Ints
    met: Ints
    shift_ns: Ints
    apart_ns: int | None
    earliest_ns: Mapping[int, Ints]
    own_ns: Mapping[int, Ints]
    mismatches: tuple[Mismatch, ...]


def waits_between(by_rank: Mapping[int, RankCalls]) -> RankWaits:
    """Compare the collectives of these ranks of one job.

    Collectives match by group and order. Clocks of hosts differ, so each host's is shifted until
    its collectives end when those of the others do, in the median: the ranks of a collective of
    `TOGETHER` end at about the same time. A trace without its host's name has a clock of its own. A
    rank waits from its own begin until the last begin, and no longer than the collective lasts.
    """
    ranks = tuple(sorted(by_rank))
    matched, mismatches = match(by_rank)
    together = [_together(by_rank, one) for one in matched]
    shift = _clock_shifts(by_rank, together)
    column = {rank: i for i, rank in enumerate(ranks)}
    wait = np.zeros((len(ranks), len(ranks)), np.int64)
    last, met = np.zeros((2, len(ranks)), np.int64)
    earliest, own = (
        {rank: np.full(len(by_rank[rank]), -1, np.int64) for rank in ranks} for _ in range(2)
    )
    for one in together:
        if not len(one.call):
            continue
        at = np.array([column[rank] for rank in one.ranks], np.int64)
        begin = one.begin + shift[at]
        waited = np.clip(begin.max(axis=1, keepdims=True) - begin, 0, one.end - one.begin)
        latest = begin.argmax(axis=1)
        for i in range(len(at)):
            np.add.at(wait[at[i]], at[latest], waited[:, i])
            earliest[one.ranks[i]][one.call[:, i]] = waited.max(axis=1)
            own[one.ranks[i]][one.call[:, i]] = waited[:, i]
        np.add.at(last, at[latest], 1)
        met[at] += len(one.call)
    count = sum(len(one.call) for one in together)
    return RankWaits(
        ranks,
        count,
        wait,
        last,
        met,
        shift,
        round(_apart(list(ranks), shift, together)) if count else None,
        earliest,
        own,
        mismatches,
    )


def match(by_rank: Mapping[int, RankCalls]) -> tuple[list[Matched], tuple[Mismatch, ...]]:
    """The collectives of each group with several of these ranks, and what does not match."""
    rows: dict[str, dict[int, Ints]] = {}
    signatures: dict[str, dict[int, list[Signature]]] = {}
    labels: dict[str, str] = {}
    for rank, calls in sorted(by_rank.items()):
        told = [_signature(kind) for kind in calls.kinds]
        for key, numbers in _by_group(calls.kinds).items():
            labels[key] = calls.kinds[numbers[0]].group
            rows.setdefault(key, {})[rank] = at = np.flatnonzero(among(calls.kind, numbers))
            own = [told[number] for number in calls.kind[at].tolist()]
            signatures.setdefault(key, {})[rank] = own
    begun = [calls.base_ns + calls.first_ns for calls in by_rank.values()
             if calls.first_ns is not None]  # fmt: skip
    zero = min(begun, default=0)
    matched, mismatches = list[Matched](), list[Mismatch]()
    for key, each in signatures.items():
        # Of several groups, nobody knows to which one a call without a name belongs.
        if len(each) < 2 or (not key and len(signatures) > 1):
            continue
        usual = _usual(each)
        kept = dict[int, int]()  # rank: see `_offsets`
        first = next(rank for rank, own in each.items() if own == usual)
        for rank, own in each.items():
            if offsets := _offsets(own, usual):
                pair = [
                    _since(zero, by_rank[one], by_rank[one].end[rows[key][one]])
                    for one in (rank, first)
                ]
                host = by_rank[rank].host
                kept[rank] = _best(offsets, *pair, one_clock=host == by_rank[first].host != "")
            else:
                mismatches.append(_difference(rank, labels[key], own, usual))
        if len(kept) < 2:
            continue
        start = max(0, *(-offset for offset in kept.values()))
        stop = min(len(usual), *(len(each[rank]) - offset for rank, offset in kept.items()))
        call = np.stack(
            [rows[key][rank][start + at : max(start, stop) + at] for rank, at in kept.items()],
            axis=1,
        )
        begin, end = (
            np.stack([
                _since(zero, by_rank[rank], getattr(by_rank[rank], which)[call[:, i]])
                for i, rank in enumerate(kept)
            ], axis=1)
            for which in ("begin", "end")
        )  # fmt: skip
        matched.append(Matched(labels[key], tuple(kept), call, begin, end))
    return matched, tuple(mismatches)


def _by_group(kinds: Sequence[CallKind]) -> dict[str, list[int]]:
    """The numbers of these kinds, by the key of their group, in which all ranks take part."""
    found: dict[str, list[int]] = {}
    for number, kind in enumerate(kinds):
        if kind.operation not in _OF_TWO:
            found.setdefault(kind.key, []).append(number)
    return found


def _signature(kind: CallKind) -> Signature:
    size = kind.size if kind.operation in _ALIKE else None
    return kind.operation, "" if kind.operation in _OF_ROOT else kind.dtype, size


def _usual(by_rank: Mapping[int, list[Signature]]) -> list[Signature]:
    """What most ranks did; of several as frequent, the shortest, which the others may contain."""
    times: dict[tuple[Signature, ...], int] = {}
    for own in by_rank.values():
        times[tuple(own)] = times.get(tuple(own), 0) + 1
    return list(min(times.items(), key=lambda item: (-item[1], len(item[0])))[0])


def _offsets(own: list[Signature], usual: list[Signature]) -> list[int]:
    """How many more calls may come before those in common than before the usual ones, the least
    first; none if they do not match.

    A recording may begin and end with other calls than those of the other ranks, but for the most
    part they are the same.
    """
    half, found = max(len(own), len(usual)) / 2, list[int]()
    for offset in sorted(range(1 - len(usual), len(own)), key=abs)[: 2 * _MOST_APART + 1]:
        both = list(zip(own[max(offset, 0) :], usual[max(-offset, 0) :], strict=False))
        if len(both) > half and all(_may_be_one(*pair) for pair in both):
            found.append(offset)
    return found


def _best(offsets: list[int], own: Ints, usual: Ints, *, one_clock: bool) -> int:
    """The offset with which the calls end together; the least, unless another fits far better.

    Steps repeat, so the same calls may fit several times. On clocks of their own, how far the ends
    are apart may be anything, but is always the same.
    """
    apart = list[float]()
    for offset in offsets:
        mine, others = own[max(offset, 0) :], usual[max(-offset, 0) :]
        count = min(len(mine), len(others))
        mine, others = mine[:count], others[:count]
        known = (mine >= 0) & (others >= 0)
        late = (mine - others)[known]
        shift = 0 if one_clock or not len(late) else np.median(late)
        apart.append(float(np.median(np.abs(late - shift))) if len(late) else np.inf)
    best = int(np.argmin(apart))
    return offsets[best if apart[best] < apart[0] / _FITS else 0]


def _may_be_one(own: Signature, other: Signature) -> bool:
    """Whether both may be the same; what was launched before a recording has no dtype or size."""
    dtype, size = {own[1], other[1]} - {""}, {own[2], other[2]} - {None, -1}
    return own[0] == other[0] and len(dtype) < 2 and len(size) < 2


def _difference(rank: int, group: str, own: list[Signature], usual: list[Signature]) -> Mismatch:
    shared = min(len(own), len(usual))
    at = next((i for i in range(shared) if own[i] != usual[i]), shared)
    return Mismatch(
        rank,
        group,
        at + 1,
        own[at] if at < len(own) else None,
        usual[at] if at < len(usual) else None,
    )


def _together(by_rank: Mapping[int, RankCalls], matched: Matched) -> Matched:
    """Only collectives of `TOGETHER` whose times are known."""
    calls = by_rank[matched.ranks[0]]
    together = np.array([kind.operation in TOGETHER for kind in calls.kinds], bool)
    chosen = together[calls.kind[matched.call[:, 0]]]
    chosen &= (matched.begin >= 0).all(axis=1) & (matched.end >= 0).all(axis=1)
    columns = (column[chosen] for column in (matched.call, matched.begin, matched.end))
    return Matched(matched.group, matched.ranks, *columns)


def _clock_shifts(by_rank: Mapping[int, RankCalls], matched: list[Matched]) -> Ints:
    """What to add to the clock of each rank, in order, so that collectives end together.

    Ranks of one host have one clock, unless the ends say that several hosts have the name.
    """
    ranks = sorted(by_rank)
    hosts = [by_rank[rank].host or rank for rank in ranks]
    alone = _shifts(ranks, list(range(len(ranks))), matched)
    if len({*hosts}) == len(ranks):
        return alone
    numbers = {host: number for number, host in enumerate(dict.fromkeys(hosts))}
    shared = _shifts(ranks, [numbers[host] for host in hosts], matched)
    limit = max(_FAR * _apart(ranks, alone, matched), _FAR_NS)
    return shared if _apart(ranks, shared, matched) <= limit else alone


def _shifts(ranks: list[int], clocks: list[int], matched: list[Matched]) -> Ints:
    """Shifts of clocks, of which each rank has one, by the median of their ranks' late ends."""
    column = {rank: i for i, rank in enumerate(ranks)}
    clock = np.array(clocks, np.int64)
    shift = np.zeros(len({*clocks}))
    for _ in range(_ROUNDS):
        off: list[list[Floats]] = [[] for _ in shift]
        for one in matched:
            if not len(one.call):
                continue
            mine = clock[[column[rank] for rank in one.ranks]]
            end = one.end + shift[mine]
            late = end - np.median(end, axis=1, keepdims=True)
            for i, which in enumerate(mine.tolist()):
                off[which].append(late[:, i])
        step = np.array([np.median(np.concatenate(one)) if one else 0.0 for one in off])
        shift -= step
        if np.abs(step).max(initial=0) < 1:
            break
    rounded: Ints = np.round(shift).astype(np.int64)[clock]
    return rounded - (rounded[0] if len(rounded) else 0)


def _apart(ranks: list[int], shift: Ints, matched: list[Matched]) -> float:
    """How far the ends of collectives are from their median on these clocks, in the median."""
    column = {rank: i for i, rank in enumerate(ranks)}
    spread = list[Floats]()
    for one in matched:
        if len(one.call):
            end = one.end + shift[[column[rank] for rank in one.ranks]]
            spread.append(np.abs(end - np.median(end, axis=1, keepdims=True)).ravel())
    return float(np.median(np.concatenate(spread))) if spread else 0.0


def _since(zero: int, calls: RankCalls, times: Ints) -> Ints:
    return np.where(times < 0, -1, times + (calls.base_ns - zero))
