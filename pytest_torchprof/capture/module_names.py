"""Paths of running modules, as a user writes them."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from pytest_torchprof.capture.machine import real_torch
from pytest_torchprof.capture.module_classes import class_name, weakly
from pytest_torchprof.capture.user_frames import frames_of_test


class ModuleNames:
    """Paths of the running modules, such as ``model.layers.3.attn``.

    The outermost has the name that a user's frame has for it, else that of its class. No module is
    kept alive: see `weakly`.
    """

    def __init__(self, is_users: Callable[[FrameType], bool]) -> None:
        self._is_users = is_users
        self._kind: type = real_torch().module
        #: The ids of frames whose local variables were read. Up to Python 3.12, that keeps them
        #: alive until they are read again.
        self.read: set[int] = set()
        #: The running ones: what is below the root, and the root's path.
        self._running: list[tuple[dict[int, str], str]] = []
        #: By id: the module, and names below it.
        self._known: dict[int, tuple[Callable[[], Any], dict[int, str]]] = {}
        #: By id and caller: the module, and its path.
        self._roots: dict[tuple[int, CodeType | None], tuple[Callable[[], Any], str]] = {}

    def enter(self, frame: FrameType) -> str:
        """The path of the module whose call this frame is."""
        module = frame.f_locals["self"]
        if self._running:
            names, path = self._running[-1]
            below = names.get(id(module))
            if below is not None:
                self._running.append((names, path))
                return f"{path}.{below}" if below else path
        callers = [f for f in frames_of_test(frame.f_back) if self._is_users(f)]
        key = id(module), callers[0].f_code if callers else None
        names = self._below(module)
        known = self._roots.get(key)
        if known is None or known[0]() is not module:
            try:
                path = self._as_known(module, callers)
            except Exception:  # noqa: BLE001 - attributes of users' objects may do anything
                path = class_name(module)
            known = self._roots[key] = weakly(module), path
        self._running.append((names, known[1]))
        return known[1]

    def leave(self) -> None:
        """The module that was entered last has returned."""
        self._running.pop()

    def forget(self) -> None:
        """Release all names."""
        for known in (self._running, self._known, self._roots):
            known.clear()

    def _below(self, root: Any, *, anew: bool = False) -> dict[int, str]:
        known = self._known.get(id(root))
        if known is None or known[0]() is not root:  # an id is reused
            known = self._known[id(root)] = weakly(root), {}
            anew = True
        names = known[1]
        if anew:
            names.clear()  # in place, for those that run
            names.update(_names_below(root))
        return names

    def _as_known(self, module: Any, callers: list[FrameType]) -> str:
        tail = ""
        for frame in callers:
            self.read.add(id(frame))
            # pytest's own names for the intermediate values of an ``assert`` are not the user's.
            names = {n: value for n, value in frame.f_locals.items() if n.isidentifier()}
            me = names.pop("self", None)
            if me is module:  # its own method: check the caller
                continue
            if isinstance(me, self._kind):
                below = self._below(me).get(id(module)) or self._below(me, anew=True).get(
                    id(module)
                )
                if below:
                    tail, module = f".{below}{tail}", me
                    continue
            everything = names, getattr(me, "__dict__", {}), frame.f_globals
            pairs = [pair for known in everything for pair in known.items()]
            for name, value in pairs:
                if value is module:
                    return name + tail
            for name, value in pairs:
                if isinstance(value, self._kind):
                    below = self._below(value).get(id(module))
                    if below:
                        return f"{name}.{below}{tail}"
        return class_name(module) + tail


def _names_below(root: Any) -> dict[int, str]:
    """The path of each module in this one, by its id."""
    try:
        # A module wrapped by torch.compile has the wrapper's name.
        return {
            id(module): ".".join(part for part in name.split(".") if part != "_orig_mod")
            for name, module in root.named_modules()
        }
    except Exception:  # noqa: BLE001 - a user may have overridden it
        return {id(root): ""}
