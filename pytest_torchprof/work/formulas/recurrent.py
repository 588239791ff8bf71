"""FLOPs of recurrent layers; `flops` says what counts (FCM: torch's `FlopCounterMode`)."""

from __future__ import annotations

from math import prod

from pytest_torchprof.work.operands import TRUTH, Formula, Operands, UnknownOperandError, shape_of

# Every token is multiplied by every weight matrix once in each pass: forward, gradient of the
# input, gradient of the weights. FCM reports 0 for all of these. If a layer is not fused, its
# matrix products are in the trace.
_GATES = (1, 1, 4, 3)  # by mode: RNN with ReLU, RNN with tanh, LSTM, GRU


def recurrent(weights: int, mode: int, *, projection: bool = True) -> Formula:
    """Forward pass of `(input, weight[], ..., mode, hidden_size, [proj_size,] num_layers, ...)`."""

    def formula(call: Operands) -> int:
        *tokens, width = call.shape(0)
        known = [w for w in map(shape_of, call.dims[weights]) if len(w) == 2]
        if known:
            return 2 * prod(tokens) * sum(map(prod, known))
        # More than 30 weights, which the profiler omits: 4 bidirectional layers.
        gates, hidden = _GATES[int(call.concrete[mode])], int(call.concrete[mode + 1])
        projected = int(call.concrete[mode + 2]) if projection else 0
        layers = int(call.concrete[mode + 2 + projection])
        directions = 1 + TRUTH[call.concrete[mode + 6 + projection]]
        out = projected or hidden
        inner = (width + (layers - 1) * out * directions) + layers * out
        per_token = directions * (gates * hidden * inner + layers * hidden * projected)
        return 2 * prod(tokens) * per_token

    return formula


def recurrent_backward(forward: Formula) -> Formula:
    """The gradient of the input is always computed, that of the weights on request."""
    return lambda call: forward(call) * (1 + call.mask()[3])


def recurrent_onednn(passes: int) -> Formula:
    """`mkldnn_rnn_layer(input, weight_ih, weight_hh, ...)`, a layer in one direction.

    An LSTM on a CPU consists of these. The backward pass always computes both gradients.
    """

    def formula(call: Operands) -> int:
        *tokens, width = call.shape(0)
        w_input, w_hidden = call.shape(1), call.shape(2)
        if len(w_input) != 2 or len(w_hidden) != 2 or w_input[1] != width:
            raise UnknownOperandError
        return 2 * passes * prod(tokens) * (prod(w_input) + prod(w_hidden))

    return formula
