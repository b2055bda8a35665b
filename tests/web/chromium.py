"""A real browser for tests: Debian's Chromium, spoken to over its debugging pipe (two descriptors, JSON with NUL between).

No driver, no port and no further dependency. Only what the tests need: open a page, run an expression, type, click, and
wait for a fact with a bound.
"""

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

WAIT_S = 20.0
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--no-proxy-server",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
)

Json = dict[str, Any]


class Browser:
    """One page of one Chromium process."""

    def __init__(self, process: "subprocess.Popen[bytes]", write_fd: int, read_fd: int) -> None:
        self._process = process
        self._write_fd = write_fd
        self._read_fd = read_fd
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.problems: list[str] = []
        """What the page's console and its policy complained about."""
        target = self._call("Target.createTarget", {"url": "about:blank"})["targetId"]
        self._session = self._call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def open(self, url: str) -> None:
        """Go to `url` and wait until its script has run."""
        self._call("Page.navigate", {"url": url})
        self.wait("document.readyState === 'complete'")

    def run(self, expression: str) -> Any:
        """The value of an expression in the page."""
        answer = self._call(
            "Runtime.evaluate",
            {"expression": expression, "returnByValue": True, "awaitPromise": True, "userGesture": True},
        )
        if "exceptionDetails" in answer:
            raise AssertionError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, expression: str, timeout_s: float = WAIT_S) -> Any:
        """Wait until an expression is true; its value."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            with contextlib.suppress(AssertionError):  # in the middle of a navigation there is no page to ask
                if value := self.run(expression):
                    return value
            time.sleep(0.03)
        text = self.run("document.body?.innerText ?? ''")
        raise AssertionError(f"not within {timeout_s:g} s: {expression}\n{self.problems}\n{text}")

    def text(self, selector: str = "body") -> str:
        """What a person reads there."""
        return str(self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def click(self, selector: str) -> None:
        """Click it. A navigation that this begins is not waited for."""
        self.wait(f"!!document.querySelector({json.dumps(selector)})")
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def fill(self, selector: str, text: str) -> None:
        """Focus a field and type into it."""
        self.wait(f"!!document.querySelector({json.dumps(selector)})")
        self.run(f"document.querySelector({json.dumps(selector)}).focus()")
        self._call("Input.insertText", {"text": text})

    def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        """The window's size, and whether the reader's system is dark."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._call("Emulation.setDeviceMetricsOverride", metrics)
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", {"features": [feature]})

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """A picture of the page as PNG."""
        answer = self._call("Page.captureScreenshot", {"format": "png", "captureBeyondViewport": whole})
        path.write_bytes(base64.b64decode(answer["data"]))

    def offline(self, off: bool) -> None:
        """Cut the page's network, or give it back."""
        conditions = {"offline": off, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        self._call("Network.emulateNetworkConditions", conditions)

    def _call(self, method: str, params: Json | None = None) -> Json:
        self._number += 1
        message: Json = {"id": self._number, "method": method, "params": params or {}}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write_fd, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + WAIT_S
        while True:
            answer = self._read(end)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return answer["result"]
            self._note(answer)

    def _note(self, message: Json) -> None:
        if message.get("method") == "Log.entryAdded":
            entry = message["params"]["entry"]
            if entry["level"] in ("error", "warning"):
                self.problems.append(f"{entry['source']}: {entry['text']} {entry.get('url', '')}")
        elif message.get("method") == "Runtime.exceptionThrown":
            self.problems.append(str(message["params"]["exceptionDetails"]))

    def _read(self, end: float) -> Json:
        while b"\0" not in self._buffer:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self._read_fd], [], [], left)[0]:
                raise AssertionError("Chromium does not answer")
            data = os.read(self._read_fd, 1 << 20)
            if not data:
                raise AssertionError("Chromium has ended")
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(line)


@contextlib.contextmanager
def chromium() -> Generator[Browser]:
    """A browser of its own, with a profile of its own; skips the test where there is no Chromium."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("needs Chromium (apt-get install chromium)")
    profile = tempfile.mkdtemp(prefix="tk-chromium-")
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    shell = f'exec "$@" 3<&{to_read} 4>&{from_write}'
    process = subprocess.Popen(
        ["/bin/bash", "-c", shell, "bash", program, *_FLAGS, "--remote-debugging-pipe", f"--user-data-dir={profile}"],
        pass_fds=(to_read, from_write),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(to_read)
    os.close(from_write)
    try:
        yield Browser(process, to_write, from_read)
    finally:
        os.close(to_write)
        os.close(from_read)
        _end(process)
        shutil.rmtree(profile, ignore_errors=True)


def _end(process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, 9)
    process.wait(timeout=10)
