"""The tables of docs/results.md are those that their scripts print of the kept runs, to the last digit."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = (ROOT / "docs" / "results.md").read_text()
SCRIPTS = ("image", "language", "optimizers", "parts", "sizes", "speech", "turns", "values")
# A group that is printed and not on the page: no run of it has come to its end, or it has other columns there.
ELSEWHERE = {"ptb, awd, 8 workers, 20 epochs", "resnet20, clipped, 6 epochs"}


@pytest.mark.skipif(not RESULTS.is_dir(), reason="a source archive has no kept runs")
@pytest.mark.parametrize(
    "script", ["image", "language", "optimizers", "parts", "sizes", "speech", "turns", "values"]
)
def test_the_page_has_the_rows_that_a_script_prints(script, benchmark):
    pytest.importorskip("tyro", reason="the tables' scripts are command lines")
    table = benchmark(f"table_{script}").TABLE
    printed = benchmark("tables").printed(RESULTS / f"table_{script}.json", table)
    groups = [group for group in re.split(r"(?m)^(?=\*\*)", printed) if group.strip()]
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
