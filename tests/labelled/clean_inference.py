"""Clean inference: batches, decoding with a cache, beams, conversion of weights."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F  # noqa: N812
from labelled.clean import Clean
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

EXAMPLES = Clean()
WORDS, WIDTH, HEADS = 64, 32, 4


@EXAMPLES.clean
def batches_in_inference_mode():
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).eval()
    inputs = torch.randn(96, 16)

    @torch.inference_mode()
    def infer():
        return torch.cat([model(batch) for batch in inputs.split(8)]).softmax(-1)

    return infer


@EXAMPLES.clean
def sampled_decoding_without_a_cache():
    model = nn.Sequential(nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)).eval()

    @torch.inference_mode()
    def decode():
        ids = torch.zeros(2, 1, dtype=torch.long)
        for _ in range(12):
            logits = model(ids[:, -8:])[:, -1] / 0.8
            best, where = logits.topk(10)
            drawn = torch.multinomial(best.softmax(-1), 1)
            ids = torch.cat((ids, where.gather(1, drawn)), dim=1)
        return ids

    return decode


@EXAMPLES.clean
def beams():
    model = nn.Sequential(nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)).eval()

    @torch.inference_mode()
    def search():
        ids, score = torch.zeros(4, 1, dtype=torch.long), torch.tensor([0.0, -9.0, -9.0, -9.0])
        for _ in range(12):
            following = score[:, None] + model(ids[:, -1]).log_softmax(-1)
            score, where = following.flatten().topk(4)
            parent = torch.div(where, WORDS, rounding_mode="floor")
            ids = torch.cat((ids[parent], (where % WORDS)[:, None]), dim=1)
        return ids[0]

    return search


@EXAMPLES.clean
def encoder_on_its_fast_path():
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 64, batch_first=True)
    model = nn.TransformerEncoder(layer, 3).eval()
    x, padding = torch.randn(2, 16, WIDTH), torch.zeros(2, 16, dtype=torch.bool)
    padding[1, 10:] = True

    @torch.inference_mode()
    def encode():
        return model(x, src_key_padding_mask=padding).mean(1)

    return encode


@EXAMPLES.clean
def search_by_similarity():
    model, texts = nn.EmbeddingBag(WORDS, WIDTH).eval(), torch.randint(WORDS, (40, 6))
    index = F.normalize(torch.randn(200, WIDTH), dim=1)

    @torch.inference_mode()
    def search():
        return (F.normalize(model(texts), dim=1) @ index.T).topk(5)

    return search


@EXAMPLES.clean
def weights_converted_once():
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(12))).eval()
    x = torch.randn(4, WIDTH)

    def convert():
        light = copy.deepcopy(model).bfloat16()
        with torch.inference_mode():
            return light(x.bfloat16()).float()

    return convert


@EXAMPLES.clean
def weights_rounded_to_bytes():
    weight, x = torch.randn(WIDTH, WIDTH), torch.randn(4, WIDTH)

    @torch.inference_mode()
    def infer():
        scale = weight.abs().amax(1, keepdim=True) / 127
        rounded = (weight / scale).round().clamp(-128, 127).to(torch.int8)
        return F.linear(x, rounded.float() * scale)

    return infer


@EXAMPLES.clean
def convolution_with_its_norm_folded_in():
    conv, norm = nn.Conv2d(3, 8, 3).eval(), nn.BatchNorm2d(8).eval()
    images = torch.randn(2, 3, 16, 16)

    @torch.inference_mode()
    def infer():
        return F.relu(fuse_conv_bn_eval(conv, norm)(images))

    return infer


@EXAMPLES.clean
def norms_in_evaluation_keep_their_biases():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).eval()
    images = torch.randn(2, 3, 16, 16)

    @torch.inference_mode()
    def infer():
        return model(images)

    return infer


@EXAMPLES.clean
def ensemble_of_models():
    models = [nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)) for _ in range(5)]
    inputs = torch.randn(8, 16)

    @torch.inference_mode()
    def infer():
        return torch.stack([model(inputs) for model in models]).softmax(-1).mean(0)

    return infer


@EXAMPLES.clean
def noise_taken_away_step_by_step():
    model, betas = nn.Linear(17, 16).eval(), torch.linspace(1e-4, 0.02, 12)
    kept = (1 - betas).cumprod(0).tolist()

    @torch.inference_mode()
    def sample():
        x = torch.randn(4, 16)
        for number in reversed(range(12)):
            at = torch.full((4, 1), number / 12)
            noise = model(torch.cat((x, at), dim=1))
            x = (x - (1 - kept[number]) ** 0.5 * noise) / kept[number] ** 0.5
            x = x + 0.1 * torch.randn_like(x)
        return x

    return sample


@EXAMPLES.clean
def sequences_of_unequal_length():
    net = nn.GRU(8, 16, batch_first=True).eval()
    texts = [torch.randn(length, 8) for length in (9, 7, 4, 2)]

    @torch.inference_mode()
    def encode():
        packed = nn.utils.rnn.pack_sequence(texts)
        out, _ = net(packed)
        return nn.utils.rnn.pad_packed_sequence(out, batch_first=True)[0]

    return encode


@EXAMPLES.clean
def window_that_slides_over_a_stream():
    model, chunks = nn.Conv1d(1, 4, 5).eval(), torch.randn(12, 1, 1, 64)

    @torch.inference_mode()
    def stream():
        tail, out = torch.zeros(1, 1, 4), []
        for chunk in chunks.unbind(0):
            window = torch.cat((tail, chunk), dim=2)
            tail = window[:, :, -4:]
            out.append(model(window))
        return torch.cat(out, dim=2)

    return stream
