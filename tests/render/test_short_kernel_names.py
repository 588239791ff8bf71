"""Kernels in a few words: library, operation, dtype, tile, layout."""

from __future__ import annotations

import gzip
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.real_traces import CORPUS

from pytest_torchprof.core.values import CountedNames
from pytest_torchprof.render.kernel_names import arguments, short_kernel, short_kernels

# fmt: off
NAMES: dict[str, str] = {
    "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, i"
    "nt, int>, cutlass::gemm::collective::CollectiveMma<cutlass::gemm::MainloopSm90TmaGmmaWar"
    "pSpecialized<4, cute::tuple<cute::C<2>, cute::C<1>, cute::C<1> >, cutlass::gemm::KernelT"
    "maWarpSpecializedCooperative>, cute::tuple<cute::C<128>, cute::C<256>, cute::C<64> >, cu"
    "tlass::bfloat16_t, cute::tuple<long, cute::C<1>, long>, cutlass::bfloat16_t> > >(Params)"
    : "cutlass gemm bf16 128x256x64",
    "cutlass3x_sm90_tensorop_s64x128x16gemm_bf16_bf16_f32_bf16_bf16_128x128x64_2x1x1_0_tnn_al"
    "ign8_warpspecialized_cooperative_epi_tma": "cutlass gemm bf16 128x128x64 tnn",
    "void cutlass::Kernel<cutlass::gemm::kernel::Gemm<cutlass::gemm::threadblock::MmaMultista"
    "ge<cutlass::gemm::GemmShape<128, 128, 32>, cutlass::transform::threadblock::X<cutlass::h"
    "alf_t>>>>(int)": "cutlass gemm f16 128x128x32",
    "void cutlass::Kernel<cutlass_80_simt_sgemm_128x64_8x5_nn_align1>(cutlass_80_simt_sgemm_1"
    "28x64_8x5_nn_align1::Params)": "cutlass gemm f32 128x64x8 nn",
    "cutlass_80_tensorop_s1688gemm_128x128_16x5_nn_align4": "cutlass gemm tf32 128x128x16 nn",
    "cutlass_80_tensorop_d884gemm_64x64_16x4_nn_align1": "cutlass gemm f64 64x64x16 nn",
    "cutlass_75_tensorop_s1688gemm_f16_128x128_32x2_tn_align8"
    : "cutlass gemm f16 128x128x32 tn",
    "turing_fp16_s1688gemm_fp16_128x64_sliced1x2_ldg8_f2f_nn"
    : "cublas gemm f16 128x64 nn sliced1x2",
    "volta_h884gemm_128x64_ldg8_nn": "cublas gemm f16 128x64 nn",
    "volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1"
    : "cudnn conv f32 128x128 nt winograd relu",
    "ampere_s16816gemm_bf16_128x128_ldg8_stages_32x5_tn": "cublas gemm bf16 128x128x32 tn",
    "ampere_fp16_s16816gemm_fp16_128x128_ldg8_relu_f2f_stages_64x3_tn"
    : "cublas gemm f16 128x128x64 tn relu",
    "ampere_sgemm_128x64_nn": "cublas gemm f32 128x64 nn",
    "maxwell_sgemm_128x64_raggedMn_nn_splitK": "cublas gemm f32 128x64 nn splitK",
    "volta_dgemm_64x64_nt": "cublas gemm f64 64x64 nt",
    "sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x32_stage4_warpsize2x2x1_tensor16x8"
    "x16_kernel": "cublas gemm f16 128x128x32 tn",
    "sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x128x128_warpgroupsize1x1x1_bias_exe"
    "cute_segment_k_off_kernel__5x_cublas": "cublas gemm f8 128x128x128 tn bias",
    "sm80_xmma_wgrad_implicit_gemm_indexed_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x32"
    "_stage3_warpsize2x2x1_g1_tensor16x8x16_execute_kernel__5x_cudnn"
    : "cudnn wgrad f16 128x128x32 nhwc",
    "sm80_xmma_gemm_i8i32_i8i32_i32_tn_n_tilesize256x128x64": "cublas gemm i8 256x128x64 tn",
    "nvjet_tst_256x128_64x4_1x2_h_bz_coopA_NNT": "nvjet gemm bf16 256x128x64 NNT",
    "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT": "nvjet gemm f16 128x256x64 TNT",
    "nvjet_qqtst_128x256_128x4_2x1_v_bz_coopA_TNT": "nvjet gemm f8 128x256x128 TNT",
    "nvjet_sm90_tst_192x16_64x8_2x1_v_bz_splitK_TNT": "nvjet gemm bf16 192x16x64 TNT",
    "nvjet_sm120_qqtst_mma_192x144_128x3_1x1_v_bz_TNT": "nvjet gemm f8 192x144x128 TNT",
    "nvjet_sm100_tst_128x256_64x6_2x1_2cta_v_bz_TNT": "nvjet gemm bf16 128x256x64 TNT",
    "Cijk_Ailk_Bjlk_HBH_MT128x128x32_SE": "Tensile gemm f16 MT128x128x32 NT",
    "Cijk_Ailk_Bljk_SB_MT64x64x16_SN": "Tensile gemm f32 MT64x64x16 NN",
    "Cijk_Alik_Bljk_I8II_BH_MT256x128x64_SN": "Tensile gemm i8 MT256x128x64 TN",
    "Cijk_Ailk_Bljk_F8BS_BH_MT256x128x64_SN": "Tensile gemm f8 MT256x128x64 NN",
    "Cijk_S_Bias_HAS_SAV_PostGSU4_VW4": "Tensile split sum f32",
    "Custom_Cijk_Alik_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT256x256x64_MI16"
    : "Tensile gemm bf16 MT256x256x64 TN",
    "void ck::kernel_gemm_xdl_cshuffle_v3<ck::GridwiseGemm_xdl_cshuffle_v3<ck::tensor_layout:"
    ":gemm::RowMajor, ck::tensor_layout::gemm::ColumnMajor, ck::tensor_layout::gemm::RowMajor"
    ", unsigned short, unsigned short, float, unsigned short, unsigned short, ck::tensor_oper"
    "ation::element_wise::PassThrough, ck::tensor_operation::element_wise::PassThrough, ck::t"
    "ensor_operation::element_wise::PassThrough, (ck::tensor_operation::device::GemmSpecializ"
    "ation)0, 256, 128, 128, 64, 8, 8> >(int)": "CK gemm_xdl_cshuffle_v3 bf16 128x128x64 rcr",
    "void ck_tile::kentry<256, 2, ck_tile::FmhaFwdKernel<ck_tile::BlockFmhaPipelineQRKSVSAsyn"
    "c<ck_tile::BlockFmhaPipelineProblem<_Float16, float, ck_tile::sequence<128, 128, 32, 128"
    ", 32, 128>>>>>(int)": "CK FmhaFwd f16 128x128x32",
    "_ZN7ck_tile6kentryILi256ELi2EJNS_13FmhaFwdKernelINS_28BlockFmhaPipelineQRKSVSAsyncINS_24"
    "BlockFmhaPipelineProblemIDF16_DF16_fNS_13TileFmhaShapeINS_8sequenceIJLi128ELi128ELi32EEE"
    "E": "CK FmhaFwd f16 128x128x32",
    "_ZN2at6native12_GLOBAL__N_119SoftMaxBwdInnerImplIfLi4EEEvPT_": "SoftMaxBwdInnerImpl",
    "fmha_cutlassB_f16_aligned_64x64_k64_dropout_sm80(PyTorchMemEffAttention::X::Params)"
    : "cutlass fmha bwd f16 64x64",
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_kern"
    "el0_0": "cudnn sdpa fwd f16 64x128x128",
    "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<pytorch_flash::Flash_bw"
    "d_kernel_traits<64, 64, 128, 8, 2, 4, 4, false, true, cutlass::half_t, X<64, 64, 128, 8,"
    " cutlass::half_t> >, false, true, false, false, true, true, false>(Params)"
    : "flash bwd f16 hdim64 64x128 causal",
    "void pytorch_flash::flash_fwd_splitkv_kernel<pytorch_flash::Flash_fwd_kernel_traits<128,"
    " 64, 128, 4, false, false, cutlass::half_t, X<1> >, true, false, false, false>(Params)"
    : "flash fwd_splitkv f16 hdim128 64x128 causal",
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, false, fal"
    "se, cutlass::bfloat16_t, X<1> >, false, true, false>(P)"
    : "flash fwd bf16 hdim64 128x128 causal",
    "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<flash::Collective"
    "MainloopFwdSm90<2, cute::tuple<cute::C<1>, cute::C<1>, cute::C<1> >, cute::tuple<cute::C"
    "<128>, cute::C<176>, cute::C<128> >, 128, cutlass::bfloat16_t, float> > > >(P)"
    : "flash fwd bf16 hdim128 128x176",
    "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false, false"
    ", cublasGemvParamsEx<int, cublasGemvTensorStridedBatched<float const>, X> >(P)"
    : "cublas gemv2T f32",
    "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, __nv_bfloat16, __"
    "nv_bfloat16, float, false>(P)": "cublas gemvx bf16",
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float>(P)"
    : "cublas split sum f32",
    "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true, 1, true>(P)"
    : "cudnn bn_fw_tr_1C11_kernel_NCHW f32",
    "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(P)"
    : "cudnn winogradForwardData4x4 f32",
    "void implicit_convolve_sgemm<float, float, 128, 5, 5, 3, 3, 3, 1, false, false, true>(in"
    "t)": "cudnn implicit_convolve_sgemm f32",
    "void cub::CUB_200200_700_NS::detail::radix_sort::DeviceRadixSortOnesweepKernel<cub::X<fl"
    "oat>::Policy900, false, float, at::cuda::cub::detail::OpaqueType<8> >(P)"
    : "cub RadixSortOnesweep f32",
    "triton_mm_kernel_0d1d2d3de4de": "triton_mm_kernel",
    "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu"
    : "triton matmul_ogs bf16xbf16xmxfp4 16x128x256 NNT swiglu",
    "_fwd_kernel_aligned_0d1d2d3d45d6de7de8c9de10de": "_fwd_kernel_aligned",
    "sm80_xmma_dgrad_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x32x32_stage"
    "4_warpsize4x1x1_g1_tensor16x8x16_execute_kernel_cudnn_infer"
    : "cudnn dgrad bf16 128x32x32 nhwc",
    "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816fprop_optimized_bf16_256x64_3"
    "2x4_nhwc_align8>(P)": "cutlass fprop bf16 256x64x32 nhwc",
    "void cudnn::ops::nchwToNhwcKernel<__nv_bfloat16, __nv_bfloat16, float, false, true>(P)"
    : "cudnn nchwToNhwc bf16",
    "void gemmSN_TN_kernel<float, 128, 16, 2, 4, 4, 4, true, cublasGemvTensorStridedBatched<_"
    "_nv_bfloat16 const>, X>(P)": "cublas gemmSN bf16 TN",
    "void epilogue::impl::globalKernel<float, float, float, true, true>(int)"
    : "cublas epilogue f32",
    "ampere_gcgemm_64x64_nt": "cublas gemm c64 64x64 nt",
    "_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdINS_27Rmsnorm2dFwdPipelineOnePassINS_27Rmsnorm2d"
    "FwdPipelineProblemIDF16bDF16bfDF16bNS_19Generic2dBlockShapeINS_8sequenceIJLi1ELi3072EEEE"
    : "CK Rmsnorm2dFwd bf16 1x3072",
}
FUNCTIONS: dict[str, str] = {
    "vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, at::detail:"
    ":Array<char*, 3> >(int)": "elementwise add bf16 vec4",
    "vectorized_elementwise_kernel<4, at::native::sqrt_kernel_cuda(at::TensorIteratorBase&)::"
    "{lambda()#2}::operator()() const::{lambda(float)#1}, at::detail::Array<char*, 2> >(int)"
    : "elementwise sqrt f32 vec4",
    "vectorized_elementwise_kernel<8, at::native::BinaryFunctor<c10::Half, c10::Half, bool, a"
    "t::native::(anonymous namespace)::CompareEqFunctor<c10::Half> >, std::array<char*, 3ul> "
    ">(int)": "elementwise compare_eq f16 vec8",
    "unrolled_elementwise_kernel<at::native::AUnaryFunctor<float, float, float, at::native::b"
    "inary_internal::MulFunctor<float> >, at::detail::Array<char*, 2>, TrivialOffsetCalculato"
    "r<1, unsigned int> >(int)": "elementwise mul f32 unrolled",
    "elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::BinaryFunctor<"
    "float, float, float, at::native::binary_internal::DivFunctor<float> > >(at::TensorIterat"
    "orBase&, int const&)::{lambda(int)#1}>(int)": "elementwise div f32",
    "reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::func_wrapper_t<float, at::"
    "native::sum_functor<float, float, float>::operator()(at::TensorIterator&)::{lambda(float"
    ", float)#1}>, unsigned int, float, 4> >(int)": "reduce sum f32",
    "reduce_kernel<512, 1, at::native::ReduceOp<c10::BFloat16, at::native::MeanOps<c10::BFloa"
    "t16, float, float, c10::BFloat16>, unsigned int, c10::BFloat16, 4> >(int)"
    : "reduce mean bf16",
    "(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::Tens"
    "orListMetadata<2>, at::native::(anonymous namespace)::BinaryOpScalarFunctor<float, 2, 1,"
    " 1>, std::multiplies<float>, float>(int)": "foreach binary_op_scalar multiplies f32",
    "(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::Fuse"
    "dOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::FusedAdamMathFunctor"
    "<float, 4, (at::native::(anonymous namespace)::ADAM_MODE)0, false>, float const*, double"
    ">(int)": "foreach fused_adam f32",
    "(anonymous namespace)::CatArrayBatchedCopy<at::native::(anonymous namespace)::OpaqueType"
    "<2u>, unsigned int, 3, 64, 64>(int)": "cat 2B 3d",
}
# fmt: on
NATIVE = "void at::native::"


@pytest.mark.parametrize(("name", "expected"), NAMES.items())
def test_names_of_libraries(name: str, expected: str) -> None:
    assert expected == short_kernel(name)


@pytest.mark.parametrize(("name", "expected"), FUNCTIONS.items())
def test_names_of_torchs_own_kernels(name: str, expected: str) -> None:
    assert expected == short_kernel(NATIVE + name)


@pytest.mark.parametrize(
    "name",
    [
        "triton_poi_fused__to_copy_1",  # the name in the generated code
        "triton__0d1d2d3de4",  # nothing else tells it from others
        "Memcpy HtoD (Pageable -> Device)",
        "kernel_unified_attention_2d",
        "nvjet_of_the_future",
        "cutlass_80_tensorop_unheard_of",
        "Cijk_unheard_of",
        "",
        "_Z",
        "_ZN",
        "_ZN99",
    ],
)
def test_a_name_of_another_kind_stays(name: str) -> None:
    assert name == short_kernel(name)


def test_names_that_become_equal_are_counted_together() -> None:
    names = CountedNames([("ampere_sgemm_128x64_nn", 3), ("volta_sgemm_128x64_nn", 2), ("x", 1)])
    assert "cublas gemm f32 128x64 nn ×5, x ×1" == short_kernels(names)
    assert "cublas gemm f32 128x64 nn" == short_kernels("ampere_sgemm_128x64_nn")


_PIECES = [
    *("cutlass_80_tensorop_", "s16816gemm", "bf16", "_128x64_", "64x6", "_tn", "Cijk_Ailk_Bljk_"),
    *(
        "HHS",
        "_MT",
        "nvjet_tst_",
        "sm90_xmma_gemm_",
        "f32f32_",
        "flash::flash_fwd_kernel<",
        "<",
        ">",
    ),
    *("void ", "at::native::", "elementwise_kernel<", "reduce_kernel<", "ReduceOp<", "float", ", "),
    *(
        "func_wrapper_t<",
        "cub::DeviceScanKernel<",
        "ck::kernel_gemm<",
        "_ZN",
        "7ck_tile",
        "99",
        "I",
    ),
    *("(", ")", "{lambda(int)#1}", "cutlass::Kernel2<", "GemmShape<1, 2, 3>", "gemv2T<", "1", "_"),
    *("cudnn::", "multi_tensor_apply_kernel<", "CatArrayBatchedCopy<", "gpu_kernel_impl<", "->"),
]


@given(st.lists(st.sampled_from(_PIECES), max_size=12).map("".join))
@example("void s16816gemmvoid ")
def test_any_name_has_a_short_form(name: str) -> None:
    short = short_kernel(name)
    assert bool(short) == bool(name.removeprefix("void "))
    assert short == short.strip() or short == name


@given(st.text("ab<>(){},:- ", max_size=60))
def test_any_text_has_arguments_or_none(text: str) -> None:
    assert all(part and part in text for part in arguments(text))


@pytest.mark.thorough
def test_most_kernels_of_real_traces_are_short() -> None:
    """Those that are not are other libraries' templates, such as FBGEMM's."""
    paths = sorted(CORPUS.glob("*.json.gz"))
    if not paths:
        pytest.skip(f"no real traces: {CORPUS} has none")
    names = {
        event["name"]
        for path in paths
        for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        if event.get("cat") == "kernel"
    }
    assert len(names) > 200
    assert all(short_kernel(name) for name in names)
    assert sum(len(short_kernel(name)) > 48 for name in names) < 0.1 * len(names)
