"""A headless Chromium, driven over its debugging pipe: one JSON message after another.

The pipe needs no port and no package. `Page` waits for what it is asked for, up to a limit, and
collects everything that the browser's console would show as an error.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from select import select
from typing import Any

_LIMIT = 30.0
_KEYS = {"Enter": 13, "Escape": 27, "ArrowDown": 40, "ArrowUp": 38, "ArrowLeft": 37, "Tab": 9}
_KEYS |= {"ArrowRight": 39, "End": 35, "Home": 36, "PageDown": 34}


class BrowserError(Exception):
    """The browser refused a command, or ended."""


class Browser:
    """A process of Chromium with a profile of its own."""

    def __init__(self, program: str, profile: Path) -> None:
        read_commands, self._commands = os.pipe()
        self._answers, write_answers = os.pipe()
        words = [
            program,
            "--headless=new",
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
            "--no-first-run",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--hide-scrollbars",
            *(["--no-sandbox"] if os.geteuid() == 0 else []),
            "about:blank",
        ]

        def connect() -> None:
            # Chromium reads from descriptor 3 and writes to 4. Neither end may be closed by the
            # other's new number.
            first, second = os.dup(read_commands), os.dup(write_answers)
            first, second = _above(first), _above(second)
            os.dup2(first, 3)
            os.dup2(second, 4)

        with (profile / "stderr.txt").open("wb") as complaints:
            self._process = subprocess.Popen(
                words,
                preexec_fn=connect,  # noqa: PLW1509 - numbers of descriptors have no other way
                pass_fds=(3, 4),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=complaints,
            )
        os.close(read_commands)
        os.close(write_answers)
        self._buffer = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Send one command and return its result."""
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + _LIMIT
        while time.monotonic() < end:
            answer = self._receive(end - time.monotonic())
            if answer is None:
                continue
            if answer.get("id") == number:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error'].get('message')}")
                result: dict[str, Any] = answer["result"]
                return result
            if "method" in answer:
                self.events.append(answer)
        raise BrowserError(f"{method}: no answer within {_LIMIT:.0f} s")

    def drain(self) -> None:
        """Take events that have arrived."""
        while (answer := self._receive(0.0)) is not None:
            if "method" in answer:
                self.events.append(answer)

    def _receive(self, seconds: float) -> dict[str, Any] | None:
        while b"\0" not in self._buffer:
            if not select([self._answers], [], [], max(seconds, 0))[0]:
                return None
            part = os.read(self._answers, 1 << 20)
            if not part:
                raise BrowserError(f"the browser ended with code {self._process.wait(10)}")
            self._buffer += part
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def open(self, url: str, width: int = 1360, height: int = 860) -> Page:
        """A new page in a context of its own: no storage is shared."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call(
            "Target.createTarget",
            url="about:blank",
            browserContextId=context,
            width=width,
            height=height,
        )["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session, target)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        page.call("Page.navigate", url=url)
        page.wait("document.readyState === 'complete'")
        return page

    def close(self) -> None:
        """End the process."""
        try:
            self.call("Browser.close")
            self._process.wait(10)
        except (BrowserError, OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait(10)
        os.close(self._commands)
        os.close(self._answers)


def _above(descriptor: int) -> int:
    while descriptor <= 4:
        descriptor = os.dup(descriptor)
    return descriptor


class Page:
    """One tab."""

    def __init__(self, browser: Browser, session: str, target: str) -> None:
        self._browser = browser
        self._session = session
        self._target = target

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **parameters)

    def evaluate(self, script: str) -> Any:
        """The value of an expression of JavaScript; promises are awaited."""
        done = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in done:
            raise BrowserError(json.dumps(done["exceptionDetails"])[:500])
        return done["result"].get("value")

    def wait(self, script: str, seconds: float = _LIMIT) -> Any:
        """Wait until an expression is true; returns its value."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if found := self.evaluate(script):
                return found
            time.sleep(0.03)
        shown = self.evaluate("document.body.innerText")
        raise AssertionError(f"not within {seconds:.0f} s: {script}\nthe page shows:\n{shown}")

    def see(self, selector: str, text: str = "") -> None:
        """Wait for an element that shows a text."""
        self.wait(
            f"[...document.querySelectorAll({json.dumps(selector)})]"
            f".some((e) => (e.innerText ?? '').includes({json.dumps(text)}))"
        )

    def text(self, selector: str) -> str:
        """What an element shows, once it is there."""
        found: str = self.wait(f"document.querySelector({json.dumps(selector)})?.innerText")
        return found

    def texts(self, selector: str) -> list[str]:
        script = f"[...document.querySelectorAll({json.dumps(selector)})].map((e) => e.innerText)"
        found: list[str] = self.evaluate(script)
        return found

    def click(self, selector: str, text: str | None = None) -> None:
        """Press the mouse in the middle of an element, found by its text if one is given."""
        x, y = self.place(selector, text)
        self.mouse("mouseMoved", x, y)
        self.mouse("mousePressed", x, y, button="left", clickCount=1)
        self.mouse("mouseReleased", x, y, button="left", clickCount=1)

    def place(self, selector: str, text: str | None = None) -> tuple[float, float]:
        """The middle of an element, which is waited for and scrolled to."""
        wanted = "true" if text is None else f"(e.innerText ?? '').includes({json.dumps(text)})"
        script = (
            f"(() => {{ const e = [...document.querySelectorAll({json.dumps(selector)})]"
            f".find((e) => {wanted}); if (!e) return null; e.scrollIntoView({{block: 'nearest'}});"
            "const r = e.getBoundingClientRect(); if (!r.width) return null;"
            "return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        x, y = self.wait(script)
        return x, y

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def press(self, key: str) -> None:
        """Press a key, as the keyboard would."""
        code = _KEYS.get(key, ord(key[0].upper()))
        typed = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        self.call(
            "Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **typed
        )
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def screenshot(self, path: Path) -> None:
        data = self.call("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))

    def problems(self) -> list[str]:
        """What the console shows as an error or a warning, and scripts that ended in one."""
        self.evaluate("new Promise((done) => setTimeout(done, 50))")
        self._browser.drain()
        found = []
        for event in self._events():
            values = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append(json.dumps(values["exceptionDetails"])[:600])
            elif event["method"] == "Log.entryAdded" and values["entry"]["level"] != "verbose":
                found.append(f"{values['entry']['text']} {values['entry'].get('url', '')}")
            elif event["method"] == "Runtime.consoleAPICalled" and values["type"] == "error":
                found.append(json.dumps(values["args"])[:600])
        return found

    def requests(self) -> list[str]:
        """The address of every request of the page."""
        self._browser.drain()
        return [
            event["params"]["request"]["url"]
            for event in self._events()
            if event["method"] == "Network.requestWillBeSent"
        ]

    def _events(self) -> list[dict[str, Any]]:
        return [event for event in self._browser.events if event.get("sessionId") == self._session]

    def close(self) -> None:
        self._browser.call("Target.closeTarget", targetId=self._target)


@contextmanager
def running_browser(program: str, profile: Path) -> Iterator[Browser]:
    browser = Browser(program, profile)
    try:
        yield browser
    finally:
        browser.close()
