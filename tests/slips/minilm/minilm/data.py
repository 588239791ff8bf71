"""Texts as windows of tokens."""

import torch
from torch.utils.data import DataLoader, Dataset

from minilm.augment import mask_tokens


class Corpus:
    """A long text, as tokens: a Markov chain, so that there is something to learn."""

    def __init__(self, vocabulary=512, length=4096, seed=0):
        generator = torch.Generator().manual_seed(seed)
        jumps = torch.randint(1, 8, (length,), generator=generator)
        self.tokens = jumps.cumsum(0) % vocabulary
        self.vocabulary = vocabulary

    def __len__(self):
        return len(self.tokens)


class Windows(Dataset):
    """Pieces of a corpus, with some of their tokens masked."""

    def __init__(self, corpus, width, stride=None, masked=0.1):
        self.corpus = corpus
        self.width = width
        self.stride = stride or width
        self.masked = masked

    def __len__(self):
        return (len(self.corpus) - self.width) // self.stride + 1

    def __getitem__(self, at):
        if at >= len(self):
            raise IndexError(at)  # ends a loop over the windows
        start = at * self.stride
        window = self.corpus.tokens[start : start + self.width]
        generator = torch.Generator().manual_seed(at)
        return mask_tokens(window, self.masked, generator=generator)


def make_loader(dataset, batch_size=32, seed=0):
    return DataLoader(
        dataset,
        batch_size=batch_size,
        shuffle=True,
        generator=torch.Generator().manual_seed(seed),
        num_workers=2,
    )


def token_counts(loader, vocabulary):
    """How often each token occurs in an epoch."""
    counts = torch.zeros(vocabulary, dtype=torch.long)
    for ids in loader:
        counts += torch.bincount(ids.flatten(), minlength=vocabulary)
    return counts
