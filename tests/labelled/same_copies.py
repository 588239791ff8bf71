"""Labelled examples of copies of one tensor again and again, and of copies that only look like it.

In the style of libraries: attention, graphs, images, sampling, feature banks, rollouts.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from labelled.case import Examples
from labelled.layers_alike import Blur
from torch import nn

EXAMPLES = Examples()


# -------------------------------------------------------------------- positives


def filtered(size):
    """Layers on images of this size, each with a copy of one table of weights."""
    layers = nn.Sequential(*(Blur(4) for _ in range(6)))
    images, table = torch.rand(8, 4, size, size), torch.rand(16, 8)

    @torch.no_grad()
    def infer():
        x = images
        for layer in layers:
            x = layer(x)
            x = x + torch.dot(x.flatten()[:128], table.t().contiguous().flatten())  # <- here
        return x

    return infer


@EXAMPLES.positive("contiguous-copy", 5, cpu_share=0.003)
def a_table_laid_out_in_each_layer_of_small_images():
    return filtered(63)


@EXAMPLES.near_miss("contiguous-copy")
def a_table_laid_out_in_each_layer_is_a_trifle_beside_large_images():
    return filtered(70)


class CrossAttention:
    """Attends to what an encoder has made, laid out anew for each token."""

    def __init__(self, memory):
        self.memory = memory

    def __call__(self, query):
        keys = self.memory.transpose(1, 2).contiguous()  # <- here
        scores = torch.bmm(query, keys)
        return torch.bmm(F.softmax(scores / 4, dim=-1), self.memory)


@EXAMPLES.positive("contiguous-copy", 7)
def keys_of_an_encoder_laid_out_for_each_token():
    attend, start = CrossAttention(torch.randn(2, 6, 16)), torch.randn(2, 1, 16)

    @torch.no_grad()
    def decode():
        token, left = start, 8
        while left:
            token = token + attend(token)
            left -= 1
        return token

    return decode


@EXAMPLES.positive("contiguous-copy", 9)
def an_adjacency_transposed_in_each_propagation():
    adjacency, features = torch.rand(24, 24), torch.randn(24, 8)

    def propagate(hidden, steps=10, alpha=0.1):
        first = hidden
        for _ in range(steps):
            sent = torch.mm(adjacency.t().contiguous(), hidden)  # <- here
            hidden = (1 - alpha) * sent + alpha * first
        return hidden

    return lambda: propagate(features)


@EXAMPLES.positive("contiguous-copy", 7)
def points_transposed_in_each_step_of_k_means():
    points, centers = torch.randn(40, 4), torch.randn(5, 4)

    def fit(centers):
        for _ in range(8):
            columns = points.t().contiguous()  # <- here
            nearest = torch.cdist(points, centers).argmin(1)
            member = F.one_hot(nearest, 5).to(points.dtype)
            centers = (columns @ member).t() / member.sum(0).clamp(min=1).unsqueeze(1)
        return centers

    return lambda: fit(centers)


class SpectralNorm(nn.Module):
    """Flattens the weight of a transposed convolution in each iteration."""

    def __init__(self, weight):
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("u", torch.randn(6))

    def forward(self):
        u = self.u
        for _ in range(8):
            flat = self.weight.permute(1, 0, 2, 3).reshape(6, -1)  # <- here
            v = F.normalize(flat.t().mv(u), dim=0)
            u = F.normalize(flat.mv(v), dim=0)
        return u


@EXAMPLES.positive("contiguous-copy", 7)
def a_weight_flattened_in_each_power_iteration():
    norm = SpectralNorm(torch.randn(4, 6, 3, 3))

    def block():
        with torch.no_grad():
            norm()

    return block


class FeatureBank:
    """Features that queries are compared with."""

    def __init__(self, features):
        self.features = features

    def nearest(self, query):
        bank = self.features.T.contiguous()  # <- here
        return (query @ bank).topk(3, dim=-1).indices


@EXAMPLES.positive("contiguous-copy", 9)
def a_bank_of_features_transposed_for_each_query():
    bank, queries = FeatureBank(torch.randn(50, 16)), [torch.randn(2, 16) for _ in range(10)]
    return lambda: [bank.nearest(query) for query in queries]


@EXAMPLES.positive("contiguous-copy", 7)
def a_window_expanded_for_each_image():
    window = torch.rand(1, 1, 5, 5)
    images = [torch.rand(1, 3, 12, 12) for _ in range(8)]

    def blurred(image):
        kernel = window.expand(3, 1, 5, 5).contiguous()  # <- here
        return F.conv2d(image, kernel, groups=3)

    return lambda: list(map(blurred, images))


class RolloutBuffer:
    """Steps first, environments second, and the other way round for each minibatch."""

    def __init__(self, steps, environments):
        self.observations = torch.randn(steps, environments, 4)

    def minibatches(self, orders):
        for order in orders:
            flat = self.observations.transpose(0, 1).reshape(-1, 4)  # <- here
            yield flat[order]


@EXAMPLES.positive("contiguous-copy", 7)
def a_rollout_flattened_for_each_minibatch():
    buffer, value = RolloutBuffer(8, 6), nn.Linear(4, 1)
    orders = torch.randperm(48).view(8, 6).unbind(0)

    @torch.no_grad()
    def epoch():
        return [value(batch).mean() for batch in buffer.minibatches(orders)]

    return epoch


class Environment:
    """Returns a copy of its first state, which is never written to."""

    def __init__(self):
        self.first = torch.randn(4, 8)

    def reset(self):
        return self.first.clone()  # <- here


@EXAMPLES.positive("contiguous-copy", 7)
def a_state_cloned_by_each_reset_and_only_read():
    environment, policy = Environment(), nn.Linear(8, 2)

    @torch.no_grad()
    def evaluate(episodes=8):
        return sum(policy(environment.reset()).argmax(1).sum() for _ in range(episodes))

    return evaluate


@EXAMPLES.positive("contiguous-copy", 5)
def a_target_laid_out_for_each_step_of_style_transfer():
    target, image = torch.randn(2, 4, 6, 6), torch.randn(2, 4, 6, 6)

    def gram(features):
        flat = features.permute(0, 2, 3, 1).reshape(-1, 4)  # <- here
        return flat.t() @ flat / flat.shape[0]

    def distances(image):
        for _ in range(6):
            yield (gram(target) - gram(image)).square().sum()
            image = image.mul(0.9)

    return lambda: list(distances(image))


@EXAMPLES.positive("contiguous-copy", 5)
def keys_and_values_of_one_prefix_for_each_candidate():
    cache, candidates = torch.randn(2, 2, 5, 8), [torch.randn(2, 1, 8) for _ in range(6)]

    def score(query):
        keys, values = cache
        keys = keys.transpose(-2, -1).contiguous()  # <- here
        return torch.softmax(query @ keys, -1) @ values

    return lambda: [score(candidate) for candidate in candidates]


@EXAMPLES.positive("contiguous-copy", 7)
def every_other_row_of_a_table_in_each_call():
    table, signals = torch.randn(16, 16), [torch.randn(16) for _ in range(8)]
    return lambda: [torch.mv(table[::2, ::2].contiguous(), s[:8]) for s in signals]  # <- here


class Distance(nn.Module):
    """Compares embeddings with prototypes, a layer after the other."""

    def __init__(self, prototypes):
        super().__init__()
        self.prototypes = nn.Parameter(prototypes)
        self.mix = nn.ModuleList(nn.Linear(6, 6) for _ in range(8))

    def forward(self, x):
        for layer in self.mix:
            near = x @ self.prototypes.t().contiguous()  # <- here
            x = x + layer(near.softmax(-1) @ self.prototypes)
        return x


@EXAMPLES.positive("contiguous-copy", 7)
def prototypes_that_all_layers_share():
    model, x = Distance(torch.randn(5, 6)), torch.randn(3, 6)

    def step():
        model(x).sum().backward()
        model.zero_grad()

    return step


@EXAMPLES.positive("contiguous-copy", 7)
def channels_last_for_each_member_of_an_ensemble():
    members = [nn.Conv2d(3, 2, 3) for _ in range(8)]
    images = torch.randn(2, 3, 8, 8)

    @torch.inference_mode()
    def predict():
        layout = torch.channels_last
        outputs = [m(images.contiguous(memory_format=layout)) for m in members]  # <- here
        return torch.stack(outputs).mean(0)

    return predict


@EXAMPLES.positive("contiguous-copy", 5)
def a_matrix_flattened_for_each_right_hand_side():
    matrix, sides = torch.randn(6, 6).t(), [torch.randn(36) for _ in range(6)]

    def residuals():
        yield from (matrix.flatten().dot(side) for side in sides)  # <- here

    return lambda: list(residuals())


@EXAMPLES.positive("contiguous-copy", 10)
def the_parts_of_one_tensor_each_six_times():
    heads, queries = torch.randn(2, 5, 4), [torch.randn(5, 3) for _ in range(6)]

    def attend():
        for query in queries:
            for head in heads.unbind(0):
                head.t().contiguous() @ query  # <- here

    return attend


@EXAMPLES.positive("contiguous-copy", 7)
def weights_that_are_cloned_to_add_noise_to_them():
    weight, scales = torch.randn(8, 4), torch.rand(8, 8, 4).unbind(0)
    return lambda: [weight.clone().add_(scale) for scale in scales]  # <- here


@EXAMPLES.positive("contiguous-copy", 4)
def sixteen_numbers_are_enough():
    x = torch.randn(4, 4)
    return lambda: [x.t().contiguous() @ x for _ in range(5)]  # <- here


# -------------------------------------------------------------------- near misses


@EXAMPLES.near_miss("contiguous-copy")
def fifteen_numbers_are_a_trifle():
    x = torch.randn(5, 3)
    return lambda: [x.t().contiguous() @ x for _ in range(8)]


class Shuffle(nn.Module):
    """A unit that mixes the channels of its groups."""

    def __init__(self, width=8):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 1, groups=2, bias=False)

    def forward(self, x):
        n, c, h, w = x.shape
        x = self.conv(x).view(n, 2, c // 2, h, w)
        return x.transpose(1, 2).contiguous().view(n, c, h, w)


@EXAMPLES.near_miss("contiguous-copy")
def units_that_shuffle_their_channels():
    model, x = nn.Sequential(*(Shuffle() for _ in range(8))), torch.randn(2, 8, 4, 4)

    @torch.no_grad()
    def infer():
        return model(x)

    return infer


@EXAMPLES.near_miss("contiguous-copy")
def activations_that_each_mixer_transposes():
    layers, x = [nn.Linear(8, 8) for _ in range(8)], torch.randn(2, 8, 8)

    @torch.inference_mode()
    def mix():
        y = x
        for layer in layers:
            y = layer(y.transpose(1, 2).contiguous())
        return y

    return mix


@EXAMPLES.near_miss("contiguous-copy")
def shifted_windows_of_each_block():
    def partition(x, size=2):
        b, h, w, c = x.shape
        x = x.view(b, h // size, size, w // size, size, c)
        return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, size * size, c)

    norms, x = [nn.LayerNorm(4) for _ in range(8)], torch.randn(1, 4, 4, 4)

    @torch.no_grad()
    def blocks():
        y = x
        for norm in norms:
            y = norm(partition(y)).view_as(x)
        return y

    return blocks


@EXAMPLES.near_miss("contiguous-copy")
def a_trajectory_of_what_is_changed_in_place():
    def sample(steps=8):
        x, states = torch.zeros(6, 4), []
        for _ in range(steps):
            x.add_(torch.randn_like(x), alpha=0.1)
            states.append(x.clone())
        return torch.stack(states)

    return sample


@EXAMPLES.near_miss("contiguous-copy")
def a_trajectory_whose_view_is_changed_in_place():
    grid = torch.zeros(6, 6)

    def diffuse():
        frames, inner = [], grid[1:-1, 1:-1]
        for _ in range(8):
            inner.mul_(0.9).add_(0.1)
            frames.append(grid.clone())
        return [frame.sum() for frame in frames]

    return diffuse


@EXAMPLES.near_miss("contiguous-copy")
def a_trajectory_of_new_states():
    def leapfrog(position, momentum, steps=8):
        path = []
        for _ in range(steps):
            momentum = momentum - 0.1 * position
            position = position + 0.1 * momentum
            path.append(position.clone())
        return path

    start = torch.randn(2, 12)
    return lambda: leapfrog(*start.split(1))


@EXAMPLES.near_miss("contiguous-copy")
def a_buffer_that_each_product_writes_to():
    buffer, a = torch.empty(6, 6), torch.randn(6, 6)

    def run():
        total = torch.zeros(6, 6)
        for _ in range(8):
            torch.mm(a, a, out=buffer)
            total += buffer.t().contiguous()
        return total

    return run


class Cache:
    """Keys of all tokens so far, in memory that is there from the start."""

    def __init__(self, tokens):
        self.keys, self.at = torch.zeros(2, tokens, 8), 0

    def update(self, new):
        self.keys[:, self.at].copy_(new)
        self.at = (self.at + 1) % self.keys.shape[1]
        return self.keys.transpose(1, 2).contiguous()


@EXAMPLES.near_miss("contiguous-copy")
def a_cache_that_each_token_is_written_to():
    cache, step = Cache(8), nn.Linear(8, 8)

    @torch.no_grad()
    def decode():
        token = torch.randn(2, 8)
        for _ in range(8):
            keys = cache.update(step(token))
            token = torch.bmm(token.unsqueeze(1), keys).mean(-1).expand(2, 8)
        return token

    return decode


@EXAMPLES.near_miss("contiguous-copy")
def images_of_a_loader_laid_out_one_by_one():
    batches = [torch.rand(2, 6, 6, 3) for _ in range(8)]
    conv = nn.Conv2d(3, 4, 3)

    @torch.no_grad()
    def predict():
        return [conv(batch.permute(0, 3, 1, 2).contiguous()).mean() for batch in batches]

    return predict


@EXAMPLES.near_miss("contiguous-copy")
def heads_that_were_split_before():
    heads, query = torch.randn(8, 5, 4).unbind(0), torch.randn(5, 3)
    return lambda: [head.t().contiguous() @ query for head in heads]


@EXAMPLES.near_miss("contiguous-copy")
def a_state_that_each_perturbation_writes_to():
    x, model = torch.randn(4, 8), nn.Linear(8, 2)

    def without(column):
        masked = x.clone()
        masked[:, column] = 0
        return model(masked)

    @torch.no_grad()
    def importances():
        return [without(column).sum() for column in range(8)]

    return importances


@EXAMPLES.near_miss("contiguous-copy")
def a_root_from_which_each_rollout_goes_its_own_way():
    root, push = torch.randn(4, 8), torch.randn(4, 8)

    def rollout(depth):
        state = root.clone()
        for _ in range(3):
            state.add_(push, alpha=depth).clamp_(-1, 1)
        return state.sum()

    return lambda: [rollout(depth) for depth in range(8)]


class Swarm:
    """Particles that start alike, and then go their own ways, each by one step."""

    def __init__(self, start, count):
        self.particles = [start.clone() for _ in range(count)]

    def scatter(self, radius):
        for particle in self.particles:
            particle.add_(torch.randn_like(particle), alpha=radius)
        return torch.stack(self.particles).std(0)


@EXAMPLES.near_miss("contiguous-copy")
def particles_of_a_swarm_that_start_alike():
    start = torch.randn(4, 8)
    return lambda: Swarm(start, 8).scatter(0.1)


def scattered(start, radii):
    for radius in radii:
        particle = start.clone()
        particle.add_(torch.randn_like(particle), alpha=radius)
        yield particle


@EXAMPLES.near_miss("contiguous-copy")
def particles_that_another_call_than_the_next_one_writes_to():
    start = torch.randn(4, 8)
    return lambda: torch.stack(list(scattered(start, [0.1 * i for i in range(8)]))).std(0)


@EXAMPLES.positive("contiguous-copy", 7)
def trials_of_a_line_search_that_the_next_call_writes_to():
    x, direction = torch.randn(4, 8), torch.randn(4, 8)

    def loss(step):
        trial = x.clone()  # <- here
        trial.sub_(direction, alpha=step)
        return trial.square().sum()

    return lambda: min(loss(0.5**k).item() for k in range(8))


@EXAMPLES.near_miss("contiguous-copy")
def copies_for_models_that_begin_in_place():
    models = [nn.Sequential(nn.ReLU(inplace=True), nn.Linear(8, 2)) for _ in range(8)]
    x = torch.randn(4, 8)

    @torch.no_grad()
    def votes():
        return torch.stack([model(x.clone()) for model in models]).mean(0)

    return votes


@EXAMPLES.near_miss("contiguous-copy")
def copies_for_a_function_that_jitters_what_it_is_given():
    def jittered(points, scale=0.1):
        noise = torch.randn(4, 8)
        points.add_(noise, alpha=scale)
        return points.norm()

    start = torch.randn(4, 8)
    return lambda: [jittered(start.clone()) for _ in range(8)]


class InnerLoop:
    """Adapts a copy of the weights to each task, by one step."""

    def __init__(self, weight, rate=0.1):
        self.weight, self.rate = weight, rate

    def adapted(self, x, y):
        fast = self.weight.clone()
        error = x @ fast - y
        fast.sub_(x.t() @ error, alpha=self.rate)
        return fast

    def losses(self, tasks):
        for x, y in tasks:
            yield (x @ self.adapted(x, y) - y).square().mean()


@EXAMPLES.near_miss("contiguous-copy")
def weights_that_are_adapted_to_each_task_by_one_step():
    inner = InnerLoop(torch.randn(8, 2))
    tasks = [(torch.randn(4, 8), torch.randn(4, 2)) for _ in range(8)]
    return lambda: list(inner.losses(tasks))


@EXAMPLES.near_miss("contiguous-copy")
def members_of_an_ensemble_begin_alike():
    weight = torch.randn(8, 4)
    return lambda: nn.ParameterList([nn.Parameter(weight.clone()) for _ in range(8)])


@EXAMPLES.near_miss("contiguous-copy")
def a_hidden_state_laid_out_at_each_time():
    cell, inputs = nn.GRUCell(4, 6), [torch.randn(3, 4) for _ in range(8)]

    @torch.no_grad()
    def run():
        hidden, out = torch.zeros(3, 6), []
        for x in inputs:
            hidden = cell(x, hidden)
            out.append(hidden.t().contiguous())
        return torch.stack(out)

    return run


@EXAMPLES.near_miss("contiguous-copy")
def a_batch_cloned_once_a_step_of_an_optimizer_by_hand():
    weight, x = torch.randn(8, 2, requires_grad=True), torch.randn(4, 8)

    def train():
        for _ in range(6):
            (x.clone() @ weight).square().mean().backward()
            with torch.no_grad():
                weight.sub_(weight.grad, alpha=0.1)
            weight.grad = None

    return train


@EXAMPLES.near_miss("contiguous-copy")
def a_weight_made_contiguous_after_each_update():
    def power(steps=8):
        state, x = torch.rand(6, 4), torch.rand(3, 6)
        for _ in range(steps):
            state.div_(state.norm())
            x = torch.mm(x, state) @ state.t().contiguous()
        return x

    return power


@EXAMPLES.near_miss("contiguous-copy")
def parts_of_one_table_a_row_of_blocks_at_a_time():
    table, x = torch.randn(8, 6, 4), torch.randn(6, 3)

    def blocks():
        return [torch.narrow(table, 0, at, 1).mT.contiguous() @ x for at in range(8)]

    return blocks


@EXAMPLES.positive("contiguous-copy", 5)
def a_projection_made_in_the_test_laid_out_for_each_frame():
    def check():
        head, frame = nn.Linear(16, 16, bias=False), torch.rand(2, 16)
        for _ in range(6):
            frame = (frame @ head.weight.t().contiguous()).tanh()  # <- here

    return check


@EXAMPLES.near_miss("contiguous-copy")
def heads_of_a_parameter_made_in_the_test_laid_out_once_each():
    def check():
        heads, x = nn.Parameter(torch.rand(6, 8, 4)), torch.rand(3, 8)
        return [x @ head.t().contiguous().t() for head in heads]

    return check


@EXAMPLES.near_miss("contiguous-copy", cpu_share=0.02)
def a_table_laid_out_in_each_layer_with_a_higher_threshold():
    return a_table_laid_out_in_each_layer_of_small_images()
