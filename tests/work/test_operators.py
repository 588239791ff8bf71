"""What torch's operators do: the table knows every one that torch registers."""

from __future__ import annotations

import re

import pytest
import torch

from pytest_torchprof.work import flops
from pytest_torchprof.work.dispatch import has_kernel, operator_names
from pytest_torchprof.work.flops import (
    FORMULAS,
    OperatorWork,
    kernel_may_multiply,
    listed_work,
    operator_may_multiply,
    work_of,
)

#: Namespaces of what this process, or a package beside torch, has registered.
NOT_TORCH = {"mylib", "torchvision", "torchaudio", "zoo"}


def native() -> set[str]:
    """Every operator of torch's dispatcher and of TorchScript, without overloads."""
    dispatched = {name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names()}
    scripted = {schema.name for schema in torch._C._jit_get_all_schemas()}
    return {name for name in dispatched | scripted if name.partition("::")[0] not in NOT_TORCH}


def test_every_operator_of_torch_is_in_the_table() -> None:
    names = native()
    assert len(names) > 2000
    unknown = {name for name in names - FORMULAS.keys() if listed_work(name) is None}
    assert unknown == set(), f"say what they do in work/operators.txt: {sorted(unknown)}"


#: Of what torch does not make of others, these return tensors and touch no data all the same.
ALLOCATED = re.compile(
    r"_nested_(get|tensor)_\w+|_?sparse_(resize|coo_tensor_with)_\w*|_?resize_\w+|_coalesced_"
    r"|_efficientzerotensor|lift|unsafe_split(_with_sizes)?"
)
COMPOSITE = ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="the table is of torch 2.13")
def test_what_does_not_compute_is_what_torch_makes_of_others() -> None:
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    implicit, explicit, others = set[str](), set[str](), set[str]()
    with_kernel, returning = set[str](), set[str]()
    for full in torch._C._dispatch_get_all_op_names():
        name, _, overload = full.removeprefix("aten::").partition(".")
        if not full.startswith("aten::"):
            continue
        returns = torch._C._get_schema(f"aten::{name}", overload).returns
        view = any(one.alias_info and not one.alias_info.is_write for one in returns)
        if view or has(full, "CompositeImplicitAutograd"):
            implicit.add(name)
        else:
            others.add(name)
            explicit |= {name for key in COMPOSITE if has(full, key)}
        with_kernel |= {name} if has(full, "CPU") and "out" not in overload else set()
        returning |= {name for one in returns if "Tensor" in str(one.type)}
    table = {
        one: {*operator_names()["dispatch", one]} for one in ("implicit", "explicit", "plumbing")
    }
    assert set() == table["implicit"] - (implicit - others)
    assert set() == table["explicit"] - ((explicit | implicit) & others - with_kernel)
    touching = table["plumbing"] & returning & others
    assert set() == {name for name in touching if not ALLOCATED.fullmatch(name)}
    assert set() == {name for name in implicit - others if has_kernel(f"aten::{name}")}


@pytest.mark.parametrize(
    ("work", "names"),
    [
        ("counted", "mm addmm_ bmm convolution_backward _cdist_forward _foreach_mm"),
        (
            "computes",
            (
                "_fft_r2c _linalg_svd linalg_qr linalg_lstsq geqrf sparse_sampled_addmm sspaddmm "
                "_sparse_sparse_matmul _cslt_sparse_mm quantized_lstm cholesky_inverse _linalg_det"
            ),
        ),
        (
            "parts",
            (
                "linear matmul einsum conv2d lstm cdist fft_rfft2 linalg_pinv linalg_norm stft "
                "scaled_dot_product_attention _sparse_mm matmul_backward addbmm_ smm"
            ),
        ),
        (
            "idle",
            (
                "empty_like view _reshape_alias select_backward copy_ to _to_copy zeros detach_ t "
                "item is_nonzero _local_scalar_dense expand_as fill_ result_type resolve_conj"
            ),
        ),
        (
            "none",
            (
                "add_ relu sum mean softmax _log_softmax_backward_data native_layer_norm dropout "
                "cat max_pool2d_with_indices_backward embedding index_put_ _foreach_addcdiv_ "
                "_fused_adam_ upsample_bilinear2d nll_loss_forward where topk sort cumsum "
                "normal_ randperm mse_loss"
            ),
        ),
    ],
)
def test_each_family_is_recognized_by_its_work(work: OperatorWork, names: str) -> None:
    assert dict.fromkeys(names.split(), work) == {
        name: work_of(f"aten::{name}") for name in names.split()
    }


THEIRS = (
    *("test::matmul", "_test::mm", "test::step", "onnx::my_gemm", "quantization::mm"),
    *("cuda::gemm", "cuda::step", "debugging::mm", "export::conv", "inductor::mygemm"),
    *("fsdp::matmul", "prim::my_mm", "c10d_mine::gemm", "flex_lib::attention", "prims::my_mm"),
    *("static_runtime::mm", "mylib::unpack_matmul", "quantized::unpack_mm", "onednn::mm"),
    *("mylib::gated_mlp_silu", "mylib::scaled_product", "mylib::lstm_relu"),
)


@pytest.mark.parametrize(
    ("name", "work"),
    [
        # an operator that a later torch brings: known by its words, or not
        ("aten::_fused_linear_cross_entropy", "unknown"),
        ("aten::_sparse_bmm_of_tomorrow", "unknown"),
        ("aten::_foreach_addmm", "unknown"),
        ("aten::_something_new", "unknown"),
        ("aten::_newest_rms_norm", "none"),
        ("quantized::linear_tanh", "computes"),
        ("quantized::linear_prepack", "idle"),
        ("quantized::add_relu", "none"),
        ("mylib::my_mm", "unknown"),
        # namespaces that torch has too are not torch's alone
        *dict.fromkeys(THEIRS, "unknown").items(),
        ("inductor::quack_symmetric_mm", "computes"),
        ("fsdp::chunk_cat_mixed_dtype", "idle"),
        ("quantized_decomposed::choose_qparams_symmetric", "none"),
        ("quantized::linear_prepack_fp16_legacy", "idle"),
        ("aiter::mha_batch_prefill", "unknown"),
        ("_C::fused_add_rms_norm", "none"),
        ("vllm::rotary_embedding", "none"),
        ("AddmmBackward0", "around"),
        ("torchprof::call", "around"),
        ("autograd::engine::evaluate_function: MmBackward0", "around"),
        ("torch::autograd::CppNode<Lookup>", "around"),
        ("ProfilerStep#3", "around"),
        ("", "around"),
    ],
)
def test_what_is_not_in_the_table_computes_unless_its_name_says_otherwise(
    name: str, work: OperatorWork
) -> None:
    assert work == work_of(name)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ampere_sgemm_128x64_tn", True),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128>(Params)", True),
        ("Cijk_Alik_Bljk_BBS_BH_MT32x32x256", True),
        ("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1", True),
        ("kernel_unified_attention_3d", True),
        ("void deep_gemm::fp8_gemm_kernel<7168u, 4096u>(__nv_bfloat16*)", True),
        ("triton_tem_fused_mm_3", True),
        ("triton__0d1d2d3de", True),
        ("_w8a8_block_int8_scaled_mm", True),
        ("my_kernel", True),
        ("triton_poi_fused_convolution_22", False),
        ("triton_red_fused_add_native_layer_norm_9", False),
        ("triton_per_fused_mean_24", False),
        ("void at::native::elementwise_kernel<128, 2, add>(int, add)", False),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<float>(float*)", False),
        ("void at_cuda_detail::cub::DeviceRadixSortSingleTileKernel<Policy>(int)", False),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*)", False),
        ("void vllm::rms_norm_kernel<c10::BFloat16>(c10::BFloat16*)", False),
        ("void vllm::reshape_and_cache_flash_kernel<__hip_bfloat16>(int)", False),
        ("void split_embedding_codegen_forward_kernel<float>(fbgemm_gpu::FixedDivisor)", False),
    ],
)
def test_kernels_say_by_their_names_whether_they_may_multiply(name: str, expected: bool) -> None:
    assert kernel_may_multiply(name) is expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fbgemm::split_embedding_codegen_lookup_adagrad_function", False),
        ("torchvision::roi_align", False),
        ("torchvision::deform_conv2d", True),
        ("torch_sparse::spmm_sum", True),
        ("pyg::segment_matmul", True),
        ("xformers::efficient_attention_forward_cutlass", True),
        ("sgl_kernel::moe_fused_gate", True),
        ("_moe_C::topk_softmax", False),
        ("mamba::selective_scan_fwd", True),
        ("bitsandbytes::gemv_4bit", True),
        ("bitsandbytes::quantize_blockwise", False),
    ],
)
def test_operators_of_other_libraries_say_by_their_names(name: str, expected: bool) -> None:
    assert operator_may_multiply(name) is expected


def test_whole_names_need_not_wait_for_the_expressions_of_rows_above() -> None:
    for table in (flops._OF_ATEN, flops._OF_OTHERS, flops._OF_SPACES):
        rows = list(table.items())
        for at, (_, names) in enumerate(rows):
            above = [row for _, row in rows[:at]]
            taken = {n for n in names.plain for row in above if n in row.plain}
            taken |= {n for n in names.plain for row in above if re.match(row.patterns, n)}
            assert set() == taken
