import torch

from minilm.vectors import WordVectors, pairs, train_vectors


def test_pairs_are_neighbors():
    middle, others = pairs(torch.arange(10))
    assert ((middle - others).abs() <= 2).all()
    assert len(middle) == 24


def test_a_pass_lowers_the_loss():
    tokens = torch.arange(600) % 20
    vectors = WordVectors(5000)
    first = train_vectors(vectors, tokens, 5000)
    assert train_vectors(vectors, tokens, 5000) < first
