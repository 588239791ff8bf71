"""The steps of examples/: what users see first must be clean."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from labelled.clean import Clean
from torch.optim.lr_scheduler import OneCycleLR

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))

from minizoo.dlrm import DLRM, make_optimizers
from minizoo.gpt import GPT, GPTConfig, make_adamw
from minizoo.resnet import ResNet, fold_batch_norms
from minizoo.training import Stripes, count_correct, make_loader, train_epoch

EXAMPLES = Clean()
TABLE_ROWS = (1000, 500, 2000, 100)


def _text():
    ids = torch.randint(GPTConfig().vocab_size, (4, GPTConfig().context + 1))
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def _clicks():
    ids = [torch.randint(rows, (64, 8)) for rows in TABLE_ROWS]
    return torch.randn(64, 13), torch.stack(ids, dim=1), torch.randint(2, (64,)).float()


def _images(count):
    return torch.randn(count, 3, 32, 32).to(memory_format=torch.channels_last)


@EXAMPLES.clean
def example_of_text_training():
    model, batch = GPT(GPTConfig()), _text()
    optimizer = make_adamw(model, lr=1e-3)

    def steps():
        for _ in range(3):
            optimizer.zero_grad()
            model.loss(*batch).backward()
            optimizer.step()

    return steps


@EXAMPLES.clean
def example_of_text_scoring_and_decoding():
    model, (ids, targets) = GPT(GPTConfig()).eval(), _text()

    def decode():
        with torch.inference_mode():
            model.loss(ids, targets).item()
        model.generate(ids[:1, :16], new_tokens=12)

    return decode


@EXAMPLES.clean
def example_of_clicks_training():
    model, batch = DLRM(TABLE_ROWS, num_dense=13), _clicks()
    optimizers = make_optimizers(model, lr=1e-2)

    def steps():
        for _ in range(3):
            for optimizer in optimizers:
                optimizer.zero_grad()
            model.loss(*batch).backward()
            for optimizer in optimizers:
                optimizer.step()

    return steps


@EXAMPLES.clean
def example_of_clicks_serving():
    model, (dense, ids, _) = DLRM(TABLE_ROWS, num_dense=13).eval(), _clicks()

    @torch.inference_mode()
    def serve():
        return model(dense, ids), model(dense[:1], ids[:1])

    return serve


@EXAMPLES.clean
def example_of_images_inference():
    model, images = ResNet(num_classes=10, width=16).eval(), _images(2)

    @torch.inference_mode()
    def infer():
        return model(images), model.features(images)

    return infer


@EXAMPLES.clean
def example_of_images_with_norms_folded_in():
    model, images = ResNet(num_classes=10, width=16).eval(), _images(2)
    with torch.inference_mode():
        fold_batch_norms(model)

    @torch.inference_mode()
    def infer():
        return model(images)

    return infer


@EXAMPLES.clean
def example_of_batches_in_memory():
    data = Stripes(64, num_classes=4, size=16, generator=torch.Generator().manual_seed(1))
    model = ResNet(num_classes=4, width=8, blocks=(1, 1))
    batches = list(make_loader(data, 16, torch.Generator().manual_seed(2)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    scheduler = OneCycleLR(optimizer, max_lr=1e-2, total_steps=1000)

    def epoch():
        train_epoch(model, batches, optimizer, scheduler)
        count_correct(model, data.images, data.labels).item()

    return epoch
