"""The tables of docs/results.md are those that their scripts print of the kept runs, to the last digit."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
PAGE = (ROOT / "docs" / "results.md").read_text()
# A group that is printed and not on the page: no run of it has come to its end, or it has other columns there.
ELSEWHERE = {"ptb, awd, 8 workers, 20 epochs", "resnet20, clipped, 6 epochs"}


@pytest.fixture
def printed(monkeypatch):
    """Print a script's table."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCHMARKS))

    def of(script: str) -> str:
        table = import_module(script).TABLE
        return import_module("tables").printed(BENCHMARKS / "results" / f"{script}.json", table)

    yield of
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(BENCHMARKS)):
            del sys.modules[name]


@pytest.mark.parametrize(
    "script", ["image", "language", "optimizers", "parts", "sizes", "speech", "turns", "values"]
)
def test_the_page_has_the_rows_that_a_script_prints(script, printed):
    groups = [group for group in re.split(r"(?m)^(?=\*\*)", printed(f"table_{script}")) if group.strip()]
    assert groups
    for group in groups:
        head, *lines = group.strip().splitlines()
        if head.removeprefix("**").partition("**")[0] in ELSEWHERE:
            continue
        assert head in PAGE
        here = PAGE[PAGE.index(head) :].splitlines()[1 : len(lines) + 1]
        # Where there is no band the page leaves the last column out.
        short = [re.sub(r"[^|]*\|$", "", line) if line.startswith("|") else line for line in lines]
        assert here in (lines, short)
