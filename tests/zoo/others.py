"""Transforms, sparse, quantized, nested and complex tensors, and code of one's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.utils.checkpoint import checkpoint
from zoo.exhibit import (
    CALL,
    FORMULA,
    INSIDE,
    NESTED,
    PACKED,
    SPARSE,
    Exhibit,
    Payload,
    differs,
    equal,
    infer,
    leaf,
    lower,
    rand,
    train,
)
from zoo.halved import Halved

Make = Callable[[], Payload]
dual_numbers: Any = torch.autograd.forward_ad

# -------------------------------------------------------------------- operators of one's own


@torch.library.custom_op("zoo::shown", mutates_args=())
def shown(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Made of torch's operators."""
    out: torch.Tensor = (a @ b).relu()
    return out


@torch.library.custom_op("zoo::hidden", mutates_args=())
def hidden(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Made of what torch does not see."""
    return torch.from_numpy(a.numpy() @ b.numpy())


@torch.library.custom_op("zoo::fused_add_rms_norm", mutates_args=())
def named(a: torch.Tensor) -> torch.Tensor:
    """Says by its name that it does no products."""
    return torch.from_numpy(a.numpy() / np.sqrt((a.numpy() ** 2).mean()))


class Square(torch.autograd.Function):
    """A product with a gradient of its own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        out: torch.Tensor = x @ x
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        out: torch.Tensor = grad @ x.T + x.T @ grad
        return out


# -------------------------------------------------------------------- payloads


def dual() -> Payload:
    """Of two factors, each with a tangent."""

    def step() -> None:
        with dual_numbers.dual_level():
            a, b = (dual_numbers.make_dual(t, t) for t in (rand(4, 5), rand(5, 6)))
            dual_numbers.unpack_dual(a @ b)

    return step


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 4))


def checkpointed(*, reentrant: bool) -> Payload:
    model, x = mlp(), leaf(3, 8)
    return train(lambda: checkpoint(model, x, use_reentrant=reentrant))


def scripted() -> Payload:
    trace: Callable[..., Any] = torch.jit.trace
    return train(trace(mlp(), rand(3, 8)), leaf(3, 8))


def optimized_script(*layers: nn.Module) -> Payload:
    jit: Any = torch.jit
    model = jit.optimize_for_inference(jit.freeze(jit.script(nn.Sequential(*layers).eval())))
    x = rand(2, 4, 9, 9)
    model(x)  # it is optimized again in the second call
    return lambda: model(x)


def per_sample() -> Payload:
    model = mlp()
    parameters = {k: v.detach() for k, v in model.named_parameters()}

    def loss(p: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = functional_call(model, p, (x,))
        return out.square().sum()

    x = rand(5, 8)
    return lambda: vmap(grad(loss), (None, 0))(parameters, x)


def differentiated(how: Callable[..., Any]) -> Make:
    def make() -> Payload:
        w = rand(4, 8)
        x = rand(8, 3)
        return lambda: how(lambda x: (w @ x).tanh())(x)

    return make


def forward_mode() -> Payload:
    a, x, tangent = rand(4, 5), rand(5, 6), rand(5, 6)
    return lambda: jvp(lambda x: a @ x, (x,), (tangent,))


def pulled_back() -> Payload:
    a, x, cotangent = rand(4, 5), rand(5, 6), rand(4, 6)
    return lambda: vjp(lambda x: a @ x, x)[1](cotangent)


def second_order() -> Payload:
    w, x = leaf(4, 5), rand(5, 6)

    def step() -> None:
        (first,) = torch.autograd.grad((w @ x).tanh().sum(), w, create_graph=True)
        torch.autograd.backward(first.square().sum())

    return step


def quantized(*, packed: bool) -> Payload:
    if packed:
        with torch.no_grad():
            weight = torch.quantize_per_tensor(rand(6, 8), 0.1, 0, torch.qint8)
            prepacked = torch.ops.quantized.linear_prepack(weight, None)
        return infer(torch.ops.quantized.linear_dynamic, rand(4, 8), prepacked)
    x = torch.quantize_per_tensor(rand(4, 8), 0.1, 0, torch.quint8)
    return infer(lambda: torch.ops.quantized.add(x, x, 0.1, 0).dequantize())


def int4() -> Payload:
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(
        torch.randint(0, 15, (32, 64), dtype=torch.int32), 1
    )
    x, scales = rand(4, 64, dtype=torch.bfloat16), rand(2, 32, 2, dtype=torch.bfloat16)
    return infer(torch.ops.aten._weight_int4pack_mm_for_cpu, x, packed, 32, scales)


def int8() -> Payload:
    weight = torch.ones(16, 32, dtype=torch.int8)
    x, scales = rand(4, 32, dtype=torch.bfloat16), rand(16, dtype=torch.bfloat16)
    return infer(torch.ops.aten._weight_int8pack_mm, x, weight, scales)


def nested(layout: torch.layout) -> Payload:
    x = torch.nested.nested_tensor([rand(3, 8), rand(5, 8)], layout=layout)
    return infer(nn.Linear(8, 6), x)


def autocast() -> Payload:
    model, x = mlp(), leaf(3, 8)

    def step() -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            out: torch.Tensor = model(x)
        return out.float()

    return train(step)


def sparse(layout: str) -> torch.Tensor:
    dense = torch.eye(6)
    return dense.to_sparse() if layout == "coo" else dense.to_sparse_csr()


def stacked() -> torch.Tensor:
    return torch.stack([torch.eye(6), torch.eye(6)]).to_sparse()


def sampled() -> Payload:
    return infer(torch.sparse.sampled_addmm, sparse("csr"), rand(6, 4), rand(4, 6))


def optimized() -> Payload:
    model, x = mlp(), rand(3, 8)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step() -> None:
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def complex_leaf(*shape: int) -> torch.Tensor:
    return leaf(*shape, dtype=torch.complex64)


CODE: list[tuple[str, Make]] = [
    ("checkpoint, reentrant", lambda: checkpointed(reentrant=True)),
    ("checkpoint, not reentrant, which stops early", lambda: checkpointed(reentrant=False)),
    ("torch.jit.trace", scripted),
    ("autograd.Function", lambda: train(Square.apply, leaf(4, 4))),
    ("the gradient of a gradient", second_order),
    ("autocast", autocast),
    ("a fused optimizer", optimized),
    ("a custom operator whose name has no products", lambda: infer(named, rand(4, 5))),
    ("vmap, a batch of products", lambda: infer(vmap(torch.mm), rand(3, 4, 5), rand(3, 5, 6))),
    (
        "vmap, one operand for all",
        lambda: infer(vmap(torch.mm, (0, None)), rand(3, 4, 5), rand(5, 6)),
    ),
    ("vmap of grad, per-sample gradients", per_sample),
    ("jacrev", differentiated(jacrev)),
    ("jacfwd", differentiated(jacfwd)),
    ("hessian", differentiated(hessian)),
    ("jvp", forward_mode),
    ("vjp", pulled_back),
    ("complex torch.mm", lambda: train(torch.mm, complex_leaf(4, 5), complex_leaf(5, 6))),
    (
        "complex torch.bmm, conjugated",
        lambda: infer(lambda a, b: a.conj() @ b, complex_leaf(2, 4, 5), complex_leaf(2, 5, 6)),
    ),
    (
        "view_as_real, polar",
        lambda: infer(lambda x: torch.view_as_real(torch.polar(x, x)), rand(4)),
    ),
    (
        "sparse softmax, sum",
        lambda: infer(lambda x: torch.sparse.softmax(x, 1).to_dense(), sparse("coo")),
    ),
    (
        "to_sparse, to_dense",
        lambda: infer(lambda x: x.to_sparse().coalesce().to_dense(), rand(4, 4)),
    ),
    ("quantized.add", lambda: quantized(packed=False)),
    (
        "quantize, dequantize",
        lambda: infer(
            lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize(), rand(8)
        ),
    ),
    (
        "nested jagged, elementwise",
        lambda: infer(
            lambda x: x.sin(), torch.nested.nested_tensor([rand(3), rand(5)], layout=torch.jagged)
        ),
    ),
]

SPARSELY: list[tuple[str, Make, str]] = [
    (
        "sparse COO @ dense",
        lambda: infer(torch.sparse.mm, sparse("coo"), rand(6, 4)),
        "aten::addmm",
    ),
    ("sparse CSR @ dense", lambda: infer(torch.mm, sparse("csr"), rand(6, 4)), "aten::mm"),
    ("dense @ sparse CSR", lambda: infer(torch.mm, rand(4, 6), sparse("csr")), "aten::mm"),
    ("sparse COO @ vector", lambda: infer(torch.mv, sparse("coo"), rand(6)), "aten::mv"),
    ("batched sparse @ dense", lambda: infer(torch.bmm, stacked(), rand(2, 6, 4)), "aten::bmm"),
]

ROWS: list[Exhibit] = [
    *(equal(name, make) for name, make in CODE),
    equal("forward mode, both factors", dual),
    differs(
        "a tensor subclass that does the half",
        lambda: infer(torch.mm, Halved.of(rand(16, 8)), rand(8, 4)),
        CALL,
        2 * 16 * 8 * 4,
    ),
    differs(
        "a custom operator of torch's",
        lambda: infer(shown, rand(4, 5), rand(5, 6)),
        INSIDE,
        2 * 4 * 5 * 6,
    ),
    differs("nested jagged, nn.Linear", lambda: nested(torch.jagged), NESTED, 2 * 8 * 8 * 6),
    differs("nested strided, nn.Linear", lambda: nested(torch.strided), NESTED, 2 * 8 * 8 * 6),
    *(lower(name, make, missing, why=SPARSE) for name, make, missing in SPARSELY),
    differs("_weight_int4pack_mm_for_cpu", int4, FORMULA, 2 * 4 * 64 * 32),
    differs("_weight_int8pack_mm", int8, FORMULA, 2 * 4 * 32 * 16),
    lower(
        "quantized.linear_dynamic",
        lambda: quantized(packed=True),
        "quantized::linear_dynamic",
        why=PACKED,
    ),
    lower(
        # Called as the decorated function, torch 2.15 records nothing of it without gradients.
        "a custom operator that torch does not see",
        lambda: infer(torch.ops.zoo.hidden, rand(4, 5), rand(5, 6)),
        "zoo::hidden",
    ),
    lower(
        "torch.jit.optimize_for_inference, nn.Conv2d",
        lambda: optimized_script(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)),
        "forward",
    ),
    equal("to_mkldnn, to_dense", lambda: infer(lambda x: x.to_mkldnn().to_dense(), rand(4, 4))),
    lower("sampled_addmm", sampled, "aten::sparse_sampled_addmm"),
    lower(
        "sparse @ sparse",
        lambda: infer(torch.sparse.mm, sparse("coo"), sparse("coo")),
        "aten::_sparse_sparse_matmul",
    ),
    lower("torch.hspmm", lambda: infer(torch.hspmm, sparse("coo"), rand(6, 4)), "aten::hspmm"),
    lower(
        "torch.sspaddmm",
        lambda: infer(torch.sspaddmm, sparse("coo"), sparse("coo"), rand(6, 6)),
        "aten::sspaddmm",
    ),
]
