"""`torch.nn`: each module forward and backward, or in evaluation."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import nn
from torch.nn.utils import parametrizations
from zoo.exhibit import (
    GROUPS,
    INSIDE,
    RECURRENT,
    Exhibit,
    Payload,
    attends,
    differs,
    equal,
    infer,
    leaf,
    rand,
    train,
)


def self_attention(*, need_weights: bool) -> Payload:
    layer = nn.MultiheadAttention(16, 4, batch_first=True)
    x = rand(2, 5, 16)
    return train(lambda: layer(x, x, x, need_weights=need_weights)[0])


def decoder() -> Payload:
    layer = nn.TransformerDecoderLayer(16, 4, 32, 0.0, batch_first=True)
    return train(layer, rand(2, 5, 16), rand(2, 7, 16))


def encoder(*, training: bool) -> Payload:
    layer = nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True).train(training)
    x = rand(2, 5, 16)
    return train(layer, x) if training else infer(layer, x)


def recurrent(layer: nn.RNNBase) -> Payload:
    return train(lambda x: layer(x)[0], leaf(3, 2, 6))


def cell(layer: nn.RNNCellBase, width: int) -> Payload:
    hidden = (leaf(2, width), leaf(2, width))
    state = hidden if isinstance(layer, nn.LSTMCell) else hidden[0]
    return train(lambda x: layer(x, state), rand(2, 6))


def lazy() -> Payload:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layer = nn.LazyLinear(5)
    return train(layer, rand(3, 4))


def plain(*layers: nn.Module, shape: tuple[int, ...] = (2, 4, 6, 6)) -> Payload:
    return train(nn.Sequential(*layers), leaf(*shape))


def loss(module: nn.Module) -> Payload:
    target = torch.tensor([1, 0, 2])
    return train(lambda x: module(x, target), leaf(3, 4))


def tied() -> Payload:
    embedding, head = nn.Embedding(10, 8), nn.Linear(8, 10, bias=False)
    head.weight = embedding.weight
    tokens = torch.randint(10, (2, 5))
    return train(lambda: head(embedding(tokens)))


def adaptive() -> Payload:
    module = nn.AdaptiveLogSoftmaxWithLoss(16, 20, [5, 10], div_value=2.0)
    target = torch.tensor([0, 6, 12, 3])
    return train(lambda x: module(x, target).loss, leaf(4, 16))


#: Two products of each: `in_proj`, the scores, their use, `out_proj`; of two feed-forward layers.
PROJECTIONS, FEEDS = 2 * 10 * 16 * (48 + 16), 2 * 10 * 16 * 32 * 2
SCORES = 2 * (2 * 4 * 5 * 5) * 4  # 2 × pairs × width of a head, each of the products
Make = Callable[[], Payload]

MODULES: list[tuple[str, Make]] = [
    ("nn.Linear", lambda: train(nn.Linear(8, 6), leaf(4, 8))),
    ("nn.Linear, 3-D, no bias", lambda: train(nn.Linear(8, 6, bias=False), leaf(2, 4, 8))),
    ("nn.Linear, its input needs no gradient", lambda: train(nn.Linear(8, 6), rand(4, 8))),
    ("nn.LazyLinear", lazy),
    ("nn.Conv1d", lambda: plain(nn.Conv1d(4, 6, 3, 2, 1), shape=(2, 4, 9))),
    ("nn.Conv2d", lambda: plain(nn.Conv2d(4, 6, 3, 2, 3))),
    ("nn.Conv2d, dilated, same", lambda: plain(nn.Conv2d(4, 6, 3, padding="same", dilation=2))),
    ("nn.Conv2d, 1 × 1", lambda: plain(nn.Conv2d(4, 6, 1))),
    ("nn.Conv2d, circular", lambda: plain(nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular"))),
    ("nn.Conv2d, no batch", lambda: plain(nn.Conv2d(4, 6, 3), shape=(4, 6, 6))),
    ("nn.Conv3d", lambda: plain(nn.Conv3d(2, 4, 3, 2, 1), shape=(2, 2, 5, 5, 5))),
    ("nn.ConvTranspose1d", lambda: plain(nn.ConvTranspose1d(4, 6, 3, 2, 1, 1), shape=(2, 4, 9))),
    ("nn.ConvTranspose2d", lambda: plain(nn.ConvTranspose2d(4, 6, 3, 2, 1))),
    ("nn.ConvTranspose3d", lambda: plain(nn.ConvTranspose3d(2, 4, 3), shape=(2, 2, 4, 4, 4))),
    ("nn.BatchNorm2d, ReLU", lambda: plain(nn.BatchNorm2d(4), nn.ReLU())),
    ("nn.LayerNorm, GELU", lambda: plain(nn.LayerNorm(6), nn.GELU())),
    ("nn.GroupNorm, SiLU", lambda: plain(nn.GroupNorm(2, 4), nn.SiLU())),
    ("nn.InstanceNorm2d, PReLU", lambda: plain(nn.InstanceNorm2d(4), nn.PReLU())),
    ("nn.RMSNorm, Softmax", lambda: plain(nn.RMSNorm(6), nn.Softmax(-1))),
    ("nn.LocalResponseNorm", lambda: plain(nn.LocalResponseNorm(2))),
    ("nn.MaxPool2d, AvgPool2d", lambda: plain(nn.MaxPool2d(2), nn.AvgPool2d(2))),
    ("nn.AdaptiveAvgPool2d", lambda: plain(nn.AdaptiveAvgPool2d(3))),
    ("nn.LPPool2d", lambda: plain(nn.LPPool2d(2, 2))),
    ("nn.FractionalMaxPool2d", lambda: plain(nn.FractionalMaxPool2d(2, output_size=3))),
    ("nn.Upsample, bilinear", lambda: plain(nn.Upsample(scale_factor=2, mode="bilinear"))),
    ("nn.PixelShuffle, Unfold", lambda: plain(nn.PixelShuffle(2), nn.Unfold(3))),
    ("nn.ReflectionPad2d, Dropout", lambda: plain(nn.ReflectionPad2d(1), nn.Dropout(0.1))),
    ("nn.Embedding, tied to nn.Linear", tied),
    ("nn.EmbeddingBag", lambda: train(nn.EmbeddingBag(10, 8), torch.randint(10, (3, 4)))),
    ("nn.CrossEntropyLoss", lambda: loss(nn.CrossEntropyLoss())),
    ("nn.MultiMarginLoss", lambda: loss(nn.MultiMarginLoss())),
    ("nn.CosineSimilarity", lambda: train(nn.CosineSimilarity(), leaf(3, 8), leaf(3, 8))),
    ("nn.TripletMarginLoss", lambda: train(nn.TripletMarginLoss(), *(leaf(3, 8) for _ in "apn"))),
    ("nn.AdaptiveLogSoftmaxWithLoss", adaptive),
    (
        "nn.GRU, nn.RNN",
        lambda: train(nn.Sequential(nn.GRU(6, 4), First(), nn.RNN(4, 5), First()), leaf(3, 2, 6)),
    ),
    ("nn.LSTMCell", lambda: cell(nn.LSTMCell(6, 10), 10)),
    ("nn.GRUCell", lambda: cell(nn.GRUCell(6, 10), 10)),
    ("nn.RNNCell", lambda: cell(nn.RNNCell(6, 10), 10)),
    ("nn.MultiheadAttention, its weights", lambda: self_attention(need_weights=True)),
    ("weight_norm", lambda: train(parametrizations.weight_norm(nn.Linear(8, 6)), leaf(4, 8))),
]


class First(nn.Module):
    """The first of what a layer gives."""

    def forward(self, out: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return out[0]


ROWS: list[Exhibit] = [
    *(equal(name, make) for name, make in MODULES),
    differs(
        "nn.Conv2d, grouped",
        lambda: plain(nn.Conv2d(4, 6, 3, groups=2)),
        GROUPS,
        3 * 2 * 2 * 16 * (6 * 2 * 9),  # 3 passes × 2 × images × places × weights
    ),
    differs(
        "nn.Conv2d, depthwise and separable",
        lambda: plain(nn.Conv2d(4, 4, 3, groups=4), nn.Conv2d(4, 6, 1)),
        GROUPS,
        3 * 2 * 2 * 16 * (4 * 9 + 6 * 4),
    ),
    differs(
        "nn.Bilinear",
        lambda: infer(nn.Bilinear(4, 5, 3), rand(2, 4), rand(2, 5)),
        INSIDE,
        2 * 2 * 3 * 5 * (4 + 1),  # the one operand with the weight, then with the other
    ),
    differs("nn.LSTM", lambda: recurrent(nn.LSTM(6, 10)), RECURRENT, 3 * 2 * 6 * 40 * (6 + 10)),
    attends(
        "nn.MultiheadAttention",
        lambda: self_attention(need_weights=False),
        3 * PROJECTIONS - 2 * 10 * 16 * 48 + (2 + 5) * SCORES,  # the input needs no gradient
    ),
    attends(
        "nn.TransformerEncoderLayer",
        lambda: encoder(training=True),
        3 * (PROJECTIONS + FEEDS) - 2 * 10 * 16 * 48 + (2 + 5) * SCORES,
    ),
    differs(
        "nn.TransformerEncoderLayer, its fast path",
        lambda: encoder(training=False),
        INSIDE,
        PROJECTIONS + FEEDS + 2 * SCORES,
    ),
    attends(
        "nn.TransformerDecoderLayer",
        decoder,
        # on itself, on 14 tokens that need no gradient, and two feed-forward layers
        3 * (2 * PROJECTIONS + FEEDS + 2 * (14 - 10) * 16 * 32)
        - 2 * 10 * 16 * 48
        - 2 * 14 * 16 * 32
        + (2 + 5) * (SCORES + 2 * (2 * 4 * 5 * 7) * 4),
    ),
]
