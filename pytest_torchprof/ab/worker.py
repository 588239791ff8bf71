"""The process of one side: a pytest session that runs what the controller requests."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pytest_torchprof.ab import imports
from pytest_torchprof.core.errors import TorchprofError

Message = tuple[Any, ...]


class Channel:
    """The worker's end of the channel. A child forked by a test must not use it."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self._getpid, self._exit = os.getpid, os._exit
        self._pid = os.getpid()

    def tell(self, message: Message) -> None:
        """Send a message of builtin types."""
        if self._getpid() != self._pid:
            self._exit(0)
        self._channel.send(message)

    def exchange(self, message: Message) -> Message:
        """Send a message, and wait for the next command."""
        self.tell(message)
        answer: Message = self._channel.receive()
        return answer


def serve(channel: Any, side: Mapping[str, Any]) -> None:
    """Run pytest until the controller sends no more requests.

    ``side``: name, root, others, args, and a folder for temporary files. The last message reports
    the end: ``("ended", `End`)``.
    """
    line = Channel(channel)
    root, others = side["root"], side["others"]
    imports.redirect(root, others)
    # pytest warns of plugins that are imported before it, and a warning may be an error. This word
    # prevents that, see pytest's "Assertion Rewriting".
    package = sys.modules["pytest_torchprof"]
    package.__doc__ = f"{package.__doc__} PYTEST_DONT_REWRITE"
    import pytest

    from pytest_torchprof.ab.messages import End
    from pytest_torchprof.ab.worker_plugin import WorkerPlugin
    from pytest_torchprof.core.reasons import Why, because

    folder = Path(side["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    found: Callable[[], dict[str, Any]] = lambda: imports.origins(root, others)  # noqa: E731
    plugin = WorkerPlugin(line.exchange, folder, found, side["wanted"])
    args = ["-o", f"cache_dir={folder / 'cache'}", *side["args"]]
    sys.argv = ["pytest", *side["args"]]
    error = None
    try:
        code = int(pytest.main(args, plugins=[plugin]))
    except TorchprofError as refused:
        code = int(pytest.ExitCode.USAGE_ERROR)
        error = because(Why.ERROR, message=str(refused))
    sys.stdout.flush()
    sys.stderr.flush()
    end = End(code, error, plugin.reached, imports.origins(root, others))
    line.tell(("ended", end.sent()))
