"""Labelled examples of sums that keep the graphs of what they sum."""

from __future__ import annotations

from collections import defaultdict

import torch
from labelled.case import Examples
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

EXAMPLES = Examples()


def network():
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def batches(n):
    return [(torch.rand(5, 3), torch.arange(5) % 2) for _ in range(n)]


class Trainer:
    """Trains on batches, and hands each loss to whoever wants it."""

    def __init__(self, count=4):
        self.model, self.batches = network(), batches(count)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, foreach=True)

    def step(self, x, y):
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss

    def losses(self):
        for x, y in self.batches:
            yield self.step(x, y)


# ------------------------------------------------------------------------------ accumulated-graph


@EXAMPLES.positive("accumulated-graph")
def a_running_loss():
    trainer = Trainer()

    def epoch():
        running = 0.0
        for x, y in trainer.batches:
            loss = trainer.step(x, y)
            running += loss  # <- here
        return running / len(trainer.batches)

    return epoch


@EXAMPLES.positive("accumulated-graph")
def a_moving_average():
    trainer = Trainer()

    def epoch():
        smooth = None
        for loss in trainer.losses():
            smooth = loss if smooth is None else 0.9 * smooth + 0.1 * loss  # <- here
        return smooth.item()

    return epoch


@EXAMPLES.positive("accumulated-graph")
def a_dictionary_of_logs():
    trainer = Trainer()

    def epoch():
        logs = defaultdict(float)
        for loss in trainer.losses():
            for name, value in (("train/loss", loss), ("train/steps", 1)):
                logs[name] += value  # <- here
        return {name: float(value) for name, value in logs.items()}

    return epoch


@EXAMPLES.positive("accumulated-graph")
def a_list_of_losses_and_their_sum():
    trainer = Trainer()

    def epoch():
        losses = list(trainer.losses())
        return sum(losses) / len(losses)  # <- here

    return epoch


@EXAMPLES.positive("accumulated-graph")
def a_list_of_losses_that_are_stacked():
    trainer = Trainer()

    def epoch():
        history = [loss for loss in trainer.losses() if loss.isfinite()]
        return torch.stack(history).mean().item()  # <- here

    return epoch


@EXAMPLES.positive("accumulated-graph", also="missing-no-grad")
def a_validation_with_graphs():
    model, data = network().eval(), batches(4)

    def validate():
        total = 0
        for x, y in data:
            total += F.cross_entropy(model(x), y)  # <- here
        return total / len(data)

    return validate


@EXAMPLES.positive("accumulated-graph")
def losses_of_each_element():
    model, data = network(), batches(3)

    def epoch():
        of_each = torch.zeros(5)
        for x, y in data:
            losses = F.cross_entropy(model(x), y, reduction="none")
            losses.mean().backward()
            of_each = of_each + losses  # <- here
            for p in model.parameters():
                p.data.sub_(p.grad, alpha=0.1)
                p.grad = None
        return of_each

    return epoch


@EXAMPLES.positive("accumulated-graph")
def three_steps():
    return summing(3)


@EXAMPLES.near_miss("accumulated-graph")
def two_steps():
    return summing(2)


def summing(count):
    trainer = Trainer(count)

    def epoch():
        total = 0
        for loss in trainer.losses():
            total = total + loss  # <- here
        return total

    return epoch


@EXAMPLES.near_miss("accumulated-graph")
def losses_that_are_stacked_without_graphs():
    trainer = Trainer()
    return lambda: torch.stack([loss.detach() for loss in trainer.losses()]).mean()


@EXAMPLES.near_miss("accumulated-graph")
def losses_of_several_heads_that_are_looked_at():
    body, head, x = nn.Linear(3, 4), nn.Linear(4, 2), torch.rand(5, 3)

    def check():
        hidden = body(x).relu()
        levels = [hidden * scale for scale in (1, 2, 3, 4)]
        loss = 0
        for level in levels:
            loss = loss + F.cross_entropy(head(level), torch.arange(5) % 2)
        assert loss.item() > 0

    return check


@EXAMPLES.near_miss("accumulated-graph")
def a_sequence_with_a_loss_each_time():
    step_in, step_on, out = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 3)
    sequence = torch.rand(6, 2, 3)

    def check():
        hidden, loss = torch.zeros(2, 4), 0
        for x in sequence:
            hidden = torch.tanh(step_in(x) + step_on(hidden))
            loss = loss + F.mse_loss(out(hidden), x)
        assert loss.isfinite()

    return check


@EXAMPLES.near_miss("accumulated-graph")
def a_penalty_on_some_weights():
    model = nn.Sequential(*[nn.Linear(3, 3) for _ in range(6)])

    def penalty():
        return model[0].weight.square().sum() + model[1].weight.abs().sum()

    return penalty


@EXAMPLES.near_miss("accumulated-graph")
def blocks_that_add_to_what_they_take():
    blocks = nn.ModuleList([nn.Linear(3, 3) for _ in range(6)])

    def check():
        x = torch.rand(2, 3)
        for block in blocks:
            x = x + block(x).relu()
        assert x.shape == (2, 3)

    return check


def averaging(update):
    """Training steps that also average what the model says, through ``.data``."""
    trainer, mean = Trainer(), torch.zeros(2)

    def epoch():
        for x, y in trainer.batches:
            trainer.optimizer.zero_grad()
            said = trainer.model(x)
            update(mean.data, said.mean(0))
            F.cross_entropy(said, y).backward()
            trainer.optimizer.step()
        assert mean.grad_fn is None

    return epoch


@EXAMPLES.near_miss("accumulated-graph")
def statistics_that_are_blended_through_data():
    return averaging(lambda mean, new: mean.lerp_(new, 0.1))


@EXAMPLES.near_miss("accumulated-graph")
def a_codebook_that_is_averaged_through_data():
    return averaging(lambda mean, new: mean.mul_(0.9).add_(new, alpha=0.1))
