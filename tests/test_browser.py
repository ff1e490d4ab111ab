"""The widget in a real browser: a notebook in JupyterLab.

The slider is moved by its keys, and the picture on the page must become the one that is drawn
without widgets for that threshold. Screenshots go to the folder MSHNET_ARTIFACTS, if it is
set. Chromium is the system's (Debian: apt-get install chromium); nothing is downloaded.
"""

import base64
import contextlib
import importlib.util
import io
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import nbformat
import numpy as np
import pytest
from conftest import make_run
from PIL import Image

from mshnet.explore import explore

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = next((path for path in map(shutil.which, BROWSERS) if path), None)
NEEDED = ("playwright", "jupyterlab", "ipywidgets", "ipykernel")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
PATIENCE = 240_000  # milliseconds until a page shows what it should, on a busy machine
FETCH = """async url => {
    const bytes = new Uint8Array(await (await fetch(url)).arrayBuffer());
    return btoa(Array.from(bytes, byte => String.fromCharCode(byte)).join(""));
}"""

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium"),
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    "The folder of a run on synthetic scenes."
    return make_run(tmp_path_factory.mktemp("browser") / "run")


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory):
    "Where screenshots are kept."
    folder = Path(os.environ.get("MSHNET_ARTIFACTS") or tmp_path_factory.mktemp("screenshots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def page():
    "A page of a headless browser."
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM)
        page = browser.new_page(viewport={"width": 1280, "height": 1000})
        page.set_default_timeout(PATIENCE)
        yield page
        browser.close()


def alike(folder):
    "An environment in which every process computes the same digits, and finds no one's settings."
    own = {f"JUPYTER_{name}_DIR": str(folder / name) for name in ("CONFIG", "DATA", "RUNTIME")}
    own |= {"IPYTHONDIR": str(folder / "ipython"), "OMP_NUM_THREADS": "1"}
    own["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, **own}


@contextlib.contextmanager
def served(folder, *words):
    "A server on this machine alone, at a free port; its address and its log."
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = folder / "server.log"
    line = [sys.executable, "-m", *(word.replace("PORT", str(port)) for word in words)]
    with open(log, "w") as out:
        server = subprocess.Popen(line, cwd=folder, env=alike(folder), stdout=out, stderr=out)
    try:
        address = f"http://127.0.0.1:{port}"
        wait_for(address, server, log)
        yield address
    finally:
        server.terminate()
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()


def wait_for(address, server, log):
    "Until the server answers, whatever it says."
    for _ in range(PATIENCE // 500):
        assert server.poll() is None, log.read_text()
        try:
            urllib.request.urlopen(f"{address}/static/none", timeout=5)
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.5)
    raise AssertionError(log.read_text())


def still(run, **settings):
    "The pixels of the picture that is drawn without widgets."
    return pixels(explore(str(run), **settings).path.read_bytes())


def pixels(content):
    "A PNG file, decoded."
    with Image.open(io.BytesIO(content)) as file:
        return np.asarray(file.convert("RGB"))


def shown(page):
    "The pixels of the picture on the page."
    source = page.locator("img.widget-image").get_attribute("src")
    return pixels(base64.b64decode(page.evaluate(FETCH, source)))


def until(page, want):
    "Wait until the page shows this picture, to the last pixel."
    for _ in range(PATIENCE // 500):
        if np.array_equal(shown(page), want):
            return
        page.wait_for_timeout(500)
    raise AssertionError("the picture on the page is another one")


def move_slider(page, run, steps):
    "Move the threshold by keys, and see the picture become that of the static call."
    page.locator("img.widget-image").first.wait_for()
    before = still(run)
    until(page, before)
    handle = page.locator(".noUi-handle").first
    handle.focus()
    for _ in range(steps):
        handle.press("ArrowLeft")
    assert page.locator(".widget-readout").first.inner_text() == f"{0.5 - steps / 100:.2f}"
    want = still(run, threshold=round(0.5 - steps / 100, 2))
    judged = np.s_[100:300, -250:]  # the pane of hits, misses and false alarms
    assert not np.array_equal(before[judged], want[judged])
    until(page, want)


def test_in_jupyterlab_the_slider_moves_the_picture(page, run, artifacts, tmp_path):
    "In the notebook that people open."
    source = f"from mshnet.explore import explore\nexplore({str(run)!r})"
    kernel = {"kernelspec": {"name": "python3", "display_name": "python3"}}  # of this Python
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)], metadata=kernel)
    nbformat.write(book, tmp_path / "lab.ipynb")
    words = ("--no-browser", "--allow-root", "--port=PORT", "--IdentityProvider.token=")
    quiet = ("--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",)
    with served(tmp_path, "jupyterlab", *words, *quiet) as address:
        page.goto(f"{address}/lab/tree/lab.ipynb")
        page.locator(".jp-CodeCell .cm-content").first.click()
        idle = page.get_by_text("Python 3 (ipykernel) | Idle")
        idle.or_(page.get_by_text("python3 | Idle")).first.wait_for()
        page.keyboard.press("Control+Enter")
        move_slider(page, run, steps=31)
        news = page.get_by_role("button", name="No", exact=True)  # whether it may fetch some
        news.click()
        news.wait_for(state="hidden")
        page.screenshot(path=artifacts / "jupyterlab_explore.png")
