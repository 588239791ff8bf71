import torch

from minilm.augment import MASK, mask_tokens
from minilm.data import Corpus, Windows, make_loader, token_counts


def test_windows_cover_the_corpus():
    corpus = Corpus(length=256)
    windows = Windows(corpus, width=32, masked=0)
    assert torch.equal(torch.cat(list(windows)), corpus.tokens)


def test_loader_gives_each_window_once():
    corpus = Corpus(length=2048)
    loader = make_loader(Windows(corpus, width=32, masked=0))
    counts = token_counts(loader, corpus.vocabulary)
    assert torch.equal(counts, torch.bincount(corpus.tokens, minlength=corpus.vocabulary))


def test_mask_share():
    masked = mask_tokens(torch.full((10_000,), 5), 0.1)
    assert 0.08 < (masked == MASK).float().mean() < 0.12
