"""Labelled examples of the rule about loaders of data."""

from __future__ import annotations

import time

import torch
from labelled.case import Examples
from support.trace_builder import TraceBuilder
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

EXAMPLES = Examples()


class Pictures(Dataset[torch.Tensor]):
    """Items that take some time to be decoded."""

    def __init__(self, count=8, ms=2.0):
        self.count, self.ms = count, ms

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        time.sleep(self.ms / 1000)
        return torch.full((3, 4, 4), float(index))


class Stream(IterableDataset[torch.Tensor]):
    """Items of an unknown number."""

    def __iter__(self):
        return iter([torch.ones(2), torch.ones(2)])


@EXAMPLES.positive("sync-dataloader", 5)
def batches_that_are_decoded_and_the_end_of_the_loader():
    loader = DataLoader(Pictures(), batch_size=2)

    def epoch():
        for batch in loader:  # <- here
            batch.sum()

    return epoch


def loaded(fetches=16, fetch_ms=10.0, step_ms=5.0, name="_SingleProcessDataLoaderIter"):
    """A trace of a loop that takes a batch and trains with it."""
    trace = TraceBuilder("NVIDIA H200")
    for step in range(fetches):
        with trace.annotation(f"ProfilerStep#{step}"):
            with trace.annotation(f"enumerate(DataLoader)#{name}.__next__"):
                trace.op("aten::stack", [[[4], [4]], []], dur_us=fetch_ms * 1e3)
            with trace.op("aten::relu", [[8, 4]], dur_us=step_ms * 1e3):
                trace.launch("relu_kernel")
    return trace


@EXAMPLES.positive("sync-dataloader", 16)
def a_trace_of_steps_on_a_device():
    return loaded()


@EXAMPLES.positive("sync-dataloader", 5)
def tensors_in_memory():
    loader = DataLoader(TensorDataset(torch.rand(64, 2), torch.rand(64)), batch_size=16)
    return lambda: [(x.sum(), y.sum()) for x, y in loader]  # <- here


@EXAMPLES.positive("sync-dataloader", 3)
def a_dataset_that_streams():
    loader = DataLoader(Stream(), batch_size=1)
    return lambda: [batch.sum() for batch in loader]  # <- here


@EXAMPLES.near_miss("sync-dataloader")
def a_loop_over_chunks_of_a_tensor():
    data = torch.rand(8, 4)

    def epoch():
        for batch in data.split(4):
            batch.sum()

    return epoch


@EXAMPLES.near_miss("sync-dataloader")
def a_loader_that_is_only_made():
    return lambda: torch.ones(len(DataLoader(Pictures(), batch_size=4)))


@EXAMPLES.near_miss("sync-dataloader")
def an_iterator_of_the_users_own():
    data = torch.rand(8, 4)

    def batches():
        for start in (0, 4):
            yield data[start : start + 4]

    return lambda: [batch.sum() for batch in batches()]


@EXAMPLES.near_miss("sync-dataloader")
def annotations_that_sound_like_it():
    def load():
        for _ in range(3):
            with torch.profiler.record_function("enumerate(DataLoader)"):
                time.sleep(0.04)
            with torch.profiler.record_function("my#_SingleProcessDataLoaderIter.__next__"):
                torch.ones(2)

    return load


@EXAMPLES.near_miss("sync-dataloader", also="starved-loader")
def a_trace_of_a_loader_with_workers():
    return loaded(name="_MultiProcessingDataLoaderIter")
