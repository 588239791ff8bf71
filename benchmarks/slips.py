"""Slips that rules find on a CPU, each with the fix from the rule's page.

A maker sets up an example and returns the slip and its fix: two functions that do the same work.
"""

from __future__ import annotations

import math
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from typing import Any

Body = Callable[[], object]
Pair = tuple[Body, Body]

#: (rule, maker) of every example, in the order in which they are defined.
SLIPS: list[tuple[str, Callable[[], Pair]]] = []


def slip(rule: str) -> Callable[[Callable[[], Pair]], Callable[[], Pair]]:
    """Decorate a function that makes an example of a rule and its fix."""

    def add(make: Callable[[], Pair]) -> Callable[[], Pair]:
        SLIPS.append((rule, make))
        return make

    return add


def _model(width: int = 64, depth: int = 4) -> Any:
    from torch import nn

    blocks = [nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(depth)]
    return nn.Sequential(*blocks, nn.Linear(width, 8))


def _step(model: Any, batch: Any) -> None:
    model.zero_grad()
    model(batch).square().mean().backward()


# ------------------------------------------------------------------------------------ training


@slip("single-tensor-optimizer")
def _adam_of_many_small_parameters() -> Pair:
    import torch

    def training(**options: Any) -> Body:
        model = _model(16, 40)
        optimizer = torch.optim.AdamW(model.parameters(), **options)
        batch = torch.randn(4, 16)

        def body() -> None:
            _step(model, batch)
            optimizer.step()

        return body

    return training(foreach=False), training(fused=True)


def _stepping(make: Callable[[Any], Any]) -> Body:
    import torch

    model = _model(16, 20)
    optimizer, batch = make(model.parameters()), torch.randn(4, 16)

    def step() -> None:
        _step(model, batch)
        optimizer.step()

    return step


@slip("single-tensor-optimizer")
def _rmsprop_of_many_small_parameters() -> Pair:
    import torch

    kind = torch.optim.RMSprop
    return _stepping(lambda p: kind(p, lr=1e-6)), _stepping(lambda p: kind(p, 1e-6, foreach=True))


@slip("single-tensor-optimizer")
def _momentum_of_a_few_large_parameters() -> Pair:
    import torch

    def training(**options: Any) -> Body:
        weights = [torch.zeros(512, 512, requires_grad=True) for _ in range(4)]
        optimizer = torch.optim.SGD(weights, lr=0.1, momentum=0.9, **options)
        for weight in weights:
            weight.grad = torch.ones(512, 512)
        return optimizer.step

    return training(), training(fused=True)


def _copies(width: int = 32, depth: int = 12) -> tuple[Any, list[Any], list[Any]]:
    """A model, its parameters, and as many other tensors."""
    model = _model(width, depth)
    weights = [p.detach() for p in model.parameters()]
    return model, weights, [p.clone() for p in weights]


@slip("per-parameter-loop")
def _average_of_weights() -> Pair:
    import torch

    _, weights, averages = _copies()

    def slip() -> None:
        for average, weight in zip(averages, weights, strict=True):
            average.mul_(0.99).add_(weight, alpha=0.01)

    return slip, lambda: torch._foreach_lerp_(averages, weights, 0.01)


@slip("per-parameter-loop")
def _descent_by_hand() -> Pair:
    import torch

    model, weights, _ = _copies(16, 20)
    batch = torch.randn(4, 16)

    def step(update: Callable[[list[Any]], object]) -> Body:
        def run() -> None:
            _step(model, batch)
            update([p.grad for p in model.parameters()])

        return run

    def slip(grads: list[Any]) -> None:
        for weight, grad in zip(weights, grads, strict=True):
            weight.sub_(1e-6 * grad)

    return step(slip), step(lambda grads: torch._foreach_add_(weights, grads, alpha=-1e-6))


@slip("per-parameter-loop")
def _norms_that_are_read() -> Pair:
    import torch

    model, weights, _ = _copies()
    batch = torch.randn(4, 32)

    def slip() -> float:
        model(batch)
        return math.sqrt(sum(w.norm(2).item() ** 2 for w in weights))

    def fixed() -> object:
        model(batch)
        norms = torch._foreach_norm(weights)  # noqa: SLF001 - there is no other
        return torch.linalg.vector_norm(torch.stack(norms)).item()

    return slip, fixed


@slip("per-parameter-loop")
def _optimizer_of_ones_own() -> Pair:
    import torch

    class Lion(torch.optim.Optimizer):
        def __init__(self, params: Any, *, lists: bool) -> None:
            super().__init__(params, {})
            self.lists = lists
            self.all = [p for group in self.param_groups for p in group["params"]]
            self.averages = [torch.zeros_like(p) for p in self.all]

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ARG002
            grads = [p.grad for p in self.all]
            if self.lists:
                updates = torch._foreach_lerp(self.averages, grads, 0.1)  # noqa: SLF001
                torch._foreach_sign_(updates)
                torch._foreach_add_(self.all, updates, alpha=-1e-6)
                torch._foreach_lerp_(self.averages, grads, 0.01)
                return
            for p, average, grad in zip(self.all, self.averages, grads, strict=True):
                update = average.clone().mul_(0.9).add_(grad, alpha=0.1).sign_()
                p.add_(update, alpha=-1e-6)
                average.mul_(0.99).add_(grad, alpha=0.01)

    return _stepping(lambda p: Lion(p, lists=False)), _stepping(lambda p: Lion(p, lists=True))


@slip("grad-not-none")
def _gradients_filled_with_zeros() -> Pair:
    return _training(360, 2, to_none=False), _training(360, 2, to_none=True)


@slip("grad-not-none")
def _many_gradients_filled_with_zeros() -> Pair:
    return _training(32, 32, to_none=False), _training(32, 32, to_none=True)


@slip("grad-not-none")
def _gradients_kept_in_a_forward_pass() -> Pair:
    return _training(512, 4, 512, to_none=False), _training(512, 4, 512, to_none=True)


def _training(width: int, depth: int, rows: int = 2, *, to_none: bool) -> Body:
    import torch

    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(depth)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(rows, width)

    def body() -> None:
        model.zero_grad()  # each run starts without gradients, so its peak has them all
        for _ in range(3):
            optimizer.zero_grad(set_to_none=to_none)
            model(batch).square().mean().backward()
            optimizer.step()

    return body


@slip("sync-dataloader")
def _images_decoded_in_each_epoch() -> Pair:
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Files(Dataset[torch.Tensor]):
        """Each item takes as long as decoding and cropping a small JPEG."""

        def __len__(self) -> int:
            return 64

        def __getitem__(self, index: int) -> torch.Tensor:
            image = torch.full((256, 256), float(index))
            for _ in range(20):
                image = image.sin().roll(1)
            return image[:64, :64]

    model = _model(64, 12)

    def training(**options: Any) -> Body:
        def body() -> None:
            loader = DataLoader(Files(), batch_size=8, **options)
            for _ in range(3):
                for batch in loader:
                    for _ in range(8):
                        _step(model, batch)

        return body

    workers = max(1, min(2, (multiprocessing.cpu_count() or 3) - 1))
    return training(), training(num_workers=workers, persistent_workers=True)


@slip("starved-loader")
def _one_worker_that_reads() -> Pair:
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Remote(Dataset[torch.Tensor]):
        """Each item is waited for, as if it came over the network."""

        def __len__(self) -> int:
            return 192

        def __getitem__(self, index: int) -> torch.Tensor:
            time.sleep(0.01)
            return torch.full((64, 64), float(index))

    model = _model(64, 12)

    def epoch(workers: int) -> Body:
        def body() -> None:
            for batch in DataLoader(Remote(), batch_size=8, num_workers=workers):
                for _ in range(8):
                    _step(model, batch)

        return body

    return epoch(1), epoch(4)


# ------------------------------------------------------------------------------------ graphs


@slip("missing-no-grad")
def _validation_with_graphs() -> Pair:
    import torch

    model = _model(128, 12).eval()
    batches = [torch.randn(64, 128) for _ in range(8)]

    def validate() -> list[Any]:
        return [model(batch) for batch in batches]

    def without_graph() -> list[Any]:
        with torch.inference_mode():
            return validate()

    return validate, without_graph


@slip("accumulated-graph")
def _validation_loss_with_its_graphs() -> Pair:
    import torch

    model = _model(128, 12)
    batches = [torch.randn(64, 128) for _ in range(8)]

    def validation(detached: bool) -> Body:
        def body() -> Any:
            total: Any = 0.0
            for batch in batches:
                loss = model(batch).square().mean()
                total += loss.detach() if detached else loss
            return total

        return body

    return validation(False), validation(True)


@slip("backward-twice")
def _heads_one_by_one() -> Pair:
    import torch
    from torch import nn

    trunk, heads = _model(128, 6), nn.ModuleList(nn.Linear(8, 1) for _ in range(2))
    batch = torch.randn(32, 128)

    def training(*, together: bool) -> Body:
        def body() -> None:
            trunk.zero_grad()
            features = trunk(batch)
            losses = [head(features).square().mean() for head in heads]
            if together:
                (losses[0] + losses[1]).backward()
            else:
                losses[0].backward(retain_graph=True)
                losses[1].backward()

        return body

    return training(together=False), training(together=True)


# ------------------------------------------------------------------------------------ loops


@slip("for-loop-indexing")
def _rows_scaled_one_by_one() -> Pair:
    import torch

    x, scale = torch.randn(300, 64), torch.rand(300)

    def loop() -> Any:
        out = torch.empty_like(x)
        for i in range(len(x)):
            out[i] = x[i] * scale[i]
        return out

    return loop, lambda: x * scale[:, None]


@slip("for-loop-indexing")
def _rows_of_an_iteration_normalised() -> Pair:
    import torch

    x = torch.randn(300, 64)
    return (
        lambda: torch.stack([row / row.norm() for row in x]),
        lambda: x / x.norm(dim=1, keepdim=True),
    )


# ------------------------------------------------------------------------- layers and copies


@slip("for-loop-indexing")
def _prototypes_by_masks() -> Pair:
    import torch

    features, labels = torch.randn(2000, 32), torch.randint(40, (2000,))

    def slip() -> object:
        return torch.stack([features[labels == c].sum(0) for c in range(40)])

    def fixed() -> object:
        return torch.zeros(40, 32).index_add_(0, labels, features)

    return slip, fixed


@slip("for-loop-indexing")
def _samples_one_by_one_through_a_model() -> Pair:
    import torch

    model, x = _model().eval(), torch.randn(200, 64)

    @torch.inference_mode()
    def slip() -> object:
        return torch.stack([model(sample) for sample in x])

    @torch.inference_mode()
    def fixed() -> object:
        return model(x)

    return slip, fixed


@slip("for-loop-indexing")
def _covariance_added_up() -> Pair:
    import torch

    samples = torch.randn(300, 16)

    def slip() -> object:
        total = torch.zeros(16, 16)
        for sample in samples:
            total += torch.outer(sample, sample)
        return total

    return slip, lambda: samples.T @ samples


@slip("growing-cat")
def _predictions_kept_as_one_tensor() -> Pair:
    import torch

    batches = [torch.randn(64, 8) for _ in range(200)]

    def slip() -> object:
        seen = torch.empty(0, 8)
        for batch in batches:
            seen = torch.cat([seen, batch])
        return seen

    return slip, lambda: torch.cat(list(batches))


@slip("growing-cat")
def _few_rows_put_below_one_another() -> Pair:
    import torch

    rows = [torch.randn(1, 4) for _ in range(60)]

    def slip() -> object:
        path = torch.zeros(1, 4)
        for row in rows:
            path = torch.vstack((path, row))
        return path

    return slip, lambda: torch.cat([torch.zeros(1, 4), *rows])


@slip("growing-cat")
def _cache_of_keys_and_values() -> Pair:
    import torch
    from torch.nn import functional

    prompt, steps = torch.randn(1, 8, 512, 64), 64
    q = k = torch.randn(1, 8, 1, 64)

    def slip() -> None:
        keys = values = prompt
        for _ in range(steps):
            keys, values = torch.cat((keys, k), dim=-2), torch.cat((values, k), dim=-2)
            functional.scaled_dot_product_attention(q, keys, values)

    def fixed() -> None:
        keys, values = torch.empty(2, 1, 8, 512 + steps, 64)
        keys[:, :, :512] = values[:, :, :512] = prompt
        for at in range(512, 512 + steps):
            keys[:, :, at] = values[:, :, at] = k[:, :, 0]
            functional.scaled_dot_product_attention(q, keys[:, :, : at + 1], values[:, :, : at + 1])

    return slip, fixed


class _Attention:
    """Layers of causal attention, whose last position decides; a cache if asked."""

    def __init__(self, *, cached: bool, layers: int = 4, width: int = 128) -> None:
        import torch

        torch.manual_seed(0)
        self.table = torch.randn(100, width)
        self.weights = torch.randn(layers, width, 3 * width) / width**0.5
        self.cached = cached

    def __call__(self, prompt: int, steps: int) -> None:
        import torch
        from torch.nn import functional

        ids = torch.zeros(1, prompt, dtype=torch.long)
        caches: list[Any] = [None] * len(self.weights)
        seen = ids
        with torch.inference_mode():
            for _ in range(steps):
                x = functional.embedding(seen, self.table)
                for number, weight in enumerate(self.weights.unbind()):
                    q, k, v = torch.matmul(x, weight).chunk(3, -1)
                    if self.cached:
                        if (old := caches[number]) is not None:
                            k, v = torch.cat((old[0], k), 1), torch.cat((old[1], v), 1)
                        caches[number] = k, v
                    causal = q.shape[1] > 1  # a single position sees all of the cache
                    x = x + functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
                token = torch.matmul(x[:, -1], self.table.T).argmax(-1, keepdim=True)
                ids = torch.cat((ids, token), 1)
                seen = token if self.cached else ids


@slip("decode-without-cache")
def _text_after_a_prompt() -> Pair:
    return (
        lambda: _Attention(cached=False)(64, 48),
        lambda: _Attention(cached=True)(64, 48),
    )


@slip("decode-without-cache")
def _text_after_a_short_prompt() -> Pair:
    return (
        lambda: _Attention(cached=False)(8, 64),
        lambda: _Attention(cached=True)(8, 64),
    )


@slip("conv-bias-batchnorm")
def _bias_before_a_norm() -> Pair:
    return _with_and_without_bias(64, (8, 64, 8, 8), kernel_size=1)


@slip("conv-bias-batchnorm")
def _bias_of_a_wider_kernel_before_a_norm() -> Pair:
    return _with_and_without_bias(8, (4, 8, 8, 8), kernel_size=3)


def _with_and_without_bias(channels: int, shape: tuple[int, ...], *, kernel_size: int) -> Pair:
    """Of small results: beside the time for large ones, a bias is lost in noise."""
    import torch
    from torch import nn

    def training(*, bias: bool) -> Body:
        model = nn.Sequential()
        for _ in range(6):
            model.append(nn.Conv2d(channels, channels, kernel_size, padding="same", bias=bias))
            model.append(nn.BatchNorm2d(channels))
        batch = torch.randn(shape)
        return lambda: _step(model, batch)

    return training(bias=True), training(bias=False)


@slip("contiguous-copy")
def _keys_made_contiguous_in_each_step() -> Pair:
    import torch

    keys = torch.randn(8, 256, 16, 64).transpose(1, 2)
    queries = [torch.randn(8, 16, 1, 64) for _ in range(16)]

    def each() -> list[Any]:
        return [query @ keys.contiguous().mT for query in queries]

    def once() -> list[Any]:
        kept = keys.contiguous()
        return [query @ kept.mT for query in queries]

    return each, once


@slip("repeated-cast")
def _table_cast_in_each_layer() -> Pair:
    import torch

    table = torch.randn(2048, 64, dtype=torch.float64)
    states = [torch.randn(2048, 64) for _ in range(16)]

    def each() -> list[Any]:
        return [state * table.float() for state in states]

    def once() -> list[Any]:
        cast = table.float()
        return [state * cast for state in states]

    return each, once


# ------------------------------------------------------------------------------------ debugging


@slip("debug-left-on")
def _anomaly_detection() -> Pair:
    import torch

    model, batch = _model(), torch.randn(16, 64)

    def epoch() -> None:
        for _ in range(3):
            _step(model, batch)

    def looking() -> None:
        with torch.autograd.set_detect_anomaly(True):
            epoch()

    return looking, epoch


@slip("debug-left-on")
def _new_tensors_filled() -> Pair:
    import torch

    image = torch.randn(3, 512, 512)

    def frames() -> list[Any]:
        return [torch.add(image, image, out=torch.empty(3, 512, 512)) for _ in range(8)]

    def deterministic() -> list[Any]:
        torch.use_deterministic_algorithms(True)
        try:
            return frames()
        finally:
            torch.use_deterministic_algorithms(False)

    return deterministic, frames


# ------------------------------------------------------------------------------------ language


@slip("manual-attention")
def _attention_with_a_causal_mask() -> Pair:
    import torch

    query, key, value = torch.randn(3, 2, 8, 256, 64).unbind()
    mask = torch.full((256, 256), -math.inf).triu(1)

    def by_hand() -> Any:
        scores = query @ key.transpose(-2, -1) / math.sqrt(64)
        return torch.softmax(scores + mask, dim=-1) @ value

    def fused() -> Any:
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(query, key, value, is_causal=True)

    return by_hand, fused


@slip("manual-attention")
def _attention_of_a_batch() -> Pair:
    import torch

    query, key, value = torch.randn(3, 8, 4, 128, 32).unbind()

    def by_hand() -> Any:
        weights = torch.softmax(query @ key.transpose(-2, -1) * 32**-0.5, dim=-1)
        return weights @ value

    def fused() -> Any:
        return torch.nn.functional.scaled_dot_product_attention(query, key, value)

    return by_hand, fused


@slip("all-logits")
def _head_over_a_prompt() -> Pair:
    import torch
    from torch import nn

    head = nn.Linear(256, 8000).requires_grad_(False)
    hidden = torch.randn(1, 128, 256)
    return lambda: head(hidden)[:, -1].argmax(-1), lambda: head(hidden[:, -1]).argmax(-1)


@slip("all-logits")
def _head_in_training() -> Pair:
    import torch
    import torch.nn.functional as F  # noqa: N812 - torch's own name for it
    from torch import nn

    head = nn.Linear(128, 2000)
    hidden, target = torch.randn(4, 64, 128, requires_grad=True), torch.randint(2000, (4,))

    def training(*, early: bool) -> Body:
        def body() -> None:
            head.zero_grad()
            logits = head(hidden[:, -1]) if early else head(hidden)[:, -1]
            F.cross_entropy(logits, target).backward()  # type: ignore[no-untyped-call]

        return body

    return training(early=False), training(early=True)


# ----------------------------------------------------------------------------------- precision


@slip("float64")
def _pictures_less_a_mean_of_numpys() -> Pair:
    import numpy as np
    import torch
    from torch import nn

    model, pictures = nn.Conv2d(3, 4, 3, stride=4), torch.rand(16, 3, 96, 96)
    mean = torch.from_numpy(np.array([0.5, 0.4, 0.4]))[:, None, None]
    single = mean.float()

    def slip() -> object:
        with torch.inference_mode():
            return model(((pictures - mean) / 0.2).float())

    def fixed() -> object:
        with torch.inference_mode():
            return model((pictures - single) / 0.2)

    return slip, fixed


@slip("float64")
def _loss_with_a_target_of_numpys() -> Pair:
    import numpy as np
    import torch
    from torch import nn

    model, x = nn.Linear(32, 512), torch.rand(512, 32)
    target = torch.from_numpy(np.random.default_rng(0).random((512, 512)))
    single = target.float()

    def step(goal: Any) -> Body:
        def run() -> None:
            model.zero_grad()
            ((model(x) - goal).abs() + 1).log().mean().backward()

        return run

    return step(target), step(single)


@slip("float64")
def _features_cast_at_the_end() -> Pair:
    import numpy as np
    import torch
    from torch import nn

    model, data = nn.Linear(256, 4), np.random.default_rng(0).random((2000, 256))

    def slip() -> object:
        with torch.inference_mode():
            return model(((torch.from_numpy(data) - 0.5).tanh() * 2).float())

    def fixed() -> object:
        with torch.inference_mode():
            return model((torch.from_numpy(data).float() - 0.5).tanh() * 2)

    return slip, fixed


# ------------------------------------------------------------------------------------ compilation


@slip("graph-break")
def _scale_that_is_read() -> Pair:
    import torch
    from torch import nn

    def layers() -> nn.Module:
        return nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))

    class Scaled(nn.Module):
        def __init__(self, *, reads: bool) -> None:
            super().__init__()
            self.reads, self.encoder, self.decoder = reads, layers(), layers()

        def forward(self, x: Any) -> Any:
            hidden = self.encoder(x)
            largest = hidden.abs().max()
            scaled = hidden / (largest.item() if self.reads else largest)
            return self.decoder(scaled).sin()

    batch = torch.randn(8, 32)

    def training(*, reads: bool) -> Body:
        model = Scaled(reads=reads)
        return _compiling(lambda: torch.compile(model)(batch).sum().backward())

    return training(reads=True), training(reads=False)


@slip("recompile")
def _factor_as_a_number() -> Pair:
    import torch

    batch = torch.randn(64, 32, requires_grad=True)

    def training(factors: Any) -> Body:
        def body() -> None:
            scaled = torch.compile(lambda x, factor: (x * factor).sin())
            for factor in factors:
                scaled(batch, factor).sum().backward()

        return _compiling(body)

    factors = (0.1, 0.2, 0.3)
    return training(factors), training(torch.tensor(factors))


def _compiling(body: Body) -> Body:
    """Compiles anew at each call."""
    import torch

    def compiling() -> None:
        torch.compiler.reset()
        torch.compiler.config.force_disable_caches = True
        body()

    return compiling


# ---------------------------------------------------------------------------------- communication


@slip("small-collectives")
def _gradients_reduced_one_by_one() -> Pair:
    import torch
    import torch.distributed as dist

    shapes = ((64, 64), (64,), (256,)) * 8
    gradients = [torch.ones(shape) for shape in shapes]

    def slip() -> None:
        for gradient in gradients:
            dist.all_reduce(gradient)

    def fixed() -> None:
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        parts = torch.split(flat, [gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    return _on_two_ranks(slip, fixed)


@slip("blocking-collective")
def _reduced_before_other_work() -> Pair:
    import torch
    import torch.distributed as dist

    bucket, weight = torch.ones(1 << 20), torch.randn(512, 512)

    def other_work() -> None:
        torch.relu(weight @ weight)
        time.sleep(0.01)  # stands for the next batch's way from storage

    def slip() -> None:
        dist.all_reduce(bucket, async_op=True).wait()
        other_work()

    def fixed() -> None:
        work = dist.all_reduce(bucket, async_op=True)
        other_work()
        work.wait()

    return _on_two_ranks(slip, fixed)


def _on_two_ranks(slip: Body, fixed: Body) -> Pair:
    """Both, in this process and in a forked one at once, which are the ranks of a gloo group."""
    import torch
    import torch.distributed as dist

    works = {True: slip, False: fixed}
    here, there = multiprocessing.Pipe()
    if dist.is_initialized():
        dist.destroy_process_group()
    store = f"file://{tempfile.mkdtemp()}/store"

    def other() -> None:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=store, rank=1, world_size=2)
        while True:
            works[there.recv()]()

    multiprocessing.get_context("fork").Process(target=other, daemon=True).start()
    dist.init_process_group("gloo", init_method=store, rank=0, world_size=2)

    def body(slips: bool) -> Body:
        def run() -> None:
            here.send(slips)
            works[slips]()

        return run

    return body(True), body(False)
