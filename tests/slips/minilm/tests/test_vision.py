import pytest
import torch

from minilm.augment import Augmentation, normalize
from minilm.vision import PatchEncoder, contrastive_loss


@pytest.fixture
def images():
    return torch.randint(256, (8, 3, 40, 40), dtype=torch.uint8)


def test_normalize(images):
    gray = torch.full((1, 3, 4, 4), 120, dtype=torch.uint8)
    assert normalize(gray).abs().max() < 0.4


def test_augmentation(images):
    one, two = Augmentation(32, seed=1)(images), Augmentation(32, seed=1)(images)
    assert one.shape == (8, 3, 32, 32)
    assert one.dtype == torch.float32
    assert torch.equal(one, two)


def test_two_views(images):
    encoder, augment = PatchEncoder(), Augmentation(32)
    loss = contrastive_loss(encoder(augment(images)), encoder(augment(images)))
    loss.backward()
    assert all(weight.grad is not None for weight in encoder.parameters())
