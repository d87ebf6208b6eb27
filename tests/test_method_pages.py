"""Every method has a page that names each of its settings with its default, and every page is of a method."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

from laconic.methods import METHODS

FOLDER = Path(__file__).parent.parent / "docs" / "methods"
SECTION = re.compile(r"^## `(\w+)`\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
SETTING = re.compile(r"^\| `(\w+)` \| `([^`]+)` \|", re.MULTILINE)


def _sections() -> list[tuple[str, str, str]]:
    """Name, text and file of every section that is about one method."""
    pages = sorted(FOLDER.glob("*.md"))
    return [(name, text, page.name) for page in pages for name, text in SECTION.findall(page.read_text())]


def test_every_method_has_one_section_and_no_section_is_of_another():
    assert sorted(name for name, _, _ in _sections()) == sorted(METHODS)


@pytest.mark.parametrize(
    ("name", "text"), [(name, text) for name, text, _ in _sections()], ids=lambda part: part[:20]
)
def test_a_section_has_each_setting_with_its_default_and_no_other(name, text):
    told = {setting: ast.literal_eval(default) for setting, default in SETTING.findall(text)}
    assert told == {key: p.default for key, p in inspect.signature(METHODS[name]).parameters.items()}


@pytest.mark.parametrize(
    ("name", "text"), [(name, text) for name, text, _ in _sections()], ids=lambda part: part[:20]
)
def test_a_section_has_a_formula_what_to_watch_and_what_was_measured(name, text):
    assert "```text\n" in text
    for heading in ("**Watch**", "**Paper**", "**Measured**"):
        assert heading in text, f"{name} says nothing of {heading}"


def test_the_overview_leads_to_every_section():
    overview = (FOLDER / "index.md").read_text()
    for name, _, page in _sections():
        assert re.search(rf"\[`{name}`\]\({page}(#{name})?\)", overview), f"{name} is in {page}"


def test_the_overview_leads_nowhere_else():
    listed = re.findall(r"^\| \[`(\w+)`\]", (FOLDER / "index.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(METHODS)
