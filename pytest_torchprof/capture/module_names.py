"""Paths of running modules, as a user writes them."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from pytest_torchprof.capture.machine import real_torch
from pytest_torchprof.capture.module_classes import class_name
from pytest_torchprof.capture.user_frames import frames_of_test


class ModuleNames:
    """Paths of the running modules, such as ``model.layers.3.attn``.

    The outermost has the name that a user's frame has for it, else that of its class.
    """

    def __init__(self, is_users: Callable[[FrameType], bool]) -> None:
        self._is_users = is_users
        self._kind: type = real_torch().module
        #: The running ones: the root, and the root's path.
        self._running: list[tuple[Any, str]] = []
        #: By id: the module, kept alive so that its id is not reused, and names below it.
        self._known: dict[int, tuple[Any, dict[int, str]]] = {}
        self._roots: dict[tuple[int, CodeType | None], str] = {}

    def enter(self, frame: FrameType) -> str:
        """The path of the module whose call this frame is."""
        module = frame.f_locals["self"]
        if self._running:
            root, path = self._running[-1]
            below = self._below(root).get(id(module))
            if below is not None:
                self._running.append((root, path))
                return f"{path}.{below}" if below else path
        callers = [f for f in frames_of_test(frame.f_back) if self._is_users(f)]
        key = id(module), callers[0].f_code if callers else None
        if key not in self._roots:
            self._below(module)
            try:
                self._roots[key] = self._as_known(module, callers)
            except Exception:  # noqa: BLE001 - attributes of users' objects may do anything
                self._roots[key] = class_name(module)
        self._running.append((module, self._roots[key]))
        return self._roots[key]

    def leave(self) -> None:
        """The module that was entered last has returned."""
        self._running.pop()

    def forget(self) -> None:
        """Release all modules."""
        for known in (self._running, self._known, self._roots):
            known.clear()

    def _below(self, root: Any, *, anew: bool = False) -> dict[int, str]:
        if anew or id(root) not in self._known:
            try:
                # A module wrapped by torch.compile has the wrapper's name.
                names = {
                    id(module): ".".join(p for p in name.split(".") if p != "_orig_mod")
                    for name, module in root.named_modules()
                }
            except Exception:  # noqa: BLE001 - a user may have overridden it
                names = {id(root): ""}
            self._known[id(root)] = root, names
        return self._known[id(root)][1]

    def _as_known(self, module: Any, callers: list[FrameType]) -> str:
        tail = ""
        for frame in callers:
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
