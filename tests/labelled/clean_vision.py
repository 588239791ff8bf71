"""Clean models of images and sound: training and inference, layouts, augmentation, metrics."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from labelled.clean import Clean
from torch import nn

EXAMPLES = Clean()


def _trained(model, inputs, labels, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=True, **options)

    def step():
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    return step


def _conv_norm(channels_in, channels, stride=1):
    return nn.Sequential(
        nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(inplace=True),
    )


class _Residual(nn.Module):
    def __init__(self, channels_in, channels, stride=1):
        super().__init__()
        self.body = nn.Sequential(
            _conv_norm(channels_in, channels, stride),
            nn.Conv2d(channels, channels, 3, 1, 1, bias=False),
            nn.BatchNorm2d(channels),
        )
        self.shortcut = nn.Conv2d(channels_in, channels, 1, stride, bias=False)

    def forward(self, x):
        return F.relu(self.body(x) + self.shortcut(x))


def _resnet():
    return nn.Sequential(
        _conv_norm(3, 8),
        _Residual(8, 8),
        _Residual(8, 16, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 4),
    )


@EXAMPLES.clean
def classifier_of_small_images():
    model = nn.Sequential(
        nn.Conv2d(3, 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 5 * 5, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )
    return _trained(model, torch.randn(4, 3, 32, 32), torch.randint(10, (4,)), momentum=0.9)


@EXAMPLES.clean
def residual_network_trained_and_evaluated():
    model, images, labels = _resnet(), torch.randn(8, 3, 16, 16), torch.randint(4, (8,))
    train = _trained(model, images, labels, momentum=0.9)

    def epoch():
        model.train()
        train()
        model.eval()
        with torch.no_grad():
            model(images).argmax(1).eq(labels).sum().item()

    return epoch


@EXAMPLES.clean
def residual_network_in_channels_last():
    model = _resnet().to(memory_format=torch.channels_last)
    images = torch.randn(8, 3, 16, 16).contiguous(memory_format=torch.channels_last)
    return _trained(model, images, torch.randint(4, (8,)))


@EXAMPLES.clean
def transfer_to_a_new_head():
    body, head = _resnet()[:-1], nn.Linear(16, 2)
    body.requires_grad_(requires_grad=False).eval()
    optimizer = torch.optim.SGD(head.parameters(), lr=1e-3, momentum=0.9, foreach=True)
    images, labels = torch.randn(8, 3, 16, 16), torch.randint(2, (8,))

    def step():
        optimizer.zero_grad()
        F.cross_entropy(head(body(images)), labels).backward()
        optimizer.step()

    return step


@EXAMPLES.clean
def segmentation_with_skips():
    down, deep = _conv_norm(3, 8), _conv_norm(8, 16, 2)
    up, last = nn.ConvTranspose2d(16, 8, 2, 2), _conv_norm(16, 8)
    head = nn.Conv2d(8, 2, 1)
    parameters = nn.ModuleList([down, deep, up, last, head]).parameters()
    optimizer = torch.optim.AdamW(parameters, fused=True)
    images, masks = torch.randn(2, 3, 16, 16), torch.randint(2, (2, 16, 16))

    def step():
        wide = down(images)
        joined = torch.cat((wide, up(deep(wide))), dim=1)
        optimizer.zero_grad()
        F.cross_entropy(head(last(joined)), masks).backward()
        optimizer.step()

    return step


@EXAMPLES.clean
def style_with_instance_norms():
    model = nn.Sequential(
        nn.ReflectionPad2d(1),
        nn.Conv2d(3, 8, 3, bias=False),
        nn.InstanceNorm2d(8, affine=True),
        nn.ReLU(),
    )
    optimizer = torch.optim.Adam(model.parameters(), foreach=True)
    images = torch.rand(2, 3, 16, 16)

    def step():
        optimizer.zero_grad()
        features = model(images).flatten(2)
        (features @ features.mT / features[0].numel()).square().mean().backward()
        optimizer.step()

    return step


@EXAMPLES.clean
def variational_autoencoder():
    encoder, decoder = nn.Linear(64, 16), nn.Linear(8, 64)
    parameters = [*encoder.parameters(), *decoder.parameters()]
    optimizer = torch.optim.Adam(parameters, foreach=True)
    images = torch.rand(16, 64)

    def step():
        mean, log_variance = encoder(images).chunk(2, dim=1)
        code = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        loss = F.binary_cross_entropy_with_logits(decoder(code), images, reduction="sum")
        loss = loss - 0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


@EXAMPLES.clean
def twins():
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 16))
    optimizer = torch.optim.Adam(model.parameters(), foreach=True)
    anchor, same, other = (torch.randn(4, 1, 8, 8) for _ in range(3))

    def step():
        optimizer.zero_grad()
        F.triplet_margin_loss(model(anchor), model(same), model(other)).backward()
        optimizer.step()

    return step


@EXAMPLES.clean
def augmentation_of_a_batch():
    images = torch.randint(256, (16, 3, 16, 16), dtype=torch.uint8)
    mean, std = torch.tensor([0.5, 0.4, 0.3]).view(3, 1, 1), torch.full((3, 1, 1), 0.2)

    def augment():
        batch = images.float().div_(255).sub_(mean).div_(std)
        flipped = torch.rand(16, 1, 1, 1) < 0.5
        batch = torch.where(flipped, batch.flip(3), batch)
        shift = F.affine_grid(
            torch.eye(2, 3).expand(16, 2, 3), [16, 3, 16, 16], align_corners=False
        )
        return F.grid_sample(batch, shift, align_corners=False)

    return augment


@EXAMPLES.clean
def bytes_that_become_floats_batch_by_batch():
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 4))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    images = torch.randint(256, (48, 3, 8, 8), dtype=torch.uint8)
    labels = torch.randint(4, (48,))

    def epoch():
        for batch, wanted in zip(images.split(4), labels.split(4), strict=True):
            optimizer.zero_grad()
            F.cross_entropy(model(batch.float() / 255), wanted).backward()
            optimizer.step()

    return epoch


@EXAMPLES.clean
def transformer_of_patches():
    patches, token = nn.Conv2d(3, 32, 4, 4), nn.Parameter(torch.zeros(1, 1, 32))
    place = nn.Parameter(torch.zeros(1, 17, 32))
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
    encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).eval()
    head, images = nn.Linear(32, 10), torch.randn(2, 3, 16, 16)

    @torch.inference_mode()
    def infer():
        x = patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((token.expand(2, -1, -1), x), dim=1) + place
        return head(encoder(x)[:, 0]).softmax(-1)

    return infer


@EXAMPLES.clean
def spectrum_of_a_sound():
    sound, window = torch.randn(2, 4000), torch.hann_window(256)
    bank = torch.rand(40, 129)

    @torch.no_grad()
    def features():
        spectrum = torch.stft(sound, 256, 128, window=window, return_complex=True)
        mel = bank @ spectrum.abs().square()
        cepstrum = torch.fft.rfft(mel.clamp(min=1e-6).log(), dim=1).real
        back = torch.istft(spectrum, 256, 128, window=window)
        return cepstrum, back

    return features


@EXAMPLES.clean
def confusion_of_a_classifier():
    model, images, labels = _resnet().eval(), torch.randn(24, 3, 8, 8), torch.randint(4, (24,))

    @torch.inference_mode()
    def evaluate():
        confusion = torch.zeros(4, 4, dtype=torch.long)
        for batch, wanted in zip(images.split(2), labels.split(2), strict=True):
            predicted = model(batch).argmax(1)
            confusion += torch.bincount(4 * wanted + predicted, minlength=16).view(4, 4)
        return (confusion.diagonal() / confusion.sum(1).clamp(min=1)).tolist()

    return evaluate
