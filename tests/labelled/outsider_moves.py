"""The same as `outsider_cuda`, of what moves between host and device, and who waits."""

from __future__ import annotations

from labelled.kineto import (
    MIB,
    Former,
    Measured,
    elementwise,
    item,
)

EXAMPLES = Measured()


# ------------------------------------------------------------------------- extra-cuda-copy


@EXAMPLES.silent("extra-cuda-copy")
def outside_data_moved(b: Former) -> None:
    for _ in range(3):
        b.moved((64, 64))


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
def outside_streams_wait_for_one_another(b: Former) -> None:
    b.runtime("cudaEventRecord", 2)
    b.runtime("cudaStreamWaitEvent", 2)
    b.runtime("cudaEventQuery", 1)
    elementwise(b, [64, 64])


# ---------------------------------------------------------- pageable-copy, copy-round-trip


@EXAMPLES.silent("pageable-copy")
def outside_large_copy_on_the_device(b: Former) -> None:
    with b.ran("aten::copy_", [[16, MIB]] * 2, ["float", "float"]):
        b.memcpy("DtoD", 64 * MIB, device_us=60)
