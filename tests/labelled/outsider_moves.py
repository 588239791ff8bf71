"""The same as `outsider_cuda`, of what moves between host and device, and who waits."""

from __future__ import annotations

from labelled.kineto import (
    BF16,
    BRAIN,
    MIB,
    Former,
    Measured,
    copied,
    elementwise,
    item,
    linear,
)

EXAMPLES = Measured()


# ------------------------------------------------------------------------- extra-cuda-copy


@EXAMPLES.measured("extra-cuda-copy", 1)
def outside_random_integers_moved(b: Former) -> None:
    with b.ran("aten::randint", [[]] * 3, ["Scalar", "Scalar", "ScalarList"]):
        b.empty((64, 64), "long int")
        b.filled("random_", (64, 64), "long int")
    b.moved((64, 64), "long int", "cuda")


@EXAMPLES.measured("extra-cuda-copy", 1)
def outside_noise_drawn_in_place_and_moved(b: Former) -> None:
    b.made("empty", (64, 64))
    b.filled("normal_", (64, 64), "float")
    b.moved((64, 64))


@EXAMPLES.measured("extra-cuda-copy", 2)
def outside_initial_state_of_a_recurrent_net(b: Former) -> None:
    for _ in range(2):
        b.made("zeros", (2, 64, 512))
        b.moved((2, 64, 512))
    linear(b, 64, 512, 512, BRAIN, BF16)


@EXAMPLES.silent("extra-cuda-copy")
def outside_data_moved(b: Former) -> None:
    for _ in range(3):
        b.moved((64, 64))


@EXAMPLES.silent("extra-cuda-copy")
def outside_batch_padded_with_zeros_and_filled_row_by_row(b: Former) -> None:
    b.made("zeros", (4, 64))
    for length in (60, 31, 64, 12):
        with b.ran("aten::select", [[4, 64], [], []], ["float", "Scalar", "Scalar"]):
            pass
        with b.ran("aten::slice", [[64], [], [], [], []], ["float", *["Scalar"] * 4]):
            pass
        with b.ran("aten::copy_", [[length], [length], []], ["float", "float", "Scalar"]):
            pass
    b.moved((4, 64))


@EXAMPLES.silent("extra-cuda-copy")
def outside_zeros_that_stay_and_data_that_moves(b: Former) -> None:
    b.made("zeros", (10,))
    b.moved((64, 64))


# -------------------------------------------------------------------------------- host-sync


@EXAMPLES.measured("host-sync", 1)
def outside_loss_is_read(b: Former) -> None:
    elementwise(b, [64, 64])
    item(b)


@EXAMPLES.measured("host-sync", 1)
def outside_condition_on_the_device(b: Former) -> None:
    elementwise(b, [64, 64])
    with b.ran("aten::is_nonzero", [[]], ["bool"]):
        item(b)


@EXAMPLES.measured("host-sync", 1)
def outside_explicit_wait(b: Former) -> None:
    elementwise(b, [64, 64])
    b.sync("cudaDeviceSynchronize")
    elementwise(b, [64, 64])  # after the last work, a wait keeps nothing waiting


@EXAMPLES.measured("host-sync", 1)
def outside_indices_of_nonzeros(b: Former) -> None:
    with b.ran("aten::nonzero", [[256]], ["bool"]):
        b.launch("void at_cuda_detail::cub::DeviceReduceSingleTileKernel<int>", 2)
        b.memcpy("DtoH", 4, device_us=1.2)
        b.sync("cudaStreamSynchronize")
        b.launch("void at_cuda_detail::cub::DeviceSelectSweepKernel<long>", 3)


@EXAMPLES.silent("host-sync")
def outside_value_of_a_tensor_on_the_host(b: Former) -> None:
    elementwise(b, [64, 64])
    item(b, on_device=False)


@EXAMPLES.silent("host-sync")
def outside_small_batch_is_moved_there(b: Former) -> None:
    copied(b, [16, 16], "HtoD")
    elementwise(b, [16, 16])


@EXAMPLES.silent("host-sync")
def outside_streams_wait_for_one_another(b: Former) -> None:
    b.runtime("cudaEventRecord", 2)
    b.runtime("cudaStreamWaitEvent", 2)
    b.runtime("cudaEventQuery", 1)
    elementwise(b, [64, 64])


# ---------------------------------------------------------- pageable-copy, copy-round-trip


@EXAMPLES.measured("pageable-copy", 2)
def outside_two_large_batches(b: Former) -> None:
    for _ in range(2):
        copied(b, [16, MIB], "HtoD")


@EXAMPLES.measured("pageable-copy", 1, also="host-sync")
def outside_large_result(b: Former) -> None:
    elementwise(b, [8, MIB], 300)
    copied(b, [8, MIB], "DtoH")


@EXAMPLES.measured("pageable-copy", 1)
def outside_one_of_two_batches_is_not_pinned(b: Former) -> None:
    copied(b, [16, MIB], "HtoD", pinned=True)
    copied(b, [16, MIB], "HtoD")


@EXAMPLES.silent("pageable-copy")
def outside_pinned_batches(b: Former) -> None:
    for _ in range(3):
        copied(b, [16, MIB], "HtoD", pinned=True)


@EXAMPLES.silent("pageable-copy", also="host-sync")
def outside_trifles(b: Former) -> None:
    for _ in range(20):
        copied(b, [16], "HtoD")
    item(b)


@EXAMPLES.silent("pageable-copy")
def outside_large_copy_on_the_device(b: Former) -> None:
    with b.ran("aten::copy_", [[16, MIB]] * 2, ["float", "float"]):
        b.memcpy("DtoD", 64 * MIB, device_us=60)


@EXAMPLES.measured("copy-round-trip", 1, also="host-sync pageable-copy")
def outside_there_and_back(b: Former) -> None:
    elementwise(b, [1024, 1024])
    copied(b, [1024, 1024], "DtoH")
    copied(b, [1024, 1024], "HtoD")


@EXAMPLES.measured("copy-round-trip", 1, also="host-sync pageable-copy")
def outside_something_done_on_the_host(b: Former) -> None:
    copied(b, [1024, 1024], "DtoH")
    with b.ran("aten::sort", [[1024, 1024], [], []], ["float", "Scalar", "Scalar"], args=None):
        b.advance(400)
    copied(b, [1024, 1024], "HtoD")


@EXAMPLES.measured("copy-round-trip", 2, also="host-sync")
def outside_pinned_there_and_back_twice(b: Former) -> None:
    for shape in ([1024, 1024], [512, 2048, 2]):
        copied(b, shape, "DtoH", pinned=True)
        copied(b, shape, "HtoD", pinned=True)


@EXAMPLES.silent("copy-round-trip", also="host-sync pageable-copy")
def outside_batch_in_and_result_out(b: Former) -> None:
    copied(b, [1024, 1024], "HtoD")
    elementwise(b, [1024, 1024])
    copied(b, [1024, 1024], "DtoH")


@EXAMPLES.silent("copy-round-trip", also="host-sync pageable-copy")
def outside_other_size_comes_back(b: Former) -> None:
    copied(b, [1024, 1024], "DtoH")
    copied(b, [1024, 512], "HtoD")


@EXAMPLES.silent("copy-round-trip", also="host-sync pageable-copy")
def outside_only_results_come_out(b: Former) -> None:
    for _ in range(3):
        elementwise(b, [1024, 1024])
        copied(b, [1024, 1024], "DtoH")
