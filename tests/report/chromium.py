"""A headless Chromium driven over its DevTools pipe: real keys, real layout, no network and no extra package."""

import json
import os
import select
import shutil
import subprocess
import time
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

EXECUTABLE = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
FLAGS += ["--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"]
FLAGS += ["--remote-debugging-pipe"]
KEY_CODES = {"Tab": 9, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}


class Page:
    """One page of a headless Chromium. The browser ends with `close`."""

    def __init__(self, profile: Path) -> None:
        command_read, self._write = os.pipe()
        self._read, reply_write = os.pipe()

        def wire() -> None:  # the browser reads commands on descriptor 3 and replies on 4
            read, write = os.dup(command_read), os.dup(reply_write)
            os.dup2(read, 3)
            os.dup2(write, 4)

        command = [str(EXECUTABLE), *FLAGS, f"--user-data-dir={profile}"]
        self._process = subprocess.Popen(
            command, preexec_fn=wire, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(command_read)
        os.close(reply_write)
        self._buffer, self._sent, self._session = b"", 0, ""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.send("Page.enable")
        self.send("Runtime.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one DevTools command and wait for its reply."""
        self._sent += 1
        message: dict[str, Any] = {"id": self._sent, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._receive()
            if reply.get("id") == self._sent:
                if "error" in reply:
                    raise RuntimeError(f"{method}: {reply['error']}")
                return reply["result"]

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            if not select.select([self._read], [], [], 60)[0]:
                raise RuntimeError("Chromium did not reply within 60 s")
            data = os.read(self._read, 1 << 16)
            if not data:
                raise RuntimeError(f"Chromium ended with code {self._process.wait()}")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(line)

    def open(self, path: Path, ready: str = "document.querySelector('.turn') !== null") -> None:
        """Load a file and wait until `ready` holds."""
        self.send("Page.navigate", url=path.as_uri())
        for _ in range(600):
            if self.evaluate(f"document.readyState === 'complete' && {ready}"):
                return
            time.sleep(0.05)
        raise AssertionError(f"{path} was not ready: {ready}")

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, which must be JSON."""
        reply = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in reply:
            raise AssertionError(f"{expression}: {reply['exceptionDetails']}")
        return reply["result"].get("value")

    def press(self, *keys: str) -> None:
        """Press keys as a keyboard does."""
        for key in keys:
            code = KEY_CODES.get(key, ord(key.upper()[0]))
            text = {"text": key} if len(key) == 1 else {}
            event = {"key": key, "windowsVirtualKeyCode": code}
            self.send("Input.dispatchKeyEvent", type="keyDown", **event, **text)
            self.send("Input.dispatchKeyEvent", type="keyUp", **event)

    def view(self, width: int, height: int, dark: bool = False) -> None:
        """Set the window's size in CSS pixels, and whether the user asks for dark mode."""
        phone = width < 600
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1 + phone, mobile=phone
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self, path: Path) -> None:
        """Save what the window shows as PNG."""
        path.write_bytes(b64decode(self.send("Page.captureScreenshot")["data"]))

    @contextmanager
    def frame(self) -> Iterator[None]:
        """Talk to the one sandboxed frame of the page, which Chromium keeps in a process of its own."""
        page, self._session = self._session, ""
        frames = [t for t in self.send("Target.getTargets")["targetInfos"] if t["type"] == "iframe"]
        [frame] = [t for t in frames if not t["url"].startswith("chrome")]  # the new tab of the start has some
        self._session = self.send("Target.attachToTarget", targetId=frame["targetId"], flatten=True)["sessionId"]
        yield
        self._session = page

    def close(self) -> None:
        """End the browser."""
        self._session = ""
        self.send("Browser.close")
        self._process.wait(timeout=20)
        os.close(self._write)
        os.close(self._read)
