"""Who may import whom: a module imports only from lower rows, and the pure rows touch nothing outside."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import laconic

ROOT = Path(laconic.__file__).parent
ROWS = [
    {"segments", "errors", "stats", "arguments", "layout", "collectives", "holding"},
    {"costs", "sizes", "spectrum", "pace", "coding", "seals"},
    {"types", "descent"},
    {"kernels", "memory", "ledger", "clipping", "guard", "efficiency", "linkfit", "shards", "unfinished"},
    {"wire", "codecs"},
    {"compressors", "exchanges", "tuners", "local", "handshake", "damping", "averaging", "replicas"},
    {"method", "job", "theory", "transports"},
    {"methods", "intake", "gauge", "nodes"},
    {"state"},
    {"diagnosis", "resharding"},
    {"reducer"},
    {"rounds"},
    {"integrations"},
    {"sim"},
    {"lab"},
    {"plan"},
    {"cli"},
    {"__main__"},
]
ROW = {package: number for number, row in enumerate(ROWS) for package in row}
# The public face is what users see: the laboratory and the command line stand above it.
ROW["laconic"] = ROW["integrations"]
# Transports talk, the reducer is handed a clock.
# Compiled loops run on threads of their own, which a forked process must know that it lost.
ALLOWED = {"kernels/cpu.py": {"os"}}
PURE = set().union(*ROWS[:10]) - {"transports"}
OUTSIDE = {"torch.distributed", "time", "random", "os", "pathlib", "io", "socket", "threading"}
MOST_LINES = 300

FILES = sorted(p for p in ROOT.rglob("*.py") if p != ROOT / "__init__.py")
every_file = pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))


def _package(path: Path) -> str:
    """The part of laconic that a file belongs to: a folder, or a file of the top folder."""
    return path.relative_to(ROOT).with_suffix("").parts[0]


def _imports(source: str) -> list[str]:
    """Full names of all that a source imports, wherever in it."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def _offending(package: str, imports: list[str]) -> list[str]:
    ours = [name for name in imports if name.split(".")[0] == "laconic"]
    parts = {name: [*name.split("."), "laconic"][1] for name in ours}
    return [name for name, part in parts.items() if part != package and ROW.get(part, 99) >= ROW[package]]


@every_file
def test_a_module_imports_only_from_lower_rows(path):
    package = _package(path)
    assert package in ROW, f"give '{package}' a row in tests/test_layers.py"
    assert _offending(package, _imports(path.read_text())) == []


@every_file
def test_pure_modules_touch_no_group_no_clock_and_no_file(path):
    if _package(path) in PURE:
        touched = [
            name for name in _imports(path.read_text()) for out in OUTSIDE if f"{name}.".startswith(f"{out}.")
        ]
        assert set(touched) <= ALLOWED.get(str(path.relative_to(ROOT)), set())


@pytest.mark.parametrize("path", [*FILES, ROOT / "__init__.py"], ids=lambda p: str(p.relative_to(ROOT)))
def test_no_file_is_longer_than_can_be_read_at_once(path):
    assert len(path.read_text().splitlines()) < MOST_LINES


def test_the_table_in_contributing_is_this_one():
    text = (Path(__file__).parent.parent / "CONTRIBUTING.md").read_text()
    table = re.findall(r"^ ?(\d+)((?:   ?\w+)+)", text, re.MULTILINE)
    shown = {int(number): set(words.split()) for number, words in table}
    assert shown == {
        i: {name for name in row if (ROOT / name).exists() or _file(name)} for i, row in enumerate(ROWS)
    }


def _file(name: str) -> bool:
    return (ROOT / f"{name}.py").exists()


def test_no_row_could_be_left_out():
    """A row is there because something in it imports from the row below; the laboratory imports the public face."""
    lowest: dict[str, set[str]] = {}
    for path in FILES:
        ours = [name.split(".") for name in _imports(path.read_text()) if name.startswith("laconic.")]
        lowest.setdefault(_package(path), set()).update(parts[1] for parts in ours if parts[1] in ROW)
    for number, row in enumerate(ROWS[1:], start=1):
        if "lab" in row:
            continue
        assert any(ROW[used] == number - 1 for name in row & set(lowest) for used in lowest[name] - {name}), row


def test_the_exam_sees_what_it_is_there_to_see():
    source = "import time\nfrom laconic import reducer\n\ndef f():\n    from laconic.methods import dense\n"
    imports = _imports(source)
    assert imports == ["time", "laconic.reducer", "laconic.methods.dense"]
    assert _offending("memory", imports) == ["laconic.reducer", "laconic.methods.dense"]
    assert _offending("methods", imports) == ["laconic.reducer"]
    assert _offending("integrations", imports) == []
    assert _offending("segments", ["laconic.stats.Stats", "laconic.segments.Segment"]) == ["laconic.stats.Stats"]
    assert _offending("integrations", ["laconic"]) == ["laconic"]
    assert _offending("lab", ["laconic"]) == []
