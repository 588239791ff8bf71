"""Looking into a model while it runs."""

import torch
from torch import nn


class Probe(nn.Module):
    """A model whose activations are watched at one place."""

    def __init__(self, model, name):
        super().__init__()
        self.model = model
        self.name = name
        self.last = None
        self.handle = self.watched().register_forward_hook(self.record)

    def watched(self):
        return self.model.get_submodule(self.name)

    def record(self, module, inputs, output):
        self.last = torch.linalg.vector_norm(output.detach())

    def forward(self, ids):
        return self.model(ids)

    def close(self):
        self.handle.remove()


@torch.no_grad()
def activation_norms(model, name, batches):
    """Norm of what a part of the model gives, for each batch."""
    probe = Probe(model, name)
    norms = []
    for ids in batches:
        probe(ids)
        norms.append(probe.last)
    probe.close()
    return torch.stack(norms)
