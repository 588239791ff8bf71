"""Labelled examples of for-loop-indexing: the ways in which people go through a tensor."""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from labelled.case import Examples
from support.trace_builder import TraceBuilder
from torch import nn

EXAMPLES = Examples()


# ------------------------------------------------------------------------- iterated tensors


@EXAMPLES.positive("for-loop-indexing")
def rows_that_are_iterated():
    x = torch.rand(20, 4)
    return lambda: [row.sum() for row in x]  # <- here


@EXAMPLES.positive("for-loop-indexing")
def parts_of_one_row_each():
    x = torch.rand(20, 4)
    return lambda: [part.sum() for part in x.split(1)]  # <- here


@EXAMPLES.positive("for-loop-indexing")
def targets_and_predictions_zipped():
    predictions, targets = torch.rand(16, 6), torch.rand(16, 6)

    def score():
        losses = []
        for predicted, target in zip(predictions, targets, strict=True):  # <- here
            losses.append(F.mse_loss(predicted, target))
        return torch.stack(losses).mean()

    return score


@EXAMPLES.positive("for-loop-indexing")
def frames_centred_in_place():
    frames = torch.rand(14, 3, 4, 4)

    def centre():
        for frame in frames.unbind(0):  # <- here
            frame.sub_(0.5)

    return centre


@EXAMPLES.positive("for-loop-indexing")
def returns_zipped_with_a_list_of_tensors():
    kept, returns = [torch.rand(()) for _ in range(14)], torch.rand(14)

    def loss():
        return sum(-one * value for one, value in zip(kept, returns, strict=True))  # <- here

    return loss


@EXAMPLES.near_miss("for-loop-indexing")
def answers_that_are_counted_and_shown():
    correct = torch.ones(14, dtype=torch.bool)

    def score():
        results, mistakes = [], []
        for i in range(14):
            results.append(int(correct[i]))
            if not correct[i]:
                mistakes.append(i)
        return results, mistakes

    return score


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
def images_standardised_by_a_helper():
    class Standardise:
        def one(self, image):
            return (image - image.mean()) / (image.std() + 1e-6)

        def __call__(self, images):
            return torch.stack([self.one(image) for image in images])  # <- here

    images, transform = torch.rand(12, 3, 5, 5), Standardise()
    return lambda: transform(images)


@EXAMPLES.positive("for-loop-indexing")
def losses_summed_by_a_generator():
    errors = torch.rand(24, 3)
    return lambda: sum(row.square().sum() for row in errors)  # <- here


@EXAMPLES.positive("for-loop-indexing")
def rows_that_are_reduced():
    x = torch.rand(16, 4)
    return lambda: functools.reduce(torch.add, x.unbind(0))  # <- here


@EXAMPLES.positive("for-loop-indexing")
def rows_mapped_by_a_function():
    x = torch.rand(16, 4)
    return lambda: list(map(torch.linalg.vector_norm, x))  # <- here


@EXAMPLES.positive("for-loop-indexing")
def the_largest_of_each_column_so_far():
    class RunningMaximum:
        def __init__(self):
            self.value = torch.full((5,), -torch.inf)

        def update(self, row):
            self.value = torch.maximum(self.value, row)

    x = torch.rand(18, 5)

    def run():
        running = RunningMaximum()
        for row in x:  # <- here
            running.update(row)
        return running.value

    return run


@EXAMPLES.positive("for-loop-indexing")
def covariance_added_up_by_samples():
    samples = torch.rand(15, 4)

    def covariance():
        total = torch.zeros(4, 4)
        for sample in samples:  # <- here
            total += torch.outer(sample, sample)
        return total / 15

    return covariance


@EXAMPLES.near_miss("for-loop-indexing")
def numbers_of_an_iterated_tensor():
    scores = torch.rand(16)
    return lambda: [float(score) for score in scores]


@EXAMPLES.positive("for-loop-indexing")
def a_running_sum_that_is_kept():
    steps = torch.rand(14, 2)

    def walk():
        at, path = torch.zeros(2), []
        for step in steps:  # <- here
            at = at + step
            path.append(at)
        return torch.stack(path)

    return walk


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
def overlaps_of_each_box_with_all():
    boxes = torch.rand(12, 4)

    def against_all(box, boxes):
        low = torch.maximum(box[:2], boxes[:, :2])
        high = torch.minimum(box[2:], boxes[:, 2:])
        return (high - low).clamp(min=0).prod(-1)

    return lambda: torch.stack([against_all(boxes[i], boxes) for i in range(12)])  # <- here


@EXAMPLES.positive("for-loop-indexing")
def messages_added_edge_by_edge():
    nodes, edges = torch.rand(10, 4), torch.randint(10, (30, 2)).tolist()

    def spread():
        out = torch.zeros(10, 4)
        for source, target in edges:
            out[target] += nodes[source]  # <- here
        return out

    return spread


@EXAMPLES.positive("for-loop-indexing")
def distances_row_by_row():
    queries, keys = torch.rand(12, 3), torch.rand(20, 3)

    def distances():
        return torch.stack([(query - keys).square().sum(-1) for query in queries])  # <- here

    return distances


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
def values_of_the_actions_taken():
    class Replay:
        def __init__(self):
            self.q, self.actions = torch.rand(16, 4), torch.randint(4, (16, 1))

        def taken(self):
            return [self.q[i].gather(0, self.actions[i]) for i in range(16)]  # <- here

    buffer = Replay()
    return lambda: torch.cat(buffer.taken())


@EXAMPLES.positive("for-loop-indexing")
def words_looked_up_one_by_one():
    table, text = torch.rand(30, 6), torch.randint(30, (14,)).tolist()
    return lambda: torch.stack([table[word] * 0.5 for word in text])  # <- here


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
def narrow_windows():
    signal = torch.rand(3, 20)
    return lambda: [signal.narrow(1, i, 1).exp() for i in range(20)]  # <- here


@EXAMPLES.positive("for-loop-indexing")
def rows_indexed_with_a_list():
    x = torch.rand(12, 4)

    def predict():
        return torch.cat([x[[i]].cos() for i in range(12)])  # <- here

    return predict


@EXAMPLES.positive("for-loop-indexing")
def rows_selected_one_by_one():
    x, order = torch.rand(12, 4), torch.randperm(12)

    def shuffled():
        return torch.cat([x.index_select(0, order[i : i + 1]) for i in range(12)])  # <- here

    return shuffled


@EXAMPLES.positive("for-loop-indexing")
def rows_of_length_one():
    x = torch.rand(12, 4)
    return lambda: torch.cat([F.normalize(x[i : i + 1]) for i in range(12)])  # <- here


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


@EXAMPLES.positive("for-loop-indexing")
def clusters_written_by_their_masks():
    points, nearest = torch.rand(50, 2), torch.arange(50) % 10

    def centres():
        out = torch.zeros(10, 2)
        for k in range(10):
            out[k] = points[nearest == k].sum(0)  # <- here
        return out

    return centres


# --------------------------------------------------------------------------- through layers


class _Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.norm = nn.Linear(6, 6), nn.LayerNorm(6)

    def forward(self, x):
        return x + self.inner(self.norm(x)).relu()


@EXAMPLES.positive("for-loop-indexing")
def samples_one_by_one_through_a_residual_block():
    block, x = _Residual().eval(), torch.rand(12, 1, 6)

    @torch.inference_mode()
    def predict():
        return torch.stack([block(sample) for sample in x])  # <- here

    return predict


@EXAMPLES.positive("for-loop-indexing")
def sequences_one_by_one_through_a_residual_block():
    block, x = _Residual().eval(), torch.rand(12, 5, 6)

    @torch.inference_mode()
    def predict():
        return torch.stack([block(sequence) for sequence in x])  # <- here

    return predict


@EXAMPLES.near_miss("for-loop-indexing")
def means_that_leave_one_fold_out():
    def jackknife():
        folds = list(torch.rand(12, 4, 3))
        return [torch.cat(folds[:i] + folds[i + 1 :]).mean(0) for i in range(12)]

    return jackknife


@EXAMPLES.positive("for-loop-indexing")
def means_of_each_fold_with_what_is_known():
    prior = torch.rand(2, 3)

    def shrink():
        folds = torch.rand(12, 4, 3)
        return torch.stack([torch.cat([prior, fold]).mean(0) for fold in folds])  # <- here

    return shrink


@EXAMPLES.near_miss("for-loop-indexing")
def batches_that_are_one_tensor():
    model, data = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)), torch.rand(12, 5, 6)

    @torch.inference_mode()
    def predict():
        return torch.cat([model(batch).argmax(1) for batch in data])

    return predict


@EXAMPLES.near_miss("for-loop-indexing")
def batches_that_are_taken_by_number():
    layer, data = nn.Linear(6, 1).requires_grad_(False), torch.rand(12, 5, 6)
    return lambda: sum(float(layer(data[i]).mean()) for i in range(len(data)))


@EXAMPLES.positive("for-loop-indexing")
def tokens_one_by_one_through_an_embedding():
    words, text = nn.Embedding(20, 8).requires_grad_(False), torch.randint(20, (14,))
    return lambda: torch.stack([words(token) for token in text])  # <- here


@EXAMPLES.near_miss("for-loop-indexing")
def tokens_that_a_state_takes_in():
    words, text = nn.Embedding(20, 8).requires_grad_(False), torch.randint(20, (14,))

    def read():
        state = torch.zeros(8)
        for token in text:
            state = torch.tanh(words(token) + 0.5 * state)
        return state

    return read


@EXAMPLES.positive("for-loop-indexing")
def sentences_one_by_one_through_an_encoder():
    words, layer = nn.Embedding(20, 8), nn.Linear(8, 8)
    texts = torch.randint(20, (12, 5))

    @torch.no_grad()
    def encode():
        return torch.stack([layer(words(texts[i])).mean(0) for i in range(12)])  # <- here

    return encode


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


@EXAMPLES.positive("for-loop-indexing")
def ten_iterated_rows():
    x = torch.rand(10, 4)
    return lambda: [row.exp() for row in x]  # <- here


@EXAMPLES.near_miss("for-loop-indexing")
def nine_iterated_rows():
    x = torch.rand(9, 4)
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
def classes_of_different_sizes_by_where():
    features, labels = torch.rand(78, 4), torch.arange(12).repeat_interleave(torch.arange(1, 13))

    def means():
        out = []
        for c in range(12):
            mine = torch.where(labels == c)[0]
            out.append(features[mine].mean(0))  # <- here
        return torch.stack(out)

    return means


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
def calibration_bin_by_bin():
    sure, right = torch.rand(200), torch.rand(200).round()

    def error():
        edges, total = torch.linspace(0, 1, 13), torch.zeros(())
        lower, upper = edges[:-1], edges[1:]
        for low, high in zip(lower, upper, strict=True):  # <- here
            inside = (sure > low) & (sure <= high)
            gap = (sure[inside].mean() - right[inside].mean()).abs()
            total = total + gap * inside.float().mean()
        return total

    return error


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
def words_of_their_numbers():
    words, text = "abcdefghij", torch.arange(40) % 10
    return lambda: "".join(words[int(i)] for i in text)


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


@EXAMPLES.positive("for-loop-indexing")
def numbers_that_are_read_and_rows_that_are_scaled():
    scales, rows = torch.rand(14), torch.rand(14, 6)

    def scaled():
        return torch.stack([rows[i] * float(scales[i]) for i in range(14)])  # <- here

    return scaled


@EXAMPLES.positive("for-loop-indexing")
def numbers_that_are_read_and_used_as_tensors_too():
    scores = torch.rand(14)

    def margins():
        out = []
        for i in range(14):
            score = scores[i]  # <- here
            out.append(score.exp() if float(score) >= 0 else None)
        return out

    return margins


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
