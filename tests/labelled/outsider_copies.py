"""The same as `outsider`, about casts, copies and graphs."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from labelled.case import ANY, Examples
from torch import nn

EXAMPLES = Examples()


# ---------------------------------------------------------------------------- repeated-cast


@EXAMPLES.positive("repeated-cast", ANY)
def outside_weight_cast_at_every_call():
    weight, x = torch.randn(32, 32), torch.randn(4, 32).bfloat16()

    def calls():
        y = x
        for _ in range(12):
            y = y @ weight.bfloat16()  # <- here
        return y

    return calls


@EXAMPLES.positive("repeated-cast", ANY)
def outside_autocast_without_its_cache():
    layer, x = nn.Linear(32, 32), torch.randn(4, 32)

    def calls():
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            for _ in range(12):
                layer(x)  # <- here

    return calls


@EXAMPLES.positive("repeated-cast", ANY)
def outside_mask_cast_in_every_layer():
    layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(12))
    x, mask = torch.randn(4, 16), torch.rand(4, 16) > 0.5

    @torch.no_grad()
    def infer():
        y = x
        for layer in layers:
            y = layer(y) * mask.float()  # <- here
        return y

    return infer


@EXAMPLES.near_miss("repeated-cast")
def outside_casts_that_do_nothing():
    x = torch.randn(16, 16)
    return lambda: [x.float() + 1 for _ in range(12)]


@EXAMPLES.near_miss("repeated-cast")
def outside_casts_of_many_shapes():
    tensors = [torch.randn(4, number + 1) for number in range(12)]
    return lambda: [tensor.bfloat16() for tensor in tensors]


@EXAMPLES.near_miss("repeated-cast")
def outside_one_cast_used_often():
    weight, x = torch.randn(32, 32), torch.randn(4, 32).bfloat16()

    def calls():
        light, y = weight.bfloat16(), x
        for _ in range(12):
            y = y @ light
        return y.float()

    return calls


# -------------------------------------------------------------------------- contiguous-copy


@EXAMPLES.positive("contiguous-copy", ANY)
def outside_transposed_again_and_again():
    weight, x = torch.randn(32, 16), torch.randn(4, 32)

    def calls():
        for _ in range(12):
            F.linear(x, weight.t().contiguous())  # <- here

    return calls


@EXAMPLES.positive("contiguous-copy", ANY)
def outside_cloned_again_and_again():
    x = torch.randn(64, 64)

    def calls():
        for _ in range(12):
            x.clone().add_(1)  # <- here

    return calls


@EXAMPLES.positive("contiguous-copy", ANY)
def outside_permuted_again_and_again():
    images = torch.randn(2, 8, 8, 3)

    def calls():
        for _ in range(12):
            images.permute(0, 3, 1, 2).contiguous().mean()  # <- here

    return calls


@EXAMPLES.near_miss("contiguous-copy")
def outside_short_body_of_a_loop():
    weight, first = torch.randn(32, 16), torch.randn(32, 16)

    def calls():
        x = first
        for _ in range(12):
            x = torch.tanh(x) + weight
            x.t().contiguous()

    return calls


@EXAMPLES.near_miss("contiguous-copy")
def outside_contiguous_already():
    x = torch.randn(32, 32)
    return lambda: [x.contiguous().sum() for _ in range(12)]


@EXAMPLES.near_miss("contiguous-copy")
def outside_copies_of_many_shapes():
    tensors = [torch.randn(number + 1, 4) for number in range(12)]
    return lambda: [tensor.t().contiguous() for tensor in tensors]


@EXAMPLES.near_miss("contiguous-copy")
def outside_copied_once_and_used_often():
    weight, x = torch.randn(32, 16), torch.randn(4, 32)

    def calls():
        straight = weight.t().contiguous()
        for _ in range(12):
            F.linear(x, straight)

    return calls


# -------------------------------------------------------------------------- missing-no-grad


def _pair():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def _step(model, optimizer, x):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


@EXAMPLES.positive("missing-no-grad", ANY)
def outside_evaluation_mode_is_not_enough():
    model, x = _pair().eval(), torch.randn(4, 8)
    return lambda: [model(x).argmax(1).tolist() for _ in range(3)]  # <- here


@EXAMPLES.positive("missing-no-grad", ANY)
def outside_convolutions_that_only_predict():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)).eval()
    x = torch.randn(4, 3, 8, 8)

    def predict():
        return [model(image[None]).softmax(-1).amax(1) for image in x]  # <- here

    return predict


@EXAMPLES.positive("missing-no-grad", ANY)
def outside_validation_after_a_step():
    model, x, other = _pair(), torch.randn(4, 8), torch.randn(16, 8)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def epoch():
        _step(model, optimizer, x)
        return model(other).square().mean().item()  # <- here

    return epoch


@EXAMPLES.near_miss("missing-no-grad")
def outside_prediction_without_gradients():
    model, x = _pair().eval(), torch.randn(4, 8)

    @torch.no_grad()
    def predict():
        return model(x).argmax(1).tolist()

    return predict


@EXAMPLES.near_miss("missing-no-grad")
def outside_frozen_model():
    model, x = _pair().requires_grad_(requires_grad=False), torch.randn(4, 8)
    return lambda: model(x).argmax(1)


@EXAMPLES.near_miss("missing-no-grad")
def outside_gradient_of_the_input():
    model, x = _pair(), torch.randn(4, 8, requires_grad=True)
    return lambda: torch.autograd.grad(model(x).square().sum(), x)


@EXAMPLES.near_miss("missing-no-grad")
def outside_two_passes_and_one_backward():
    model, x, other = _pair(), torch.randn(4, 8), torch.randn(4, 8)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step():
        optimizer.zero_grad()
        first, second = model(x), model(other)
        F.cosine_embedding_loss(first, second, torch.ones(4)).backward()
        optimizer.step()

    return step
