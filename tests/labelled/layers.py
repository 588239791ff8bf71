"""Labelled examples of the rules about layers."""

from __future__ import annotations

import torch
from labelled.case import Examples
from support.trace_builder import TraceBuilder
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

EXAMPLES = Examples()


def forward(*layers, batch=None):
    """A forward pass of these layers, one after the other."""
    model = nn.Sequential(*layers)
    batch = torch.rand(2, 3, 6, 6) if batch is None else batch

    @torch.no_grad()
    def run():
        return model(batch)  # <- here

    return run


def normalised(convolution, between, norm, batch=None):
    """A forward pass written by hand; ``between`` comes between the two."""
    batch = torch.rand(2, 3, 6, 6) if batch is None else batch

    @torch.no_grad()
    def run():
        return norm(between(convolution(batch)))  # <- here

    return run


@EXAMPLES.positive("conv-bias-batchnorm")
def a_convolution_and_its_norm():
    return forward(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())


@EXAMPLES.positive("conv-bias-batchnorm")
def in_training():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    batch = torch.rand(2, 3, 6, 6)
    return lambda: model(batch).sum().backward()  # <- here


@EXAMPLES.positive("conv-bias-batchnorm")
def in_one_dimension():
    return forward(nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4), batch=torch.rand(2, 3, 6))


@EXAMPLES.positive("conv-bias-batchnorm")
def in_three_dimensions():
    return forward(nn.Conv3d(3, 4, 3), nn.BatchNorm3d(4), batch=torch.rand(2, 3, 4, 4, 4))


@EXAMPLES.positive("conv-bias-batchnorm")
def a_transposed_convolution():
    return forward(nn.ConvTranspose2d(3, 4, 3, stride=2), nn.BatchNorm2d(4))


@EXAMPLES.positive("conv-bias-batchnorm")
def strides_dilation_and_groups():
    convolution = nn.Conv2d(4, 8, 3, stride=2, padding=2, dilation=2, groups=2)
    return forward(convolution, nn.BatchNorm2d(8), batch=torch.rand(2, 4, 9, 9))


@EXAMPLES.positive("conv-bias-batchnorm")
def padding_in_words():
    return forward(nn.Conv2d(3, 4, 3, padding="same"), nn.BatchNorm2d(4))


@EXAMPLES.positive("conv-bias-batchnorm", 2)
def two_of_three_blocks():
    return forward(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 4, 1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 3, 1),
        nn.BatchNorm2d(3),
    )


@EXAMPLES.positive("conv-bias-batchnorm")
def statistics_that_are_not_tracked():
    return forward(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False).eval())


@EXAMPLES.positive("conv-bias-batchnorm", 2)
def statistics_of_averaged_weights():
    model = nn.Sequential(nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.ReLU())
    batches = list(torch.rand(2, 2, 2, 8))
    return lambda: torch.optim.swa_utils.update_bn(batches, model)  # <- here


@EXAMPLES.near_miss("conv-bias-batchnorm")
def a_plain_average_of_what_an_activation_bounds():
    return forward(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.BatchNorm2d(4, momentum=None))


@EXAMPLES.positive("conv-bias-batchnorm")
def functions_instead_of_modules():
    weight, bias = torch.rand(4, 3, 3, 3), torch.rand(4)
    norm = lambda x: F.batch_norm(x, None, None, training=True)
    return normalised(lambda x: F.conv2d(x, weight, bias), nn.Identity(), norm)  # <- here


@EXAMPLES.positive("conv-bias-batchnorm")
def under_autocast():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    batch = torch.rand(2, 3, 6, 6)

    @torch.no_grad()
    def run():
        with torch.autocast("cpu", torch.bfloat16):
            return model(batch)  # <- here

    return run


@EXAMPLES.positive("conv-bias-batchnorm")
def an_annotation_around_each():
    convolution, norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
    batch = torch.rand(2, 3, 6, 6)

    @torch.no_grad()
    def run():
        with torch.profiler.record_function("convolution"):
            hidden = convolution(batch)  # <- here
        with torch.profiler.record_function("norm"):
            return norm(hidden)

    return run


def old_trace(*, counts, bias=True):
    """What torch 1.10 wrote on a device: shapes and no values."""
    trace = TraceBuilder("Tesla V100")
    dims = [[2, 3, 6, 6], [4, 3, 3, 3], [4] if bias else [], [], [], [], []]
    with trace.op("aten::conv2d", args={"Input Dims": dims}):  # noqa: SIM117 - as they nest
        with trace.op("aten::cudnn_convolution", args={"Input Dims": dims[:2]}):
            trace.launch("implicit_convolve_sgemm")
    if counts:
        types = ["long int", "long int", "Scalar"]
        trace.op("aten::add_", args={"Input Dims": [[], [], []], "Input type": types})
    norm = [[2, 4, 4, 4], [4], [4], [4], [4], [], [], [], []]
    with trace.op("aten::batch_norm", args={"Input Dims": norm}):  # noqa: SIM117 - as they nest
        with trace.op("aten::cudnn_batch_norm", args={"Input Dims": norm[:8]}):
            trace.launch("bn_fw_tr_1C11_kernel_NCHW")
    return trace


@EXAMPLES.positive("conv-bias-batchnorm")
def an_old_trace_whose_norm_counts_batches():
    return old_trace(counts=True)


@EXAMPLES.near_miss("conv-bias-batchnorm")
def an_old_trace_that_does_not_say():
    return old_trace(counts=False)


@EXAMPLES.near_miss("conv-bias-batchnorm")
def an_old_trace_without_a_bias():
    return old_trace(counts=True, bias=False)


@EXAMPLES.near_miss("conv-bias-batchnorm")
def no_bias():
    return forward(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4))


@EXAMPLES.near_miss("conv-bias-batchnorm")
def no_norm():
    return forward(nn.Conv2d(3, 4, 3), nn.ReLU())


@EXAMPLES.near_miss("conv-bias-batchnorm")
def in_evaluation():
    return forward(nn.Conv2d(3, 4, 3).eval(), nn.BatchNorm2d(4).eval())


@EXAMPLES.near_miss("conv-bias-batchnorm")
def an_activation_between():
    return forward(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.BatchNorm2d(4))


@EXAMPLES.near_miss("conv-bias-batchnorm")
def dropout_between():
    return forward(nn.Conv2d(3, 4, 3), nn.Dropout2d(0.1), nn.BatchNorm2d(4))


@EXAMPLES.near_miss("conv-bias-batchnorm")
def pooling_between():
    return forward(nn.Conv2d(3, 4, 3), nn.MaxPool2d(2), nn.BatchNorm2d(4))


@EXAMPLES.near_miss("conv-bias-batchnorm")
def a_sum_with_the_input_between():
    convolution, norm = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)
    return normalised(convolution, lambda x: x + 1, norm)


@EXAMPLES.positive("conv-bias-batchnorm")
def an_instance_norm():
    return forward(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4), nn.ReLU())


@EXAMPLES.positive("conv-bias-batchnorm", 2)
def a_generator_with_instance_norms_in_training():
    model = nn.Sequential(
        nn.ReflectionPad2d(1),
        nn.Conv2d(3, 4, 3),
        nn.InstanceNorm2d(4),
        nn.ReLU(),
        nn.ConvTranspose2d(4, 4, 3, stride=2),
        nn.InstanceNorm2d(4, affine=True),
        nn.Tanh(),
    )
    batch = torch.rand(2, 3, 6, 6)
    return lambda: model(batch).sum().backward()  # <- here


@EXAMPLES.positive("conv-bias-batchnorm")
def an_instance_norm_in_evaluation():
    return forward(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4, affine=True).eval())


@EXAMPLES.positive("conv-bias-batchnorm")
def an_instance_norm_that_tracks_statistics_in_training():
    return forward(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4, track_running_stats=True))


@EXAMPLES.positive("conv-bias-batchnorm")
def an_instance_norm_in_one_dimension():
    return forward(nn.Conv1d(3, 4, 3), nn.InstanceNorm1d(4), batch=torch.rand(2, 3, 6))


@EXAMPLES.positive("conv-bias-batchnorm")
def the_function_of_an_instance_norm():
    return normalised(nn.Conv2d(3, 4, 3), lambda x: x, F.instance_norm)


@EXAMPLES.near_miss("conv-bias-batchnorm")
def an_instance_norm_that_uses_tracked_statistics():
    norm = nn.InstanceNorm2d(4, track_running_stats=True)
    return forward(nn.Conv2d(3, 4, 3), norm.eval())


@EXAMPLES.near_miss("conv-bias-batchnorm")
def an_instance_norm_after_a_convolution_without_bias():
    return forward(nn.Conv2d(3, 4, 3, bias=False), nn.InstanceNorm2d(4))


@EXAMPLES.near_miss("conv-bias-batchnorm")
def an_activation_before_an_instance_norm():
    return forward(nn.Conv2d(3, 4, 3), nn.LeakyReLU(0.2), nn.InstanceNorm2d(4))


@EXAMPLES.near_miss("conv-bias-batchnorm")
def an_instance_norm_added_to_what_it_normalises():
    norm = nn.InstanceNorm2d(4)
    return normalised(nn.Conv2d(3, 4, 3), lambda x: x, lambda x: norm(x) + x)


@EXAMPLES.near_miss("conv-bias-batchnorm")
def an_instance_norm_of_a_sequence_whose_channels_are_its_steps():
    linear = nn.Linear(6, 6)
    return forward(linear, nn.InstanceNorm1d(3), batch=torch.rand(2, 3, 6))


@EXAMPLES.near_miss("conv-bias-batchnorm")
def a_group_norm():
    return forward(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4))


@EXAMPLES.positive("conv-bias-batchnorm")
def a_linear_layer():
    return forward(nn.Linear(3, 4), nn.BatchNorm1d(4), batch=torch.rand(5, 3))


class Projector(nn.Module):
    """The head of a contrastive model."""

    def __init__(self, width=8, bias=True):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=bias) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(2))

    def forward(self, x):
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = F.relu(norm(layer(x)))  # <- here
        return x


@EXAMPLES.positive("conv-bias-batchnorm", 2)
def linear_layers_of_a_projector_in_training():
    head, x = Projector(), torch.rand(6, 8)
    return lambda: F.normalize(head(x)).square().sum().backward()


@EXAMPLES.near_miss("conv-bias-batchnorm")
def linear_layers_of_a_projector_without_biases():
    head, x = Projector(bias=False), torch.rand(6, 8)
    return lambda: F.normalize(head(x)).square().sum().backward()


@EXAMPLES.near_miss("conv-bias-batchnorm", also="missing-no-grad")
def a_linear_layer_of_a_sequence_that_is_normalised_over_its_channels():
    layer, norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
    x = torch.rand(5, 4, 4)
    return lambda: norm(layer(x).transpose(1, 2))


class Branches(nn.Module):
    """What it convolves goes on with and without a norm."""

    def __init__(self, join):
        super().__init__()
        self.conv, self.norm, self.join = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), join

    def forward(self, x):
        y = self.conv(x)
        return self.join(self.norm(y), y)


@EXAMPLES.near_miss("conv-bias-batchnorm")
def a_norm_added_to_what_it_normalises():
    model, x = Branches(torch.add), torch.rand(2, 4, 6, 6)
    return lambda: model(x).square().mean().backward()


@EXAMPLES.near_miss("conv-bias-batchnorm")
def a_norm_joined_with_what_it_normalises_later():
    model, x = Branches(lambda z, y: torch.cat([F.relu(z), y.tanh()], 1)), torch.rand(2, 4, 6, 6)

    @torch.no_grad()
    def statistics():
        return model(x)

    return statistics


@EXAMPLES.near_miss("conv-bias-batchnorm")
def a_gate_of_what_is_normalised():
    model, x = Branches(lambda z, y: z * y.sigmoid()), torch.rand(2, 4, 6, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)

    def step():
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()

    return step


@EXAMPLES.near_miss("conv-bias-batchnorm")
def a_convolution_and_a_norm_of_one_input_inside_of_a_model():
    class Parallel(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(3, 4, 1, bias=False)
            self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)

        def forward(self, x):
            x = self.stem(x)
            return self.conv(x) + self.norm(x)

    model, x = Parallel(), torch.rand(2, 3, 6, 6)
    return lambda: model(x).square().mean().backward()


@EXAMPLES.positive("conv-bias-batchnorm", 2)
def two_norms_of_convolutions_that_are_added():
    first, second = (
        nn.Sequential(nn.Conv2d(4, 4, k, padding=k // 2), nn.BatchNorm2d(4)) for k in (3, 1)
    )
    x = torch.rand(2, 4, 6, 6)
    return lambda: F.relu(first(x) + second(x)).mean().backward()  # <- here


@EXAMPLES.positive("conv-bias-batchnorm")
def a_residual_block_whose_input_has_the_shape_of_its_result():
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)

        def forward(self, x):
            y = self.norm(self.conv(x))  # <- here
            return x + y.relu_()

    stem, block = nn.Conv2d(3, 4, 1), Residual()
    x = torch.rand(2, 3, 6, 6)
    return lambda: block(stem(x)).mean().backward()


class Towers(nn.Module):
    """Two inputs share an encoder; ``last`` is what comes after that of the second."""

    def __init__(self, last):
        super().__init__()
        self.encoder, self.norm, self.last = nn.Linear(8, 6), nn.BatchNorm1d(6), last

    def forward(self, query, key):
        hidden = self.norm(self.encoder(query))  # <- here
        return (hidden * self.last(self.encoder(key))).sum(-1)  # <- here


@EXAMPLES.positive("conv-bias-batchnorm", 2)
def an_encoder_of_two_towers_that_are_normalised():
    model, pair = Towers(nn.BatchNorm1d(6)), torch.rand(2, 5, 8)
    return lambda: model(*pair).mean().backward()


@EXAMPLES.near_miss("conv-bias-batchnorm")
def an_encoder_of_two_towers_of_which_one_is_normalised():
    model, pair = Towers(nn.ReLU()), torch.rand(2, 5, 8)
    return lambda: model(*pair).mean().backward()


@EXAMPLES.positive("conv-bias-batchnorm")
def a_layer_that_is_trained_and_evaluated():
    model, batch = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6)), torch.rand(5, 8)

    def epoch():
        model.train()(batch).mean().backward()  # <- here
        with torch.inference_mode():
            return model.eval()(batch)

    return epoch


@EXAMPLES.near_miss("conv-bias-batchnorm")
def the_norm_before_the_convolution():
    return forward(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3))


@EXAMPLES.near_miss("conv-bias-batchnorm")
def the_norm_of_another_tensor():
    convolution, norm = nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3)
    batch = torch.rand(2, 3, 6, 6)

    @torch.no_grad()
    def run():
        return convolution(batch), norm(batch)

    return run


@EXAMPLES.near_miss("conv-bias-batchnorm")
def branches_of_a_batch():
    convolution, norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
    batch = torch.rand(2, 4, 6, 6)
    return lambda: (convolution(batch) + norm(batch)).sum().backward()


@EXAMPLES.near_miss("conv-bias-batchnorm")
def branches_of_a_batch_in_one_dimension():
    convolution, norm = nn.Conv1d(4, 4, 3, padding=1), nn.BatchNorm1d(4)
    batch = torch.rand(2, 4, 6)
    return lambda: (convolution(batch) + norm(batch)).sum().backward()


@EXAMPLES.positive("conv-bias-batchnorm")
def a_shortcut_around_both():
    convolution, norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
    batch = torch.rand(2, 4, 6, 6)
    return lambda: (norm(convolution(batch)) + batch).relu().sum().backward()  # <- here


@EXAMPLES.positive("conv-bias-batchnorm", 2)
def a_frozen_convolution_and_one_that_is_not():
    frozen, norm = nn.Conv2d(4, 4, 3, padding=1).requires_grad_(False), nn.BatchNorm2d(4)
    other, batch = nn.Conv2d(4, 4, 3, padding=1), torch.rand(2, 4, 6, 6)
    model = nn.Sequential(frozen, norm, nn.ReLU(), other, nn.BatchNorm2d(4))
    return lambda: model(batch).sum().backward()  # <- here


# -------------------------------------------------------------------- under torch.func


def stateless(*layers):
    """A model without running statistics, and its weights by name."""
    model = nn.Sequential(*layers)
    return model, {name: p.detach() for name, p in model.named_parameters()}


@EXAMPLES.positive("conv-bias-batchnorm")
def a_linear_layer_under_grad_and_value():
    model, weights = stateless(
        nn.Linear(8, 16), nn.BatchNorm1d(16, track_running_stats=False), nn.ReLU()
    )
    x = torch.rand(4, 8)

    def loss(weights):
        return torch.func.functional_call(model, weights, (x,)).square().mean()  # <- here

    return lambda: torch.func.grad_and_value(loss)(weights)


@EXAMPLES.positive("conv-bias-batchnorm")
def a_convolution_under_vjp():
    norm = nn.BatchNorm2d(8, track_running_stats=False)
    model, weights = stateless(nn.Conv2d(3, 8, 3), norm, nn.ReLU())
    x = torch.rand(4, 3, 8, 8)

    def pull():
        y, back = torch.func.vjp(
            lambda w: torch.func.functional_call(model, w, (x,)),  # <- here
            weights,
        )
        return back(torch.ones_like(y))

    return pull


@EXAMPLES.positive("conv-bias-batchnorm")
def an_attack_by_the_gradient_of_the_input():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, track_running_stats=False))
    x = torch.rand(4, 3, 8, 8)
    return lambda: torch.func.grad(lambda image: model(image).square().mean())(x)  # <- here


@EXAMPLES.positive("conv-bias-batchnorm")
def an_ensemble_under_vmap():
    models = [
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, track_running_stats=False))
        for _ in range(3)
    ]
    weights, _ = torch.func.stack_module_state(models)
    x = torch.rand(4, 3, 8, 8)

    @torch.no_grad()
    def predict():
        return torch.vmap(lambda w: torch.func.functional_call(models[0], w, (x,)))(  # <- here
            weights
        )

    return predict


@EXAMPLES.near_miss("conv-bias-batchnorm")
def a_convolution_without_bias_under_grad():
    norm = nn.BatchNorm2d(8, track_running_stats=False)
    model, weights = stateless(nn.Conv2d(3, 8, 3, bias=False), norm)
    x = torch.rand(4, 3, 8, 8)

    def loss(weights):
        return torch.func.functional_call(model, weights, (x,)).square().mean()

    return lambda: torch.func.grad(loss)(weights)


@EXAMPLES.near_miss("conv-bias-batchnorm")
def a_norm_and_what_it_takes_added_under_grad():
    conv, norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, track_running_stats=False)

    def loss(x):
        y = conv(x)
        return (norm(y) + y).square().mean()

    x = torch.rand(2, 3, 6, 6)
    return lambda: torch.func.grad(loss)(x)


@EXAMPLES.positive("conv-bias-batchnorm")
def a_norm_without_weights_of_its_own():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, affine=False))
    x = torch.rand(2, 3, 6, 6)
    return lambda: model(x).square().mean().backward()  # <- here


def one_bias_in_a_network(blocks):
    """A training step of a network whose first convolution has a bias; the others have none."""
    first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
    others = (
        layer
        for _ in range(blocks)
        for layer in (nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
    )
    model, batch = nn.Sequential(first, *others), torch.rand(2, 3, 12, 12)
    return lambda: model(batch).square().mean().backward()  # <- here


@EXAMPLES.positive("conv-bias-batchnorm")
def a_bias_that_matters_beside_the_other_layers():
    return one_bias_in_a_network(10)


@EXAMPLES.near_miss("conv-bias-batchnorm")
def a_bias_that_is_a_trifle_beside_the_other_layers():
    return one_bias_in_a_network(14)
