"""Generate the parts of the documents that must not drift: ``--check`` or ``--write``."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import tabulate

from pytest_torchprof.cli import COMMANDS
from pytest_torchprof.devices import DEVICES, DTYPES
from pytest_torchprof.metrics import METRICS
from pytest_torchprof.options import OPTIONS, STRICT_HELP
from pytest_torchprof.paired import Difference
from pytest_torchprof.render import ab_page, ab_table, rule_page
from pytest_torchprof.rules import RULES

if TYPE_CHECKING:
    from trace_builder import TraceBuilder

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "docs/devices.md", "docs/traces.md")
RULE_PAGES = ROOT / rule_page.FOLDER
_BLOCK = re.compile(r"(<!-- generated: (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
#: Times differ from run to run, and with them the width of their column.
_TIME = re.compile(r"\d+(\.\d+)? ?(us|ms|s)\b~?")
_WIDTH = re.compile(r"-{3,}|={3,}| {2,}")


def metrics() -> str:
    """The metric table."""
    rows = [
        [
            f"`{m.name}`",
            m.unit,
            f"{m.klass} {m.tolerance:.0%}" if m.tolerance else m.klass,
            m.help,
        ]
        for m in METRICS.values()
    ]
    return tabulate.tabulate(rows, ["name", "unit", "class", "meaning"], tablefmt="github")


def options() -> str:
    """The option table."""
    rows = [
        ["`--torchprof` / `--no-torchprof`", "`torchprof`", "off", "profile tests and compare"],
        ["`--accept`", "–", "off", "write measured values as the new baseline; on by itself"],
        ["`--torchprof-strict`", "`torchprof_strict`", "off", STRICT_HELP],
    ]  # fmt: skip
    for option in OPTIONS:
        metavar = option.metavar.replace("|", "\\|")
        ini = f"`{option.dest}`" if option.ini else "–"
        default = f"`{option.default}`" if option.default else "–"
        rows.append([f"`{option.flag}={metavar}`", ini, default, option.help])
    return tabulate.tabulate(rows, ["option", "ini", "default", "meaning"], tablefmt="github")


def devices() -> str:
    """The table of accelerators."""
    rows = []
    for device in DEVICES:
        title, _, address = device.source.rpartition(", ")
        peaks = [f"{device.peaks[d] / 1e12:g}" if d in device.peaks else "–" for d in DTYPES]
        bandwidth = f"{device.bandwidth_bytes_per_s / 1e12:g}"
        memory = f"{(device.memory_bytes or 0) >> 30}"
        rows.append([device.name, memory, bandwidth, *peaks, f"[{title}]({address})"])
    headers = ["device", "GiB", "TB/s", *DTYPES, "source"]
    return tabulate.tabulate(rows, headers, tablefmt="github", disable_numparse=True)


def transcript(example: str) -> str:
    """What pytest prints on the example with a loader and gradients, from the failures on."""
    with tempfile.TemporaryDirectory() as folder:
        test = Path(folder, "test_model.py")
        test.write_text(example, "utf-8")
        _pytest(folder, "--accept")
        block = """    with torch.inference_mode():
        for batch in torch.ones(64, 256).split(16):
            assert model(batch).shape == (16, 10)
"""
        if block not in example:
            raise SystemExit(f"the example has no {block} any more: mend {__file__}")
        changed = example.replace(
            block,
            """    for batch in DataLoader(torch.ones(64, 256), 16):
        assert model(batch).shape == (16, 10)
""",
        )
        test.write_text(changed, "utf-8")
        output = _pytest(folder, "--torchprof")
    failures = output.partition("[100%]")[2]
    body = re.split(r"=+ short test summary", failures)[0].strip()
    return f"```text\n$ pytest --torchprof\n{body}\n```"


def commands() -> str:
    """The subcommands of `torchprof`."""
    rows = [
        [f"`torchprof {command.name} {synopsis}`", command.help]
        for command in COMMANDS
        for synopsis in [command.synopsis.replace("|", "\\|")]
    ]
    return tabulate.tabulate(rows, ["command", "prints"], tablefmt="github")


def kernels() -> str:
    """What `torchprof kernels` prints of a training step that was written down, not run."""
    sys.path.insert(0, str(ROOT / "tests"))
    from trace_builder import TraceBuilder

    builder = TraceBuilder("NVIDIA H100 80GB HBM3")
    bf16 = ["c10::BFloat16"] * 4
    wide = [[8192, 4096], [4096, 16384]]
    with builder.annotation("ProfilerStep#3"):
        builder.memcpy("HtoD", 2**26, device_us=2700)
        for us in (1650, 1655):
            with builder.op("aten::mm", wide, bf16[:2]):
                builder.launch("nvjet_tst_256x128_64x4_1x2_h_bz_coopA_NNT", us)
            with builder.op("aten::gelu", [[8192, 16384], []], ["c10::BFloat16", ""]):
                name = "at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl"
                lambdas = "(at::TensorIteratorBase&)::{lambda(c10::BFloat16)#1}"
                builder.launch(f"void {name}{lambdas}, std::array<char*, 2ul> >(int)", 205)
        query, not_causal = [[4, 16, 2048, 64]] * 3, ["", "", "", "0.", "False", "False", ""]
        with builder.op("aten::_scaled_dot_product_flash_attention", query, bf16[:3], not_causal):
            builder.launch("pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64>>", 180)
        with builder.op("aten::add_", [[16], [16]]):
            builder.launch("void at::native::vectorized_elementwise_kernel<4, Add>(int)", 2)
    return _printed("kernels", builder)


def rules() -> str:
    """The anti-pattern rules."""
    rows = [
        [f"[`{rule.code}`]({rule_page.FOLDER}/{rule.code}.md)", rule_page.inline(rule.summary)]
        for rule in RULES.values()
    ]
    return tabulate.tabulate(rows, ["rule", "finds"], tablefmt="github")


def lint() -> str:
    """What `torchprof lint` prints of a training loop that was written down, not run."""
    sys.path.insert(0, str(ROOT / "tests"))
    from trace_builder import TraceBuilder

    builder = TraceBuilder("NVIDIA H100 80GB HBM3")
    fetch = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    with builder.python("train.py(21): train"):
        for _ in range(32):
            with builder.annotation(fetch):
                builder.op("aten::stack", [[[3, 224, 224]] * 32, []], dur_us=9000)
            scope = builder.op("aten::item", [[]])
            with scope, builder.op("aten::_local_scalar_dense", [[]]):
                builder.memcpy("DtoH", 4)
                builder.sync("cudaStreamSynchronize", 850)
    return _printed("lint", builder)


def ab() -> str:
    """What `torchprof ab` prints of two tests that were written down, not run."""
    sys.path.insert(0, str(ROOT / "tests"))
    from handmade_rows import decided

    more = Difference("flops", 1_200_000_000, 1_400_000_000)
    rows = [
        decided("test_step", "slower", 1.102, 0.0115, differences=[more]),
        decided("test_evaluation", "same", 1.003, 0.005, spread=0.01, ms=12.1),
    ]
    threshold, seconds = 0.02, 9.4
    page = ab_page.Page(
        heading=["A: main (3f2a91c)", "B: working tree, uncommitted changes"],
        rows=rows,
        left=0,
        notes=[],
        end=[ab_table.totals(rows, threshold, seconds)],
    )
    text = ab_page.text(page, 120).rstrip()
    return f'```text\n$ torchprof ab main -- tests/perf -k "not huge"\n{text}\n```'


def _printed(command: str, builder: TraceBuilder) -> str:
    with tempfile.TemporaryDirectory() as folder:
        trace = builder.save(Path(folder, "step.pt.trace.json"))
        columns = {"kernels": "150", "lint": "96"}[command]
        done = subprocess.run(
            [sys.executable, "-m", "pytest_torchprof", command, str(trace)],
            env={**os.environ, "COLUMNS": columns}, check=True, capture_output=True, text=True,
        )  # fmt: skip
    return f"```text\n$ torchprof {command} step.pt.trace.json\n{done.stdout.rstrip()}\n```"


def _pytest(folder: str, *arguments: str) -> str:
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "", "COLUMNS": "88"}
    env = {**os.environ, **alone}
    command = [sys.executable, "-m", "pytest", "-p", "pytest_torchprof.plugin"]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", *arguments],
        cwd=folder, env=env, check=False, capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout


def generate(text: str) -> str:
    """A page with its generated blocks made anew."""
    blocks = {name: body for _, name, body, _ in _BLOCK.findall(text)}
    example = blocks.get("example", "").rstrip()
    code = example.removeprefix("```python\n").removesuffix("```")
    makers: dict[str, Callable[[], str]] = {
        "example": lambda: example,
        "transcript": lambda: transcript(code),
        "metrics": metrics,
        "options": options,
        "devices": devices,
        "commands": commands,
        "kernels": kernels,
        "rules": rules,
        "lint": lint,
        "ab": ab,
    }
    return _BLOCK.sub(lambda m: f"{m[1]}{makers[m[2]]()}\n{m[4]}", text)


def rule_pages() -> dict[Path, str]:
    """The pages of the rules that there are, and their index.

    Raises:
        SystemExit: a docstring is no page.
    """
    faults = [f"{r.code}: {fault}" for r in RULES.values() for fault in rule_page.faults(r)]
    if faults:
        raise SystemExit("\n".join(faults))
    pages = {RULE_PAGES / f"{rule.code}.md": rule_page.page(rule) for rule in RULES.values()}
    return {RULE_PAGES / "README.md": rule_page.index(RULES.values()), **pages}


def _write_rules() -> None:
    RULE_PAGES.mkdir(exist_ok=True)
    pages = rule_pages()
    for page, text in pages.items():
        page.write_text(text, "utf-8")
    for page in set(RULE_PAGES.glob("*.md")) - pages.keys():
        if rule_page.MARK in page.read_text("utf-8"):
            page.unlink()


def _stale_rules() -> list[str]:
    """Pages that are not as the docstrings say, or are of rules that are gone."""
    pages = rule_pages()
    found = {page: page.read_text("utf-8") for page in RULE_PAGES.glob("*.md")}
    names = (page for page in pages.keys() | found.keys() if pages.get(page) != found.get(page))
    return sorted(str(page.relative_to(ROOT)) for page in names)


def _steady(text: str) -> str:
    return _WIDTH.sub(" ", _TIME.sub("T", text))


def main() -> int:
    """0 when every page is as the code says, or was made so."""
    stale = list[str]()
    write = "--write" in sys.argv
    if write:
        _write_rules()
    for name in PAGES:
        page = ROOT / name
        text = page.read_text("utf-8")
        fresh = generate(text)
        if write:
            page.write_text(fresh, "utf-8")
        elif _steady(text) != _steady(fresh):
            stale.append(name)
    if not write:
        stale += _stale_rules()
    for name in stale:
        print(f"{name} is not in step with the code: python tools/docs.py --write",
              file=sys.stderr)  # fmt: skip
    return int(bool(stale))


if __name__ == "__main__":
    sys.exit(main())
