"""Labelled examples of the rules about training loops."""

from __future__ import annotations

import torch
from labelled.case import Examples
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
from trace_builder import TraceBuilder

EXAMPLES = Examples()

# -------------------------------------------------------------------------------- sync-dataloader


class Squares(Dataset[torch.Tensor]):
    """Items that are made one by one."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.tensor(float(index**2))


class Stream(IterableDataset[torch.Tensor]):
    """Items of which nobody knows how many there are."""

    def __iter__(self):
        return iter([torch.ones(2), torch.ones(2)])


class Nested(IterableDataset[torch.Tensor]):
    """Batches of another loader."""

    def __iter__(self):
        return iter(DataLoader(torch.rand(4, 2), batch_size=2))


@EXAMPLES.positive("sync-dataloader", 3)
def two_batches_and_the_end_of_the_loader():
    loader = DataLoader(torch.rand(8, 4), batch_size=4)

    def epoch():
        for batch in loader:  # <- here
            batch.sum()

    return epoch


@EXAMPLES.positive("sync-dataloader")
def the_first_batch_beside_one_of_a_loader_with_workers():
    data = torch.rand(100, 100)

    def first():
        next(iter(DataLoader(data, batch_size=10)))  # <- here
        next(iter(DataLoader(data, batch_size=10, num_workers=1)))

    return first


@EXAMPLES.positive("sync-dataloader", 3)
def a_dataset_of_items():
    loader = DataLoader(Squares(), batch_size=2, shuffle=True)
    return lambda: [batch.sum() for batch in loader]  # <- here


@EXAMPLES.positive("sync-dataloader", 3)
def a_dataset_that_streams():
    loader = DataLoader(Stream(), batch_size=1)
    return lambda: [batch.sum() for batch in loader]  # <- here


@EXAMPLES.positive("sync-dataloader", 3)
def inputs_and_targets():
    loader = DataLoader(TensorDataset(torch.rand(4, 2), torch.rand(4)), batch_size=2)
    return lambda: [(x.sum(), y.sum()) for x, y in loader]  # <- here


@EXAMPLES.positive("sync-dataloader", 6)
def two_epochs():
    loader = DataLoader(torch.rand(4, 2), batch_size=2)

    def train():
        for _ in range(2):
            for i, batch in enumerate(loader):  # <- here
                batch.mul(i)

    return train


@EXAMPLES.positive("sync-dataloader", 3)
def a_loader_that_reads_from_another():
    loader = DataLoader(Nested(), batch_size=None)
    return lambda: [batch.sum() for batch in loader]  # <- here


@EXAMPLES.positive("sync-dataloader", 2)
def a_trace_of_a_step_on_a_device():
    trace = TraceBuilder("NVIDIA H200")
    for step in range(2):
        with trace.annotation(f"ProfilerStep#{step}"):
            with trace.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
                trace.op("aten::stack", [[[4], [4]], []])
            with trace.op("aten::relu", [[8, 4]]):
                trace.launch("relu_kernel")
    return trace


@EXAMPLES.near_miss("sync-dataloader")
def a_loader_with_a_worker():
    loader = DataLoader(torch.rand(8, 4), batch_size=4, num_workers=1)
    return lambda: [batch.sum() for batch in loader]


@EXAMPLES.near_miss("sync-dataloader")
def a_stream_with_a_worker():
    loader = DataLoader(Stream(), batch_size=2, num_workers=1)
    return lambda: [batch.sum() for batch in loader]


@EXAMPLES.near_miss("sync-dataloader")
def a_loop_over_chunks_of_a_tensor():
    data = torch.rand(8, 4)

    def epoch():
        for batch in data.split(4):
            batch.sum()

    return epoch


@EXAMPLES.near_miss("sync-dataloader")
def a_loader_that_is_only_made():
    return lambda: len(DataLoader(torch.rand(8, 4), batch_size=4))


@EXAMPLES.near_miss("sync-dataloader")
def a_batch_that_was_loaded_before():
    batch = next(iter(DataLoader(torch.rand(8, 4), batch_size=4)))
    return batch.sum


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
        with torch.profiler.record_function("enumerate(DataLoader)"):
            torch.ones(2)
        with torch.profiler.record_function("my#_SingleProcessDataLoaderIter.__next__"):
            torch.ones(2)

    return load


@EXAMPLES.near_miss("sync-dataloader")
def a_trace_of_a_loader_with_workers():
    trace = TraceBuilder("NVIDIA H200")
    trace.annotation("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__")
    with trace.op("aten::relu", [[8, 4]]):
        trace.launch("relu_kernel")
    return trace
