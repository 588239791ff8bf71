"""Which class a running module is of, and which ones run inside it unseen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

from pytest_torchprof.capture.machine import real_torch

#: The name that a class has, whatever its metaclass or an attribute says.
_name_of = type.__dict__["__name__"].__get__


def class_name(module: Any) -> str:
    """The class of a module as its author knows it.

    For one that `torch.compile`, ``torch.jit.script`` or ``torch.jit.trace`` made, it is that of
    the original.
    """
    try:
        original = _original(module)
        if _is_scripted(original):
            return str(original.original_name or _name_of(type(original)))
        return str(_name_of(type(original)))
    except Exception:  # noqa: BLE001 - attributes of users' objects may do anything
        return str(_name_of(type(module)))


def _original(module: Any) -> Any:
    """The module that `torch.compile` has wrapped, else the module itself."""
    if _is_scripted(module):  # its dictionaries are of another kind
        return module
    original = (vars(module).get("_modules") or {}).get("_orig_mod")
    return module if original is None else original


def _is_scripted(module: Any) -> bool:
    return issubclass(type(module), real_torch().scripted)


def _hides_modules(module: Any) -> bool:
    """Whether its parts may run without their Python calls."""
    if _is_scripted(module) or _original(module) is not module:
        return True
    return vars(module).get("_compiled_call_impl") is not None


def _inner_classes(module: Any) -> dict[int, str]:
    """By id, the class of each part that may run unseen while this module runs."""
    try:
        if not _hides_modules(module):
            return {}
        parts = [part for _, part in module.named_modules()]
        return {id(part): class_name(part) for part in parts if part is not module}
    except Exception:  # noqa: BLE001 - see above
        return {}


def weakly(module: Any) -> Callable[[], Any]:
    """Returns the module when it is called, or None once nobody else has it.

    A module must end when it would without us. Its end may do anything: that of a DDP model may end
    its process group, which holds Python's lock while it waits for threads that need the lock, if
    the user has destroyed the group before. Source: torch/csrc/distributed/c10d, where the binding
    of ``ProcessGroup`` releases the lock and that of ``Reducer`` does not.
    """
    try:
        return ref(module)
    except TypeError:  # an object of another kind that says it is a module
        return lambda: module


class RunningModules:
    """The running modules, from the outermost in; none is kept alive, see `weakly`."""

    def __init__(self) -> None:
        #: Each with its class, and the parts of it that have not been seen to run.
        self._running: list[tuple[Callable[[], Any], str, dict[int, str]]] = []
        #: By id: the module, and its parts' classes.
        self._known: dict[int, tuple[Callable[[], Any], dict[int, str]]] = {}
        #: Classes of modules that may have run unseen.
        self.unseen: set[str] = set()

    def innermost(self) -> Any:
        """The module that was entered last."""
        return self._running[-1][0]() if self._running else None

    def enter(self, module: Any) -> str:
        """A module runs; return its class."""
        for _, _, parts in self._running:
            parts.pop(id(module), None)
        name = class_name(module)
        known = self._known.get(id(module))
        if known is None or known[0]() is not module:  # an id is reused
            known = self._known[id(module)] = weakly(module), _inner_classes(module)
        me, parts = known
        # What is inside another one of its class counts anyway.
        around = {name, *(kind for _, kind, _ in self._running)}
        self._running.append((me, name, {i: k for i, k in parts.items() if k not in around}))
        return name

    def leave(self) -> None:
        """The last module has returned."""
        self.unseen |= set(self._running.pop()[2].values())

    def forget(self) -> None:
        """Release all of them."""
        self._running.clear()
        self._known.clear()
