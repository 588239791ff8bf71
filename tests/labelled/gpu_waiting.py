"""Examples on a GPU of the rules about host and device waiting for each other."""

from __future__ import annotations

import gc
import itertools
import time

import numpy as np
import torch
from labelled.case import ANY, Examples
from labelled.gpu_models import BF16, batches, perceptron, split_up_to
from torch import nn
from torch.profiler import record_function

ON_GPU = Examples()


def trainer(optimizer=torch.optim.SGD, **options):
    """A model, its optimizer and its loss, on the GPU."""
    model = perceptron()
    return model, optimizer(model.parameters(), lr=1e-3, **options), nn.CrossEntropyLoss()


# ------------------------------------------------------------------------ host-sync: positives


@ON_GPU.positive("host-sync", 3)
def a_timer_that_synchronizes_after_each_of_four_steps():
    x = torch.randn(1024, 1024, device="cuda", dtype=BF16)

    def block():
        times = []
        for _ in range(4):
            start = time.perf_counter()
            x @ x
            torch.cuda.synchronize()  # <- here
            times.append(time.perf_counter() - start)
        return times

    return block


@ON_GPU.positive("host-sync")
def unique_labels_of_a_matcher():
    labels = torch.randint(100, (4096,), device="cuda")

    def block():
        found = torch.unique(labels)  # <- here
        return torch.zeros(len(found), device="cuda")

    return block


@ON_GPU.positive("host-sync", 2)
def rows_repeated_by_lengths_on_the_device():
    rows = torch.randn(32, 64, device="cuda")
    lengths = torch.randint(1, 5, (32,), device="cuda")

    def block():
        return rows.repeat_interleave(lengths, dim=0).sum()  # <- here

    return block


# --------------------------------------------------------------------- host-sync: near misses


@ON_GPU.near_miss("host-sync")
def where_instead_of_a_mask():
    losses = torch.rand(4096, device="cuda")

    def block():
        hard = torch.where(losses > 0.5, losses, 0.0)
        return hard.sum() / (losses > 0.5).sum()

    return block


@ON_GPU.near_miss("host-sync")
def results_to_pinned_memory_without_a_wait():
    logits = torch.randn(64, 1000, device="cuda")
    pinned = torch.empty(64, 1000, pin_memory=True)

    def block():
        pinned.copy_(logits.softmax(-1), non_blocking=True)

    return block


@ON_GPU.near_miss("host-sync")
def a_benchmark_that_reads_its_events_at_the_end():
    x = torch.randn(2048, 2048, device="cuda", dtype=BF16)

    def block():
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(5):
            x @ x
        end.record()
        end.synchronize()
        return start.elapsed_time(end)

    return block


# ------------------------------------------------------------------------------ host-read


@ON_GPU.near_miss("host-read", also="host-sync")
def an_item_where_waits_are_counted():
    x = torch.randn(1000, device="cuda")
    return lambda: x.sum().item()


# ------------------------------------------------------------------------------ launch-bound


@ON_GPU.positive("launch-bound", also="per-parameter-loop for-loop-indexing")
def three_hundred_small_tensors_one_by_one():
    tensors = [torch.ones(64, device="cuda") for _ in range(300)]

    def block():
        for one in tensors:
            one.mul_(0.9)

    return block


@ON_GPU.positive("launch-bound", also="for-loop-indexing")
def a_recurrent_cell_by_hand():
    weight = torch.randn(128, 64, device="cuda")
    sequence = torch.randn(40, 8, 64, device="cuda").unbind(0)

    def block():
        with torch.no_grad():
            h = torch.zeros(8, 64, device="cuda")
            for x in sequence:
                gates = torch.cat([x, h], dim=1) @ weight
                h = torch.tanh(gates) * 0.5 + h * 0.5

    return block


@ON_GPU.positive("launch-bound")
def a_small_policy_asked_for_one_action_at_a_time():
    model = perceptron(64, layers=3, classes=4).eval()
    state = torch.randn(1, 64, device="cuda")

    def block():
        with torch.inference_mode():
            for _ in range(30):
                model(state)

    return block


@ON_GPU.near_miss("launch-bound")
def large_kernels_one_after_the_other():
    x = torch.ones(1 << 26, device="cuda")

    def block():
        for _ in range(60):
            x.mul_(1.0)

    return block


@ON_GPU.near_miss("launch-bound")
def a_graph_of_small_kernels():
    x = torch.ones(64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(300):
            x.mul_(1.0)
    return graph.replay


@ON_GPU.near_miss("launch-bound")
def twenty_small_kernels():
    x = torch.ones(64, device="cuda")

    def block():
        for _ in range(20):
            x.mul_(1.0)

    return block


# ------------------------------------------------------------------------------ blocked-copy


def busy(x):
    """Work of half a millisecond or so."""
    for _ in range(3):
        x = x @ x
    return x


def thinking():
    """The host's own work, such as a tokenizer's."""
    return sorted(str(n) for n in range(600))


@ON_GPU.positive("blocked-copy", ANY)
def lengths_of_each_batch_behind_its_work():
    x = torch.randn(4096, 4096, device="cuda", dtype=BF16)

    def block():
        for i in range(6):
            busy(x)
            lengths = torch.tensor([i, i + 1, i + 2], device="cuda")  # <- here
            thinking()
            x[0, :3] * lengths

    return block


@ON_GPU.positive("blocked-copy", ANY)
def small_targets_moved_after_the_forward_pass():
    x = torch.randn(4096, 4096, device="cuda", dtype=BF16)
    targets = [torch.tensor(range(i, i + 64)) for i in range(6)]

    def block():
        for target in targets:
            y = busy(x)
            moved = target.to("cuda")  # <- here
            thinking()
            y[:64, 0] + moved

    return block


@ON_GPU.positive("blocked-copy", ANY)
def positions_from_numpy_in_each_step():
    x = torch.randn(4096, 4096, device="cuda", dtype=BF16)

    def block():
        for i in range(6):
            y = busy(x)
            positions = torch.from_numpy(np.arange(i, i + 64)).cuda()  # <- here
            thinking()
            y[:64, 0] + positions

    return block


@ON_GPU.near_miss("blocked-copy")
def targets_in_pinned_memory():
    x = torch.randn(4096, 4096, device="cuda", dtype=BF16)
    targets = [torch.tensor(range(i, i + 64)).pin_memory() for i in range(6)]

    def block():
        for target in targets:
            y = busy(x)
            y[:64, 0] + target.to("cuda", non_blocking=True)
            thinking()

    return block


@ON_GPU.near_miss("blocked-copy")
def targets_moved_before_the_work_of_all_steps():
    x = torch.randn(4096, 4096, device="cuda", dtype=BF16)
    targets = [torch.tensor(range(i, i + 64)) for i in range(4)]

    def block():
        moved = [target.to("cuda") for target in targets]
        for target in moved:
            busy(x)[:64, 0] + target

    return block


@ON_GPU.near_miss("blocked-copy")
def two_small_copies_behind_work():
    x = torch.randn(4096, 4096, device="cuda", dtype=BF16)
    targets = [torch.tensor(range(i, i + 64)) for i in range(2)]

    def block():
        for target in targets:
            busy(x)[:64, 0] + target.to("cuda")

    return block


# ------------------------------------------------------------------------------ gc-pause


def garbage(count):
    """Objects in cycles, which only the collector frees."""
    for _ in range(count):
        one = []
        one.append(one)


@ON_GPU.positive("gc-pause", ANY)
def a_collection_after_each_step():
    x = torch.randn(256, 256, device="cuda")

    def block():
        for _ in range(5):
            x @ x
            garbage(50_000)
            with record_function("gc.collect"):  # <- here
                gc.collect()

    return block


@ON_GPU.positive("gc-pause", ANY)
def a_cleanup_of_a_library_after_each_batch():
    x = torch.randn(256, 256, device="cuda")

    def cleanup():
        with record_function("gc.collect"):  # <- here
            gc.collect()

    def block():
        for _ in range(4):
            x.relu()
            garbage(50_000)
            cleanup()

    return block


@ON_GPU.positive("gc-pause", ANY)
def a_manual_collection_every_second_step():
    x = torch.randn(256, 256, device="cuda")

    def block():
        for step in range(8):
            x.relu()
            if step % 2:
                garbage(50_000)
                with record_function("gc.collect"):  # <- here
                    gc.collect()

    return block


@ON_GPU.near_miss("gc-pause")
def two_collections_between_parts():
    x = torch.randn(256, 256, device="cuda")

    def block():
        for _ in range(2):
            x.relu()
            garbage(20_000)
            with record_function("gc.collect"):
                gc.collect()

    return block


@ON_GPU.near_miss("gc-pause")
def collections_while_the_device_works():
    """They are short, as in a program that has frozen what it imported."""
    x = torch.randn(8192, 8192, device="cuda", dtype=BF16)
    gc.collect()
    gc.freeze()

    def block():
        for _ in range(4):
            for _ in range(20):
                x @ x
            with record_function("gc.collect"):
                gc.collect()

    return block


@ON_GPU.near_miss("gc-pause")
def training_without_a_collection():
    model, optimizer, criterion = trainer()
    data = batches(4)

    def block():
        for x, y in data:
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()

    return block


# ------------------------------------------------------------------------------ allocator-retry


def stepper():
    """One parameter and its optimizer, whose steps are those of the program."""
    weight = nn.Parameter(torch.ones(1024, device="cuda"))
    return weight, torch.optim.SGD([weight], lr=0.1)


@ON_GPU.positive("allocator-retry", ANY)
def the_cache_emptied_after_each_step():
    weight, optimizer = stepper()

    def block():
        for _ in range(6):
            optimizer.zero_grad()
            (torch.ones(1 << 24, device="cuda") * weight.sum()).sum().backward()
            optimizer.step()
            torch.cuda.empty_cache()

    return block


@ON_GPU.positive("allocator-retry", ANY)
def batches_that_grow_from_step_to_step():
    weight, optimizer = stepper()
    sizes = itertools.count(8)

    def block():
        for _ in range(6):
            optimizer.zero_grad()
            x = torch.ones(next(sizes), 1 << 20, device="cuda")
            (x[:, :1024] * weight).sum().backward()
            optimizer.step()

    return block


@ON_GPU.positive("allocator-retry", ANY)
def memory_that_just_fits_for_one_size():
    """Large blocks are not split, as with PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128."""
    weight, optimizer = stepper()
    split_up_to(128)
    _, total = torch.cuda.mem_get_info()
    used = torch.cuda.memory_allocated()
    torch.cuda.set_per_process_memory_fraction((used + (400 << 20)) / total)

    def block():
        for size in (64, 80, 64, 80, 64, 80, 64, 80):
            optimizer.zero_grad()
            x = torch.ones(size, 1 << 20, device="cuda")
            (x[:, :1024] * weight).sum().backward()
            optimizer.step()
            del x

    return block


@ON_GPU.near_miss("allocator-retry")
def steps_of_one_size():
    weight, optimizer = stepper()

    def block():
        for _ in range(6):
            optimizer.zero_grad()
            (torch.ones(1 << 24, device="cuda") * weight.sum()).sum().backward()
            optimizer.step()

    return block


@ON_GPU.near_miss("allocator-retry")
def the_cache_emptied_once_after_the_loop():
    weight, optimizer = stepper()

    def block():
        for _ in range(6):
            optimizer.zero_grad()
            (torch.ones(1 << 24, device="cuda") * weight.sum()).sum().backward()
            optimizer.step()
        torch.cuda.empty_cache()

    return block


@ON_GPU.near_miss("allocator-retry")
def memory_that_grows_in_two_steps():
    weight, optimizer = stepper()
    sizes = itertools.count(100)

    def block():
        size = next(sizes)
        for step in range(8):
            optimizer.zero_grad()
            x = torch.ones(size + (step > 2), 1 << 20, device="cuda")
            (x[:, :1024] * weight).sum().backward()
            optimizer.step()

    return block


# ------------------------------------------------------------------------------ warmup-in-capture


def searching(layer, shape, *, trains=False):
    """A model that gets another size each time, while cuDNN looks for the fastest kernel."""
    sizes = itertools.count(shape[-1], 8)
    torch.backends.cudnn.benchmark = True

    def block():
        sides = [next(sizes)] * (len(shape) - 2)
        x = torch.ones(*shape[:2], *sides, device="cuda", dtype=torch.float16)
        y = layer(x.requires_grad_(trains))
        if trains:
            y.sum().backward()

    return block


@ON_GPU.positive("warmup-in-capture", ANY)
def pictures_of_another_size_each_time():
    layer = nn.Conv2d(32, 32, 3, device="cuda", dtype=torch.float16)
    return searching(layer.requires_grad_(False), (8, 32, 64, 64))


@ON_GPU.positive("warmup-in-capture", ANY)
def pictures_of_another_size_in_training():
    layer = nn.Conv2d(32, 64, 3, device="cuda", dtype=torch.float16)
    return searching(layer, (8, 32, 64, 64), trains=True)


@ON_GPU.positive("warmup-in-capture", ANY)
def an_upsampling_layer_of_another_size():
    layer = nn.ConvTranspose2d(32, 32, 2, stride=2, device="cuda", dtype=torch.float16)
    return searching(layer.requires_grad_(False), (8, 32, 64, 64))


@ON_GPU.near_miss("warmup-in-capture")
def pictures_of_one_size_after_a_warm_up():
    torch.backends.cudnn.benchmark = True
    layer = nn.Conv2d(32, 32, 3, device="cuda", dtype=torch.float16).requires_grad_(False)
    x = torch.ones(8, 32, 128, 128, device="cuda", dtype=torch.float16)

    def block():
        for _ in range(4):
            layer(x)

    return block


@ON_GPU.near_miss("warmup-in-capture")
def another_size_without_a_search():
    layer = nn.Linear(256, 256, device="cuda", dtype=BF16).requires_grad_(False)
    sizes = itertools.count(64, 64)

    def block():
        size = next(sizes)
        for _ in range(20):
            layer(torch.ones(size, 256, device="cuda", dtype=BF16))

    return block


@ON_GPU.near_miss("warmup-in-capture")
def a_graph_replayed_after_its_capture():
    x = torch.ones(1 << 20, device="cuda")
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        x.mul_(1.0)

    def block():
        for _ in range(20):
            graph.replay()

    return block
