"""A headless Chromium driven over a pipe, for tests of what a person sees. Needs no package."""

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import time
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip
PATIENCE = 30.0  # seconds until an answer must have come


class Chromium:
    """One browser with one page. It speaks DevTools on the descriptors 3 and 4."""

    def __init__(self, folder: Path) -> None:
        assert CHROMIUM is not None
        self.downloads = folder / "downloads"
        self.events: list[dict[str, Any]] = []  # all that the browser told unasked
        self._number, self._buffer, self._session = 0, b"", ""
        # High numbers: none of the four ends may lie where the browser wants its two.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (*os.pipe(), *os.pipe())]
        theirs_in, self._out, self._in, theirs_out = ends
        self.pid = os.posix_spawn(
            CHROMIUM,
            [CHROMIUM, *FLAGS, f"--user-data-dir={folder / 'profile'}", "about:blank"],
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_DUP2, theirs_in, 3),
                (os.POSIX_SPAWN_DUP2, theirs_out, 4),
            ],
            setpgroup=0,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call(
            "Browser.setDownloadBehavior",
            behavior="allow",
            downloadPath=str(self.downloads),
            eventsEnabled=True,
        )

    def close(self) -> None:
        with contextlib.suppress(OSError, AssertionError):
            self.call("Browser.close")
        for end in (self._in, self._out):
            os.close(end)
        deadline = time.monotonic() + PATIENCE
        while os.waitpid(self.pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > deadline:
                os.killpg(self.pid, signal.SIGKILL)
            select.select([], [], [], 0.02)

    def call(self, method: str, **arguments: Any) -> dict[str, Any]:
        """Ask, and return what it answers."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": arguments}
        if self._session and not method.startswith(("Browser.", "Target.")):
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def wait_for(self, method: str, **values: Any) -> dict[str, Any]:
        """The next event of that name with these values, told already or yet to come."""
        while True:
            for place, event in enumerate(self.events):
                found = event.get("params", {})
                if event.get("method") == method and values.items() <= found.items():
                    del self.events[: place + 1]
                    return found
            self.events.append(self._next())

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], PATIENCE)
            assert ready, "the browser does not answer"
            piece = os.read(self._in, 2**20)
            assert piece, "the browser is gone"
            self._buffer += piece
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def open(self, path: Path, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        self.show_as(width, height, dark)
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        self.wait_for("Page.loadEventFired")

    def show_as(self, width: int, height: int = 900, dark: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 500,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        still = {"name": "prefers-reduced-motion", "value": "reduce"}
        self.call("Emulation.setEmulatedMedia", features=[scheme, still])

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, *keys: str) -> None:
        """As on a keyboard, one after the other."""
        for key in keys:
            text = {"text": key} if len(key) == 1 else {}
            self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
            self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def click(self, selector: str) -> None:
        """With the mouse, in the middle of the element."""
        x, y = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect();"
            "return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def downloaded(self) -> Path:
        """The file that is being downloaded, once it is complete."""
        name = self.wait_for("Browser.downloadWillBegin")["suggestedFilename"]
        self.wait_for("Browser.downloadProgress", state="completed")
        return self.downloads / name

    def picture(self, path: Path, whole: bool = False) -> None:
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=whole, **(
            {"clip": {**self.call("Page.getLayoutMetrics")["cssContentSize"], "scale": 1}}
            if whole else {}))  # fmt: skip
        path.write_bytes(base64.b64decode(shot["data"]))
