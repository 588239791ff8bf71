"""A headless Chromium, driven through its pipe for debuggers: no other package is needed.

The protocol is that of https://chromedevtools.github.io/devtools-protocol/, a JSON object a
message, each with a NUL behind it.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
    *("--disable-dev-shm-usage", "--disable-background-networking", "--remote-debugging-pipe"),
)
_LONGEST_S = 20.0


def chromium() -> str | None:
    """The program; None if there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Tab:
    """A page in the browser: what it asked for, what its console said, and what is in it."""

    def __init__(self, program: str, folder: Path) -> None:
        read_there, self._to = os.pipe()
        self._from, write_there = os.pipe()

        def connect() -> None:
            low, high = os.dup(read_there), os.dup(write_there)  # not among 3 and 4
            os.dup2(low, 3)
            os.dup2(high, 4)

        self._process = subprocess.Popen(
            [program, *_FLAGS, f"--user-data-dir={folder}", "about:blank"],
            preexec_fn=connect,  # noqa: PLW1509 - the pipe's numbers are fixed
            pass_fds=(3, 4),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_there)
        os.close(write_there)
        self._rest = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        (page,) = [
            one for one in self.say("Target.getTargets")["targetInfos"] if one["type"] == "page"
        ]
        attached = self.say("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.say(f"{domain}.enable")

    def say(self, method: str, **parameters: Any) -> Any:
        """Give a command; its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def _next(self) -> dict[str, Any]:
        until = time.monotonic() + _LONGEST_S
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], until - time.monotonic())
            assert ready, "the browser does not answer"
            part = os.read(self._from, 1 << 16)
            assert part, "the browser has gone"
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def open(self, address: str) -> None:
        """Load it, and wait until it is there."""
        for url in ("about:blank", address):  # to another anchor of a page, nothing is loaded
            self.events.clear()
            self.say("Page.navigate", url=url)
            while not any(one.get("method") == "Page.loadEventFired" for one in self.events):
                self.events.append(self._next())

    def ask(self, expression: str) -> Any:
        """The value of an expression of JavaScript."""
        answer = self.say("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def key(self, text: str) -> None:
        """Press a key that types this."""
        self.say("Input.dispatchKeyEvent", type="keyDown", key=text, text=text)
        self.say("Input.dispatchKeyEvent", type="keyUp", key=text)

    @property
    def requests(self) -> list[str]:
        """The addresses that the page has asked for."""
        sent = [one for one in self.events if one.get("method") == "Network.requestWillBeSent"]
        return [one["params"]["request"]["url"] for one in sent]

    @property
    def complaints(self) -> list[str]:
        """What the console has."""
        kinds = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [json.dumps(one["params"]) for one in self.events if one.get("method") in kinds]

    def look(self, width: int, height: int, *, dark: bool = False) -> None:
        """Set the window's size and the user's wish for colors."""
        self.say("Emulation.setDeviceMetricsOverride", width=width, height=height,
                 deviceScaleFactor=1, mobile=False)  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.say("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """Save what is in the window, or all of the page, as a PNG."""
        shot = self.say("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        """End the browser."""
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)


@contextmanager
def tab(program: str, folder: Path) -> Iterator[Tab]:
    """A browser with one page, which keeps its files in the folder."""
    opened = Tab(program, folder)
    try:
        yield opened
    finally:
        opened.close()
