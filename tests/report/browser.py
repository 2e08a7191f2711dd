"""A real Chromium without a window, driven over a pipe by its own protocol: no driver, no package.

>>> with Browser(tmp_path) as browser:
...     browser.open(file)
...     browser.click("#fit")
...     assert browser.errors == []
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE = 60  # seconds, on a machine that is busy with other tests
WHY = "no chromium here; on Debian: apt-get install -y --no-install-recommends chromium fonts-dejavu-core"


def chromium() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One page in one process; `errors` are exceptions, console errors and whatever could not be fetched."""

    def __init__(self, folder: Path, dark: bool = False, width: int = 1400, height: int = 1000) -> None:
        self.folder, self.dark, self.size = folder, dark, (width, height)
        self.errors: list[str] = []
        self.fetched: list[str] = []
        self.loaded = False

    def __enter__(self) -> Browser:
        to_browser, self.send_to = os.pipe()
        self.read_from, from_browser = os.pipe()
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                 "--disable-extensions", "--disable-background-networking", "--disable-component-update",
                 f"--window-size={self.size[0]},{self.size[1]}", f"--user-data-dir={self.folder / 'profile'}",
                 "--remote-debugging-pipe", "about:blank"]  # fmt: skip
        # the protocol's pipe is at 3 and 4 in the browser, whatever numbers it has here
        script = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        self.process = subprocess.Popen(
            ["bash", "-c", script, "bash", str(chromium()), *flags], pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self.number, self.rest, self.session = 0, b"", ""
        pages = [t for t in self.ask("Target.getTargets")["targetInfos"] if t["type"] == "page"]
        page = pages[0]["targetId"] if pages else self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        scheme = {"name": "prefers-color-scheme", "value": "dark" if self.dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        return self

    def __exit__(self, *_: object) -> None:
        self.session = ""
        try:
            self.ask("Browser.close")
            self.process.wait(20)
        except (EOFError, OSError, TimeoutError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait(20)
        os.close(self.send_to)
        os.close(self.read_from)

    def ask(self, method: str, **parameters: Any) -> Any:
        """A command and its answer; events that come in between are looked at."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.send_to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self.number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self.rest:
            if not select.select([self.read_from], [], [], PATIENCE)[0]:
                raise TimeoutError(f"chromium has said nothing for {PATIENCE} s")
            more = os.read(self.read_from, 1 << 16)
            if not more:
                raise EOFError("chromium has gone")
            self.rest += more
        first, _, self.rest = self.rest.partition(b"\0")
        found: dict[str, Any] = json.loads(first)
        self._look(found.get("method", ""), found.get("params", {}))
        return found

    def _look(self, event: str, about: dict[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(about["exceptionDetails"]))
        elif event == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning", "assert"):
            self.errors.append(json.dumps(about["args"]))
        elif event == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
            self.errors.append(about["entry"]["text"])
        elif event == "Network.requestWillBeSent":
            self.fetched.append(about["request"]["url"])
        elif event == "Page.loadEventFired":
            self.loaded = True

    def open(self, file: Path) -> None:
        self.loaded, self.fetched = False, []
        self.ask("Page.navigate", url=file.as_uri())
        while not self.loaded:
            self._next()

    def phone(self, width: int = 390, height: int = 844) -> None:
        """From now on, a screen of this size."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=True)

    def value(self, script: str) -> Any:
        """What an expression gives in the page."""
        found = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def text(self, selector: str) -> str:
        return str(self.value(f"document.querySelector({json.dumps(selector)}).textContent"))

    def place(self, selector: str) -> tuple[float, float]:
        """The middle of an element, scrolled into view."""
        at = f"document.querySelector({json.dumps(selector)})"
        x, y = self.value(
            f"(() => {{ const e = {at}; e.scrollIntoView({{block: 'nearest'}}); const r = e.getBoundingClientRect();"
            f" return [r.x + r.width / 2, r.y + r.height / 2]; }})()"
        )
        return x, y

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, selector: str) -> None:
        """With the mouse, where the element is: something above it would get the click instead."""
        x, y = self.place(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="left", buttons=1, clickCount=1)

    def drag(self, selector: str, dx: float, dy: float) -> None:
        x, y = self.place(selector)
        self.mouse("mousePressed", x, y, button="left", buttons=1, clickCount=1)
        for part in (0.25, 0.5, 0.75, 1.0):
            self.mouse("mouseMoved", x + part * dx, y + part * dy, button="left", buttons=1)
        self.mouse("mouseReleased", x + dx, y + dy, button="left", clickCount=1)

    def key(self, name: str, text: str = "") -> None:
        code = {"Enter": 13, "Escape": 27}.get(name, 0)
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=name, text=text, windowsVirtualKeyCode=code)

    def type(self, text: str) -> None:
        self.ask("Input.insertText", text=text)

    def screenshot(self, file: Path, whole: bool = True) -> bytes:
        found = base64.b64decode(self.ask("Page.captureScreenshot", captureBeyondViewport=whole)["data"])
        file.write_bytes(found)
        return found
