import torch

from minilm import generate
from minilm.generate import choose, rank, sequence_scores


def test_greedy(model, ids):
    tokens = generate(model.eval(), ids[:2, :8], 16)
    assert tokens.shape == (2, 24)
    assert torch.equal(tokens[:, :8], ids[:2, :8])
    with torch.no_grad():
        again = model(tokens[:, :-1])[:, 7:].argmax(-1)
    assert torch.equal(tokens[:, 8:], again)


def test_sampling_repeats_with_its_seed(model, ids):
    one, two = (
        generate(model.eval(), ids[:2, :4], 6, 0.8, torch.Generator().manual_seed(1))
        for _ in range(2)
    )
    assert torch.equal(one, two)


def test_cold_choice_is_the_likeliest():
    logits = torch.tensor([[0.0, 3.0, 1.0]])
    assert choose(logits, 0).item() == 1
    assert choose(logits, 0.01, torch.Generator().manual_seed(0)).item() == 1


def test_scores_are_losses(model, ids):
    scores = sequence_scores(model.eval(), ids)
    with torch.no_grad():
        expected = -model.loss(ids) * 32
    torch.testing.assert_close(scores.mean(), expected)


def test_best_first(model, ids):
    ranked = rank(model.eval(), list(ids))
    scores = sequence_scores(model, torch.stack(ranked))
    assert (scores.diff() <= 1e-3).all()
