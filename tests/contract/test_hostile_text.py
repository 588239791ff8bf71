"""Names that others chose reach a terminal, a comment, or a page only as text."""

import html.parser
import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.command_line import Say
from support.hostile import EVERY, HOSTILE, assert_json, assert_terminal

OUTPUTS = [
    *(f"{command} --format {form}"
      for form in ("table", "csv", "markdown", "json")
      for command in ("summary", "steps", "idle", "ops", "ops --by shape", "ops --by stack",
                      "ops --by module", "ops --merge", "kernels", "kernels --by op,kernel,shape",
                      "lint", "memory --timeline", "collectives", "ranks", "diff {other}",
                      "diff --by kernel {other}", "bound --device H200")),
    *(f"lint --format {form}" for form in ("github", "gitlab", "sarif")),
    "report -o {out}", "diff --html {out} {other}", "stacks {trace} {out}", "augment {trace} {out}",
]  # fmt: skip


def _trace(name: str) -> dict[str, Any]:
    """One step of each kind of event, with this name wherever a trace has one."""
    events: list[dict[str, Any]] = []

    def add(kind: str, what: str, ts: float, dur: float, tid: Any = 1, **args: Any) -> None:
        events.append({"ph": "X", "cat": kind, "name": what, "pid": 1, "tid": tid, "ts": ts,
                       "dur": dur, "args": args})  # fmt: skip

    add("user_annotation", "ProfilerStep#1", 1, 900)
    add("user_annotation", name, 2, 890)
    add("python_function", f"{name}.py(3): {name}", 3, 880, **{"Python id": 1})
    add("python_function", f"nn.Module: {name}_0", 4, 870,
        **{"Python id": 2, "Python parent id": 1, "Python module id": 0})  # fmt: skip
    for at in range(12):
        more = {"External id": at + 1, "Input Dims": [[64, 64], [64, 64]],
                "Input type": [name, "float"], "Concrete Inputs": [name, ""]}  # fmt: skip
        ts = 10 + 60 * at
        add("cpu_op", "aten::select" if at % 2 else "aten::mm", ts, 20, **more)
        add("cpu_op", name, ts + 22, 5, **more)
        add("cpu_op", "aten::item", ts + 30, 15, **more)
        add("cuda_runtime", "cudaLaunchKernel", ts + 1, 3, correlation=at + 100)
        add("kernel", name, ts + 5, 9, tid=7, stream=name, device=0, correlation=at + 100,
            **{"External id": at + 1, "grid": [1, 1, 1], "block": [32, 1, 1]})  # fmt: skip
    events += [
        {
            "ph": "M",
            "name": kind,
            "pid": 1,
            "tid": 1,
            "ts": 0,
            "args": {"name": name, "labels": name},
        }
        for kind in ("process_name", "process_labels", "thread_name")
    ]
    events.append({"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1,
                   "ts": 12, "args": {"Device Type": 0, "Device Id": -1, "Addr": 1, "Bytes": 512,
                                      "Total Allocated": 512}})  # fmt: skip
    device = {"id": 0, "name": name, "totalGlobalMem": 1, "numSms": 1}
    return {"schemaVersion": 1, "deviceProperties": [device], "traceName": name, "with_stack": 1,
            "record_shapes": 1, "profile_memory": 1, "traceEvents": events}  # fmt: skip


class _Tags(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found |= {tag, *(f"{tag} {name}" for name, _ in attrs)}


def _tags(page: str) -> set[str]:
    (parser := _Tags()).feed(page)
    return parser.found


@pytest.mark.parametrize("output", OUTPUTS)
def test_no_name_of_a_trace_does_anything_in_any_output(
    say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    monkeypatch.chdir(tmp_path)
    harmless = None
    for at, text in enumerate(("plain " * 80, EVERY, *(HOSTILE if "github" in output else ()))):
        name = text.encode(errors="ignore").decode()  # a lone surrogate is no JSON
        Path("trace.json").write_text(json.dumps(_trace(name)), "utf-8")
        Path("other.json").write_text(json.dumps(_trace(f"other {name}")), "utf-8")
        words = output.format(trace="trace.json", other="other.json", out="out").split()
        status, shown, said = say(*words, *([] if "{trace}" in output else ["trace.json"]))
        assert 0 == status, said
        assert_terminal(shown)
        assert_terminal(said)
        if "json" in output or "sarif" in output or "gitlab" in output:
            assert_json(shown)
        if "github" in output:
            assert all(re.match(r"::(warning|notice) |torchprof: ", line)
                       for line in shown.splitlines()), shown  # fmt: skip
        if Path("out").exists():
            assert_terminal(page := Path("out").read_text("utf-8"))
            tags = _tags(page) if "augment" not in output and "stacks" not in output else set()
            harmless = tags if at == 0 else harmless
            assert tags == harmless
            Path("out").unlink()


MARKDOWN = {
    "a tensor of [64, 16, 32], by": "a tensor of `[64, 16, 32],` by",
    "call `model.eval()`, then `a[0]`": "call `model.eval()`, then `a[0]`",
    f"since {'0123456789' * 4} it": f"since `{'0123456789' * 4}` it",
    "in 1f2e3d4c of 1234567 bytes": "in `1f2e3d4c` of 1234567 bytes",
    "one ` and ``two`` of [3": "one `` ` `` and ``` ``two`` ``` of `[3`",
}


CONFTEST = """
import pytest
import numpy as np
from torchprof_texts import TEXTS
from pytest_torchprof import Matches, rule

def _rule(at, text):
    @rule(f"my-{at}", fix="y", triggers="aten::mm$")
    def found(trace):
        \"\"\"A text.\"\"\"
        return Matches(np.array([0]), [text])
    return found

@pytest.hookimpl(optionalhook=True)
def pytest_torchprof_rules(config):
    return [_rule(at, text) for at, text in enumerate(TEXTS)]
"""
TESTS = """
import pytest, torch

class TestA:
    @pytest.mark.max_flops(1)
    @pytest.mark.parametrize("x", [1], ids=["aten::mm-[x::y]"])
    def test_b(self, x):
        torch.ones(8, 8) @ torch.ones(8, 8)
"""


def test_sentences_stay_whole_in_markdown_and_titles_of_annotations_in_colons(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(torchprof_texts=f"TEXTS = {list(MARKDOWN)!r}", test_it=TESTS)
    pytester.makeconftest(CONFTEST)
    options = ("--torchprof", "--torchprof-markdown=c.md", "--torchprof-ci=github")
    ran = pytester.runpytest_subprocess(*options)
    ran.stdout.fnmatch_lines("::error *,title=torchprof%3A test_b[[]aten%3A%3Amm-[[]x%3A%3Ay]]::*")
    comment = Path("c.md").read_text("utf-8")
    for text, marked in MARKDOWN.items():
        assert f" {marked} |" in comment, text


def test_a_broken_baseline_says_why_once_a_file(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it="def test_a(): pass\ndef test_b(): pass\ndef test_c(): pass\n")
    (pytester.mkdir("__torchprof__") / "test_it.json").write_text('{"schema"', "utf-8")
    failures, _, _ = pytester.runpytest_subprocess("--torchprof").stdout.str().partition("status")
    said = [failures.count(words) for words in ("Restore it from", "see test_it.py::test_a")]
    assert [1, 2] == said
