"""Labelled examples of graphs that are walked twice, with hooks on what they compute."""

from __future__ import annotations

import torch
from labelled.case import ANY, Examples
from torch import nn

EXAMPLES = Examples()


class Maps(nn.Module):
    """Convolutions, and a head on the means of their maps."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU())
        self.head = nn.Linear(16, 5)

    def classes(self, maps, count=3):
        logits = self.head(maps.mean((2, 3)))
        for index in range(count):
            logits[0, index].backward(retain_graph=True)  # <- here


def hooked(hook, image=None):
    """Backward for each class of a picture, with this hook on its maps."""
    model, x = Maps(), torch.rand(1, 3, 16, 16) if image is None else image

    def explain():
        model.zero_grad()
        maps = model.body(x)
        maps.register_hook(hook)
        model.classes(maps)

    return explain


def keeping(take):
    """A hook that appends what this makes of a gradient, and returns nothing."""
    kept = []
    return lambda grad: kept.append(take(grad))


# ------------------------------------------------------------------------------------- near misses


@EXAMPLES.near_miss("backward-twice")
def hook_keeps_the_gradient_itself():
    return hooked(keeping(lambda grad: grad))


@EXAMPLES.near_miss("backward-twice")
def hook_replaces_the_gradient_that_it_keeps():
    store = {}
    return hooked(lambda grad: store.update(last=grad))


def of_parameters(hook, register="register_hook"):
    """Four losses of one batch, one by one, with this hook on each parameter."""
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.Tanh())
    x = torch.rand(8, 16)
    for parameter in model.parameters():
        getattr(parameter, register)(hook)

    def step():
        model.zero_grad()
        y = model(x)
        for index in range(4):
            y[:, index].sum().backward(retain_graph=index < 3)  # <- here

    return step


@EXAMPLES.near_miss("backward-twice")
def hooks_of_parameters_keep_the_gradients_of_each_loss():
    return of_parameters(keeping(lambda grad: grad))


@EXAMPLES.near_miss("backward-twice")
def hooks_after_each_loss_keep_the_norms_of_the_sums():
    take = keeping(lambda parameter: parameter.grad.norm())
    return of_parameters(take, "register_post_accumulate_grad_hook")


# -------------------------------------------------------------------------------------- positives


@EXAMPLES.positive("backward-twice", 3)
def hooks_that_count_how_often_they_are_called():
    return of_parameters(keeping(lambda grad: grad.shape))


@EXAMPLES.positive("backward-twice", 2)
def hook_that_counts_the_passes():
    return hooked(keeping(lambda grad: None))


@EXAMPLES.positive("backward-twice", 3)
def hooks_of_parameters_that_count_the_passes():
    return of_parameters(keeping(lambda parameter: None), "register_post_accumulate_grad_hook")


@EXAMPLES.positive("backward-twice", ANY)
def embeddings_with_sparse_gradients():
    table, mix = nn.Embedding(50, 8, sparse=True), nn.Linear(8, 8)
    optimizer, ids = torch.optim.SparseAdam(table.parameters()), torch.randint(50, (3, 7))

    def step():
        optimizer.zero_grad()
        h = mix(table(ids)).tanh().exp()
        for index in range(3):
            h[:, :, index].mean().backward(retain_graph=True)  # <- here
        optimizer.step()

    return step
