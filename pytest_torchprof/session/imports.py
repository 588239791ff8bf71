"""Code that draws random numbers where no seed of a test reaches: imports and wider fixtures."""

from __future__ import annotations

import ast
import re
import sysconfig
import threading
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import cache, partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

import pytest
from _pytest.assertion.rewrite import AssertionRewritingHook

from pytest_torchprof.capture.patches import PATCH_GUARD
from pytest_torchprof.capture.state import OutsideDraws
from pytest_torchprof.core.errors import TorchprofError
from pytest_torchprof.session.options import OPTIONS, seed_imports

if TYPE_CHECKING:
    from pytest_torchprof.core.values import Settings


# ---- Tells when a file of the project begins and ends to be imported, unseen by what it imports.

#: What imports Python's files: Python itself, and pytest, where it rewrites asserts.
_LOADERS: Final = (SourceFileLoader, AssertionRewritingHook)
#: Tracebacks and warnings skip frames of this file, as they do without us.
_PYTHON_FILE: Final = "<frozen importlib._bootstrap_external>"
#: Modules that have a generator of the process.
_WITH_GENERATORS: Final = {"torch", "numpy.random"}


@contextmanager
def watching(
    begin: Callable[[str], None], end: Callable[[str], None], loaded: Callable[[], None]
) -> Iterator[None]:
    """Call ``begin`` and ``end`` with the path of each file of the project that is imported here.

    ``loaded`` is called after the import of a module with random generators. Installed files are
    none of the project's. Imports of other threads are not told.
    """
    here = threading.get_ident()
    with ExitStack() as undo:
        for loader in _LOADERS:
            original: Any = loader.exec_module

            def exec_module(own: Any, module: Any, original: Any = original) -> None:
                name, path = getattr(module, "__name__", ""), str(getattr(module, "__file__", ""))
                ours = threading.get_ident() == here and path != ""
                is_told = ours and name not in _WITH_GENERATORS and _is_projects(path)
                if is_told:
                    begin(path)
                try:
                    original(own, module)
                except BaseException as error:
                    # From Python 3.11 on, this shows no frame of ours.
                    error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
                    raise
                finally:
                    if is_told:
                        end(path)
                if ours and name in _WITH_GENERATORS:
                    loaded()

            unseen = _unseen(exec_module)
            inherited = "exec_module" not in vars(loader)
            loader.exec_module = unseen  # type: ignore[method-assign]
            undo.callback(_put_back, loader, unseen, None if inherited else original)
        yield


def _unseen(function: Any) -> Any:
    """The function, with a frame that looks like one of Python's own imports."""
    code = function.__code__.replace(co_filename=_PYTHON_FILE)
    return FunctionType(
        code, function.__globals__, "exec_module", function.__defaults__, function.__closure__
    )


def _put_back(loader: Any, ours: Any, original: Any) -> None:
    """Undo a replacement, unless somebody has replaced it since."""
    if vars(loader).get("exec_module") is not ours:
        return
    if original is None:
        del loader.exec_module
    else:
        loader.exec_module = original


@cache
def _installed() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple({paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def _is_projects(path: str) -> bool:
    return not (path.startswith(_installed()) or "site-packages" in path or "dist-packages" in path)


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
