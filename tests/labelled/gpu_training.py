"""Examples on a GPU of the rules about training, gradients and graphs."""

from __future__ import annotations

import copy

import torch
from labelled.case import ANY, Examples
from labelled.gpu_models import BF16, Decoder, batches, perceptron, resnet
from support.live import Compiling
from torch import nn
from torch.nn import functional as F  # noqa: N812

ON_GPU = Examples()


def stepping(optimizer_of, model=None, steps=2):
    """Some steps of training; ``optimizer_of`` makes an optimizer from parameters."""
    model = model or perceptron()
    optimizer = optimizer_of(model.parameters())
    data = batches(steps)

    def block():
        for x, y in data:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()  # <- here

    return block


# -------------------------------------------------------------------- single-tensor-optimizer


@ON_GPU.positive("single-tensor-optimizer", 2)
def adamw_without_foreach():
    return stepping(lambda p: torch.optim.AdamW(p, foreach=False))


@ON_GPU.positive("single-tensor-optimizer", 2)
def sgd_with_momentum_without_foreach():
    return stepping(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=False))


@ON_GPU.positive("single-tensor-optimizer", 2)
def rmsprop_without_foreach():
    return stepping(lambda p: torch.optim.RMSprop(p, lr=0.01, foreach=False))


@ON_GPU.positive("single-tensor-optimizer", 3)
def nadam_of_a_convolutional_network():
    model = resnet(16, blocks=1)
    optimizer = torch.optim.NAdam(model.parameters(), foreach=False)
    x = torch.randn(4, 3, 32, 32, device="cuda")

    def block():
        for _ in range(3):
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()  # <- here

    return block


@ON_GPU.near_miss("single-tensor-optimizer")
def adamw_as_it_is_by_default():
    return stepping(torch.optim.AdamW)


@ON_GPU.near_miss("single-tensor-optimizer")
def a_fused_adam():
    return stepping(lambda p: torch.optim.Adam(p, fused=True))


@ON_GPU.near_miss("single-tensor-optimizer")
def one_embedding_alone():
    return stepping(
        lambda p: torch.optim.SGD(p, lr=0.1, foreach=False),
        nn.Linear(256, 16, bias=False, device="cuda"),
    )


@ON_GPU.near_miss("single-tensor-optimizer")
def a_fused_sgd_under_a_scaler():
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    scaler = torch.amp.GradScaler("cuda")
    data = batches(2)

    def block():
        for x, y in data:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    return block


# -------------------------------------------------------------------- per-parameter-loop


@ON_GPU.positive("per-parameter-loop")
def an_average_of_weights():
    model, data = perceptron(layers=6), batches(1)
    average = copy.deepcopy(model).requires_grad_(False)

    def block():
        (x, _) = data[0]
        with torch.no_grad():
            model(x)
            for mean, p in zip(average.parameters(), model.parameters(), strict=True):
                mean.mul_(0.999).add_(p, alpha=0.001)  # <- here

    return block


@ON_GPU.positive("per-parameter-loop")
def an_update_by_hand():
    model, data = perceptron(layers=6), batches(1)

    def block():
        (x, y) = data[0]
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for p in model.parameters():
                p.data -= 0.01 * p.grad  # <- here
        model.zero_grad()

    return block


@ON_GPU.positive("per-parameter-loop", also="host-sync")
def norms_of_gradients_read_one_by_one():
    model, data = perceptron(layers=6), batches(1)

    def block():
        (x, y) = data[0]
        F.cross_entropy(model(x), y).backward()
        total = 0.0
        for p in model.parameters():
            total += p.grad.norm(2).item() ** 2  # <- here
        model.zero_grad()
        return total**0.5

    return block


@ON_GPU.near_miss("per-parameter-loop")
def an_average_by_lists():
    model, data = perceptron(layers=6), batches(1)
    average = copy.deepcopy(model).requires_grad_(False)

    def block():
        (x, _) = data[0]
        with torch.no_grad():
            model(x)
            torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 0.001)

    return block


@ON_GPU.near_miss("per-parameter-loop")
def gradients_clipped_by_torch():
    model, data = perceptron(layers=6), batches(1)

    def block():
        (x, y) = data[0]
        F.cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        model.zero_grad()

    return block


@ON_GPU.near_miss("per-parameter-loop")
def weights_initialized_one_by_one():
    model, data = perceptron(layers=6), batches(1)

    def block():
        for p in model.parameters():
            nn.init.normal_(p, std=0.02)
        with torch.no_grad():
            model(data[0][0])

    return block


# -------------------------------------------------------------------- grad-not-none


@ON_GPU.positive("grad-not-none", 3)
def gradients_zeroed_by_the_optimizer():
    model = perceptron()
    optimizer, data = torch.optim.SGD(model.parameters(), lr=0.1), batches(3)

    def block():
        for x, y in data:
            optimizer.zero_grad(set_to_none=False)  # <- here
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

    return block


@ON_GPU.positive("grad-not-none", 2)
def gradients_zeroed_by_hand():
    model, data = perceptron(), batches(3)

    def block():
        for x, y in data:
            F.cross_entropy(model(x), y).backward()
            with torch.no_grad():
                for p in model.parameters():
                    p.sub_(p.grad, alpha=0.1)
            for p in model.parameters():
                p.grad.zero_()  # <- here

    return block


@ON_GPU.positive("grad-not-none", ANY)
def gradients_zeroed_by_a_module_while_they_accumulate():
    model, data = perceptron(), batches(4)
    optimizer = torch.optim.AdamW(model.parameters())

    def block():
        for step, (x, y) in enumerate(data):
            (F.cross_entropy(model(x), y) / 2).backward()
            if step % 2:
                optimizer.step()
                model.zero_grad(set_to_none=False)  # <- here

    return block


@ON_GPU.near_miss("grad-not-none")
def gradients_set_to_none():
    return stepping(torch.optim.AdamW, steps=3)


@ON_GPU.near_miss("grad-not-none")
def a_buffer_of_zeros_for_each_step():
    model, data = perceptron(), batches(3)

    def block():
        for x, y in data:
            model.zero_grad()
            hidden = torch.zeros(64, 256, device="cuda")
            F.cross_entropy(model(x + hidden), y).backward()

    return block


@ON_GPU.near_miss("grad-not-none")
def gradients_accumulated_and_dropped():
    model, data = perceptron(), batches(4)
    optimizer = torch.optim.AdamW(model.parameters())

    def block():
        for step, (x, y) in enumerate(data):
            (F.cross_entropy(model(x), y) / 2).backward()
            if step % 2:
                optimizer.step()
                optimizer.zero_grad()

    return block


# -------------------------------------------------------------------- missing-no-grad


@ON_GPU.positive("missing-no-grad")
def a_validation_that_records():
    model, data = perceptron().eval(), batches(4)

    def block():
        correct = torch.zeros((), device="cuda")
        for x, y in data:
            correct += (model(x).argmax(1) == y).sum()  # <- here
        return correct

    return block


@ON_GPU.positive("missing-no-grad", ANY)
def a_teacher_that_records():
    teacher, student, data = perceptron().eval(), perceptron(), batches(4)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)

    def block():
        for x, _ in data:
            target = teacher(x).softmax(-1).detach()  # <- here
            optimizer.zero_grad()
            F.cross_entropy(student(x), target).backward()
            optimizer.step()

    return block


@ON_GPU.positive("missing-no-grad")
def samples_of_a_decoder_that_record():
    model = Decoder().eval()
    ids = torch.randint(512, (2, 64), device="cuda")

    def block():
        for _ in range(4):
            logits = model(ids)  # <- here
            ids.copy_(logits.argmax(-1))

    return block


@ON_GPU.near_miss("missing-no-grad")
def a_validation_in_inference_mode():
    model, data = perceptron().eval(), batches(4)

    def block():
        with torch.inference_mode():
            for x, _ in data:
                model(x).argmax(1)

    return block


@ON_GPU.near_miss("missing-no-grad")
def a_forward_pass_that_is_trained():
    return stepping(torch.optim.AdamW, steps=4)


@ON_GPU.near_miss("missing-no-grad")
def one_look_at_a_model():
    model, data = perceptron(), batches(1)
    return lambda: model(data[0][0]).shape


# -------------------------------------------------------------------- conv-bias-batchnorm


def pictures():
    return torch.randn(8, 3, 32, 32, device="cuda")


@ON_GPU.positive("conv-bias-batchnorm", 2)
def two_convolutions_with_biases():
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.BatchNorm2d(16)
    ).cuda()
    x = pictures()
    return lambda: model(x).mean().backward()  # <- here


@ON_GPU.positive("conv-bias-batchnorm", 1)
def a_linear_layer_with_a_bias():
    linear, norm = nn.Linear(256, 128, device="cuda"), nn.BatchNorm1d(128, device="cuda")
    x = torch.randn(64, 256, device="cuda")

    def block():
        y = linear(x)  # <- here
        norm(y).relu().sum().backward()

    return block


@ON_GPU.positive("conv-bias-batchnorm", 1)
def an_instance_norm_of_a_style_network():
    conv, norm = nn.Conv2d(3, 16, 3, device="cuda"), nn.InstanceNorm2d(16)
    x = pictures()

    def block():
        with torch.no_grad():
            y = conv(x)  # <- here
            return norm(y).relu()

    return block


@ON_GPU.near_miss("conv-bias-batchnorm")
def convolutions_without_biases():
    model = resnet(16, blocks=1)
    x = pictures()
    return lambda: model(x).mean().backward()


@ON_GPU.near_miss("conv-bias-batchnorm")
def a_norm_in_evaluation():
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16)).cuda().eval()
    x = pictures()

    def block():
        with torch.no_grad():
            return model(x)

    return block


@ON_GPU.near_miss("conv-bias-batchnorm")
def a_group_norm():
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.GroupNorm(4, 16)).cuda()
    x = pictures()
    return lambda: model(x).mean().backward()


# -------------------------------------------------------------------- debug-left-on


@ON_GPU.positive("debug-left-on", 3, also="host-sync")
def anomaly_detection_in_three_steps():
    model, data = perceptron(), batches(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def block():
        torch.autograd.set_detect_anomaly(True)
        for x, y in data:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()  # <- here
            optimizer.step()
        torch.autograd.set_detect_anomaly(False)

    return block


@ON_GPU.positive("debug-left-on")
def memory_filled_by_deterministic_mode():
    x = torch.ones(1 << 20, device="cuda")

    def block():
        torch.use_deterministic_algorithms(True)
        out = torch.empty(1 << 20, device="cuda")  # <- here
        torch.mul(x, 2, out=out)
        torch.use_deterministic_algorithms(False)
        return out

    return block


@ON_GPU.positive("debug-left-on", 4, also="host-sync")
def anomaly_detection_around_a_loop():
    layer = nn.Linear(64, 64, device="cuda")
    x = torch.randn(32, 64, device="cuda")

    def block():
        with torch.autograd.detect_anomaly(check_nan=True):
            for _ in range(4):
                layer.zero_grad()
                layer(x).square().mean().backward()  # <- here

    return block


@ON_GPU.near_miss("debug-left-on")
def training_without_a_debugging_mode():
    return stepping(torch.optim.SGD, steps=3)


@ON_GPU.near_miss("debug-left-on", also="host-sync")
def one_step_that_looks_for_a_nan():
    layer = nn.Linear(64, 64, device="cuda")
    x = torch.randn(32, 64, device="cuda")

    def block():
        with torch.autograd.detect_anomaly():
            layer(x).sum().backward()

    return block


@ON_GPU.near_miss("debug-left-on")
def a_tensor_filled_on_purpose():
    def block():
        return torch.empty(1 << 20, device="cuda").fill_(0.5)

    return block


# -------------------------------------------------------------------- backward-twice


def heads_of_one_body():
    """A body, two heads, and what they see."""
    body = perceptron(classes=256)
    first, second = (nn.Linear(256, 4, device="cuda") for _ in range(2))
    return body, first, second, torch.randn(64, 256, device="cuda")


@ON_GPU.positive("backward-twice")
def two_losses_of_one_body():
    body, first, second, x = heads_of_one_body()

    def block():
        h = body(x)
        first(h).square().mean().backward(retain_graph=True)
        second(h).square().mean().backward()  # <- here

    return block


@ON_GPU.positive("backward-twice", 2)
def three_losses_one_by_one():
    body, first, second, x = heads_of_one_body()

    def block():
        h = body(x)
        losses = [first(h).mean(), second(h).mean(), h.square().mean()]
        losses[0].backward(retain_graph=True)
        losses[1].backward(retain_graph=True)  # <- here
        losses[2].backward()  # <- here

    return block


@ON_GPU.positive("backward-twice")
def a_penalty_after_the_loss():
    body, first, _, x = heads_of_one_body()

    def block():
        body.zero_grad()
        h = body(x)
        first(h).mean().backward(retain_graph=True)
        (0.1 * h.abs().mean()).backward()  # <- here

    return block


@ON_GPU.near_miss("backward-twice")
def two_losses_added_up():
    body, first, second, x = heads_of_one_body()

    def block():
        h = body(x)
        (first(h).square().mean() + second(h).square().mean()).backward()

    return block


@ON_GPU.near_miss("backward-twice")
def gradients_of_each_loss_apart():
    body, first, second, x = heads_of_one_body()

    def block():
        h = body(x)
        parameters = list(body.parameters())
        one = torch.autograd.grad(first(h).mean(), parameters, retain_graph=True)
        return one, torch.autograd.grad(second(h).mean(), parameters)

    return block


@ON_GPU.near_miss("backward-twice")
def two_batches_that_accumulate():
    body, first, _, x = heads_of_one_body()

    def block():
        for _ in range(2):
            first(body(x)).mean().backward()

    return block


# -------------------------------------------------------------------- accumulated-graph


@ON_GPU.positive("accumulated-graph")
def a_total_with_its_graph():
    model, data = perceptron(), batches(4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def block():
        total = 0
        for x, y in data:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            total += loss  # <- here
        return total

    return block


@ON_GPU.positive("accumulated-graph")
def a_list_of_losses_summed_at_the_end():
    model, data = perceptron(), batches(4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def block():
        losses = []
        for x, y in data:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss)
        return torch.stack(losses).mean()  # <- here

    return block


@ON_GPU.positive("accumulated-graph")
def a_moving_average_with_its_graph():
    model, data = perceptron(), batches(5)
    optimizer = torch.optim.AdamW(model.parameters())

    def block():
        average = torch.zeros((), device="cuda")
        for x, y in data:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            average = 0.9 * average + 0.1 * loss  # <- here
        return average

    return block


@ON_GPU.near_miss("accumulated-graph")
def a_detached_total():
    model, data = perceptron(), batches(4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def block():
        total = 0
        for x, y in data:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            total += loss.detach()
        return total

    return block


@ON_GPU.near_miss("accumulated-graph")
def losses_of_micro_batches_for_one_backward():
    model, data = perceptron(), batches(4)

    def block():
        total = 0
        for x, y in data:
            total = total + F.cross_entropy(model(x), y)
        total.backward()

    return block


@ON_GPU.near_miss("accumulated-graph", also="host-sync")
def a_total_of_numbers():
    model, data = perceptron(), batches(4)

    def block():
        total = 0.0
        for x, y in data:
            model.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            total += float(loss)
        return total

    return block


# -------------------------------------------------------------------- graph-break and recompile


def compiled(function):
    return torch.compile(function, backend="eager")


@ON_GPU.positive("graph-break", also="host-sync")
def a_branch_on_a_value_of_the_device():
    x = torch.randn(64, device="cuda")

    def step(x):
        y = x.sin()
        if x.sum() > 0:  # <- here
            return y.cos()
        return y.tan()

    return Compiling(lambda: compiled(step)(x))


@ON_GPU.positive("graph-break")
def a_break_that_is_asked_for():
    x = torch.randn(64, device="cuda", dtype=BF16)

    def step(x):
        y = x.sin()
        torch._dynamo.graph_break()  # <- here
        return y.cos()

    return Compiling(lambda: compiled(step)(x))


@ON_GPU.positive("graph-break", also="host-sync")
def a_list_of_values_of_the_device():
    x = torch.randn(64, device="cuda")

    def step(x):
        number = x.sum().tolist()  # <- here
        return x * number

    return Compiling(lambda: compiled(step)(x))


@ON_GPU.near_miss("graph-break")
def a_whole_model_compiled():
    model, data = perceptron(), batches(1)

    def step(x):
        return model(x)

    return Compiling(lambda: compiled(step)(data[0][0]).sum().backward())


@ON_GPU.near_miss("graph-break")
def where_in_a_compiled_function():
    x = torch.randn(64, device="cuda")

    def step(x):
        return torch.where(x.sum() > 0, x.cos(), x.tan())

    return Compiling(lambda: compiled(step)(x))


@ON_GPU.near_miss("graph-break")
def autocast_in_a_compiled_function():
    model, data = perceptron(), batches(1)

    def step(x):
        with torch.autocast("cuda", dtype=BF16):
            return model(x)

    return Compiling(lambda: compiled(step)(data[0][0]))


@ON_GPU.positive("recompile", ANY)
def another_dtype_each_time():
    tensors = [torch.ones(8, device="cuda", dtype=d) for d in (BF16, torch.float32, torch.half)]

    def step(x):  # <- here
        return x.sin()

    def block():
        one = compiled(step)
        for x in tensors:
            one(x)

    return Compiling(block)


@ON_GPU.positive("recompile")
def another_length_after_the_first():
    tensors = [torch.ones(n, device="cuda") for n in (8, 16)]

    def step(x):  # <- here
        return x * 2

    def block():
        one = compiled(step)
        for x in tensors:
            one(x)

    return Compiling(block)


@ON_GPU.positive("recompile")
def another_number_of_python_each_time():
    x = torch.ones(8, device="cuda")

    def step(x, scale):  # <- here
        return x * scale

    def block():
        one = compiled(step)
        for scale in (1, 2, "a", None):
            one(x, 2 if scale in ("a", None) else scale)

    return Compiling(block)


@ON_GPU.near_miss("recompile")
def one_length_again_and_again():
    x = torch.ones(8, device="cuda")

    def step(x):
        return x * 3

    def block():
        one = compiled(step)
        for _ in range(4):
            one(x)

    return Compiling(block)


@ON_GPU.near_miss("recompile")
def lengths_marked_as_dynamic():
    tensors = [torch.ones(n, device="cuda") for n in (8, 16, 24)]

    def step(x):
        return x * 4

    def block():
        one = torch.compile(step, backend="eager", dynamic=True)
        for x in tensors:
            one(x)

    return Compiling(block)


@ON_GPU.near_miss("recompile")
def two_functions_for_two_dtypes():
    tensors = [torch.ones(8, device="cuda", dtype=dtype) for dtype in (BF16, torch.float32)]

    def block():
        compiled(lambda x: x.sin())(tensors[0])
        compiled(lambda x: x.cos())(tensors[1])

    return Compiling(block)
