"""A link into a page leads to a heading that is there; those of the site's own pages are seen when it is built."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


@cache
def _anchors(page: Path) -> frozenset[str]:
    """The headings of a page as code hosts write them in addresses."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return frozenset(re.sub(r"[^\w\- ]", "", heading).lower().strip().replace(" ", "-") for heading in plain)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_to_headings(page):
    for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text()):
        there = (page.parent / target).resolve() if target else page
        assert there.suffix != ".md" or anchor in _anchors(there), f"{target}#{anchor}"
