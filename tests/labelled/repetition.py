"""Labelled examples of the rules about casts and copies that are done again."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F  # noqa: N812
from labelled.case import Examples
from torch import nn

EXAMPLES = Examples()

BF16 = torch.bfloat16


# -------------------------------------------------------------------- repeated-cast: positives


@EXAMPLES.positive("repeated-cast", 9)
def a_weight_that_is_cast_in_a_loop():
    weight, x = torch.randn(16, 8), torch.randn(4, 8).to(BF16)

    def block():
        with torch.no_grad():
            for _ in range(10):
                F.linear(x, weight.to(BF16))  # <- here

    return block


class CastingLinear(nn.Linear):
    """Keeps its weight in float32, and casts it in every call."""

    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype))  # <- here


@EXAMPLES.positive("repeated-cast", 7)
def a_module_that_casts_its_weight_and_is_called_eight_times():
    layer, x = CastingLinear(16, 16, bias=False), torch.randn(4, 16).to(BF16)

    def block():
        with torch.inference_mode():
            y = x
            for _ in range(8):
                y = layer(y)

    return block


@EXAMPLES.positive("repeated-cast", 5)
def a_casting_module_in_training_gets_one_gradient():
    layer, x = CastingLinear(16, 16, bias=False), torch.randn(4, 16).to(BF16)

    def block():
        y = x
        for _ in range(6):
            y = layer(y)
        y.sum().backward()
        layer.weight.grad = None

    return block


@EXAMPLES.positive("repeated-cast", 9)
def an_input_that_is_cast_to_double_in_a_loop():
    x = torch.randn(64)

    def block():
        for _ in range(10):
            x.double().sum()  # <- here

    return block


@EXAMPLES.positive("repeated-cast", 18)
def there_and_back_again():
    x = torch.randn(8, 8)

    def block():
        y = x
        for _ in range(10):
            y = y.half().float()  # <- here

    return block


@EXAMPLES.positive("repeated-cast", 11)
def one_mask_that_every_layer_casts():
    layers = [nn.Linear(16, 16, bias=False) for _ in range(12)]
    mask, x = torch.ones(4, 16, dtype=torch.bool), torch.randn(4, 16)

    def block():
        with torch.no_grad():
            y = x
            for layer in layers:
                y = layer(y) * mask.to(y.dtype)  # <- here

    return block


@EXAMPLES.positive("repeated-cast", 14)
def frozen_weights_that_autocast_cannot_cache():
    layer = nn.Linear(8, 16).requires_grad_(requires_grad=False)
    x = torch.randn(4, 8)

    def block():
        with torch.no_grad(), torch.autocast("cpu", dtype=BF16):
            for _ in range(8):
                layer(x)  # <- here

    return block


@EXAMPLES.positive("repeated-cast", 5 + 5 + 5)
def autocast_that_is_entered_for_each_call():
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4))
    x = torch.randn(4, 8)

    def block():
        with torch.no_grad():
            for _ in range(6):
                with torch.autocast("cpu", dtype=BF16):
                    model(x)  # <- here

    return block


@EXAMPLES.positive("repeated-cast", 7)
def autocast_with_its_cache_off():
    layer, x = nn.Linear(8, 16, bias=False), torch.randn(4, 8)

    def block():
        with torch.autocast("cpu", dtype=BF16, cache_enabled=False):
            y = 0.0
            for _ in range(8):
                y = y + layer(x).sum()  # <- here
        y.backward()
        layer.weight.grad = None

    return block


class Model(nn.Module):
    """Layers alike, and a head."""

    def __init__(self):
        super().__init__()
        pairs = (nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 16)) for _ in range(3))
        self.layers, self.head = nn.Sequential(*pairs), nn.Linear(16, 4)

    def forward(self, x):
        return self.head(self.layers(x))  # <- here


@EXAMPLES.positive("repeated-cast", 65, repeats=6, unlike="2.6.")  # which has a cache there
def a_model_called_in_inference_mode_where_autocast_has_no_cache():
    model, x = Model(), torch.randn(2, 16)

    def block():
        with torch.inference_mode(), torch.autocast("cpu", dtype=BF16):
            for _ in range(6):
                model(x + 1)

    return block


@EXAMPLES.positive("repeated-cast", 4)
def as_often_as_the_threshold():
    weight, x = torch.randn(16, 8), torch.randn(4, 8).to(BF16)

    def block():
        with torch.no_grad():
            for _ in range(5):
                F.linear(x, weight.to(BF16))  # <- here

    return block


@EXAMPLES.positive("repeated-cast", 2, repeats=3)
def a_lower_threshold_finds_three():
    x = torch.randn(4, 8)

    def block():
        for _ in range(3):
            x.to(BF16).sum()  # <- here

    return block


@EXAMPLES.positive("repeated-cast", 11, also="for-loop-indexing")
def a_weight_that_is_cast_for_each_frame_of_one_tensor():
    weight, frames = torch.randn(16, 32), torch.randn(12, 4, 32).to(BF16)

    def block():
        for x in frames:
            F.linear(x, weight.to(BF16))  # <- here

    return block


# -------------------------------------------------------------------- repeated-cast: near misses


@EXAMPLES.near_miss("repeated-cast")
def fewer_than_the_threshold():
    weight, x = torch.randn(16, 8), torch.randn(4, 8).to(BF16)

    def block():
        with torch.no_grad():
            for _ in range(4):
                F.linear(x, weight.to(BF16))

    return block


@EXAMPLES.near_miss("repeated-cast", repeats=11)
def a_higher_threshold_lets_ten_pass():
    x = torch.randn(4, 8)

    def block():
        for _ in range(10):
            x.to(BF16).sum()

    return block


@EXAMPLES.near_miss("repeated-cast")
def a_weight_that_is_cast_before_the_loop():
    weight, x = torch.randn(16, 8), torch.randn(4, 8).to(BF16)

    def block():
        with torch.no_grad():
            low = weight.to(BF16)
            for _ in range(10):
                F.linear(x, low)

    return block


@EXAMPLES.near_miss("repeated-cast")
def a_cast_to_the_dtype_it_has():
    x = torch.randn(4, 8)

    def block():
        for _ in range(20):
            x.float().sum()

    return block


@EXAMPLES.near_miss("repeated-cast")
def equal_layers_trained_under_autocast():
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(12)))
    x = torch.randn(4, 16)

    def block():
        with torch.autocast("cpu", dtype=BF16):
            loss = model(x).float().sum()
        loss.backward()
        for p in model.parameters():
            p.grad = None

    return block


@EXAMPLES.near_miss("repeated-cast")
def equal_layers_evaluated_under_autocast():
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(12)))
    x = torch.randn(4, 16)

    def block():
        with torch.inference_mode(), torch.autocast("cpu", dtype=BF16):
            model(x)

    return block


@EXAMPLES.near_miss("repeated-cast")
def a_cell_that_autocast_caches():
    layer, x = nn.Linear(16, 16), torch.randn(4, 16)

    def block():
        with torch.no_grad(), torch.autocast("cpu", dtype=BF16):
            for _ in range(20):
                layer(x)

    return block


@EXAMPLES.near_miss("repeated-cast")
def frozen_layers_called_once_under_autocast():
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(12)), nn.Linear(16, 4))
    model.requires_grad_(requires_grad=False)
    x = torch.randn(4, 16)

    def block():
        with torch.no_grad(), torch.autocast("cpu", dtype=BF16):
            model(x)

    return block


@EXAMPLES.near_miss("repeated-cast")
def a_model_called_once_in_inference_mode():
    model, x = Model(), torch.randn(2, 16)

    def block():
        with torch.inference_mode(), torch.autocast("cpu", dtype=BF16):
            model(x)

    return block


@EXAMPLES.near_miss("repeated-cast")
def decoder_layers_evaluated_under_autocast():
    layer = nn.TransformerDecoderLayer(16, 2, 32, dropout=0, batch_first=True)
    model, x = nn.TransformerDecoder(layer, 6), torch.randn(2, 5, 16)

    def block():
        with torch.inference_mode(), torch.autocast("cpu", dtype=BF16):
            model(x, x)

    return block


@EXAMPLES.near_miss("repeated-cast")
def casting_layers_in_training_each_with_its_own_weight():
    model = nn.Sequential(*(CastingLinear(16, 16, bias=False) for _ in range(12)))
    x = torch.randn(4, 16).to(BF16)

    def block():
        model(x).float().sum().backward()
        for p in model.parameters():
            p.grad = None

    return block


@EXAMPLES.near_miss("repeated-cast")
def norms_in_float32_between_layers_in_bfloat16():
    layers = [nn.Linear(16, 16).to(BF16) for _ in range(12)]
    x = torch.randn(4, 16).to(BF16)

    def block():
        with torch.no_grad():
            y = x
            for layer in layers:
                y = layer(F.layer_norm(y.float(), (16,)).to(BF16))

    return block


@EXAMPLES.near_miss("repeated-cast")
def root_mean_square_norms_as_language_models_write_them():
    scale = torch.ones(16, dtype=BF16)
    layers = [nn.Linear(16, 16, bias=False).to(BF16) for _ in range(12)]
    x = torch.randn(4, 16).to(BF16)

    def norm(x):
        y = x.float()
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).type_as(x) * scale

    def block():
        with torch.no_grad():
            y = x
            for layer in layers:
                y = y + layer(norm(y))

    return block


@EXAMPLES.near_miss("repeated-cast")
def logits_of_each_new_token():
    head, x = nn.Linear(16, 32, bias=False).to(BF16), torch.randn(1, 16).to(BF16)

    def block():
        with torch.no_grad():
            for _ in range(10):
                head(x).float().argmax(-1)

    return block


@EXAMPLES.near_miss("repeated-cast")
def one_cast_a_step():
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
    images = torch.randint(0, 255, (4, 8), dtype=torch.uint8)

    def block():
        for _ in range(6):
            model(images.float()).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    return block


@EXAMPLES.near_miss("repeated-cast")
def a_model_that_is_converted():
    def block():
        nn.Sequential(*(nn.Linear(16, 16) for _ in range(12))).to(BF16)

    return block


@EXAMPLES.near_miss("repeated-cast")
def a_list_of_tensors_that_is_converted():
    tensors = [torch.arange(16) for _ in range(12)]
    return lambda: [t.float() for t in tensors]


@EXAMPLES.near_miss("repeated-cast")
def one_scalar_cast_again():
    x = torch.tensor(1.0)

    def block():
        for _ in range(10):
            x.double()

    return block


# -------------------------------------------------------------------- contiguous-copy: positives


@EXAMPLES.positive("contiguous-copy", 9)
def a_transposed_weight_made_contiguous_in_a_loop():
    weight, x = torch.randn(16, 8), torch.randn(4, 8)

    def block():
        for _ in range(10):
            x @ weight.t().contiguous()  # <- here

    return block


@EXAMPLES.positive("contiguous-copy", 9)
def square_matrices_in_a_loop():
    weight, x = torch.randn(16, 16), torch.randn(16, 16)

    def block():
        for _ in range(10):
            y = weight.t().contiguous() @ x  # <- here
            y.add_(1)

    return block


@EXAMPLES.positive("contiguous-copy", 9)
def a_clone_in_a_loop():
    x = torch.randn(8, 8)

    def block():
        y = 0.0
        for _ in range(10):
            y = y + x.clone().sum()  # <- here

    return block


@EXAMPLES.positive("contiguous-copy", 9)
def a_clone_that_is_written_to():
    x = torch.randn(8, 8)

    def block():
        for _ in range(10):
            x.clone().mul_(2)  # <- here

    return block


@EXAMPLES.positive("contiguous-copy", 9)
def a_reshape_that_has_to_copy():
    x = torch.randn(8, 16).t()

    def block():
        for _ in range(10):
            x.reshape(-1).sum()  # <- here

    return block


@EXAMPLES.positive("contiguous-copy", 9)
def the_same_slice_each_time():
    x = torch.randn(8, 16)

    def block():
        for _ in range(10):
            x[:, ::2].contiguous().sum()  # <- here

    return block


@EXAMPLES.positive("contiguous-copy", 7)
def channels_last_in_every_call():
    conv = nn.Conv2d(3, 4, 3, bias=False)
    x = torch.randn(2, 3, 8, 8)

    def block():
        with torch.no_grad():
            for _ in range(8):
                conv(x.contiguous(memory_format=torch.channels_last))  # <- here

    return block


class TransposedLinear(nn.Module):
    """Stores its weight the wrong way round, and mends that in every call."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 16))
        self.norm = nn.LayerNorm(16)

    def forward(self, x):
        y = F.relu(F.linear(x, self.weight.t().contiguous()))  # <- here
        return self.norm(y) * 2 + 1


@EXAMPLES.positive("contiguous-copy", 7)
def a_module_called_eight_times():
    layer, x = TransposedLinear(), torch.randn(4, 16)

    def block():
        with torch.no_grad():
            y = x
            for _ in range(8):
                y = layer(y)

    return block


@EXAMPLES.positive("contiguous-copy", 4)
def five_clones():
    x = torch.randn(8, 8)

    def block():
        for _ in range(5):
            x.clone().sum()  # <- here

    return block


@EXAMPLES.positive("contiguous-copy", 11, also="for-loop-indexing")
def a_weight_made_contiguous_for_each_frame_of_one_tensor():
    weight, frames = torch.randn(16, 32), torch.randn(12, 4, 32)

    def block():
        for x in frames:
            x @ weight.t().contiguous()  # <- here

    return block


@EXAMPLES.positive("contiguous-copy", 7)
def a_weight_made_contiguous_for_each_chunk_of_a_batch():
    weight, batch = torch.randn(16, 32), torch.randn(40, 32)

    def block():
        for x in batch.chunk(8):
            x @ weight.t().contiguous()  # <- here

    return block


@EXAMPLES.positive("contiguous-copy", 7)
def a_weight_made_contiguous_in_a_loop_after_a_tensor_is_taken_apart():
    weight, qkv = torch.randn(16, 32), torch.randn(3, 4, 32)

    def block():
        q, _k, _v = qkv.unbind(0)
        for _ in range(8):
            q @ weight.t().contiguous()  # <- here

    return block


@EXAMPLES.positive("contiguous-copy", 7)
def keys_made_contiguous_for_each_query():
    queries, k = torch.randn(8, 4, 32), torch.randn(6, 32)

    def block():
        for q in queries.unbind(0):
            (q @ k.transpose(-2, -1).contiguous()).softmax(-1)  # <- here

    return block


@EXAMPLES.positive("contiguous-copy", 9)
def images_made_contiguous_for_a_convolution_to_as_many_channels_as_images():
    x, weight = torch.randn(4, 8, 8, 3).permute(0, 3, 1, 2), torch.randn(4, 3, 3, 3)

    def block():
        for _ in range(10):
            F.conv2d(x.contiguous(), weight)  # <- here

    return block


# ------------------------------------------------------------------- contiguous-copy: near misses


@EXAMPLES.near_miss("contiguous-copy")
def what_four_operators_have_made_anew_is_copied():
    x = torch.randn(16, 16)

    def block():
        y = x
        for _ in range(8):
            y = torch.relu(y.t().contiguous() * 2 + 1).tanh()

    return block


@EXAMPLES.near_miss("contiguous-copy")
def four_clones():
    x = torch.randn(8, 8)

    def block():
        for _ in range(4):
            x.clone().sum()

    return block


@EXAMPLES.near_miss("contiguous-copy", repeats=11)
def ten_clones_where_eleven_are_too_many():
    x = torch.randn(8, 8)

    def block():
        for _ in range(10):
            x.clone().sum()

    return block


@EXAMPLES.near_miss("contiguous-copy")
def contiguous_of_what_is_contiguous():
    x = torch.randn(8, 8)

    def block():
        for _ in range(20):
            x.contiguous().sum()

    return block


@EXAMPLES.near_miss("contiguous-copy")
def contiguous_before_the_loop():
    weight, x = torch.randn(16, 8), torch.randn(4, 8)

    def block():
        transposed = weight.t().contiguous()
        for _ in range(10):
            x @ transposed

    return block


class Attention(nn.Module):
    """As in many a tutorial: heads are put side by side again by a copy."""

    def __init__(self, width=16, heads=2):
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in (q, k, v))
        y = torch.softmax(q @ k.transpose(-2, -1) / 4, dim=-1) @ v
        return x + self.out(y.transpose(1, 2).contiguous().view(b, t, c))


@EXAMPLES.near_miss("contiguous-copy")
def twelve_layers_of_attention_evaluated():
    model, x = nn.Sequential(*(Attention() for _ in range(12))), torch.randn(2, 5, 16)

    def block():
        with torch.inference_mode():
            model(x)

    return block


@EXAMPLES.near_miss("contiguous-copy")
def twelve_layers_of_attention_trained():
    model, x = nn.Sequential(*(Attention() for _ in range(12))), torch.randn(2, 5, 16)

    def block():
        model(x).sum().backward()
        for p in model.parameters():
            p.grad = None

    return block


@EXAMPLES.near_miss("contiguous-copy")
def a_state_that_is_saved():
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(12)))
    return lambda: {name: value.clone() for name, value in model.state_dict().items()}


@EXAMPLES.near_miss("contiguous-copy")
def equal_tensors_that_are_all_kept():
    tensors = [torch.randn(8, 4).t() for _ in range(12)]
    return lambda: [t.contiguous() for t in tensors]


@EXAMPLES.near_miss("contiguous-copy")
def one_clone_a_step():
    model, x = nn.Linear(8, 4), torch.randn(4, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=True)

    def block():
        for _ in range(6):
            model(x.clone()).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    return block


@EXAMPLES.near_miss("contiguous-copy")
def the_parts_of_one_tensor():
    x = torch.randn(4, 64)

    def block():
        for part in x.chunk(8, dim=1):
            part.contiguous()

    return block


@EXAMPLES.near_miss("contiguous-copy")
def blocks_of_a_network_for_images():
    convs = [nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(8)]
    norms = [nn.LayerNorm(8) for _ in range(8)]
    mlps = [nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)) for _ in range(8)]
    x = torch.randn(2, 8, 4, 4)

    def block():
        with torch.no_grad():
            y = x
            for conv, norm, mlp in zip(convs, norms, mlps, strict=True):
                z = mlp(norm(conv(y).permute(0, 2, 3, 1).contiguous()))
                y = y + z.permute(0, 3, 1, 2)

    return block


class Residual(nn.Module):
    """A block of a small network for images."""

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(2))

    def forward(self, x):
        y = F.relu(self.norms[0](self.convs[0](x)))
        return F.relu(x + self.norms[1](self.convs[1](y)))


@EXAMPLES.near_miss("contiguous-copy")
def a_deep_copy_of_layers_with_buffers():
    model = nn.Sequential(*(nn.BatchNorm2d(8) for _ in range(3)))
    return lambda: copy.deepcopy(model)


@EXAMPLES.near_miss("contiguous-copy")
def a_deep_copy_of_a_network_for_images_that_is_trained():
    model, x = nn.Sequential(*(Residual() for _ in range(6))), torch.randn(2, 8, 4, 4)

    def block():
        copied = copy.deepcopy(model)
        optimizer = torch.optim.SGD(copied.parameters(), lr=0.1, foreach=True)
        for _ in range(2):
            copied(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    return block


def numbers(*shape):
    """What a check of gradients takes."""
    return torch.randn(*shape, dtype=torch.double, requires_grad=True)


# In torch's own code there, gradients are indexed element by element.
@EXAMPLES.near_miss("contiguous-copy")
def gradients_of_a_product_that_are_checked():
    x, weight = numbers(3, 4), numbers(5, 4)
    return lambda: torch.autograd.gradcheck(F.linear, (x, weight))


@EXAMPLES.near_miss("contiguous-copy")
def gradients_of_attention_that_are_checked():
    q, k, v = (numbers(1, 2, 3, 4) for _ in range(3))
    return lambda: torch.autograd.gradcheck(F.scaled_dot_product_attention, (q, k, v))


@EXAMPLES.near_miss("contiguous-copy")
def gradients_that_are_cloned():
    weight, x = torch.randn(8, 16, requires_grad=True), torch.randn(4, 16)

    def block():
        for i in range(8):
            (grad,) = torch.autograd.grad(F.linear(x, weight).sum() * i, weight)
            grad.clone().sum()

    return block


@EXAMPLES.near_miss("contiguous-copy", also="for-loop-indexing")
def what_is_made_of_each_frame_is_copied():
    weight, frames = torch.randn(32, 16), torch.randn(12, 4, 32)

    def block():
        for x in frames:
            (x @ weight).t().contiguous().sum()

    return block


@EXAMPLES.near_miss("contiguous-copy")
def what_was_just_made_is_cloned():
    weight, xs = torch.randn(32, 16), [torch.randn(4, 32) for _ in range(12)]

    def block():
        for x in xs:
            (x @ weight).clone().mul_(2)

    return block


@EXAMPLES.near_miss("contiguous-copy", also="for-loop-indexing")
def the_transposed_parts_of_one_tensor_are_used():
    x, w = torch.randn(12, 4, 32), torch.randn(4, 8)

    def block():
        for part in x:
            part.t().contiguous() @ w

    return block


@EXAMPLES.near_miss("contiguous-copy", also="for-loop-indexing")
def pieces_of_the_parts_of_one_tensor():
    x, w = torch.randn(12, 4, 32), torch.randn(8, 4)

    def block():
        for part in x.unbind():
            part[:, :8].t().contiguous().t() @ w

    return block
