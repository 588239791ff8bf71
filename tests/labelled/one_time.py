"""Labelled examples of the rule about what a process does once."""

from __future__ import annotations

from contextlib import ExitStack

from labelled.case import Examples
from support.chips import Gpu

EXAMPLES = Examples()

RULE = "warmup-in-capture"
RELU = "void at::native::vectorized_elementwise_kernel<4, at::native::relu>"
CONV = "sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x32"
OFFSETS = "void cask_cudnn::computeOffsetsKernel<false, false>(cask_cudnn::ComputeOffsetsParams)"
CONVOLVING = ("aten::conv2d", "aten::convolution", "aten::_convolution", "aten::cudnn_convolution")
IMAGES = [[32, 64, 56, 56], [64, 64, 3, 3], []]


class Steps(Gpu):
    """What a few steps leave in a trace."""

    def convolve(self, kernel: str = CONV, us: float = 400, host_us: float = 5) -> None:
        """One convolution, with all of its operators around the launch."""
        with self.within(*CONVOLVING):
            self.launch(kernel, us, host_us=host_us)

    def within(self, *names: str) -> ExitStack:
        """Operators, the outermost first."""
        stack = ExitStack()
        for name in names:
            stack.enter_context(self.op(name, IMAGES))
        return stack

    def steps(self, count: int = 5, us: float = 400) -> None:
        """Steps as they usually run: the device has work while the host launches more."""
        for number in range(count):
            with self.annotation(f"ProfilerStep#{number}"):
                self.convolve(us=us)
                with self.op("aten::relu", [IMAGES[0]]):
                    self.launch(RELU, us)
        self.sync("cudaDeviceSynchronize")


def begun(chip: str = "H100", *styles: str) -> Steps:
    """A trace in which the device has run something already."""
    b = Steps(chip, *styles)
    b.launch(RELU, 20)
    return b


# ------------------------------------------------------------------------------- positives


@EXAMPLES.positive(RULE, 3)
def kernels_of_rocm_are_loaded_one_by_one():
    b = begun("MI300X")
    norms = ("native_layer_norm", "native_group_norm", "native_batch_norm")
    for name, ms in zip(norms, (9, 211, 332), strict=True):
        with b.op(f"aten::{name}", [[8, 64, 128], [128], [128]]):
            b.launch(f"void at::native::(anonymous namespace)::{name}_kernel", 40, host_us=ms * 1e3)
    b.steps(3)
    return b


@EXAMPLES.positive(RULE, 40)
def forty_triton_kernels_are_loaded_as_modules():
    b = begun()
    for number in range(40):
        b.runtime("cuModuleLoadData", 900)
        b.launch(f"triton_poi_fused_add_mul_{number}", 20, driver=True)
    b.steps(4)
    return b


@EXAMPLES.positive(RULE, 2)
def libraries_of_the_new_loader():
    b = begun()
    with b.op("aten::mm", [[512, 512], [512, 512]], ["c10::BFloat16"] * 2):
        b.runtime("cudaLibraryLoadData", 14_000)
        b.runtime("cuLibraryLoadData", 25_000)
        b.launch("nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NTN", 60)
    b.steps()
    return b


@EXAMPLES.positive(RULE, 2)
def cublas_begins_with_the_first_layer():
    b = begun("V100")
    with b.op("aten::linear", [[64, 512], [512, 512]]), b.op("aten::addmm", [[512], [64, 512]]):
        b.runtime("cudaFree", 266_000)
        b.runtime("cudaFree", 155_000)
        b.launch("volta_sgemm_64x64_tn", 40)
    b.steps(8)
    return b


@EXAMPLES.positive(RULE, 2)
def events_and_streams_of_the_first_convolution_in_2021():
    b = begun("V100", "schema_2021")
    with b.within(*CONVOLVING):
        b.runtime("cudaStreamCreateWithFlags", 557_000)
        b.runtime("cudaEventCreateWithFlags", 720_000)
        b.runtime("cudaEventCreateWithFlags", 1)
        b.launch("volta_scudnn_128x64_relu_interior_nn_v1", 300)
    b.steps()
    return b


def _compiling(b: Steps, name: str, ms: float, then: str = "") -> None:
    with b.annotation(name):
        b.op("aten::empty", dur_us=20)
        if then:
            b.annotation(then, dur_us=ms * 500)
        b.advance(ms * 1e3)


def _region(b: Steps, name: str = "Torch-Compiled Region: 0/0", kernels: int = 3) -> None:
    with b.annotation(name):
        for number in range(kernels):
            b.launch(f"triton_red_fused_native_layer_norm_{number}", 200, driver=True)


@EXAMPLES.positive(RULE)
def the_first_call_compiles_and_others_follow():
    b = begun()
    _compiling(b, "_compile.compile_inner (dynamo_timed)", 300, "inductor_compile (dynamo_timed)")
    for _ in range(4):
        _region(b)
    return b


@EXAMPLES.positive(RULE, share=0.3)
def a_third_of_the_span_loads_kernels():
    b = begun()
    b.launch(OFFSETS, 10, host_us=40_000)
    b.steps(8, us=5_000)
    return b


@EXAMPLES.positive(RULE, least=30)
def forty_milliseconds_where_thirty_are_enough():
    return a_third_of_the_span_loads_kernels()


# ------------------------------------------------------------------------------ near misses


@EXAMPLES.near_miss(RULE, share=0.4)
def a_third_of_the_span_where_more_is_asked():
    return a_third_of_the_span_loads_kernels()


@EXAMPLES.near_miss(RULE, least=50)
def forty_milliseconds_where_fifty_are_asked():
    return a_third_of_the_span_loads_kernels()


@EXAMPLES.near_miss(RULE)
def steps_of_a_warm_process():
    b = begun()
    b.steps(20)
    return b


@EXAMPLES.near_miss(RULE, also="recompile")
def another_size_is_compiled_again():
    b = begun()
    for _ in range(2):
        _region(b)
    _compiling(b, "_compile.compile_inner (dynamo_timed)", 300)
    for _ in range(3):
        _region(b, "Torch-Compiled Region: 0/1")
    return b


@EXAMPLES.near_miss(RULE)
def one_compilation_is_what_was_profiled():
    b = begun()
    _compiling(b, "_compile.compile_inner (dynamo_timed)", 800)
    _region(b)
    return b


@EXAMPLES.near_miss(RULE)
def an_allocator_frees_in_each_step():
    b = begun("MI300X")
    for _ in range(6):
        with b.within("aten::conv2d", "aten::_convolution", "aten::miopen_convolution"):
            b.runtime("cudaMalloc", 60)
            b.launch("miopenSp3AsmConv_v30_3_1_gfx94x_fp32_f2x3", 900)
            b.runtime("cudaFree", 8_000)
    return b


@EXAMPLES.near_miss(RULE)
def twenty_milliseconds_of_a_second():
    b = begun("T4")
    b.launch(OFFSETS, 3, host_us=20_000)
    b.steps(10, us=50_000)
    return b


@EXAMPLES.near_miss(RULE, also="host-sync")
def a_user_times_convolutions_with_events():
    b = begun("V100")
    for _ in range(6):
        b.convolve(us=3_000)
        b.sync("cudaEventSynchronize")
    return b
