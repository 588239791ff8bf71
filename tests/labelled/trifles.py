"""Labelled examples of what hardly matters next to the rest of a test on a CPU."""

from __future__ import annotations

import torch
from labelled.case import Examples
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

EXAMPLES = Examples()


def _convolutions():
    return nn.Sequential(nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Conv2d(16, 8, 3), nn.Flatten(1))


def _fit(beside, *, once=False):
    """Steps of training with convolutions, and something small after each, or only at the end."""
    model, images = _convolutions(), torch.rand(8, 8, 192, 192)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)

    def fit():
        for step in range(3):
            model(images).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 2 or not once:
                beside()

    return fit


def _actions():
    """A policy that is asked for an action after each step."""
    policy, seen = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)), torch.rand(1, 4)
    return _fit(lambda: policy(seen).argmax(1))  # <- here


@EXAMPLES.near_miss("missing-no-grad", cpu_share=0.01)
def an_action_after_each_long_update():
    return _actions()


@EXAMPLES.positive("missing-no-grad", 3, cpu_share=0.00001)
def an_action_after_each_long_update_with_a_lower_threshold():
    return _actions()


@EXAMPLES.near_miss("missing-no-grad")
def actions_of_two_policies_between_long_updates():
    first, second = nn.Linear(4, 4), nn.Linear(4, 2)
    seen = torch.rand(1, 4)
    return _fit(lambda: (first(seen).argmax(1), second(first(seen)).argmax(1)))


def _returns():
    """Discounted returns of an episode, one reward after the other."""
    rewards, scale = torch.rand(12), torch.rand(12)

    def look():
        out = torch.zeros(12)
        for step in range(12):
            out[step] = rewards[step] * scale[step]  # <- here
        return out

    return _fit(look, once=True)


@EXAMPLES.near_miss("for-loop-indexing", cpu_share=0.01)
def a_short_loop_beside_a_long_step():
    return _returns()


@EXAMPLES.positive("for-loop-indexing", cpu_share=0.00001)
def a_short_loop_beside_a_long_step_with_a_lower_threshold():
    return _returns()


@EXAMPLES.positive("for-loop-indexing", 40)
def many_short_loops_in_one_long_step():
    rewards, scale = torch.rand(12), torch.rand(12)

    def look():
        for _ in range(40):
            out = torch.zeros(12)
            for step in range(12):
                out[step] = rewards[step] * scale[step]  # <- here
            out.sum().item()

    return _fit(look, once=True)


def _zeroed():
    """The gradients of two small layers beside a long step."""
    head, rows = nn.Linear(4, 2), torch.rand(3, 4)
    other = torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9, fused=True)

    def step():
        other.zero_grad(set_to_none=False)  # <- here
        F.mse_loss(head(rows), rows[:, :2]).backward()
        other.step()

    return _fit(step)


@EXAMPLES.near_miss("grad-not-none", cpu_share=0.01)
def two_small_gradients_beside_a_long_step():
    return _zeroed()


@EXAMPLES.positive("grad-not-none", 3, cpu_share=0.00001)
def two_small_gradients_beside_a_long_step_with_a_lower_threshold():
    return _zeroed()


@EXAMPLES.positive("grad-not-none", 3)
def large_gradients_beside_a_long_step():
    wide = nn.Linear(1000, 1000)
    rows, other = torch.rand(3, 1000), torch.optim.SGD(wide.parameters(), lr=0.1)

    def step():
        other.zero_grad(set_to_none=False)  # <- here
        wide(rows).mean().backward()
        other.step()

    return _fit(step)


def _joined(*, also=lambda: None):
    """A tensor of results that is joined anew for each of twelve rows, beside a long step."""
    rows = torch.rand(12, 1, 8)

    def collect():
        out = torch.empty(0, 8)
        for row in rows.unbind():
            out = torch.cat([out, row * 2])  # <- here
        also()
        return out

    return _fit(collect, once=True)


@EXAMPLES.near_miss("growing-cat", cpu_share=0.01)
def a_few_rows_joined_beside_a_long_step():
    return _joined()


@EXAMPLES.positive("growing-cat", also="for-loop-indexing", cpu_share=0.00001)
def a_few_rows_joined_beside_a_long_step_with_a_lower_threshold():
    return _joined()


def _averaged():
    """The weights of a small head are averaged, beside a long step."""
    head = nn.Sequential(*(nn.Linear(4, 4) for _ in range(6)))
    average = [parameter.detach().clone() for parameter in head.parameters()]

    def update():
        head(torch.ones(2, 4)).sum().backward()
        with torch.no_grad():
            for old, new in zip(average, head.parameters(), strict=True):
                old.mul_(0.9).add_(new, alpha=0.1)  # <- here
        head.zero_grad()

    return _fit(update)


@EXAMPLES.near_miss("per-parameter-loop", cpu_share=0.01)
def a_small_average_beside_a_long_step():
    return _averaged()


@EXAMPLES.positive("per-parameter-loop", 3, cpu_share=0.00001)
def a_small_average_beside_a_long_step_with_a_lower_threshold():
    return _averaged()


def _decoded():
    """A few words generated by a small model, beside a long step."""
    words, mix = nn.Embedding(16, 8), nn.Linear(8, 16)

    def decode():
        ids = torch.zeros(1, 2, dtype=torch.long)
        with torch.no_grad():
            for _ in range(18):
                scores = mix(words(ids)).cumsum(1)  # <- here
                ids = torch.cat([ids, scores[:, -1:].argmax(-1)], -1)
        return ids

    return _fit(decode, once=True)


@EXAMPLES.near_miss("decode-without-cache", cpu_share=0.01)
def a_few_words_beside_a_long_step():
    return _decoded()


@EXAMPLES.positive("decode-without-cache", cpu_share=0.000001)
def a_few_words_beside_a_long_step_with_a_lower_threshold():
    return _decoded()
