"""A headless Chromium for tests of pages, driven through its debugging pipe: no package, no port, no network.

Debian's package `chromium` brings the browser; where none is found, tests that ask for it are skipped and counted.
"""
from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run",
         "--remote-debugging-pipe", "--disable-background-networking", "--disable-component-update", "--disable-default-apps",
         "--disable-sync", "--force-device-scale-factor=1", "--host-resolver-rules=MAP * ~NOTFOUND")

# The browser reads file 3 and writes file 4: a process moves them there, by way of numbers above both, and becomes the browser.
_START = """
import fcntl, os, sys
read, write = (fcntl.fcntl(int(n), fcntl.F_DUPFD, 10) for n in sys.argv[1:3])
os.dup2(read, 3)
os.dup2(write, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def found() -> str:
    """Path of an installed Chromium or Chrome; "" where there is none."""
    return next((path for name in ("chromium", "chromium-browser", "google-chrome", "chrome") if (path := shutil.which(name))), "")


class Browser:
    """One browser with one tab. `problems` collects errors of scripts, of the console and of loading."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        browser = [found(), *FLAGS, f"--user-data-dir={self._folder.name}", "about:blank"]
        self._process = subprocess.Popen([sys.executable, "-c", _START, str(to_read), str(to_write), *browser],
                                         pass_fds=(to_read, to_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(to_write)
        self._number = 0
        self._text = b""
        self._session = ""
        self._events: list[dict[str, Any]] = []
        target = next(t for t in self._call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self._session = self._call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def close(self) -> None:
        """Ends the browser."""
        self._session = ""
        try:
            self._call("Browser.close")
        except (OSError, EOFError):
            pass
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
        os.close(self._write)
        os.close(self._read)
        self._folder.cleanup()

    def resize(self, width: int, height: int) -> None:
        """Size of the window. Units: pixels."""
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def open(self, path: Path) -> None:
        """Loads a file and waits for it. Afterwards `problems` holds those of this page."""
        self.problems.clear()
        self._events.clear()
        self._call("Page.navigate", url=path.resolve().as_uri())
        while not any(e["method"] == "Page.loadEventFired" for e in self._events):
            self._take()
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page; promises are awaited. Raises: AssertionError where it throws."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"].get("exception", answer["exceptionDetails"])
        return answer["result"].get("value")

    def click(self, x: float, y: float, *, shift: bool = False, count: int = 1) -> None:
        """A click of the mouse; `count` 2 for a double click. Units: pixels of the window."""
        for turn in range(1, count + 1):
            for kind in ("mousePressed", "mouseReleased"):
                self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=turn, modifiers=8 if shift else 0)

    def type(self, text: str) -> None:
        """Text into what has the focus."""
        self._call("Input.insertText", text=text)

    def press(self, key: str) -> None:
        """One key, by its name."""
        code = {"Enter": 13, "Escape": 27}[key]
        for kind in ("keyDown", "keyUp"):
            self._call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code,
                       **({"text": "\r"} if key == "Enter" and kind == "keyDown" else {}))

    def screenshot(self, path: Path) -> None:
        """The window as a PNG file."""
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"]))

    def _call(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._take()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def _take(self) -> dict[str, Any]:
        """The next message; events are kept, and those that tell of a problem become one."""
        while b"\0" not in self._text:
            data = os.read(self._read, 1 << 20)
            if not data:
                raise EOFError("the browser has ended")
            self._text += data
        line, _, self._text = self._text.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        if "method" in message:
            self._events.append(message)
            told = message["params"]
            match message["method"]:
                case "Runtime.exceptionThrown":
                    details = told["exceptionDetails"]
                    self.problems.append(details.get("exception", {}).get("description", details["text"]))
                case "Runtime.consoleAPICalled" if told["type"] in ("error", "warning", "assert"):
                    self.problems.append(" ".join(str(a.get("value", a.get("description"))) for a in told["args"]))
                case "Log.entryAdded" if told["entry"]["level"] == "error":
                    self.problems.append(told["entry"]["text"])
        return message
