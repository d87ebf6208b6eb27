"""The documentation's site in a browser: it needs no network, fits a phone, and can be searched."""

from __future__ import annotations

import functools
import http.server
import shutil
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from test_site import ROOT, build

for name in ("mkdocs", "material", "mkdocstrings"):
    pytest.importorskip(name, reason=f"{name} is not installed")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine")
WIDE = ["index", "quickstart", "results", "reference/methods", "repository/examples/ddp.py"]


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A server of files that tells nobody what it serves."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Say nothing."""


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> Iterator[str]:
    out = tmp_path_factory.mktemp("site")
    assert build(ROOT / "mkdocs.yml", out).returncode == 0
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(out)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def view(address) -> Iterator[Any]:
    complaints: list[str] = []
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 375, "height": 700}, color_scheme="light")
        page.on("console", lambda line: complaints.append(line.text) if line.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda asked: None if asked.url.startswith(address) else complaints.append(asked.url))
        yield page
        browser.close()
    assert complaints == []


@pytest.mark.parametrize("name", WIDE)
def test_a_page_fits_a_phone_and_what_is_wide_scrolls_in_its_box(view, address, name):
    view.goto(f"{address}/{name}.html")
    assert view.evaluate("document.documentElement.scrollWidth") <= 375
    beyond = view.evaluate(
        """() => [...document.querySelectorAll('article pre > code, article table, article img')].filter(each => {
             const box = each.closest('.md-typeset__scrollwrap') || each;
             const scrolls = ['auto', 'scroll'].includes(getComputedStyle(box).overflowX);
             return each.getBoundingClientRect().right > 376 && !scrolls;
           }).map(each => each.outerHTML.slice(0, 99))"""
    )
    assert beyond == []


def test_a_dark_system_gets_dark_pages(view, address):
    shades = {}
    for scheme in ("light", "dark"):
        # A page that was seen in one shade stays so.
        page = view.context.browser.new_page(color_scheme=scheme)
        page.goto(f"{address}/index.html")
        shades[scheme] = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.close()
    assert shades["light"] != shades["dark"]


def test_a_name_is_found_by_searching(view, address):
    view.set_viewport_size({"width": 1200, "height": 800})
    view.goto(f"{address}/index.html")
    view.fill("[data-md-component=search-query]", "resharded")
    view.wait_for_selector("[data-md-component=search-result] a[href*='attach.html']")
