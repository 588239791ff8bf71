"""Make the pytest sessions in the documents by running them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

#: A Python block that begins with this is a file.
FILE = re.compile(r"# ([\w./-]+\.py)\n")


def transcript(example: str) -> str:
    """The output of pytest for the example with a loader and gradients, from the failures on."""
    with tempfile.TemporaryDirectory() as folder:
        for code in re.findall(r"(?ms)^```python\n(.*?)^```$", example):
            write_file(Path(folder), "python", code)
        _pytest(folder, "--accept")
        library = Path(folder, "model.py")
        before = library.read_text("utf-8")
        changed = before.replace(
            "    with torch.inference_mode():\n        return", "    return"
        ).replace("data.split(16)", "torch.utils.data.DataLoader(data, 16)")
        if "with" in changed or changed.count("DataLoader") != 1:
            raise SystemExit(f"the example is another: fix {__file__}")
        library.write_text(changed, "utf-8")
        output = _pytest(folder, "--torchprof")
    failures = output.partition("[100%]")[2]
    body = re.split(r"=+ short test summary", failures)[0].strip()
    return f"```text\n$ pytest --torchprof\n{body}\n```"


def write_file(folder: Path, language: str, code: str) -> None:
    """Write a Python block that names its file; it replaces an earlier one of the same name."""
    named = FILE.match(code) if language == "python" else None
    if named is not None:
        (folder / named[1]).write_text(code, "utf-8")


def session(folder: str, body: str) -> str:
    """A part's commands, each with its output: from the failures on, or the table."""
    lines = []
    for line in re.findall(r"^\$ (.*)$", body, re.MULTILINE):
        program, *arguments = shlex.split(line)
        if program != "pytest":
            raise SystemExit(f"only pytest can be run in a page, not {line!r}")
        output = _pytest(folder, *arguments)
        shown = re.split(r"=+ short test summary", output.partition("[100%]")[2])[0]
        lines += [f"$ {line}", re.sub(r"\n=+ \d+ passed.*", "", shown).strip()]
    return "```console\n{}\n```".format("\n".join(lines))


def _pytest(folder: str, *arguments: str) -> str:
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "", "COLUMNS": "88"}
    alone |= {"GITHUB_ACTIONS": "", "GITLAB_CI": ""}  # no annotations, no reports
    env = {**os.environ, **alone}
    # As on a machine with nothing else to do: on a busy one, some rules are not checked.
    idle = "import os, sys, pytest; os.getloadavg = lambda: (0.0,) * 3; sys.exit(pytest.main())"
    command = [sys.executable, "-c", idle, "-p", "pytest_torchprof.plugin"]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", *arguments],
        cwd=folder, env=env, check=False, capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout
