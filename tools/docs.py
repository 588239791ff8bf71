"""Generate the parts of the README that must not drift: ``--check`` or ``--write``."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import tabulate

from pytest_torchprof.metrics import METRICS
from pytest_torchprof.options import OPTIONS, STRICT_HELP

README = Path(__file__).resolve().parents[1] / "README.md"
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


def transcript(example: str) -> str:
    """What pytest prints on the example with its layer made wider, from the failures on."""
    with tempfile.TemporaryDirectory() as folder:
        test = Path(folder, "test_model.py")
        test.write_text(example, "utf-8")
        _pytest(folder, "--accept")
        test.write_text(example.replace("512", "1024"), "utf-8")
        output = _pytest(folder, "--torchprof")
    failures = output.partition("[100%]")[2]
    body = re.split(r"=+ short test summary", failures)[0].strip()
    return f"```text\n$ pytest --torchprof\n{body}\n```"


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
    """The README with its generated blocks made anew."""
    blocks = {name: body for _, name, body, _ in _BLOCK.findall(text)}
    example = blocks["example"].removeprefix("```python\n").rstrip().removesuffix("```")
    fresh = {
        "example": blocks["example"].rstrip(),
        "transcript": transcript(example),
        "metrics": metrics(),
        "options": options(),
    }
    return _BLOCK.sub(lambda m: f"{m[1]}{fresh[m[2]]}\n{m[4]}", text)


def _steady(text: str) -> str:
    return _WIDTH.sub(" ", _TIME.sub("T", text))


def main() -> int:
    """0 when the README is as the code says, or was made so."""
    text = README.read_text("utf-8")
    fresh = generate(text)
    if "--write" in sys.argv:
        README.write_text(fresh, "utf-8")
        return 0
    if _steady(text) == _steady(fresh):
        return 0
    print("README.md is not in step with the code: python tools/docs.py --write", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
