"""Labelled examples of gradients that are filled with zeros."""

from __future__ import annotations

import torch
from labelled.case import Examples
from support.trace_builder import TraceBuilder
from torch import nn

EXAMPLES = Examples()


def network():
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


# ---------------------------------------------------------------------------------- grad-not-none


def resetting(zero_grad, model=None, batch=None):
    """Two training steps that each end with ``zero_grad(model, optimizer)``."""
    model = model or network()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    batch = torch.rand(5, 3) if batch is None else batch

    def steps():
        for _ in range(2):
            model(batch).sum().backward()
            optimizer.step()
            zero_grad(model, optimizer)

    return steps


@EXAMPLES.positive("grad-not-none")
def an_optimizer_that_fills_in_one_go():
    return resetting(lambda _, optimizer: optimizer.zero_grad(set_to_none=False))  # <- here


@EXAMPLES.positive("grad-not-none")
def an_optimizer_that_fills_one_by_one():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.rand(5, 3)

    def step():
        optimizer.zero_grad(set_to_none=False)  # <- here
        model(batch).sum().backward()

    return step


@EXAMPLES.positive("grad-not-none")
def a_module_that_fills():
    return resetting(lambda model, _: model.zero_grad(set_to_none=False))  # <- here


@EXAMPLES.positive("grad-not-none")
def a_module_that_fills_before_the_forward_pass():
    model = network()
    batch = torch.rand(5, 3)

    def step():
        model.zero_grad(set_to_none=False)  # <- here
        model(batch).sum().backward()

    return step


@EXAMPLES.positive("grad-not-none", 2)
def a_module_and_its_optimizer():
    def both(model, optimizer):
        optimizer.zero_grad(set_to_none=False)  # <- here
        model.zero_grad(set_to_none=False)  # <- here

    return resetting(both)


@EXAMPLES.positive("grad-not-none", 3)
def three_steps():
    model = network()
    batch = torch.rand(5, 3)

    def steps():
        for _ in range(3):
            model.zero_grad(set_to_none=False)  # <- here
            model(batch).sum().backward()

    return steps


@EXAMPLES.positive("grad-not-none")
def gradients_of_two_passes_that_are_added_up():
    model = network()
    batch = torch.rand(5, 3)

    def steps():
        for _ in range(2):
            for part in batch.split(3):
                model(part).sum().backward()
            model.zero_grad(set_to_none=False)  # <- here

    return steps


@EXAMPLES.positive("grad-not-none")
def one_of_two_models():
    first, second = network(), nn.Linear(3, 7)
    batch = torch.rand(5, 3)

    def steps():
        for _ in range(2):
            first(batch).sum().backward()
            second(batch).sum().backward()
            first.zero_grad(set_to_none=False)  # <- here
            second.zero_grad()

    return steps


@EXAMPLES.positive("grad-not-none")
def gradients_that_are_zeroed_by_hand():
    def by_hand(model, _):
        for parameter in model.parameters():
            parameter.grad.zero_()  # <- here

    return resetting(by_hand)


@EXAMPLES.positive("grad-not-none", 2)
def a_trace_of_both_ways_on_a_device():
    trace = TraceBuilder("NVIDIA H200")
    with trace.annotation("Optimizer.zero_grad#SGD.zero_grad"):
        for shape in ([4, 3], [4]):
            with trace.op("aten::zero_", [shape]), trace.op("aten::fill_", [shape, []]):
                trace.launch("fill_kernel")
    with (
        trace.annotation("Optimizer.zero_grad#SGD.zero_grad"),
        trace.op("aten::_foreach_zero_", [[[4, 3], [4]]]),
    ):
        trace.launch("multi_tensor_apply_kernel")
    return trace


def cleaned_up(clean):
    """One training step, and then ``clean(model, optimizer)``."""
    model, batch = network(), torch.rand(5, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)

    def step():
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        clean(model, optimizer)

    return step


@EXAMPLES.near_miss("grad-not-none")
def an_optimizer_that_fills_after_the_last_backward_pass():
    return cleaned_up(lambda _, optimizer: optimizer.zero_grad(set_to_none=False))


@EXAMPLES.near_miss("grad-not-none")
def a_module_that_fills_after_the_last_backward_pass():
    return cleaned_up(lambda model, _: model.zero_grad(set_to_none=False))


@EXAMPLES.near_miss("grad-not-none")
def gradients_that_are_made_anew_after_the_last_backward_pass():
    def clean(model, _):
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)

    return cleaned_up(clean)


@EXAMPLES.near_miss("grad-not-none")
def gradients_that_are_zeroed_by_hand_after_the_last_backward_pass():
    return cleaned_up(lambda model, _: [p.grad.zero_() for p in model.parameters()])


@EXAMPLES.near_miss("grad-not-none")
def an_optimizer_as_it_is():
    return resetting(lambda _, optimizer: optimizer.zero_grad())


@EXAMPLES.near_miss("grad-not-none")
def a_module_as_it_is():
    return resetting(lambda model, _: model.zero_grad())


@EXAMPLES.near_miss("grad-not-none")
def nothing_to_fill():
    def twice(_, optimizer):
        optimizer.zero_grad()
        optimizer.zero_grad(set_to_none=False)

    return resetting(twice)


@EXAMPLES.near_miss("grad-not-none")
def a_cache_that_is_cleared():
    keys, values = torch.ones(2, 8, 4), torch.ones(2, 8, 4)

    def clear(*_):
        keys.zero_()
        values.zero_()

    return resetting(clear)


@EXAMPLES.near_miss("grad-not-none")
def metrics_of_the_shape_of_a_parameter():
    hits, total = torch.ones(4), torch.ones(())

    def reset(*_):
        hits.zero_()
        total.zero_()

    return resetting(reset)


@EXAMPLES.near_miss("grad-not-none")
def statistics_of_a_batch_norm():
    model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4))
    return resetting(lambda model, _: model[1].reset_running_stats(), model)


@EXAMPLES.near_miss("grad-not-none")
def new_tensors_of_zeros():
    def make(model, _):
        for parameter in model.parameters():
            torch.zeros_like(parameter)
            parameter.new_zeros(parameter.shape)

    return resetting(make)


@EXAMPLES.near_miss("grad-not-none")
def zeros_within_a_backward_pass():
    model = nn.Sequential(nn.Embedding(6, 3), nn.LayerNorm(3), nn.Linear(3, 2))
    return resetting(lambda _, optimizer: optimizer.zero_grad(), model, torch.tensor([1, 4]))


@EXAMPLES.near_miss("grad-not-none")
def parameters_that_are_initialised():
    def initialise(model, _):
        nn.init.zeros_(model[0].bias)
        nn.init.ones_(model[0].weight)
        nn.init.zeros_(model[2].bias)

    return resetting(initialise)


@EXAMPLES.near_miss("grad-not-none")
def buffers_without_any_backward_pass():
    buffers = [torch.ones(4, 3), torch.ones(4)]
    return lambda: [buffer.zero_() for buffer in buffers]


# ------------------------------------------------------------------------------ by hand, or nearly


class Trainer:
    """Steps with whatever resets its gradients."""

    def __init__(self, reset, model=None):
        self.model, self.reset = model or network(), reset
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, foreach=True)
        self.batch = torch.rand(5, 3)

    def fit(self, steps=2):
        for _ in range(steps):
            self.reset(list(self.model.parameters()))
            self.model(self.batch).square().mean().backward()
            self.optimizer.step()


@EXAMPLES.positive("grad-not-none", 2)
def gradients_that_are_filled_with_a_number():
    def reset(parameters):
        for p in parameters:
            if p.grad is not None:
                p.grad.data.fill_(0)  # <- here

    return Trainer(reset).fit


@EXAMPLES.positive("grad-not-none", 2)
def a_list_of_gradients():
    def reset(parameters):
        gradients = [p.grad for p in parameters if p.grad is not None]
        if gradients:
            torch._foreach_zero_(gradients)  # <- here

    return Trainer(reset).fit


@EXAMPLES.positive("grad-not-none", 2)
def gradients_that_are_made_anew():
    def reset(parameters):
        for p in parameters:
            p.grad = torch.zeros_like(p)  # <- here

    return Trainer(reset).fit


@EXAMPLES.positive("grad-not-none", 2)
def gradients_that_are_multiplied_by_zero():
    def reset(parameters):
        for p in parameters:
            if p.grad is not None:
                p.grad *= 0  # <- here

    return Trainer(reset).fit


@EXAMPLES.positive("grad-not-none", 2)
def a_list_of_gradients_that_is_multiplied():
    def reset(parameters):
        if parameters[0].grad is not None:
            torch._foreach_mul_([p.grad for p in parameters], 0.0)  # <- here

    return Trainer(reset).fit


@EXAMPLES.positive("grad-not-none", 2)
def gradients_that_are_assigned_to():
    def reset(parameters):
        for p in parameters:
            if p.grad is not None:
                p.grad[...] = 0  # <- here

    return Trainer(reset).fit


@EXAMPLES.positive("grad-not-none", 3)
def an_optimizer_of_ones_own():
    class Descent:
        def __init__(self, parameters, lr):
            self.groups = [{"params": list(parameters), "lr": lr}]

        @torch.no_grad()
        def step(self):
            for group in self.groups:
                for p in group["params"]:
                    p.sub_(p.grad, alpha=group["lr"])

        def zero_grad(self):
            for group in self.groups:
                [p.grad.zero_() for p in group["params"]]  # <- here

    model, batch = network(), torch.rand(5, 3)
    optimizer = Descent(model.parameters(), 0.1)

    def fit():
        for _ in range(4):
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    return fit


@EXAMPLES.positive("grad-not-none", 4)
def a_line_that_is_fitted_by_hand():
    x = torch.rand(8)
    slope = torch.rand((), requires_grad=True)

    def fit():
        for _ in range(5):
            (slope * x - 2 * x).square().mean().backward()
            with torch.no_grad():
                slope.sub_(0.1 * slope.grad)
            slope.grad.zero_()  # <- here

    return fit


def one_gradient():
    x = torch.rand(3, requires_grad=True)

    def check():
        x.square().sum().backward()
        x.grad.zero_()  # <- here
        x.exp().sum().backward()

    return check


@EXAMPLES.positive("grad-not-none", gradients=1)
def one_gradient_with_a_lower_threshold():
    return one_gradient()


@EXAMPLES.near_miss("grad-not-none", gradients=10)
def few_gradients_with_a_higher_threshold():
    return gradients_that_are_filled_with_a_number()


@EXAMPLES.near_miss("grad-not-none")
def one_gradient_that_is_zeroed_once():
    return one_gradient()


@EXAMPLES.positive("grad-not-none")
def two_gradients_that_are_zeroed_once():
    x, y = torch.rand(3, requires_grad=True), torch.rand(4, requires_grad=True)

    def both():
        (x.square().sum() + y.sum()).backward()
        for one in (x, y):
            one.grad.zero_()  # <- here
        (x.exp().sum() + y.exp().sum()).backward()

    return both


@EXAMPLES.near_miss("grad-not-none")
def averages_of_gradients_that_are_reset():
    averages = [torch.zeros_like(p) for p in network().parameters()]

    def reset(parameters):
        for average, p in zip(averages, parameters, strict=True):
            if p.grad is not None:
                average.add_(p.grad)
            average.zero_()
            p.grad = None

    return Trainer(reset).fit


@EXAMPLES.near_miss("grad-not-none")
def weights_that_begin_as_zeros():
    def reset(parameters):
        with torch.no_grad():
            for p in parameters:
                p.zero_()
                p.grad = None

    return Trainer(reset).fit


@EXAMPLES.near_miss("grad-not-none")
def weights_that_are_pruned():
    model = network()
    masks = [(torch.rand_like(p) > 0.5).float() for p in model.parameters()]

    def reset(parameters):
        for p, mask in zip(parameters, masks, strict=True):
            p.data.mul_(mask)
            if p.grad is not None:
                p.grad.mul_(mask)
            p.grad = None

    return Trainer(reset, model).fit


@EXAMPLES.near_miss("grad-not-none")
def a_row_of_a_table_that_stays():
    table, ids = nn.Embedding(6, 3), torch.arange(5)
    head = nn.Linear(3, 2)
    optimizer = torch.optim.SGD([*table.parameters(), *head.parameters()], lr=0.1, foreach=True)

    def fit():
        for _ in range(3):
            optimizer.zero_grad()
            head(table(ids)).sum().backward()
            table.weight.grad[0].zero_()
            head.weight.grad[:, :1] = 0
            optimizer.step()

    return fit


@EXAMPLES.near_miss("grad-not-none")
def layers_that_do_not_learn_yet():
    model, batch = network(), torch.rand(5, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=True)

    def fit():
        for _ in range(3):
            optimizer.zero_grad()
            model(batch).sum().backward()
            for p in model[0].parameters():
                p.grad.zero_()
            optimizer.step()

    return fit


@EXAMPLES.near_miss("grad-not-none")
def momentum_that_is_made_at_first():
    class Heavy:
        def __init__(self, parameters):
            self.parameters, self.velocity = list(parameters), {}

        @torch.no_grad()
        def step(self):
            for p in self.parameters:
                velocity = self.velocity.setdefault(p, torch.zeros_like(p))
                velocity.mul_(0.9).add_(p.grad)
                p.sub_(velocity, alpha=0.1)
                p.grad = None

    model, batch = network(), torch.rand(5, 3)

    def fit():
        optimizer = Heavy(model.parameters())
        for _ in range(2):
            model(batch).sum().backward()
            optimizer.step()

    return fit


@EXAMPLES.near_miss("grad-not-none")
def gradients_that_are_turned_around():
    model, batch = network(), torch.rand(5, 3)

    def ascend():
        for _ in range(3):
            model(batch).sum().backward()
            for p in model.parameters():
                p.grad *= -1
                p.data.sub_(p.grad, alpha=0.1)
                p.grad = None

    return ascend


@EXAMPLES.near_miss("grad-not-none")
def gradients_that_are_scaled_and_clipped():
    model, batch = network(), torch.rand(5, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)

    def fit():
        for _ in range(3):
            optimizer.zero_grad()
            model(batch).sum().backward()
            for p in model.parameters():
                p.grad.mul_(2)
                p.grad.clamp_(-1, 1)
            optimizer.step()

    return fit


@EXAMPLES.near_miss("grad-not-none")
def a_buffer_for_all_gradients():
    model, batch = network(), torch.rand(5, 3)
    buffers = {p: torch.zeros_like(p) for p in model.parameters()}

    def fit():
        for _ in range(2):
            for buffer in buffers.values():
                buffer.zero_()
            for part in batch.split(3):
                model(part).sum().backward()
                for p, buffer in buffers.items():
                    buffer.add_(p.grad)
                    p.grad = None

    return fit


@EXAMPLES.positive("grad-not-none", 2)
def a_list_of_more_gradients_than_torch_writes_the_shapes_of():
    def reset(parameters):
        gradients = [p.grad for p in parameters if p.grad is not None]
        if gradients:
            torch._foreach_zero_(gradients)  # <- here

    model = nn.Sequential(nn.Linear(3, 2), *[nn.Linear(2, 2) for _ in range(20)])
    return Trainer(reset, model).fit


@EXAMPLES.near_miss("grad-not-none")
def a_list_of_many_averages():
    model = nn.Sequential(nn.Linear(3, 2), *[nn.Linear(2, 2) for _ in range(20)])
    averages = [torch.ones_like(p) for p in model.parameters()]

    def reset(parameters):
        torch._foreach_zero_(averages)
        for p in parameters:
            p.grad = None

    return Trainer(reset, model).fit
