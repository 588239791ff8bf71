"""A worker holds no modules that its question does not need: many of them run at a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.fleets import save_ranks

#: Of one MiB each, or nearly.
LARGE = {"argparse", "hashlib", "numpy.ma", "numpy.random"}
CODE = """
import sys
from pytest_torchprof.fleet.mapping import Question, answer
from pytest_torchprof.fleet.sources import find_sources

command, by, *paths = sys.argv[1:]
settings = dict(
    step=None, step_name=None, format="table", by=by, depth=None, chips=(), ignored=[],
    thresholds="", timeline=False, points=0,
)
for source in find_sources(paths):
    print(answer(Question(f"commands.{command}:{command}_part", settings), source).error)
print(*sys.modules)
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("command", "by"),
    [
        ("summary", ""), ("ops", "name"), ("kernels", "name"), ("lint", ""), ("memory", ""),
        ("idle", "place"), ("collectives", ""), ("ranks", ""),
    ],
)  # fmt: skip
def test_large_modules_stay_out(command: str, by: str, tmp_path: Path) -> None:
    paths = save_ranks(tmp_path, 2)
    done = subprocess.run(
        [sys.executable, "-c", CODE, command, by, *map(str, paths)],
        capture_output=True,
        check=True,
        text=True,
    )
    *errors, modules = done.stdout.splitlines()
    assert {"None"} == set(errors)
    assert set() == LARGE & set(modules.split())


@pytest.mark.thorough
def test_a_worker_does_not_import_what_started_it(tmp_path: Path) -> None:
    """Neither the command's parsers, nor a user's script, which then needs no guard."""
    paths = save_ranks(tmp_path, 2)
    script = tmp_path / "script.py"
    script.write_text(
        "print('begins')\n"
        "import sys\n"
        "from pytest_torchprof.cli import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    done = subprocess.run(
        [sys.executable, script, "ops", *map(str, paths), "--jobs", "2", "--format", "json"],
        capture_output=True,
        check=False,
        text=True,
    )
    assert (0, "") == (done.returncode, done.stderr)
    assert 1 == done.stdout.count("begins")


def test_the_hash_of_a_trace_is_that_of_the_standard_library_without_openssl(
    tmp_path: Path,
) -> None:
    (tmp_path / "trace").write_bytes(b"trace")
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from pytest_torchprof.fleet.mapping import content_digest\n"
        "found = content_digest(Path(sys.argv[1]))\n"
        "print('_hashlib' in sys.modules)\n"
        "import hashlib\n"
        "print(found == hashlib.blake2b(b'trace', digest_size=len(found) // 2).hexdigest())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "trace"], capture_output=True, check=True, text=True
    )
    assert ["False", "True"] == done.stdout.split()
