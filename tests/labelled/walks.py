"""Labelled examples of graphs that a backward pass walks again."""

from __future__ import annotations

import torch
from labelled.case import Examples
from support.trace_builder import TraceBuilder
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it
from torch.utils.checkpoint import checkpoint

EXAMPLES = Examples()


class TwoHeads(nn.Module):
    """What most networks with two tasks look like."""

    def __init__(self, width=4):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, width))
        self.label, self.box = nn.Linear(width, 5), nn.Linear(width, 4)

    def forward(self, x):
        hidden = self.trunk(x).relu()
        return self.label(hidden), self.box(hidden)


X, LABELS, BOXES = torch.rand(6, 3), torch.arange(6) % 5, torch.rand(6, 4)


def losses_of(model, x=X):
    label, box = model(x)
    return F.cross_entropy(label, LABELS), F.smooth_l1_loss(box, BOXES)


def adam(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)


# --------------------------------------------------------------------------------- backward-twice


@EXAMPLES.positive("backward-twice")
def two_losses_of_one_trunk():
    model = TwoHeads()
    optimizer = adam(model)

    def step():
        optimizer.zero_grad()
        of_labels, of_boxes = losses_of(model)
        of_labels.backward(retain_graph=True)
        of_boxes.backward()  # <- here
        optimizer.step()

    return step


@EXAMPLES.positive("backward-twice", 3)
def each_loss_of_a_list():
    model = TwoHeads()
    optimizer = adam(model)

    class Trainer:
        def terms(self):
            of_labels, of_boxes = losses_of(model)
            yield from (of_labels, of_boxes, of_labels * of_boxes, of_boxes.square())

        def step(self):
            optimizer.zero_grad(set_to_none=True)
            for term in self.terms():
                term.backward(retain_graph=True)  # <- here
            optimizer.step()

    return Trainer().step


@EXAMPLES.positive("backward-twice", 2)
def an_actor_and_a_critic_in_each_update():
    body = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh())
    policy, value = nn.Linear(8, 2), nn.Linear(8, 1)
    optimizer = adam(nn.ModuleList([body, policy, value]))
    returns = torch.rand(6)

    def update():
        features = body(X)
        actions = torch.distributions.Categorical(logits=policy(features))
        advantage = returns - value(features).squeeze(-1)
        of_policy = -(actions.log_prob(LABELS % 2) * advantage.detach()).mean()
        of_value = advantage.square().mean()
        optimizer.zero_grad()
        of_policy.backward(retain_graph=True)
        of_value.backward()  # <- here
        optimizer.step()

    return lambda: [update() for _ in range(2)]


@EXAMPLES.positive("backward-twice")
def a_penalty_after_the_loss():
    model = TwoHeads()
    optimizer = adam(model)

    def penalty(prediction):
        return 0.1 * prediction.square().mean()

    def step():
        label, box = model(X)
        F.cross_entropy(label, LABELS).backward(retain_graph=True)
        smooth = penalty(box)
        smooth.backward()  # <- here
        optimizer.step()
        optimizer.zero_grad()

    return step


@EXAMPLES.positive("backward-twice")
def one_loss_by_mistake():
    model = TwoHeads()
    optimizer = adam(model)

    def closure():
        loss = sum(losses_of(model))
        loss.backward(retain_graph=True)
        return loss

    def step():
        optimizer.zero_grad()
        loss = closure()
        loss.backward()  # <- here
        optimizer.step()

    return step


@EXAMPLES.positive("backward-twice", 2)
def a_sequence_whose_graph_grows():
    cell, out, sequence = nn.GRUCell(3, 4), nn.Linear(4, 3), torch.rand(3, 2, 3)
    optimizer = adam(nn.ModuleList([cell, out]))

    def step():
        hidden = torch.zeros(2, 4)
        optimizer.zero_grad()
        for x in sequence:
            hidden = cell(x, hidden)
            F.mse_loss(out(hidden), x).backward(retain_graph=True)  # <- here
        optimizer.step()

    return step


@EXAMPLES.positive("backward-twice")
def gradients_that_are_given():
    model = TwoHeads()
    gradients = [torch.ones(6, 5), torch.ones(6, 4)]

    def step():
        label, box = model(X)
        torch.autograd.backward([label], [gradients[0]], retain_graph=True)
        loss = (box * gradients[1]).sum()
        loss.backward()  # <- here
        for parameter in model.parameters():
            parameter.data.sub_(parameter.grad, alpha=0.1)

    return step


@EXAMPLES.positive("backward-twice")
def with_data_that_are_made_between():
    model = TwoHeads()
    optimizer = adam(model)

    def step():
        optimizer.zero_grad()
        label, box = model(X)
        F.cross_entropy(label, LABELS).backward(retain_graph=True)
        target = torch.where(BOXES > 0.5, BOXES, torch.zeros(()))
        F.l1_loss(box, target).backward()  # <- here
        optimizer.step()

    return step


def trunk_of(length):
    weight, x = torch.rand(3, 3, requires_grad=True), torch.rand(2, 3)

    def step():
        weight.grad = None
        hidden = x * weight[:2]
        for _ in range(length - 2):
            hidden = hidden.sin()
        hidden.sum().backward(retain_graph=True)
        hidden.square().sum().backward()  # <- here

    return step


@EXAMPLES.positive("backward-twice")
def a_trunk_of_some_nodes():
    return trunk_of(4)


@EXAMPLES.near_miss("backward-twice")
def a_trunk_of_a_few_nodes():
    return trunk_of(3)


@EXAMPLES.near_miss("backward-twice")
def one_backward_of_the_sum():
    model = TwoHeads()
    optimizer = adam(model)

    def step():
        optimizer.zero_grad()
        sum(losses_of(model)).backward()
        optimizer.step()

    return step


@EXAMPLES.near_miss("backward-twice")
def gradients_that_are_accumulated_over_batches():
    model = TwoHeads()
    optimizer = adam(model)

    def step():
        optimizer.zero_grad()
        for part in (X, X + 1):
            sum(losses_of(model, part)).backward(retain_graph=True)
        optimizer.step()

    return step


@EXAMPLES.near_miss("backward-twice")
def an_adversary_with_a_graph_of_its_own():
    generator = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3))
    critic = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    of_generator, of_critic = adam(generator), adam(critic)

    def step():
        fake = generator(X)
        of_critic.zero_grad()
        (critic(fake.detach()).mean() - critic(X).mean()).backward()
        of_critic.step()
        of_generator.zero_grad()
        (-critic(fake).mean()).backward()
        of_generator.step()

    return step


@EXAMPLES.near_miss("backward-twice")
def an_adversary_that_steps_between():
    generator = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3), nn.Tanh())
    critic = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    of_generator, of_critic = adam(generator), adam(critic)

    def step():
        fake = generator(X)
        critic(fake).mean().backward(retain_graph=True)
        of_critic.step()
        of_critic.zero_grad()
        (-critic(fake).mean()).backward()
        of_generator.step()
        of_generator.zero_grad()

    return step


@EXAMPLES.near_miss("backward-twice")
def a_penalty_on_the_gradient():
    model, x = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)), X.clone()

    def step():
        x.requires_grad_()
        out = model(x)
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        (out.mean() + slope.square().sum()).backward()

    return step


@EXAMPLES.near_miss("backward-twice")
def a_second_derivative():
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))

    def step():
        model.zero_grad()
        out = model(X).square().mean()
        out.backward(create_graph=True)
        sum(p.grad.square().sum() for p in model.parameters()).backward()

    return step


@EXAMPLES.near_miss("backward-twice")
def a_jacobian():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    return lambda: torch.autograd.functional.jacobian(model, X[0])


@EXAMPLES.near_miss("backward-twice")
def a_gradcheck_of_a_layer():
    model, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double(), X[:2].double()
    x.requires_grad_()
    return lambda: torch.autograd.gradcheck(model, (x,))


@EXAMPLES.near_miss("backward-twice")
def gradients_of_each_task_to_be_compared():
    model = TwoHeads()

    def conflict():
        of_labels, of_boxes = losses_of(model)
        shared = list(model.trunk.parameters())
        first = torch.autograd.grad(of_labels, shared, retain_graph=True)
        second = torch.autograd.grad(of_boxes, shared)
        return [(a * b).sum() for a, b in zip(first, second, strict=True)]

    return conflict


@EXAMPLES.near_miss("backward-twice")
def gradients_that_are_kept_one_by_one():
    model = TwoHeads()

    def each():
        gradients = []
        for loss in losses_of(model):
            model.zero_grad()
            loss.backward(retain_graph=True)
            gradients.append([p.grad for p in model.trunk.parameters()])
        return gradients

    return each


@EXAMPLES.near_miss("backward-twice")
def a_norm_of_the_gradient_between():
    model = TwoHeads()
    optimizer = adam(model)

    def step():
        optimizer.zero_grad()
        of_labels, of_boxes = losses_of(model)
        of_labels.backward(retain_graph=True)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        of_boxes.backward()
        optimizer.step()

    return step


@EXAMPLES.near_miss("backward-twice")
def an_inner_loop():
    weight = nn.Parameter(torch.rand(3, 3))

    def adapt():
        fast = weight
        for _ in range(3):
            loss = (X @ fast).tanh().square().mean()
            (slope,) = torch.autograd.grad(loss, fast, create_graph=True)
            fast = fast - 0.1 * slope
        (X @ fast).square().mean().backward()

    return adapt


@EXAMPLES.near_miss("backward-twice")
def what_is_computed_again():
    blocks = [nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3)) for _ in range(3)]

    def step():
        hidden = X.clone().requires_grad_()
        for block in blocks:
            hidden = checkpoint(block, hidden, use_reentrant=False)
        hidden.sum().backward()

    return step


@EXAMPLES.near_miss("backward-twice")
def numbers_of_two_threads():
    trace = TraceBuilder()
    for thread in (1, 2):
        trace.op("aten::ones_like", [[]])
        for number in range(9, 1, -1):
            args = {"Sequence number": number, "Fwd thread id": thread}
            with trace.op("autograd::engine::evaluate_function: MulBackward0", args=args):
                trace.op("MulBackward0", [[4]], args=args)
        with (
            trace.op("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"),
            trace.op("torch::autograd::AccumulateGrad", [[4]]),
        ):
            trace.op("aten::add_", [[4], [4], []])
    return trace
