import torch
from torch import nn

from minilm import MiniLM, Trainer
from minilm.train import encode, evaluate, learning_rate


def test_a_step_changes_the_weights(model, ids):
    before = model.head.weight.detach().clone()
    loss = Trainer(model).step(ids)
    assert loss.isfinite()
    assert not torch.equal(before, model.head.weight)


def test_loss_falls(model, ids):
    trainer = Trainer(model, steps=6)
    first = trainer.step(ids)
    trainer.fit([ids] * 5)
    assert trainer.step(ids) < first
    assert len(trainer.entropies) == 7


def test_learning_rate_rises_and_falls():
    rates = [learning_rate(step, 20) for step in range(20)]
    assert rates.index(max(rates)) in (3, 4)
    assert rates[-1] < 0.1 * max(rates)


def test_evaluate(model, ids):
    found = evaluate(model, ids.split(2))
    assert 300 < found["perplexity"] < 800
    assert 0 <= found["accuracy"] < 0.1


def test_evaluation_does_not_depend_on_batches(model, ids):
    whole, parts = evaluate(model, [ids]), evaluate(model, ids.split(4))
    torch.testing.assert_close(torch.tensor(whole["perplexity"]), torch.tensor(parts["perplexity"]))


def test_encode(model, ids):
    vectors = encode(model.eval(), ids.split(1))
    assert vectors.shape == (8, 64)
    cosines = nn.functional.cosine_similarity(vectors[:1], vectors[1:])
    assert (cosines < 1).all()


def test_training_learns_a_cycle(config):
    model = MiniLM(config)
    ids = torch.arange(33).repeat(4, 1) % 8
    trainer = Trainer(model, steps=8)
    trainer.fit([ids] * 8)
    assert model.loss(ids).item() < 6
