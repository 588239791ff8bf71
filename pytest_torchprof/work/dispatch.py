"""Operators that torch's dispatcher makes of others, and those that only make views."""

from __future__ import annotations

from typing import Final

# ---- Operators that make a view of a tensor: the same memory, and no work.
#
# Source: the views that https://docs.pytorch.org/docs/stable/tensor_view.html lists, and
# PyTorch's ``native_functions.yaml`` for their overloads and for what they call.


def aten(words: str) -> frozenset[str]:
    """Full names of these operators.

    >>> sorted(aten("t view"))
    ['aten::t', 'aten::view']
    """
    return frozenset(f"aten::{word}" for word in words.split())


#: All elements of the tensor, each once, of the same dtype.
WHOLE: Final = aten(
    "_reshape_alias _unsafe_view adjoint alias as_strided as_strided_ detach detach_ "
    "lift_fresh mH mT matrix_H moveaxis movedim numpy_T permute positive requires_grad_ "
    "resolve_conj resolve_neg squeeze squeeze_ swapaxes swapaxes_ swapdims swapdims_ t t_ "
    "transpose transpose_ unflatten unsqueeze unsqueeze_ view view_as"
)
#: All elements, some of them repeated.
EXPANSIONS: Final = aten("broadcast_to expand expand_as")
#: Several parts that together are the whole.
SPLITS: Final = aten("chunk dsplit hsplit split split_with_sizes tensor_split unbind vsplit")
#: Part of the elements; the arguments say which.
PARTS: Final = SPLITS | aten("diagonal narrow select slice")
#: Another dtype, or overlapping windows.
OTHER_VIEWS: Final = aten("imag real unfold view_as_complex view_as_real")
#: A view or the tensor itself, unless a copy is necessary, which is then nested in the call.
MAY_COPY: Final = aten(
    "atleast_1d atleast_2d atleast_3d contiguous flatten ravel reshape reshape_as to type_as"
)
VIEWS: Final = WHOLE | EXPANSIONS | PARTS | OTHER_VIEWS | MAY_COPY
#: Operators that compute nothing if no operator is nested in them. Autograd has its own detach.
IDLE: Final = (
    VIEWS
    | {"detach", "detach_"}
    | aten("_has_compatible_shallow_copy_type dropout is_pinned result_type set_")
)


# ---- Operators that torch's dispatcher makes of others, alike on every device.
#
# They have a kernel for ``CompositeImplicitAutograd`` or ``CompositeExplicitAutograd`` and none
# for the CPU, so what is nested in them on the CPU also runs on an accelerator. Views, and
# operators that `work.launches` counts as a whole, are not among them. Source: torch's
# dispatch table, which the tests compare with.

COMPOSITES: Final = aten(
    """
    __and__ __iand__ __ior__ __ixor__ __or__ __xor__ _autocast_to_full_precision
    _autocast_to_reduced_precision _backward _cast_Byte _cast_Char _cast_Double _cast_Float
    _cast_Half _cast_Int _cast_Long _cast_Short _chunk_cat _coalesced _conj_physical
    _convolution_mode _dim_arange _euclidean_dist _grid_sampler_2d_cpu_fallback
    _grid_sampler_2d_cpu_fallback_backward _index_put_impl _lazy_clone _lu_with_info
    _new_zeros_with_same_feature_meta _pack_padded_sequence _pack_padded_sequence_backward
    _pad_circular _pad_packed_sequence _philox_normal _philox_uniform _pin_memory _rowwise_prune
    _safe_softmax _scaled_dot_product_attention_math _sobol_engine_draw _sobol_engine_ff_
    _sobol_engine_initialize_state_ _sobol_engine_scramble_
    _thnn_differentiable_gru_cell_backward _thnn_differentiable_lstm_cell_backward _to_copy _to_cpu
    _trilinear _unpack_dual _unsafe_index _unsafe_index_put _unsafe_masked_index
    _unsafe_masked_index_put_accumulate _unsafe_view _weight_norm
    _weight_norm_differentiable_backward abs abs_ absolute absolute_ adaptive_avg_pool1d
    adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d addr_ adjoint
    affine_grid_generator affine_grid_generator_backward alpha_dropout alpha_dropout_ arange
    arccos arccos_ arccosh arccosh_ arcsin arcsin_ arcsinh arcsinh_ arctan arctan2 arctan2_
    arctan_ arctanh arctanh_ argsort argwhere as_strided_scatter atleast_1d atleast_2d
    atleast_3d avg_pool1d bartlett_window batch_norm bernoulli bilinear
    binary_cross_entropy_with_logits blackman_window block_diag broadcast_to cartesian_prod
    cauchy cdist celu celu_ chain_matmul chalf cholesky_solve chunk clip clip_ clone coalesce
    column_stack combinations complex concat concatenate conj_physical conj_physical_
    constant_pad_nd contiguous conv1d conv2d conv3d conv_tbc conv_tbc_backward conv_transpose1d
    conv_transpose2d conv_transpose3d copy corrcoef cosine_embedding_loss cosine_similarity cov
    cross cross_entropy_loss ctc_loss cummax cummaxmin_backward cummin cumprod_backward
    cumulative_trapezoid deg2rad deg2rad_ det diag diag_embed diagflat diagonal_backward
    diagonal_scatter diff dist divide divide_ dsplit dstack einsum embedding embedding_backward
    embedding_bag embedding_renorm expand_as exponential eye feature_alpha_dropout
    feature_alpha_dropout_ feature_dropout feature_dropout_ fft_fft fft_fft2 fft_fftfreq
    fft_fftn fft_fftshift fft_hfft fft_hfft2 fft_hfftn fft_ifft fft_ifft2 fft_ifftn
    fft_ifftshift fft_ihfft fft_ihfft2 fft_ihfftn fft_irfft fft_irfft2 fft_irfftn fft_rfft
    fft_rfft2 fft_rfftfreq fft_rfftn fill fill_diagonal_ fix fix_ flatten flatten_dense_tensors
    fliplr flipud float_power float_power_ frexp frobenius_norm full full_like gather_backward
    geometric ger gradient greater greater_ greater_equal greater_equal_ grid_sampler group_norm
    gru_cell hamming_window hann_window hinge_embedding_loss histogramdd hsplit hstack
    huber_loss_backward index_fill index_put index_put_ index_select_backward
    infinitely_differentiable_gelu_backward inner instance_norm inverse isclose isfinite isinf
    isreal istft kaiser_window kl_div kron l1_loss layer_norm ldexp ldexp_ less less_ less_equal
    less_equal_ linalg_cholesky linalg_cond linalg_det linalg_eigh linalg_eigvals
    linalg_eigvalsh linalg_inv linalg_ldl_factor linalg_lstsq linalg_lu_factor linalg_matmul
    linalg_matrix_norm linalg_matrix_power linalg_matrix_rank linalg_multi_dot linalg_norm
    linalg_pinv linalg_slogdet linalg_solve linalg_solve_ex linalg_svd linalg_svdvals
    linalg_tensorinv linalg_tensorsolve linalg_vander linalg_vecdot linear linspace log_normal
    log_sigmoid log_softmax logcumsumexp logdet logical_and logical_and_ logical_not
    logical_not_ logical_or logical_or_ logical_xor logical_xor_ logspace logsumexp lstm_cell
    lu_solve mH mT margin_ranking_loss masked_fill masked_scatter masked_scatter_backward
    masked_select_backward matmul matrix_H matrix_exp matrix_exp_backward matrix_power
    max_pool1d max_pool1d_with_indices max_pool2d max_pool3d moveaxis movedim msort
    multilabel_margin_loss multiply multiply_ mv mvlgamma mvlgamma_ nan_to_num nan_to_num_
    nanmean nanquantile negative negative_ new_full new_ones new_zeros nll_loss nll_loss2d
    nll_loss_nd nonzero_numpy norm_except_dim not_equal not_equal_ nuclear_norm numpy_T ones
    ones_like orgqr outer pad pad_sequence pairwise_distance pdist pin_memory pinverse
    poisson_nll_loss polar polygamma_ prelu put qr quantile rad2deg rad2deg_ rand rand_like
    randint randint_like randn randn_like random range ravel relu6 relu6_ repeat reshape
    reshape_as rms_norm rnn_relu_cell rnn_tanh_cell rot90 row_stack rrelu rrelu_
    rrelu_with_noise_backward scalar_tensor scaled_dot_product_attention select_backward
    select_scatter selu selu_ slice_backward slice_scatter slogdet smm soft_margin_loss
    soft_margin_loss_backward softmax square square_ sspaddmm stack stft subtract subtract_
    sum_to_size svd swapaxes swapaxes_ swapdims swapdims_ take_along_dim tensor_split tensordot
    tile to to_dense to_dense_backward to_mkldnn_backward trace_backward trapezoid trapz
    triplet_margin_loss true_divide true_divide_ type_as unflatten unflatten_dense_tensors
    uniform value_selecting_reduction_backward vander view_as vsplit vstack zeros zeros_like
    """
)
