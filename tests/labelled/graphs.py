"""Labelled examples of graphs that no backward pass uses."""

from __future__ import annotations

from itertools import pairwise

import torch
from labelled.case import Examples
from support.trace_builder import TraceBuilder
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

EXAMPLES = Examples()


def network():
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


# -------------------------------------------------------------------------------- missing-no-grad


@EXAMPLES.positive("missing-no-grad")
def an_evaluation():
    model, batches = network().eval(), torch.rand(4, 5, 3)
    return lambda: [model(batch).argmax(1) for batch in batches]  # <- here


@EXAMPLES.positive("missing-no-grad")
def a_single_layer():
    model, batches = nn.Linear(3, 2), torch.rand(4, 5, 3)

    def score():
        return max(model(batch).amax().item() for batch in batches)  # <- here

    return score


@EXAMPLES.positive("missing-no-grad")
def an_evaluation_after_a_training_step():
    model, batch = network(), torch.rand(5, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)

    def train():
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        model(batch).argmax(1)  # <- here

    return train


@EXAMPLES.positive("missing-no-grad")
def a_teacher_whose_result_is_detached():
    teacher, student, batch = network(), network(), torch.rand(5, 3)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1, foreach=True)

    def step():
        target = teacher(batch).detach()  # <- here
        (student(batch) - target).square().sum().backward()
        optimizer.step()

    return step


@EXAMPLES.positive("missing-no-grad", 3)
def a_generator_that_is_not_trained_now():
    generator, critic, noise = network(), nn.Linear(2, 1), torch.rand(3, 5, 3)

    def epoch():
        for part in noise:
            fake = generator(part).detach()  # <- here
            critic(fake).sum().backward()

    return epoch


@EXAMPLES.positive("missing-no-grad", 3, also="sync-dataloader")
def batches_of_a_loader():
    model, loader = network().eval(), DataLoader(torch.rand(6, 3), batch_size=2)

    def evaluate():
        for batch in loader:
            model(batch).argmax(1)  # <- here

    return evaluate


@EXAMPLES.positive("missing-no-grad")
def a_convolution_before_others():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2)).eval()
    images = torch.rand(3, 1, 1, 4, 4)
    return lambda: torch.cat([model(image) for image in images])  # <- here


@EXAMPLES.positive("missing-no-grad")
def an_encoder_and_a_loss_that_is_only_read():
    model = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, dropout=0.0)
    batch = torch.rand(1, 3, 4)

    def losses():
        for _ in range(3):
            yield model(batch).square().mean().item()  # <- here

    return lambda: sum(losses())


@EXAMPLES.positive("missing-no-grad")
def a_recurrent_network():
    model, batch = nn.LSTM(3, 4), torch.rand(2, 1, 3)
    return lambda: [model(batch)[0].sum().item() for _ in range(3)]  # <- here


@EXAMPLES.positive("missing-no-grad", 3, layers=1)
def a_probe_of_one_layer_with_a_lower_threshold():
    return with_probe()


@EXAMPLES.near_miss("missing-no-grad")
def a_probe_of_one_layer():
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


@EXAMPLES.near_miss("missing-no-grad")
def an_unused_head():
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
    model, batches = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 2)), torch.rand(3, 3, 4)

    def run():
        torch.autograd.gradcheck(torch.sin, (checked,), fast_mode=True)
        return [model(batch) for batch in batches]  # <- here

    return run


# ------------------------------------------------------------------- validation, samples, previews


class Denoiser(nn.Module):
    """Predicts the noise in ``x`` at time ``t``."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(8, 6)
        self.inner = nn.Linear(6, 12)
        self.out = nn.Linear(12, 6)

    def forward(self, x, t):
        hidden = F.silu(self.inner(x + self.embed(t)))
        return self.out(hidden)


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


@EXAMPLES.positive("missing-no-grad")
def a_validation_in_each_epoch():
    class Validating(Runner):
        def validate(self, batches):
            total = 0.0
            for x, y in batches:
                predicted = self.model(x)  # <- here
                total += self.loss(predicted, y).item()
            return total

    runner, batches = Validating(network()), pairs(3)

    def epoch():
        for x, y in batches:
            runner.training_step(x, y)
        return runner.validate(batches)

    return epoch


@EXAMPLES.positive("missing-no-grad")
def a_preview_between_two_steps():
    runner, batches, probe = Runner(network()), pairs(2), torch.rand(1, 3)

    def epoch():
        previews = []
        for number, (x, y) in enumerate(batches):
            runner.training_step(x, y)
            if number == 1:
                previews.append(runner.model(probe).clamp(0, 1))  # <- here
        return previews

    return epoch


@EXAMPLES.positive("missing-no-grad")
def samples_of_a_diffusion():
    model = Denoiser()

    def sample(count, steps):
        x = torch.randn(count, 6)
        for t in reversed(range(steps)):
            noise = model(x, torch.full((count,), t))  # <- here
            x = x - noise / steps + 0.1 * torch.randn_like(x)
        return x

    return lambda: sample(2, 5)


@EXAMPLES.positive("missing-no-grad")
def tokens_that_a_decoder_draws():
    table, body, head = nn.Embedding(16, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, 16)

    def generate(prompt, count):
        tokens = prompt
        for _ in range(count):
            hidden, _ = body(table(tokens))
            following = torch.multinomial(head(hidden[:, -1]).softmax(-1), 1)
            tokens = torch.cat([tokens, following], dim=1)
        return tokens

    def block():
        return generate(torch.zeros(2, 1, dtype=torch.long), 4)  # <- here

    return block


@EXAMPLES.positive("missing-no-grad")
def features_of_a_backbone_in_two_parts():
    stem, trunk, images = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), torch.rand(3, 1, 3, 8, 8)

    def extract(images):
        features = []
        for image in images:
            low = stem(image).relu()
            features.append(trunk(low).mean((2, 3)))
        return features

    def block():
        return torch.cat(extract(images))  # <- here

    return block


@EXAMPLES.positive("missing-no-grad")
def one_convolution_is_the_model():
    blur, frames = nn.Conv2d(1, 1, 3, bias=False), torch.rand(4, 1, 1, 8, 8)
    return lambda: [blur(frame).amax() for frame in frames]  # <- here


@EXAMPLES.positive("missing-no-grad")
def a_model_written_with_products():
    first, second = (torch.rand(4, 4, requires_grad=True) for _ in range(2))

    def forward(x):
        return (x @ first).relu() @ second  # <- here

    def evaluate(batches):
        return [forward(batch).argmax(-1) for batch in batches]

    batches = torch.rand(3, 5, 4)
    return lambda: evaluate(batches)


@EXAMPLES.positive("missing-no-grad")
def a_checkpoint_that_is_scored_in_a_module():
    class Ensemble(nn.Module):
        def __init__(self):
            super().__init__()
            self.members = nn.ModuleList(network() for _ in range(2))

        def forward(self, x):
            scores = [member(x) for member in self.members]
            return torch.stack(scores).mean(0)

    ensemble, batches = Ensemble(), torch.rand(3, 5, 3)

    def score():
        hits = 0
        for batch in batches:
            hits += ensemble(batch).argmax(1).sum().item()  # <- here
        return hits

    return score


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
def a_compiled_model_in_inference_mode():
    model, batches = anew(network().eval(), backend="aot_eager"), torch.rand(4, 5, 3)

    @torch.no_grad()
    def evaluate():
        return [model(batch) for batch in batches]

    return evaluate


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


@EXAMPLES.near_miss("missing-no-grad")
def one_call_that_keeps_little():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Conv2d(4, 1, 3), nn.Conv2d(1, 1, 3))
    image = torch.rand(1, 1, 768, 768)
    return lambda: model(image).mean().item()


@EXAMPLES.near_miss("missing-no-grad")
def one_call_that_looks_at_the_shape():
    model, batch = network().eval(), torch.rand(5, 3)

    def check():
        assert model(batch).shape == (5, 2)

    return check


@EXAMPLES.near_miss("missing-no-grad")
def two_calls_that_are_compared():
    model, batch = network().eval(), torch.rand(5, 3)

    def check():
        torch.testing.assert_close(model(batch), model(batch.clone()))

    return check


@EXAMPLES.near_miss("missing-no-grad")
def like_layers_that_run_once():
    blocks = [nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)) for _ in range(5)]
    model, batch = nn.Sequential(*blocks), torch.rand(2, 4)
    return lambda: model(batch).square().mean()


@EXAMPLES.near_miss("missing-no-grad")
def several_layers_that_are_tried_once_each():
    batch = torch.rand(5, 4)

    def check():
        for activation in (nn.ReLU, nn.GELU, nn.Tanh, nn.SiLU):
            layer = nn.Sequential(nn.Linear(4, 8), activation(), nn.Linear(8, 4))
            assert layer(batch).shape == batch.shape

    return check


@EXAMPLES.near_miss("missing-no-grad")
def a_kernel_and_what_it_is_multiplied_with():
    scale, points = torch.tensor(2.0, requires_grad=True), torch.rand(6, 2)

    def check():
        kernel = (-torch.cdist(points, points) * scale).exp()
        for columns in (1, 2, 3, 4):
            kernel @ torch.rand(6, columns)
            torch.matmul(kernel.mT, torch.rand(6, columns))

    return check


@EXAMPLES.near_miss("missing-no-grad")
def a_cell_within_one_forward():
    cell, sequence = nn.GRUCell(3, 4), torch.rand(6, 2, 3)

    def check():
        hidden = torch.zeros(2, 4)
        for x in sequence:
            hidden = cell(x, hidden)
        assert hidden.shape == (2, 4)

    return check


@EXAMPLES.near_miss("missing-no-grad")
def two_looks_after_long_training():
    runner, batches, probes = Runner(network()), pairs(24), torch.rand(2, 1, 3)

    def fit():
        for x, y in batches:
            runner.training_step(x, y)
        return [runner.model(probe) for probe in probes]

    return fit


@EXAMPLES.positive("missing-no-grad", share=0.01, cpu_share=0.0005)
def two_looks_with_a_lower_threshold():
    runner, batches, probes = Runner(network()), pairs(24), torch.rand(2, 1, 3)

    def fit():
        for x, y in batches:
            runner.training_step(x, y)
        return [runner.model(probe).argmax(1) for probe in probes]  # <- here

    return fit


@EXAMPLES.near_miss("missing-no-grad", share=0.5)
def a_preview_with_a_higher_threshold():
    return a_preview_between_two_steps()


@EXAMPLES.positive("missing-no-grad", bytes=1 << 20)
def one_call_with_a_lower_threshold():
    model, rows = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 2)), torch.rand(8192, 8)
    return lambda: model(rows).mean().item()  # <- here


@EXAMPLES.near_miss("missing-no-grad", bytes=4 << 20)
def one_call_with_a_lower_threshold_that_keeps_less():
    return one_call_with_a_lower_threshold()


@EXAMPLES.near_miss("missing-no-grad")
def a_validation_without_grad():
    class Validating(Runner):
        @torch.no_grad()
        def validate(self, batches):
            return [self.loss(self.model(x), y).item() for x, y in batches]

    runner, batches = Validating(network()), pairs(4)

    def epoch():
        for x, y in batches:
            runner.training_step(x, y)
        return runner.validate(batches)

    return epoch


@EXAMPLES.near_miss("missing-no-grad")
def losses_of_several_batches_and_one_backward():
    model, batches = network(), pairs(4)

    def step():
        losses = [F.mse_loss(model(x), y) for x, y in batches]
        torch.stack(losses).mean().backward()

    return step


@EXAMPLES.near_miss("missing-no-grad")
def one_head_for_all_levels_of_features():
    stem, head = (
        nn.Conv2d(3, 4, 3),
        nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1)),
    )
    image = torch.rand(1, 3, 16, 16)

    def check():
        features = stem(image)
        levels = [F.avg_pool2d(features, scale) for scale in (1, 2, 3, 4)]
        assert len([head(level) for level in levels]) == 4

    return check


@EXAMPLES.near_miss("missing-no-grad")
def a_recurrent_network_written_by_hand():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.of_input, self.of_state = nn.Linear(3, 4), nn.Linear(4, 4)

        def forward(self, sequence):
            state = sequence.new_zeros(sequence.shape[1], 4)
            for x in sequence:
                state = torch.tanh(self.of_input(x) + self.of_state(state))
            return state

    model, sequence = Recurrent(), torch.rand(6, 2, 3)

    def check():
        assert model(sequence).shape == (2, 4)

    return check


@EXAMPLES.positive("missing-no-grad")
def a_translation_of_what_an_encoder_has_read():
    encoder, table = nn.Linear(6, 8), nn.Embedding(16, 8)
    mix, head = nn.Linear(8, 8), nn.Linear(8, 16)

    def decode(source, count):
        memory = encoder(source).relu()
        token = torch.zeros(2, dtype=torch.long)
        tokens = []
        for _ in range(count):
            hidden = mix(table(token) + memory).relu()
            token = head(hidden).argmax(-1)
            tokens.append(token)
        return torch.stack(tokens)

    source = torch.rand(2, 6)
    return lambda: decode(source, 5)  # <- here


@EXAMPLES.positive("missing-no-grad")
def two_splits_are_scored_after_an_epoch():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    splits = {name: [torch.randn(4, 8) for _ in range(4)] for name in ("train", "val", "test")}

    def score(batches):
        return sum(model(batch).argmax(1).sum() for batch in batches)

    def run():
        for batch in splits["train"]:
            model.zero_grad()
            model(batch).square().mean().backward()
        val = score(splits["val"])  # <- here
        test = score(splits["test"])
        return val, test

    def main():
        return run()

    return main


@EXAMPLES.positive("missing-no-grad")
def layers_that_train_themselves_and_then_predict():
    class Layer(nn.Linear):
        def __init__(self, inputs, outputs):
            super().__init__(inputs, outputs)
            self.optimizer = torch.optim.SGD(self.parameters(), lr=0.1, foreach=True)

        def forward(self, x):
            return super().forward(x / (x.norm(2, 1, keepdim=True) + 1e-4)).relu()

        def fit(self, good, bad):
            for _ in range(10):
                energy = self.forward(bad).square().mean() - self.forward(good).square().mean()
                self.optimizer.zero_grad()
                energy.backward()
                self.optimizer.step()
            return self.forward(good).detach(), self.forward(bad).detach()

    class Net:
        def __init__(self, sizes):
            self.layers = [Layer(*two) for two in pairwise(sizes)]

        def train(self, good, bad):
            for layer in self.layers:
                good, bad = layer.fit(good, bad)

        def predict(self, x, labels=5):
            goodness = []
            for label in range(labels):
                h = x + label
                for layer in self.layers:
                    h = layer(h)
                goodness.append(h.square().mean(1))
            return torch.stack(goodness, 1).argmax(1)

    net, good, bad = Net([6, 6, 4]), torch.rand(5, 6), torch.rand(5, 6)

    def main():
        net.train(good, bad)
        return net.predict(good)  # <- here

    return main


# ------------------------------------------------------------------ single passes beside training


class _Learner(nn.Module):
    """Makes its lazy projection in the constructor, by a forward pass of something random."""

    def __init__(self, net, width=3):
        super().__init__()
        self.net, self.project = net, nn.LazyLinear(4)
        self.forward(torch.randn(2, width))

    def forward(self, x):
        one, other = self.project(self.net(x)), self.project(self.net(x + 0.1))
        return (one - other).square().mean()


def _learned(batches, width=3, steps=4):
    def pretrain():
        learner = _Learner(nn.Sequential(nn.Linear(width, 8), nn.ReLU(), nn.Linear(8, 2)), width)
        optimizer = torch.optim.AdamW(learner.parameters(), lr=1e-3, foreach=True)
        for batch in batches[:steps]:
            loss = learner(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return pretrain


@EXAMPLES.near_miss("missing-no-grad")
def lazy_layers_made_by_a_forward_pass_before_training():
    return _learned(torch.rand(4, 5, 3))


@EXAMPLES.near_miss("missing-no-grad")
def lazy_layers_made_before_a_single_step():
    return _learned(torch.rand(1, 5, 3))


class _TeachingLearner(_Learner):
    """Its last layer runs in the loss, too, and once more, in a number that is only shown."""

    def forward(self, x):
        loss = super().forward(x)
        self.shown = self.net[2](torch.ones(1, 8))
        return loss


@EXAMPLES.near_miss("missing-no-grad")
def lazy_layers_of_a_learner_that_shows_one_layer_in_each_step():
    batches = torch.rand(4, 5, 3)

    def pretrain():
        learner = _TeachingLearner(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)))
        optimizer = torch.optim.AdamW(learner.parameters(), lr=1e-3, foreach=True)
        for batch in batches:
            loss = learner(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return pretrain


@EXAMPLES.near_miss("missing-no-grad")
def a_look_at_the_output_before_training():
    runner, batches = Runner(network()), pairs(4)

    def fit():
        assert runner.model(batches[0][0]).shape == (5, 2)
        for x, y in batches:
            runner.training_step(x, y)

    return fit


@EXAMPLES.near_miss("missing-no-grad")
def a_single_pass_at_the_end_of_a_script():
    encoder, batches, whole = network(), pairs(4), torch.rand(5, 3)
    runner = Runner(encoder)

    def main():
        for x, y in batches:
            runner.training_step(x, y)
        z = encoder(whole)
        return (z @ z.t() > 0).nonzero()

    return main


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


@EXAMPLES.positive("missing-no-grad")
def batches_that_are_tried_before_training():
    runner, batches = Runner(network()), pairs(4)

    def fit():
        for x, y in batches[:3]:
            predicted = runner.model(x)  # <- here
            assert runner.loss(predicted, y).isfinite()
        for x, y in batches:
            runner.training_step(x, y)

    return fit


@EXAMPLES.positive("missing-no-grad", 2, cpu_share=0.002)
def a_preview_after_every_second_step():
    runner, batches, probe = Runner(network()), pairs(5), torch.rand(1, 3)

    def fit():
        for number, (x, y) in enumerate(batches):
            runner.training_step(x, y)
            if number % 2:
                preview = runner.model(probe)  # <- here
        return preview

    return fit


@EXAMPLES.positive("missing-no-grad", 2)
def a_teacher_in_two_steps_with_two_losses():
    teacher, student, batches = network(), network(), torch.rand(2, 5, 3)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1, foreach=True)

    def epoch():
        for batch in batches:
            target = teacher(batch).detach()  # <- here
            F.mse_loss(student(batch), target).backward()
            (student(batch) - target).abs().mean().backward()
            optimizer.step()

    return epoch


@EXAMPLES.positive("missing-no-grad", 4)
def a_memory_that_is_updated_in_each_step():
    class Memory(nn.Module):
        def __init__(self):
            super().__init__()
            self.message, self.cell = nn.Linear(3, 4), nn.GRUCell(4, 4)
            self.norm, self.state = nn.LayerNorm(4), torch.zeros(5, 4)

        def forward(self, events):
            return self.norm(self.cell(self.message(events), self.state))

        def update_state(self, events):
            self.state = self(events)  # <- here

        def detach(self):
            self.state = self.state.detach()

    memory, head, batches = Memory(), nn.Linear(4, 1), torch.rand(4, 5, 3)
    weights = [*memory.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(weights, lr=0.1, foreach=True)

    def epoch():
        for events in batches:
            optimizer.zero_grad()
            loss = head(memory(events)).square().mean()
            memory.update_state(events)
            loss.backward()
            optimizer.step()
            memory.detach()

    return epoch


@EXAMPLES.positive("missing-no-grad")
def samples_beside_a_model_of_which_each_loss_needs_another_head():
    class Critic(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(64, 128), nn.ReLU())
            self.validity = nn.Linear(128, 1)
            self.kind = nn.Sequential(nn.Linear(128, 10), nn.Softmax(1))
            self.code = nn.Sequential(nn.Linear(128, 2))

        def forward(self, x):
            features = self.body(x)
            return self.validity(features), self.kind(features), self.code(features)

    critic = Critic()
    generator = nn.Sequential(nn.Linear(16, 512), nn.ReLU(), nn.Linear(512, 64))
    optimizer = torch.optim.SGD(critic.parameters(), lr=0.1, foreach=True)

    def train():
        for _ in range(3):
            optimizer.zero_grad()
            critic(torch.randn(32, 64))[0].mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            _, kind, code = critic(torch.randn(32, 64))
            (kind[:, 0].mean() + code.mean()).backward()
            optimizer.step()
        for _ in range(3):
            generator(torch.randn(4000, 16)).tanh().detach()  # <- here

    return train


def _fit_once(model, batch):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    model(batch).sum().backward()
    optimizer.step()


@EXAMPLES.positive("missing-no-grad", 9)
def validation_with_heads_that_this_loss_does_not_train():
    stages = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
    heads = nn.ModuleList(nn.Linear(4, 2) for _ in range(4))
    first, rest = torch.rand(5, 4), torch.rand(9, 5, 4)

    def main():
        _fit_once(nn.Sequential(*stages), first)
        scores = []
        for batch in rest:
            x = batch
            for stage, head in zip(stages, heads, strict=True):
                x = stage(x)  # <- here
                scores.append(head(x).argmax(1))  # <- here
        return scores

    return main


@EXAMPLES.positive("missing-no-grad", 9)
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


@EXAMPLES.positive("missing-no-grad", 8)
def a_policy_that_acts_and_the_target_that_it_learns_from():
    def layers():
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))

    policy, target, seen, batches = layers(), layers(), torch.rand(1, 4), torch.rand(4, 5, 4)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1, fused=True)

    def act():
        return policy(seen).argmax(1).item()  # <- here

    def learn(batch):
        wanted = target(batch).detach()  # <- here
        F.mse_loss(policy(batch), wanted).backward()
        optimizer.step()
        optimizer.zero_grad()

    def main():
        for batch in batches:
            act()
            learn(batch)

    return main
