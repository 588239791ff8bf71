"""What the host would read within an optimizer's step: its counters stay on the host."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.live import captured
from torch import nn

from pytest_torchprof.analysis.estimates import host_reads


class Clipped(torch.optim.Optimizer):
    """An optimizer of a user's, that reads the norm of each gradient."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update all parameters."""
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad, alpha=-1 / (1 + p.grad.norm().item()))


def step(model: nn.Module, make: Callable[[Any], Any]) -> Callable[[], None]:
    """A training step, the optimizer's counters of which are there already."""
    optimizer, x = make(model.parameters()), torch.ones(4, 8)

    def run() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    run()
    return run


def counted(block: Callable[[], Any], folder: Path) -> int:
    return host_reads(captured(block, folder)).total


@pytest.mark.parametrize(
    "name",
    [
        "SGD",
        "Adam",
        "AdamW",
        "NAdam",
        "RAdam",
        "Adamax",
        "Adagrad",
        "Adadelta",
        "RMSprop",
        "Rprop",
        "ASGD",
    ],
)
@pytest.mark.parametrize("foreach", [False, True])
def test_counters_of_torchs_optimizers_are_no_reads(
    name: str, foreach: bool, tmp_path: Path
) -> None:
    make = getattr(torch.optim, name)
    block = step(nn.Linear(8, 2), lambda parameters: make(parameters, foreach=foreach))
    assert counted(block, tmp_path) == 0


@pytest.mark.parametrize("make", [Clipped, torch.optim.Adafactor])
def test_norms_that_a_step_reads_count(make: Any, tmp_path: Path) -> None:
    """Adafactor reads the norm of a parameter, and that of its update."""
    reads = {Clipped: 2, torch.optim.Adafactor: 4}[make]
    assert counted(step(nn.Linear(8, 2), make), tmp_path) == reads


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam])
def test_what_a_closure_reads_counts(make: Any, tmp_path: Path) -> None:
    model, x = nn.Linear(8, 2), torch.ones(4, 8)
    optimizer = make(model.parameters(), lr=0.1)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        if loss > 0:
            loss.item()
        return loss

    optimizer.step(closure)
    assert counted(lambda: optimizer.step(closure), tmp_path) == 2


def test_what_a_hook_of_a_step_reads_counts(tmp_path: Path) -> None:
    model = nn.Linear(8, 2)

    def make(parameters: Any) -> torch.optim.Optimizer:
        optimizer = torch.optim.Adam(parameters)
        optimizer.register_step_post_hook(lambda *_: model.weight.norm().item())
        return optimizer

    assert counted(step(model, make), tmp_path) == 1


X, EYE = torch.rand(4, 5), torch.eye(4)


@pytest.mark.parametrize(
    ("block", "reads"),
    [
        (lambda: torch.normal(X, X), 2),  # checked by both functions that torch calls
        (lambda: torch.normal(X, 1.0), 0),
        (EYE.to_sparse, 1),
        (EYE.to_sparse_csr, 2),
        (lambda: torch.isin(torch.arange(4), torch.arange(99)), 2),
        (lambda: torch.isin(torch.arange(4), torch.arange(2)), 0),
        (lambda: torch.histc(X, 4), 2),
        (lambda: torch.histc(X, 4, 0.0, 1.0), 0),
        (lambda: torch.segment_reduce(X[0], "sum", lengths=torch.tensor([2, 3])), 2),
        (lambda: torch.multinomial(X, 2), 0),
        (lambda: X.quantile(0.5), 0),
        (lambda: X.nanquantile(0.5), 0),
        (lambda: torch.where(X > 0), 1),
        (lambda: torch.where(X > 0, X, 0.0), 0),
        (lambda: torch.argwhere(X), 1),
        (lambda: torch.combinations(X[0]), 2),
        (lambda: torch.unique(X), 1),
        (lambda: torch.allclose(X, X), 1),
        (lambda: torch.isclose(X, X), 0),
        (X.nan_to_num, 0),
        (lambda: torch.cdist(X, X), 0),
        (lambda: torch.tensor_split(X, torch.tensor([1, 2])), 0),
        (lambda: X.repeat_interleave(torch.tensor([1, 2, 1, 1]), 0), 2),
        (lambda: X.repeat_interleave(torch.tensor([1, 2, 1, 1]), 0, output_size=5), 0),
        (lambda: X.clone().masked_scatter_(X > 0.5, X), 0),
        (lambda: X.clone().masked_fill_(X > 0.5, 0.0), 0),
    ],
)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_each_reads_as_on_a_device(block: Callable[[], Any], reads: int, tmp_path: Path) -> None:
    block()
    assert reads == counted(block, tmp_path)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_an_encoder_reads_whether_its_mask_is_left_aligned(tmp_path: Path) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 1).eval()
    mask = torch.tensor([[False, False, True]] * 2)

    @torch.no_grad()
    def block() -> None:
        encoder(torch.ones(2, 3, 8), src_key_padding_mask=mask)

    block()
    assert 1 == counted(block, tmp_path)
