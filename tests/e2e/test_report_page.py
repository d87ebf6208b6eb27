"""The page in a browser without a network: what is drawn, what the switches change, and how it fits."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from laconic.lab.report.page import write_page
from laconic.lab.report.read import Run, read_runs
from laconic.lab.report.tables import csv_text, markdown
from unit.lab.runs import Made, dense, write_compare

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine")
SDAGC, STROM = Made(method="sdagc:c=20", density=0.005, clips=True), Made(method="strom", diverges_at=400)
# Beside SDAGC in the frontier, where both need room for their names.
CELGC = Made(method="celgc:every=4:send=topk+density=0.01", density=0.0045, level=1.343, local_every=4)


@dataclass
class Visit:
    """A page that is open, and what it asked for or complained about."""

    view: Any
    complaints: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def traces(self, figure: str) -> list[dict[str, Any]]:
        """What is drawn in a chart: of each trace its name, first x, whether it shows and its colour."""
        return self.view.evaluate(
            """key => document.querySelector(`[data-figure="${key}"]`)._fullData.map(
                 t => ({name: t.name, x: t.x[0], last: t.x.at(-1), visible: t.visible, colour: t.line?.color}))""",
            figure,
        )


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> tuple[Run, ...]:
    return read_runs([write_compare(tmp_path_factory.mktemp("runs"), [dense(), Made(), SDAGC, STROM, CELGC])])


@pytest.fixture(scope="module")
def page(runs, tmp_path_factory) -> Path:
    return write_page(runs, tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


# To load a page takes longer than a test: those that leave it as it was, and the last, share one.
@pytest.fixture(scope="module")
def visit(browser, page, request) -> Iterator[Visit]:
    settings = {"viewport": {"width": 1200, "height": 900}, "color_scheme": "light"} | getattr(request, "param", {})
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"], **settings)
    visit = Visit(view=context.new_page())

    def watch(route: Any) -> None:
        inside = route.request.url.startswith("file:")
        if not inside:
            visit.asked.append(route.request.url)
        route.continue_() if inside else route.abort()

    visit.view.route(re.compile(".*"), watch)
    visit.view.on("console", lambda line: visit.complaints.append(line.text) if line.type != "log" else None)
    visit.view.on("pageerror", lambda error: visit.complaints.append(str(error)))
    visit.view.goto(page.as_uri())
    visit.view.wait_for_selector(".chart svg.main-svg")
    yield visit
    context.close()
    assert visit.complaints == []
    assert visit.asked == []


phone = pytest.mark.parametrize("visit", [{"viewport": {"width": 375, "height": 700}}], indirect=True)
dark = pytest.mark.parametrize("visit", [{"color_scheme": "dark"}], indirect=True)


def _colours(visit: Visit) -> dict[str, str]:
    return visit.view.evaluate(
        """() => { const chart = document.querySelector('[data-figure="loss:{axis}"]');
             return {page: getComputedStyle(document.body).backgroundColor, line: chart._fullData[1].line.color,
                     grid: chart._fullLayout.xaxis.gridcolor, text: chart._fullLayout.font.color}; }"""
    )


def test_every_chart_is_drawn(visit):
    charts = visit.view.locator(".chart:visible")
    assert charts.count() == 11
    for place in range(charts.count()):
        assert charts.nth(place).locator("svg.main-svg").count() >= 1
        assert charts.nth(place).bounding_box()["height"] > 250
    # Five methods, and the cross of the one that diverged.
    names = [trace["name"] for trace in visit.traces("loss:{axis}")]
    assert names == ["dense", "topk:density=0.01", "sdagc:c=20", "strom", "strom diverged", CELGC.method]
    assert len(visit.traces("density")) == 5
    for chart in ("drift", "every"):
        assert [trace["name"] for trace in visit.traces(chart)] == [CELGC.method]
    assert [trace["name"] for trace in visit.traces("clipped_share")] == ["sdagc:c=20"]
    assert visit.view.locator('[data-figure="loss:{axis}"] .scatterlayer .trace').count() == 6


def _names_drawn(visit: Visit) -> list[dict[str, Any]]:
    """The names in the frontier, and where on the screen they stand."""
    return visit.view.evaluate(
        """() => [...document.querySelectorAll('[data-figure=frontier] .textpoint text')].map(text => {
             const box = text.getBoundingClientRect();
             return {text: text.textContent, left: box.left, right: box.right, top: box.top,
                     bottom: box.bottom}; })"""
    )


def _check_frontier(visit: Visit, runs: tuple[Run, ...]) -> None:
    names = ["dense ±1%", "dense level", "dense", "topk:density=0.01", "sdagc:c=20", CELGC.method]
    drawn = visit.traces("frontier")
    assert [trace["name"] for trace in drawn] == names, "what diverged has no place in it"
    ratios = [runs[place].result["ratio"] for place in (0, 1, 2, 4)]
    assert [trace["x"] for trace in drawn[2:]] == pytest.approx(ratios)
    written = _names_drawn(visit)
    assert sorted(name["text"] for name in written) == sorted(names[2:])
    chart = visit.view.locator("[data-figure=frontier]").bounding_box()
    for place, name in enumerate(written):
        assert chart["x"] <= name["left"]
        assert name["right"] <= chart["x"] + chart["width"]
        for other in written[:place]:
            apart = name["left"] >= other["right"] or other["left"] >= name["right"]
            assert apart or name["top"] >= other["bottom"] or other["top"] >= name["bottom"], (name, other)


def test_the_frontier_names_every_run_that_ended(visit, runs):
    _check_frontier(visit, runs)
    # Dense's level goes and comes with dense.
    button = visit.view.locator(".key").first.get_by_role("button", name="dense", exact=True)
    for wanted in (False, True):
        button.click()
        shown = visit.view.evaluate("document.querySelector('[data-figure=frontier]').data.map(t => t.visible)")
        assert shown == [wanted] * 3 + [True] * 3


def test_the_switch_draws_both_charts_against_another_axis(visit, runs):
    last = {"steps": 600, "bytes": runs[1].steps[-1]["wire_bytes"], "seconds": runs[1].steps[-1]["seconds"]}
    for axis in ("bytes", "seconds", "steps"):
        visit.view.click(f"[data-axis={axis}]")
        for chart in ("loss:{axis}", "metric:{axis}"):
            assert visit.traces(chart)[1]["last"] == pytest.approx(last[axis], rel=1e-4)
        pressed = visit.view.locator("[data-axis][aria-pressed=true]")
        assert (pressed.count(), pressed.inner_text()) == (1, axis)


def test_the_legend_hides_a_method_in_every_chart_and_brings_it_back(visit):
    button = visit.view.locator(".key").first.get_by_role("button", name="strom")
    for wanted in (False, True):
        button.click()
        for chart in ("loss:{axis}", "metric:{axis}", "density", "step_times"):
            drawn = visit.view.evaluate(
                """key => document.querySelector(`[data-figure="${key}"]`).data
                     .filter(t => t.name.startsWith("strom")).map(t => t.visible)""",
                chart,
            )
            assert drawn
            assert set(drawn) == {wanted}
        assert visit.view.locator(".key button[aria-pressed=false]").count() == (0 if wanted else 3)
    # Plotly's own legend, of the layers, is left alone.
    assert visit.view.locator("[data-figure^=layer_bytes] .legend .traces").count() == 6


def test_layers_are_those_of_the_method_chosen(visit):
    before = visit.view.evaluate("document.querySelector('[data-figure^=layer_density]').data[0].customdata[0][0]")
    visit.view.select_option("#run", label="dense")
    after = visit.view.evaluate("document.querySelector('[data-figure^=layer_density]').data[0].customdata[0][0]")
    assert before != after == "100%"


@pytest.mark.parametrize(("kind", "text"), [("markdown", markdown), ("csv", csv_text)])
def test_the_buttons_copy_the_table(visit, runs, kind, text):
    visit.view.click(f"[data-copy={kind}]")
    visit.view.wait_for_function(f"document.querySelector('[data-copy={kind}]').textContent === 'Copied'")
    assert visit.view.evaluate("navigator.clipboard.readText()") == text(runs)


def test_the_button_makes_page_and_charts_dark_and_it_stays_so(visit):
    light = _colours(visit)
    visit.view.click("#theme")
    night = _colours(visit)
    assert all(light[part] != night[part] for part in light)
    assert visit.traces("frontier")[1]["colour"] == night["text"]
    visit.view.reload()
    assert _colours(visit) == night


@dark
def test_a_dark_system_gets_a_dark_page_and_can_have_a_light_one(visit):
    night = _colours(visit)
    assert night["page"] == "rgb(21, 24, 28)"
    visit.view.click("#theme")
    assert _colours(visit)["page"] == "rgb(255, 255, 255)"


@phone
def test_on_a_phone_nothing_is_wider_than_the_screen(visit, runs):
    _check_frontier(visit, runs)
    for details in visit.view.locator("details").all():
        details.evaluate("each => { each.open = true; }")
    assert visit.view.evaluate("document.documentElement.scrollWidth") <= 375
    assert visit.view.evaluate(
        "document.querySelector('.box').scrollWidth > document.querySelector('.box').clientWidth"
    )
    for chart in visit.view.locator(".chart:visible").all():
        assert chart.bounding_box()["width"] > 330
