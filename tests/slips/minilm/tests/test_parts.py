import torch

from minilm.compiled import smooth_loss
from minilm.functions import quantize, squared_relu
from minilm.initial import load, save
from minilm.probe import activation_norms


def test_squared_relu_has_the_right_gradient():
    x = torch.randn(6, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(squared_relu, x)


def test_rounding_lets_gradients_pass():
    x = torch.randn(64, requires_grad=True)
    quantize(x).sum().backward()
    assert (x.grad == 1).all()
    assert len(quantize(x, bits=3).unique()) <= 8


def test_a_saved_model_is_the_same(model, ids, tmp_path):
    save(model, tmp_path / "model.pt")
    loaded = load(tmp_path / "model.pt")
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids), model.eval()(ids))


def test_one_norm_a_batch(model, ids):
    norms = activation_norms(model, "norm", ids.split(1))
    assert norms.shape == (8,)


def test_smooth_loss(ids):
    logits = torch.randn(8, 33, 512, requires_grad=True)
    smooth_loss(logits, ids).backward()
    assert logits.grad.isfinite().all()
