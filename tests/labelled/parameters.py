"""Labelled examples of the rule about loops over a model's parameters."""

from __future__ import annotations

import copy
from itertools import pairwise

import torch
from labelled.case import Examples
from support.trace_builder import TraceBuilder
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils._pytree import tree_map

EXAMPLES = Examples()


def network(width=6, layers=6, bias=True):
    """A perceptron with this many layers."""
    sizes = [3, *[width] * (layers - 1), 2]
    return nn.Sequential(*(nn.Linear(a, b, bias=bias) for a, b in pairwise(sizes)))


def gradients(model):
    """The same model, with gradients."""
    model(torch.rand(5, 3)).square().mean().backward()
    return model


# --------------------------------------------------------------------------------- averages


class ModelEma:
    """Keeps an average of a model's weights."""

    def __init__(self, model, decay=0.999):
        self.module, self.decay = copy.deepcopy(model).eval(), decay

    @torch.no_grad()
    def update(self, model):
        for ours, theirs in zip(self.module.parameters(), model.parameters(), strict=True):
            ours.mul_(self.decay).add_(theirs, alpha=1 - self.decay)  # <- here


@EXAMPLES.positive("per-parameter-loop")
def an_average_of_the_weights_in_a_training_step():
    model = network()
    ema = ModelEma(model)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    x = torch.rand(5, 3)

    def step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        ema.update(model)

    return step


def averaged(size):
    """A training step with images of this size, and an average of the weights."""
    model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(6)))
    ema = ModelEma(model)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    images = torch.rand(2, size, size, 3)

    def step():
        optimizer.zero_grad()
        model(images).square().mean().backward()
        optimizer.step()
        ema.update(model)

    return step


@EXAMPLES.positive("per-parameter-loop")
def an_average_of_the_weights_beside_small_images():
    return averaged(175)


@EXAMPLES.near_miss("per-parameter-loop")
def an_average_of_the_weights_is_a_trifle_beside_large_images():
    return averaged(190)


@EXAMPLES.positive("per-parameter-loop", 3)
def an_average_over_the_state_with_buffers():
    model = nn.Sequential(
        *(m for n in (3, 4, 5) for m in (nn.Conv2d(n, n + 1, 1, bias=False), nn.BatchNorm2d(n + 1)))
    )
    target, x = copy.deepcopy(model), torch.rand(2, 3, 2, 2)

    def update(tau=0.01):
        with torch.no_grad():
            state = model.state_dict()
            for name, value in target.state_dict().items():
                if value.is_floating_point():
                    value.copy_((1 - tau) * value + tau * state[name])  # <- here

    def steps():
        for _ in range(3):
            model(x).mean().backward()
            update()

    return steps


@EXAMPLES.positive("per-parameter-loop")
def shadow_weights_that_are_made_anew():
    model = network()
    shadow = {name: p.detach().clone() for name, p in model.named_parameters()}

    def update():
        for name, p in model.named_parameters():
            average = (1.0 - 0.99) * p.data + 0.99 * shadow[name]  # <- here
            shadow[name] = average.clone()

    def step():
        model(torch.rand(5, 3)).sum().backward()
        update()

    return step


@EXAMPLES.positive("per-parameter-loop")
def polyak_averaging_of_a_target_network():
    online, target = network(), network()

    @torch.no_grad()
    def soft_update(tau):
        for source, goal in zip(online.parameters(), target.parameters(), strict=True):
            goal.data.lerp_(source.data, tau)  # <- here

    def learn():
        q = online(torch.rand(4, 3)).max(1).values
        with torch.no_grad():
            goal = target(torch.rand(4, 3)).max(1).values
        F.mse_loss(q, goal).backward()
        soft_update(0.005)

    return learn


@EXAMPLES.positive("per-parameter-loop")
def an_averaged_model_with_a_function_for_one():
    model = network()
    average = AveragedModel(model, avg_fn=lambda a, p, _: 0.9 * a + 0.1 * p)  # <- here
    average.update_parameters(model)

    def step():
        model(torch.rand(5, 3)).sum().backward()
        average.update_parameters(model)  # <- here

    return step


@EXAMPLES.near_miss("per-parameter-loop")
def an_averaged_model_with_a_function_for_all():
    model = network()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    average.update_parameters(model)

    def step():
        model(torch.rand(5, 3)).sum().backward()
        average.update_parameters(model)

    return step


@EXAMPLES.near_miss("per-parameter-loop")
def an_average_of_the_weights_by_lists():
    model = network()
    averages = [p.detach().clone() for p in model.parameters()]

    def step():
        model(torch.rand(5, 3)).sum().backward()
        torch._foreach_lerp_(averages, [p.detach() for p in model.parameters()], 0.01)

    return step


@EXAMPLES.near_miss("per-parameter-loop")
def an_average_of_large_weights():
    model = network(width=300, layers=6)
    ema, x = ModelEma(model), torch.rand(2, 3)

    def step():
        model(x).sum().backward()
        ema.update(model)

    return step


@EXAMPLES.positive("per-parameter-loop", cpu_elements=20)
def an_average_of_weights_as_large_as_the_threshold():
    model = network(width=6)  # 240 elements in 12 parameters: 18, 6, 36, 6 …
    ema = ModelEma(model)
    return lambda: (model(torch.rand(5, 3)).sum().backward(), ema.update(model))


@EXAMPLES.near_miss("per-parameter-loop", cpu_elements=16)
def an_average_of_weights_larger_than_the_threshold():
    model = network(width=6)
    ema = ModelEma(model)
    return lambda: (model(torch.rand(5, 3)).sum().backward(), ema.update(model))


# ----------------------------------------------------------------------- updates and penalties


@EXAMPLES.positive("per-parameter-loop", 2)
def gradient_descent_by_hand():
    model, x = network(), torch.rand(5, 3)

    def train():
        for _ in range(2):
            loss = model(x).square().mean()
            grads = torch.autograd.grad(loss, list(model.parameters()))
            with torch.no_grad():
                for p, g in zip(model.parameters(), grads, strict=True):
                    p.sub_(0.1 * g)  # <- here

    return train


@EXAMPLES.positive("per-parameter-loop")
def the_inner_step_of_meta_learning():
    model, x = network(), torch.rand(5, 3)

    def adapt():
        names, weights = zip(*model.named_parameters(), strict=True)
        loss = torch.func.functional_call(model, dict(model.named_parameters()), x).mean()
        grads = torch.autograd.grad(loss, weights, create_graph=True)
        fast = {n: w - 0.01 * g for n, w, g in zip(names, weights, grads, strict=True)}  # <- here
        torch.func.functional_call(model, fast, x).square().mean().backward()

    return adapt


@EXAMPLES.positive("per-parameter-loop")
def weight_decay_apart_from_the_optimizer():
    model = network()

    def step():
        model(torch.rand(5, 3)).sum().backward()
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(1 - 1e-4)  # <- here

    return step


@EXAMPLES.positive("per-parameter-loop")
def gradients_of_workers_that_are_averaged():
    model = gradients(network())

    def average(world=4):
        model(torch.rand(5, 3)).sum().backward()
        for p in model.parameters():
            if p.grad is not None:
                p.grad.data.div_(world)  # <- here

    return average


@EXAMPLES.positive("per-parameter-loop")
def weights_of_layers_of_one_shape_without_biases():
    model = nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(10)))
    ema = ModelEma(model)
    return lambda: (model(torch.rand(2, 4)).sum().backward(), ema.update(model))


@EXAMPLES.positive("per-parameter-loop")
def a_penalty_on_the_weights():
    model, x = network(), torch.rand(5, 3)

    def step():
        loss = model(x).square().mean()
        loss = loss + 1e-3 * sum(p.pow(2).sum() for p in model.parameters())  # <- here
        loss.backward()

    return step


@EXAMPLES.positive("per-parameter-loop")
def norms_of_gradients_that_are_logged():
    model = network()

    def step():
        model(torch.rand(5, 3)).square().mean().backward()
        total = 0.0
        for p in model.parameters():
            if p.grad is not None:
                total += p.grad.detach().norm(2).item() ** 2  # <- here
        return total**0.5

    return step


@EXAMPLES.positive("per-parameter-loop", parameters=4)
def as_many_parameters_as_the_threshold():
    model = network(layers=2)
    ema = ModelEma(model)
    return lambda: (model(torch.rand(5, 3)).sum().backward(), ema.update(model))


@EXAMPLES.near_miss("per-parameter-loop", parameters=5)
def fewer_parameters_than_the_threshold():
    model = network(layers=2)
    ema = ModelEma(model)
    return lambda: (model(torch.rand(5, 3)).sum().backward(), ema.update(model))


@EXAMPLES.near_miss("per-parameter-loop")
def gradients_that_torch_clips():
    model = network()

    def step():
        model(torch.rand(5, 3)).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)

    return step


@EXAMPLES.near_miss("per-parameter-loop")
def values_of_gradients_that_torch_clips():
    model = network()

    def step():
        model(torch.rand(5, 3)).square().mean().backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.01, foreach=True)

    return step


# ---------------------------------------------------------------------------- custom optimizers


class Lion(torch.optim.Optimizer):
    """Goes by the sign of its momentum."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            first, second = group["betas"]
            for p in filter(lambda p: p.grad is not None, group["params"]):
                state = self.state[p]
                if "average" not in state:
                    state["average"] = torch.zeros_like(p)
                average = state["average"]
                p.mul_(1 - group["lr"] * group["weight_decay"])  # <- here
                update = average.clone().mul_(first).add_(p.grad, alpha=1 - first).sign_()
                p.add_(update, alpha=-group["lr"])
                average.mul_(second).add_(p.grad, alpha=1 - second)


class Momentum(torch.optim.Optimizer):
    """Gradient descent with a heavy ball."""

    def __init__(self, params, lr=0.1, by_lists=False):
        super().__init__(params, {"lr": lr})
        self.by_lists = by_lists

    @torch.no_grad()
    def step(self, closure=None):
        params = [p for group in self.param_groups for p in group["params"]]
        lr = self.param_groups[0]["lr"]
        balls = [self.state[p].setdefault("ball", torch.zeros_like(p)) for p in params]
        grads = [p.grad for p in params]
        if self.by_lists:
            torch._foreach_mul_(balls, 0.9)
            torch._foreach_add_(balls, grads)
            torch._foreach_add_(params, balls, alpha=-lr)
            return
        for p, ball, grad in zip(params, balls, grads, strict=True):
            ball.mul_(0.9).add_(grad)  # <- here
            p.add_(ball, alpha=-lr)


def trained(model, optimizer, x):
    def step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


@EXAMPLES.positive("per-parameter-loop")
def an_optimizer_of_ones_own():
    model = network()
    return trained(model, Lion(model.parameters()), torch.rand(5, 3))


@EXAMPLES.positive("per-parameter-loop", 2)
def two_steps_of_a_heavy_ball():
    model = network(layers=5)
    step = trained(model, Momentum(model.parameters()), torch.rand(5, 3))
    return lambda: (step(), step())


@EXAMPLES.near_miss("per-parameter-loop")
def an_optimizer_of_ones_own_that_takes_lists():
    model = network()
    return trained(model, Momentum(model.parameters(), by_lists=True), torch.rand(5, 3))


@EXAMPLES.near_miss("per-parameter-loop")
def an_optimizer_of_ones_own_for_few_parameters():
    model = network(layers=3)
    return trained(model, Lion(model.parameters()), torch.rand(5, 3))


@EXAMPLES.near_miss("per-parameter-loop")
def an_optimizer_of_ones_own_that_makes_updates_orthogonal():
    class Orthogonal(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {"lr": 0.1})

        @torch.no_grad()
        def step(self, closure=None):
            for p in self.param_groups[0]["params"]:
                g = p.grad / p.grad.norm().clamp_(min=1e-6)
                for _ in range(2):
                    g = 1.5 * g - 0.5 * g @ (g.T @ g)
                p.add_(g, alpha=-0.1)

    model = network(bias=False, layers=11)
    return trained(model, Orthogonal(model.parameters()), torch.rand(5, 3))


@EXAMPLES.near_miss("per-parameter-loop", also="single-tensor-optimizer")
def an_optimizer_of_torchs():
    model = network()
    return trained(model, torch.optim.Adam(model.parameters()), torch.rand(5, 3))


# ------------------------------------------------------------------------------ what is none


@EXAMPLES.near_miss("per-parameter-loop")
def weights_that_are_initialised():
    def make():
        model = network(layers=8)
        for name, p in model.named_parameters():
            if name.endswith("weight"):
                nn.init.trunc_normal_(p, std=0.02)
            else:
                nn.init.zeros_(p)
        return model

    return make


@EXAMPLES.near_miss("per-parameter-loop", also="missing-no-grad")
def weights_that_are_scaled_before_the_model_runs():
    def make():
        model = network(layers=8)
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(0.1)
        return model(torch.rand(2, 3))

    return make


@EXAMPLES.near_miss("per-parameter-loop")
def a_state_that_is_loaded():
    model, best = network(), copy.deepcopy(network().state_dict())
    return lambda: model.load_state_dict(best)


@EXAMPLES.near_miss("per-parameter-loop")
def a_test_that_compares_two_models():
    first = network()
    second = copy.deepcopy(first)

    def check():
        for a, b in zip(first.parameters(), second.parameters(), strict=True):
            assert torch.allclose(a, b)
            assert (a - b).norm().item() < 1e-6
            assert (a - b).abs().sum().item() == 0

    return check


@EXAMPLES.near_miss("per-parameter-loop")
def a_test_that_looks_for_gradients():
    model = network()

    def check():
        model(torch.rand(5, 3)).square().mean().backward()
        return [p.grad is not None and bool(p.grad.norm() >= 0) for p in model.parameters()]

    return check


@EXAMPLES.near_miss("per-parameter-loop")
def noise_on_the_gradients():
    model = network()

    def step():
        model(torch.rand(5, 3)).square().mean().backward()
        for p in model.parameters():
            p.grad.add_(torch.randn_like(p.grad), alpha=0.01)

    return step


@EXAMPLES.near_miss("per-parameter-loop")
def weights_that_are_quantised_layer_by_layer():
    model = network(layers=10)
    x = torch.rand(2, 3)

    @torch.no_grad()
    def run():
        y = x
        for layer in model:
            scale = layer.weight.abs().amax() / 127
            weight = (layer.weight / scale).round().clamp_(-128, 127) * scale
            y = F.linear(y, weight, layer.bias)
        return y

    return run


@EXAMPLES.near_miss("per-parameter-loop")
def two_fields_that_are_stepped_in_time():
    field, edge = torch.rand(8, 8), torch.rand(8)

    def simulate():
        for _ in range(12):
            field.mul_(0.99).add_(0.01)
            edge.mul_(0.99).add_(0.01)

    return simulate


@EXAMPLES.near_miss("per-parameter-loop")
def features_of_a_pyramid_that_are_normalised():
    features = [torch.rand(1, 4, n, n) for n in range(2, 14)]

    def scale():
        for feature in features:
            feature.sub_(0.5).div_(0.25)

    return scale


@EXAMPLES.near_miss("per-parameter-loop")
def losses_that_are_added_up():
    losses = [torch.rand(()) for _ in range(12)]
    totals = [torch.zeros(()) for _ in range(12)]

    def log():
        for total, loss in zip(totals, losses, strict=True):
            total.add_(loss)

    return log


@EXAMPLES.near_miss("per-parameter-loop")
def a_loss_that_is_the_sum_of_all_weights():
    model = network()

    def step():
        sum(p.sum() for p in model.parameters()).backward()

    return step


# ------------------------------------------------------------------------------- on a device


def device_loop(names, together=False, layers=False):
    trace = TraceBuilder("NVIDIA H200")
    shapes = [shape for n in (64, 128, 256, 512, 1024, 2048) for shape in ([n, n], [n])]
    if together:
        with trace.op(f"aten::_foreach_{names[0]}", [shapes, shapes]):
            trace.launch("multi_tensor_apply_kernel")
        return trace
    for weight, bias in zip(shapes[::2], shapes[1::2], strict=True) if layers else ():
        trace.op("aten::linear", [[8, bias[0]], weight, bias])
    for shape in shapes:
        for name in names:
            with trace.op(f"aten::{name}", [shape, shape]):
                trace.launch(f"{name}_kernel")
    return trace


@EXAMPLES.positive("per-parameter-loop")
def a_trace_of_an_average_of_large_weights_on_a_device():
    return device_loop(["mul_", "add_"])


@EXAMPLES.positive("per-parameter-loop")
def a_trace_of_norms_on_a_device():
    return device_loop(["linalg_vector_norm"], layers=True)


@EXAMPLES.near_miss("per-parameter-loop")
def a_trace_of_norms_of_nobody_knows_what_on_a_device():
    return device_loop(["linalg_vector_norm"])


@EXAMPLES.near_miss("per-parameter-loop")
def a_trace_of_copies_on_a_device():
    return device_loop(["copy_"])


@EXAMPLES.near_miss("per-parameter-loop")
def a_trace_of_lists_on_a_device():
    return device_loop(["lerp_"], together=True)


# ----------------------------------------------------------------------------- new data


@EXAMPLES.positive("per-parameter-loop")
def weights_whose_data_is_set_to_less_of_their_gradient():
    model, x = network(), torch.rand(5, 3)

    def step(lr=0.1):
        model(x).square().mean().backward()
        for p in model.parameters():
            p.data = p.data - lr * p.grad  # <- here

    return step


@EXAMPLES.positive("per-parameter-loop", 2)
def weights_whose_data_is_decayed_and_gradients_that_are_averaged():
    model, x = network(), torch.rand(5, 3)

    def step(workers=4):
        model(x).square().mean().backward()
        for p in model.parameters():
            p.grad.data /= workers  # <- here
        torch.ones(3).sum()
        for p in model.parameters():
            p.data -= 0.1 * p.grad  # <- here

    return step


@EXAMPLES.positive("per-parameter-loop")
def deltas_of_clients_that_a_server_adds():
    server, client = network(), network()

    def aggregate():
        client(torch.rand(4, 3)).mean().backward()
        server(torch.rand(4, 3))
        for ours, theirs in zip(server.parameters(), client.parameters(), strict=True):
            ours.data = ours.data + theirs.data  # <- here

    return aggregate


@EXAMPLES.near_miss("per-parameter-loop")
def a_model_whose_data_is_moved_to_another_dtype():
    model, x = network(), torch.rand(5, 3)

    def check():
        model(x).square().mean().backward()
        for p in model.parameters():
            p.data = p.data.double()
        for p in model.parameters():
            p.data = p.data.float()

    return check


@EXAMPLES.near_miss("per-parameter-loop")
def weights_whose_data_is_swapped_for_the_averages():
    model = network()
    averages = [p.detach().clone() for p in model.parameters()]

    def evaluate():
        kept = [p.data for p in model.parameters()]
        for p, average in zip(model.parameters(), averages, strict=True):
            p.data = average
        with torch.no_grad():
            model(torch.rand(2, 3))
        for p, own in zip(model.parameters(), kept, strict=True):
            p.data = own

    return evaluate


# ----------------------------------------------------------------------------- loops in a row


@EXAMPLES.positive("per-parameter-loop", 3)
def moments_and_weights_made_by_one_list_after_the_other():
    model, x = network(), torch.rand(5, 3)
    weights = [p.detach().clone() for p in model.parameters()]
    first, second = ([torch.rand_like(w) for w in weights] for _ in range(2))

    def update():
        grads = torch.autograd.grad(model(x).square().mean(), list(model.parameters()))
        ms = [0.9 * m + 0.1 * g for m, g in zip(first, grads, strict=True)]  # <- here
        vs = [0.99 * v + 0.01 * g * g for v, g in zip(second, grads, strict=True)]  # <- here
        ms = [m / 0.9 for m in ms]
        return [
            w - 0.1 * m / (v.sqrt() + 1e-8)  # <- here
            for w, m, v in zip(weights, ms, vs, strict=True)
        ]

    return update


@EXAMPLES.positive("per-parameter-loop", 2)
def trees_of_weights_that_are_mapped_one_after_the_other():
    model, x = network(), torch.rand(5, 3)
    start = {name: p.detach() for name, p in model.named_parameters()}

    def loss(weights):
        return torch.func.functional_call(model, weights, (x,)).square().mean()

    def train():
        grads = torch.func.grad(loss)(start)
        clipped = tree_map(lambda g: g.clamp(-1, 1).mul(0.5), grads)  # <- here
        return tree_map(lambda w, g: w - 0.1 * g, start, clipped)  # <- here

    return train


@EXAMPLES.positive("per-parameter-loop", 2)
def two_lists_of_weights_of_one_shape():
    model = nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(12)))
    x = torch.rand(2, 4)

    def step():
        model(x).square().mean().backward()
        with torch.no_grad():
            moved = [0.9 * p + 0.1 for p in model.parameters()]  # <- here
            for p, goal in zip(model.parameters(), moved, strict=True):
                p.sub_(goal).abs_().neg_()  # <- here

    return step


@EXAMPLES.near_miss("per-parameter-loop")
def short_loops_of_two_models_in_a_row():
    first, second = network(layers=3), network(layers=4)

    def step():
        (first(torch.rand(2, 3)) + second(torch.rand(2, 3))).square().mean().backward()
        with torch.no_grad():
            for p in first.parameters():
                p.sub_(p.grad)
            for p in second.parameters():
                p.mul_(0.9).sub_(p.grad, alpha=0.1)

    return step


# ----------------------------------------------------------------------------- no model's tensors


@EXAMPLES.near_miss("per-parameter-loop")
def episodes_of_many_lengths_that_are_normalised():
    episodes = [{"obs": torch.rand(5 + i, 8), "reward": torch.rand(5 + i)} for i in range(6)]

    def prepare():
        for episode in episodes:
            for key in ("obs", "reward"):
                episode[f"{key}_n"] = (episode[key] - 0.1) / 2
                del episode[f"{key}_n"]

    return prepare


@EXAMPLES.near_miss("per-parameter-loop", also="missing-no-grad")
def targets_that_are_rescaled_beside_a_model():
    model, x = network(), torch.rand(5, 3)
    targets = [{"boxes": torch.rand(i + 1, 4), "areas": torch.rand(i + 1)} for i in range(6)]

    def collate():
        return [{k: (v - 0.1) / 2 for k, v in target.items()} for target in targets], model(x)

    return collate


@EXAMPLES.near_miss("per-parameter-loop")
def observations_of_the_shapes_of_a_layer():
    model, x = nn.Linear(8, 16), torch.rand(5, 8)
    episodes = [(torch.rand(16, 8), torch.rand(16)) for _ in range(6)]

    def prepare():
        with torch.no_grad():
            return [[(v - 0.1) / 2 for v in episode] for episode in episodes], model(x)

    return prepare


@EXAMPLES.positive("per-parameter-loop")
def a_task_vector_that_is_added_to_a_model():
    base, tuned = network(), network()

    @torch.no_grad()
    def merge():
        tuned(torch.rand(2, 3))
        a, b = base.state_dict(), tuned.state_dict()
        return {k: a[k] + 0.4 * (b[k] - a[k]) for k in a}  # <- here

    return merge


@EXAMPLES.positive("per-parameter-loop")
def three_models_averages_in_one_loop():
    models = [network(layers=3) for _ in range(3)]
    shadows = [[p.detach().clone() for p in m.parameters()] for m in models]

    @torch.no_grad()
    def update():
        x = torch.rand(2, 3)
        for model in models:
            x = F.pad(model(x), (0, 1))
        for model, shadow in zip(models, shadows, strict=True):
            for i, p in enumerate(model.parameters()):
                shadow[i] = 0.9 * shadow[i] + 0.1 * p  # <- here

    return update


@EXAMPLES.positive("per-parameter-loop")
def states_that_are_decayed_in_place():
    states = [torch.rand(*((4 + i, 3) if i % 2 else (4 + i,))) for i in range(12)]

    def forget():
        for state in states:
            state.mul_(0.9).add_(0.1)  # <- here

    return forget
