"""A click predictor after DLRM: embedding bags, MLPs and pairwise dot interaction."""

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


def make_mlp(sizes: Sequence[int]) -> nn.Sequential:
    """Linear layers of the given sizes, with ReLU between them."""
    layers: list[nn.Module] = []
    for size_in, size_out in pairwise(sizes):
        layers += [nn.Linear(size_in, size_out), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers[:-1])


class DotInteraction(nn.Module):
    """Dot products of all pairs of feature vectors, each pair once."""

    pairs: Tensor

    def __init__(self, num_vectors: int) -> None:
        super().__init__()
        rows, columns = torch.tril_indices(num_vectors, num_vectors, offset=-1)
        self.register_buffer("pairs", rows * num_vectors + columns, persistent=False)

    def forward(self, vectors: Tensor) -> Tensor:
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        return products.flatten(1).index_select(1, self.pairs)


class DLRM(nn.Module):
    """Maps dense features (batch, dense) and ids (batch, table, bag) to one logit a sample.

    All tables are stored in one `EmbeddingBag`, so one lookup serves them all.
    """

    table_starts: Tensor

    def __init__(
        self,
        table_rows: Sequence[int],
        num_dense: int,
        width: int = 16,
        hidden: int = 64,
    ) -> None:
        super().__init__()
        starts = torch.tensor([0, *table_rows[:-1]]).cumsum(0)
        self.register_buffer("table_starts", starts[:, None], persistent=False)
        self.tables = nn.EmbeddingBag(sum(table_rows), width, mode="sum", sparse=True)
        nn.init.normal_(self.tables.weight, std=width**-0.5)
        self.bottom = make_mlp((num_dense, hidden, width))
        self.interaction = DotInteraction(len(table_rows) + 1)
        num_pairs = len(table_rows) * (len(table_rows) + 1) // 2
        self.top = make_mlp((width + num_pairs, hidden, hidden, 1))

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        bags = self.tables((ids + self.table_starts).flatten(0, 1))
        profile = self.bottom(dense)
        vectors = torch.cat((profile[:, None], bags.unflatten(0, ids.shape[:2])), dim=1)
        features = torch.cat((profile, self.interaction(vectors)), dim=1)
        logits: Tensor = self.top(features).squeeze(1)
        return logits

    def loss(self, dense: Tensor, ids: Tensor, clicked: Tensor) -> Tensor:
        """Mean binary cross-entropy of the predicted clicks."""
        return F.binary_cross_entropy_with_logits(self(dense, ids), clicked)


def make_optimizers(model: DLRM, lr: float) -> tuple[torch.optim.Optimizer, ...]:
    """One optimizer for the sparse gradients of the tables and one for the dense rest."""
    dense = [*model.bottom.parameters(), *model.top.parameters()]
    return (
        torch.optim.SparseAdam(model.tables.parameters(), lr=lr),
        torch.optim.AdamW(dense, lr=lr, fused=True),
    )
