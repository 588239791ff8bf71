"""What is installed: only what runs, and not more than before without being noticed."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Of code, what pages are made of, and the schemas; nothing is drawn, recorded, or vendored.
KINDS = {".css", ".html", ".js", ".json", ".py", ".svg", ".toml", ".txt"}
#: All but some 20 KB is Python that runs, of which docstrings are a fifth. A larger file is no
#: module.
LARGEST_BYTES, WHEEL_BYTES = 72_000, 1_360_000


def packed() -> list[Path]:
    """The files that the wheel has: those of the package that are not ignored."""
    words = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    listed = subprocess.run(
        [*words, "pytest_torchprof"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("this is no checkout of git")
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).exists()]


def test_the_package_has_code_and_what_pages_are_made_of() -> None:
    files = packed()
    assert [] == [path for path in files if path.suffix not in KINDS and path.name != "py.typed"]
    assert [] == [path for path in files if path.stat().st_size > LARGEST_BYTES]
    assert not {"tests", "test", "docs", "benchmarks", "examples"} & {
        part for path in files for part in path.relative_to(ROOT).parts
    }


@pytest.mark.thorough
def test_the_wheel_does_not_grow_unnoticed(tmp_path: Path) -> None:
    target, files = tmp_path / "package.zip", packed()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in files:
            archive.write(path, path.relative_to(ROOT).as_posix())
    # RECORD has a hash of 32 random bytes per file.
    assert 500_000 < target.stat().st_size + 45 * len(files) < WHEEL_BYTES
