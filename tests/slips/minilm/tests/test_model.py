import dataclasses

import pytest
import torch

from minilm import MiniLM
from minilm.model import Cache


@pytest.mark.parametrize("batch", [1, 4])
def test_forward(model, ids, batch):
    with torch.no_grad():
        logits = model.eval()(ids[:batch])
    assert logits.shape == (batch, 33, 512)


def test_later_tokens_change_nothing(model, ids):
    changed = ids.clone()
    changed[:, 20:] = 7
    with torch.no_grad():
        before, after = model(ids), model(changed)
    torch.testing.assert_close(before[:, :20], after[:, :20])
    assert not torch.allclose(before[:, 20:], after[:, 20:])


def test_cache_gives_the_same_logits(model, ids):
    cache = Cache(model.config, len(ids))
    with torch.no_grad():
        whole = model(ids[:, :12])
        parts = [model(ids[:, :8], cache), *(model(ids[:, [at]], cache) for at in range(8, 12))]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-4, atol=1e-4)


def test_loss_reaches_every_weight(model, ids):
    model.train().loss(ids).backward()
    assert all(weight.grad is not None for weight in model.parameters())


def test_recomputing_gives_the_same_gradients(model, config, ids):
    other = MiniLM(dataclasses.replace(config, recompute=True))
    other.load_state_dict(model.state_dict())
    for one in (model, other):
        one.train().loss(ids).backward()
    torch.testing.assert_close(model.head.weight.grad, other.head.weight.grad)
