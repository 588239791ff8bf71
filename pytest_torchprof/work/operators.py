"""Classify torch's operators by their FLOPs.

A formula counts products only (see `pytest_torchprof.work.flops`), so an operator is one of these:

- `counted`: it has a formula;
- `idle`: no arithmetic: a view, an allocation, a copy, a query about a tensor;
- `none`: arithmetic without products: its FLOPs are 0;
- `parts`: it is made of other operators, which a trace shows;
- `computes`: it computes products, or something equivalent, and has no formula;
- `unknown`: it is in no table, like other libraries' operators, and its name may mean products;
- `around`: not an operator, but an annotation, a node of autograd, a compiled region.

A test checks the table against every operator that torch registers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from pytest_torchprof.core.lazy_regex import late
from pytest_torchprof.work.flops import FORMULAS
from pytest_torchprof.work.foreign import names_products, operator_may_multiply

OperatorWork = Literal["counted", "idle", "none", "parts", "computes", "unknown", "around"]

#: With its overload, if the trace has it but no operator of torch's own, see `base_names`.
_OPERATOR: Final = late(r"^(?!autograd::|torch::|torchprof::)[A-Za-z_]\w*::\w+(\.[A-Za-z_]\w*)?$")

#: Common names, which the patterns below match too. Listing them avoids compiling the patterns,
#: which takes some 10 ms.
_USUAL: Final[Mapping[OperatorWork, str]] = {
    "parts": """
        conv1d conv2d gru lstm scaled_dot_product_attention scaled_dot_product_attention_math
    """,
    "idle": """
        as_strided broadcast_tensors clone contiguous empty empty_like empty_quantized
        empty_strided expand expand_as fill flatten full full_like is_nonzero is_pinned
        lift_fresh mT movedim nested_tensor_size new_empty new_empty_strided new_full new_ones
        new_zeros ones ones_like permute reshape reshape_alias resize resolve_conj scalar_tensor
        select select_backward set slice slice_backward split split_with_sizes squeeze swapaxes
        to_copy unflatten unsafe_view unsqueeze view view_as zero zeros zeros_like
    """,
    "none": """
        abs adaptive_avg_pool2d amax and argmax avg_pool2d batch_norm batch_norm_impl_index
        bitwise_and bitwise_not clamp clamp_max clamp_min cross_entropy_loss cumsum div dropout
        elu embedding embedding_dense_backward exp foreach_add foreach_addcdiv foreach_addcmul
        foreach_div foreach_lerp foreach_mul foreach_norm foreach_sqrt foreach_zero fused_adamw
        fused_sgd gather gelu gelu_backward hardtanh index index_put index_put_impl index_select
        isclose isinf isnan isneginf layer_norm leaky_relu linalg_vector_norm log log_softmax
        log_softmax_backward_data logical_and masked_fill max max_pool1d max_pool2d
        max_pool2d_with_indices max_pool2d_with_indices_backward mean min mse_loss
        mse_loss_backward mul native_batch_norm native_batch_norm_backward native_dropout
        native_dropout_backward native_layer_norm native_layer_norm_backward neg nll_loss
        nll_loss_backward nll_loss_forward nll_loss_nd nonzero normal rand rand_like randint
        randn randn_like randperm relu repeat repeat_interleave safe_softmax scatter sgn
        sigmoid_backward sign silu_backward softmax softmax_backward_data std sub sum
        tanh_backward threshold_backward tril triu unique unique2 var var_mean
    """,
}
#: Operators of the namespace aten, without leading and trailing underscores and without what
#: `_DERIVED` strips: patterns of whole names, separated by blanks. The first match decides.
_ATEN: Final[Mapping[OperatorWork, str]] = {
    "computes": r"""
        # Fourier transforms and decompositions: what torch gives to MKL, cuFFT, LAPACK, MAGMA
        fft_[cr]2[cr]
        linalg_(det|slogdet|eigh?|eigvalsh?|solve_ex|inv_ex|svd|qr|cholesky_ex|lstsq|polar)
        linalg_(householder_product|ldl_(factor(_ex)?|solve)|lu(_factor(_ex)?|_solve)?)
        linalg_(solve_triangular|matrix_sqrth) cholesky(_inverse|_solve_helper)?
        triangular_solve geqrf ormqr
        # sparse and packed operands
        (sparse_)?sampled_addmm sparse_sparse_matmul sparse_mm_reduce(_impl)? sspaddmm hspmm
        spsolve cslt_sparse_mm(_search)? sparse_semi_structured_(addmm|linear|mm)
        mixed_dtypes_linear dyn_quant_matmul_4bit
        fbgemm_linear_(fp16|int8)_weight(_fp32_activation)? wrapped_quantized_linear_prepacked
        # fused layers
        quantized_(lstm|gru) quantized_\w+_cell lstm_mps triton_\w+_attention
    """,
    "parts": r"""
        linear matmul einsum bilinear tensordot inner chain_matmul addbmm baddbmm cov corrcoef
        conv(olution|_transpose)?(\dd)? convolution_mode conv_tbc cdist euclidean_dist smm spmm
        sparse_(mm|addmm) (lstm|gru|rnn_tanh|rnn_relu)(_cell)? mkldnn_linear slow_conv\w+
        scaled_dot_product_attention(_math)? native_multi_head_attention
        transformer_encoder_layer_fwd (flash|cudnn)_attention_forward_no_dropout_inplace
        linalg_(multi_dot|matmul|vecdot|matrix_(exp|power)) matrix_(exp|power)
        linalg_(pinv|solve|inv|cond|matrix_rank|cholesky|svdvals|tensor(inv|solve)) pinverse
        inverse det logdet slogdet qr svd orgqr lu_with_info (cholesky|lu)_solve
        fft_i?[rh]?fft[2n]? stft istft linalg_(matrix_)?norm frobenius_norm nuclear_norm norm
        trilinear backward
    """,
    "idle": r"""
        # queries about a tensor, its storage, devices, random generators, autograd, script
        (is|has|get|set|q|use|can|test|debug|validate|assert|make|retain|retains|sym)_\w+ is
        isnot not size\w* numel dim\w* (sparse|dense)_dim stride storage_offset element_size
        device version nnz len result_type promote_types qscheme infer_size equal allclose item
        local_scalar_dense fused_sdp_choice cudnn_(is_acceptable|init_dropout_state)
        nnpack_available cufft_\w+ manual_seed (initial_)?seed wait
        (functional_)?(assert|sym_constrain)\w* record_stream requires_grad detach alias data
        fw_primal (un)?pack_dual align_\w+ refine_names rename shallow_copy_data output_nr
        (add|remove)_batch_dim propagate_xla_data owner(_name)? confirmed_by_owner local_value
        to_here shape_as_tensor linalg_check_errors print warn grad save lift(_fresh)? foobar
        # allocations, views, copies, layouts, moves
        (new_)?(empty|zeros|ones|full)\w* (fill|zero|no_grad_(fill|zero)) efficientzerotensor
        eye from_file (scalar_|as_|list_to_)?tensor tensor_(split|to_list) arange range
        dim_arange linspace logspace
        (copy|foreach_copy|clone|lazy_clone|contiguous|set|resize|reshape|view|expand)(_\w+)?
        (permute|values|indices)(_\w+)?
        to (to|sparse_to|to_sparse)_\w+ cpu cuda type_as cast_\w+ autocast_to_\w+ pin_memory
        dequantize int_repr as_strided(_scatter)? (un)?squeeze(_\w+)? ncf_\w+ neg_view conj
        resolve_(conj|neg) real imag positive t transpose adjoint numpy_T m[TH] matrix_H
        swap(axes|dims) move(axis|dim) (un)?flatten(_dense_tensors)? ravel narrow select(_\w+)?
        slice(_\w+)? diagonal(_scatter)? linalg_diagonal unfold unbind
        [hvd]?(unsafe_)?split(_\w+)? unsafe_(split|view|chunk)\w* chunk broadcast_\w+
        atleast_\dd mkldnn_(reshape|transpose|reorder_\w+)
        (convert|fbgemm|dyn_quant)_(weight|pack|linear_quantize|indices)_?\w*
        (c?col|c?row)_indices nested_(view|get|compute|from)\w*
        nested_tensor_(size|str|stor|from)\w* sparse_(\w+_)?tensor\w*
        sparse_(resize|broadcast|mask)\w* coalesced? wrapped_linear_prepack
        cudnn_rnn_flatten_weight saturate_weight_to_fp16 cslt_compress chunk_cat
        (jagged|padded_dense)_to_\w+ (un)?pack_sequence pad_(enum|packed_sequence)
        pack_padded_sequence vulkan\w* sparse_semi_structured_\w+ (index_)?masked_select
    """,
    "none": r"""
        # elementwise
        (special|amp|bitwise|logical|philox|sobol)_\w+ foreach_(?!mm|addmm|bmm)\w+
        fused_(ada\w+|sgd|dropout|rms_norm|moving\w+) abs(olute)? neg(ative)? sgn? sign(bit)?
        (arc)?(a?(sin|cos|tan)h?)2? arc(sin|cos|tan)h?2? exp2? expm1
        log(2|10|1p|addexp2?|it|_sigmoid)? sqrt rsqrt square pow float_power add sub(tract)?
        rsub mul(tiply)? (true_|floor_)?div(ide)? kron remainder fmod floor ceil round trunc fix
        frac reciprocal addcmul addcdiv addr add_relu lerp hypot ldexp frexp copysign nextafter
        heaviside gcd lcm sinc polar complex angle eq ne lt le gt ge (not_)?equal
        (greater|less)(_equal)? maximum minimum fmax fmin where xlogy conj_physical chalf
        is(close|finite|inf|nan|neginf|posinf|real|in) i?(and|or|xor|lshift|rshift)
        (de|rad)2(deg|rad) deg2rad nan_to_num erf(c|inv)? digamma lgamma mvlgamma polygamma
        igammac? i0 clamp(_max|_min)? clip threshold sigmoid tanh relu6? (leaky|p|r)_?relu\w*
        prelu_kernel rrelu_with_noise c?elu selu g?elu glu silu mish softplus
        (hard|soft)(shrink|sigmoid|swish|tanh) infinitely_differentiable_gelu
        # sums, norms, orders, scans, histograms, indexing
        (nan)?(sum|mean|median|quantile) prod std(_mean)? var(_mean)? a?(max|min) aminmax
        arg(max|min|sort|where) all any (logsum|logcumsum)exp
        (log_|safe_|masked_|sparse_|nested_tensor_)*softmax(_with_shape)? dist pdist
        pairwise_distance cosine_similarity trace renorm
        linalg_(vector_norm|cross|vander|powsum|_powsum) native_norm norm_except_dim cross outer
        ger vander diff gradient (cumulative_)?trap(z|ezoid)
        cum(sum|prod|max|min|maxmin)(_helper)? sort msort topk kthvalue mode unique\w*
        count_nonzero nonzero\w* bincount hist\w+ bucketize searchsorted segment_reduce
        sum_to_size grad_sum_to_size value_selecting_reduction hash_tensor tri[lu](_indices)?
        diag(_embed|flat)? block_diag meshgrid cartesian_prod combinations one_hot fill_diagonal
        index(_\w+)? unsafe_(masked_)?index\w* (masked_)?scatter\w* gather\w* take(_along_dim)?
        put masked_\w+ embedding\w* no_grad_embedding_renorm cat concat(enate)? stack [hvd]stack
        (row|column)_stack repeat\w* tile roll rot90 flip fliplr flipud pad pad_\w+
        constant_pad_nd (reflection|replication)_pad\dd (native_)?channel_shuffle
        pixel_(un)?shuffle im2col col2im spdiags rowwise_prune lu_unpack
        sparse_(csr_)?(sum|prod) nested_(select|sum|to_padded_tensor)
        # layers without products: norms, pools, interpolation, losses, dropout, random numbers
        (cudnn_|miopen_|native_|quantized_)*(batch|layer|group|instance|rms|weight)_norm\w*
        (native_)?(alpha_|feature_)*dropout fill_mem_eff_dropout_mask
        (adaptive_|fractional_|quantized_|mkldnn_)*(avg|max)_(un)?pool\dd\w* upsample\w*
        interpolate (cudnn_)?(grid_sampler|affine_grid_generator)\w* transform_bias_rescale_qkv
        thnn_\w+_cell\w* \w+_loss(\dd|_nd|_\w+)? kl_div binary_cross_entropy(_with_logits)?
        fake_quantize\w* (de)?quantize_\w+ choose_qparams\w* moving_avg_obs\w*
        rand(n|int|perm|om)?(_\w+)? (log_)?normal uniform bernoulli binomial multinomial poisson
        cauchy exponential geometric (standard_)?gamma(_grad)? dirichlet_grad sample_dirichlet
        no_grad_(normal|uniform) (bartlett|blackman|hamming|hann|kaiser)_window
        fft_(i?fftshift|r?fftfreq)
    """,
}
#: TorchScript's operators on text, lists and numbers.
_SCRIPT: Final = """
    Bool Complex ComplexImplicit Delete Float FloatImplicit Generator Int IntImplicit
    ScalarImplicit Size append bin capitalize center chr clear contains copy count degrees
    derive_index dict divmod endswith expandtabs extend fabs factorial find floordiv format
    get getitem hash hex ilshift insert irshift isalnum isalpha isdecimal isdigit isidentifier
    islower isnumeric isprintable isspace istitle isupper items join keys list ljust lower lstrip
    mathremainder modf oct ord partition percentFormat pop popitem radians range_length remove
    replace reverse rfind rindex rjust round_to_zero_floordiv rpartition rsplit rstrip setdefault
    sorted splitlines startswith str strip swapcase title unwrap_optional update upper zfill
"""
_DERIVED: Final = late(
    r"(_backward|_backward_data|_double_backward|_forward|_copy|_functional|_jvp|_like|_as|_impl"
    r"|_out|_)$"
)
#: torch's other namespaces, in the same form, with the namespace.
_OTHERS: Final[Mapping[OperatorWork, str]] = {
    "parts": r"""
        prims::(svd|fft_\w+) prim::(mkldnn_convolution|MM\w+|\w+(Group|Graph|Subgraph))
        symm_mem::(fused|_async)_\w+ inductor::_mm_plus_mm onnx::Attention
    """,
    "idle": r"""
        (_?quantized|sparse|onednn|(mkldnn_)?prepacked)::\w*(prepack|unpack)(_fp16|_sizes|_legacy)*
        prepacked::unpack_prepacked_sizes_\w+ mkl(dnn)?::\w*_reorder_\w+
        quantized::conv\w*_(stride|padding|dilation|groups|output_padding|transpose)
        quantized::make_\w+ mkldnn::(_is|_get|_nbytes|data_ptr)\w*
        _quantized::wrapped_fbgemm_pack_gemm_matrix_fp16 export::access_subclass_inner_tensor
        cuda::(_?(current|default|set|exchange|maybe_exchange)_(device|stream)|device_(count|index))
        cuda::synchronize _test::get_first onnx::(Resh|Sh)ape
    """,
    "computes": r"""
        quantized::(linear|conv|matmul|int4mm|quantized_\w+_cell)\w*
        _quantized::\w*(linear|conv)\w* sparse::qlinear\w* onednn::q?(linear|conv)\w*
        (mkldnn_)?prepacked::\w+_run _native::(\w*mm|linalg)\w* inductor::quack_symmetric_mm
    """,
    "none": r"""
        _test::(cat|leaky_relu) onnx::RotaryEmbedding
        quantization::(_Bfloat16QuantizedToFloat|_FloatToBfloat16Quantized)
    """,
}
#: Namespaces in which torch has no other products, now or later. A name there that means products
#: belongs to another library.
_SPACES: Final[Mapping[OperatorWork, str]] = {
    "idle": r"""
        inductor::(?!accumulate)\w+
        (prim|coor|mempool|profiler|streams|debug_mode_ops|bucketing|_dtensor|fsdp)::\w+
        _?(c10d(_functional(_autograd)?)?|symm_mem|inductor_prims|rngprims|inductor_test|cplib)::\w+
    """,
    "none": r"""
        (_?quantized|quantized_decomposed|onednn|prims|inductor|static_runtime)::\w+
        (flex_lib|onnx_symbolic|debugprims|_native|_native_aot|flex_gemm)::\w+
    """,
}


class _Names(NamedTuple):
    """Whole names: plain ones, and a pattern that is compiled only when needed."""

    plain: frozenset[str]
    patterns: str


def _names(table: Mapping[OperatorWork, str]) -> Mapping[OperatorWork, _Names]:
    out = {}
    for work, text in table.items():
        words = re.sub(r"#.*", "", text).split()
        plain = frozenset(word for word in words if re.fullmatch(r"[\w:]+", word))
        patterns = "|".join(word for word in words if word not in plain)
        out[work] = _Names(plain, f"(?:{patterns})$")
    return out


_OF_ATEN: Final = _names(_ATEN)
_OF_OTHERS: Final = _names(_OTHERS)
_OF_SPACES: Final = _names(_SPACES)
_OF_SCRIPT: Final = frozenset(_SCRIPT.split())
_OF_USUAL: Final = {name: work for work, text in _USUAL.items() for name in text.split()}


@lru_cache(maxsize=10_000)
def work_of(name: str) -> OperatorWork:
    """What kind of work an operator does, by its name in traces.

    >>> work_of("aten::mm"), work_of("aten::linear"), work_of("aten::_fft_r2c")
    ('counted', 'parts', 'computes')
    >>> work_of("aten::relu_"), work_of("aten::new_zeros"), work_of("mylib::step")
    ('none', 'idle', 'unknown')
    """
    if name in FORMULAS:
        return "counted"
    if not _OPERATOR.match(name):
        return "around"
    return listed_work(name) or ("unknown" if operator_may_multiply(name) else "none")


def listed_work(name: str) -> OperatorWork | None:
    """The tables' answer for an operator without a formula; None if they do not list it."""
    space, _, own = name.partition("::")
    if space != "aten":
        return _first(_OF_OTHERS, name) or (
            None if names_products(own) else _first(_OF_SPACES, name)
        )
    while True:
        own = own.strip("_")
        if (usual := _OF_USUAL.get(own)) is not None:
            return usual
        if own in _OF_SCRIPT:
            return "idle"
        if (work := _first(_OF_ATEN, own)) is not None:
            return work
        shorter = _DERIVED.sub("", own)
        if shorter == own:
            return None
        own = shorter


def _first(table: Mapping[OperatorWork, _Names], name: str) -> OperatorWork | None:
    for fits in (lambda n: name in n.plain, lambda n: re.match(n.patterns, name)):
        if (work := next((work for work, n in table.items() if fits(n)), None)) is not None:
            return work
    return None
