"""What the page on trouble quotes is what the code says."""

from __future__ import annotations

import ast
import builtins
import re
import textwrap
from pathlib import Path

import pytest

import laconic
from laconic import errors

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
QUOTED = [
    " ".join(textwrap.dedent(block).split())
    for block in re.findall(r"^ *```text\n(.*?)^ *```", PAGE, re.MULTILINE | re.DOTALL)
]
# What stands for a part of a text that is another one each time.
GAP = "\0"


def _texts() -> list[str]:
    """Every string in the sources, with a gap for what is filled in."""
    found = []
    for path in sorted(Path(laconic.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [p.value if isinstance(p, ast.Constant) else GAP for p in node.values]
                found.append("".join(str(part) for part in parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(re.sub(r"%[.\d]*[sdgf]", GAP, node.value))
    return found


TEXTS = [" ".join(text.split()) for text in _texts()]


def _says(text: str, quoted: str) -> bool:
    """Whether a text of the code has all that is quoted, in its order; a gap in it is one in the quotation."""
    parts = [re.escape(part) for part in quoted.split("…")]
    return re.search(f"[^…]*{GAP}[^…]*?".join(parts) if len(parts) > 1 else parts[0], text) is not None


@pytest.mark.parametrize("quoted", QUOTED, ids=lambda text: text[:40])
def test_a_quoted_text_is_one_of_the_code(quoted):
    kind, _, text = quoted.partition(": ")
    if re.fullmatch(r"\w+Error", kind):
        assert isinstance(getattr(errors, kind, None) or getattr(builtins, kind), type)
    else:
        text = quoted
    assert any(_says(told, text) for told in TEXTS), text


def test_every_kind_of_error_of_ours_is_quoted():
    kinds = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert kinds == {q.partition(": ")[0] for q in QUOTED} & kinds


def test_a_text_that_the_code_does_not_say_is_noticed():
    assert not any(_says(told, "the optimizer was given a closure, and liked it") for told in TEXTS)
    assert not any(_says(told, "the optimizer … given a closure, which would") for told in TEXTS)
