"""The tool that records traces on a GPU, tried on the CPU."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import pytest
from gpu_payloads import catalog, reading, recording
from gpu_payloads.payload import Payloads
from gpu_payloads.scrubbing import leftovers, scrubbed

from pytest_torchprof.trace.read import read_trace
from tools import record_gpu_traces as tool

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"traceName": "/tmp/pytest-of-ann/a.json"', '"traceName": "a.json"'),
        ('"at /opt/venv/lib/python3.12/site-packages/torch/nn/x.py:3"', '"at torch/nn/x.py:3"'),
        (r'"\\/home\\/ann\\/x.py"'.replace(r"\\", "\\"), '"x.py"'),
        ('"host_name": "gpu-17.lab"', '"host_name": "host"'),
        ('"name": "gpu-17 (python)"', '"name": "name (python)"'),
        ('"from": "10.1.2.3"', '"from": "address"'),
        ('"uuid": "GPU-1b4e28ba-2fa1-11d2-883f-0016d3cca427"', '"uuid": "uuid"'),
        ('"void at::native::kernel<4, float(*)(float)>"',) * 2,
        ('"cat": "cpu_op", "Input Dims": [[1, 2]], "dur": 1.5',) * 2,
        ('"a/b: 3 GB/s, 1/2"',) * 2,
    ],
)  # fmt: skip
def test_names_of_machines_users_and_folders_are_scrubbed(text: str, expected: str) -> None:
    assert expected == scrubbed(text, ["gpu-17"])
    assert [] == leftovers(expected, ["gpu-17"])
    assert bool(leftovers(text, ["gpu-17"])) == (text != expected)


def test_a_payload_becomes_a_trace_with_answers(tmp_path: Path) -> None:
    recorded = recording.record(catalog.PAYLOADS["on_the_host_only"], "cpu", tmp_path)
    answers = {"flops": {"value": 2 * 64**3, "source": "by hand"}}
    assert answers == recorded.answers["answers"]
    path = tmp_path / "on_the_host_only.json.gz"
    assert [path] == list(tmp_path.iterdir())
    assert [] == leftovers(gzip.decompress(path.read_bytes()).decode())
    found = reading.read(read_trace(path))
    assert 2 * 64**3 == found["flops"]
    assert "unknown: no accelerator in this capture" == found["kernels"]
    assert [] == recorded.measured["stored"]["differences"]


def test_the_answers_on_a_device_are_by_hand_and_by_its_own_statistics() -> None:
    payload = catalog.PAYLOADS["planted_leak"]
    allocator = {"peak_cuda_bytes": 7, "max_cuda_bytes": 9}
    row = recording.answers_of(payload, "cuda", allocator)
    assert 2**20 + 512 == row["answers"]["leaked_cuda_bytes"]["value"]
    assert {"value": 9, "source": "torch.cuda.memory_stats"} == row["answers"]["max_cuda_bytes"]
    assert ["peak_cuda_bytes: 5243392 by hand, 7 by torch.cuda.memory_stats"] == row["doubts"]


def test_answers_by_hand_can_be_stated_anew(tmp_path: Path) -> None:
    measured = {"value": 9, "source": "torch.cuda.memory_stats"}
    row = recording.answers_of(
        catalog.PAYLOADS["planted_leak"], "cuda", {"leaked_cuda_bytes": 2**20 + 512}
    )
    answers = row["answers"]
    assert "torch.cuda.memory_stats" == answers["leaked_cuda_bytes"]["agrees"]
    old = {"kernels": {"value": 7, "source": "by hand"}, "gone": {"value": 1, "source": "by hand"}}
    before = {**answers, **old, "max_cuda_bytes": measured}
    document = {"traces": {"planted_leak": {**row, "answers": before, "may_match": ["host-sync"]}}}
    (tmp_path / "expected.json").write_text(json.dumps(document))
    assert 0 == tool.main([str(tmp_path), "--restate"])
    now = json.loads((tmp_path / "expected.json").read_text())["traces"]["planted_leak"]
    assert {**row, "answers": {**answers, "max_cuda_bytes": measured}} == now


def test_a_rate_is_that_of_cuda_events() -> None:
    payload = catalog.PAYLOADS["large_products_in_bf16"]
    answers = recording.answers_of(payload, "cuda", events_ms=10.0)["answers"]
    tflops = 8 * 2 * 8192**3 / 10e-3 / 1e12
    rate = answers["tflops_per_s@aten::mm"]
    assert (pytest.approx(0.97 * tflops), pytest.approx(1.03 * tflops)) == (
        rate["low"],
        rate["high"],
    )
    assert pytest.approx(9.7) == answers["self_cuda_ms@timed"]["low"]


@pytest.mark.parametrize(
    ("answer", "value", "fits"),
    [
        ({"value": 3}, 3, True),
        ({"value": 3}, 4, False),
        ({"value": 3}, "unknown: no device", False),
        ({"value": 3, "or_unknown": True}, "unknown: no device", True),
        ({"value": 3, "or_unknown": True}, 4, False),
        ({"low": 1.0, "high": 2.0}, 1.5, True),
        ({"low": 1.0, "high": 2.0}, 2.5, False),
        ({"unknown": True}, None, True),
        ({"unknown": True}, 0, False),
    ],
)
def test_a_difference_is_told(answer: dict[str, object], value: reading.Shown, fits: bool) -> None:
    answers = {"flops": {**answer, "source": "by hand"}}
    assert fits == (reading.differences(answers, {"flops": value}) == [])


def test_rules_match_as_stated_or_may() -> None:
    assert [] == reading.rule_differences({"a": 1}, ["b"], {"a": 1, "b": 5})
    assert ["a: 0, not 1", "c: 2, not 0"] == reading.rule_differences({"a": 1}, ["b"], {"c": 2})


class Recorder(tool.Recorder):
    """Its processes write results for names that are words, and crash at others."""

    script = (
        "import pathlib, sys\n"
        "for name in sys.argv[2:]:\n"
        "    part = pathlib.Path(sys.argv[1]) / name\n"
        "    part.with_suffix('.begun').touch()\n"
        "    name.isalpha() or sys.exit(f'{name} is bad')\n"
        "    part.with_suffix('.json').write_text('{\"skipped\": \"\"}')\n"
    )

    def start(self, names: Sequence[str]) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", self.script, str(self.parts), *names]
        with (self.parts / f"{names[0]}.log").open("wb") as log:
            return subprocess.Popen(command, stderr=log)


def test_a_crash_leaves_the_others(tmp_path: Path) -> None:
    recorder = Recorder(Namespace(seconds=60), tmp_path)
    names = ["one", "2", "three", "4"]
    recorder.follow(None, names, 30)
    found = {name: json.loads((tmp_path / f"{name}.json").read_text()) for name in names}
    assert {"one": {"skipped": ""}, "three": {"skipped": ""}} == {
        name: found[name] for name in ("one", "three")
    }
    for name in ("2", "4"):
        assert f"{name} is bad" in found[name]["failed"]


def test_names_are_of_one_payload_each() -> None:
    assert len(catalog.PAYLOADS) == len({*catalog.PLAIN, *catalog.COMPILED})
    assert set(catalog.PAYLOADS) == {*catalog.PLAIN, *catalog.COMPILED}


def test_a_payload_is_set_up_and_cleaned_up() -> None:
    rows, seen = Payloads(), list[str]()

    @rows.add(kernels=1, kernels__decode=2)
    def two(device: str):  # type: ignore[no-untyped-def] # noqa: ANN202
        """As   it says."""
        seen.append(device)
        yield lambda: seen.append("run")
        seen.append("end")

    (payload,) = rows
    with payload.set_up("cpu") as run:
        run.prepare()
        run.block()
    assert ["cpu", "run", "end"] == seen
    assert ({"kernels": 1, "kernels@decode": 2}, "As it says.") == (payload.counts, payload.about)


@pytest.mark.thorough
def test_the_tool_records_and_its_traces_can_be_read(tmp_path: Path) -> None:
    names = "three_additions,regions,flash_attention,losses_that_are_read"
    command = [sys.executable, str(ROOT / "tools/record_gpu_traces.py"), str(tmp_path)]
    done = subprocess.run(
        [*command, "--device", "cpu", "--only", names, "--seconds", "300"],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert 0 == done.returncode, done.stdout + done.stderr
    assert "flash_attention: skipped: needs a GPU" in done.stdout
    expected = json.loads((tmp_path / "expected.json").read_text("utf-8"))
    assert ["losses_that_are_read", "regions", "three_additions"] == sorted(expected["traces"])
    assert {"flash_attention": "needs a GPU"} == expected["skipped"]
    assert {} == expected["failed"]
    measured = json.loads((tmp_path / "measured.json").read_text("utf-8"))
    assert {"live", "stored"} <= measured["regions"].keys()
    assert {f"{n}.json.gz" for n in expected["traces"]} | {"expected.json", "measured.json"} == {
        path.name for path in tmp_path.iterdir()
    }
