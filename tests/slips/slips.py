"""Slips that pass every functional test of ``minilm``, and changes that cost nothing."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import NamedTuple

PROJECT = Path(__file__).parent / "minilm"

MORE_OFTEN = "runs_more_often"
NEW = "new_operators"
LARGER = "larger_inputs"
DTYPE = "other_dtype"
KEPT = "kept_memory"
LOADER = "loader"
COMPILATION = "compilation"
FINDING = "finding"


class Edit(NamedTuple):
    """A text that occurs once in a file of the project, and what it becomes."""

    file: str
    old: str
    new: str


class Place(NamedTuple):
    """A function by its qualified name, and the text of a line of it, without indentation."""

    file: str
    function: str
    line: str


class Slip(NamedTuple):
    """What somebody did, the tests that show it, and what the first cause must say.

    There is more than one kind, or place, where each of them leads a reader to the slip. ``says``
    is a pattern that must occur in the first three lines of the failure.
    """

    edits: tuple[Edit, ...]
    tests: tuple[str, ...]
    kinds: tuple[str, ...]
    places: tuple[Place, ...]
    says: str


class Harmless(NamedTuple):
    """A change that costs nothing, and the tests that run what it touches."""

    edits: tuple[Edit, ...]
    tests: tuple[str, ...]


SLIPS = {
    "extra_clone": Slip(
        edits=(
            Edit(
                "minilm/model.py",
                "x = x + self.attention(self.before_attention(x), cache)",
                "x = x.clone() + self.attention(self.before_attention(x), cache)",
            ),
        ),
        tests=(
            "tests/test_model.py::test_forward",
            "tests/test_train.py::test_encode",
            "tests/test_train.py::test_evaluate",
        ),
        kinds=(NEW,),
        places=(Place("minilm/model.py", "Block.forward", "x = x.clone() + self.attention("),),
        says="clone",
    ),
    "host_read_in_a_loop": Slip(
        edits=(
            Edit(
                "minilm/train.py",
                "loss += F.cross_entropy(logits.flatten(0, 1), targets.flatten())",
                "loss += F.cross_entropy(logits.flatten(0, 1), targets.flatten()).item()",
            ),
        ),
        tests=("tests/test_train.py::test_evaluate",),
        kinds=(NEW, FINDING),
        places=(Place("minilm/train.py", "evaluate", "loss += F.cross_entropy("),),
        says="item|_local_scalar_dense",
    ),
    "float64_from_numpy": Slip(
        edits=(
            Edit(
                "minilm/augment.py",
                "MEAN = np.array([0.485, 0.456, 0.406], dtype=np.float32)",
                "MEAN = np.array([0.485, 0.456, 0.406])",
            ),
        ),
        tests=("tests/test_vision.py::test_augmentation",),
        kinds=(DTYPE,),
        places=(Place("minilm/augment.py", "normalize", "return (images / 255 - mean) / spread"),),
        says="float64|double",
    ),
    "lost_no_grad": Slip(
        edits=(Edit("minilm/train.py", "@torch.no_grad()\ndef encode", "def encode"),),
        tests=("tests/test_train.py::test_encode",),
        kinds=(FINDING, KEPT),
        places=(Place("minilm/train.py", "encode", "vectors = model.hidden(ids).mean(1)"),),
        says="no_grad|no-grad|graph",
    ),
    "loader_without_workers": Slip(
        edits=(Edit("minilm/data.py", "num_workers=2", "num_workers=0"),),
        tests=("tests/test_data.py::test_loader_gives_each_window_once",),
        kinds=(LOADER, FINDING),
        places=(
            Place("minilm/data.py", "token_counts", "for ids in loader:"),
            Place("minilm/data.py", "make_loader", "return DataLoader("),
        ),
        says="worker",
    ),
    "quadratic_cat": Slip(
        edits=(
            Edit("minilm/train.py", "found = []", "found = torch.empty(0, model.config.width)"),
            Edit(
                "minilm/train.py",
                "found.append(vectors)",
                "found = torch.cat([found, vectors])",
            ),
            Edit("minilm/train.py", "return torch.cat(found)", "return found"),
        ),
        tests=("tests/test_train.py::test_encode",),
        kinds=(NEW, MORE_OFTEN, FINDING),
        places=(Place("minilm/train.py", "encode", "found = torch.cat([found, vectors])"),),
        says="cat",
    ),
    "lost_cache": Slip(
        edits=(
            Edit(
                "minilm/generate.py",
                "logits = model(new, cache)[:, -1]",
                "logits = model(tokens[:, :at])[:, -1]",
            ),
        ),
        tests=(
            "tests/test_generate.py::test_greedy",
            "tests/test_generate.py::test_sampling_repeats_with_its_seed",
        ),
        kinds=(LARGER, FINDING),
        places=(Place("minilm/generate.py", "generate", "logits = model(tokens[:, :at])"),),
        says="larger|without-cache",
    ),
    "loop_over_a_batch": Slip(
        edits=(
            Edit(
                "minilm/generate.py",
                "scores = sequence_scores(model, torch.stack(candidates))",
                "scores = torch.cat([sequence_scores(model, one[None]) for one in candidates])",
            ),
        ),
        tests=("tests/test_generate.py::test_best_first",),
        kinds=(MORE_OFTEN,),
        places=(Place("minilm/generate.py", "rank", "scores = torch.cat([sequence_scores("),),
        says="sequence_scores",
    ),
    "attention_by_hand": Slip(
        edits=(
            Edit(
                "minilm/model.py",
                "        mixed = F.scaled_dot_product_attention"
                "(query, key, value, is_causal=causal)\n",
                "        scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5\n"
                "        if causal:\n"
                "            later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)\n"
                "            scores = scores.masked_fill(later, -torch.inf)\n"
                "        mixed = scores.softmax(-1) @ value\n",
            ),
        ),
        tests=(
            "tests/test_model.py::test_forward",
            "tests/test_model.py::test_loss_reaches_every_weight",
        ),
        kinds=(NEW, FINDING),
        places=(
            Place("minilm/model.py", "Attention.forward", "scores = query @ key"),
            Place("minilm/model.py", "Attention.forward", "scores = scores.masked_fill("),
            Place("minilm/model.py", "Attention.forward", "mixed = scores.softmax(-1)"),
        ),
        says="scaled_dot_product_attention is gone",
    ),
    "extra_forward": Slip(
        edits=(
            Edit(
                "minilm/train.py",
                "self.entropies.append(entropy(logits).detach())",
                "self.entropies.append(entropy(self.model(ids[:, :-1])).detach())",
            ),
        ),
        tests=("tests/test_train.py::test_a_step_changes_the_weights",),
        kinds=(MORE_OFTEN,),
        places=(Place("minilm/train.py", "Trainer.step", "self.entropies.append("),),
        says="forward|MiniLM",
    ),
    "wider_layer": Slip(
        edits=(
            Edit(
                "minilm/model.py",
                "hidden = config.widening * config.width",
                "hidden = 2 * config.widening * config.width",
            ),
        ),
        tests=(
            "tests/test_model.py::test_forward",
            "tests/test_train.py::test_a_step_changes_the_weights",
        ),
        kinds=(LARGER,),
        places=(Place("minilm/model.py", "MLP.forward", "return self.down("),),
        says="larger",
    ),
    "graph_break": Slip(
        edits=(
            Edit(
                "minilm/compiled.py",
                "    penalty = ",
                '    print("largest normalizer", normalizer.max())\n    penalty = ',
            ),
        ),
        tests=("tests/test_parts.py::test_smooth_loss",),
        kinds=(COMPILATION, FINDING),
        places=(Place("minilm/compiled.py", "smooth_loss", "print("),),
        says="print|graph break",
    ),
    "always_recomputing": Slip(
        edits=(Edit("minilm/config.py", "recompute: bool = False", "recompute: bool = True"),),
        tests=(
            "tests/test_model.py::test_loss_reaches_every_weight",
            "tests/test_train.py::test_a_step_changes_the_weights",
        ),
        kinds=(MORE_OFTEN,),
        places=(Place("minilm/model.py", "MiniLM.hidden", "x = checkpoint(block, x"),),
        says="Block",
    ),
    "kept_graph": Slip(
        edits=(Edit("minilm/train.py", "entropy(logits).detach()", "entropy(logits)"),),
        tests=("tests/test_train.py::test_loss_falls",),
        kinds=(KEPT, FINDING),
        places=(
            Place("minilm/train.py", "Trainer.step", "self.entropies.append("),
            Place("minilm/train.py", "entropy", "shares = torch.log_softmax("),
            Place("minilm/train.py", "entropy", "return -(shares.exp()"),
        ),
        says="kept|keeps|detach",
    ),
    "kept_activations": Slip(
        edits=(
            Edit(
                "minilm/model.py",
                "self.down = nn.Linear(hidden, config.width)",
                "self.down = nn.Linear(hidden, config.width)\n        self.seen = []",
            ),
            Edit(
                "minilm/model.py",
                "        return self.down(squared_relu(self.up(x)))",
                "        hidden = squared_relu(self.up(x))\n"
                "        self.seen.append(hidden)\n"
                "        return self.down(hidden)",
            ),
        ),
        tests=("tests/test_train.py::test_encode", "tests/test_train.py::test_evaluate"),
        kinds=(KEPT, FINDING),
        places=(
            Place("minilm/functions.py", "SquaredReLU.forward", "return positive.square()"),
            Place("minilm/model.py", "MLP.forward", "hidden = squared_relu("),
            Place("minilm/model.py", "MLP.forward", "self.seen.append(hidden)"),
        ),
        says="kept|keeps",
    ),
    "random_weights_before_a_load": Slip(
        edits=(Edit("minilm/initial.py", ", initialized=False", ""),),
        tests=("tests/test_parts.py::test_a_saved_model_is_the_same",),
        kinds=(NEW, FINDING),
        places=(
            Place("minilm/initial.py", "load", 'model = MiniLM(stored["config"])'),
            Place("minilm/initial.py", "initialize", "nn.init.normal_(module.weight"),
        ),
        says="normal_|uniform_|init",
    ),
    "unneeded_attention_weights": Slip(
        edits=(Edit("minilm/vision.py", ", need_weights=False", ""),),
        tests=("tests/test_vision.py::test_two_views",),
        kinds=(NEW, FINDING),
        places=(Place("minilm/vision.py", "PatchBlock.forward", "mixed, _ = self.attention("),),
        says="softmax|bmm|need_weights",
    ),
    "hooks_pile_up": Slip(
        edits=(
            Edit(
                "minilm/probe.py",
                "        self.handle = self.watched().register_forward_hook(self.record)\n",
                "",
            ),
            Edit(
                "minilm/probe.py",
                "        return self.model(ids)\n",
                "        self.handle = self.watched().register_forward_hook(self.record)\n"
                "        return self.model(ids)\n",
            ),
        ),
        tests=("tests/test_parts.py::test_one_norm_a_batch",),
        kinds=(MORE_OFTEN, FINDING),
        places=(
            Place("minilm/probe.py", "Probe.record", "self.last = torch.linalg.vector_norm("),
            Place("minilm/probe.py", "Probe.forward", "return self.model(ids)"),
        ),
        says="record|vector_norm",
    ),
    "parametrization_is_not_cached": Slip(
        edits=(
            Edit(
                "minilm/adapters.py",
                "        with parametrize.cached():\n"
                "            for _ in range(self.depth):\n"
                "                x = x + torch.tanh(self.layer(x))\n",
                "        for _ in range(self.depth):\n"
                "            x = x + torch.tanh(self.layer(x))\n",
            ),
        ),
        tests=("tests/test_adapters.py::test_shared_layers",),
        kinds=(MORE_OFTEN, FINDING),
        places=(
            Place("minilm/adapters.py", "SharedLayers.forward", "x = x + torch.tanh("),
            Place("minilm/adapters.py", "LowRank.forward", "return torch.addmm("),
        ),
        says="LowRank|addmm",
    ),
    "dense_gradient_of_an_embedding": Slip(
        edits=(
            Edit(
                "minilm/vectors.py",
                "self.inner = nn.Embedding(words, width, sparse=True)",
                "self.inner = nn.Embedding(words, width)",
            ),
            Edit(
                "minilm/vectors.py",
                "self.outer = nn.Embedding(words, width, sparse=True)",
                "self.outer = nn.Embedding(words, width)",
            ),
        ),
        tests=("tests/test_vectors.py::test_a_pass_lowers_the_loss",),
        kinds=(NEW, LARGER, FINDING),
        places=(
            Place("minilm/vectors.py", "WordVectors.forward", "inner = self.inner(words)"),
            Place("minilm/vectors.py", "WordVectors.forward", "others = self.outer("),
            Place("minilm/vectors.py", "train_vectors", "loss.backward()"),
        ),
        says="embedding_dense_backward|dense",
    ),
}

#: A block of lines that moves all that follows.
LICENSE = "# Copyright the authors of minilm.\n" + 24 * "# You may use and change this file.\n"

HARMLESS = {
    "renamed_helper": Harmless(
        (
            Edit("minilm/model.py", "def split(self, qkv)", "def split_heads(self, qkv)"),
            Edit("minilm/model.py", "self.split(self.qkv(x))", "self.split_heads(self.qkv(x))"),
        ),
        ("tests/test_model.py", "tests/test_generate.py::test_greedy"),
    ),
    "reordered_statements": Harmless(
        (
            Edit(
                "minilm/vision.py",
                "    a = nn.functional.normalize(a, dim=-1)\n"
                "    b = nn.functional.normalize(b, dim=-1)\n",
                "    b = nn.functional.normalize(b, dim=-1)\n"
                "    a = nn.functional.normalize(a, dim=-1)\n",
            ),
            Edit(
                "minilm/train.py",
                "        self.losses.add(loss)\n"
                "        self.entropies.append(entropy(logits).detach())\n",
                "        self.entropies.append(entropy(logits).detach())\n"
                "        self.losses.add(loss)\n",
            ),
            Edit(
                "minilm/augment.py",
                "    mean = torch.from_numpy(MEAN).view(3, 1, 1)\n"
                "    spread = torch.from_numpy(SPREAD).view(3, 1, 1)\n",
                "    spread = torch.from_numpy(SPREAD).view(3, 1, 1)\n"
                "    mean = torch.from_numpy(MEAN).view(3, 1, 1)\n",
            ),
        ),
        ("tests/test_vision.py", "tests/test_train.py::test_loss_falls"),
    ),
    "split_function": Harmless(
        (
            Edit(
                "minilm/train.py",
                "        self.losses.add(loss)\n"
                "        self.entropies.append(entropy(logits).detach())\n"
                "        return loss.detach()\n",
                "        self.note(loss, logits)\n"
                "        return loss.detach()\n"
                "\n"
                "    def note(self, loss, logits):\n"
                "        self.losses.add(loss)\n"
                "        self.entropies.append(entropy(logits).detach())\n",
            ),
            Edit(
                "minilm/model.py",
                "        x = x + self.attention(self.before_attention(x), cache)\n"
                "        return x + self.mlp(self.before_mlp(x))\n",
                "        x = x + self.attention(self.before_attention(x), cache)\n"
                "        return self.think(x)\n"
                "\n"
                "    def think(self, x):\n"
                "        return x + self.mlp(self.before_mlp(x))\n",
            ),
        ),
        ("tests/test_train.py", "tests/test_model.py"),
    ),
    "type_hints": Harmless(
        (
            Edit(
                "minilm/model.py",
                "    def forward(self, ids, cache=None):\n",
                "    def forward(self, ids: torch.Tensor, cache: Cache | None = None)"
                " -> torch.Tensor:\n",
            ),
            Edit(
                "minilm/train.py",
                "def entropy(logits):",
                "def entropy(logits: torch.Tensor) -> torch.Tensor:",
            ),
        ),
        ("tests/test_train.py::test_loss_falls", "tests/test_model.py"),
    ),
    "another_seed": Harmless(
        (Edit("tests/conftest.py", "torch.manual_seed(0)", "torch.manual_seed(7)"),),
        ("tests",),
    ),
    "view_to_reshape": Harmless(
        (
            Edit("minilm/model.py", "return qkv.view(", "return qkv.reshape("),
            Edit(
                "minilm/model.py",
                "logits.flatten(0, 1), ids[:, 1:].flatten()",
                "logits.reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1)",
            ),
            Edit("minilm/metrics.py", ").view(classes, classes)", ").reshape(classes, classes)"),
            Edit("minilm/augment.py", "(MEAN).view(3, 1, 1)", "(MEAN).reshape(3, 1, 1)"),
        ),
        ("tests/test_model.py", "tests/test_metrics.py", "tests/test_vision.py"),
    ),
    "casts_that_do_nothing": Harmless(
        (
            Edit("minilm/model.py", "self.split(self.qkv(x))", "self.split(self.qkv(x).float())"),
            Edit("minilm/model.py", "return self.norm(x)", "return self.norm(x.contiguous())"),
            Edit(
                "minilm/train.py",
                "vectors = model.hidden(ids).mean(1)",
                "vectors = model.hidden(ids).to(torch.float32).mean(1)",
            ),
        ),
        ("tests/test_model.py", "tests/test_train.py", "tests/test_generate.py"),
    ),
    "moved_lines": Harmless(
        (
            Edit(
                "minilm/model.py", '"""The transformer."""\n', f'"""The transformer."""\n{LICENSE}'
            ),
            Edit("minilm/train.py", "import math\n", f"{LICENSE}import math\n"),
        ),
        ("tests/test_model.py", "tests/test_train.py", "tests/test_generate.py"),
    ),
    "comments": Harmless(
        (
            Edit(
                "minilm/model.py",
                "        causal = x.shape[1] > 1\n",
                "        # One new token may look at all that came before it.\n"
                "        causal = x.shape[1] > 1\n",
            ),
            Edit("minilm/train.py", '    """How undecided a model is, in nats."""\n', ""),
        ),
        ("tests/test_model.py", "tests/test_train.py::test_loss_falls"),
    ),
    "another_spelling_of_relu": Harmless(
        (
            Edit(
                "minilm/functions.py",
                "import torch\n\n",
                "import torch\nimport torch.nn.functional as F\n\n",
            ),
            Edit("minilm/functions.py", "torch.relu(x)", "F.relu(x)"),
        ),
        ("tests/test_parts.py", "tests/test_model.py::test_loss_reaches_every_weight"),
    ),
    "decorator_for_no_grad": Harmless(
        (
            Edit("minilm/train.py", "def evaluate(", "@torch.no_grad()\ndef evaluate("),
            Edit(
                "minilm/train.py",
                "    with torch.no_grad():\n"
                "        for ids in batches:\n"
                "            logits, targets = model(ids[:, :-1]), ids[:, 1:]\n"
                "            loss += F.cross_entropy(logits.flatten(0, 1), targets.flatten())\n"
                "            right += accuracy(logits, targets)\n",
                "    for ids in batches:\n"
                "        logits, targets = model(ids[:, :-1]), ids[:, 1:]\n"
                "        loss += F.cross_entropy(logits.flatten(0, 1), targets.flatten())\n"
                "        right += accuracy(logits, targets)\n",
            ),
        ),
        ("tests/test_train.py",),
    ),
    "defaults_spelled_out": Harmless(
        (
            Edit("minilm/model.py", "is_causal=causal)", "is_causal=causal, dropout_p=0.0)"),
            Edit(
                "minilm/data.py",
                "        num_workers=2,\n",
                "        num_workers=2,\n        drop_last=False,\n",
            ),
            Edit(
                "minilm/train.py",
                "foreach=True)\n        self.losses",
                "lr=1e-3, foreach=True)\n        self.losses",
            ),
        ),
        ("tests/test_model.py", "tests/test_data.py", "tests/test_train.py"),
    ),
}


def plant(edits: tuple[Edit, ...], root: Path) -> None:
    """Make the edits in a copy of the project."""
    for file, old, new in edits:
        path = root / file
        text = path.read_text("utf-8")
        if text.count(old) != 1:
            raise ValueError(f"{file} has {text.count(old)} times: {old}")
        path.write_text(text.replace(old, new), "utf-8")


def line_of(place: Place, root: Path) -> int:
    """The number of the one line of the function that begins as the place says."""
    text = (root / place.file).read_text("utf-8")
    nodes: list[ast.AST] = [ast.parse(text)]
    for name in place.function.split("."):
        nodes = [
            child
            for node in nodes
            for child in ast.walk(node)
            if isinstance(child, ast.ClassDef | ast.FunctionDef) and child.name == name
        ]
    (function,) = nodes
    assert isinstance(function, ast.FunctionDef)
    lines = text.splitlines()
    (number,) = (
        number
        for number in range(function.lineno, (function.end_lineno or function.lineno) + 1)
        if lines[number - 1].strip().startswith(place.line)
    )
    return number
