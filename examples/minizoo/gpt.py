"""A GPT-style decoder: pre-norm blocks, fused causal attention, tied embeddings."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


@dataclass(frozen=True)
class GPTConfig:
    """Sizes of a model; multiples of 8 suit the matrix units of every accelerator."""

    vocab_size: int = 128
    context: int = 64
    n_layer: int = 3
    n_head: int = 4
    width: int = 64


class CausalSelfAttention(nn.Module):
    """Multi-head attention in which a position sees itself and the past."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.n_head = config.n_head
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.proj = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(x).unflatten(-1, (3, self.n_head, -1))  # batch, time, 3, head, channel
        q, k, v = qkv.transpose(1, 3).unbind(2)  # each: batch, head, time, channel
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y: Tensor = self.proj(heads.transpose(1, 2).flatten(2))
        return y


class Block(nn.Module):
    """Attention and a four times wider MLP, each normalised first and added to its input."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width)
        self.attention = CausalSelfAttention(config)
        self.norm2 = nn.LayerNorm(config.width)
        self.mlp = nn.Sequential(
            nn.Linear(config.width, 4 * config.width),
            nn.GELU(approximate="tanh"),
            nn.Linear(4 * config.width, config.width),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        y: Tensor = x + self.mlp(self.norm2(x))
        return y


class GPT(nn.Module):
    """Maps token ids of shape (batch, time) to logits of shape (batch, time, vocabulary)."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocab_size, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.blocks = nn.Sequential(*(Block(config) for _ in range(config.n_layer)))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocab_size, bias=False)
        self.head.weight = self.tokens.weight
        self._init_weights()

    def _init_weights(self) -> None:
        """Draw weights as GPT-2 does, smaller where a layer adds to the residual stream."""
        residual_std = 0.02 / math.sqrt(2 * self.config.n_layer)
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                adds_to_residual = name.endswith(("attention.proj", "mlp.2"))
                nn.init.normal_(module.weight, std=residual_std if adds_to_residual else 0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        positions = torch.arange(ids.shape[1], device=ids.device)
        x = self.tokens(ids) + self.positions(positions)
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        return logits

    def loss(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy of the token after each position."""
        return F.cross_entropy(self(ids).flatten(0, 1), targets.flatten())

    @torch.inference_mode()
    def generate(self, ids: Tensor, new_tokens: int) -> Tensor:
        """Extend `ids` by the most likely token, `new_tokens` times."""
        for _ in range(new_tokens):
            logits = self(ids[:, -self.config.context :])
            ids = torch.cat((ids, logits[:, -1:].argmax(-1)), dim=1)
        return ids


def make_adamw(model: nn.Module, lr: float, weight_decay: float = 0.1) -> torch.optim.AdamW:
    """Fused AdamW that decays matrices and leaves biases and norms alone."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), fused=True)
