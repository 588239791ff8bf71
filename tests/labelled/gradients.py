"""Labelled examples of the rules about gradients and their graphs."""

from __future__ import annotations

import torch
from labelled.case import Examples
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader
from trace_builder import TraceBuilder

EXAMPLES = Examples()


def network():
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


# ---------------------------------------------------------------------------------- grad-not-none


def resetting(zero_grad, model=None, batch=None):
    """A training step that ends with ``zero_grad(model, optimizer)``."""
    model = model or network()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    batch = torch.rand(5, 3) if batch is None else batch

    def step():
        model(batch).sum().backward()
        optimizer.step()
        zero_grad(model, optimizer)

    return step


@EXAMPLES.positive("grad-not-none")
def an_optimizer_that_fills_in_one_go():
    return resetting(lambda _, optimizer: optimizer.zero_grad(set_to_none=False))  # <- here


@EXAMPLES.positive("grad-not-none")
def an_optimizer_that_fills_one_by_one():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.rand(5, 3)

    def step():
        optimizer.zero_grad(set_to_none=False)  # <- here
        model(batch).sum().backward()

    return step


@EXAMPLES.positive("grad-not-none")
def a_module_that_fills():
    return resetting(lambda model, _: model.zero_grad(set_to_none=False))  # <- here


@EXAMPLES.positive("grad-not-none")
def a_module_that_fills_before_the_forward_pass():
    model = network()
    batch = torch.rand(5, 3)

    def step():
        model.zero_grad(set_to_none=False)  # <- here
        model(batch).sum().backward()

    return step


@EXAMPLES.positive("grad-not-none", 2)
def a_module_and_its_optimizer():
    def both(model, optimizer):
        optimizer.zero_grad(set_to_none=False)  # <- here
        model.zero_grad(set_to_none=False)  # <- here

    return resetting(both)


@EXAMPLES.positive("grad-not-none", 3)
def three_steps():
    model = network()
    batch = torch.rand(5, 3)

    def steps():
        for _ in range(3):
            model.zero_grad(set_to_none=False)  # <- here
            model(batch).sum().backward()

    return steps


@EXAMPLES.positive("grad-not-none")
def gradients_of_two_passes_that_are_added_up():
    model = network()
    batch = torch.rand(5, 3)

    def step():
        for part in batch.split(3):
            model(part).sum().backward()
        model.zero_grad(set_to_none=False)  # <- here

    return step


@EXAMPLES.positive("grad-not-none")
def one_of_two_models():
    first, second = network(), nn.Linear(3, 7)
    batch = torch.rand(5, 3)

    def step():
        first(batch).sum().backward()
        second(batch).sum().backward()
        first.zero_grad(set_to_none=False)  # <- here
        second.zero_grad()

    return step


@EXAMPLES.positive("grad-not-none")
def gradients_that_are_zeroed_by_hand():
    def by_hand(model, _):
        for parameter in model.parameters():
            parameter.grad.zero_()  # <- here

    return resetting(by_hand)


@EXAMPLES.positive("grad-not-none", 2)
def a_trace_of_both_ways_on_a_device():
    trace = TraceBuilder("NVIDIA H200")
    with trace.annotation("Optimizer.zero_grad#SGD.zero_grad"):
        for shape in ([4, 3], [4]):
            with trace.op("aten::zero_", [shape]), trace.op("aten::fill_", [shape, []]):
                trace.launch("fill_kernel")
    with (
        trace.annotation("Optimizer.zero_grad#SGD.zero_grad"),
        trace.op("aten::_foreach_zero_", [[[4, 3], [4]]]),
    ):
        trace.launch("multi_tensor_apply_kernel")
    return trace


@EXAMPLES.near_miss("grad-not-none")
def an_optimizer_as_it_is():
    return resetting(lambda _, optimizer: optimizer.zero_grad())


@EXAMPLES.near_miss("grad-not-none")
def a_module_as_it_is():
    return resetting(lambda model, _: model.zero_grad())


@EXAMPLES.near_miss("grad-not-none")
def nothing_to_fill():
    def twice(_, optimizer):
        optimizer.zero_grad()
        optimizer.zero_grad(set_to_none=False)

    return resetting(twice)


@EXAMPLES.near_miss("grad-not-none")
def a_cache_that_is_cleared():
    keys, values = torch.ones(2, 8, 4), torch.ones(2, 8, 4)

    def clear(*_):
        keys.zero_()
        values.zero_()

    return resetting(clear)


@EXAMPLES.near_miss("grad-not-none")
def metrics_of_the_shape_of_a_parameter():
    hits, total = torch.ones(4), torch.ones(())

    def reset(*_):
        hits.zero_()
        total.zero_()

    return resetting(reset)


@EXAMPLES.near_miss("grad-not-none")
def statistics_of_a_batch_norm():
    model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4))
    return resetting(lambda model, _: model[1].reset_running_stats(), model)


@EXAMPLES.near_miss("grad-not-none")
def new_tensors_of_zeros():
    def make(model, _):
        for parameter in model.parameters():
            torch.zeros_like(parameter)
            parameter.new_zeros(parameter.shape)

    return resetting(make)


@EXAMPLES.near_miss("grad-not-none")
def zeros_within_a_backward_pass():
    model = nn.Sequential(nn.Embedding(6, 3), nn.LayerNorm(3), nn.Linear(3, 2))
    return resetting(lambda _, optimizer: optimizer.zero_grad(), model, torch.tensor([1, 4]))


@EXAMPLES.near_miss("grad-not-none")
def parameters_that_are_initialised():
    def initialise(model, _):
        nn.init.zeros_(model[0].bias)
        nn.init.ones_(model[0].weight)
        nn.init.zeros_(model[2].bias)

    return resetting(initialise)


@EXAMPLES.near_miss("grad-not-none")
def buffers_without_any_backward_pass():
    buffers = [torch.ones(4, 3), torch.ones(4)]
    return lambda: [buffer.zero_() for buffer in buffers]


# -------------------------------------------------------------------------------- missing-no-grad


@EXAMPLES.positive("missing-no-grad")
def an_evaluation():
    model, batch = network().eval(), torch.rand(5, 3)
    return lambda: model(batch).argmax(1)  # <- here


@EXAMPLES.positive("missing-no-grad")
def a_single_layer():
    model, batch = nn.Linear(3, 2), torch.rand(5, 3)
    return lambda: model(batch)  # <- here


@EXAMPLES.positive("missing-no-grad")
def an_evaluation_after_a_training_step():
    model, batch = network(), torch.rand(5, 3)

    def train():
        model(batch).sum().backward()
        model(batch).argmax(1)  # <- here

    return train


@EXAMPLES.positive("missing-no-grad")
def a_teacher_whose_result_is_detached():
    teacher, student, batch = network(), network(), torch.rand(5, 3)

    def step():
        target = teacher(batch).detach()  # <- here
        (student(batch) - target).square().sum().backward()

    return step


@EXAMPLES.positive("missing-no-grad")
def a_generator_that_is_not_trained_now():
    generator, critic, noise = network(), nn.Linear(2, 1), torch.rand(5, 3)

    def step():
        fake = generator(noise).detach()  # <- here
        critic(fake).sum().backward()

    return step


@EXAMPLES.positive("missing-no-grad", 2, also="sync-dataloader")
def two_batches_of_a_loader():
    model, loader = network().eval(), DataLoader(torch.rand(4, 3), batch_size=2)

    def evaluate():
        for batch in loader:
            model(batch).argmax(1)  # <- here

    return evaluate


@EXAMPLES.positive("missing-no-grad")
def a_convolution_before_others():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2)).eval()
    batch = torch.rand(1, 1, 4, 4)
    return lambda: model(batch)  # <- here


@EXAMPLES.positive("missing-no-grad")
def an_encoder_and_a_loss_that_is_only_read():
    model = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, dropout=0.0)
    batch = torch.rand(1, 3, 4)
    return lambda: model(batch).square().mean().item()  # <- here


@EXAMPLES.positive("missing-no-grad")
def a_recurrent_network():
    model, batch = nn.LSTM(3, 4), torch.rand(2, 1, 3)
    return lambda: model(batch)[0].sum().item()  # <- here


@EXAMPLES.positive("missing-no-grad", layers=1)
def an_unused_head_with_a_lower_threshold():
    return with_unused_head()


@EXAMPLES.near_miss("missing-no-grad")
def an_unused_head():
    return with_unused_head()


def with_unused_head():
    body, head, other, batch = nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(4, 2), torch.rand(5, 3)

    def step():
        hidden = body(batch)
        other(hidden).relu()  # <- here
        head(hidden).sum().backward()

    return step


@EXAMPLES.near_miss("missing-no-grad")
def a_training_step():
    model, batch = network(), torch.rand(5, 3)
    return lambda: model(batch).sum().backward()


@EXAMPLES.near_miss("missing-no-grad")
def an_evaluation_without_grad_after_training():
    model, batch = network(), torch.rand(5, 3)

    def train():
        model(batch).sum().backward()
        with torch.no_grad():
            model(batch).argmax(1)

    return train


@EXAMPLES.near_miss("missing-no-grad")
def inference_mode():
    model, batch = network(), torch.rand(5, 3)

    @torch.inference_mode()
    def predict():
        return model(batch)

    return predict


@EXAMPLES.near_miss("missing-no-grad")
def parameters_that_are_frozen():
    model, batch = network().requires_grad_(False), torch.rand(5, 3)
    return lambda: model(batch)


@EXAMPLES.near_miss("missing-no-grad")
def tensors_that_need_no_gradient():
    x, w = torch.rand(5, 3), torch.rand(3, 2)
    return lambda: (x @ w).relu().sum()


@EXAMPLES.near_miss("missing-no-grad")
def arithmetic_without_layers():
    w = torch.rand(3, requires_grad=True)
    return lambda: (w * 2).sum().item()


@EXAMPLES.near_miss("missing-no-grad")
def gradients_of_the_input():
    model, x = network(), torch.rand(5, 3, requires_grad=True)
    return lambda: torch.autograd.grad(model(x).sum(), x)


@EXAMPLES.near_miss("missing-no-grad")
def a_penalty_on_the_gradient():
    model, x = network(), torch.rand(5, 3, requires_grad=True)

    def step():
        (slope,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        slope.square().sum().backward()

    return step


@EXAMPLES.near_miss("missing-no-grad")
def checkpoints_of_both_kinds():
    model, x = network(), torch.rand(5, 3, requires_grad=True)

    def step():
        for reentrant in (False, True):
            checkpoint(model, x, use_reentrant=reentrant).sum().backward()

    return step


@EXAMPLES.near_miss("missing-no-grad")
def a_functional_gradient():
    model, batch = network(), torch.rand(5, 3)
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(values):
        return torch.func.functional_call(model, values, (batch,)).sum()

    return lambda: torch.func.grad(loss)(parameters)


@EXAMPLES.near_miss("missing-no-grad")
def two_forward_passes_for_one_backward():
    model, x, y = network(), torch.rand(5, 3), torch.rand(5, 3)

    def step():
        a, b = model(x), model(y)
        accuracy = (a.argmax(1) == b.argmax(1)).sum()
        (a - b).square().sum().backward()
        return accuracy

    return step


@EXAMPLES.near_miss("missing-no-grad")
def a_critic_of_what_is_real_and_what_is_not():
    generator, critic = network(), nn.Linear(2, 1)
    real, noise = torch.rand(5, 2), torch.rand(5, 3)

    def step():
        with torch.no_grad():
            fake = generator(noise)
        (critic(real) - critic(fake)).sum().backward()
        critic(generator(noise)).sum().backward()

    return step


@EXAMPLES.near_miss("missing-no-grad")
def a_trace_without_the_backward_thread():
    trace = TraceBuilder("NVIDIA H200")
    for number in range(2):
        trace.op("aten::linear", [[5, 3], [4, 3], [4]], args={"Sequence number": 7 * number})
        trace.op("aten::relu", [[5, 4]], args={"Sequence number": 7 * number + 2})
    with trace.annotation("Optimizer.step#Adam.step"):
        trace.op("aten::_foreach_add_", [[[4, 3], [4]], []])
    return trace


@EXAMPLES.near_miss("missing-no-grad")
def a_gradcheck():
    x = torch.rand(3, 4, dtype=torch.double, requires_grad=True)
    return lambda: torch.autograd.gradcheck(lambda x: x @ x.T, (x,))


@EXAMPLES.near_miss("missing-no-grad")
def a_gradcheck_of_a_layer():
    x = torch.rand(3, 4, dtype=torch.double, requires_grad=True)
    weight = torch.rand(5, 4, dtype=torch.double, requires_grad=True)
    return lambda: torch.autograd.gradcheck(F.linear, (x, weight))


@EXAMPLES.near_miss("missing-no-grad")
def a_fast_gradcheck_of_two_outputs():
    layer = nn.Linear(4, 5).double()
    x = torch.rand(3, 4, dtype=torch.double, requires_grad=True)
    both = lambda x: (layer(x), x.sin())
    return lambda: torch.autograd.gradcheck(both, (x,), fast_mode=True)


@EXAMPLES.positive("missing-no-grad")
def a_forward_beside_a_gradcheck():
    checked = torch.rand(2, 2, dtype=torch.double, requires_grad=True)
    model, batch = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 2)), torch.rand(3, 4)

    def run():
        torch.autograd.gradcheck(torch.sin, (checked,), fast_mode=True)
        return model(batch)  # <- here

    return run
