"""Retold from Lightning: a training loop with hooks, compared with a plain one."""

import torch
from torch import nn

STEPS = 4


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    return model, torch.optim.SGD(model.parameters(), lr=1e-2), torch.ones(256, 64)


def plain_loop(model, optimizer, batch):
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
    return loss


class Trainer:
    """The same loop, with hooks that callbacks may fill."""

    def __init__(self, callbacks=()):
        self.callbacks, self.logged = callbacks, []

    def fit(self, model, optimizer, batch):
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            self.logged.append(loss.detach())
            for callback in self.callbacks:
                callback(step)
        return loss


def trainer_loop(model, optimizer, batch):
    return Trainer().fit(model, optimizer, batch)


def test_the_trainer_does_what_a_plain_loop_does(torchprof):
    a, b = build(), build()
    with torchprof("plain"):
        expected = plain_loop(*a)
    with torchprof("trainer"):
        loss = trainer_loop(*b)
    assert torch.equal(expected, loss)
    assert torchprof["trainer"].ops <= torchprof["plain"].ops + 2 * STEPS  # what is logged
    assert torchprof["trainer"].peak_cpu_bytes <= 1.001 * torchprof["plain"].peak_cpu_bytes


def test_the_trainer_is_not_slower(torchprof):
    result = torchprof.ab(plain_loop, trainer_loop, setup=build)
    result.assert_not_slower(by="15 %")
