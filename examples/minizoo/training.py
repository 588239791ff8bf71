"""A supervised training loop: data set, loader, clipping, schedule."""

import math
from collections.abc import Iterable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler


class Stripes(Dataset[tuple[Tensor, Tensor]]):
    """Noisy colour gratings; the class of an image is the direction of its stripes."""

    def __init__(
        self, length: int, num_classes: int, size: int, generator: torch.Generator
    ) -> None:
        self.labels = torch.arange(length) % num_classes
        angle = self.labels[:, None, None, None] * (math.pi / num_classes)
        phase = torch.rand(length, 3, 1, 1, generator=generator) * (2 * math.pi)
        axis = torch.linspace(-1.0, 1.0, size)
        along = axis * angle.cos() + axis[:, None] * angle.sin()
        noise = torch.randn(length, 3, size, size, generator=generator)
        images = torch.sin(8.0 * along + phase) + 0.3 * noise
        self.images = images.contiguous(memory_format=torch.channels_last)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int | list[int]) -> tuple[Tensor, Tensor]:
        return self.images[index], self.labels[index]


def make_loader(
    dataset: Stripes,
    batch_size: int,
    generator: torch.Generator,
    num_workers: int = 0,
) -> DataLoader[tuple[Tensor, Tensor]]:
    """A shuffling loader that reads a batch by one indexing call, not sample by sample."""
    sampler = RandomSampler(dataset, generator=generator)
    return DataLoader(
        dataset,
        sampler=BatchSampler(sampler, batch_size, drop_last=True),
        batch_size=None,
        num_workers=num_workers,
        pin_memory=torch.cuda.is_available(),
        generator=generator,
    )


def train_epoch(
    model: nn.Module,
    loader: Iterable[tuple[Tensor, Tensor]],
    optimizer: torch.optim.Optimizer,
    scheduler: LRScheduler,
    max_grad_norm: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Train on each batch once; return the losses and the gradient norms before clipping.

    Both stay on the device until the end, so that no step waits for the one before it.
    """
    model.train()
    device = next(model.parameters()).device
    losses, norms = [], []
    for batch in loader:
        images, labels = (tensor.to(device, non_blocking=True) for tensor in batch)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm))
        optimizer.step()
        scheduler.step()
        losses.append(loss.detach())
    return torch.stack(losses), torch.stack(norms)


@torch.inference_mode()
def count_correct(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """The number of images which the model, in eval mode, assigns to their class."""
    model.eval()
    predicted: Tensor = model(images).argmax(1)
    return (predicted == labels).sum()
