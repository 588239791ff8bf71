"""Labelled examples of for-loop-indexing: the ways in which people go through a tensor."""

from __future__ import annotations

import functools

import torch
from labelled.case import Examples
from support.trace_builder import TraceBuilder
from torch import nn

EXAMPLES = Examples()


# ------------------------------------------------------------------------- iterated tensors


@EXAMPLES.positive("for-loop-indexing")
def parts_of_one_row_each():
    x = torch.rand(20, 4)
    return lambda: [part.sum() for part in x.split(1)]  # <- here


@EXAMPLES.positive("for-loop-indexing")
def rows_written_back_where_they_came_from():
    x = torch.rand(16, 8)

    def normalise():
        for i, row in enumerate(x):
            x[i] = row / row.norm()  # <- here

    return normalise


@EXAMPLES.positive("for-loop-indexing")
def chunks_of_one_position():
    logits = torch.rand(2, 12, 8)

    def probabilities():
        return torch.cat([part.softmax(-1) for part in logits.chunk(12, dim=1)], dim=1)  # <- here

    return probabilities


@EXAMPLES.positive("for-loop-indexing")
def rows_that_are_reduced():
    x = torch.rand(16, 4)
    return lambda: functools.reduce(torch.add, x.unbind(0))  # <- here


@EXAMPLES.positive("for-loop-indexing")
def rows_mapped_by_a_function():
    x = torch.rand(16, 4)
    return lambda: list(map(torch.linalg.vector_norm, x))  # <- here


@EXAMPLES.near_miss("for-loop-indexing")
def numbers_of_an_iterated_tensor():
    scores = torch.rand(16)
    return lambda: [float(score) for score in scores]


# ---------------------------------------------------------------------- boxes, graphs, buffers


@EXAMPLES.positive("for-loop-indexing")
def areas_of_boxes():
    boxes = torch.rand(20, 4)

    def areas():
        out = []
        for box in boxes:  # <- here
            x0, y0, x1, y1 = box.unbind(0)
            out.append((x1 - x0) * (y1 - y0))
        return torch.stack(out)

    return areas


@EXAMPLES.positive("for-loop-indexing")
def labels_made_one_hot():
    labels = torch.randint(5, (16,))

    def one_hot():
        out = torch.zeros(16, 5)
        for i, label in enumerate(labels):
            out[i, label] = 1.0  # <- here
        return out

    return one_hot


@EXAMPLES.positive("for-loop-indexing")
def differences_of_neighbours():
    series = torch.rand(20)
    return lambda: [series[i + 1] - series[i] for i in range(19)]  # <- here


@EXAMPLES.positive("for-loop-indexing")
def labels_that_are_counted():
    labels = torch.randint(4, (20,))

    def count():
        counts = torch.zeros(4)
        for i in range(20):
            counts[labels[i]] += 1  # <- here
        return counts

    return count


# ------------------------------------------------------------------- other ways to take a part


@EXAMPLES.positive("for-loop-indexing")
def rows_indexed_with_a_list():
    x = torch.rand(12, 4)

    def predict():
        return torch.cat([x[[i]].cos() for i in range(12)])  # <- here

    return predict


@EXAMPLES.positive("for-loop-indexing")
def prototypes_of_classes():
    features, labels = torch.rand(40, 6), torch.arange(40) % 12

    def prototypes():
        return torch.stack([features[labels == c].mean(0) for c in range(12)])  # <- here

    return prototypes


@EXAMPLES.positive("for-loop-indexing")
def colours_of_a_segmentation():
    palette = [(float(c), float(2 * c), 0.0) for c in range(15)]
    classes = torch.randint(15, (8, 8))

    def paint():
        image = torch.zeros(8, 8, 3)
        for c, colour in enumerate(palette):
            image[classes == c] = torch.tensor(colour)  # <- here
        return image

    return paint


# --------------------------------------------------------------------------- through layers


@EXAMPLES.near_miss("for-loop-indexing")
def means_that_leave_one_fold_out():
    def jackknife():
        folds = list(torch.rand(12, 4, 3))
        return [torch.cat(folds[:i] + folds[i + 1 :]).mean(0) for i in range(12)]

    return jackknife


@EXAMPLES.near_miss("for-loop-indexing")
def batches_that_are_taken_by_number():
    layer, data = nn.Linear(6, 1).requires_grad_(False), torch.rand(12, 5, 6)
    return lambda: sum(float(layer(data[i]).mean()) for i in range(len(data)))


@EXAMPLES.positive("for-loop-indexing")
def tokens_one_by_one_through_an_embedding():
    words, text = nn.Embedding(20, 8).requires_grad_(False), torch.randint(20, (14,))
    return lambda: torch.stack([words(token) for token in text])  # <- here


@EXAMPLES.positive("for-loop-indexing")
def heads_one_by_one():
    q, k = torch.rand(2, 12, 5, 4), torch.rand(2, 12, 5, 4)

    def scores():
        return [(q[:, h] @ k[:, h].transpose(-1, -2)).softmax(-1) for h in range(12)]  # <- here

    return scores


@EXAMPLES.positive("for-loop-indexing", elements=600)
def rows_as_large_as_the_threshold():
    x = torch.rand(12, 600)
    return lambda: [row.exp() for row in x]  # <- here


@EXAMPLES.near_miss("for-loop-indexing", elements=599)
def rows_larger_than_the_threshold():
    x = torch.rand(12, 600)
    return lambda: [row.exp() for row in x]


# --------------------------------------------------------------- classes and ranges, by masks


@EXAMPLES.positive("for-loop-indexing")
def prototypes_of_the_classes_there_are():
    features, labels = torch.rand(60, 4), torch.arange(60) % 12

    def prototypes():
        classes = torch.unique(labels)
        return torch.stack([features[labels == c].mean(0) for c in classes])  # <- here

    return prototypes


@EXAMPLES.positive("for-loop-indexing")
def energies_of_graphs_by_nonzero():
    energy, graph = torch.rand(60, 1), torch.arange(60) % 12

    class Readout(nn.Module):
        def forward(self, energy, graph):
            nodes = ((graph == g).nonzero()[:, 0] for g in range(12))
            return torch.stack([energy[some].sum(0) for some in nodes])  # <- here

    readout = Readout()
    return lambda: readout(energy, graph)


@EXAMPLES.positive("for-loop-indexing")
def recall_at_each_threshold():
    score, positive = torch.rand(80), torch.rand(80) > 0.5
    thresholds = torch.linspace(0, 1, 16)
    return lambda: [((score > t) & positive).sum() for t in thresholds]  # <- here


@EXAMPLES.near_miss("for-loop-indexing")
def what_each_row_has_above_a_threshold():
    scores, least = torch.rand(16, 30), torch.tensor(0.4)
    return lambda: [row[row > least].mean() for row in scores]


@EXAMPLES.near_miss("for-loop-indexing")
def layers_on_the_rows_of_each_class():
    features, labels = torch.rand(60, 4), torch.arange(60) % 12
    heads = nn.ModuleList(nn.Linear(4, 2) for _ in range(12))

    @torch.no_grad()
    def logits():
        classes = torch.unique(labels)
        return [head(features[labels == c]) for c, head in zip(classes, heads, strict=True)]

    return logits


@EXAMPLES.near_miss("for-loop-indexing")
def patches_that_are_kept_according_to_lengths_in_a_tensor():
    images = list(torch.rand(12, 9, 4))
    lengths = torch.tensor([len(image) for image in images])
    kept = (lengths * 0.5).int().clamp(min=1)

    def drop():
        return [
            image[torch.randn((length,)).topk(keep, dim=-1).indices]
            for image, length, keep in zip(images, lengths, kept, strict=True)
        ]

    return drop


@EXAMPLES.near_miss("for-loop-indexing")
def noise_of_lengths_that_are_selected_and_read():
    lengths = torch.arange(3, 17)
    return lambda: [torch.randn(int(lengths[i])) for i in range(14)]


@EXAMPLES.positive("for-loop-indexing", also="host-sync")
def numbers_on_a_device_that_are_read_one_by_one():
    trace = TraceBuilder("NVIDIA H200")
    for i in range(14):
        index = {
            "Input Dims": [[14], [], []],
            "Input type": ["float", "Scalar", "Scalar"],
            "Concrete Inputs": ["", "0", str(i)],
        }
        trace.op("aten::select", args=index)
        with trace.op("aten::item", [[]]), trace.op("aten::_local_scalar_dense", [[]]):
            trace.memcpy("DtoH", 4)
    return trace
