"""Hook of the documentation site: what pages link to outside docs/ is on the site too, under repository/.

Markdown and Python become pages, a folder a list of its files, and all else is copied as it is. Links of pages that
lead there are rewritten; one that leads to nothing is left as it stands, for mkdocs to find broken.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
DOCS, PLACE = "docs", "repository"
# Code is matched first, so that nothing in it is taken for a link.
CODE_OR_LINK = re.compile(r"(?ms)(^ *```.*?^ *```|`[^`\n]+`)|((?:\[[\w/-]+\.md)?\]\()([^)\s#:]+)((?:#[^)\s]*)?\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what pages link to outside docs/, and what those link to in turn."""
    left = list(files.documentation_pages())
    while left:
        page = left.pop()
        for target in _outside(_in_repository(page.src_uri), page.content_string):
            if files.get_file_from_path(_on_site(target)) is None:
                made = _made(target, config)
                files.append(made)
                left += [made] if target.endswith(".md") else []
    return files


def on_page_markdown(markdown: str, page: Page, files: Files, **_: Any) -> str:
    """Return the page with links as they are on the site; what reads "plan.md" there reads "plan"."""
    here = _in_repository(page.file.src_uri)

    def rewritten(target: str) -> str:
        leads = posixpath.normpath(posixpath.join(posixpath.dirname(here), target))
        if files.get_file_from_path(_on_site(leads)) is None:
            return target
        return posixpath.relpath(_on_site(leads), posixpath.dirname(page.file.src_uri) or ".")

    return _with_links(markdown, rewritten)


def _with_links(markdown: str, change: Callable[[str], str]) -> str:
    def changed(found: re.Match[str]) -> str:
        code, before, target, after = found.groups()
        # A text that is a file's name loses what makes it one.
        return code or before.replace("[docs/", "[").replace(".md]", "]") + change(target) + after

    return CODE_OR_LINK.sub(changed, markdown)


def _outside(path: str, text: str) -> set[str]:
    """Return what a page of the repository links to outside docs/, as paths from the root, where it is there."""
    found: set[str] = set()

    def note(target: str) -> str:
        leads = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        if not leads.startswith((f"{DOCS}/", "..")) and (ROOT / leads).exists():
            found.add(leads)
        return target

    _with_links(text, note)
    return found


def _on_site(path: str) -> str:
    """Return where a path from the repository's root is, counted from docs/: ``benchmarks/tables.py``, say.

    >>> _on_site("docs/plan.md"), _on_site("CONTRIBUTING.md"), _on_site("examples/ddp.py")
    ('plan.md', 'repository/CONTRIBUTING.md', 'repository/examples/ddp.py.md')
    """
    if path.startswith(f"{DOCS}/"):
        return path.removeprefix(f"{DOCS}/")
    as_page = (ROOT / path).is_dir() or path.endswith(".py")
    # README.md would become an index of a folder.
    path = "README-of-the-repository.md" if path == "README.md" else path
    return f"{PLACE}/{path}.md" if as_page else f"{PLACE}/{path}"


def _in_repository(uri: str) -> str:
    """Return the path from the repository's root of a page of the site."""
    if not uri.startswith(f"{PLACE}/"):
        return f"{DOCS}/{uri}"
    path = uri.removeprefix(f"{PLACE}/")
    return "README.md" if path == "README-of-the-repository.md" else path


def _made(path: str, config: MkDocsConfig) -> File:
    source = ROOT / path
    if source.is_dir():
        listed = "\n".join(sorted(p.name for p in source.iterdir() if not p.name.startswith((".", "__"))))
        return _page(path, f"# {path}\n\n```text\n{listed}\n```\n", config)
    if source.suffix == ".py":
        return _page(path, f"# {path}\n\n````python\n{source.read_text()}````\n", config)
    if source.suffix == ".md":
        return _page(path, source.read_text(), config)
    return File.generated(config, _on_site(path), abs_src_path=str(source))


def _page(path: str, content: str, config: MkDocsConfig) -> File:
    return File.generated(config, _on_site(path), content=content)
