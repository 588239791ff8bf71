"""Labelled examples of models that predict in training mode, and of steps that grow."""

from __future__ import annotations

import torch
from labelled.case import Examples
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

EXAMPLES = Examples()

# --------------------------------------------------------------------------- train-mode-inference


def classifier(*, dropout=0.5, norm=False):
    """A small model, in training mode as it is made."""
    between = [nn.BatchNorm1d(16)] if norm else []
    return nn.Sequential(
        nn.Linear(8, 16, bias=not norm), *between, nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 3)
    )


def predicting(model, batches):
    """Classes of each batch."""

    @torch.inference_mode()
    def predict():
        return [model(batch).argmax(1) for batch in batches]  # <- here

    return predict


@EXAMPLES.positive("train-mode-inference")
def predictions_with_dropout():
    return predicting(classifier(), torch.randn(4, 5, 8))


@EXAMPLES.positive("train-mode-inference")
def predictions_with_the_statistics_of_the_batch():
    return predicting(classifier(dropout=0.0, norm=True), torch.randn(4, 5, 8))


@EXAMPLES.positive("train-mode-inference")
def predictions_of_three_batches():
    return predicting(classifier(), torch.randn(3, 5, 8))


@EXAMPLES.near_miss("train-mode-inference")
def predictions_of_two_batches():
    return predicting(classifier(), torch.randn(2, 5, 8))


class Digits(nn.Module):
    """The network of torch's first example."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 8, 3)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(8 * 16, 16), nn.Linear(16, 10)

    def forward(self, x):
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        x = self.dropout1(F.max_pool2d(x, 2)).flatten(1)
        return F.log_softmax(self.fc2(self.dropout2(F.relu(self.fc1(x)))), dim=1)


@EXAMPLES.positive("train-mode-inference")
def an_evaluation_after_training():
    model, images = Digits(), torch.randn(4, 6, 1, 12, 12)
    labels = torch.randint(10, (4, 6))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=True)

    def main():
        for batch, wanted in zip(images, labels, strict=True):
            optimizer.zero_grad()
            F.nll_loss(model(batch), wanted).backward()
            optimizer.step()
        correct = 0
        with torch.no_grad():
            for batch, wanted in zip(images, labels, strict=True):
                correct += (model(batch).argmax(1) == wanted).sum()  # <- here
        return correct

    return main


@EXAMPLES.positive("train-mode-inference")
def embeddings_by_a_transformer():
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
    model, texts = nn.TransformerEncoder(layer, 2), torch.randn(4, 2, 6, 16)

    @torch.no_grad()
    def embed():
        return torch.cat([model(text).mean(1) for text in texts])  # <- here

    return embed


@EXAMPLES.near_miss("train-mode-inference")
def predictions_in_evaluation():
    return predicting(classifier(norm=True).eval(), torch.randn(4, 5, 8))


@EXAMPLES.near_miss("train-mode-inference")
def samples_of_one_input_with_dropout():
    model, x = classifier(), torch.randn(5, 8)

    @torch.no_grad()
    def sample():
        return torch.stack([model(x).softmax(-1) for _ in range(8)]).std(0)

    return sample


@EXAMPLES.near_miss("train-mode-inference")
def statistics_that_are_computed_anew():
    model, batches = classifier(dropout=0.0, norm=True), torch.randn(4, 5, 8)

    @torch.no_grad()
    def update():
        model[1].reset_running_stats()
        model[1].momentum = None
        for batch in batches:
            model(batch)

    return update


@EXAMPLES.near_miss("train-mode-inference")
def a_teacher_in_training_mode():
    student, teacher = classifier(norm=True), classifier(norm=True)
    batches = torch.randn(4, 5, 8)

    def distill():
        for batch in batches:
            with torch.no_grad():
                target = teacher(batch)
            F.mse_loss(student(batch), target).backward()

    return distill


@EXAMPLES.near_miss("train-mode-inference")
def batches_whose_gradients_add_up():
    model, batches = classifier(norm=True), torch.randn(4, 5, 8)
    return lambda: sum(model(batch).square().mean() for batch in batches).backward()


@EXAMPLES.near_miss("train-mode-inference")
def activations_that_are_computed_again():
    model, batches = classifier(), torch.randn(4, 5, 8, requires_grad=True)

    def step():
        outs = [
            torch.utils.checkpoint.checkpoint(model, batch, use_reentrant=True) for batch in batches
        ]
        torch.stack(outs).mean().backward()

    return step


@EXAMPLES.near_miss("train-mode-inference")
def a_recurrent_network_with_dropout_in_each_step():
    class Cells(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.mix, self.dropout = nn.Linear(8, 8), nn.Linear(8, 8), nn.Dropout(0.2)

        def forward(self, xs):
            h = xs[0]
            for x in xs:
                h = self.dropout(torch.tanh(self.cell(x) + self.mix(h)))
            return h

    model, xs = Cells(), torch.randn(6, 2, 8)

    @torch.no_grad()
    def run():
        return model(xs).argmax(1)

    return run


# ----------------------------------------------------------------------------------- growing-graph


def regression(count=8, width=4):
    """A model, its optimizer, and batches."""
    model = nn.Sequential(nn.Linear(width, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=True)
    return model, optimizer, torch.randn(count, 5, width)


def training(after, count=8):
    """Steps of training; ``after`` is called with the model, the loss and the batch of each."""
    model, optimizer, batches = regression(count)

    def fit():
        for batch in batches:
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            after(model, loss.detach(), batch)

    return fit


def walking(count):
    """Training that sums up all losses so far in each step."""
    losses = []

    def log(model, loss, batch):
        losses.append(loss)
        return sum(losses)  # <- here

    fit = training(log, count)
    return lambda: (losses.clear(), fit())


@EXAMPLES.positive("growing-graph")
def losses_that_are_summed_up_from_the_start_in_each_step():
    return walking(8)


@EXAMPLES.positive("growing-graph", steps=6)
def as_many_steps_as_the_threshold():
    return walking(8)


@EXAMPLES.near_miss("growing-graph", steps=9)
def fewer_steps_than_the_threshold():
    return walking(8)


@EXAMPLES.positive("growing-graph")
def hooks_that_are_registered_in_each_step():
    means, handles = [], []

    def look(module, inputs, output):
        means.append(output.detach().mean())  # <- here

    fit = training(lambda model, *_: handles.append(model[0].register_forward_hook(look)))

    def run():
        while handles:
            handles.pop().remove()
        means.clear()
        fit()

    return run


@EXAMPLES.positive("growing-graph")
def distances_to_all_weights_before():
    kept = []

    def compare(model, loss, batch):
        weight = model[0].weight.detach()
        far = [(weight - old).norm() for old in kept]  # <- here
        kept.append(weight.clone())
        return far

    fit = training(compare)
    return lambda: (kept.clear(), fit())


@EXAMPLES.positive("growing-graph", also="backward-twice")
def a_sum_of_losses_whose_graph_is_walked_in_each_step():
    model, _, batches = regression()

    def fit():
        total = torch.zeros(())
        for batch in batches:
            total = total + model(batch).square().mean()
            total.backward(retain_graph=True)  # <- here
        model.zero_grad()

    return fit


@EXAMPLES.positive("growing-graph")
def an_evaluation_that_compares_with_all_answers_before():
    model, batches = (
        nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)),
        torch.randn(9, 5, 4),
    )

    @torch.no_grad()
    def evaluate():
        answers, near = [], []
        for batch in batches:
            answer = model(batch)
            near.append([F.cosine_similarity(answer, old).mean() for old in answers])  # <- here
            answers.append(answer)
        return near

    return evaluate


@EXAMPLES.near_miss("growing-graph")
def steps_of_one_size():
    return training(lambda model, loss, batch: loss.sqrt())


@EXAMPLES.near_miss("growing-graph")
def sequences_that_are_sorted_by_length():
    cell, out = nn.Linear(4, 4), nn.Linear(4, 1)
    optimizer = torch.optim.SGD([*cell.parameters(), *out.parameters()], lr=0.01, foreach=True)
    texts = [torch.randn(2 + number, 3, 4) for number in range(8)]

    def fit():
        for text in texts:
            hidden = torch.zeros(3, 4)
            for word in text:
                hidden = torch.tanh(cell(word) + hidden)
            out(hidden).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    return fit


@EXAMPLES.near_miss("growing-graph")
def boxes_of_pictures_more_in_each():
    model, optimizer, _ = regression()
    pictures = [torch.randn(2 + number, 4) for number in range(8)]

    def fit():
        for boxes in pictures:
            kept = torch.stack([box / box.norm() for box in boxes])
            model(kept).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    return fit


@EXAMPLES.near_miss("growing-graph", also="decode-without-cache growing-cat")
def words_that_are_decoded():
    words, mix = nn.Embedding(16, 8), nn.Linear(8, 16)

    @torch.no_grad()
    def decode():
        ids = torch.zeros(1, 2, dtype=torch.long)
        for _ in range(10):
            ids = torch.cat([ids, mix(words(ids))[:, -1:].argmax(-1)], -1)
        return ids

    return decode


@EXAMPLES.near_miss("growing-graph")
def a_buffer_that_fills_up_and_is_stacked():
    kept = []

    def store(model, loss, batch):
        kept.append(batch.mean(0))
        return torch.stack(kept[-4:]).mean()

    fit = training(store)
    return lambda: (kept.clear(), fit())
