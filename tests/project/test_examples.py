"""The examples: their baselines hold in any process, and each regression turns its tests red."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_torchprof.capture.machine import probe_machine

ROOT = Path(__file__).resolve().parents[2]
_SPEC = importlib.util.spec_from_file_location(
    "demo_regression", ROOT / "tools" / "demo_regression.py"
)
assert _SPEC is not None
assert _SPEC.loader is not None
demo = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(demo)

#: The tests that execute the changed line, by regression.
CONCERNED = {
    "elementwise": {
        "test_greedy_decoding_extends_the_prompt_repeatably",
        "test_logits_do_not_depend_on_later_tokens",
        "test_train_step_flops_follow_from_the_model_size",
        "test_training_overfits_one_batch",
        "test_untrained_model_predicts_a_uniform_distribution",
    },
    "wider": {
        "test_greedy_decoding_extends_the_prompt_repeatably",
        "test_logits_do_not_depend_on_later_tokens",
        "test_train_step_flops_follow_from_the_model_size",
        "test_training_overfits_one_batch",
        "test_untrained_model_predicts_a_uniform_distribution",
    },
    "copy": {
        "test_feature_maps_stay_channels_last",
        "test_folded_batch_norms_cost_no_operators",
        "test_inference_is_repeatable[1]",
        "test_inference_is_repeatable[4]",
    },
    "zero-grad": {
        "test_gradients_are_clipped_to_the_given_norm",
        "test_training_learns_the_direction_of_stripes",
    },
}
#: Metric and operator that the message must name, by regression.
NAMED = {
    "elementwise": ("ops ", "mul ×"),
    "wider": ("flops ", "larger inputs of linear"),
    "copy": ("peak_cpu_bytes ", "clone ×"),
    "zero-grad": ("ops ", "is a zero_grad missing?"),
}

KEY = probe_machine(1).key
needs_baselines = pytest.mark.skipif(
    f'"{KEY}": {{'
    not in (ROOT / "examples" / "__torchprof__" / "test_gpt.json").read_text("utf-8"),
    reason=f"there are no committed baselines of {KEY}",
)
needs_baselines_of_cpu = pytest.mark.skipif(
    not torch.__version__.startswith("2.13") or torch.cuda.is_available(),
    reason="what is named here is from baselines of torch 2.13 on a CPU",
)


def profile(folder: Path, report: Path, *arguments: str, **env: str) -> tuple[dict[str, Any], str]:
    """Run the examples in a process of their own; their records by name, and what was printed."""
    command = [sys.executable, "-m", "pytest", "--torchprof", "-p", "no:cacheprovider"]
    command += [f"--torchprof-json={report}", "--import-mode=importlib", *arguments]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTEST_ADDOPTS": "", "OMP_NUM_THREADS": "1", **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in {0, 1}, done.stdout + done.stderr
    tests = json.loads(report.read_text("utf-8"))["tests"]
    return {t["nodeid"].partition("::")[2]: t for t in tests}, done.stdout


def sections(output: str) -> dict[str, str]:
    """What was printed of each test that failed."""
    parts = re.split(r"^_{3,} (\S+) _{3,}$", output.partition(" FAILURES ")[2], flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.thorough
@needs_baselines
def test_committed_baselines_hold_and_the_only_findings_are_accepted(tmp_path: Path) -> None:
    records, output = profile(ROOT / "examples", tmp_path / "r.json")
    assert {name: r["status"] for name, r in records.items()} == dict.fromkeys(records, "ok")
    assert len(records) == 17, output
    rules = {f["rule"] for r in records.values() for f in r["findings"] if not f["accepted"]}
    assert set() == rules


@pytest.mark.thorough
@needs_baselines
def test_committed_baselines_hold_with_two_threads_in_two_workers(tmp_path: Path) -> None:
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    records, output = profile(ROOT / "examples", tmp_path / "r.json", "-n2", OMP_NUM_THREADS="2")
    assert {name: r["status"] for name, r in records.items()} == dict.fromkeys(records, "ok")
    assert len(records) == 17, output


@pytest.mark.thorough
@needs_baselines_of_cpu
@pytest.mark.parametrize(
    "names", [["wider"], ["elementwise", "copy", "zero-grad"]], ids=["one", "several"]
)
def test_a_regression_turns_exactly_its_tests_red(names: list[str], tmp_path: Path) -> None:
    """Of all examples, where it is alone; several are of different modules."""
    copy = demo.regressed_copy(names[0], tmp_path)
    for name in names[1:]:
        demo.regress(copy, name)
    tests = [demo.REGRESSIONS[name].tests for name in names] if len(names) > 1 else []
    records, output = profile(copy, tmp_path / "r.json", "--torchprof-rounds=0", *tests)
    red = {test for test, record in records.items() if record["outcome"] == "failed"}
    assert red == set().union(*[CONCERNED[name] for name in names])
    shown = sections(output)
    for name in names:
        words = "".join(shown[test] for test in CONCERNED[name])
        for word in NAMED[name]:
            assert word in words, name
