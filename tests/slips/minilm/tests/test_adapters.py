import torch

from minilm.adapters import SharedLayers, adapt, merge


def test_only_adapters_are_trained(model, ids):
    adapt(model, ["up", "down"])
    model.loss(ids).backward()
    trained = {name for name, weight in model.named_parameters() if weight.grad is not None}
    assert trained
    assert all(name.endswith(("left", "right")) for name in trained)


def test_merging_changes_nothing(model, ids):
    adapt(model, ["out"])
    with torch.no_grad():
        before = model(ids)
        torch.testing.assert_close(merge(model)(ids), before)


def test_shared_layers():
    layers = SharedLayers(64, depth=6)
    layers(torch.randn(16, 64)).square().mean().backward()
    assert sum(weight.grad is not None for weight in layers.parameters()) == 2
