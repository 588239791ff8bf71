"""Labelled examples of what moves between host and device: models, batches, results, offloading."""

from __future__ import annotations

from labelled.case import Examples
from labelled.copies import BOTH, GPU, computed, copy_, down, filled, product, up
from labelled.kineto import OfTheDeviceAlone
from support.trace_builder import TraceBuilder

EXAMPLES = Examples()

#: Weights of a small network for images, and of its head.
WEIGHTS = [(64, 3, 7, 7), (64,), (128, 64, 3, 3), (128,), (256, 128, 3, 3), (256,), (1000, 256)]


def parameter(b: TraceBuilder, shape, move=up) -> None:
    """What ``torch.nn.Module.to`` does with a parameter."""
    move(b, list(shape))
    for _ in range(2):
        b.op("aten::_has_compatible_shallow_copy_type", [list(shape)] * 2, ["float"] * 2)


def model(b: TraceBuilder, shapes=WEIGHTS, move=up) -> None:
    """``model.to(device)``, or ``.to("cpu")`` by ``down``."""
    for shape in shapes:
        parameter(b, shape, move)


# -------------------------------------------------------------------- pageable-copy: positives


@EXAMPLES.positive("pageable-copy", 2)
def a_batch_after_the_model():
    b = TraceBuilder(GPU)
    model(b)
    up(b, [32, 3, 64, 64])
    up(b, [32, 64, 64], "long int")
    product(b)
    return b


# -------------------------------------------------------------------- pageable-copy: near misses


@EXAMPLES.near_miss("pageable-copy", also="host-sync")
def a_small_model_that_is_moved_back():
    b = TraceBuilder(GPU)
    product(b)
    model(b, [(784, 256), (256,), (256, 10), (10,)], move=down)
    return b


@EXAMPLES.near_miss("pageable-copy")
def a_model_that_is_moved_without_operators():
    b = OfTheDeviceAlone(GPU)
    model(b)
    product(b)
    return b


@EXAMPLES.near_miss("pageable-copy")
def two_layers_that_are_moved():
    b = TraceBuilder(GPU)
    model(b, [(784, 256), (256,), (256, 10), (10,)])
    return b


@EXAMPLES.near_miss("pageable-copy")
def a_state_that_is_loaded():
    b = TraceBuilder(GPU)
    for shape in ((512, 128), (512,), (512, 512), (10, 512), (128, 512), (10,)):
        copy_(b, "HtoD", list(shape))
    return b


# ------------------------------------------------------------------- extra-cuda-copy: near misses


@EXAMPLES.near_miss("extra-cuda-copy")
def a_layer_that_is_initialised_and_moved():
    b = TraceBuilder(GPU)
    filled(b, "zeros", (64, 64))
    parameter(b, (64, 64))
    return b


# -------------------------------------------------------------------- copy-round-trip: positives


@EXAMPLES.positive("copy-round-trip", also=BOTH)
def boxes_sorted_on_the_host():
    b = TraceBuilder(GPU)
    computed(b, [512, 64])
    down(b, [512, 64])
    b.op("aten::sort", [[512, 64], [], []], ["float", "Scalar", "Scalar"])
    up(b, [512, 64])
    return b


@EXAMPLES.positive("copy-round-trip", 2, also=BOTH)
def logits_and_then_masks():
    b = TraceBuilder(GPU)
    for shape in ([128, 256], [256, 128, 2]):
        computed(b, shape)
        down(b, shape)
        up(b, shape)
    return b


@EXAMPLES.positive("copy-round-trip", also="host-sync")
def hidden_states_through_pinned_memory():
    b = TraceBuilder(GPU)
    computed(b, [64, 64])
    down(b, [64, 64], pageable=False)
    b.op("aten::tanh", [[64, 64]])
    up(b, [64, 64], pageable=False)
    return b


@EXAMPLES.positive("copy-round-trip", 2, also="host-sync")
def weights_averaged_on_the_host_each_round():
    b = TraceBuilder(GPU)
    for _ in range(2):
        down(b, [100, 100])
        b.op("aten::mul_", [[100, 100], []], ["float", "Scalar"], ["", "0.5"])
        up(b, [100, 100])
    return b


# -------------------------------------------------------------------- copy-round-trip: near misses


@EXAMPLES.near_miss("copy-round-trip", also="extra-cuda-copy host-sync")
def samples_out_and_new_noise_in():
    b = TraceBuilder(GPU)
    computed(b, [64, 64])
    down(b, [64, 64])
    filled(b, "randn", (64, 64))
    up(b, [64, 64])
    return b
