"""Labelled examples of the rules about loops."""

from __future__ import annotations

import torch
from labelled.case import Examples
from support.trace_builder import TraceBuilder
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it
from torch.utils.data import DataLoader, TensorDataset

EXAMPLES = Examples()

# ------------------------------------------------------------------------------ for-loop-indexing


def filling(count):
    x = torch.ones(count, 4)

    def loop():
        for i in range(count):
            x[i] = i  # <- here

    return loop


@EXAMPLES.positive("for-loop-indexing")
def rows_that_are_filled():
    return filling(100)


@EXAMPLES.positive("for-loop-indexing")
def exactly_ten_rows():
    return filling(10)


@EXAMPLES.positive("for-loop-indexing", repeats=5)
def five_rows_with_a_lower_threshold():
    return filling(5)


@EXAMPLES.near_miss("for-loop-indexing")
def nine_rows():
    return filling(9)


@EXAMPLES.near_miss("for-loop-indexing", repeats=101)
def rows_with_a_higher_threshold():
    return filling(100)


@EXAMPLES.positive("for-loop-indexing")
def rows_that_are_added_up():
    x = torch.ones(20, 4)

    def loop():
        y = 0
        for i in range(20):
            y += x[i]  # <- here
        return y

    return loop


@EXAMPLES.positive("for-loop-indexing")
def rows_that_are_made_from_others():
    x = torch.ones(20, 4)

    def loop():
        for i in range(20):
            x[i, :] = torch.arange(4) + i  # <- here

    return loop


@EXAMPLES.positive("for-loop-indexing")
def columns():
    x = torch.ones(4, 20)
    return lambda: [x[:, i].sum() for i in range(20)]  # <- here


@EXAMPLES.positive("for-loop-indexing")
def windows():
    x = torch.ones(20)
    return lambda: torch.stack([x[i : i + 3].mean() for i in range(17)])  # <- here


@EXAMPLES.near_miss("for-loop-indexing")
def numbers_that_are_read():
    x = torch.rand(12)
    return lambda: [x[i].item() for i in range(12)]


@EXAMPLES.positive("for-loop-indexing")
def two_tensors():
    a, b, out = torch.rand(12, 4), torch.rand(12, 4), torch.zeros(12)

    def loop():
        for i in range(12):
            out[i] = a[i].dot(b[i])  # <- here

    return loop


@EXAMPLES.positive("for-loop-indexing")
def elements_of_a_matrix():
    x = torch.rand(3, 15)

    def loop():
        for i in range(3):
            for j in range(15):
                x[i, j] *= 2  # <- here

    return loop


@EXAMPLES.positive("for-loop-indexing")
def rows_in_a_drawn_order():
    x, order = torch.rand(16, 4), [*range(1, 16, 2), *range(0, 16, 2)]

    def loop():
        total = torch.zeros(4)
        for i in order:
            total += x[i] ** 2  # <- here

    return loop


@EXAMPLES.positive("for-loop-indexing", 2)
def two_loops():
    x = torch.ones(12, 4)

    def loops():
        for i in range(12):
            x[i].mul_(2)  # <- here
        x.exp_()
        for i in range(12):
            x[i].add_(1)  # <- here

    return loops


@EXAMPLES.positive("for-loop-indexing")
def rows_times_a_matrix():
    x, w, out = torch.rand(12, 2, 3), torch.rand(3, 4), torch.zeros(12, 2, 4)

    def loop():
        for i in range(12):
            out[i] = x[i] @ w  # <- here

    return loop


@EXAMPLES.near_miss("for-loop-indexing")
def a_recurrence_over_time():
    cell, x = nn.RNNCell(3, 4), torch.rand(12, 2, 3)

    @torch.no_grad()
    def loop():
        h = torch.zeros(2, 4)
        for t in range(12):
            h = cell(x[t], h)

    return loop


@EXAMPLES.near_miss("for-loop-indexing")
def a_recurrence_written_by_hand():
    of_input, of_state, x = nn.Linear(3, 4), nn.Linear(4, 4), torch.rand(12, 2, 3)

    @torch.no_grad()
    def loop():
        h = torch.zeros(2, 4)
        for t in range(12):
            h = torch.tanh(of_input(x[t]) + of_state(h))

    return loop


@EXAMPLES.near_miss("for-loop-indexing")
def a_recurrence_that_joins_state_and_input():
    layer, x = nn.Linear(7, 4), torch.rand(12, 2, 3)

    @torch.no_grad()
    def loop():
        h = torch.zeros(2, 4)
        for t in range(12):
            h = torch.tanh(layer(torch.cat([x[t], h], 1)))

    return loop


@EXAMPLES.near_miss("for-loop-indexing")
def positions_made_from_the_one_before():
    layer = nn.Linear(4, 4)

    @torch.no_grad()
    def loop():
        x = torch.zeros(14, 2, 4)
        for t in range(13):
            x[t + 1] = layer(x[t])

    return loop


@EXAMPLES.near_miss("for-loop-indexing")
def a_sampler_that_looks_up_its_schedule():
    model = nn.Sequential(nn.Linear(3, 8), nn.SiLU(), nn.Linear(8, 3))
    beta = torch.linspace(1e-4, 0.02, 20)
    a = 1 - beta
    ab = a.cumprod(0)

    @torch.no_grad()
    def sample():
        x = torch.randn(4, 3)
        for t in reversed(range(20)):
            x = (x - beta[t] / (1 - ab[t]).sqrt() * model(x)) / a[t].sqrt()
            x = x + beta[t].sqrt() * torch.randn_like(x)
        return x

    return sample


@EXAMPLES.near_miss("for-loop-indexing")
def a_flow_that_looks_up_its_steps():
    model, step = nn.Linear(3, 3), torch.rand(20)

    @torch.no_grad()
    def sample():
        x = torch.randn(4, 3)
        for t in range(20):
            x = model(x) * step[t]
        return x

    return sample


@EXAMPLES.near_miss("for-loop-indexing")
def a_recurrent_layer_step_by_step():
    layer, x = nn.LSTM(3, 4), torch.rand(12, 2, 3)

    @torch.no_grad()
    def loop():
        state = torch.zeros(1, 2, 4), torch.zeros(1, 2, 4)
        for t in range(12):
            _, state = layer(x[t : t + 1], state)

    return loop


@EXAMPLES.near_miss("for-loop-indexing")
def a_bilinear_recurrence():
    layer, x = nn.Bilinear(3, 4, 4), torch.rand(12, 2, 3)

    @torch.no_grad()
    def loop():
        h = torch.ones(2, 4)
        for t in range(12):
            h = layer(x[t], h)

    return loop


@EXAMPLES.near_miss("for-loop-indexing")
def a_decoder_that_is_told_the_targets():
    cell, head = nn.GRUCell(3, 4), nn.Linear(4, 3)
    targets = torch.rand(2, 12, 3)

    @torch.no_grad()
    def decode():
        h, out = torch.zeros(2, 4), []
        for t in range(12):
            h = cell(targets[:, t], h)
            out.append(head(h))
        return torch.stack(out, 1)

    return decode


@EXAMPLES.positive("for-loop-indexing")
def samples_one_by_one_through_layers():
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    x = torch.rand(12, 3)

    @torch.inference_mode()
    def loop():
        return [model(x[i : i + 1]).argmax(-1) for i in range(12)]  # <- here

    return loop


@EXAMPLES.positive("for-loop-indexing")
def images_one_by_one_through_a_convolution():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 2))
    x = torch.rand(12, 1, 6, 6)

    @torch.inference_mode()
    def loop():
        return [model(x[i].unsqueeze(0)) for i in range(12)]  # <- here

    return loop


@EXAMPLES.positive("for-loop-indexing")
def samples_one_by_one_through_a_model():
    model, x = nn.Linear(3, 2), torch.rand(12, 3)

    @torch.inference_mode()
    def loop():
        return [model(x[i]).relu() for i in range(12)]  # <- here

    return loop


def old_loop(count, *, more=0):
    """What torch 1.10 wrote on a device: shapes and no indexes."""
    trace = TraceBuilder("Tesla V100")
    for _ in range(count):
        index = {"Input Dims": [[12, 4], [], []], "Input type": ["float", "Scalar", "Scalar"]}
        with trace.op("aten::select", args=index):
            trace.op("aten::as_strided", args={"Input Dims": [[12, 4], [], [], []]})
        for _ in range(1 + more):
            with trace.op("aten::add_", args={"Input Dims": [[4], [4], []]}):
                trace.launch("vectorized_elementwise_kernel")
    return trace


@EXAMPLES.positive("for-loop-indexing")
def an_old_trace_without_indexes():
    return old_loop(12)


@EXAMPLES.near_miss("for-loop-indexing")
def an_old_trace_with_a_long_body():
    return old_loop(12, more=8)


def without_shapes(*names):
    """What torch writes with ``record_shapes=False``: names, twelve times."""
    trace = TraceBuilder("Tesla V100")
    for _ in range(12):
        for name in names:
            trace.op(name)
    return trace


@EXAMPLES.positive("for-loop-indexing")
def a_trace_without_shapes():
    return without_shapes("aten::select", "aten::add_")


@EXAMPLES.near_miss("for-loop-indexing")
def parts_of_new_tensors_in_a_trace_without_shapes():
    slices = ["aten::slice", "aten::slice", "aten::sum"]
    return without_shapes("aten::randn", *slices, *slices)


@EXAMPLES.near_miss("for-loop-indexing")
def parts_of_new_tensors():
    def loop():
        for _ in range(12):
            x = torch.rand(32, 8)
            x[:, :2].sum()
            x[:, 2:].sum()

    return loop


@EXAMPLES.near_miss("for-loop-indexing")
def no_index():
    x = torch.ones(4, 4)

    def loop():
        y = torch.ones(4, 4)
        for _ in range(20):
            y = (y @ x).tanh()

    return loop


@EXAMPLES.near_miss("for-loop-indexing")
def the_last_position_of_each_step():
    x, w = torch.rand(2, 5, 4), torch.rand(4, 4)

    def decode():
        for _ in range(12):
            (x @ w)[:, -1].argmax(-1)

    return decode


@EXAMPLES.near_miss("for-loop-indexing")
def tokens_written_into_a_buffer():
    words, head = nn.Embedding(8, 4), nn.Linear(4, 8)

    @torch.inference_mode()
    def decode():
        tokens = torch.zeros(1, 16, dtype=torch.long)
        for i in range(15):
            hidden = words(tokens[:, : i + 1]).cumsum(1)
            tokens[:, i + 1] = head(hidden)[:, -1].argmax(-1)

    return decode


@EXAMPLES.near_miss("for-loop-indexing", unlike="2.6.")  # which prints as `tolist` does
def a_tensor_that_is_printed():
    x = torch.rand(20, 3)
    return lambda: repr(x)


@EXAMPLES.near_miss("for-loop-indexing")
def parts_of_each_layer():
    layers = [nn.Linear(4, 12) for _ in range(12)]
    x = torch.rand(2, 4)

    @torch.no_grad()
    def forward():
        y = x
        for layer in layers:
            qkv = layer(y)
            q, k, v = qkv[:, :4], qkv[:, 4:8], qkv[:, 8:]
            y = torch.softmax(q * k, -1) * v
        return y

    return forward


@EXAMPLES.near_miss("for-loop-indexing", also="sync-dataloader")
def items_of_a_loader():
    loader = DataLoader(TensorDataset(torch.rand(24, 3)), batch_size=12)
    return lambda: [batch.sum() for (batch,) in loader]


@EXAMPLES.near_miss("for-loop-indexing")
def batches_that_are_sliced_for_training():
    model, x = nn.Linear(3, 2), torch.rand(24, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)

    def epoch():
        for start in range(0, 24, 2):
            model(x[start : start + 2]).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    return epoch


@EXAMPLES.near_miss("for-loop-indexing")
def batches_that_are_sliced_for_inference():
    model, x = nn.Linear(3, 2), torch.rand(24, 3)

    @torch.inference_mode()
    def predict():
        return [model(x[start : start + 2]) for start in range(0, 24, 2)]

    return predict


@EXAMPLES.near_miss("for-loop-indexing")
def the_first_row_of_many_tensors():
    tensors = [torch.rand(3, 4) for _ in range(20)]
    return lambda: [tensor[0].sum() for tensor in tensors]


@EXAMPLES.near_miss("for-loop-indexing")
def bodies_that_differ():
    x = torch.rand(20, 4)

    def loop():
        for i in range(20):
            row = x[i]
            for _ in range(i % 4):
                row = row.exp()

    return loop


@EXAMPLES.near_miss("for-loop-indexing", operators=2)
def a_body_longer_than_the_threshold():
    x = torch.rand(20, 4)
    return lambda: [x[i].exp().sum() for i in range(20)]


@EXAMPLES.positive("for-loop-indexing", operators=3)
def a_body_as_long_as_the_threshold():
    x = torch.rand(20, 4)
    return lambda: [x[i].exp().sum() for i in range(20)]  # <- here


@EXAMPLES.near_miss("for-loop-indexing")
def all_at_once():
    x, index = torch.rand(20, 4), torch.arange(0, 20, 2)
    return lambda: x[index].sum(0)


@EXAMPLES.near_miss("for-loop-indexing")
def a_gradcheck():
    x = torch.rand(3, 4, dtype=torch.double, requires_grad=True)
    return lambda: torch.autograd.gradcheck(torch.sin, (x,))


@EXAMPLES.near_miss("for-loop-indexing")
def a_gradcheck_of_a_layer():
    x = torch.rand(3, 4, dtype=torch.double, requires_grad=True)
    weight = torch.rand(5, 4, dtype=torch.double, requires_grad=True)
    return lambda: torch.autograd.gradcheck(F.linear, (x, weight))


@EXAMPLES.positive("for-loop-indexing")
def a_loop_beside_a_gradcheck():
    checked = torch.rand(2, 2, dtype=torch.double, requires_grad=True)
    x = torch.rand(12, 4)

    def run():
        torch.autograd.gradcheck(torch.sin, (checked,))
        return [x[i].exp() for i in range(12)]  # <- here

    return run


@EXAMPLES.positive("for-loop-indexing")
def two_statements_that_call_the_same():
    def add(out, row, places, share):
        out[row].index_add_(0, places, share)

    low, high = torch.randint(8, (2, 16, 8))
    less, more = torch.rand(2, 16, 8)

    def project():
        out = torch.zeros(16, 8)
        for row in range(16):
            add(out, row, low[row], less[row])  # <- here
            add(out, row, high[row], more[row])  # <- here
        return out

    return project


@EXAMPLES.near_miss("for-loop-indexing")
def two_statements_that_carry_a_state():
    gates, inputs = torch.rand(2, 16, 8)

    def scan():
        state = torch.zeros(8)
        for row in range(16):
            state = state * gates[row] + inputs[row]
            state = state * inputs[row] + gates[row]
        return state

    return scan


@EXAMPLES.near_miss("for-loop-indexing")
def batches_that_are_scored_by_one_matrix():
    users, items = torch.randn(20, 8, 32), torch.randn(32, 40)

    def rank():
        for some in users:
            assert (some @ items).topk(5).indices.shape == (8, 5)

    return rank


@EXAMPLES.positive("for-loop-indexing")
def single_rows_that_are_scored_by_one_matrix():
    users, items = torch.randn(20, 32), torch.randn(32, 40)

    def rank():
        return torch.stack([(user @ items).amax() for user in users])  # <- here

    return rank
