"""The documentation as a site: it is built strictly, every public name is in it, and nothing else is needed."""

from __future__ import annotations

import doctest
import importlib.util
import inspect
import os
import re
import subprocess
import sys
from html import unescape
from importlib import import_module
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urlsplit

import pytest

import laconic
import laconic.plan
import laconic.sim

pytest.importorskip("mkdocs", reason="mkdocs is not installed")
pytest.importorskip("material", reason="mkdocs-material is not installed")
pytest.importorskip("mkdocstrings", reason="mkdocstrings is not installed")
ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
# Of these every name; of others what is said to be public by a page.
PUBLIC = {"laconic": laconic, "laconic.sim": laconic.sim, "laconic.plan": laconic.plan}
SECTIONS = ["Start", "Choose", "Methods", "In your framework", "Watch", "Scale out", "Extend", "Reference"]
SECTIONS += ["Results", "Decisions"]
FAULTS = {
    "broken.md": "[to nothing](nowhere.md)",
    "outside.md": "[to nothing outside](../examples/nowhere.py)",
    "anchor.md": "[to no heading](index.md#nowhere)",
}


def build(config: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """Build a site as ``make docs`` does."""
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(config), "--site-dir", str(out)],
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("site")
    done = build(ROOT / "mkdocs.yml", out)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def pages(site) -> dict[Path, str]:
    return {path: path.read_text() for path in sorted(site.rglob("*.html"))}


def _script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"site_{name}", ROOT / "scripts" / "site" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _addresses(html: str, kinds: str = "href|src") -> list[str]:
    return [unescape(address) for address in re.findall(rf'\b(?:{kinds})="([^"]*)"', html)]


def test_every_page_is_in_a_section():
    """A page that is not found by turning pages is not found: give it a line in mkdocs.yml."""
    lines = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2].splitlines()
    assert [line[4:-1] for line in lines if line.startswith("  - ")] == SECTIONS
    listed = [line.split()[-1] for line in lines if line.endswith(".md")]
    assert len(listed) == len(set(listed))
    written = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    assert written == {name for name in listed if not name.startswith("repository/")}


def test_what_is_broken_stops_the_build(tmp_path):
    (tmp_path / "docs").mkdir()
    for name, text in (FAULTS | {"index.md": "# Start", "lost.md": "# In no section"}).items():
        (tmp_path / "docs" / name).write_text(text)
    listed = "".join(f"  - {name}\n" for name in ["index.md", *FAULTS])
    text = (ROOT / "mkdocs.yml").read_text().replace("scripts/site", f"{ROOT}/scripts/site")
    text = text.partition("\nnav:\n")[0]
    (tmp_path / "mkdocs.yml").write_text(f"{text}\nnav:\n{listed}")
    done = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert done.returncode == 1
    for said in ("'nowhere.md'", "nowhere.py'", "index.md#nowhere", "lost.md"):
        assert said in done.stderr


def test_every_public_name_is_in_the_reference(pages):
    html = "\n".join(text for path, text in pages.items() if path.parent.name == "reference")
    shown = re.findall(r'class="doc doc-object doc-(\w+)">\s*<h\d id="([\w.]+)"', html)
    kinds = {name: kind for kind, name in shown}
    assert len(kinds) == len(shown), "each name has one place"
    for package, module in PUBLIC.items():
        for name in module.__all__:
            value = getattr(module, name)
            # A function may have its module's name: laconic.plan.predict.
            places = [f"{package}.{name}", f"{value.__module__}.{value.__qualname__}"]
            [kind] = [kinds[place] for place in places if place in kinds] or [f"{package}.{name} is not there"]
            assert kind == ("class" if inspect.isclass(value) else "function"), name


def test_what_the_reference_names_is_documented():
    """What has no docstring would be left out of a page without a word."""
    named = re.findall(
        r"^::: (\S+)$(?!\n    options:\n      show_if_no)",
        "".join(path.read_text() for path in (DOCS / "reference").glob("*.md")),
        re.MULTILINE,
    )
    assert len(named) > 100
    for name in named:
        module, _, last = name.rpartition(".")
        assert inspect.getdoc(getattr(import_module(module), last)), name


def test_links_lead_to_files_of_the_site(pages, site):
    wrong = []
    for page, html in pages.items():
        for address in _addresses(html):
            parts = urlsplit(address)
            if page.name != "404.html" and not parts.scheme and parts.path:
                leads = (page.parent / unquote(parts.path)).resolve()
                wrong += [(page.name, address)] if not leads.is_file() or not leads.is_relative_to(site) else []
    assert wrong == []


def test_no_markup_is_left_in_the_text(pages):
    """A list needs an empty line before it here; repositories show one without, too."""
    for page, html in pages.items():
        text = re.sub(r"(?s)<(pre|code|script)\b.*?</\1>|<[^>]+>", "", html.partition("<article")[2])
        assert re.findall(r"(?m)```.*|\]\(.*|^ *[-*] .*|^ *\|.*\|$", unescape(text)) == [], page


def test_links_elsewhere_have_a_proper_form(pages):
    outside = {a for html in pages.values() for a in _addresses(html, "href") if urlsplit(a).scheme}
    for address in outside:
        parts = urlsplit(address)
        assert parts.scheme == "https" or (parts.scheme, parts.hostname) == ("http", "localhost"), address
        assert re.fullmatch(r"[\w-]+(\.[\w-]+)+", parts.hostname), address
        assert " " not in address


def test_pages_ask_nothing_of_the_network(pages, site):
    for page, html in pages.items():
        loaded = [
            address
            for tag in re.findall(r"<(?:script|link|img|iframe)\b[^>]*>", html)
            for address in _addresses(tag)
        ]
        assert len(loaded) > 3
        assert [address for address in loaded if urlsplit(address).netloc] == [], page
    for style in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", style.read_text()), style


def test_what_lies_outside_docs_is_on_the_site(site):
    there = site / "repository"
    assert (there / "benchmarks/results/table_language.json").read_bytes() == (
        ROOT / "benchmarks/results/table_language.json"
    ).read_bytes()
    assert "init_process_group" in (there / "examples/ddp.py.html").read_text()
    contributing = (there / "CONTRIBUTING.html").read_text()
    assert 'href="../glossary.html"' in contributing


def test_links_in_code_are_left_alone_and_names_of_files_shortened():
    links = _script("links")
    text = "{}`[a](b.md)` [d](../e.py)\n```text\n[a.md](b.md)\n```\n[f](https://g.h/i.md)\n"
    changed = text.replace("e.py", "E.PY").format("[a](B.MD#c) ")
    assert links._with_links(text.format("[docs/a.md](b.md#c) "), str.upper) == changed


def test_examples_in_docstrings_become_code():
    script = _script("docstrings")
    text = "Of 2**``b``, a < b.\n\n    x = 1\n\n    y = 2\n\n    1 half\n\n>>> x\n1\n\n- one"
    assert script.as_markdown(text) == (
        "Of 2\\*\\*``b``, a \\< b.\n\n```text\nx = 1\n\ny = 2\n\n1 half\n```\n\n```pycon\n>>> x\n1\n```\n\n- one"
    )
    assert script.as_markdown("A:\n\n    x = 1") == "A:\n\n```python\nx = 1\n```"


@pytest.mark.parametrize("name", ["docstrings", "links"])
def test_examples_of_the_scripts_are_true(name):
    assert doctest.testmod(_script(name)) == (0, 1)
