"""Labelled examples of layers that run again within one call of a module, and of calls again."""

from __future__ import annotations

import torch
from labelled.case import Examples
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

EXAMPLES = Examples()


class Head(nn.Module):
    """Classifies and refines boxes on each level of a pyramid."""

    def __init__(self):
        super().__init__()
        self.tower = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU())
        self.scores = nn.Conv2d(4, 6, 3, padding=1)

    def forward(self, levels):
        return torch.cat([self.scores(self.tower(level)).flatten(2) for level in levels], 2)


def pyramid():
    return [torch.randn(2, 4, size, size) for size in (16, 8, 4, 2, 1)]


# -------------------------------------------------------------------------------- one or two calls


@EXAMPLES.near_miss("missing-no-grad")
def a_head_for_levels_that_the_test_makes():
    head, levels = Head(), pyramid()
    return lambda: head(levels)


@EXAMPLES.near_miss("missing-no-grad")
def a_head_that_is_called_twice():
    head, levels, flipped = Head(), pyramid(), pyramid()

    def check():
        assert head(levels).shape == head(flipped).shape

    return check


@EXAMPLES.near_miss("missing-no-grad")
def a_head_that_returns_a_list():
    class Lists(Head):
        def forward(self, levels):
            return [self.scores(self.tower(level)) for level in levels]

    head, levels = Lists(), pyramid()
    return lambda: head(levels)


@EXAMPLES.near_miss("missing-no-grad")
def two_branches_of_one_convolution_each():
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.scores, self.boxes = nn.Conv2d(4, 3, 1), nn.Conv2d(4, 12, 1)

        def forward(self, levels):
            scores = [self.scores(F.relu(level)) for level in levels]
            return scores, [self.boxes(F.relu(level)) for level in levels]

    head, levels = Branches(), pyramid()
    return lambda: head(levels)


@EXAMPLES.near_miss("missing-no-grad")
def a_pyramid_that_the_head_makes_of_one_image():
    class Pooling(Head):
        def forward(self, image):
            levels = [image] + [F.max_pool2d(image, scale) for scale in (2, 4, 8)]
            return super().forward(levels)

    head, image = Pooling(), torch.randn(2, 4, 16, 16)
    return lambda: head(image)


@EXAMPLES.near_miss("missing-no-grad")
def an_encoder_of_three_inputs():
    class Triplet(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))

        def forward(self, anchor, positive, negative):
            return [F.normalize(self.encoder(one), dim=-1) for one in (anchor, positive, negative)]

    model, inputs = Triplet(), torch.randn(3, 5, 6)
    return lambda: model(*inputs)


@EXAMPLES.near_miss("missing-no-grad")
def crops_of_several_sizes():
    class Crops(nn.Module):
        def __init__(self):
            super().__init__()
            pooled = nn.AdaptiveAvgPool2d(1)
            self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), pooled, nn.Flatten())
            self.head = nn.Linear(4, 2)

        def forward(self, crops):
            return self.head(torch.cat([self.body(crop) for crop in crops]))

    model, crops = Crops(), [torch.randn(2, 3, size, size) for size in (12, 12, 6, 6, 6)]
    return lambda: model(crops)


@EXAMPLES.near_miss("missing-no-grad")
def a_document_sentence_by_sentence():
    class Document(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.mix = nn.Embedding(16, 4), nn.Conv1d(4, 4, 3, padding=1)
            self.out = nn.Linear(4, 2)

        def sentence(self, words):
            return self.mix(self.table(words).T[None]).amax(-1)[0]

        def forward(self, sentences):
            return self.out(torch.stack([self.sentence(words) for words in sentences]))

    model, sentences = Document(), [torch.randint(16, (length,)) for length in (5, 9, 3, 7)]
    return lambda: model(sentences)


@EXAMPLES.near_miss("missing-no-grad")
def one_block_that_is_applied_eight_times():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)

        def forward(self, x):
            for _ in range(8):
                x = self.block(x)
            return x

    model, batch = Shared(), torch.randn(2, 5, 8)
    return lambda: model(batch)


# -------------------------------------------------------------------------------- many calls


@EXAMPLES.positive("missing-no-grad")
def a_head_for_each_of_several_batches():
    head, batches = Head(), [pyramid() for _ in range(3)]

    def score():
        return max(head(levels).amax().item() for levels in batches)  # <- here

    return score


@EXAMPLES.positive("missing-no-grad", repeats=2)
def a_head_that_is_called_twice_with_a_lower_threshold():
    head, levels, flipped = Head(), pyramid(), pyramid()
    return lambda: head(levels).shape == head(flipped).shape  # <- here


class Scored(nn.Module):
    """A model that evaluates itself."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, batch):
        return self.head(self.body(batch).relu())

    def features(self, batch):
        return self.body(batch).relu()  # <- here

    def predict(self, batches):
        return [self(batch).argmax(-1) for batch in batches]  # <- here


@EXAMPLES.positive("missing-no-grad")
def a_module_that_calls_itself_for_each_batch():
    model, batches = Scored(), torch.randn(4, 5, 6)
    return lambda: model.predict(batches)


@EXAMPLES.positive("missing-no-grad")
def layers_that_a_method_applies_to_each_batch():
    model, batches = Scored(), torch.randn(4, 5, 6)

    return lambda: [model.features(batch).amax() for batch in batches]


@EXAMPLES.positive("missing-no-grad")
def samples_that_a_module_draws_in_its_forward():
    class Sampler(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.out = nn.Linear(6, 12), nn.Linear(12, 6)

        def forward(self, x):
            for _ in range(5):
                noise = self.out(self.inner(x).relu())
                x = x - noise / 5 + 0.1 * torch.randn_like(x)
            return x

    model, start = Sampler(), torch.randn(2, 6)
    return lambda: model(start)  # <- here
