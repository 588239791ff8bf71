"""The sizes of a model."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    vocabulary: int = 512
    width: int = 64
    heads: int = 4
    layers: int = 2
    context: int = 64
    widening: int = 4
    recompute: bool = False  # saves memory in training, costs a second forward

    def __post_init__(self):
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is no multiple of heads {self.heads}")

    @property
    def head_width(self):
        return self.width // self.heads
