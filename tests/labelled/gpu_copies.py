"""Examples on a GPU of the rules about copies to and from it, and about loading data."""

from __future__ import annotations

import time

import numpy as np
import torch
from labelled.case import ANY, Examples
from labelled.gpu_models import BF16, perceptron, resnet
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

ON_GPU = Examples()


# -------------------------------------------------------------------- extra-cuda-copy: positives


@ON_GPU.positive("extra-cuda-copy")
def a_mask_of_ones_moved():
    def block():
        mask = torch.ones(128, 128).cuda()  # <- here
        return mask.tril()

    return block


@ON_GPU.positive("extra-cuda-copy")
def a_state_of_zeros_pinned_and_moved():
    x = torch.randn(8, 256, device="cuda")

    def block():
        state = torch.zeros(8, 256).pin_memory().to("cuda", non_blocking=True)  # <- here
        return state + x

    return block


@ON_GPU.positive("extra-cuda-copy")
def a_cast_as_it_is_moved():
    x = torch.randn(64, 64, device="cuda", dtype=BF16)

    def block():
        return x + torch.rand(64, 64).to("cuda", BF16)  # <- here

    return block


# ------------------------------------------------------------------- extra-cuda-copy: near misses


@ON_GPU.near_miss("extra-cuda-copy")
def a_mask_made_on_the_device():
    def block():
        return torch.ones(128, 128, device="cuda").tril()

    return block


@ON_GPU.near_miss("extra-cuda-copy")
def an_array_from_numpy():
    def block():
        return torch.from_numpy(np.linspace(0, 1, 512, dtype=np.float32)).cuda()

    return block


@ON_GPU.near_miss("extra-cuda-copy")
def a_model_built_and_moved():
    def block():
        return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10)).to("cuda")

    return block


# -------------------------------------------------------------------- pageable-copy


@ON_GPU.positive("pageable-copy", 3)
def pictures_moved_from_pageable_memory():
    pictures = [torch.randn(16, 3, 64, 64) for _ in range(3)]
    model = resnet(16, blocks=1).eval().requires_grad_(False)

    def block():
        for batch in pictures:
            model(batch.cuda())  # <- here

    return block


@ON_GPU.positive("pageable-copy", 2)
def non_blocking_alone_does_not_help():
    batches = [torch.randn(256, 1024) for _ in range(2)]

    def block():
        for batch in batches:
            batch.to("cuda", non_blocking=True).relu()  # <- here

    return block


@ON_GPU.positive("pageable-copy", 1, also="host-sync")
def logits_to_pageable_memory():
    logits = torch.randn(256, 1000, device="cuda")

    def block():
        return logits.softmax(-1).cpu()  # <- here

    return block


@ON_GPU.near_miss("pageable-copy")
def pictures_moved_from_pinned_memory():
    pictures = [torch.randn(16, 3, 64, 64).pin_memory() for _ in range(3)]

    def block():
        for batch in pictures:
            batch.cuda(non_blocking=True).relu()

    return block


@ON_GPU.near_miss("pageable-copy")
def small_labels_from_pageable_memory():
    labels = torch.arange(256)

    def block():
        return nn.functional.one_hot(labels.cuda(), 256)

    return block


@ON_GPU.near_miss("pageable-copy")
def a_loader_that_pins():
    loader = DataLoader(TensorDataset(torch.randn(64, 3, 64, 64)), batch_size=32, pin_memory=True)

    def block():
        for (x,) in loader:
            x.to("cuda", non_blocking=True).relu()

    return block


# -------------------------------------------------------------------- copy-round-trip


@ON_GPU.positive("copy-round-trip", also="host-sync")
def scores_clipped_by_numpy():
    scores = torch.randn(64, 64, device="cuda")

    def block():
        clipped = torch.from_numpy((scores * 2).cpu().numpy().clip(0, 1)).cuda()  # <- here
        return clipped.sum()

    return block


@ON_GPU.positive("copy-round-trip", also="host-sync")
def boxes_sorted_on_the_host():
    boxes = torch.rand(500, 4, device="cuda")

    def block():
        host = boxes.mul(800).cpu()
        ordered = host.sort(dim=0).values
        return ordered.to("cuda") + 1  # <- here

    return block


@ON_GPU.positive("copy-round-trip", also="host-sync")
def hidden_states_offloaded_and_back():
    layer = nn.Linear(256, 256, device="cuda")
    x = torch.randn(32, 256, device="cuda")

    def block():
        with torch.no_grad():
            h = layer(x).to("cpu")
            h = h.to("cuda")  # <- here
            return layer(h)

    return block


@ON_GPU.near_miss("copy-round-trip", also="host-sync")
def results_read_and_other_inputs_moved():
    layer = nn.Linear(64, 64, device="cuda")
    inputs = [torch.randn(64, 64) for _ in range(3)]

    def block():
        with torch.no_grad():
            return [layer(x.cuda()).cpu() for x in inputs]

    return block


@ON_GPU.near_miss("copy-round-trip", also="host-sync")
def results_that_stay_on_the_host():
    x = torch.randn(64, 64, device="cuda")

    def block():
        return x.relu().cpu().numpy().mean()

    return block


@ON_GPU.near_miss("copy-round-trip", also="host-sync")
def a_few_lengths_that_return():
    lengths = torch.randint(1, 9, (64,), device="cuda")

    def block():
        host = (lengths + 1).cpu()
        return host.sort().values.cuda() * 2

    return block


# -------------------------------------------------------------------- loaders


class Slow(Dataset[object]):
    """Samples that take a while to read and decode."""

    def __init__(self, count, seconds):
        self.count, self.seconds = count, seconds

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.full((3, 32, 32), float(index)), index % 10


def classifier():
    """A small model of pictures, its optimizer and its loss."""
    model = nn.Sequential(nn.Flatten(), perceptron(3 * 32 * 32, layers=2))
    return model, torch.optim.SGD(model.parameters(), lr=0.01), nn.CrossEntropyLoss()


@ON_GPU.positive("sync-dataloader", ANY)
def an_evaluation_that_decodes_between_batches():
    model, _, _ = classifier()
    loader = DataLoader(Slow(24, 0.008), batch_size=4, pin_memory=True)

    def block():
        with torch.inference_mode():
            for x, _ in loader:  # <- here
                model(x.to("cuda", non_blocking=True))

    return block


@ON_GPU.near_miss("sync-dataloader")
def batches_from_a_list():
    model, _, _ = classifier()
    batches = [torch.randn(4, 3, 32, 32) for _ in range(4)]

    def block():
        with torch.no_grad():
            for x in batches:
                model(x.cuda())

    return block


@ON_GPU.positive("starved-loader", ANY)
def one_worker_for_slow_samples():
    model, optimizer, criterion = classifier()
    loader = DataLoader(Slow(32, 0.005), batch_size=4, num_workers=1)

    def block():
        for x, y in loader:  # <- here
            optimizer.zero_grad()
            criterion(model(x.cuda()), y.cuda()).backward()
            optimizer.step()

    return block


@ON_GPU.positive("starved-loader", ANY)
def two_workers_with_little_to_prefetch():
    model, _, _ = classifier()
    loader = DataLoader(Slow(40, 0.01), batch_size=4, num_workers=2, prefetch_factor=1)

    def block():
        with torch.no_grad():
            for x, _ in loader:  # <- here
                model(x.cuda())

    return block


@ON_GPU.positive("starved-loader", ANY)
def a_worker_and_pinned_memory():
    model, _, _ = classifier()
    loader = DataLoader(Slow(32, 0.006), batch_size=4, num_workers=1, pin_memory=True)

    def block():
        with torch.no_grad():
            for x, _ in loader:  # <- here
                model(x.to("cuda", non_blocking=True))

    return block


@ON_GPU.near_miss("starved-loader", also="host-sync")
def workers_that_are_faster_than_the_step():
    big = torch.randn(8192, 8192, device="cuda", dtype=BF16)
    loader = DataLoader(Slow(24, 0.001), batch_size=4, num_workers=2)

    def block():
        for x, _ in loader:
            x.cuda()
            for _ in range(4):
                big @ big
            torch.cuda.synchronize()
            time.sleep(0.03)

    return block


@ON_GPU.near_miss("starved-loader")
def a_single_late_batch():
    model, _, _ = classifier()
    loader = DataLoader(Slow(4, 0.01), batch_size=4, num_workers=1)

    def block():
        with torch.no_grad():
            for x, _ in loader:
                model(x.cuda())

    return block


@ON_GPU.near_miss("starved-loader")
def a_loader_without_workers():
    model, _, _ = classifier()
    loader = DataLoader(Slow(12, 0.001), batch_size=4)

    def block():
        with torch.no_grad():
            for x, _ in loader:
                model(x.cuda())

    return block
