"""Which class a running module is of, and which ones run inside it unseen."""

from __future__ import annotations

from typing import Any

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


class RunningModules:
    """The running modules, from the outermost in."""

    def __init__(self) -> None:
        #: Each with its class, and the parts of it that have not been seen to run.
        self._running: list[tuple[Any, str, dict[int, str]]] = []
        #: By id: the module, kept alive so that its id is not reused, and its parts' classes.
        self._known: dict[int, tuple[Any, dict[int, str]]] = {}
        #: Classes of modules that may have run unseen.
        self.unseen: set[str] = set()

    def innermost(self) -> Any:
        """The module that was entered last."""
        return self._running[-1][0] if self._running else None

    def enter(self, module: Any) -> str:
        """A module runs; return its class."""
        for _, _, parts in self._running:
            parts.pop(id(module), None)
        name = class_name(module)
        if id(module) not in self._known:
            self._known[id(module)] = module, _inner_classes(module)
        # What is inside another one of its class counts anyway.
        around = {name, *(kind for _, kind, _ in self._running)}
        parts = self._known[id(module)][1]
        self._running.append((module, name, {i: k for i, k in parts.items() if k not in around}))
        return name

    def leave(self) -> None:
        """The last module has returned."""
        self.unseen |= set(self._running.pop()[2].values())

    def forget(self) -> None:
        """Release all of them."""
        self._running.clear()
        self._known.clear()
