"""A GPT-style decoder: untrained loss, causality, overfitting, decoding, FLOPs of a step."""

import math
from typing import Any

import pytest
import torch
from minizoo.gpt import GPT, GPTConfig, make_adamw
from torch import Tensor

pytestmark = [
    pytest.mark.no_antipatterns,
    pytest.mark.allow_antipatterns("host-sync", reason="the assertions read what they check"),
    pytest.mark.allow_antipatterns("launch-bound", reason="it is small, to run on a CPU"),
]


@pytest.fixture
def model(device: torch.device) -> GPT:
    return GPT(GPTConfig()).to(device)


@pytest.fixture
def batch(model: GPT, device: torch.device) -> tuple[Tensor, Tensor]:
    """Four random sequences, and the same one token ahead as targets."""
    shape = (4, model.config.context + 1)
    generator = torch.Generator().manual_seed(1)
    sequences = torch.randint(model.config.vocab_size, shape, generator=generator).to(device)
    return sequences[:, :-1].contiguous(), sequences[:, 1:].contiguous()


def train_step(
    model: GPT, batch: tuple[Tensor, Tensor], optimizer: torch.optim.Optimizer
) -> Tensor:
    optimizer.zero_grad()
    loss = model.loss(*batch)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss.detach()


@pytest.mark.max_flops("100 MFLOP")
@pytest.mark.max_peak_cpu_bytes("1 MiB")
def test_untrained_model_predicts_a_uniform_distribution(
    model: GPT, batch: tuple[Tensor, Tensor]
) -> None:
    model.eval()
    with torch.inference_mode():
        loss = model.loss(*batch)
    assert loss.item() == pytest.approx(math.log(model.config.vocab_size), abs=0.1)


def test_logits_do_not_depend_on_later_tokens(model: GPT, batch: tuple[Tensor, Tensor]) -> None:
    model.eval()
    ids, _ = batch
    changed = ids.clone()
    changed[:, 40:] = 0
    with torch.inference_mode():
        before, after = model(ids), model(changed)
    torch.testing.assert_close(after[:, :40], before[:, :40])
    assert not torch.allclose(after[:, 40:], before[:, 40:])


@pytest.mark.max_flops("4 GFLOP")
@pytest.mark.max_peak_cpu_bytes("8 MiB")
@pytest.mark.max_estimated_cuda_bytes("8 MiB")
@pytest.mark.max_launches(1700)
@pytest.mark.max_bound_ms(1.1, on="H100 SXM")
@pytest.mark.max_host_reads(2)
@pytest.mark.max_syncs(2)
def test_training_overfits_one_batch(model: GPT, batch: tuple[Tensor, Tensor]) -> None:
    optimizer = make_adamw(model, lr=3e-3)
    losses = torch.stack([train_step(model, batch, optimizer) for _ in range(12)])
    assert losses.isfinite().all()
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.max_ops(5000)
def test_greedy_decoding_extends_the_prompt_repeatably(
    model: GPT, batch: tuple[Tensor, Tensor]
) -> None:
    model.eval()
    ids, _ = batch
    prompt = ids[:1, :16]
    text = model.generate(prompt, new_tokens=6)
    assert text.shape == (1, 22)
    assert torch.equal(text[:, :16], prompt)
    assert torch.equal(text, model.generate(prompt, new_tokens=6))


def test_train_step_flops_follow_from_the_model_size(
    torchprof: Any, model: GPT, batch: tuple[Tensor, Tensor]
) -> None:
    """A step costs 6 FLOPs a weight and token, and attention at most 14 a pair and channel."""
    optimizer = make_adamw(model, lr=1e-3)
    with torchprof:
        train_step(model, batch, optimizer)
    config = model.config
    matrices = [p for p in model.parameters() if p.ndim == 2 and p is not model.positions.weight]
    tokens = batch[0].numel()
    dense = 6 * tokens * sum(p.numel() for p in matrices)
    attention = 14 * tokens * config.context * config.width * config.n_layer
    assert torchprof.stats.flops <= dense + attention
