"""What the README and the pages say is true: their Python runs, their links lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from laconic.methods import METHODS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_every_python_block_runs():
    program = "\n".join(
        f"exec(compile({block!r}, {page.name!r}, 'exec'), {{'__name__': 'page'}})"
        for page in PAGES
        for block in BLOCK.findall(page.read_text())
    )
    assert program.count("exec(") >= 4
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env=os.environ | alone,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_to_files(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_readme_shows_the_two_commands_of_the_makefile():
    rules = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for command in re.findall(r"^make (\w+)", (ROOT / "README.md").read_text(), re.MULTILINE):
        assert command in rules
    assert "make test" in (ROOT / ".ci" / "run").read_text()


def test_readme_lists_every_method():
    listed = re.findall(r"^\| `(\w+)\(", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(METHODS)
