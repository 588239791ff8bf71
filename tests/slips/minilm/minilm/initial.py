"""Initial weights, and stored ones."""

import torch
from torch import nn


def initialize(model, spread=0.02):
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=spread)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    nn.init.normal_(model.embedding.positions, std=spread)


def save(model, file):
    torch.save({"config": model.config, "weights": model.state_dict()}, file)


def load(file):
    """The model that was saved: not initialized, as its weights are read."""
    from minilm.model import MiniLM

    stored = torch.load(file, weights_only=False)
    model = MiniLM(stored["config"], initialized=False)
    model.load_state_dict(stored["weights"])
    return model.eval()
