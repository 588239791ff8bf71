"""Labelled examples of graphs that no backward pass uses."""

from __future__ import annotations

import torch
from labelled.case import Examples
from support.trace_builder import TraceBuilder
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

EXAMPLES = Examples()


def network():
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


# -------------------------------------------------------------------------------- missing-no-grad


@EXAMPLES.positive("missing-no-grad")
def a_recurrent_network():
    model, batch = nn.LSTM(3, 4), torch.rand(2, 1, 3)
    return lambda: [model(batch)[0].sum().item() for _ in range(3)]  # <- here


@EXAMPLES.positive("missing-no-grad", 3, layers=1)
def a_probe_of_one_layer_with_a_lower_threshold():
    return with_probe()


def with_probe():
    body, head, probe, batch = nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(3, 2), torch.rand(5, 3)

    def epoch():
        for _ in range(3):
            hidden = body(batch)
            probe(batch).relu()  # <- here
            head(hidden).sum().backward()

    return epoch


@EXAMPLES.near_miss("missing-no-grad", layers=1)
def an_unused_head_with_a_lower_threshold():
    return with_unused_head()


def with_unused_head():
    body, head, other, batch = nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(4, 2), torch.rand(5, 3)

    def epoch():
        for _ in range(3):
            hidden = body(batch)
            other(hidden).relu()
            head(hidden).sum().backward()

    return epoch


@EXAMPLES.near_miss("missing-no-grad")
def inference_mode():
    model, batch = network(), torch.rand(5, 3)

    @torch.inference_mode()
    def predict():
        return model(batch)

    return predict


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


@EXAMPLES.positive("missing-no-grad")
def a_forward_beside_a_gradcheck():
    checked = torch.rand(2, 2, dtype=torch.double, requires_grad=True)
    model, batches = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 2)), torch.rand(3, 3, 4)

    def run():
        torch.autograd.gradcheck(torch.sin, (checked,), fast_mode=True)
        return [model(batch) for batch in batches]  # <- here

    return run


# ------------------------------------------------------------------- validation, samples, previews


class Runner:
    """A trainer of the kind that most projects have one of."""

    def __init__(self, model, loss=None):
        self.model, self.loss = model, loss or nn.MSELoss()
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)

    def training_step(self, x, y):
        self.optimizer.zero_grad()
        loss = self.loss(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.item()


def pairs(n, width=3, classes=2):
    return [(torch.rand(5, width), torch.rand(5, classes)) for _ in range(n)]


@EXAMPLES.near_miss("missing-no-grad")
def a_preview_between_two_steps():
    runner, batches, probe = Runner(network()), pairs(2), torch.rand(1, 3)

    def epoch():
        previews = []
        for number, (x, y) in enumerate(batches):
            runner.training_step(x, y)
            if number == 1:
                previews.append(runner.model(probe).clamp(0, 1))
        return previews

    return epoch


@EXAMPLES.positive("missing-no-grad")
def a_model_written_with_products():
    first, second = (torch.rand(4, 4, requires_grad=True) for _ in range(2))

    def forward(x):
        return (x @ first).relu() @ second  # <- here

    def evaluate(batches):
        return [forward(batch).argmax(-1) for batch in batches]

    batches = torch.rand(3, 5, 4)
    return lambda: evaluate(batches)


def anew(model, **options):
    """Compiled, with nothing compiled before it."""
    torch._dynamo.reset()
    return torch.compile(model, **options)


@EXAMPLES.positive("missing-no-grad")
def a_compiled_model_that_is_evaluated():
    model, batches = anew(network().eval(), backend="aot_eager"), torch.rand(4, 5, 3)

    def evaluate():
        hits = 0
        for batch in batches:
            logits = model(batch)  # <- here
            hits += int(logits.argmax(-1).sum())
        return hits

    return evaluate


@EXAMPLES.positive("missing-no-grad")
def a_compiled_graph_that_runs_operator_by_operator():
    model, batches = anew(network().eval(), backend="eager"), torch.rand(4, 5, 3)
    return lambda: [model(batch).argmax(-1) for batch in batches]  # <- here


@EXAMPLES.near_miss("missing-no-grad")
def a_compiled_model_that_is_trained():
    model, batches = anew(network(), backend="aot_eager"), pairs(4)

    def epoch():
        for x, y in batches:
            F.mse_loss(model(x), y).backward()

    return epoch


@EXAMPLES.positive("missing-no-grad", repeats=2)
def two_calls_with_a_lower_threshold():
    model, batch = network(), torch.rand(5, 3)
    return lambda: [model(batch) for _ in range(2)]  # <- here


@EXAMPLES.positive("missing-no-grad")
def one_call_that_keeps_much():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Conv2d(4, 1, 3), nn.Conv2d(1, 1, 3))
    image = torch.rand(1, 1, 1024, 1024)
    return lambda: model(image).mean().item()  # <- here


@EXAMPLES.positive("missing-no-grad", share=0.01, cpu_share=0.0005)
def two_looks_with_a_lower_threshold():
    runner, batches, probes = Runner(network()), pairs(24), torch.rand(2, 1, 3)

    def fit():
        for x, y in batches:
            runner.training_step(x, y)
        return [runner.model(probe).argmax(1) for probe in probes]  # <- here

    return fit


@EXAMPLES.near_miss("missing-no-grad", share=0.5)
def two_looks_with_a_higher_threshold():
    return two_looks_with_a_lower_threshold()


@EXAMPLES.positive("missing-no-grad", bytes=1 << 20)
def one_call_with_a_lower_threshold():
    model, rows = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 2)), torch.rand(8192, 8)
    return lambda: model(rows).mean().item()  # <- here


@EXAMPLES.near_miss("missing-no-grad", bytes=4 << 20)
def one_call_with_a_lower_threshold_that_keeps_less():
    return one_call_with_a_lower_threshold()


# ------------------------------------------------------------------ single passes beside training


@EXAMPLES.positive("missing-no-grad")
def a_single_pass_at_the_end_that_keeps_much():
    body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Conv2d(4, 1, 3), nn.Conv2d(1, 1, 3))
    runner, image = Runner(body), torch.rand(1, 1, 1024, 1024)
    batches = [(torch.rand(1, 1, 16, 16), torch.rand(1, 1, 10, 10)) for _ in range(4)]

    def main():
        for x, y in batches:
            runner.training_step(x, y)
        return runner.model(image).mean().item()  # <- here

    return main


def _fit_once(model, batch):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    model(batch).sum().backward()
    optimizer.step()


@EXAMPLES.positive("missing-no-grad")
def a_net_compared_with_its_frozen_copy_layer_by_layer():
    model, copied = (nn.ModuleList(nn.Linear(4, 4) for _ in range(4)) for _ in range(2))
    first, rest = torch.rand(5, 4), torch.rand(9, 5, 4)

    def main():
        _fit_once(nn.Sequential(*model), first)
        far = []
        for batch in rest:
            x = y = batch
            for one, other in zip(model, copied, strict=True):
                x, y = one(x), other(y)  # <- here
                far.append((x - y).norm().item())
        return far

    return main
