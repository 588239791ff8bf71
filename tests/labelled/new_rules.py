"""Labelled examples of what is computed again, and of what nothing reads."""

from __future__ import annotations

import torch
from labelled.case import Examples
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it
from torch.utils.checkpoint import checkpoint

EXAMPLES = Examples()


# ------------------------------------------------------------------------------ recomputed


class _Rotated(nn.Module):
    """A layer that makes its table of angles, or is given one."""

    def __init__(self, width):
        super().__init__()
        self.mix, self.frequencies = nn.Linear(width, width), torch.rand(width // 2)

    def forward(self, x, table=None):
        return self.mix(x) * (self.table(x, self.frequencies) if table is None else table)

    @staticmethod
    def table(x, frequencies):
        angles = torch.outer(torch.arange(float(x.shape[1])), frequencies)
        return torch.cat([angles.cos(), angles.sin()], -1)


def _rotated(count, *, once=False):
    layers = nn.ModuleList(_Rotated(32) for _ in range(count))
    for layer in layers:
        layer.frequencies = layers[0].frequencies
    x = torch.rand(2, 12, 32)

    @torch.no_grad()
    def forward():
        table, hidden = _Rotated.table(x, layers[0].frequencies) if once else None, x
        for layer in layers:
            hidden = layer(hidden, table)  # <- here
        return hidden

    return forward


@EXAMPLES.positive("recomputed")
def a_table_of_angles_in_each_layer():
    return _rotated(6)


@EXAMPLES.near_miss("recomputed")
def a_table_of_angles_for_all_layers():
    return _rotated(6, once=True)


@EXAMPLES.positive("recomputed", repeats=3)
def a_table_in_three_layers_with_a_lower_threshold():
    return _rotated(3)


@EXAMPLES.near_miss("recomputed", repeats=7)
def a_table_in_six_layers_with_a_higher_threshold():
    return _rotated(6)


@EXAMPLES.near_miss("recomputed", operators=9)
def a_table_of_fewer_operators_than_a_higher_threshold():
    return _rotated(6)


@EXAMPLES.positive("recomputed", operators=9, bytes=1000)
def a_table_of_more_bytes_than_a_lower_threshold():
    return _rotated(6)


@EXAMPLES.positive("recomputed")
def a_filter_that_is_designed_for_each_clip():
    clips = [torch.rand(1, 1, 800) for _ in range(5)]

    def resample(clip):
        taps = torch.arange(-20.0, 21.0)
        window = taps.cos().square()
        return F.conv1d(clip, (torch.sinc(taps) * window).view(1, 1, -1))

    return lambda: [resample(clip) for clip in clips]  # <- here


@EXAMPLES.positive("recomputed")
def degrees_of_a_graph_in_each_layer():
    layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(5)).requires_grad_(False)
    (source, target), x = torch.randint(30, (2, 90)), torch.rand(30, 8)

    def convolve(layer, x):
        degree = torch.zeros(30).index_add_(0, target, torch.ones(90))
        scale = degree.clamp(min=1).rsqrt()
        messages = layer(x)[source] * scale[source].unsqueeze(1)
        return torch.zeros_like(x).index_add_(0, target, messages)

    def forward():
        hidden = x
        for layer in layers:
            hidden = convolve(layer, hidden)  # <- here
        return hidden

    return forward


class _Factored(nn.Module):
    """Makes its weight of three factors in every call."""

    def __init__(self):
        super().__init__()
        self.up, self.core, self.down = map(
            nn.Parameter, (torch.rand(8, 2), torch.rand(2, 3), torch.rand(3, 6))
        )

    def forward(self, x):
        return F.linear(x, (self.up @ self.core @ self.down).tanh())


@EXAMPLES.positive("recomputed")
def a_parametrization_for_each_batch():
    layer, batches = _Factored(), [torch.rand(4, 6) for _ in range(6)]

    @torch.no_grad()
    def validate():
        return [layer(batch) for batch in batches]  # <- here

    return validate


@EXAMPLES.near_miss("recomputed", also="missing-no-grad single-tensor-optimizer")
def a_parametrization_whose_parameters_are_trained():
    layer, batches = _Factored(), [torch.rand(4, 6) for _ in range(6)]
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, foreach=True)

    def train():
        for batch in batches:
            layer(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    return train


def _masked():
    """A large mask that each layer makes: one operator and what it compares."""
    layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(5)).requires_grad_(False)
    x, lengths = torch.rand(400, 8), torch.arange(400)

    def forward():
        hidden = x
        for layer in layers:
            hidden = layer(hidden)
            near = lengths[:, None] - lengths  # <- here
            hidden = (hidden @ hidden.t()).mul(near) @ hidden
        return hidden

    return forward


@EXAMPLES.positive("recomputed")
def a_large_mask_in_each_layer():
    return _masked()


@EXAMPLES.near_miss("recomputed", bytes=1 << 24)
def a_large_mask_below_a_higher_threshold():
    return _masked()


@EXAMPLES.near_miss("recomputed")
def layers_that_are_checkpointed():
    layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(6))
    x = torch.rand(4, 8)

    def step():
        hidden = x
        for layer in layers:
            hidden = checkpoint(layer, hidden, use_reentrant=False)
        hidden.sum().backward()

    return step


@EXAMPLES.near_miss("recomputed")
def a_model_that_is_called_again_with_dropout():
    model = nn.Sequential(
        nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Dropout(), nn.Linear(8, 2)
    )
    x = torch.rand(4, 8)

    @torch.no_grad()
    def sample():
        return torch.stack([model(x) for _ in range(5)]).std(0)

    return sample


# ------------------------------------------------------------------------------ unused-result


def _attention(**options):
    attention, x = nn.MultiheadAttention(64, 8, batch_first=True), torch.rand(8, 256, 64)

    @torch.no_grad()
    def score():
        out, _ = attention(x, x, x, **options)  # <- here
        return float(out.sum())

    return score


@EXAMPLES.positive("unused-result")
def averaged_weights_of_attention():
    return _attention()


@EXAMPLES.near_miss("unused-result")
def attention_without_weights():
    return _attention(need_weights=False)


@EXAMPLES.near_miss("unused-result", bytes=4 << 20)
def averaged_weights_below_a_higher_threshold():
    return _attention()


def _loaded(make, width):
    state, x = nn.Linear(width, width).state_dict(), torch.rand(1, width)

    @torch.no_grad()
    def load():
        layer = make(width)
        layer.load_state_dict(state)
        return float(layer(x).sum())

    return load


@EXAMPLES.positive("unused-result")
def weights_that_are_drawn_and_then_loaded():
    return _loaded(lambda width: nn.Linear(width, width), 600)  # <- here


@EXAMPLES.near_miss("unused-result")
def weights_that_are_only_loaded():
    return _loaded(lambda width: nn.utils.skip_init(nn.Linear, width, width), 600)


@EXAMPLES.near_miss("unused-result")
def small_weights_that_are_drawn_and_then_loaded():
    return _loaded(lambda width: nn.Linear(width, width), 400)


@EXAMPLES.positive("unused-result", bytes=500_000)
def small_weights_with_a_lower_threshold():
    return _loaded(lambda width: nn.Linear(width, width), 400)  # <- here


@EXAMPLES.positive("unused-result")
def zeros_that_are_written_over():
    x = torch.rand(600, 600)

    def scale():
        out = torch.zeros(600, 600)  # <- here
        out.copy_(x.sin())
        return float(out.sum())

    return scale


@EXAMPLES.positive("unused-result")
def a_second_head_that_a_caller_drops():
    trunk, head, other = nn.Linear(64, 64), nn.Linear(64, 4), nn.Linear(64, 1200)
    x = torch.rand(300, 64)

    def forward(x):
        hidden = trunk(x).relu()
        return head(hidden), other(hidden).softmax(-1)  # <- here

    @torch.no_grad()
    def score():
        label, _ = forward(x)
        return int(label.argmax())

    return score


@EXAMPLES.near_miss("unused-result")
def two_heads_that_a_caller_needs():
    trunk, head, other = nn.Linear(64, 64), nn.Linear(64, 4), nn.Linear(64, 1200)
    x = torch.rand(300, 64)

    @torch.no_grad()
    def score():
        hidden = trunk(x).relu()
        return int(head(hidden).argmax()), int(other(hidden).softmax(-1).argmax())

    return score


@EXAMPLES.near_miss("unused-result")
def results_of_which_a_test_takes_the_shapes():
    trunk, heads = nn.Linear(64, 64), nn.ModuleList(nn.Linear(64, 1200) for _ in range(2))
    x = torch.rand(300, 64)

    @torch.no_grad()
    def shapes():
        hidden = trunk(x).relu()
        return [head(hidden).softmax(-1).shape for head in heads]

    return shapes


@EXAMPLES.near_miss("unused-result")
def values_without_their_positions():
    x = torch.rand(600, 600)
    return lambda: float((x * 2).sort().values.sum())
