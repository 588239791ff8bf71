"""The category of kernels and operators by their names, from real traces."""

from __future__ import annotations

import pytest

from pytest_torchprof.work.kernels import CATEGORIES, kernel_category, operator_category

NATIVE = "void at::native::"
KERNELS = {
    "gemm": [
        "ampere_sgemm_32x32_sliced1x4_tn",
        "void gemmSN_TN_kernel<float, 128, 16, 2, 4, 4, 4, true>",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_execute_segment_k_off_kernel",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_64x6_tn_align8>",
        "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT",
        "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT32x32x256_MI16x16x1_SN",
        "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float>",
        "triton_tem_fused_mm_4",
        "fused_moe_kernel",
    ],
    "attention": [
        "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128>>",
        "fmha_cutlassF_bf16_aligned_64x64_rf_sm80",
        "kernel_unified_attention_3d",
        "void flash::flash_fwd_splitkv_combine_kernel<64>",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128",
        "fmhaSm100fKernel_QkvBfloat16OBfloat16H128PagedKvCausalP64VarSeqQ8Kv128",
        "triton_tem_fused_flex_attention_0",
        "void cudnn::fusion::convert_dq_to_16bits<true>(void const*, void*, unsigned int)",
    ],
    "convolution": [
        "sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16",
        "void implicit_convolve_sgemm<float, float, 1024, 6, 7, 3, 3, 5>",
        "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816fprop_optimized_bf16_256x64>",
        "cudnn_volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1",
        "volta_scudnn_128x64_stridedB_interior_nn_v1",
        "igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x256x32",
        "void wgrad_alg0_engine<float, 128, 6, 7, 3, 3, 5, false, 512>",
    ],
    "normalization": [
        f"{NATIVE}(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>",
        "void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 512, true, 1>",
        f"{NATIVE}batch_norm_collect_statistics_kernel<at::native::Var, c10::BFloat16>",
        "_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdINS_27Rmsnorm2dFwdPipelineOnePassI",
        "triton_red_fused_add_addmm_native_layer_norm_27",
        f"{NATIVE}(anonymous namespace)::GammaBetaBackwardCUDAKernel<float, float>",
    ],
    "reduction": [
        f"{NATIVE}reduce_kernel<512, 1, at::native::ReduceOp<float, NormTwoOps<float>>>",
        "void (anonymous namespace)::softmax_warp_forward<float, float, float, 9, false, false>",
        f"{NATIVE}(anonymous namespace)::cunn_SoftMaxForward<8, float, float, float>",
        "triton_per_fused__to_copy_mean_pow_8",
        "void at_cuda_detail::cub::detail::reduce::DeviceReduceSingleTileKernel<cub>",
    ],
    "elementwise": [
        f"{NATIVE}vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>",
        "void (anonymous namespace)::elementwise_kernel_with_index<int, arange_cuda_out>",
        f"{NATIVE}elementwise_kernel<128, 4, at::native::gpu_index_kernel_like<softmax>>",
        f"{NATIVE}(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 2, 128, 1>",
        "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>, float>",
        "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>",
        "triton_poi_fused_addmm_gelu_view_17",
        "void vllm::rotary_embedding_kernel<c10::BFloat16, true>",
        f"{NATIVE}(anonymous namespace)::fused_dropout_kernel_vec<float, float, unsigned int>",
    ],
    "communication": [
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
        "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>",
    ],
    "other": [
        f"{NATIVE}index_elementwise_kernel<128, 4, at::native::gpu_index_kernel>",
        f"{NATIVE}(anonymous namespace)::max_pool_forward_nchw<float, float>",
        "void at_cuda_detail::cub::DeviceSelectSweepKernel<at_cuda_detail::cub::ReduceThing>",
        "void vllm::reshape_and_cache_flash_kernel<__hip_bfloat16, __hip_bfloat16>",
        "my_own_kernel",
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("category", "kernel"), [(c, kernel) for c, names in KERNELS.items() for kernel in names]
)
def test_kernels_of_real_traces(category: str, kernel: str) -> None:
    assert category == kernel_category(kernel)
    assert category in CATEGORIES


@pytest.mark.parametrize(
    ("kernel", "operator", "category"),
    [
        ("ampere_sgemm_32x32_tn", "aten::cudnn_convolution", "convolution"),
        ("void fft2d_r2c_32x32<float>", "aten::cudnn_convolution_backward_input", "convolution"),
        ("ampere_sgemm_32x32_tn", "aten::_scaled_dot_product_attention_math", "gemm"),
        ("layer_norm_kernel", "aten::cudnn_convolution", "normalization"),
        ("triton__0d1d2d", "triton_red_fused_native_layer_norm_2", "normalization"),
        ("triton__0d1d2d", "Torch-Compiled Region", "other"),
        ("unheard_of", "aten::addmm", "gemm"),
        ("unheard_of", "fbgemm::bounds_check_indices", "other"),
    ],
)
def test_the_operator_decides_where_the_kernel_does_not(
    kernel: str, operator: str, category: str
) -> None:
    assert category == kernel_category(kernel, operator)


@pytest.mark.parametrize(
    ("operator", "category"),
    [
        ("aten::linear", "gemm"),
        ("aten::bmm", "gemm"),
        ("aten::conv2d", "convolution"),
        ("aten::mkldnn_convolution", "convolution"),
        ("aten::convert_element", "elementwise"),
        ("aten::native_layer_norm", "normalization"),
        ("aten::scaled_dot_product_attention", "attention"),
        ("aten::_softmax", "reduction"),
        ("aten::sum", "reduction"),
        ("aten::sum_to_size", "elementwise"),
        ("aten::add_", "elementwise"),
        ("aten::_foreach_add_", "elementwise"),
        ("aten::gelu", "elementwise"),
        ("aten::index_select", "other"),
        ("aten::view", "other"),
        ("nccl:all_reduce", "communication"),
        ("c10d::allreduce_", "communication"),
        ("AddmmBackward0", "gemm"),
        ("mylib::decode", "other"),
    ],
)
def test_operators(operator: str, category: str) -> None:
    assert category == operator_category(operator)
