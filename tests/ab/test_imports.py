"""In a worker of `torchprof ab`: each side imports its own code, or is refused."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pytest_torchprof
from pytest_torchprof.ab.imports import Trees, proven
from pytest_torchprof.core.errors import AbError

TOOL = str(Path(pytest_torchprof.__file__).parents[1])
SITE = "env/lib/python3/site-packages"

# What a worker does: environment, own code, imports, origins; then one more process of a test's.
WORKER = f"""
import importlib, json, os, site, subprocess, sys
sys.path.insert(0, {TOOL!r})
from pytest_torchprof.ab.imports import origins, prefer_own
sys.path.remove({TOOL!r})
site.addsitedir(sys.argv[1])
root, others, names, more = json.loads(sys.argv[2])
prefer_own(root, others)
values, errors = {{}}, {{}}
for name in names:
    try:
        values[name] = importlib.import_module(name).TREE
    except ImportError as error:
        errors[name] = str(error)
child = "import sys; sys.path.append(sys.argv[1])\\n"
for name in names if more else ():
    child += f"try:\\n import {{name}}; print({{name}}.TREE)\\n"
    child += "except ImportError:\\n print(None)\\n"
told = subprocess.run([sys.executable, "-c", child, ""], cwd="/", capture_output=True, text=True)
print(json.dumps({{
    "values": values, "errors": errors, "origins": origins(root, others), "path": sys.path,
    "child": told.stdout.split(), "PYTHONPATH": os.environ.get("PYTHONPATH"),
}}))
"""


def package(tree: Path, place: str, value: str | None = None) -> None:
    """A package, or a module, that says which tree it is of."""
    file = tree / place if place.endswith(".py") else tree / place / "__init__.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"TREE = {(value or tree.name)!r}\n", "utf-8")


class World:
    """Two trees, a checkout that is B, and an environment."""

    def __init__(self, folder: Path) -> None:
        self.a, self.b, self.site = folder / "A tree", folder / "B", folder / SITE
        for made in (self.a, self.b, self.site):
            made.mkdir(parents=True)

    def both(self, place: str) -> None:
        """The same code in both trees."""
        package(self.a, place, "A")
        package(self.b, place, "B")

    def pth(self, *lines: object) -> None:
        """What an editable install leaves."""
        (self.site / "editable.pth").write_text("\n".join(map(str, lines)), "utf-8")

    def copy(self, name: str = "foo", source: Path | None = None) -> None:
        """Package foo as pip installs it, in a distribution of this name, from a folder."""
        package(self.site, "foo")
        info = self.site / f"{name}-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1", "utf-8")
        (info / "RECORD").write_text("foo/__init__.py,,\n", "utf-8")
        if source is not None:
            url = json.dumps({"url": source.as_uri(), "dir_info": {}})
            (info / "direct_url.json").write_text(url, "utf-8")

    def run(
        self,
        side: str,
        *names: str,
        env: str = "",
        child: bool = True,
    ) -> Any:
        """What a worker of the side imports, and a child; ``env`` is the user's PYTHONPATH."""
        own, other = (self.a, self.b) if side == "A" else (self.b, self.a)
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                WORKER,
                str(self.site),
                json.dumps([str(own), [str(other)], names, child]),
            ],
            cwd=own,
            env={**os.environ, "PYTHONPATH": env},
            capture_output=True,
            text=True,
            check=False,
        )
        assert 0 == done.returncode, done.stderr
        *printed, told = done.stdout.splitlines()
        return json.loads(told) | {"printed": printed}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def by_pth_to_src(world: World) -> None:
    world.both("src/foo")
    world.pth(world.b / "src")


def by_pth_to_the_top(world: World) -> None:
    world.both("foo")
    world.pth(world.b)


def by_pth_deep_in_a_monorepo(world: World) -> None:
    world.both("packages/one/python/foo")
    world.pth(world.b / "packages" / "one" / "python")


def by_a_link(world: World) -> None:
    world.both("src/foo")
    (world.site.parent / "link").symlink_to(world.b)
    world.pth(world.site.parent / "link" / "src")


def not_at_all_src(world: World) -> None:
    world.both("src/foo")


def not_at_all_flat(world: World) -> None:
    world.both("foo.py")


def by_a_copy(world: World) -> None:
    world.both("src/foo")
    world.copy(source=world.b)


def by_a_copy_flat(world: World) -> None:
    world.both("foo")
    world.copy(source=world.b)


def by_a_copy_from_an_index(world: World) -> None:
    """And a build has left its notes beside the code."""
    world.both("foo")
    world.copy("foo-project")
    for tree in (world.a, world.b):
        (tree / "foo_project.egg-info").mkdir()
        (tree / "foo_project.egg-info" / "PKG-INFO").write_text("Name: foo-project\n", "utf-8")
        (tree / "foo_project.egg-info" / "SOURCES.txt").write_text("foo/__init__.py\n", "utf-8")
        (tree / "pyproject.toml").write_text('[project]\nname = "Foo.Project"\n', "utf-8")


def by_a_namespace(world: World) -> None:
    """Foo is a namespace package, which an installed distribution has a part of too."""
    world.both("src/foo/inner")
    for tree in (world.a, world.b):
        package(tree, "src/foo/__init__.py")
        (tree / "src" / "foo" / "__init__.py").unlink()
    package(world.site, "foo/others")
    world.pth(world.b / "src")


LAYOUTS = [
    by_pth_to_src,
    by_pth_to_the_top,
    by_pth_deep_in_a_monorepo,
    by_a_link,
    not_at_all_src,
    not_at_all_flat,
    by_a_copy,
    by_a_copy_flat,
    by_a_copy_from_an_index,
]


@pytest.mark.one_in(5)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_side_imports_its_own_code(world: World, layout: Callable[[World], None]) -> None:
    layout(world)
    results = {side: world.run(side, "foo") for side in "AB"}
    assert {"A": {"foo": "A"}, "B": {"foo": "B"}} == {
        side: result["values"] for side, result in results.items()
    }
    a, b = (result["origins"] for result in results.values())
    proven(a, b)
    assert {"A": ["A"], "B": ["B"]} == {side: r["child"] for side, r in results.items()}


def test_parts_of_a_namespace_package_stay_together(world: World) -> None:
    by_a_namespace(world)
    package(world.site, "foo/inner", "installed")
    result = world.run("A", "foo.inner", "foo.others")
    assert {"foo.inner": "A", "foo.others": world.site.name} == result["values"]
    assert {} == result["origins"]["foreign"] | result["origins"]["installed"]


@pytest.mark.thorough
def test_pythonpath_of_the_user_leads_to_this_side(world: World) -> None:
    world.both("python/foo")
    package(world.b, "only_here/bar")
    given = os.pathsep.join(map(str, (world.b / "python", world.b / "only_here", "/nowhere")))
    result = world.run("A", "foo", "bar", env=given)
    assert ({"foo": "A"}, ["A", "None"]) == (result["values"], result["child"])
    expected = [str(world.a / "python"), str(world.a), "/nowhere"]
    assert expected == result["PYTHONPATH"].split(os.pathsep)
    assert {"foo": "B", "bar": "B"} == world.run("B", "foo", "bar", env=given)["values"]


def test_nothing_of_the_standard_library_is_hidden(world: World) -> None:
    """A module of the checkout named as one of Python's stays behind, here and in children."""
    by_a_copy_flat(world)
    world.both("colorsys.py")
    result = world.run("A", "foo")
    assert {"foo": "A"} == result["values"]
    assert result["path"].index(str(Path(os.__file__).parent)) < result["path"].index(str(world.a))
    assert not result["PYTHONPATH"]


def test_an_installed_package_of_another_project_may_have_the_name(world: World) -> None:
    """As a folder "datasets" in a checkout."""
    world.both("foo")
    world.copy("elsewhere")
    (world.a / "pyproject.toml").write_text('[project]\nname = "mine"\n', "utf-8")
    result = world.run("A", "foo", child=False)
    assert {"foo": world.site.name} == result["values"]
    assert {} == result["origins"]["installed"]


def test_an_environment_in_the_checkout_is_used_by_both(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.site = world.b / ".venv" / "lib" / "python3" / "site-packages"
    package(world.site, "dependency", "installed")
    world.both("src/foo")
    world.pth(world.b / "src")
    for side in "AB":
        result = world.run(side, "foo", "dependency")
        assert {"foo": side, "dependency": "installed"} == result["values"]
        assert {} == result["origins"]["foreign"] | result["origins"]["installed"]


def test_code_that_only_one_tree_has_is_not_there_in_the_other(world: World) -> None:
    package(world.b, "src/foo")
    world.pth(world.b / "src")
    result = world.run("A", "foo")
    assert {"foo": "No module named 'foo'"} == result["errors"]


@pytest.mark.thorough
def test_pytest_starts_afterwards(world: World) -> None:
    """With conftest and tests of each side; that our package is loaded already is no warning."""
    world.both("src/foo")
    world.pth(world.b / "src")
    for tree in (world.a, world.b):
        (tree / "pyproject.toml").write_text(
            "[tool.pytest.ini_options]\n"
            "filterwarnings = ['error::pytest.PytestAssertRewriteWarning']\n",
            "utf-8",
        )
        (tree / "tests").mkdir()
        (tree / "tests" / "conftest.py").write_text("import foo", "utf-8")
        (tree / "tests" / "test_x.py").write_text("def test_x(): pass", "utf-8")
    (world.site / "session.py").write_text(
        "import pytest, os\nTREE = int(pytest.main(['-q', '-p', 'no:cacheprovider']))\n", "utf-8"
    )
    result = world.run("A", "session", child=False)
    assert {"session": 0} == result["values"], result["printed"]
    assert {} == result["origins"]["foreign"] | result["origins"]["installed"]


# Refusals


def test_code_of_the_other_tree_is_refused(world: World) -> None:
    """A loader that rebuilds code on import, first of all finders, as meson-python's."""
    world.both("src/foo")
    loader = f"""
import importlib.util, sys
FILE = {str(world.b / "src/foo/__init__.py")!r}
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "foo":
            return importlib.util.spec_from_file_location(name, FILE)
sys.meta_path.insert(0, Finder())
"""
    (world.site / "rebuilding.py").write_text(loader, "utf-8")
    world.pth("import rebuilding")
    a, b = world.run("A", "foo")["origins"], world.run("B", "foo")["origins"]
    with pytest.raises(AbError) as caught:
        proven(a, b)
    assert (
        "side A ran code from outside its tree: "
        f"foo is imported from {world.b}/src/foo/__init__.py, in the tree of B, not from {world.a};"
        " install each side into its own environment and pass them with"
        " --python-a and --python-b"
    ) == str(caught.value)


def test_a_package_that_searches_the_other_tree_too_is_refused(world: World) -> None:
    world.both("src/foo")
    with (world.a / "src/foo/__init__.py").open("a") as file:
        file.write(f"__path__.append({str(world.b / 'src/foo')!r})\n")
    a = world.run("A", "foo")["origins"]
    assert {"foo": str(world.b / "src/foo")} == a["foreign"]
    with pytest.raises(AbError, match="in the tree of B"):
        proven(a, world.run("B", "foo")["origins"])


def test_a_link_into_the_checkout_is_refused(world: World) -> None:
    package(world.b, "src/foo")
    (world.a / "src").symlink_to(world.b / "src")
    assert ["foo"] == list(world.run("A", "foo")["origins"]["foreign"])


@pytest.mark.thorough
def test_an_installed_copy_is_refused(world: World) -> None:
    """Pip notes the folder that it copied from; a monorepo's layout tells nothing."""
    world.both("packages/one/foo")
    world.copy(source=world.b / "packages/one")
    a, b = world.run("A", "foo")["origins"], world.run("B", "foo")["origins"]
    with pytest.raises(AbError) as caught:
        proven(a, b)
    assert (
        "side A ran an installed copy of its code, the same on both sides: "
        f"foo is imported from {world.site}/foo/__init__.py, not from {world.a};"
        " install it with `pip install -e .`, or set PYTHONPATH to the folder it is in"
    ) == str(caught.value)


def told(root: str, **more: dict[str, str]) -> dict[str, Any]:
    empty: dict[str, Any] = {"foreign": {}, "installed": {}, "others": []}
    return empty | {"root": root} | more


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (told("/a"), told("/b"), None),
        (told("/a", foreign={"m": "/b/m.py"}), told("/b"), "side A .* in the tree of B"),
        (told("/a"), told("/b", foreign={"m": "/a/m.py"}), "side B .* in the tree of A"),
        (told("/a"), told("/b", foreign={"m": "/c/m.py"}), "side B .* in your checkout"),
        (told("/a"), told("/b", installed={"m": "/s/m.py"}), "side B ran an installed copy"),
    ],
)
def test_both_sides_are_to_be_proven(a: Any, b: Any, message: str | None) -> None:
    if message is None:
        proven(a, b)
    else:
        with pytest.raises(AbError, match=message):
            proven(a, b)


# Whose a path is


@pytest.mark.parametrize(
    ("path", "owner"),
    [
        ("own/x.py", "own"),
        ("own", "own"),
        ("own-not/x.py", None),
        ("other/x.py", "other"),
        ("own/nested/x.py", "own/nested"),
        ("other/.venv/lib/python3/site-packages/x.py", None),
        ("other/lib.zip/x.py", "other"),
        ("x.py", None),
    ],
)
def test_a_path_belongs_to_the_deepest_tree(tmp_path: Path, path: str, owner: str | None) -> None:
    trees = Trees(str(tmp_path / "own"), [str(tmp_path / "other"), str(tmp_path / "own/nested")])
    expected = None if owner is None else str(tmp_path / owner)
    assert expected == trees.owner(str(tmp_path / path))


# A real editable install


@pytest.mark.thorough
@pytest.mark.parametrize("layout", ["src/foo", "foo"])
def test_a_real_editable_install_is_not_what_a_imports(tmp_path: Path, layout: str) -> None:
    if not {"pip", "setuptools"} <= {d.name for d in importlib.metadata.distributions()}:
        pytest.skip("setuptools and pip are needed for an editable install")
    world = World(tmp_path)
    world.both(layout)
    where = 'package-dir = {"" = "src"}' if layout.startswith("src") else ""
    (world.b / "pyproject.toml").write_text(
        f"""
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "foo"
version = "1.0"
[tool.setuptools]
packages = ["foo"]
{where}
""",
        "utf-8",
    )
    words = "pip install -q --no-index --no-build-isolation --no-deps --disable-pip-version-check"
    subprocess.run(
        [sys.executable, "-m", *words.split(), "--target", str(world.site), "-e", str(world.b)],
        check=True,
        capture_output=True,
    )
    results = {side: world.run(side, "foo") for side in "AB"}
    assert [{"foo": "A"}, {"foo": "B"}] == [result["values"] for result in results.values()]
    proven(results["A"]["origins"], results["B"]["origins"])
