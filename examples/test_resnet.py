"""ResNet-18 of reduced width: inference in channels_last, and batch norms folded away."""

from typing import Any

import pytest
import torch
from minizoo.resnet import ResNet, fold_batch_norms
from torch import Tensor, nn

pytestmark = [
    pytest.mark.no_antipatterns,
    pytest.mark.allow_antipatterns("host-sync", reason="the assertions read what they check"),
    pytest.mark.allow_antipatterns("launch-bound", reason="it is small, to run on a CPU"),
]


@pytest.fixture
def model(device: torch.device) -> ResNet:
    """A network in eval mode whose batch norms have statistics as after training."""
    model = ResNet(num_classes=10, width=16)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.get_buffer("running_mean"), std=0.1)
            nn.init.uniform_(module.get_buffer("running_var"), 0.5, 1.5)
    return model.to(device).eval()


@pytest.fixture
def images(device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(4, 3, 64, 64, generator=generator)
    return images.to(device, memory_format=torch.channels_last)


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.max_flops("200 MFLOP")
@pytest.mark.max_peak_cpu_bytes("2 MiB")
@pytest.mark.max_kernels(200)
@pytest.mark.max_syncs(1)
@pytest.mark.max_launches(150)
@pytest.mark.max_bound_ms(0.09, on="H100 SXM")
@pytest.mark.max_host_reads(1)
def test_inference_is_repeatable(model: ResNet, images: Tensor, batch: int) -> None:
    images = images[:batch]
    with torch.inference_mode():
        logits = model(images)
        again = model(images)
    assert logits.shape == (batch, 10)
    torch.testing.assert_close(again, logits, rtol=0, atol=0)


def test_feature_maps_stay_channels_last(model: ResNet, images: Tensor) -> None:
    with torch.inference_mode():
        features = model.features(images)
    assert features.shape == (4, 128, 2, 2)
    assert features.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.max_ops(0, op="aten::batch_norm")
def test_folded_batch_norms_cost_no_operators(
    torchprof: Any, model: ResNet, images: Tensor, tolerance: float
) -> None:
    with torch.inference_mode():
        expected = model(images)
        fold_batch_norms(model)
        with torchprof:
            folded = model(images)
    torch.testing.assert_close(folded, expected, rtol=tolerance, atol=tolerance)
    torchprof.assert_expected_inline("""\
flops   88.5 MFLOP
""")
