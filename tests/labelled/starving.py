"""Labelled examples of the rule about loaders whose workers are late."""

from __future__ import annotations

import time
from typing import Any

import torch
from labelled.case import ANY, Examples
from support.trace_builder import TraceBuilder
from torch.utils.data import DataLoader, Dataset

EXAMPLES = Examples()
RULE = "starved-loader"
FETCH = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
GEMM = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn"
#: Live examples load for as short a time as examples may.
SHORT: Any = {"wait": 1.5, "share": 0.02}


def fetch(b: TraceBuilder, ms: float, *, pinned: bool = False) -> None:
    """A batch from the queue; unless a thread pins them, its memory is mapped here."""
    with b.annotation(FETCH):
        if not pinned:
            b.op("aten::set_", [[0], [], [], [], []], ["float", "", "Scalar", "", ""])
        b.advance(ms * 1000)


def seed(b: TraceBuilder) -> None:
    """What making an iterator draws."""
    for name in ("aten::empty", "aten::random_", "aten::item"):
        b.op(name, [[]])


def shuffle(b: TraceBuilder) -> None:
    """What a sampler that shuffles draws, before the first fetch: a seed, and an order."""
    seed(b)
    for name in ("aten::randperm", "aten::resolve_conj", "aten::resolve_neg"):
        b.op(name, [[96]])


def step(b: TraceBuilder, busy_ms: float, name: str = "aten::linear") -> None:
    """Three layers, which the host launches at once."""
    for _ in range(3):
        with b.op(name, [[64, 512], [512, 512]], ["c10::BFloat16"] * 2):
            b.launch(GEMM, busy_ms * 1000 / 3)


# --------------------------------------------------------------------------------- traces


@EXAMPLES.positive(RULE, 5)
def pictures_that_are_decoded_too_slowly():
    b = TraceBuilder("NVIDIA H100 80GB HBM3")
    for number in range(6):
        with b.annotation(f"ProfilerStep#{number}"):
            fetch(b, 30)
            step(b, 12, "aten::conv2d")
    return b


@EXAMPLES.positive(RULE, 3)
def every_fourth_batch_comes_late_on_rocm():
    b = TraceBuilder("AMD Instinct MI300X", vendor="amd")
    step(b, 20)
    for number in range(14):
        fetch(b, 200 if number % 4 == 3 else 0.2, pinned=True)
        step(b, 20)
    return b


@EXAMPLES.positive(RULE, 4)
def workers_that_start_for_each_of_four_epochs():
    b = TraceBuilder("NVIDIA A100-SXM4-40GB", (8, 0))
    step(b, 5)
    for _ in range(4):
        seed(b)
        for number in range(6):
            fetch(b, 0.3 if number else 400)
            step(b, 40)
        fetch(b, 9, pinned=True)  # the end
    return b


@EXAMPLES.positive(RULE, 3)
def workers_that_start_for_each_of_three_shuffled_epochs():
    b = TraceBuilder("NVIDIA H200")
    step(b, 5)
    for _ in range(3):
        seed(b)
        shuffle(b)
        for number in range(4):
            fetch(b, 0.3 if number else 300, pinned=True)
            step(b, 20)
        fetch(b, 9, pinned=True)
    return b


@EXAMPLES.positive(RULE, 9)
def workers_that_persist_and_are_late_within_each_epoch():
    b = TraceBuilder("NVIDIA A100-SXM4-40GB", (8, 0))
    step(b, 5)
    for _ in range(3):
        for _ in range(3):
            fetch(b, 60)
            step(b, 20)
        fetch(b, 0.1, pinned=True)
    return b


@EXAMPLES.positive(RULE, 8)
def two_loaders_side_by_side():
    b = TraceBuilder("NVIDIA H100 80GB HBM3")
    step(b, 3)
    for _ in range(4):
        fetch(b, 40, pinned=True)  # without labels
        fetch(b, 12)
        step(b, 6)
    step(b, 1)
    return b


@EXAMPLES.positive(RULE, 3)
def inference_without_shapes_in_a_compiled_region():
    b = TraceBuilder("NVIDIA B200", (10, 0))
    b.launch("triton_poi_fused_relu_0", 50)
    for _ in range(3):
        fetch(b, 8)
        with b.annotation("Torch-Compiled Region: 0/0"), b.op("triton_tem_fused_mm_1"):
            b.launch("triton_tem_fused_mm_1", 4_000, driver=True)
    return b


def two_waits(wait_ms: float, busy_ms: float) -> TraceBuilder:
    """Two late batches, between steps that are long or short."""
    b = TraceBuilder("NVIDIA H200")
    step(b, busy_ms)
    b.sync("cudaDeviceSynchronize")
    for _ in range(2):
        fetch(b, wait_ms)
        step(b, busy_ms)
        b.sync("cudaDeviceSynchronize")
    step(b, 0.1)
    return b


@EXAMPLES.positive(RULE, 2, also="host-sync")
def two_late_batches_that_take_more_than_the_share():
    return two_waits(10, 120)  # 20 of 380 ms


@EXAMPLES.near_miss(RULE, also="host-sync")
def two_late_batches_that_take_less_than_the_share():
    return two_waits(10, 144)


@EXAMPLES.positive(RULE, 2, also="host-sync")
def two_batches_a_little_more_than_the_hand_over_late():
    return two_waits(2.5, 5)


@EXAMPLES.near_miss(RULE, also="host-sync")
def two_batches_that_are_only_handed_over():
    return two_waits(1.5, 5)


@EXAMPLES.near_miss(RULE, also="host-sync")
def two_batches_taken_from_the_queue_at_once():
    b = TraceBuilder("NVIDIA H100 80GB HBM3")
    seed(b)
    fetch(b, 10)
    for _ in range(3):
        for wait_ms in (2.4, 0.1):
            step(b, 8)
            b.sync("cudaDeviceSynchronize")
            fetch(b, wait_ms)
    step(b, 8)
    return b


@EXAMPLES.near_miss(RULE)
def workers_that_keep_up():
    b = TraceBuilder("NVIDIA H100 80GB HBM3")
    for _ in range(8):
        fetch(b, 0.4)
        step(b, 25)
    return b


@EXAMPLES.near_miss(RULE)
def one_loader_to_train_and_one_to_validate():
    b = TraceBuilder("NVIDIA A100-SXM4-40GB", (8, 0))
    step(b, 4)
    for epoch_ms in (20, 6):
        seed(b)
        for number in range(5):
            fetch(b, 0.2 if number else 300)
            step(b, epoch_ms)
        fetch(b, 12, pinned=True)
    return b


@EXAMPLES.near_miss(RULE)
def a_single_late_batch():
    b = TraceBuilder("NVIDIA H200")
    step(b, 5)
    for number in range(8):
        fetch(b, 80 if number == 4 else 0.2)
        step(b, 10)
    return b


@EXAMPLES.near_miss(RULE)
def an_idle_device_between_fetches_that_are_short():
    b = TraceBuilder("NVIDIA H100 80GB HBM3")
    for _ in range(6):
        fetch(b, 0.3)
        b.advance(40_000)  # augmentation in NumPy, in this process
        step(b, 10)
    return b


# --------------------------------------------------------------------------------- on the CPU


class Pictures(Dataset[torch.Tensor]):
    """Items that take some time to be decoded."""

    def __init__(self, count=16, ms=8.0):
        self.count, self.ms = count, ms

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        time.sleep(self.ms / 1000)
        return torch.full((3, 4, 4), float(index))


def workers(dataset, **options):
    """A loader whose workers are forked, as by default on Linux."""
    return DataLoader(dataset, num_workers=1, multiprocessing_context="fork", **options)


@EXAMPLES.positive(RULE, ANY, **SHORT)
def one_worker_that_decodes_pictures():
    loader = workers(Pictures(), batch_size=2)

    def epoch():
        for batch in loader:  # <- here
            batch.sum()

    return epoch


@EXAMPLES.near_miss(RULE, **SHORT)
def a_loader_whose_batches_nobody_uses():
    loader = workers(Pictures(), batch_size=2)
    return lambda: sum(1 for _ in loader)
