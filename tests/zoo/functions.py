"""Functions of `torch`, `torch.nn.functional`, `torch.linalg` and `torch.fft`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch.nn import functional as F  # noqa: N812  # its usual name
from torch.nn.attention import SDPBackend, sdpa_kernel
from zoo.exhibit import (
    FORMULA,
    INSIDE,
    VECTORS,
    Exhibit,
    Payload,
    attends,
    differs,
    equal,
    infer,
    leaf,
    lower,
    rand,
    train,
)

Make = Callable[[], Payload]


def attention(*, causal: bool = False, math: bool = False) -> Payload:
    q, k, v = (leaf(2, 4, n, 16) for n in (8, 6, 6))

    def attend() -> torch.Tensor:
        if not math:
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        with sdpa_kernel(SDPBackend.MATH):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    return train(attend)


def spd(n: int) -> torch.Tensor:
    """A symmetric positive definite matrix."""
    a = torch.randn(n, n)
    return (a @ a.T + n * torch.eye(n)).requires_grad_()


def distances(rows: int, mode: str) -> Payload:
    options = {"compute_mode": mode} if mode else {}
    return train(torch.cdist, leaf(5, 8), leaf(rows, 8), **options)


def einsum(equation: str, *shapes: tuple[int, ...]) -> Make:
    return lambda: train(torch.einsum, equation, *(leaf(*shape) for shape in shapes))


SCORES = 2 * (2 * 4 * 8 * 6) * 16

PRODUCTS: list[tuple[str, Make]] = [
    ("torch.mm", lambda: train(torch.mm, leaf(4, 5), leaf(5, 6))),
    ("torch.mm, out=", lambda: infer(torch.mm, rand(4, 5), rand(5, 6), out=torch.empty(4, 6))),
    ("torch.addmm", lambda: train(torch.addmm, leaf(6), leaf(4, 5), leaf(5, 6))),
    ("torch.bmm", lambda: train(torch.bmm, leaf(2, 4, 5), leaf(2, 5, 6))),
    ("torch.baddbmm", lambda: train(torch.baddbmm, leaf(1, 4, 6), leaf(2, 4, 5), leaf(2, 5, 6))),
    ("torch.matmul, broadcast", lambda: train(torch.matmul, leaf(3, 1, 4, 5), leaf(2, 5, 6))),
    ("torch.matmul, empty", lambda: train(torch.matmul, leaf(0, 5), leaf(5, 6))),
    ("torch.einsum, a matrix product", einsum("ij,jk->ik", (4, 5), (5, 6))),
    ("torch.einsum, three operands", einsum("bij,bjk,kl->bil", (2, 3, 4), (2, 4, 5), (5, 6))),
    ("torch.einsum, an outer product", einsum("i,j->ij", (4,), (5,))),
    ("torch.einsum, elementwise", einsum("ij,ij->ij", (4, 5), (4, 5))),
    ("torch.tensordot", lambda: train(torch.tensordot, leaf(2, 3, 4), leaf(3, 4, 5), 2)),
    (
        "torch.chain_matmul",
        lambda: train(torch.linalg.multi_dot, [leaf(3, 4), leaf(4, 5), leaf(5, 2)]),
    ),
    (
        "torch.kron, torch.outer",
        lambda: train(
            lambda a, b: torch.kron(a, b).sum() + torch.outer(a, b).sum(), leaf(3), leaf(4)
        ),
    ),
    (
        "torch.cov, torch.corrcoef",
        lambda: infer(lambda x: (torch.cov(x), torch.corrcoef(x)), rand(3, 8)),
    ),
    (
        "torch.mm, bfloat16",
        lambda: train(torch.mm, leaf(4, 5, dtype=torch.bfloat16), leaf(5, 6, dtype=torch.bfloat16)),
    ),
    (
        "torch.mm, float64",
        lambda: train(torch.mm, leaf(4, 5, dtype=torch.float64), leaf(5, 6, dtype=torch.float64)),
    ),
    (
        "torch.mm, int64",
        lambda: infer(
            torch.mm, torch.ones(4, 5, dtype=torch.int64), torch.ones(5, 6, dtype=torch.int64)
        ),
    ),
    ("F.linear", lambda: train(F.linear, leaf(4, 8), leaf(6, 8), leaf(6))),
    (
        "F.conv2d, transposed weights",
        lambda: train(F.conv2d, leaf(2, 4, 6, 6), leaf(4, 6, 3, 3).transpose(0, 1)),
    ),
    (
        "F.conv_transpose2d, output_padding",
        lambda: train(F.conv_transpose2d, leaf(2, 4, 5, 5), leaf(4, 6, 3, 3), None, 2, 1, 1),
    ),
    (
        "F.conv2d, channels last",
        lambda: train(
            F.conv2d,
            rand(2, 4, 6, 6).to(memory_format=torch.channels_last).requires_grad_(),
            leaf(6, 4, 3, 3),
        ),
    ),
    (
        "F.conv2d, no gradient of the weight",
        lambda: train(F.conv2d, leaf(2, 4, 6, 6), rand(6, 4, 3, 3)),
    ),
    ("F.scaled_dot_product_attention, math", lambda: attention(math=True)),
    ("F.scaled_dot_product_attention, math, causal", lambda: attention(math=True, causal=True)),
    (
        "F.grid_sample",
        lambda: train(F.grid_sample, leaf(1, 2, 4, 4), rand(1, 3, 3, 2), align_corners=False),
    ),
    (
        "F.interpolate, bicubic",
        lambda: train(F.interpolate, leaf(1, 2, 4, 4), scale_factor=2, mode="bicubic"),
    ),
    ("F.fold", lambda: train(F.fold, leaf(1, 12, 4), (3, 3), (2, 2))),
    (
        "F.ctc_loss",
        lambda: train(
            F.ctc_loss,
            rand(5, 1, 4).log_softmax(2).requires_grad_(),
            torch.tensor([[1, 2]]),
            (5,),
            (2,),
        ),
    ),
    ("torch.cdist, Manhattan", lambda: train(torch.cdist, leaf(5, 8), leaf(6, 8), 1.0)),
    ("F.pdist", lambda: train(F.pdist, leaf(5, 8))),
    (
        "torch.sort, cumsum, topk",
        lambda: train(lambda x: x.sort().values.cumsum(0).topk(2).values, leaf(8)),
    ),
    ("torch.linalg.norm", lambda: train(torch.linalg.norm, leaf(4, 4))),
    (
        "torch.linalg.vector_norm, cross",
        lambda: train(lambda x: torch.linalg.cross(x, x + 1), leaf(4, 3)),
    ),
    ("torch.linalg.vecdot", lambda: train(torch.linalg.vecdot, leaf(4, 3), leaf(4, 3))),
    ("torch.linalg.matrix_power", lambda: train(torch.linalg.matrix_power, leaf(4, 4), 3)),
    (
        "torch.fft.fftshift, fftfreq",
        lambda: infer(lambda: torch.fft.fftshift(torch.fft.fftfreq(8))),
    ),
    (
        "torch._foreach_add, _foreach_norm",
        lambda: infer(lambda: torch._foreach_norm(torch._foreach_add([rand(3)], 1))),
    ),
    (
        "Tensor.to, .copy_, .masked_fill",
        lambda: infer(lambda x: x.double().float().masked_fill(x > 0, 0), rand(8)),
    ),
]

ROWS: list[Exhibit] = [
    *(equal(name, make) for name, make in PRODUCTS),
    differs("torch.mv", lambda: train(torch.mv, leaf(4, 5), leaf(5)), VECTORS, 2 * 2 * 4 * 5),
    differs("torch.dot", lambda: train(torch.dot, leaf(5), leaf(5)), VECTORS, 2 * 5),
    differs(
        "torch.matmul of a vector", lambda: infer(torch.matmul, rand(4, 5), rand(5)), VECTORS, 40
    ),
    differs("torch.addmv", lambda: infer(torch.addmv, rand(4), rand(4, 5), rand(5)), VECTORS, 40),
    differs(
        "torch.addbmm",
        lambda: infer(torch.addbmm, rand(4, 6), rand(2, 4, 5), rand(2, 5, 6)),
        INSIDE,
        2 * 2 * 4 * 5 * 6,
    ),
    attends("F.scaled_dot_product_attention", attention, (2 + 5) * SCORES),
    attends(
        "F.scaled_dot_product_attention, causal",
        lambda: attention(causal=True),
        (2 + 5) * SCORES,
    ),
    differs(
        "torch._int_mm",
        lambda: infer(torch._int_mm, *torch.ones(2, 32, 32, dtype=torch.int8)),
        FORMULA,
        2 * 32**3,
    ),
    differs(
        "torch.conv_tbc",
        lambda: infer(torch.conv_tbc, rand(5, 2, 4), rand(3, 4, 6), rand(6)),
        INSIDE,
        2 * (3 * 2) * (3 * 4 * 6),  # 2 × places × weights
    ),
    # Forward, rows that are two longer; then a product for each gradient.
    *(
        differs(
            f"torch.cdist, {rows} rows{', ' * bool(mode)}{mode}",
            partial(distances, rows, mode),
            INSIDE if rows > 25 and not mode else FORMULA,
            2 * 5 * rows * ((8 + 2) + 8 + 8),
        )
        for rows, mode in ((25, ""), (26, ""), (26, "donot_use_mm_for_euclid_dist"))
    ),
    differs(
        "torch.linalg.matrix_exp",
        lambda: infer(torch.linalg.matrix_exp, torch.eye(4)),
        INSIDE,
        4 * 2 * 4**3,  # the Taylor series of an identity takes four products
    ),
    lower("torch.fft.fft", lambda: train(torch.fft.fft, leaf(8)), "aten::_fft_r2c aten::_fft_c2c"),
    lower("torch.fft.rfft2", lambda: infer(torch.fft.rfft2, rand(4, 4)), "aten::_fft_r2c"),
    lower("torch.fft.irfft", lambda: infer(torch.fft.irfft, rand(5)), "aten::_fft_c2r"),
    lower(
        "torch.stft",
        lambda: infer(torch.stft, rand(64), 16, window=torch.hann_window(16), return_complex=True),
        "aten::_fft_r2c",
    ),
    lower("torch.linalg.svd", lambda: infer(torch.linalg.svd, rand(4, 3)), "aten::linalg_svd"),
    lower("torch.linalg.qr", lambda: infer(torch.linalg.qr, rand(4, 3)), "aten::linalg_qr"),
    lower("torch.linalg.eigh", lambda: infer(torch.linalg.eigh, spd(4)), "aten::linalg_eigh"),
    lower("torch.linalg.eig", lambda: infer(torch.linalg.eig, rand(4, 4)), "aten::linalg_eig"),
    lower(
        "torch.linalg.cholesky",
        lambda: infer(torch.linalg.cholesky, spd(4)),
        "aten::linalg_cholesky_ex",
    ),
    lower("torch.linalg.inv", lambda: infer(torch.linalg.inv, spd(4)), "aten::linalg_inv_ex"),
    lower(
        "torch.linalg.solve",
        lambda: infer(torch.linalg.solve, spd(4), rand(4, 2)),
        "aten::linalg_solve_ex",
    ),
    lower(
        "torch.linalg.lstsq",
        lambda: infer(torch.linalg.lstsq, rand(4, 3), rand(4, 2)),
        "aten::linalg_lstsq",
    ),
    lower("torch.linalg.det", lambda: infer(torch.linalg.det, spd(4)), "aten::linalg_det"),
    lower(
        "torch.linalg.slogdet", lambda: infer(torch.linalg.slogdet, spd(4)), "aten::linalg_slogdet"
    ),
    lower("torch.linalg.lu", lambda: infer(torch.linalg.lu, rand(4, 4)), "aten::linalg_lu"),
    lower(
        "torch.linalg.solve_triangular",
        lambda: infer(torch.linalg.solve_triangular, rand(4, 4), rand(4, 2), upper=True),
        "aten::linalg_solve_triangular",
    ),
    lower(
        "torch.linalg.pinv",
        lambda: infer(torch.linalg.pinv, rand(4, 3)),
        "aten::linalg_svd",
        2 * 3 * 3 * 4,
    ),
    lower(
        "torch.linalg.matrix_norm, nuclear",
        lambda: infer(torch.linalg.matrix_norm, rand(4, 3), "nuc"),
        "aten::_linalg_svd",
    ),
    lower("torch.linalg.cond", lambda: infer(torch.linalg.cond, rand(4, 3)), "aten::_linalg_svd"),
]
