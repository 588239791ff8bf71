"""A small language model, its training, and what is around it."""

from minilm.config import Config
from minilm.generate import generate
from minilm.model import MiniLM
from minilm.train import Trainer

__all__ = ["Config", "MiniLM", "Trainer", "generate"]
