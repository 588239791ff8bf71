"""Labelled examples of for-loop-indexing: parts that are only written, and who needs them."""

from __future__ import annotations

import json

import numpy as np
import torch
from labelled.case import Examples
from torch import nn

EXAMPLES = Examples()


# --------------------------------------------------------------------------- rows from outside


class _Grown:
    """Rows in a tensor that doubles when it is full."""

    def __init__(self, width):
        self.data, self.n = torch.empty(4, width), 0

    def push(self, row):
        if self.n == len(self.data):
            self.data = torch.cat([self.data, torch.empty_like(self.data)])
        self.data[self.n] = row
        self.n += 1


@EXAMPLES.near_miss("for-loop-indexing")
def rows_pushed_into_a_buffer():
    def fill():
        buffer = _Grown(3)
        for _ in range(60):
            buffer.push(torch.rand(3))
        return buffer.data[: buffer.n]

    return fill


@EXAMPLES.near_miss("for-loop-indexing")
def records_that_are_parsed():
    lines = [json.dumps([i, 2.0 * i, 1.0]) for i in range(30)]

    def load():
        table = torch.empty(30, 3)
        for number, line in enumerate(lines):
            table[number] = torch.tensor(json.loads(line))
        return table

    return load


@EXAMPLES.near_miss("for-loop-indexing")
def images_that_are_decoded_into_a_batch():
    images = [np.full((4, 4, 3), i, np.uint8) for i in range(16)]

    def collate():
        batch = torch.empty(16, 3, 4, 4)
        for i, image in enumerate(images):
            batch[i] = torch.from_numpy(image).permute(2, 0, 1) / 255
        return batch

    return collate


@EXAMPLES.near_miss("for-loop-indexing")
def arrays_whose_memory_is_used_again():
    draw = np.random.default_rng(0)

    def load():
        out = torch.empty(16, 3, 8, 8)
        for i in range(16):
            out[i] = torch.from_numpy(draw.random((3, 8, 8), dtype=np.float32)) * 2
            out[i] = torch.from_numpy(draw.random((3, 8, 8), dtype=np.float32))
        return out

    return load


@EXAMPLES.near_miss("for-loop-indexing")
def values_that_python_computes():
    def table():
        out = torch.zeros(24)
        for k in range(24):
            out[k] = k**0.5 if k % 3 else 0.0
        return out

    return table


class _Replay:
    def __init__(self, size):
        self.seen, self.rewards = torch.zeros(size, 4), torch.zeros(size)
        self.size, self.at = size, 0

    def add(self, seen, reward):
        self.seen[self.at] = torch.as_tensor(seen)
        self.rewards[self.at] = reward
        self.at = (self.at + 1) % self.size


@EXAMPLES.near_miss("for-loop-indexing")
def steps_of_an_environment_that_are_replayed():
    draw = np.random.default_rng(0)
    steps = [(draw.random(4, dtype=np.float32), float(i)) for i in range(30)]

    def collect():
        memory = _Replay(12)
        for seen, reward in steps:
            memory.add(seen, reward)
        return memory

    return collect


@EXAMPLES.near_miss("for-loop-indexing")
def losses_that_are_logged():
    model, batches = nn.Linear(4, 1), [torch.rand(3, 4) for _ in range(14)]

    @torch.no_grad()
    def log():
        out = torch.zeros(14)
        for i, batch in enumerate(batches):
            out[i] = model(batch).square().mean()
        return out

    return log


@EXAMPLES.near_miss("for-loop-indexing")
def samples_with_noise():
    def dataset():
        points = torch.empty(20, 2)
        for i in range(20):
            points[i] = 0.1 * torch.randn(2) + 1
        return points

    return dataset


@EXAMPLES.positive("for-loop-indexing")
def rows_of_a_tensor_scaled_into_another():
    x = torch.rand(20, 3)

    def scaled():
        y = torch.empty_like(x)
        for i in range(20):
            y[i] = x[i] * i  # <- here
        return y

    return scaled


@EXAMPLES.positive("for-loop-indexing")
def harmonics_of_one_grid():
    grid = torch.linspace(0, 1, 16)

    def basis():
        out = torch.empty(12, 16)
        for k in range(12):
            out[k] = (grid * k).sin()  # <- here
        return out

    return basis


@EXAMPLES.positive("for-loop-indexing")
def powers_in_columns():
    x = torch.rand(16)

    def vandermonde():
        out = torch.empty(16, 12)
        for k in range(12):
            out[:, k] = x**k  # <- here
        return out

    return vandermonde


@EXAMPLES.positive("for-loop-indexing")
def one_template_for_each_row():
    template = torch.rand(8)

    def tile():
        out = torch.empty(14, 8)
        for i in range(14):
            out[i] = template  # <- here
        return out

    return tile


@EXAMPLES.positive("for-loop-indexing")
def rows_of_a_hankel_matrix():
    def matrix():
        out = torch.empty(12, 12)
        for i in range(12):
            out[i] = torch.arange(i, i + 12)  # <- here
        return out

    return matrix


@EXAMPLES.positive("for-loop-indexing")
def rows_that_are_iterated_and_put_elsewhere():
    class Standard:
        def __init__(self, rows):
            self.rows, self.out = rows, torch.empty_like(rows)

        def run(self):
            for i, row in enumerate(self.rows):
                self.out[i] = row - row.mean()  # <- here
            return self.out

    standard = Standard(torch.rand(14, 5))
    return standard.run


# ------------------------------------------------------- what a repetition needs of all before it


class _Window(nn.Module):
    """The last inputs, and a head that sees all of them."""

    def __init__(self, length, width):
        super().__init__()
        self.head, self.at = nn.Linear(width, 2), 0
        self.register_buffer("seen", torch.zeros(length, width))

    def forward(self, x):
        self.seen[self.at % len(self.seen)] = x
        self.at += 1
        return self.head(self.seen).mean(0)


@EXAMPLES.near_miss("for-loop-indexing")
def frames_of_a_stream_through_a_window():
    window, stream = _Window(8, 4).eval(), torch.rand(16, 4)

    @torch.inference_mode()
    def run():
        return [window(frame) for frame in stream]

    return run


@EXAMPLES.near_miss("for-loop-indexing")
def keys_that_each_query_sees():
    x = torch.rand(14, 6)

    def attend():
        keys, out = torch.zeros(14, 6), []
        for t in range(14):
            keys[t] = x[t].tanh()
            out.append((keys @ keys[t]).softmax(0))
        return torch.stack(out)

    return attend


@EXAMPLES.near_miss("for-loop-indexing")
def keys_from_outside_that_each_query_sees():
    def attend():
        keys, out = torch.zeros(14, 6), []
        for t in range(14):
            keys[t] = torch.rand(6)
            out.append((keys @ keys[t]).softmax(0).max())
        return out

    return attend


@EXAMPLES.near_miss("for-loop-indexing")
def a_queue_of_negatives():
    encoder, images = nn.Linear(6, 4), torch.rand(14, 6)

    @torch.no_grad()
    def contrast():
        queue, scores = torch.zeros(16, 4), []
        for t in range(14):
            key = encoder(images[t])
            scores.append(queue @ key)
            queue[t] = key
        return torch.stack(scores)

    return contrast


@EXAMPLES.near_miss("for-loop-indexing")
def medians_of_a_ring():
    signal = torch.rand(20)

    def smooth():
        ring, out = torch.zeros(5), []
        for t in range(20):
            ring[t % 5] = signal[t]
            out.append(ring.median())
        return torch.stack(out)

    return smooth


@EXAMPLES.positive("for-loop-indexing")
def rows_put_elsewhere_beside_the_whole():
    x, mean = torch.rand(14, 6), torch.rand(6)

    def centred():
        out = torch.zeros(14, 6)
        for t in range(14):
            out[t] = (x @ x[t]).softmax(0) @ x - mean  # <- here
        return out

    return centred


@EXAMPLES.positive("for-loop-indexing")
def neighbours_of_what_was_just_written():
    x = torch.rand(16, 3)

    def differences():
        scaled, out = torch.zeros(17, 3), torch.zeros(16, 3)
        for i in range(16):
            scaled[i + 1] = x[i] * 2  # <- here
            out[i] = scaled[i + 1] - scaled[i]
        return out

    return differences
