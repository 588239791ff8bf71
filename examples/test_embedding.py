"""A click predictor with embedding tables: interaction, sparse updates, training, serving."""

import pytest
import torch
from minizoo.dlrm import DLRM, DotInteraction, make_optimizers
from torch import Tensor

pytestmark = [
    pytest.mark.no_antipatterns,
    pytest.mark.allow_antipatterns(
        "host-sync", reason="sparse gradients are as long as they are, and assertions read"
    ),
    pytest.mark.allow_antipatterns("launch-bound", reason="it is small, to run on a CPU"),
]

TABLE_ROWS = (1000, 500, 2000, 100)
BATCH, BAG, DENSE = 64, 8, 13


@pytest.fixture
def model(device: torch.device) -> DLRM:
    return DLRM(TABLE_ROWS, num_dense=DENSE).to(device)


@pytest.fixture
def batch(device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Dense features, ids of each table and random clicks."""
    generator = torch.Generator().manual_seed(1)
    dense = torch.randn(BATCH, DENSE, generator=generator)
    ids = [torch.randint(rows, (BATCH, BAG), generator=generator) for rows in TABLE_ROWS]
    clicked = torch.randint(2, (BATCH,), generator=generator).float()
    return dense.to(device), torch.stack(ids, dim=1).to(device), clicked.to(device)


def train_step(
    model: DLRM,
    batch: tuple[Tensor, Tensor, Tensor],
    optimizers: tuple[torch.optim.Optimizer, ...],
) -> Tensor:
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss = model.loss(*batch)
    loss.backward()  # type: ignore[no-untyped-call]
    for optimizer in optimizers:
        optimizer.step()
    return loss.detach()


def test_interaction_is_the_dot_product_of_every_pair(
    device: torch.device, tolerance: float
) -> None:
    with device:
        vectors = torch.randn(5, 3, 8)
        expected = [(vectors[:, i] * vectors[:, j]).sum(1) for i, j in [(1, 0), (2, 0), (2, 1)]]
        found = DotInteraction(3)(vectors)
    torch.testing.assert_close(found, torch.stack(expected, dim=1), rtol=tolerance, atol=tolerance)


def test_a_step_changes_only_rows_that_were_looked_up(
    model: DLRM, batch: tuple[Tensor, Tensor, Tensor]
) -> None:
    before = model.tables.weight.detach().clone()
    train_step(model, batch, make_optimizers(model, lr=1e-2))
    changed = (model.tables.weight.detach() != before).any(dim=1)
    looked_up = torch.zeros_like(changed)
    looked_up[(batch[1] + model.table_starts).flatten()] = True
    assert torch.equal(changed, looked_up)


@pytest.mark.max_flops("40 MFLOP")
@pytest.mark.max_peak_cpu_bytes("2 MiB")
@pytest.mark.max_launches(1000)
@pytest.mark.max_bound_ms(0.65, on="H100 SXM")
@pytest.mark.max_host_reads(14)
def test_training_memorises_one_batch(model: DLRM, batch: tuple[Tensor, Tensor, Tensor]) -> None:
    optimizers = make_optimizers(model, lr=1e-2)
    losses = torch.stack([train_step(model, batch, optimizers) for _ in range(12)])
    assert losses.isfinite().all()
    assert losses[-1] < 0.3 * losses[0]


@pytest.mark.max_ops(300)
@pytest.mark.max_flops("1.2 MFLOP")
def test_serving_scores_each_sample_on_its_own(
    model: DLRM, batch: tuple[Tensor, Tensor, Tensor], tolerance: float
) -> None:
    dense, ids, _ = batch
    model.eval()
    with torch.inference_mode():
        together = model(dense, ids)
        alone = model(dense[:1], ids[:1])
    assert together.shape == (BATCH,)
    torch.testing.assert_close(alone, together[:1], rtol=tolerance, atol=tolerance)
