"""Run the tests with versions of torch, Python and dependencies other than the pinned ones.

Usage: python tools/versions.py [NAME ...]     (all of them, without a name; --list shows them)

Each has a separate environment under build/versions, or under the folder that TORCHPROF_VERSIONS
names, which is made again when its requirements change.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from importlib.metadata import requires
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
WHERE = Path(os.environ.get("TORCHPROF_VERSIONS") or ROOT / "build" / "versions")
#: What `make test` and `make test-all` run, except for the environment.
PYTEST = ("-m", "pytest", "-n", "auto", "--dist=worksteal", "-m", "")


class Versions(NamedTuple):
    """An environment; sizes are those of the CUDA builds that pip installs on Linux."""

    python: str
    torch: str
    download_gb: float
    disk_gb: float
    #: The oldest releases that pyproject.toml allows, instead of those of constraints.txt.
    lowest: bool = False


MATRIX = {
    "torch-2.15": Versions("3.11", "2.15.0", 3.0, 5.5),
    "torch-2.15-python-3.13": Versions("3.13", "2.15.0", 3.0, 5.5),
    "torch-2.6": Versions("3.11", "2.6.0", 2.8, 5.4),
    "lowest": Versions("3.11", "2.6.0", 2.8, 5.4, lowest=True),
}


def constraints(versions: Versions) -> list[str]:
    """The lines of a constraints file for these versions."""
    if versions.lowest:
        lines = [lower_bound(line) for line in requires("pytest-torchprof") or []]
        pinned = [line for line in lines if line is not None]
    else:
        pinned = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    return [
        *(line for line in pinned if not line.startswith("torch==")),
        f"torch=={versions.torch}",
    ]


def lower_bound(requirement: str) -> str | None:
    """The requirement pinned to its lower bound; None without one.

    >>> lower_bound('hypothesis>=6.100; extra == "test"')
    'hypothesis==6.100'
    """
    found = re.match(r"([\w.-]+)\s*>=\s*([\w.]+)", requirement)
    return f"{found[1]}=={found[2]}" if found else None


def interpreter(python: str) -> str | None:
    """The path of Python ``python``: on PATH, or among pyenv's."""
    if sys.version_info[:2] == tuple(map(int, python.split("."))):
        return sys.executable
    if (found := shutil.which(f"python{python}")) is not None:
        works = subprocess.run([found, "-c", ""], capture_output=True, check=False)
        if works.returncode == 0:  # pyenv has a shim for each version that it knows
            return found
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    known = sorted(pyenv.glob(f"versions/{python}.*/bin/python"))
    return str(known[-1]) if known else None


def environment(name: str, versions: Versions) -> Path:
    """The Python of an environment with these versions, created if necessary.

    Raises:
        OSError: there is no such Python, or too little space on the disk.
        subprocess.CalledProcessError: pip cannot install them.
    """
    base = interpreter(versions.python)
    if base is None:
        raise OSError(f"no Python {versions.python} found: put python{versions.python} on PATH")
    folder = WHERE / name
    python = folder / "bin" / "python"
    wanted = "\n".join(constraints(versions)) + "\n"
    stamp = folder / "constraints.txt"
    made = (folder / "made").exists() and stamp.read_text("utf-8") == wanted
    if not made:
        WHERE.mkdir(parents=True, exist_ok=True)
        free_gb = shutil.disk_usage(WHERE).free / 1e9
        needed = f"downloads about {versions.download_gb} GB, takes {versions.disk_gb} GB"
        print(f"{name}: {needed} in {folder} ({free_gb:.0f} GB are free)", flush=True)
        if free_gb < versions.disk_gb + versions.download_gb:
            raise OSError(f"too little space on the disk: {free_gb:.1f} GB are free")
        subprocess.run([base, "-m", "venv", "--clear", folder], check=True)
        stamp.write_text(wanted, "utf-8")
        pip = (python, "-m", "pip", "install", "-qq", "--disable-pip-version-check")
        subprocess.run([*pip, "-c", stamp, "-e", f"{ROOT}[test]"], check=True)
        (folder / "made").touch()
    return python


def main(names: list[str]) -> int:
    """Run the tests in each environment; 1 if any of them fails, or could not be run."""
    unknown = [name for name in names if name not in MATRIX]
    if unknown or names == ["--list"]:
        if names != ["--list"]:
            print(f"no versions are called {', '.join(unknown)}; there are:", file=sys.stderr)
        for name, versions in MATRIX.items():
            print(f"{name:24} Python {versions.python}, torch {versions.torch}")
        return 0 if names == ["--list"] else 2
    results = {}
    for name in names or MATRIX:
        began = time.monotonic()
        try:
            python = environment(name, MATRIX[name])
        except (OSError, subprocess.CalledProcessError) as error:
            results[name] = f"not run: {error}"
        else:
            env = os.environ | {"GOMP_SPINCOUNT": "1000", "PYTHONDONTWRITEBYTECODE": ""}
            code = subprocess.run([python, *PYTEST], cwd=ROOT, env=env, check=False).returncode
            results[name] = "passed" if code == 0 else f"failed (pytest's exit status is {code})"
        results[name] += f", {(time.monotonic() - began) / 60:.0f} min"
        print(f"{name}: {results[name]}", flush=True)
    print("\n".join(["", *(f"{name:24} {text}" for name, text in results.items())]))
    return int(any(not text.startswith("passed") for text in results.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
