"""Code that draws random numbers where no seed of a test reaches: imports and wider fixtures."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_torchprof.capture.outside_draws import OutsideDraws
from pytest_torchprof.capture.patch_guard import PATCH_GUARD
from pytest_torchprof.core.errors import TorchprofError
from pytest_torchprof.session.import_watch import watching
from pytest_torchprof.session.options import OPTIONS
from pytest_torchprof.session.switches import seed_imports

if TYPE_CHECKING:
    from pytest_torchprof.core.settings import Settings

#: What has watched the import of the first conftest.py files.
OUTSIDE = pytest.StashKey["Outside"]()
#: Fixtures that pytest makes of ``setup_module``, ``setUpClass`` and the like.
_MADE_OF = re.compile(r"_(?:xunit|unittest)_(\w+?)_fixture_")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Outside:
    """Seeds what is drawn outside of tests, and notes who draws in spite of it.

    ``seed`` and ``seed_imports`` are those of `Settings`. Nothing that goes wrong here, as after a
    file has replaced torch, may fail an import.
    """

    def __init__(self, seed: int | None, seed_imports: bool | None) -> None:
        number = None if seed_imports is False else seed
        self.draws = OutsideDraws(number, whole=seed_imports is True)
        #: The generators from which a file, or a fixture (``path::name``), drew.
        self.found: dict[str, list[str]] = {}

    @classmethod
    def of(cls, config: pytest.Config, settings: Settings) -> Outside:
        """That of a session, which tells who draws only while accepting."""
        outside = config.stash.get(OUTSIDE, None) or cls(settings.seed, settings.seed_imports)
        if not settings.accept:
            outside.draws.stop_notes()
        return outside

    @contextmanager
    def imports(self) -> Iterator[None]:
        """While files are imported."""
        with watching(self._begin_file, self._end, self._loaded):
            yield

    @contextmanager
    def block(self, name: str, key: str) -> Iterator[None]:
        """One block of code with a name for its seed, and one to tell of it."""
        self._begin(name)
        try:
            yield
        finally:
            self._end(key)

    def _begin_file(self, path: str) -> None:
        self._begin(Path(path).name)

    def _begin(self, name: str) -> None:
        with suppress(Exception), PATCH_GUARD:
            self.draws.begin(name)

    def _end(self, key: str) -> None:
        with suppress(Exception), PATCH_GUARD:
            if drawn := self.draws.end(partial(mentions_seed, key)):
                self.found[key] = drawn

    def _loaded(self) -> None:
        with suppress(Exception), PATCH_GUARD:
            self.draws.loaded()


def mentions_seed(key: str) -> bool:
    """Whether a block's code mentions a seed: a fixture's function, or what a file runs at once.

    A function that the file calls runs at once, too.
    """
    path, _, function = key.partition("::")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # as of an invalid escape, which the import has told
            todo: list[ast.AST] = [ast.parse(Path(path).read_bytes())]
    except (OSError, SyntaxError, ValueError):
        return False
    defined = {one.name: one for one in ast.walk(todo[0]) if isinstance(one, _FUNCTIONS)}
    if function in defined:
        todo = [*ast.iter_child_nodes(defined[function])]
    while todo:
        one = todo.pop()
        names = [getattr(one, field, None) for field in ("id", "attr", "name", "arg", "module")]
        if not isinstance(one, _FUNCTIONS):
            if any("seed" in name.lower() for name in names if isinstance(name, str)):
                return True
            todo += ast.iter_child_nodes(one)
            called = one.func if isinstance(one, ast.Call) else None
            if isinstance(called, ast.Name) and called.id in defined:
                todo += ast.iter_child_nodes(defined.pop(called.id))
    return False


def early_imports(config: pytest.Config) -> AbstractContextManager[None]:
    """The import of the first conftest.py files, before the options are parsed as a whole.

    Invalid values of options are told later.
    """
    if OUTSIDE in config.stash:
        return nullcontext()
    given = config.known_args_namespace
    seed, seeds_imports = None, None
    with suppress(TorchprofError, pytest.UsageError, ValueError):
        row = next(option for option in OPTIONS if option.name == "seed")
        text = getattr(given, row.dest, None) or config.getini(row.dest) or row.default
        seed, seeds_imports = row.parse(str(text)), seed_imports(config, given)
    config.stash[OUTSIDE] = outside = Outside(seed, seeds_imports)
    return outside.imports()


class ImportingHooks:
    """Files and fixtures draw the same in each process, see `Outside`."""

    settings: Settings
    outside: Outside

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection(self) -> Generator[None, object, object]:
        """Collecting imports files."""
        with self.outside.imports():
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Files and classes are also asked for the arguments of their tests."""
        if not isinstance(collector, (pytest.Module, pytest.Class)):
            return (yield)
        name = f"{collector.path.name}::{collector.nodeid.partition('::')[2]}"
        with self.outside.block(name, str(collector.path)):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Generator[None, object, object]:
        """A fixture with a wider scope than the function is set up once, for all runs."""
        with self._block_of(fixturedef, request):
            try:
                return (yield)
            except BaseException as error:
                # From Python 3.11 on, this shows no frame of ours.
                error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
                raise

    def _block_of(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> AbstractContextManager[None]:
        if fixturedef.scope == "function":
            return nullcontext()
        name, number = fixturedef.argname, getattr(request, "param_index", 0)
        file = getattr(getattr(fixturedef.func, "__code__", None), "co_filename", "")
        if (made := _MADE_OF.match(name)) is not None:
            file, name = str(request.config.rootpath / fixturedef.baseid), made[1]
        seeded = f"{Path(file).name}::{fixturedef.argname}[{number}]"
        return self.outside.block(seeded, f"{file}::{name}")
