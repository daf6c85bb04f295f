# tools/site/browser.py — headless Chromium, driven through its pipe: pages opened, expressions evaluated, pictures taken
import json
import os
import shutil
import subprocess
import tempfile
import time

NAMES = ["chromium", "chromium-browser", "google-chrome"]


def found():
    """The program's path, or None."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Gone(RuntimeError):
    """The page was left while it was asked."""


class Browser:
    """One page; what it writes to its console as an error, and what it throws, is in `complaints`."""

    def __init__(self, width=1280, height=900):
        self.folder = tempfile.mkdtemp()
        to_read, self.to = os.pipe()
        self.of, to_write = os.pipe()

        def pipes():
            # Chromium reads commands from 3 and writes answers to 4.
            a, b = os.dup(to_read), os.dup(to_write)
            os.dup2(a, 3), os.dup2(b, 4)

        self.program = subprocess.Popen(
            [found(), "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--hide-scrollbars",
             f"--user-data-dir={self.folder}", "about:blank"], preexec_fn=pipes, close_fds=False,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_read), os.close(to_write)
        self.left, self.last, self.session, self.complaints = b"", 0, None, []
        target = next(t for t in self.ask("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self.ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")
        self.size(width, height)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.program.kill()
        self.program.wait()
        os.close(self.to), os.close(self.of)
        shutil.rmtree(self.folder, ignore_errors=True)

    def ask(self, method, **params):
        self.last += 1
        message = {"id": self.last, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        text = json.dumps(message).encode() + b"\0"
        while text:
            text = text[os.write(self.to, text):]
        while True:
            answer = self._message()
            if answer.get("id") == self.last:
                if "error" in answer:
                    kind = Gone if "navigated" in answer["error"].get("message", "") else RuntimeError
                    raise kind(f"{method}: {answer['error']}")
                return answer["result"]

    def _message(self):
        while b"\0" not in self.left:
            more = os.read(self.of, 1 << 20)
            if not more:
                raise RuntimeError("Chromium has ended")
            self.left += more
        text, _, self.left = self.left.partition(b"\0")
        message = json.loads(text)
        params = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(params["exceptionDetails"].get("exception", {}).get("description", "an exception"))
        if message.get("method") == "Runtime.consoleAPICalled" and params["type"] in {"error", "assert"}:
            self.complaints.append(" ".join(str(a.get("value", a.get("description"))) for a in params["args"]))
        if message.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.complaints.append(params["entry"]["text"])
        return message

    def size(self, width, height):
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                 mobile=width < 600)

    def dark(self, dark):
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme",
                                                         "value": "dark" if dark else "light"}])

    def open(self, url):
        self.ask("Page.navigate", url=url)
        self.until("document.readyState == 'complete'")

    def value(self, expression):
        out = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in out:
            raise RuntimeError(out["exceptionDetails"].get("exception", {}).get("description", expression))
        return out["result"].get("value")

    def until(self, expression, seconds=60):
        end = time.monotonic() + seconds
        while not self._holds(expression):
            if time.monotonic() > end:
                raise RuntimeError(f"after {seconds} s it does not hold: {expression}")
            time.sleep(0.02)

    def _holds(self, expression):
        try:
            return self.value(expression)
        except Gone:  # the asked page was replaced by the awaited one
            return False

    def type(self, text):
        self.ask("Input.insertText", text=text)

    def key(self, key):
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def picture(self, path, whole=False):
        import base64
        out = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(out["data"]))
