"""Labelled examples of fp32 on devices that compute in half precision several times as fast."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from labelled.attention_cuda import Heads
from labelled.case import Examples
from labelled.kineto import ADD, linear

if TYPE_CHECKING:
    from support.trace_styles import Event

EXAMPLES = Examples()
FLOAT = "float"
SGEMM = "volta_sgemm_128x64_nn"
TENSILE = "Cijk_Ailk_Bljk_SB_Bias_AS_SAV_UserArgs_MT128x128x16_MI32x32x1_SN_LDSB0"
TENSILE_2 = "Cijk_Alik_Bljk_S_B_Bias_HA_S_SAV_UserArgs_MT128x96x32_MI16x16x1_SN_LDSB1"


def sized(gib: float, **more: Any) -> Callable[[Event], Event]:
    """A style: a device with this much memory."""

    def style(document: Event) -> Event:
        size = int(gib * 2**30)
        devices = [d | {"totalGlobalMem": size} | more for d in document["deviceProperties"]]
        for device in devices:
            del device["numSms"]  # that of an H100
        return document | {"deviceProperties": devices}

    return style


def example(
    matches: int, gib: float, **options: Any
) -> Callable[[Callable[[Heads], object]], object]:
    """The function below makes something on a device with this much memory."""
    also, name = options.pop("also", ""), options.pop("device", "")
    style = sized(gib, **({"name": name} if name else {}))
    styles = [style, *options.pop("styles", ())]

    def add(body: Callable[[Heads], object]) -> object:
        def make() -> Heads:
            b = Heads(*styles, **options)
            body(b)
            b.sync("cudaDeviceSynchronize")  # the profiler's own
            return b

        make.__name__ = body.__name__
        EXAMPLES.positive("half-unused", matches, also=also)(make)
        return body

    return add


V100: dict[str, Any] = {"gib": 31.75, "capability": (7, 0)}
T4: dict[str, Any] = {"gib": 14.75, "capability": (7, 5)}


def mlp(b: Heads, kernel: str, us: float, dtype: str = FLOAT, layers: int = 3) -> None:
    for _ in range(layers):
        linear(b, 4096, 1024, 1024, dtype, kernel, us)


# ------------------------------------------------------------------------------------- positives


@example(1, **T4)
def layers_on_a_t4(b: Heads) -> None:
    mlp(b, SGEMM, 250)


@example(1, 63.98, capability=(9, 0), amd="AMD Instinct MI210")
def matrix_cores_of_an_mi210(b: Heads) -> None:
    mlp(b, TENSILE, 180)


@example(1, 287.98, capability=(9, 5), amd="AMD Instinct MI350X", also="small-grid")
def an_mi350_which_has_no_xf32(b: Heads) -> None:
    mlp(b, TENSILE_2, 90)


@example(1, **V100)
def kernels_whose_names_do_not_tell_the_precision(b: Heads) -> None:
    mlp(b, "void fused_gemm_kernel<int, float, 256>", 250)


@example(1, **V100)
def a_graph_of_kernels_beside_an_embedding(b: Heads) -> None:
    b.over("embedding", [30522, 768], FLOAT, "vectorized_gather_kernel<16, long>", us=20)
    b.graph_launch([SGEMM, ADD, SGEMM, ADD, SGEMM], 120)


@example(1, **V100)
def products_a_little_over_a_fifth(b: Heads) -> None:
    mlp(b, SGEMM, 100, layers=4)
    for _ in range(14):
        b.over("add", [4096, 1024], FLOAT, us=100)


@example(1, **V100)
def a_device_that_works_a_little_over_half_of_the_time(b: Heads) -> None:
    for _ in range(6):
        mlp(b, SGEMM, 550, layers=1)
        b.advance(970)


@example(1, **T4)
def products_of_little_over_20_us(b: Heads) -> None:
    mlp(b, SGEMM, 22, layers=40)


# ----------------------------------------------------------------------------------- near misses


@example(0, 39.4, capability=(8, 0), also="fp32-matmul")
def an_a100_which_has_tf32(b: Heads) -> None:
    mlp(b, "ampere_sgemm_128x64_nn", 200)


@example(0, 191.98, capability=(9, 4), amd="AMD Instinct MI300X", also="small-grid")
def an_mi300_which_has_xf32(b: Heads) -> None:
    mlp(b, TENSILE_2, 90)


@example(0, 15.9, capability=(6, 0))
def a_p100_without_tensor_cores(b: Heads) -> None:
    mlp(b, "maxwell_sgemm_128x64_nn", 300)


@example(0, **V100)
def products_a_little_under_a_fifth(b: Heads) -> None:
    mlp(b, SGEMM, 100, layers=4)
    for _ in range(19):
        b.over("add", [4096, 1024], FLOAT, us=100)


@example(0, **T4)
def a_loader_that_starves_the_device(b: Heads) -> None:
    """Tensor cores would make each step shorter, and the wait for the next batch longer."""
    for _ in range(6):
        mlp(b, SGEMM, 420, layers=1)
        b.advance(980)


@example(0, **T4)
def products_of_little_under_20_us(b: Heads) -> None:
    mlp(b, SGEMM, 17, layers=40)


@example(0, **V100)
def tables_of_embeddings_and_a_small_network(b: Heads) -> None:
    for _ in range(10):
        b.over("embedding_bag", [100_000, 128], FLOAT, "split_embedding_codegen<float>", us=400)
        mlp(b, SGEMM, 25, layers=2)


@example(0, 80, device="an accelerator", capability=(7, 5))
def a_device_that_no_table_has(b: Heads) -> None:
    mlp(b, SGEMM, 200)
