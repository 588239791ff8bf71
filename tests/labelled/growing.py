"""Labelled examples of growing-cat: tensors that get longer by being copied."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from labelled.case import Examples
from torch import nn

EXAMPLES = Examples()


class _Metric:
    """Keeps what it is given as one tensor."""

    def __init__(self, width):
        self.seen = torch.empty(0, width)

    def update(self, batch):
        self.seen = torch.cat([self.seen, batch])  # <- here

    def compute(self):
        return self.seen.mean()


def _metric(updates):
    def run():
        metric = _Metric(3)
        for _ in range(updates):
            metric.update(torch.rand(4, 3))
        return metric.compute()

    return run


@EXAMPLES.positive("growing-cat")
def a_metric_that_keeps_all_predictions():
    return _metric(14)


@EXAMPLES.positive("growing-cat")
def ten_updates_of_a_metric():
    return _metric(10)


@EXAMPLES.near_miss("growing-cat")
def nine_updates_of_a_metric():
    return _metric(9)


@EXAMPLES.positive("growing-cat", repeats=5)
def five_updates_with_a_lower_threshold():
    return _metric(5)


def _evaluation(layers):
    model, x = nn.Sequential(*(nn.Tanh() for _ in range(layers))), torch.rand(4, 3)

    @torch.inference_mode()
    def run():
        metric = _Metric(3)
        for _ in range(12):
            metric.update(model(x + 1)[:2])
        return metric.compute()

    return run


@EXAMPLES.positive("growing-cat")
def a_metric_beside_a_small_model():
    return _evaluation(20)


@EXAMPLES.near_miss("growing-cat")
def a_metric_that_is_a_trifle_beside_its_model():
    return _evaluation(80)


@EXAMPLES.positive("growing-cat", operators=100)
def a_metric_beside_its_model_with_a_higher_threshold():
    return _evaluation(80)


@EXAMPLES.near_miss("growing-cat", operators=10)
def a_metric_beside_a_small_model_with_a_lower_threshold():
    return _evaluation(20)


@EXAMPLES.positive("growing-cat")
def a_history_of_losses():
    weight, x = torch.rand(4, 1), torch.rand(8, 4)

    def run():
        history = torch.zeros(1)
        for step in range(12):
            loss = (x @ weight * step).square().mean()
            history = torch.hstack([history, loss[None]])  # <- here
        return history

    return run


@EXAMPLES.positive("growing-cat")
def rows_put_below_one_another():
    def run():
        path = torch.zeros(1, 3)
        for _ in range(12):
            path = torch.vstack((path, torch.randn(3)))  # <- here
        return path

    return run


@EXAMPLES.positive("growing-cat", 3)
def a_buffer_of_transitions():
    class Buffer:
        def __init__(self):
            self.states, self.actions = torch.zeros(0, 4), torch.zeros(0, 1)
            self.rewards = torch.zeros(0)

        def add(self, state, action, reward):
            self.states = torch.cat((self.states, state[None]))  # <- here
            self.actions = torch.cat((self.actions, action[None]))  # <- here
            self.rewards = torch.cat((self.rewards, reward[None]))  # <- here

    def collect():
        buffer = Buffer()
        for _ in range(12):
            buffer.add(torch.randn(4), torch.randn(1), torch.randn(()))
        return buffer

    return collect


@EXAMPLES.positive("growing-cat")
def a_recording_that_is_streamed():
    def record():
        recording = torch.zeros(1, 0)
        for _ in range(11):
            chunk = torch.randn(1, 16).tanh()
            recording = torch.cat([recording, chunk], dim=-1)  # <- here
        return recording.abs().max()

    return record


@EXAMPLES.positive("growing-cat")
def newest_first():
    def collect():
        queue = torch.zeros(1, 2)
        for _ in range(12):
            queue = torch.concat([torch.rand(1, 2), queue])  # <- here
        return queue

    return collect


@EXAMPLES.positive("growing-cat")
def a_buffer_that_is_padded_for_each_row():
    def collect():
        rows = torch.rand(1, 5)
        for _ in range(12):
            rows = F.pad(rows, (0, 0, 0, 1))  # <- here
        return rows

    return collect


@EXAMPLES.positive("growing-cat")
def a_table_that_is_padded_and_filled():
    class Table:
        def __init__(self):
            self.rows = torch.zeros(0, 4)

        def append(self, value):
            self.rows = F.pad(self.rows, (0, 0, 0, 1))  # <- here
            self.rows[-1] = value
            return self

    def fill():
        table = Table()
        for step in range(12):
            table.append(torch.rand(4) if step % 2 else float(step))
        return table.rows.sum(0)

    return fill


@EXAMPLES.near_miss("growing-cat")
def a_small_table_of_which_each_step_needs_all():
    def fill():
        rows = torch.zeros(0, 4)
        for _ in range(12):
            rows = F.pad(rows, (0, 0, 0, 1))
            rows[-1] = torch.rand(4) - rows.mean(0)
        return rows

    return fill


class _CachedAttention(nn.Module):
    """Keys and values that a cache has, and one more."""

    def __init__(self, width, heads):
        super().__init__()
        self.qkv, self.heads = nn.Linear(width, 3 * width), heads

    def forward(self, x, cache):
        batch, time, width = x.shape
        q, k, v = self.qkv(x).view(batch, time, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if cache is not None:
            k = torch.cat((cache[0], k), dim=-2)  # <- here
            v = torch.cat((cache[1], v), dim=-2)  # <- here
        y = F.scaled_dot_product_attention(q, k, v)
        return y.transpose(1, 2).reshape(batch, time, width), (k, v)


def _decoding(prompt, width=64, steps=12, layers=1):
    model = nn.ModuleList(_CachedAttention(width, 2) for _ in range(layers)).eval()

    @torch.inference_mode()
    def decode():
        x, caches = torch.rand(1, prompt, width), [None] * layers
        for _ in range(steps):
            for number, layer in enumerate(model):
                x, caches[number] = layer(x, caches[number])
            x = x[:, -1:]
        return x

    return decode


@EXAMPLES.positive("growing-cat", 2)
def a_long_cache_of_keys_and_values():
    return _decoding(400)


@EXAMPLES.positive("growing-cat", 4)
def long_caches_of_two_layers():
    return _decoding(400, layers=2)


@EXAMPLES.positive("growing-cat", 2, bytes=500_000, cpu_share=0)
def a_middling_cache_with_a_lower_threshold():
    return _decoding(280)


@EXAMPLES.near_miss("growing-cat", bytes=20_000, cpu_share=0)
def a_short_cache_that_is_faster_as_it_is():
    return _decoding(8)


@EXAMPLES.near_miss("growing-cat", bytes=100_000_000)
def a_long_cache_with_a_higher_threshold():
    return _decoding(400)


@EXAMPLES.positive("growing-cat")
def frames_stacked_again_for_each_new_one():
    def background():
        frames, means = [], []
        for _ in range(14):
            frames.append(torch.rand(64, 64))
            means.append(torch.stack(frames).mean())  # <- here
        return means

    return background


class _Memory(nn.Module):
    """Attention over all frames so far, written by hand."""

    def __init__(self, width):
        super().__init__()
        self.key, self.slots = nn.Linear(width, width), []

    def forward(self, frame):
        self.slots.append(self.key(frame))
        memory = torch.cat(self.slots)  # <- here
        return (frame @ memory.t()).softmax(-1) @ memory


@EXAMPLES.positive("growing-cat")
def a_memory_that_is_joined_for_each_frame():
    def track():
        memory, frame = _Memory(128).eval(), torch.rand(32, 128)
        with torch.inference_mode():
            for _ in range(16):
                frame = memory(frame)
        return frame

    return track


def _rejoined(join, first, last):
    """A list that is joined again for each part that it gets, from so many parts to so many."""

    def run():
        chunks, peaks = [torch.rand(64, 64) for _ in range(first)], []
        for _ in range(last - first):
            chunks.append(torch.rand(64, 64))
            peaks.append(join(chunks).amax())  # <- here
        return peaks

    return run


# torch records the shapes of lists of up to 30 tensors.
@EXAMPLES.positive("growing-cat")
def a_list_that_grows_past_what_torch_records():
    return _rejoined(torch.cat, 0, 45)


@EXAMPLES.positive("growing-cat")
def a_list_that_is_half_recorded():
    return _rejoined(torch.cat, 25, 40)


@EXAMPLES.positive("growing-cat")
def a_list_that_is_almost_recorded():
    return _rejoined(torch.cat, 22, 33)


@EXAMPLES.positive("growing-cat")
def a_list_of_which_nothing_is_recorded():
    return _rejoined(torch.cat, 40, 55)


@EXAMPLES.positive("growing-cat")
def a_long_list_that_is_stacked():
    return _rejoined(torch.stack, 40, 55)


@EXAMPLES.positive("growing-cat")
def a_long_list_put_below_one_another():
    return _rejoined(torch.vstack, 40, 55)


@EXAMPLES.positive("growing-cat")
def a_long_list_put_beside_one_another():
    return _rejoined(torch.hstack, 25, 40)


@EXAMPLES.near_miss("growing-cat")
def a_long_list_of_which_ten_joins_are_not_reached():
    return _rejoined(torch.cat, 40, 49)


@EXAMPLES.near_miss("growing-cat")
def a_long_list_of_small_parts():
    def run():
        rewards, means = [torch.rand(4) for _ in range(40)], []
        for _ in range(15):
            rewards.append(torch.rand(4))
            means.append(torch.cat(rewards).mean())
        return means

    return run


@EXAMPLES.near_miss("growing-cat")
def large_batches_that_are_collated():
    def run():
        return [torch.stack([torch.rand(64, 64) for _ in range(40)]).mean() for _ in range(14)]

    return run


@EXAMPLES.near_miss("growing-cat")
def larger_and_larger_batches_that_are_collated():
    def run():
        sizes = range(32, 46)
        return [torch.stack([torch.rand(64, 64) for _ in range(n)]).mean() for n in sizes]

    return run


@EXAMPLES.near_miss("growing-cat")
def a_long_window_that_slides():
    def run():
        frames, means = [torch.rand(64, 64) for _ in range(40)], []
        for _ in range(14):
            frames = [*frames[1:], torch.rand(64, 64)]
            means.append(torch.stack(frames).mean())
        return means

    return run


@EXAMPLES.positive("growing-cat")
def values_of_a_cache_that_a_product_takes():
    def decode():
        values, query = torch.rand(48, 256), torch.rand(1, 256)
        for _ in range(40):
            values = torch.cat([values, query.sin()])  # <- here
            query = values.mean(1).softmax(0)[None] @ values
        return query

    return decode


@EXAMPLES.positive("growing-cat")
def a_batch_of_one_with_a_cache_in_three_dimensions():
    def attend(query, memory):
        return (query @ memory.transpose(1, 2) / 16).softmax(-1) @ memory

    def decode():
        memory, query = torch.rand(1, 48, 256), torch.rand(1, 1, 256)
        for _ in range(40):
            memory = torch.cat([memory, query.tanh()], dim=1)  # <- here
            query = attend(query, memory)
        return query

    return decode


@EXAMPLES.positive("growing-cat")
def similarities_of_all_points_so_far():
    def kernels():
        points, traces = torch.rand(32, 128), []
        for _ in range(16):
            points = torch.cat((points, torch.rand(16, 128)))  # <- here
            traces.append((points @ points.t()).trace())
        return traces

    return kernels


def _dense(apply):
    """Layers of which each takes all features before it, in products."""
    first = torch.rand(64, 32)

    def run():
        x = first
        for _ in range(14):
            x = torch.cat([x, apply(x, torch.rand(8, x.shape[1]), torch.zeros(8))], dim=-1)
        return x

    return run


@EXAMPLES.near_miss("growing-cat", bytes=1000)
def linear_layers_that_see_all_before_them():
    return _dense(F.linear)


@EXAMPLES.near_miss("growing-cat", bytes=1000)
def products_that_see_all_before_them():
    return _dense(lambda x, w, b: (x @ w.t() + b).relu())


@EXAMPLES.near_miss("growing-cat", bytes=1000)
def addmm_layers_that_see_all_before_them():
    return _dense(lambda x, w, b: torch.addmm(b, x, w.t()).tanh())


@EXAMPLES.near_miss("growing-cat")
def a_small_list_that_each_step_needs():
    def recent():
        rewards, means = [], []
        for _ in range(20):
            rewards.append(torch.rand(4))
            means.append(torch.stack(rewards).mean(0))
        return means

    return recent


# ------------------------------------------------------------------------------ near misses


@EXAMPLES.near_miss("growing-cat")
def a_short_cache_of_keys_and_values():
    return _decoding(8)


@EXAMPLES.near_miss("growing-cat")
def a_list_that_becomes_one_tensor():
    def collect():
        rows = [torch.rand(1, 4).exp() for _ in range(20)]
        return torch.cat(rows)

    return collect


@EXAMPLES.near_miss("growing-cat")
def a_window_that_slides():
    def stream():
        window = torch.zeros(32)
        for _ in range(14):
            window = torch.cat([window[4:], torch.rand(4)])
        return window

    return stream


@EXAMPLES.near_miss("growing-cat")
def layers_that_see_all_before_them():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(
                nn.Conv2d(4 + 2 * i, 2, 3, padding=1, bias=False) for i in range(14)
            )

        def forward(self, x):
            for layer in self.layers:
                x = torch.cat([x, layer(x).relu()], 1)
            return x

    block, x = Block().eval(), torch.rand(8, 4, 12, 12)

    @torch.inference_mode()
    def run():
        return block(x)

    return run


@EXAMPLES.near_miss("growing-cat")
def layers_that_get_a_list_of_all_before_them():
    layers = nn.ModuleList(nn.Conv2d(4 + 2 * i, 2, 1) for i in range(14)).eval()
    x = torch.rand(8, 4, 16, 16)

    @torch.inference_mode()
    def run():
        features = [x]
        for layer in layers:
            features.append(layer(torch.cat(features, 1)))
        return torch.cat(features, 1)

    return run


@EXAMPLES.near_miss("growing-cat")
def a_token_in_front_of_each_batch():
    token, batches = torch.rand(1, 1, 4), [torch.rand(2, 5, 4) for _ in range(12)]

    def run():
        return [torch.cat((token.expand(2, -1, -1), batch), 1).sum() for batch in batches]

    return run


@EXAMPLES.near_miss("growing-cat")
def tokens_that_are_generated():
    words, head = nn.Embedding(20, 8).eval(), nn.Linear(8, 20).eval()

    @torch.inference_mode()
    def generate():
        ids = torch.zeros(1, 1, dtype=torch.long)
        for _ in range(14):
            chosen = head(words(ids[:, -1])).argmax(-1, keepdim=True)
            ids = torch.cat((ids, chosen), dim=1)
        return ids

    return generate


@EXAMPLES.near_miss("growing-cat")
def episodes_that_begin_anew():
    def collect():
        done = []
        for _ in range(4):
            episode = torch.zeros(1, 3)
            for _ in range(5):
                episode = torch.cat([episode, torch.rand(1, 3)])
            done.append(episode)
        return done

    return collect


@EXAMPLES.near_miss("growing-cat")
def a_pattern_that_doubles():
    def tile():
        pattern = torch.rand(1, 3)
        while len(pattern) < 3000:
            pattern = torch.cat([pattern, pattern])
        return pattern

    return tile


@EXAMPLES.positive("growing-cat")
def a_pattern_that_gets_longer_by_as_much_each_time():
    def tile():
        row = torch.rand(1, 3)
        pattern = row
        while len(pattern) < 12:
            pattern = torch.cat([pattern, row.flip(1)])  # <- here
        return pattern

    return tile


@EXAMPLES.near_miss("growing-cat")
def halves_that_are_merged():
    def merge():
        parts = [torch.rand(2, 3) for _ in range(16)]
        while len(parts) > 1:
            pairs = zip(parts[::2], parts[1::2], strict=True)
            parts = [torch.cat(pair) for pair in pairs]
        return parts[0]

    return merge


@EXAMPLES.near_miss("growing-cat")
def lengths_that_a_test_goes_through():
    def check():
        for n in range(1, 14):
            joined = torch.cat([torch.ones(n), torch.zeros(1)])
            assert joined.shape == (n + 1,)

    return check


@EXAMPLES.near_miss("growing-cat")
def a_cache_that_is_written_in_place():
    def decode():
        keys = torch.zeros(1, 2, 400, 32)
        for t in range(12):
            keys[:, :, 380 + t] = torch.rand(1, 2, 32)
            keys[:, :, : 381 + t].sum()

    return decode


@EXAMPLES.near_miss("growing-cat")
def skips_that_are_joined_on_the_way_up():
    skips = [torch.rand(1, 4, 8, 8) for _ in range(12)]
    layers = nn.ModuleList(nn.Conv2d(8, 4, 1) for _ in range(12)).eval()

    @torch.inference_mode()
    def up():
        x = torch.rand(1, 4, 8, 8)
        for layer, skip in zip(layers, skips, strict=True):
            x = layer(torch.cat([x, skip], 1))
        return x

    return up


@EXAMPLES.positive("growing-cat")
def sound_that_is_padded_and_added_to():
    frames = torch.rand(40, 1, 16)

    def synthesize():
        audio = torch.zeros(1, 0)
        for frame in frames:
            audio = F.pad(audio, (0, 16))  # <- here
            audio[:, -16:] += frame * 0.5
        return audio

    return synthesize


@EXAMPLES.near_miss("growing-cat")
def a_signal_that_is_padded_and_filtered_as_a_whole():
    frames = torch.rand(40, 1, 16)

    def filter_all():
        audio = torch.zeros(1, 0)
        for frame in frames:
            audio = F.pad(audio, (0, 16))
            audio[:, -16:] += frame
            audio = audio.cumsum(1) * 0.5
        return audio

    return filter_all


class _Predictions:
    """Keeps predictions, targets and what is wrong of each, of one size."""

    def __init__(self):
        self.predicted = self.wanted = torch.zeros(0, dtype=torch.long)
        self.wrong = torch.zeros(0, dtype=torch.bool)

    def update(self, predicted, wanted):
        self.predicted = torch.cat([self.predicted, predicted])  # <- here
        self.wanted = torch.cat([self.wanted, wanted])  # <- here
        self.wrong = torch.cat([self.wrong, predicted != wanted])  # <- here


@EXAMPLES.positive("growing-cat", 3)
def three_tensors_of_one_size_side_by_side():
    def run():
        metric = _Predictions()
        for _ in range(20):
            metric.update(torch.randint(5, (4,)), torch.randint(5, (4,)))
        return (metric.predicted == metric.wanted).sum(), metric.wrong.sum()

    return run


@EXAMPLES.near_miss("growing-cat")
def two_small_tensors_side_by_side_of_which_each_step_uses_one():
    def run():
        seen, times = torch.zeros(0), torch.zeros(0)
        for at in range(20):
            seen = torch.cat([seen, torch.rand(1)])
            times = torch.cat([times, torch.full((1,), float(at))])
            weights = torch.softmax(times - at, 0)
            assert (seen * weights).sum() >= 0

    return run


@EXAMPLES.positive("growing-cat")
def each_prefix_is_joined_to_all_of_them():
    def run():
        seen, every = torch.zeros(1), torch.zeros(0)
        for _ in range(20):
            seen = torch.cat([seen, torch.rand(1)])
            every = torch.cat([every, seen])  # <- here
        return every

    return run
