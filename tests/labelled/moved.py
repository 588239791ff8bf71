"""Labelled examples of what moves between host and device: models, batches, results, offloading."""

from __future__ import annotations

from labelled.case import Examples
from labelled.copies import BOTH, GPU, computed, copy_, down, empty_filled, filled, product, up
from labelled.kineto import OfTheDeviceAlone
from support.trace_builder import TraceBuilder

EXAMPLES = Examples()

#: Weights of a small network for images, and of its head.
WEIGHTS = [(64, 3, 7, 7), (64,), (128, 64, 3, 3), (128,), (256, 128, 3, 3), (256,), (1000, 256)]
FETCH = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


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
def inputs_and_targets_of_a_step():
    b = TraceBuilder(GPU)
    up(b, [32, 3, 64, 64])
    up(b, [32, 64, 64], "long int")
    product(b)
    return b


@EXAMPLES.positive("pageable-copy", 2)
def a_batch_after_the_model():
    b = TraceBuilder(GPU)
    model(b)
    up(b, [32, 3, 64, 64])
    up(b, [32, 64, 64], "long int")
    product(b)
    return b


@EXAMPLES.positive("pageable-copy", 3)
def a_batch_of_a_graph_with_three_large_fields():
    b = TraceBuilder(GPU)
    for shape, dtype in (
        ([2708, 1433], "float"),
        ([2, 10556], "long int"),
        ([2708], "long int"),
        ([2708, 64], "float"),
    ):
        up(b, shape, dtype)
    product(b)
    return b


@EXAMPLES.positive("pageable-copy", 8)
def batches_of_many_fields():
    b = TraceBuilder(GPU)
    for _ in range(2):
        for rows in (100, 200, 300, 400):
            up(b, [rows, 256])
        for rows in (5, 6, 7):
            up(b, [rows])
        product(b)
    return b


@EXAMPLES.positive("pageable-copy", 4)
def blocks_that_are_moved_there_again_for_each_call():
    b = TraceBuilder(GPU)
    for _ in range(2):
        for shape in ((1024, 256), (256, 1024)):
            parameter(b, shape)
            product(b)
    return b


@EXAMPLES.positive("pageable-copy", 2)
def features_copied_into_what_is_there():
    b = TraceBuilder(GPU)
    for _ in range(2):
        copy_(b, "HtoD", [256, 256])
        product(b)
    return b


@EXAMPLES.positive("pageable-copy", 6)
def images_of_one_size_in_one_go():
    b = TraceBuilder(GPU)
    for _ in range(6):
        up(b, [3, 224, 224])
    product(b)
    return b


@EXAMPLES.positive("pageable-copy", 8)
def batches_of_many_fields_without_operators():
    b = OfTheDeviceAlone(GPU)
    for _ in range(2):
        for rows in (100, 200, 300, 400, 5, 6, 7):
            up(b, [rows, 256 if rows > 7 else 1])
        product(b)
    return b


@EXAMPLES.positive("pageable-copy", 2)
def a_batch_after_the_model_without_operators():
    b = OfTheDeviceAlone(GPU)
    model(b)
    product(b)
    up(b, [32, 3, 64, 64])
    up(b, [32, 64, 64], "long int")
    product(b)
    return b


@EXAMPLES.positive("pageable-copy", 8, also="host-sync")
def results_of_many_sizes_in_each_of_two_steps():
    b = TraceBuilder(GPU)
    for _ in range(2):
        product(b)
        for rows in (100, 200, 300, 400):
            down(b, [rows, 256])
        for rows in (5, 6, 7):
            down(b, [rows])
    return b


@EXAMPLES.positive("pageable-copy", 3, also="host-sync")
def three_results_once():
    b = TraceBuilder(GPU)
    product(b)
    for rows in (100, 200, 300):
        down(b, [rows, 256])
    return b


# -------------------------------------------------------------------- pageable-copy: near misses


@EXAMPLES.near_miss("pageable-copy")
def a_model_that_is_moved():
    b = TraceBuilder(GPU)
    model(b)
    product(b)
    return b


@EXAMPLES.near_miss("pageable-copy", also="host-sync")
def a_model_that_is_moved_to_the_device_and_back():
    b = TraceBuilder(GPU)
    model(b)
    product(b)
    model(b, move=down)
    return b


@EXAMPLES.near_miss("pageable-copy", also="host-sync")
def weights_that_are_saved_once():
    b = TraceBuilder(GPU)
    product(b)
    for shape in WEIGHTS:
        down(b, list(shape))
        b.op("aten::detach", [list(shape)])
    return b


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
def equal_layers_that_are_moved():
    b = TraceBuilder(GPU)
    model(b, [(256, 256), (256,)] * 6)
    product(b)
    return b


@EXAMPLES.near_miss("pageable-copy")
def a_model_with_buffers():
    b = TraceBuilder(GPU)
    parameter(b, (512, 256))
    up(b, [1, 1, 512, 512])
    parameter(b, (256, 512))
    return b


@EXAMPLES.near_miss("pageable-copy")
def weights_that_are_moved_by_a_loop():
    b = TraceBuilder(GPU)
    for shape in WEIGHTS:
        up(b, list(shape))
    product(b)
    return b


@EXAMPLES.near_miss("pageable-copy")
def a_state_that_is_loaded():
    b = TraceBuilder(GPU)
    for shape in ((512, 128), (512,), (512, 512), (10, 512), (128, 512), (10,)):
        copy_(b, "HtoD", list(shape))
    return b


# -------------------------------------------------------------------- extra-cuda-copy: positives


@EXAMPLES.positive("extra-cuda-copy")
def a_causal_mask_for_each_forward():
    b = TraceBuilder(GPU)
    filled(b, "ones", (128, 128))
    up(b, [128, 128])
    computed(b, [128, 128])
    return b


@EXAMPLES.positive("extra-cuda-copy", 3)
def noise_for_each_step_of_a_sampler():
    b = TraceBuilder(GPU)
    for _ in range(3):
        filled(b, "randn", (4, 4, 32, 32))
        up(b, [4, 4, 32, 32])
        computed(b, [4, 4, 32, 32])
    return b


@EXAMPLES.positive("extra-cuda-copy", 2)
def both_states_of_a_recurrent_net():
    b = TraceBuilder(GPU)
    for _ in range(2):
        filled(b, "zeros", (2, 16, 64))
        up(b, [2, 16, 64])
    product(b)
    return b


@EXAMPLES.positive("extra-cuda-copy")
def labels_of_a_discriminator():
    b = TraceBuilder(GPU)
    filled(b, "full", (64, 1))
    b.op("aten::squeeze", [[64, 1], []], ["float", "Scalar"], ["", "1"])
    up(b, [64])
    return b


@EXAMPLES.positive("extra-cuda-copy")
def noise_moved_after_the_batch():
    b = TraceBuilder(GPU)
    up(b, [32, 8])
    filled(b, "randn", (32, 8))
    up(b, [32, 8])
    return b


@EXAMPLES.positive("extra-cuda-copy")
def an_empty_tensor_filled_by_hand():
    b = TraceBuilder(GPU)
    empty_filled(b, (32, 64))
    up(b, [32, 64])
    return b


# ------------------------------------------------------------------- extra-cuda-copy: near misses


@EXAMPLES.near_miss("extra-cuda-copy")
def a_layer_that_is_initialised_and_moved():
    b = TraceBuilder(GPU)
    filled(b, "zeros", (64, 64))
    parameter(b, (64, 64))
    return b


@EXAMPLES.near_miss("extra-cuda-copy")
def a_batch_that_is_scaled():
    b = TraceBuilder(GPU)
    filled(b, "rand", (32, 8))
    b.op("aten::div", [[32, 8], []], ["float", "Scalar"], ["", "255"])
    up(b, [32, 8])
    return b


@EXAMPLES.near_miss("extra-cuda-copy")
def a_total_that_stays_and_a_batch_that_moves():
    b = TraceBuilder(GPU)
    filled(b, "zeros", (1,))
    up(b, [32, 8])
    return b


@EXAMPLES.near_miss("extra-cuda-copy")
def samples_stacked_after_a_mask_was_made():
    b = TraceBuilder(GPU)
    filled(b, "ones", (32, 8))
    b.op("aten::stack", [[[8]] * 32, []], ["TensorList", "Scalar"], ["", "0"])
    up(b, [32, 8])
    return b


@EXAMPLES.near_miss("extra-cuda-copy")
def noise_on_the_device_beside_a_batch():
    b = TraceBuilder(GPU)
    up(b, [32, 8])
    filled(b, "randn", (32, 8), device=True)
    computed(b, [32, 8])
    return b


@EXAMPLES.near_miss("extra-cuda-copy")
def indices_of_a_shuffle_that_select_on_the_host():
    b = TraceBuilder(GPU)
    filled(b, "rand", (32, 8))
    b.op("aten::index_select", [[100, 8], [], [32]], ["float", "Scalar", "long int"])
    up(b, [32, 8])
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


@EXAMPLES.positive("copy-round-trip", 4, also="host-sync")
def a_cache_that_is_swapped_out_and_in():
    b = TraceBuilder(GPU)
    for _ in range(4):
        down(b, [16, 64, 8], pageable=False)
    computed(b, [64, 64])
    for _ in range(4):
        up(b, [16, 64, 8], pageable=False)
    return b


@EXAMPLES.positive("copy-round-trip", also=BOTH)
def scores_clipped_after_a_batch_of_another_size():
    b = TraceBuilder(GPU)
    up(b, [32, 3, 64, 64])
    product(b)
    down(b, [256, 256])
    b.op("aten::clamp", [[256, 256], [], []], ["float", "Scalar", "Scalar"])
    up(b, [256, 256])
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


@EXAMPLES.near_miss("copy-round-trip", also=BOTH)
def a_reconstruction_logged_and_the_next_batch():
    b = TraceBuilder(GPU)
    up(b, [256, 256])
    computed(b, [256, 256])
    down(b, [256, 256])
    up(b, [256, 256])
    computed(b, [256, 256])
    return b


@EXAMPLES.near_miss("copy-round-trip", also=BOTH)
def results_out_and_the_next_batch_stacked():
    b = TraceBuilder(GPU)
    computed(b, [256, 256])
    down(b, [256, 256])
    b.op("aten::stack", [[[256]] * 256, []], ["TensorList", "Scalar"], ["", "0"])
    up(b, [256, 256])
    return b


@EXAMPLES.near_miss("copy-round-trip", also="host-sync")
def results_out_and_the_next_batch_selected():
    b = TraceBuilder(GPU)
    for _ in range(3):
        computed(b, [64, 64])
        down(b, [64, 64])
        b.op("aten::index", [[1000, 64], []], ["float", ""])
        up(b, [64, 64])
    return b


@EXAMPLES.near_miss("copy-round-trip", also="extra-cuda-copy host-sync")
def samples_out_and_new_noise_in():
    b = TraceBuilder(GPU)
    computed(b, [64, 64])
    down(b, [64, 64])
    filled(b, "randn", (64, 64))
    up(b, [64, 64])
    return b


@EXAMPLES.near_miss("copy-round-trip", also="host-sync")
def a_prefetched_batch_and_the_results_of_two():
    b = TraceBuilder(GPU)
    up(b, [64, 64])
    up(b, [64, 64])
    for _ in range(2):
        computed(b, [64, 64])
        down(b, [64, 64])
        up(b, [64, 64])
    return b


@EXAMPLES.near_miss("copy-round-trip", also="host-sync")
def results_out_and_a_fetch_of_a_loader():
    b = TraceBuilder(GPU)
    computed(b, [64, 64])
    down(b, [64, 64])
    with b.annotation(FETCH):
        b.op("aten::stack", [[[64]] * 64, []], ["TensorList", "Scalar"], ["", "0"])
    up(b, [64, 64])
    return b


@EXAMPLES.near_miss("copy-round-trip", also=BOTH)
def down_and_something_of_that_size_up_without_operators():
    b = OfTheDeviceAlone(GPU)
    product(b)
    down(b, [256, 256])
    up(b, [256, 256])
    product(b)
    return b
