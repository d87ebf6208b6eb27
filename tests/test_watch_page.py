"""The page on watching names every number that there is to see."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path

import pytest

from laconic.lab import session
from laconic.stats import Layer, Stats, Tuning, Waits

PAGE = (Path(__file__).parent.parent / "docs" / "watch.md").read_text()
SECTIONS = {Stats: "link.stats", Layer: "link.stats.layers", Waits: "link.waits()", Tuning: "link.stats.tuning"}


def _named_in_tables(section: str) -> set[str]:
    """What stands in the first column of a section's tables."""
    text = PAGE.partition(f"## {section}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]*`) \|", text, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


@pytest.mark.parametrize("told", SECTIONS, ids=lambda cls: cls.__name__)
def test_every_field_and_property_is_named_in_its_table_and_no_other(told):
    properties = {name for name, _ in inspect.getmembers(told, lambda value: isinstance(value, property))}
    assert _named_in_tables(f"`{SECTIONS[told]}`") == {field.name for field in fields(told)} | properties


def test_every_key_of_a_result_is_named():
    written = set(re.findall(r'^        "(\w+)":', inspect.getsource(session._result), re.MULTILINE))
    assert {"ratio", "weights_sha256"} < written
    assert _named_in_tables("The page and `summary.json`") == written | {"tuning"}
