"""Labelled examples of the rules about training loops."""

from __future__ import annotations

import torch
from labelled.case import Examples
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it
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


# ------------------------------------------------------------------------ single-tensor-optimizer


def training(kind, *, width=4, **options):
    """A training step of a small model, unless ``options`` say another."""
    model = nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, 2))
    return stepping(model, kind(model.parameters(), **options), torch.rand(5, 3))


def stepping(model, optimizer, batch):
    """A step of this optimizer."""

    def step():
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()  # <- here

    return step


@EXAMPLES.positive("single-tensor-optimizer")
def adam_as_it_is_on_the_cpu():
    return training(torch.optim.Adam)


@EXAMPLES.positive("single-tensor-optimizer")
def adamw_with_amsgrad_and_maximize():
    return training(torch.optim.AdamW, amsgrad=True, maximize=True)


@EXAMPLES.positive("single-tensor-optimizer")
def plain_sgd():
    return training(torch.optim.SGD, lr=0.1)


@EXAMPLES.positive("single-tensor-optimizer")
def sgd_with_momentum_nesterov_and_weight_decay():
    options = {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}
    return training(torch.optim.SGD, lr=0.1, **options)


@EXAMPLES.positive("single-tensor-optimizer")
def rmsprop_that_is_centered():
    return training(torch.optim.RMSprop, centered=True)


@EXAMPLES.positive("single-tensor-optimizer")
def a_learning_rate_that_is_a_tensor():
    return training(torch.optim.Adam, lr=torch.tensor(0.1))


@EXAMPLES.positive("single-tensor-optimizer", 2)
def the_first_step_with_momentum_and_the_second():
    batch = torch.rand(5, 3)

    def train():
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(2):
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()  # <- here

    return train


@EXAMPLES.positive("single-tensor-optimizer")
def two_groups_and_a_parameter_without_a_gradient():
    model = nn.Linear(3, 2)
    unused = nn.Parameter(torch.rand(3))
    groups = [{"params": [model.weight, unused]}, {"params": [model.bias], "lr": 0.1}]
    return stepping(model, torch.optim.Adagrad(groups), torch.rand(5, 3))


@EXAMPLES.positive("single-tensor-optimizer")
def a_step_with_a_closure():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.rand(5, 3)

    def closure():
        optimizer.zero_grad()
        loss = model(batch).sum()
        loss.backward()
        return loss

    return lambda: optimizer.step(closure)  # <- here


@EXAMPLES.positive("single-tensor-optimizer", 2)
def one_of_each_other_class():
    models = [nn.Linear(3, 2), nn.Linear(3, 2)]
    kinds = (torch.optim.NAdam, torch.optim.RAdam)
    optimizers = [kind(m.parameters()) for m, kind in zip(models, kinds, strict=True)]
    batch = torch.rand(5, 3)

    def step():
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()  # <- here

    return step


def adam_step(trace, parameters):
    """What a step of Adam of these parameters leaves in a trace of a device."""
    names = ["mul_", "lerp_", "addcmul_", "sqrt", "div_", "add_", "addcdiv_"]
    for shape in parameters:
        for name in names:
            with trace.op(f"aten::{name}", [shape, shape]):
                trace.launch(f"{name}_kernel")


@EXAMPLES.positive("single-tensor-optimizer")
def a_trace_of_adam_on_a_device():
    trace = TraceBuilder("NVIDIA H200")
    with trace.annotation("Optimizer.step#Adam.step"):
        adam_step(trace, [[4, 3], [4]])
    return trace


@EXAMPLES.positive("single-tensor-optimizer")
def a_trace_of_a_subclass_with_stacks():
    trace = TraceBuilder("NVIDIA H200")
    with (
        trace.python("train.py(12): train"),
        trace.annotation("Optimizer.step#AdamWithWarmup.step"),
        trace.python("torch/optim/adam.py(225): step"),
        trace.python("torch/optim/adam.py(345): _single_tensor_adam"),
    ):
        adam_step(trace, [[4, 3], [4]])
    return trace


@EXAMPLES.positive("single-tensor-optimizer", parameters=4)
def as_many_parameters_as_the_threshold():
    return training(torch.optim.Adam)


@EXAMPLES.near_miss("single-tensor-optimizer", parameters=5)
def fewer_parameters_than_the_threshold():
    return training(torch.optim.Adam)


@EXAMPLES.near_miss("single-tensor-optimizer")
def adam_with_foreach():
    return training(torch.optim.Adam, foreach=True)


@EXAMPLES.near_miss("single-tensor-optimizer")
def fused_adamw():
    return training(torch.optim.AdamW, fused=True)


@EXAMPLES.near_miss("single-tensor-optimizer")
def sgd_with_momentum_and_foreach():
    return training(torch.optim.SGD, lr=0.1, momentum=0.9, foreach=True)


@EXAMPLES.near_miss("single-tensor-optimizer")
def rprop_with_foreach_that_clamps_one_by_one():
    return training(torch.optim.Rprop, foreach=True)


@EXAMPLES.near_miss("single-tensor-optimizer")
def a_single_parameter():
    model = nn.Linear(3, 2, bias=False)
    return stepping(model, torch.optim.Adam(model.parameters()), torch.rand(5, 3))


@EXAMPLES.near_miss("single-tensor-optimizer")
def a_single_parameter_with_momentum():
    model = nn.Linear(3, 2, bias=False)
    options = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}
    return stepping(model, torch.optim.SGD(model.parameters(), **options), torch.rand(5, 3))


@EXAMPLES.near_miss("single-tensor-optimizer")
def a_class_that_has_no_other_form():
    model = nn.Linear(3, 2)
    batch = torch.rand(5, 3)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure():
        optimizer.zero_grad()
        loss = F.mse_loss(model(batch), torch.ones(5, 2))
        loss.backward()
        return loss

    return lambda: optimizer.step(closure)


@EXAMPLES.near_miss("single-tensor-optimizer")
def sparse_gradients():
    first = nn.Embedding(8, 2, sparse=True)
    second = nn.Embedding(8, 2, sparse=True)
    model = lambda rows: first(rows) + second(rows)
    parameters = [first.weight, second.weight]
    optimizer = torch.optim.SGD(parameters, lr=0.1, foreach=True)
    return stepping(model, optimizer, torch.tensor([1, 2]))


@EXAMPLES.near_miss("single-tensor-optimizer")
def gradients_of_one_parameter_only():
    model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.Linear(4, 2).requires_grad_(False))
    optimizer = torch.optim.Adam(model.parameters())
    return stepping(model, optimizer, torch.rand(5, 3))


@EXAMPLES.near_miss("single-tensor-optimizer")
def an_update_written_by_hand():
    model = nn.Linear(3, 2)
    batch = torch.rand(5, 3)

    def step():
        model.zero_grad()
        model(batch).sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(parameter.grad, alpha=-0.1)

    return step


@EXAMPLES.near_miss("single-tensor-optimizer")
def a_trace_of_a_class_nobody_knows():
    trace = TraceBuilder("NVIDIA H200")
    with trace.annotation("Optimizer.step#AdamWithWarmup.step"):
        adam_step(trace, [[4, 3], [4]])
    return trace


@EXAMPLES.near_miss("single-tensor-optimizer")
def a_trace_of_foreach_on_a_device():
    trace = TraceBuilder("NVIDIA H200")
    with trace.annotation("Optimizer.step#Adam.step"):
        for name in ("lerp_", "mul_", "addcmul_", "addcdiv_"):
            with trace.op(f"aten::_foreach_{name}", [[[4, 3], [4]]]):
                trace.launch("multi_tensor_apply_kernel")
    return trace
