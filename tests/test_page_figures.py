"""What the newcomers' pages claim stands where it was measured, and recipes are those that were measured."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import laconic

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
TOLD = [
    DOCS / "choose.md",
    DOCS / "troubleshooting.md",
    DOCS / "migrate.md",
    *sorted((DOCS / "methods").glob("*.md")),
]
MEASURED = "".join(
    (DOCS / f"{name}.md").read_text()
    for name in ("cat", "exchanges", "local", "network", "results", "sdagc", "theory", "time-to-target")
)
FENCED = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
RATIO = re.compile(r"(?<![\w.,-])\d[\d,.]*x\b")


@pytest.mark.parametrize("page", TOLD, ids=lambda page: page.name)
def test_every_ratio_is_in_a_page_that_measured_it(page):
    told = set(RATIO.findall(FENCED.sub("", page.read_text())))
    assert sorted(ratio for ratio in told if not re.search(rf"(?<![\w.,]){re.escape(ratio)}", MEASURED)) == []


def test_the_pages_tell_ratios_at_all():
    assert len({ratio for page in TOLD for ratio in RATIO.findall(page.read_text())}) > 20


@pytest.fixture(scope="module")
def recipes():
    (block,) = re.findall(r"^```python\n(.*?)^```", (DOCS / "choose.md").read_text(), re.MULTILINE | re.DOTALL)
    space: dict[str, object] = {}
    exec(block, space)
    return space["recipes"]


def test_a_recipe_is_the_method_of_the_row_that_backs_it(recipes, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    pytest.importorskip("tyro", reason="the tables' scripts are command lines")
    import table_image
    import table_language
    import table_speech

    text = table_language.WHERE_THEY_PART
    assert recipes == {
        "recommended": laconic.recommended(),
        "adamw": laconic.spartan(clip=1.0),
        "pictures": table_image.METHODS["sdagc 2% held, int4, ahead, I=4"],
        "pictures, fewest bytes": table_image.METHODS["led 0.8%, 1 bit, ahead, I=4"],
        "few rounds": table_language.SHORTER_STEPS["celgc I=16, rate 20, outer 1, momentum 0.6"][1],
        "text": text["sdagc c=10, 1 bit, ahead"],
        "text, fewest bytes": text["led 0.3%, 1 bit, ahead"],
        "speech": table_speech.METHODS["sdagc c=60, led, 1 bit, ahead"],
    }


def test_every_recipe_is_named_in_the_decisions_above_it(recipes):
    above = (DOCS / "choose.md").read_text().partition("## Recipes")[0]
    assert all(f"[`{name}`](#recipes)" in above for name in recipes)
