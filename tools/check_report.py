#!/usr/bin/env python3
"""Checks that a report opens safely: check_report.py REPORT.html [--screenshot FOLDER]

Always: the page is under 2 MB, parses, balances its tags, holds no script, no event handler and no
reference to anything outside itself. Where a Chromium is found, it also opens the page without a
window and fails on any request but the page's own, any script, error or console message.
Prints what was checked; exit status 0 when all is well, 1 when not, 2 for wrong usage.
"""

import argparse
import base64
import html.parser
import json
import os
import pathlib
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time

LIMIT = 2_000_000
VOID = {"meta", "link", "br", "hr", "img", "input", "base", "col", "embed", "source", "wbr"}
# Elements that a report never needs, all of which could load or run something.
FORBIDDEN = {"script", "iframe", "frame", "object", "embed", "link", "base", "form", "img", "image",
             "audio", "video", "source", "track", "use", "foreignobject", "animate", "set", "a"}
REFERENCES = {"href", "xlink:href", "src", "srcset", "data", "action", "formaction", "poster",
              "background", "ping", "cite", "manifest"}


class Page(html.parser.HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.problems = []
        self.open = []
        self.counts = {}
        self.in_style = False
        self.refresh = None
        self.policy = None

    def handle_starttag(self, tag, attributes):
        self.counts[tag] = self.counts.get(tag, 0) + 1
        if tag in FORBIDDEN:
            self.problems.append(f"element <{tag}> at line {self.getpos()[0]}")
        for name, value in attributes:
            if name.startswith("on"):
                self.problems.append(f"event handler {name} at line {self.getpos()[0]}")
            if name in REFERENCES:
                self.problems.append(f"reference {name}={value!r} at line {self.getpos()[0]}")
            if name == "style":
                self.style(value or "")
        if tag == "meta":
            values = dict(attributes)
            kind = (values.get("http-equiv") or "").lower()
            if kind == "refresh":
                self.refresh = values.get("content", "")
                if not self.refresh.strip().isdigit():
                    self.problems.append(f"refresh goes elsewhere: {self.refresh!r}")
            if kind == "content-security-policy":
                self.policy = values.get("content", "")
        if tag not in VOID:
            self.open.append(tag)
            self.in_style = tag == "style"

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        self.in_style = False
        if not self.open or self.open[-1] != tag:
            self.problems.append(f"</{tag}> closes {self.open[-1:] or 'nothing'} "
                                 f"at line {self.getpos()[0]}")
            if tag in self.open:
                while self.open.pop() != tag:
                    pass
            return
        self.open.pop()

    def handle_data(self, data):
        if self.in_style:
            self.style(data)

    def style(self, text):
        if re.search(r"url\s*\(|@import|expression\s*\(", text, re.I):
            self.problems.append("style refers to something outside of the page")
        if text.count("{") != text.count("}"):
            self.problems.append("style has unbalanced braces")


def check_text(path):
    """Problems of the page's text, and its counts of elements."""
    raw = path.read_bytes()
    page = Page()
    if len(raw) >= LIMIT:
        page.problems.append(f"{len(raw)} bytes; a report stays under {LIMIT}")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return [f"not UTF-8: {error}"], {}
    if not text.startswith("<!DOCTYPE html>"):
        page.problems.append("does not begin with <!DOCTYPE html>")
    page.feed(text)
    page.close()
    if page.open:
        page.problems.append(f"never closed: {page.open}")
    if not page.policy or "default-src 'none'" not in page.policy:
        page.problems.append("no content policy that forbids loading")
    return page.problems, page.counts


class Browser:
    """A Chromium without a window, spoken to over two pipes."""

    def __init__(self, program, folder):
        to_browser, self.write_end = os.pipe()
        self.read_end, from_browser = os.pipe()

        def wire():
            # The browser reads descriptor 3 and writes 4; go over high numbers, as these may clash.
            os.dup2(to_browser, 100)
            os.dup2(from_browser, 101)
            os.dup2(100, 3)
            os.dup2(101, 4)

        arguments = [program, "--headless=new", "--remote-debugging-pipe", "--no-first-run",
                     "--disable-gpu", "--disable-extensions", "--disable-background-networking",
                     "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
                     "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={folder}"]
        if os.geteuid() == 0:
            arguments.append("--no-sandbox")
        self.process = subprocess.Popen(arguments, preexec_fn=wire, close_fds=False,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self.buffer = b""
        self.next_id = 1
        self.events = []

    def message(self, until):
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.read_end], [], [], max(0, until - time.monotonic()))
            if not ready:
                return None
            more = os.read(self.read_end, 1 << 20)
            if not more:
                raise RuntimeError("the browser ended")
            self.buffer += more
        text, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(text)

    def call(self, method, session=None, seconds=60, **parameters):
        number = self.next_id
        self.next_id += 1
        request = {"id": number, "method": method, "params": parameters}
        if session:
            request["sessionId"] = session
        os.write(self.write_end, json.dumps(request).encode() + b"\0")
        until = time.monotonic() + seconds
        while True:
            answer = self.message(until)
            if answer is None:
                raise RuntimeError(f"{method}: no answer in {seconds} s")
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def listen(self, seconds, stop=None):
        until = time.monotonic() + seconds
        while True:
            answer = self.message(until)
            if answer is None:
                return False
            self.events.append(answer)
            if stop and answer.get("method") == stop:
                return True

    def close(self):
        try:
            self.call("Browser.close", seconds=10)
        except (RuntimeError, OSError):
            pass
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.read_end)
        os.close(self.write_end)


def find_browser():
    for name in ("chromium", "chromium-browser", "chromium-headless-shell", "google-chrome",
                 "google-chrome-stable"):
        found = shutil.which(name)
        if found:
            return found
    return None


def check_opened(path, program, screenshots):
    """Problems seen while a browser shows the page."""
    problems = []
    address = path.resolve().as_uri()
    with tempfile.TemporaryDirectory(prefix="report-") as folder:
        browser = Browser(program, folder)
        try:
            target = browser.call("Target.createTarget", url="about:blank")["targetId"]
            session = browser.call("Target.attachToTarget", targetId=target,
                                   flatten=True)["sessionId"]
            for domain in ("Network", "Log", "Runtime", "Page"):
                browser.call(f"{domain}.enable", session)
            browser.events.clear()
            browser.call("Page.navigate", session, url=address)
            if not any(e.get("method") == "Page.loadEventFired" for e in browser.events):
                if not browser.listen(60, "Page.loadEventFired"):
                    problems.append("the page did not finish loading in 60 s")
            browser.listen(0.5)
            count = browser.call("Runtime.evaluate", session, returnByValue=True,
                                 expression="document.querySelectorAll('svg').length")
            width = browser.call("Runtime.evaluate", session, returnByValue=True, expression=(
                "document.documentElement.scrollWidth - window.innerWidth"))
            if width["result"]["value"] > 0:
                problems.append(f"the page is {width['result']['value']} px wider than the window")
            for event in browser.events:
                method, values = event.get("method"), event.get("params", {})
                if method == "Network.requestWillBeSent":
                    url = values["request"]["url"]
                    if url != address and not url.startswith("data:"):
                        problems.append(f"request: {url}")
                elif method == "Log.entryAdded":
                    problems.append(f"log: {values['entry'].get('text')}")
                elif method == "Runtime.exceptionThrown":
                    problems.append(f"exception: {values['exceptionDetails'].get('text')}")
                elif method == "Runtime.consoleAPICalled":
                    problems.append(f"console: {values.get('type')}")
                elif method == "Page.javascriptDialogOpening":
                    problems.append(f"dialog: {values.get('message')}")
            if screenshots:
                for scheme in ("light", "dark"):
                    browser.call("Emulation.setEmulatedMedia", session, features=[
                        {"name": "prefers-color-scheme", "value": scheme}])
                    shot = browser.call("Page.captureScreenshot", session, format="png",
                                        captureBeyondViewport=True)
                    (screenshots / f"{path.stem}-{scheme}.png").write_bytes(
                        base64.b64decode(shot["data"]))
                browser.call("Emulation.setEmulatedMedia", session, features=[])
                page = browser.call("Page.printToPDF", session, printBackground=False)
                (screenshots / f"{path.stem}.pdf").write_bytes(base64.b64decode(page["data"]))
        finally:
            browser.close()
    return problems, count["result"]["value"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", type=pathlib.Path)
    parser.add_argument("--screenshot", type=pathlib.Path, metavar="FOLDER",
                        help="write light and dark pictures and a print there")
    parser.add_argument("--no-browser", action="store_true", help="look at the text only")
    options = parser.parse_args()
    if not options.report.is_file():
        print(f"{options.report}: no such file", file=sys.stderr)
        return 2
    if options.screenshot:
        options.screenshot.mkdir(parents=True, exist_ok=True)
    problems, counts = check_text(options.report)
    seen = (f"{options.report.stat().st_size} bytes, {counts.get('svg', 0)} plots, "
            f"{counts.get('table', 0)} tables")
    program = None if options.no_browser else find_browser()
    if program:
        more, plots = check_opened(options.report, program, options.screenshot)
        problems += more
        if plots != counts.get("svg", 0):
            problems.append(f"the browser shows {plots} plots of {counts.get('svg', 0)}")
        seen += f"; opened in {pathlib.Path(program).name}"
    else:
        seen += "; text only, no browser"
    for problem in problems:
        print(f"{options.report}: {problem}", file=sys.stderr)
    print(f"{options.report}: {'ok' if not problems else 'not ok'}: {seen}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
