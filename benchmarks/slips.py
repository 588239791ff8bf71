"""What rules find on a CPU, each beside what its page says to do instead.

A maker sets an example up and returns the slip and its fix: two functions that do the same work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Body = Callable[[], object]
Pair = tuple[Body, Body]

#: (rule, maker) of every example, in the order in which they are defined.
SLIPS: list[tuple[str, Callable[[], Pair]]] = []


def slip(rule: str) -> Callable[[Callable[[], Pair]], Callable[[], Pair]]:
    """The function below makes an example of a rule and its fix."""

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


@slip("grad-not-none")
def _gradients_filled_with_zeros() -> Pair:
    import torch

    def training(*, to_none: bool) -> Body:
        model = _model(256, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batch = torch.randn(2, 256)

        def body() -> None:
            optimizer.zero_grad(set_to_none=to_none)
            model(batch).square().mean().backward()
            optimizer.step()

        return body

    return training(to_none=False), training(to_none=True)


@slip("sync-dataloader")
def _images_decoded_in_the_loop() -> Pair:
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Files(Dataset[torch.Tensor]):
        """Each item takes what a small JPEG takes to be decoded and cropped."""

        def __len__(self) -> int:
            return 64

        def __getitem__(self, index: int) -> torch.Tensor:
            image = torch.full((256, 256), float(index))
            for _ in range(20):
                image = image.sin().roll(1)
            return image[:64, :64]

    model = _model(64, 12)

    def epoch(**options: Any) -> Body:
        loader = DataLoader(Files(), batch_size=8, **options)

        def body() -> None:
            for batch in loader:
                for _ in range(8):
                    _step(model, batch)

        return body

    return epoch(), epoch(num_workers=1, persistent_workers=True)


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


@slip("conv-bias-batchnorm")
def _bias_before_a_norm() -> Pair:
    import torch
    from torch import nn

    def training(*, bias: bool) -> Body:
        layers = [
            nn.Sequential(nn.Conv2d(16, 16, 1, bias=bias), nn.BatchNorm2d(16)) for _ in range(6)
        ]
        model, batch = nn.Sequential(*layers), torch.randn(8, 16, 32, 32)
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
