"""A real browser for the tests: Chromium, driven through chromedriver's HTTP interface with the standard library."""

import base64
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
MISSING = " and ".join(name for name, path in (("Chromium", CHROMIUM), ("chromedriver", DRIVER)) if path is None)


class Browser:
    """One page at a time; `close` ends it."""

    def __init__(self, profile: Path):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.process = subprocess.Popen(
            [DRIVER, f"--port={port}", "--silent"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.base = f"http://127.0.0.1:{port}"
        flags = "headless no-sandbox disable-gpu disable-background-networking hide-scrollbars".split()
        options = {"binary": CHROMIUM, "args": [*(f"--{flag}" for flag in flags), f"--user-data-dir={profile}"]}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
        self._wait()
        answer = self._post("/session", {"capabilities": {"alwaysMatch": wanted}})
        self.base += f"/session/{answer['sessionId']}"

    def _wait(self):
        for _ in range(100):
            try:
                urllib.request.urlopen(f"{self.base}/status", timeout=5).close()
                return
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.1)
        raise RuntimeError("chromedriver did not start")

    def _post(self, path, body):
        request = urllib.request.Request(
            self.base + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(error.read().decode()) from None

    def devtools(self, command, **params):
        return self._post("/goog/cdp/execute", {"cmd": command, "params": params})

    def run(self, script):
        """The value of a JavaScript expression in the page."""
        return self._post("/execute/sync", {"script": f"return ({script})", "args": []})

    def settle(self):
        """Wait until the page has drawn what was done to it, and told its listeners of scrolling."""
        frames = "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done()))"
        self._post("/execute/async", {"script": frames, "args": []})

    def open(self, path: Path | str, *, width=1200, dark=False, media=""):
        """Load a page; logs start anew."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.devtools("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.log("browser"), self.log("performance")
        self._post("/url", {"url": path if isinstance(path, str) else path.resolve().as_uri()})

    def key(self, name):
        for kind in ("rawKeyDown", "keyUp"):
            code = {"Tab": 9, "Enter": 13, "ArrowRight": 39, "Escape": 27}[name]
            self.devtools("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code)

    def log(self, kind):
        return self._post("/se/log", {"type": kind})

    def requests(self):
        """The addresses that the page asked for."""
        events = [json.loads(entry["message"])["message"] for entry in self.log("performance")]
        return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]

    def screenshot(self, scale=1.0, height=None) -> bytes:
        """The whole page, not only what is in view; or so much of it."""
        width, whole = self.run("[document.documentElement.clientWidth, document.documentElement.scrollHeight]")
        height = whole if height is None else min(height, whole)
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": scale}
        answer = self.devtools("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        return base64.b64decode(answer["data"])

    def close(self):
        try:
            request = urllib.request.Request(self.base, method="DELETE")
            urllib.request.urlopen(request, timeout=20).close()
        finally:
            self.process.terminate()
            self.process.wait(20)
