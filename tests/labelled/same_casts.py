"""Labelled examples of casts of one tensor again and again, and of casts that only look like it.

In the style of libraries: language models, metrics, samplers, quantized weights, videos.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from labelled.case import Examples
from labelled.layers_alike import Blur
from torch import nn

EXAMPLES = Examples()
BF16 = torch.bfloat16


# -------------------------------------------------------------------- positives


class Rotary(nn.Module):
    """Tables that all layers share, cast to what they meet."""

    def __init__(self, tokens, width):
        super().__init__()
        angles = torch.outer(torch.arange(tokens).float(), torch.rand(width))
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, q):
        cos, sin = self.cos.to(q.dtype), self.sin.to(q.dtype)  # <- here
        return q * cos + q.roll(1, -1) * sin


@EXAMPLES.positive("repeated-cast", 14)
def rotary_tables_cast_in_each_layer():
    rotary, q = Rotary(4, 8), torch.randn(2, 4, 8).to(BF16)
    layers = [nn.Linear(8, 8).to(BF16) for _ in range(8)]

    @torch.no_grad()
    def infer():
        x = q
        for layer in layers:
            x = layer(rotary(x))
        return x

    return infer


def masked(size):
    """Layers on images of this size, after each of which padding is masked."""
    layers = nn.Sequential(*(Blur(4) for _ in range(6)))
    images, mask = torch.rand(8, 4, size, size), torch.rand(8, 16) > 0.2

    @torch.no_grad()
    def infer():
        x = images
        for layer in layers:
            x = layer(x)
            x = x + x.mean() * mask.to(x.dtype).sum()  # <- here
        return x

    return infer


@EXAMPLES.positive("repeated-cast", 5, cpu_share=0.003)
def a_mask_cast_after_each_layer_of_small_images():
    return masked(62)


@EXAMPLES.near_miss("repeated-cast")
def a_mask_cast_after_each_layer_is_a_trifle_beside_large_images():
    return masked(69)


class Positions(nn.Module):
    """Adds as many positions of a table as there are tokens."""

    def __init__(self, longest, width):
        super().__init__()
        self.register_buffer("table", torch.randn(longest, width))

    def forward(self, x):
        return x + self.table[: x.shape[1]].to(dtype=x.dtype)  # <- here


@EXAMPLES.positive("repeated-cast", 7)
def positions_cast_for_each_batch():
    positions = Positions(32, 8)
    batches = [torch.randn(2, 6, 8).to(BF16) for _ in range(8)]
    return lambda: [positions(batch).amax(1) for batch in batches]


@EXAMPLES.positive("repeated-cast", 5)
def a_mask_cast_in_each_block():
    keep = torch.rand(2, 1, 1, 8) > 0.2
    scores = [torch.randn(2, 2, 8, 8) for _ in range(6)]

    def attend(score, mask):
        bias = (1.0 - mask.to(score.dtype)) * -1e4  # <- here
        return torch.softmax(score + bias, dim=-1)

    return lambda: [attend(score, keep) for score in scores]


class Quantized:
    """An eight-bit weight that is unpacked in each call."""

    def __init__(self, rows, columns):
        self.weight = torch.randint(-128, 127, (rows, columns), dtype=torch.int8)
        self.scale = torch.rand(rows, 1)

    def __call__(self, x):
        return F.linear(x, self.weight.float() * self.scale)  # <- here


@EXAMPLES.positive("repeated-cast", 7)
def an_eight_bit_weight_unpacked_for_each_token():
    layer, token = Quantized(8, 8), torch.randn(1, 8)

    def generate():
        x = token
        for _ in range(8):
            x = torch.tanh(layer(x))
        return x

    return generate


class WeightedError:
    """A metric with state, in double precision."""

    def __init__(self, weights):
        self.weights, self.total = weights, torch.zeros((), dtype=torch.double)

    def update(self, predicted, target):
        weights = self.weights.double()  # <- here
        error = (predicted - target).abs().double().mean(0)
        self.total += (weights * error).sum()


@EXAMPLES.positive("repeated-cast", 7)
def weights_of_a_metric_cast_in_each_update():
    metric = WeightedError(torch.rand(20))
    pairs = [(torch.rand(4, 20), torch.rand(4, 20)) for _ in range(8)]

    def evaluate():
        for predicted, target in pairs:
            metric.update(predicted, target)

    return evaluate


class Sampler:
    """Steps back from noise, by a table in double precision."""

    def __init__(self, steps):
        self.alphas = torch.linspace(0.99, 0.01, steps, dtype=torch.double)

    def step(self, model_output, t, sample):
        alphas = self.alphas.to(sample.dtype)  # <- here
        alpha = alphas.gather(0, t).view(-1, 1, 1, 1)
        return (sample - (1 - alpha) * model_output) / alpha.sqrt()


@EXAMPLES.positive("repeated-cast", 9)
def a_table_of_noise_cast_in_each_step_of_a_sampler():
    sampler, noise = Sampler(32), torch.randn(2, 3, 4, 4)

    def sample():
        x, t = noise, torch.full((2,), 9)
        for _ in range(10):
            x = sampler.step(torch.tanh(x), t, x)
            t = t - 1
        return x

    return sample


class Adapter(nn.Module):
    """A low-rank weight kept in single precision beside a layer in half."""

    def __init__(self, width, rank=2):
        super().__init__()
        self.down = nn.Parameter(torch.randn(rank, width), requires_grad=False)
        self.up = nn.Parameter(torch.zeros(width, rank), requires_grad=False)

    def forward(self, x):
        down, up = (p.to(x.dtype) for p in (self.down, self.up))  # <- here
        return x + x @ down.t() @ up.t()


@EXAMPLES.positive("repeated-cast", 10)
def an_adapter_cast_in_each_call():
    adapter, x = Adapter(12), torch.randn(3, 12).to(BF16)

    def calls():
        y = x
        for _ in range(6):
            y = adapter(y)
        return y

    return calls


@EXAMPLES.positive("repeated-cast", 7)
def a_bank_of_features_cast_for_each_query():
    bank = torch.randn(40, 8)
    queries = [torch.randn(1, 8).half() for _ in range(8)]

    def neighbors(query):
        similarity = query @ bank.half().T  # <- here
        return similarity.topk(2).indices

    return lambda: list(map(neighbors, queries))


@EXAMPLES.positive("repeated-cast", 7)
def one_target_cast_in_each_step_of_an_attack():
    model, image = nn.Linear(6, 4), torch.rand(5, 6)
    target = torch.randint(0, 2, (5, 4))

    def attack(steps=8):
        x = image
        for _ in range(steps):
            x = x.detach().requires_grad_()
            loss = F.binary_cross_entropy_with_logits(model(x), target.float())  # <- here
            (slope,) = torch.autograd.grad(loss, x)
            x = x + 0.01 * slope.sign()
        return x

    return attack


@EXAMPLES.positive("repeated-cast", 5)
def a_decorated_predictor_that_enters_autocast_each_time():
    layer = nn.Linear(8, 4)
    batches = [torch.randn(2, 8) for _ in range(6)]

    @torch.no_grad()
    @torch.autocast("cpu", dtype=BF16)
    def predict(batch):
        return layer(batch).argmax(-1)  # <- here

    return lambda: [predict(batch) for batch in batches]


@EXAMPLES.positive("repeated-cast", 7, unlike="2.6.")
def a_head_of_a_language_model_generating_in_inference_mode():
    head, table = nn.Linear(8, 12, bias=False), torch.randn(12, 8)

    @torch.inference_mode()
    def generate(length=8):
        token = torch.tensor([0])
        with torch.autocast("cpu", dtype=BF16):
            for _ in range(length):
                token = head(F.embedding(token, table)).argmax(-1)  # <- here
        return token

    return generate


@EXAMPLES.positive("repeated-cast", 5)
def frames_compared_with_one_background():
    background = torch.randint(0, 255, (3, 6, 6), dtype=torch.uint8)
    frames = [torch.rand(3, 6, 6) for _ in range(6)]

    def foreground():
        for frame in frames:
            yield (frame - background.to(torch.float32)).abs().amax(0) > 9  # <- here

    return lambda: list(foreground())


@EXAMPLES.positive("repeated-cast", 7)
def an_embedding_table_cast_by_type_as():
    codebook, latents = torch.randn(10, 4), [torch.randn(3, 4).double() for _ in range(8)]

    def encode(latent):
        return torch.cdist(latent, codebook.type_as(latent)).argmin(1)  # <- here

    return lambda: [encode(latent) for latent in latents]


@EXAMPLES.positive("repeated-cast", 5)
def edges_cast_in_each_layer_of_a_graph_network():
    edges, x = torch.randint(0, 9, (2, 20), dtype=torch.int32), torch.randn(9, 4)
    layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(6))

    @torch.no_grad()
    def embed():
        h = x
        for layer in layers:
            source, target = edges.long()  # <- here
            h = torch.zeros_like(h).index_add(0, target, layer(h.index_select(0, source)))
        return h

    return embed


@EXAMPLES.positive("repeated-cast", 9)
def one_image_that_each_crop_casts_as_a_whole():
    image = torch.randint(0, 255, (3, 8, 8), dtype=torch.uint8)

    def crop(top):
        return image.float().div(255).narrow(1, top % 4, 4)  # <- here

    return lambda: torch.stack(list(map(crop, range(10))))


@EXAMPLES.positive("repeated-cast", 4)
def sixteen_numbers_are_enough():
    mean, xs = torch.rand(16), [torch.rand(2, 16).double() for _ in range(5)]
    return lambda: [x - mean.double() for x in xs]  # <- here


# -------------------------------------------------------------------- near misses


@EXAMPLES.near_miss("repeated-cast")
def a_mean_of_each_channel_is_a_trifle():
    mean, images = torch.rand(3, 1, 1), [torch.rand(3, 8, 8).half() for _ in range(8)]
    return lambda: [image - mean.to(image.dtype) for image in images]


@EXAMPLES.near_miss("repeated-cast")
def fifteen_numbers_are_a_trifle():
    mean, xs = torch.rand(15), [torch.rand(2, 15).double() for _ in range(8)]
    return lambda: [x - mean.double() for x in xs]


@EXAMPLES.near_miss("repeated-cast")
def eight_images_each_cast_once():
    images = [torch.randint(0, 255, (3, 6, 6), dtype=torch.uint8) for _ in range(8)]
    return lambda: torch.stack([image.float().div_(255) for image in images])


@EXAMPLES.near_miss("repeated-cast")
def frames_of_one_video_each_cast_once():
    frames = torch.randint(0, 255, (8, 3, 6, 6), dtype=torch.uint8).unbind(0)

    def means():
        for frame in frames:
            yield frame.float().mean((1, 2))

    return lambda: list(means())


class LowLinear(nn.Linear):
    """A layer whose weight is kept in single precision."""

    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype))


@EXAMPLES.near_miss("repeated-cast")
def layers_that_each_cast_their_own_weight_once():
    model = nn.Sequential(*(LowLinear(8, 8, bias=False) for _ in range(8)))
    x = torch.randn(2, 8).to(BF16)

    @torch.inference_mode()
    def infer():
        return model(x)

    return infer


@EXAMPLES.near_miss("repeated-cast")
def experts_that_each_cast_their_own_weight_once():
    experts, x = [torch.randn(6, 4) for _ in range(8)], torch.randn(2, 6).double()
    gates = torch.rand(8, 2, 1, dtype=torch.double).unbind(0)

    def mixture():
        pairs = zip(gates, experts, strict=True)
        return sum(gate * (x @ expert.double()) for gate, expert in pairs)

    return mixture


@EXAMPLES.near_miss("repeated-cast")
def norms_of_each_layer_in_single_precision():
    weights = [torch.ones(8, dtype=BF16) for _ in range(8)]
    x = torch.randn(2, 4, 8).to(BF16)

    def norm(x, weight):
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)
        return weight * y.to(x.dtype)

    def layers():
        y = x
        for weight in weights:
            y = y + norm(y, weight)
        return y

    return layers


@EXAMPLES.near_miss("repeated-cast")
def a_mask_of_finished_sequences_that_changes():
    lengths = torch.randint(1, 8, (24,))

    def decode():
        finished, score = torch.zeros(24, dtype=torch.bool), torch.zeros(24)
        for step in range(8):
            finished |= lengths <= step
            score += 1 - finished.to(score.dtype)
        return score

    return decode


@EXAMPLES.near_miss("repeated-cast")
def a_histogram_that_is_counted_up():
    batches = [torch.randint(0, 20, (16,)) for _ in range(8)]

    def entropies():
        counts, out = torch.zeros(20, dtype=torch.long), []
        for batch in batches:
            counts.scatter_add_(0, batch, torch.ones_like(batch))
            share = counts.float() / 16
            out.append(-(share * (share + 1e-9).log()).sum())
        return out

    return entropies


@EXAMPLES.near_miss("repeated-cast")
def a_view_of_a_ring_that_is_written_to():
    ring, news = torch.zeros(8, 4, dtype=torch.half), torch.randn(8, 4).half().unbind(0)

    def push():
        means = []
        for at, new in enumerate(news):
            torch.select(ring, 0, at).copy_(new)
            means.append(ring.float().mean())
        return means

    return push


@EXAMPLES.near_miss("repeated-cast")
def microbatches_of_one_step_under_autocast():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
    parts = torch.randn(12, 8).chunk(6)

    def step():
        for part in parts:
            with torch.autocast("cpu", dtype=BF16):
                loss = model(part).float().square().mean() / 6
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@EXAMPLES.near_miss("repeated-cast")
def targets_cast_once_a_step_of_an_optimizer_by_hand():
    weight, x = torch.randn(8, 4, requires_grad=True), torch.randn(6, 8)
    target = torch.randint(0, 2, (6, 4))

    def train():
        for _ in range(6):
            loss = F.binary_cross_entropy_with_logits(x @ weight, target.float())
            loss.backward()
            with torch.no_grad():
                weight.sub_(weight.grad, alpha=0.1)
            weight.grad = None

    return train


@EXAMPLES.near_miss("repeated-cast")
def a_model_evaluated_in_one_autocast_with_its_cache():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    batches = [torch.randn(2, 8) for _ in range(6)]

    @torch.no_grad()
    @torch.autocast("cpu", dtype=BF16)
    def evaluate():
        return [model(batch).argmax(-1) for batch in batches]

    return evaluate


@EXAMPLES.near_miss("repeated-cast", unlike="2.6.")
def stages_of_equal_layers_called_once_in_inference_mode():
    def stage():
        blocks = [nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)) for _ in range(3)]
        return nn.Sequential(*blocks, nn.Linear(8, 8, bias=False))

    model, x = nn.Sequential(*(stage() for _ in range(6))), torch.randn(2, 8)

    @torch.inference_mode()
    def infer():
        with torch.autocast("cpu", dtype=BF16):
            return model(x)

    return infer


@EXAMPLES.near_miss("repeated-cast")
def an_average_of_weights_that_move_on():
    average = torch.zeros(8, 4)
    grads = [torch.randn(8, 4).to(BF16) for _ in range(8)]

    def track():
        weight = torch.zeros(8, 4, dtype=BF16)
        for grad in grads:
            weight.sub_(grad, alpha=0.1)
            average.lerp_(weight.float(), 0.1)

    return track


@EXAMPLES.near_miss("repeated-cast")
def one_mask_in_four_layers():
    keep, scores = torch.rand(2, 1, 1, 8) > 0.2, [torch.randn(2, 2, 8, 8) for _ in range(4)]
    return lambda: [score.mul(keep.to(score.dtype)).softmax(-1) for score in scores]


@EXAMPLES.near_miss("repeated-cast")
def tables_of_several_lengths():
    table = torch.randn(32, 8)
    batches = [torch.randn(length, 8).to(BF16) for length in range(4, 12)]
    return lambda: [batch + table[: len(batch)].to(batch.dtype) for batch in batches]


@EXAMPLES.near_miss("repeated-cast")
def observations_from_numpy_in_memory_that_is_used_again():
    policy, observation = nn.Linear(16, 2), np.zeros((2, 16))

    @torch.no_grad()
    def rollout():
        actions = []
        for step in range(8):
            observation[...] = step
            actions.append(policy(torch.from_numpy(observation).float()).argmax(-1))
        return actions

    return rollout


@EXAMPLES.near_miss("repeated-cast")
def parts_of_one_table_each_cast_once():
    table, x = torch.randn(32, 8), torch.randn(2, 8).double()

    def sweep():
        return [x @ table[at : at + 4].double().t() for at in range(0, 32, 4)]

    return sweep


# -------------------------------------------------------------------- parameters made in the test


@EXAMPLES.positive("repeated-cast", 5)
def a_weight_of_a_layer_made_in_the_test_cast_for_each_batch():
    def check():
        layer, x = nn.Linear(64, 64), torch.rand(2, 64)
        for _ in range(6):
            x = F.linear(x.to(BF16), layer.weight.to(BF16)).float()  # <- here

    return check


@EXAMPLES.positive("repeated-cast", 4)
def a_scale_made_in_the_test_detached_and_cast_for_each_token():
    def check():
        scale, token = nn.Parameter(torch.rand(32)), torch.rand(3, 32, dtype=torch.double)
        for _ in range(5):
            token = token.cos() * scale.detach().double()  # <- here

    return check


@EXAMPLES.positive("repeated-cast", 4)
def the_first_rows_of_a_table_made_in_the_test_cast_in_each_layer():
    def check():
        table, x = nn.Parameter(torch.rand(16, 8)), torch.rand(4, 8, dtype=torch.double)
        for _ in range(5):
            x = x.sin() + table[:4].double()  # <- here

    return check


@EXAMPLES.near_miss("repeated-cast")
def experts_of_one_parameter_made_in_the_test_cast_once_each():
    def check():
        experts, x = nn.Parameter(torch.rand(6, 8, 8)), torch.rand(3, 8, dtype=BF16)
        return [x @ expert.to(BF16) for expert in experts.unbind()]

    return check


@EXAMPLES.near_miss("repeated-cast")
def halves_of_a_parameter_made_in_the_test_cast_once_each():
    def check():
        both, x = nn.Parameter(torch.rand(8, 8)), torch.rand(3, 4, dtype=BF16)
        for half in torch.split(both.detach(), 1, dim=1):
            x = x + half.to(BF16)[:4].t()

    return check


@EXAMPLES.near_miss("repeated-cast", cpu_share=0.02)
def a_mask_cast_after_each_layer_with_a_higher_threshold():
    return a_mask_cast_after_each_layer_of_small_images()
