"""Augmentation of tokens and of images."""

import numpy as np
import torch

MASK = 0
MEAN = np.array([0.485, 0.456, 0.406], dtype=np.float32)
SPREAD = np.array([0.229, 0.224, 0.225], dtype=np.float32)


def mask_tokens(ids, share, generator=None):
    """The tokens, a share of them replaced by the mask."""
    drawn = torch.rand(ids.shape, generator=generator)
    return ids.masked_fill(drawn < share, MASK)


def normalize(images):
    """Images of bytes, as floats of mean 0 and variance 1."""
    mean = torch.from_numpy(MEAN).view(3, 1, 1)
    spread = torch.from_numpy(SPREAD).view(3, 1, 1)
    return (images / 255 - mean) / spread


def crop(images, size, generator=None):
    """The same random square of each image."""
    high, wide = images.shape[-2:]
    top = torch.randint(high - size + 1, (), generator=generator).item()
    left = torch.randint(wide - size + 1, (), generator=generator).item()
    return images[..., top : top + size, left : left + size]


def mirror(images, generator=None):
    """About half of the images, mirrored."""
    drawn = torch.rand(len(images), 1, 1, 1, generator=generator)
    return torch.where(drawn < 0.5, images.flip(-1), images)


def jitter(images, strength=0.1, generator=None):
    """Images with another brightness each."""
    factor = 1 + strength * torch.randn(len(images), 1, 1, 1, generator=generator)
    return images * factor


class Augmentation:
    """What is done to a batch of images before each step."""

    def __init__(self, size, seed=0):
        self.size = size
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, images):
        images = crop(images, self.size, self.generator)
        images = normalize(images)
        images = jitter(mirror(images, self.generator), generator=self.generator)
        return images.to(torch.get_default_dtype())
