"""Commands that the README and the pages show are there, with the options that they are shown with."""

from __future__ import annotations

import ast
import re
import shlex
from dataclasses import dataclass
from itertools import dropwhile, pairwise
from pathlib import Path

import pytest

from laconic.cli.commands import parse
from laconic.cli.compare import Compare
from laconic.cli.simulate import Simulate
from laconic.cli.train import Train
from laconic.cli.versions import wanted
from laconic.lab.method_words import make, words_of

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^ *```(?:console|bash|sh)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(?<!`)`((?:laconic|python|make|torchrun) [^`\n]+)`(?!`)")
# What a reader is to put in, and a device that is not everywhere.
PLACEHOLDERS = {"TASK": "lm", "METHOD": "topk", "NAME": "ptb", "DIR...": "DIR", "FIGURE": "600", "cuda": "cpu"}
ON_A_TASK = ["train", "compare", "simulate"]


@dataclass(frozen=True)
class Shown:
    """A command on a page; ``name`` is what it is called here, among others of the page."""

    page: Path
    words: tuple[str, ...]

    @property
    def name(self) -> str:
        """The page and the beginning of the command."""
        return f"{self.page.stem}: {' '.join(self.words)[:70]}"

    @property
    def ours(self) -> tuple[str, ...] | None:
        """What stands behind ``laconic``, started by itself or by a launcher; None for another command."""
        module = [i for i, pair in enumerate(pairwise(("-m", *self.words))) if pair == ("-m", "laconic")]
        return self.words[module[0] + 1 :] if module else None


def shown(page: Path, text: str) -> list[Shown]:
    """Return every command of a page's blocks and of its sentences."""
    lines = [line for block in BLOCK.findall(text) for line in block.replace("\\\n", " ").splitlines()]
    blocks = [_words(line) for line in lines]
    return [
        Shown(page, words)
        for words in [*blocks, *(_completed(_words(span)) for span in SPAN.findall(text))]
        if words
    ]


def _words(line: str) -> tuple[str, ...]:
    words = [word for word in shlex.split(line, comments=True) if word not in ("...", "--help")]
    # What is set for one command stands before it.
    return tuple(PLACEHOLDERS.get(w, w) for w in dropwhile(re.compile(r"[A-Z_]+=").match, words))


def _completed(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return a command that a sentence may only name with what else it wants: a task, a bandwidth."""
    if words[1] in ON_A_TASK and words[2:3] != ("--resume",) and (len(words) == 2 or words[2].startswith("--")):
        words = (*words[:2], "lm", *words[2:])
    known = words[1] == "plan" and not {"--bandwidth", "--measure"} & set(words)
    return (*words, "--bandwidth", "100") if known else words


def options_in(program: Path) -> set[str]:
    """Return the options of a program: the fields of the class from which ``tyro.cli`` makes its command line."""
    calls = [node for node in ast.walk(ast.parse(program.read_text())) if isinstance(node, ast.Call)]
    [made] = [call.args[0] for call in calls if ast.unparse(call.func) == "tyro.cli"]
    return {f"--{field.replace('_', '-')}" for field in _fields(program, ast.unparse(made))}


def _fields(module: Path, name: str) -> set[str]:
    """Return the fields of a class in a module or where that has it from."""
    for node in ast.parse(module.read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            assigned = [each.target for each in node.body if isinstance(each, ast.AnnAssign)]
            return {ast.unparse(target) for target in assigned}.union(
                *(_fields(module, ast.unparse(base)) for base in node.bases)
            )
        if isinstance(node, ast.ImportFrom) and name in {alias.name for alias in node.names}:
            inside = "/".join((node.module or "").split(".")) + ".py"
            return _fields(ROOT / "src" / inside if inside.startswith("laconic/") else module.parent / inside, name)
    raise AssertionError(f"{module} has no {name}")


ALL = [command for page in PAGES for command in shown(page, page.read_text())]
OURS = {command.name: command for command in ALL if command.ours is not None}
PROGRAMS = {command.name: command for command in ALL if command.words[0] == "python" and command.ours is None}


def check(command: Shown) -> None:
    """Raise ``ValueError`` or ``SystemExit`` if laconic would not take the command."""
    if wanted(command.ours):
        return
    known = parse(command.ours)
    if isinstance(known, Train):
        make(known.method)
    elif isinstance(known, Compare | Simulate):
        words_of(known.methods)


@pytest.mark.parametrize("command", OURS.values(), ids=OURS)
def test_laconic_takes_every_command_that_is_shown(command):
    check(command)


@pytest.mark.parametrize("command", PROGRAMS.values(), ids=PROGRAMS)
def test_programs_are_there_and_have_the_options_that_are_shown(command):
    program, rest = ROOT / command.words[1], command.words[2:]
    assert program.exists()
    options = {word.partition("=")[0] for word in rest if word.startswith("--")}
    assert not options or options <= options_in(program)


def test_makefile_has_every_rule_that_is_shown():
    rules = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {command.words[1] for command in ALL if command.words[0] == "make"} <= set(rules)


def test_what_a_launcher_starts_is_there():
    started = {word for command in ALL for word in command.words if word.startswith(("examples/", "benchmarks/"))}
    programs = {word.partition(":")[0] for word in started if ".py" in word}
    assert len(programs) > 5
    assert [program for program in sorted(programs) if not (ROOT / program).exists()] == []


def test_commands_are_found_in_blocks_and_in_sentences():
    block = "```console\nA=1 torchrun x \\\n  -m laconic methods  # why\n```\n"
    text = f"{block}Or `laconic train --steps 3`, before that `laconic plan`.\n"
    found = [command.ours for command in shown(Path("page.md"), text)]
    assert found == [("methods",), ("train", "lm", "--steps", "3"), ("plan", "--bandwidth", "100")]
    assert len(OURS) > 50
    assert len(PROGRAMS) > 15


@pytest.mark.parametrize("wrong", ["train lm --stepz 3", "compare lm --methods topk:c=1", "plin", "plan lm"])
def test_the_exam_sees_what_it_is_there_to_see(wrong, capsys):
    with pytest.raises((ValueError, SystemExit)):
        check(Shown(Path("page.md"), ("laconic", *wrong.split())))
