"""FLOPs of attention (SDPA); `flops` says what counts (FCM: torch's `FlopCounterMode`)."""

from __future__ import annotations

from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.work.operands import Operands, UnknownOperandError


class Attention(Frozen, frozen=True):
    """Two matrix products forward, five backward (the scores again, then four gradients).

    As in FCM's `sdpa_flop_count` and `sdpa_backward_flop_count`: `2 × heads × pairs × width` for
    each product, over all pairs of a query and a key; groups of queries share the heads of keys;
    causal masks and windows do not reduce it (see `masks`). `heads` is the axis of the heads; FCM
    assumes 1 also for the inner flash and efficient operators, where it is 2. All others are
    positions: keys and values follow the queries, and an argument about keys follows the one about
    queries.

    Sequences of varying length are packed along one axis, and their lengths are in a tensor that
    is not in the trace (`offsets`). The number of pairs is known if all queries or all keys are as
    long as the longest. `unless`: positions of further tensors with lengths or key locations.
    """

    query: int = 0
    heads: int = 1
    offsets: int | None = None
    longest: int = 0
    backward: bool = False
    unless: tuple[int, ...] = ()

    def __call__(self, call: Operands) -> int:
        """FLOPs of all pairs of a query and a key."""
        packed = self._is_packed(call)
        (batch, h, tokens, width), (_, h_k, keys, width_k), (_, h_v, values, width_v) = operands = [
            _heads_first(call.shape(self.query + i), self.heads, packed=packed) for i in range(3)
        ]
        if not all(map(all, operands)):
            return 0  # an empty tensor
        if any(operand[0] != batch for operand in operands):
            raise UnknownOperandError
        if any(map(call.has_tensor, self.unless)):
            raise UnknownOperandError
        if h % h_k or h_k != h_v or keys != values or width != width_k:
            raise UnknownOperandError
        pairs = batch * tokens * keys
        if packed:
            sequences, most, most_keys = self._sequences(call)
            if keys != sequences * most_keys and tokens != sequences * most:
                raise UnknownOperandError
            pairs = tokens * most_keys if keys == sequences * most_keys else keys * most
        passes = 3 * width + 2 * width_v if self.backward else width + width_v
        return 2 * h * pairs * passes

    def lengths(self, call: Operands) -> tuple[int, int]:
        """Queries and keys of each sequence, if all are equal."""
        packed = self._is_packed(call)
        (_, _, tokens, _), (_, _, keys, _) = (
            _heads_first(call.shape(self.query + i), self.heads, packed=packed) for i in range(2)
        )
        if not packed:
            return tokens, keys
        sequences, most, most_keys = self._sequences(call)
        if keys != sequences * most_keys or tokens != sequences * most:
            raise UnknownOperandError
        return most, most_keys

    def _is_packed(self, call: Operands) -> bool:
        return self.offsets is not None and call.has_tensor(self.offsets)

    def _sequences(self, call: Operands) -> tuple[int, int, int]:
        """The number of sequences, and the most queries and keys in one."""
        assert self.offsets is not None  # noqa: S101 - it is packed
        most, most_keys = (int(call.concrete[self.longest + i] or 0) for i in range(2))
        return call.shape(self.offsets)[0] - 1, most, most_keys


def _heads_first(shape: tuple[int, ...], heads: int, *, packed: bool) -> tuple[int, int, int, int]:
    """Batch, heads, tokens and width. Packed sequences are `[tokens, heads, width]`."""
    batch, first, second, width = [1, *shape] if packed and len(shape) == 3 else shape
    if heads == 2 or len(shape) == 3:
        return batch, second, first, width
    return batch, first, second, width
