"""Clean training loops: optimizers, schedules, accumulation, averages, closures, reinforcement."""

from __future__ import annotations

import copy
import io

import torch
import torch.nn.functional as F  # noqa: N812
from labelled.clean import Clean
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

EXAMPLES = Clean()


def _perceptron(size_in=16, size_out=4):
    return nn.Sequential(
        nn.Linear(size_in, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, size_out)
    )


def _data(count=32, size_in=16, classes=4):
    return torch.randn(count, size_in), torch.randint(classes, (count,))


def _step(model, optimizer, inputs, labels):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
    return loss.detach()


@EXAMPLES.clean
def quickstart_train_and_test():
    model = nn.Sequential(nn.Flatten(), _perceptron(28 * 28, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=True)
    images, labels = torch.rand(64, 1, 28, 28), torch.randint(10, (64,))

    def epoch():
        model.train()
        for batch, wanted in zip(images.split(16), labels.split(16), strict=True):
            _step(model, optimizer, batch, wanted)
        model.eval()
        loss, correct = 0.0, 0
        with torch.no_grad():
            for batch, wanted in zip(images.split(16), labels.split(16), strict=True):
                logits = model(batch)
                loss += F.cross_entropy(logits, wanted).item()
                correct += (logits.argmax(1) == wanted).sum().item()

    return epoch


@EXAMPLES.clean
def loop_over_slices_of_the_data():
    model, (inputs, labels) = _perceptron(), _data(96)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def epoch():
        order = torch.randperm(96)
        for start in range(0, 96, 8):
            chosen = order[start : start + 8]
            _step(model, optimizer, inputs[chosen], labels[chosen])

    return epoch


@EXAMPLES.clean
def loader_with_a_worker():
    model = _perceptron()
    optimizer = torch.optim.Adam(model.parameters(), foreach=True)
    loader = DataLoader(
        TensorDataset(*_data(16)), batch_size=8, num_workers=1, multiprocessing_context="fork"
    )

    def epoch():
        for inputs, labels in loader:
            _step(model, optimizer, inputs, labels)

    return epoch


@EXAMPLES.clean
def gradient_accumulation():
    model, (inputs, labels) = _perceptron(), _data(64)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step():
        for batch, wanted in zip(inputs.split(4), labels.split(4), strict=True):
            (F.cross_entropy(model(batch), wanted) / 16).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@EXAMPLES.clean
def clipping_and_a_schedule():
    model, batch = _perceptron(), _data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)

    def step():
        optimizer.zero_grad()
        F.cross_entropy(model(batch[0]), batch[1]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()

    return step


@EXAMPLES.clean
def average_of_the_weights():
    model, batch = _perceptron(), _data()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))

    def steps():
        for _ in range(3):
            _step(model, optimizer, *batch)
            average.update_parameters(model)

    return steps


@EXAMPLES.clean
def average_of_the_weights_by_hand():
    model, batch = _perceptron(), _data()
    average = copy.deepcopy(model).requires_grad_(requires_grad=False)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step():
        _step(model, optimizer, *batch)
        with torch.no_grad():
            for mean, now in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(now, 0.01)

    return step


@EXAMPLES.clean
def checkpoints_on_disk_and_in_memory():
    model, batch = nn.Sequential(*(nn.Linear(16, 16) for _ in range(12))), _data(8, 16, 16)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step():
        best = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        _step(model, optimizer, *batch)
        file = io.BytesIO()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.seek(0)
        model.load_state_dict(torch.load(file)["model"])
        model.load_state_dict(best)

    return step


@EXAMPLES.clean
def activations_computed_again():
    blocks, batch = nn.ModuleList(_perceptron(16, 16) for _ in range(4)), _data(8, 16, 16)
    optimizer = torch.optim.AdamW(blocks.parameters(), fused=True)

    def step():
        optimizer.zero_grad()
        x = batch[0]
        for block in blocks:
            x = checkpoint(block, x, use_reentrant=False)
        F.cross_entropy(x, batch[1]).backward()
        optimizer.step()

    return step


@EXAMPLES.clean
def frozen_layers():
    body, head, batch = _perceptron(16, 16), nn.Linear(16, 4), _data()
    body.requires_grad_(requires_grad=False)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1, foreach=True)
    return lambda: _step(nn.Sequential(body, head), optimizer, *batch)


@EXAMPLES.clean
def distillation():
    teacher, student, (inputs, labels) = _perceptron().eval(), _perceptron(), _data()
    optimizer = torch.optim.Adam(student.parameters(), foreach=True)

    def step():
        with torch.no_grad():
            wanted = teacher(inputs).softmax(-1)
        logits = student(inputs)
        loss = F.cross_entropy(logits, labels) + F.cross_entropy(logits, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


@EXAMPLES.clean
def penalty_on_the_gradient():
    critic, real, fake = _perceptron(16, 1), torch.randn(8, 16), torch.randn(8, 16)
    optimizer = torch.optim.Adam(critic.parameters(), foreach=True)

    def step():
        mixed = torch.lerp(real, fake, torch.rand(8, 1)).requires_grad_()
        (grad,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
        penalty = (grad.norm(dim=1) - 1).square().mean()
        optimizer.zero_grad()
        (critic(fake).mean() - critic(real).mean() + 10 * penalty).backward()
        optimizer.step()

    return step


@EXAMPLES.clean
def reinforce():
    policy = _perceptron(4, 2)
    optimizer = torch.optim.Adam(policy.parameters(), foreach=True)

    def episode():
        state, log_probabilities, rewards = torch.zeros(4), [], []
        for _ in range(12):
            chosen = torch.distributions.Categorical(logits=policy(state))
            action = chosen.sample()
            log_probabilities.append(chosen.log_prob(action))
            rewards.append(float(action.item()))
            state = torch.tensor([1.0, rewards[-1], 0.0, 0.5])
        gain = torch.tensor(rewards).flip(0).cumsum(0).flip(0)
        optimizer.zero_grad()
        (-torch.stack(log_probabilities) * (gain - gain.mean())).sum().backward()
        optimizer.step()

    return episode


@EXAMPLES.clean
def losses_that_are_logged_now_and_then():
    model, batch = _perceptron(), _data()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def steps():
        running = torch.zeros(())
        for number in range(12):
            running += _step(model, optimizer, *batch)
            if number % 4 == 3:
                f"{running.item() / 4:.3f}"
                running.zero_()

    return steps


@EXAMPLES.clean
def metrics_that_are_reset_after_an_epoch():
    model, batch = _perceptron(), _data()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    confusion, seen, total = torch.zeros(4, 4), torch.zeros(4), torch.zeros(())

    def epoch():
        total.add_(_step(model, optimizer, *batch))
        with torch.inference_mode():
            predicted = model(batch[0]).argmax(1)
            confusion.view(-1).add_(torch.bincount(4 * batch[1] + predicted, minlength=16))
            seen.add_(torch.bincount(batch[1], minlength=4))
        for metric in (confusion, seen, total):
            metric.zero_()

    return epoch
