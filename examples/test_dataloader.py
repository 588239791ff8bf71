"""A DataLoader training loop of a small convolutional network on synthetic images.

The loaders have no workers: the images are already in memory, where worker processes would only
add their start-up time, and the peak of live bytes would depend on when the workers deliver.
"""

import pytest
import torch
from minizoo.resnet import ResNet
from minizoo.training import Stripes, count_correct, make_loader, train_epoch
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR

pytestmark = [
    pytest.mark.no_antipatterns,
    pytest.mark.allow_antipatterns("sync-dataloader", reason="the data set is in memory"),
    pytest.mark.allow_antipatterns("host-sync", reason="the assertions read what they check"),
    pytest.mark.allow_antipatterns("launch-bound", reason="it is small, to run on a CPU"),
]


@pytest.fixture
def dataset() -> Stripes:
    return Stripes(128, num_classes=4, size=16, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def labelled(dataset: Stripes, device: torch.device) -> tuple[Tensor, Tensor]:
    """All images and labels, where the model is."""
    return dataset.images.to(device), dataset.labels.to(device)


@pytest.fixture
def model(device: torch.device) -> ResNet:
    return ResNet(num_classes=4, width=8, blocks=(1, 1)).to(device)


def shuffled_labels(dataset: Stripes, seed: int) -> list[list[int]]:
    loader = make_loader(dataset, 32, torch.Generator().manual_seed(seed))
    return [labels.tolist() for _, labels in loader]


def test_an_epoch_holds_every_sample_once(dataset: Stripes) -> None:
    loader = make_loader(dataset, 32, torch.Generator().manual_seed(2))
    batches = list(loader)
    assert len(batches) == len(loader) == 4
    images = torch.cat([images for images, _ in batches])
    torch.testing.assert_close(images.sum(dim=0), dataset.images.sum(dim=0))
    labels = torch.cat([labels for _, labels in batches])
    assert labels.bincount().tolist() == [32, 32, 32, 32]


def test_the_generator_decides_the_order_of_samples(dataset: Stripes) -> None:
    assert shuffled_labels(dataset, seed=2) == shuffled_labels(dataset, seed=2)
    assert shuffled_labels(dataset, seed=2) != shuffled_labels(dataset, seed=3)


@pytest.mark.max_flops("320 MFLOP")
@pytest.mark.max_peak_cpu_bytes("2 MiB")
def test_training_learns_the_direction_of_stripes(
    dataset: Stripes, labelled: tuple[Tensor, Tensor], model: ResNet
) -> None:
    epochs, peak_lr = 4, 2e-2
    loader = make_loader(dataset, 16, torch.Generator().manual_seed(2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak_lr, fused=True)
    scheduler = OneCycleLR(optimizer, max_lr=peak_lr, total_steps=epochs * len(loader))
    history = [train_epoch(model, loader, optimizer, scheduler) for _ in range(epochs)]
    losses = torch.stack([losses for losses, _ in history])
    assert losses[-1].mean() < 0.5 * losses[0].mean()
    assert scheduler.last_epoch == losses.numel()
    assert scheduler.get_last_lr()[0] < 0.1 * peak_lr
    correct = count_correct(model, *labelled)
    assert correct.item() >= 0.8 * len(dataset)


@pytest.mark.max_flops("72 MFLOP")
@pytest.mark.max_peak_cpu_bytes("1 MiB")
def test_gradients_are_clipped_to_the_given_norm(dataset: Stripes, model: ResNet) -> None:
    max_norm = 0.1
    loader = make_loader(dataset, 16, torch.Generator().manual_seed(2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    scheduler = OneCycleLR(optimizer, max_lr=1e-2, total_steps=len(loader))
    _, norms = train_epoch(model, loader, optimizer, scheduler, max_norm)
    assert (norms > max_norm).all()
    left = nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    assert left.item() == pytest.approx(max_norm, rel=1e-3)
