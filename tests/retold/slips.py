"""Slips that pass every functional test of the retold project, and what must be said of them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

PROJECT = Path(__file__).parent / "project"


class Slip(NamedTuple):
    """One edit of one file of the project.

    ``test`` is the one test that must turn red, and ``says`` what its failure must contain: the
    region or the scope, and the operator, the line, or the module that is to blame.
    """

    file: str
    before: str
    after: str
    test: str
    says: tuple[str, ...]


SLIPS = {
    "diffusers: what was offloaded is kept": Slip(
        "test_diffusers.py",
        "                del loaded",
        "                self.kept = [*getattr(self, 'kept', []), loaded]",
        "test_peaks_of_plain_sliced_and_offloaded_calls",
        ("offloaded.peak_cpu_bytes", "aten::clone"),
    ),
    "diffusers: slices of all heads": Slip(
        "test_diffusers.py",
        "self.stored[1][-1].slice_size = 1",
        "self.slice_size = 1",
        "test_peaks_of_plain_sliced_and_offloaded_calls",
        ("sliced.peak_cpu_bytes", "plain.peak_cpu_bytes", "aten::clone"),
    ),
    "torchao: floats are kept beside the quantized weights": Slip(
        "test_torchao.py",
        "        scale = weight.abs().amax() / 127",
        "        self.floats = weight.clone()\n        scale = weight.abs().amax() / 127",
        "test_memory_phase_by_phase",
        ("quantize.peak_cpu_bytes", "aten::clone"),
    ),
    "vllm: a print breaks the graph": Slip(
        "test_vllm.py",
        "        return x + self.down(torch.relu(self.up(x)))",
        "        up = self.up(x)\n        print(end='')\n"
        "        return x + self.down(torch.relu(up))",
        "test_one_graph_for_the_model",
        ("graphs", "graph_breaks", "`print`"),
    ),
    "vllm: the cache does not outlive a start": Slip(
        "test_vllm.py",
        "    with fresh_cache():\n        start()\n        start()",
        "    for _ in range(2):\n        with fresh_cache():\n            start()",
        "test_a_warm_start_compiles_nothing",
        ("compile_cache_hits", "compile_cache_misses"),
    ),
    "torchrec: the length of a batch is compiled in": Slip(
        "test_torchrec.py",
        "    torch._dynamo.decorators.mark_unbacked(values, 0)\n",
        "",
        "test_jagged_batches_compile_once",
        ("recompiles", "values", "size mismatch"),
    ),
    "litgpt: dropout is left on": Slip(
        "test_litgpt.py",
        "is_causal=True)",
        "is_causal=True, dropout_p=0.1)",
        "test_flash_attention_runs",
        ("_scaled_dot_product_flash_attention_for_cpu", "aten::_scaled_dot_product_attention_math"),
    ),
    "lightning: the loop logs the norm of gradients": Slip(
        "test_lightning.py",
        "            self.logged.append(loss.detach())",
        "            self.logged.append(loss.detach())\n"
        "            self.norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])",
        "test_the_trainer_does_what_a_plain_loop_does",
        ("trainer.ops", "aten::linalg_vector_norm"),
    ),
    "lightning: a hook walks through Python objects": Slip(
        "test_lightning.py",
        "            for callback in self.callbacks:",
        "            sum(map(hash, range(400_000)))\n            for callback in self.callbacks:",
        "test_the_trainer_is_not_slower",
        ("a is plain_loop, b is trainer_loop", "slower by more than 15 %"),
    ),
    "sglang: the server reads the prompt again for each token": Slip(
        "test_sglang.py",
        "            new, cache = self.decoder.attend(new, cache)",
        "            new, _ = self.decoder.attend(ids := torch.cat([ids, new], 1))",
        "test_the_server_is_as_fast_as_its_decoder",
        ("b is serve", "slower by more than 25 %"),
    ),
    "sglang: a request waits in the queue": Slip(
        "test_sglang.py",
        "        self.waiting.append(ids)",
        "        time.sleep(0.5)\n        self.waiting.append(ids)",
        "test_tokens_per_second",
        ("tokens_per_s", "serve", "20 1/s"),
    ),
    "sglang: old tokens are projected again": Slip(
        "test_sglang.py",
        "            new, cache = decoder.attend(new, cache)\n    for lap",
        "            decoder.attend(prompt)\n"
        "            new, cache = decoder.attend(new, cache)\n    for lap",
        "test_work_of_a_token",
        ("decode", "flops", "aten::addmm"),
    ),
    "pytorch: a softmax written by hand": Slip(
        "test_pytorch.py",
        "return x.softmax(-1)",
        "return x.exp() / x.exp().sum(-1, keepdim=True)",
        "test_bytes_of_a_softmax_and_a_product",
        ("softmax.moved_bytes", "aten::exp"),
    ),
    "accelerate: losses are summed with their graphs": Slip(
        "test_accelerate.py",
        "        total += loss.detach()",
        "        total = total + model(batch).square().mean()",
        "test_peak_memory_of_each_epoch",
        ("peak_cpu_bytes[region=epoch]", "aten::clamp_min", "in model."),
    ),
    "accelerate: a history grows from epoch to epoch": Slip(
        "test_accelerate.py",
        "            train_epoch(model, optimizer, batches)",
        "            train_epoch(model, optimizer, batches)\n"
        "            batches = [batch.clone() for batch in batches] + batches[:1]",
        "test_peak_memory_of_each_epoch",
        ("epoch[1].flops", "epoch[0].flops", "aten::mm"),
    ),
    "peft: rows one by one": Slip(
        "test_peft.py",
        "            if rows:\n"
        "                out[rows] += self.up[name](self.down[name](x[rows]))",
        "            for row in rows:\n"
        "                out[row] += self.up[name](self.down[name](x[row]))",
        "test_a_mixed_batch_costs_little_more",
        ("mixed.ops", "base.ops", "aten::mm"),
    ),
    "torchtune: the place is a number": Slip(
        "test_torchtune.py",
        "        at = self.at[: k.shape[2]]\n",
        "        self.length = getattr(self, 'length', 0) + k.shape[2]\n"
        "        at = self.at[: k.shape[2]]\n",
        "test_the_cache_is_compiled_once",
        ("recompiles", "length"),
    ),
}


def planted(name: str, folder: Path) -> Slip:
    """Put a slip into a copy of the project."""
    slip = SLIPS[name]
    file = folder / slip.file
    text = file.read_text("utf-8")
    assert 1 == text.count(slip.before), f"{slip.file} has no {slip.before!r} any more"
    file.write_text(text.replace(slip.before, slip.after), "utf-8")
    return slip
