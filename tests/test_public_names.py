"""What ``import laconic`` gives: sorted names, all documented, and nothing imported that is optional."""

from __future__ import annotations

import importlib.metadata
import inspect
import subprocess
import sys
import typing

import pytest

import laconic

OPTIONAL = [
    "accelerate",
    "lightning",
    "transformers",
    "rich",
    "numba",
    "triton",
    "plotly",
    "matplotlib",
    "tyro",
    "sklearn",
    "laconic.lab",
    "laconic.cli",
]


def test_names_are_sorted_and_each_is_there_once():
    assert laconic.__all__ == sorted(set(laconic.__all__))


def test_nothing_public_is_left_out():
    modules = {name for name, value in vars(laconic).items() if inspect.ismodule(value)}
    public = {name for name in vars(laconic) if not name.startswith("_")} - modules
    assert public == set(laconic.__all__)


@pytest.mark.parametrize("name", laconic.__all__)
def test_every_name_is_documented(name):
    value = getattr(laconic, name)
    assert inspect.getdoc(value)
    # A dataclass without a docstring is given its own signature.
    assert not value.__doc__.startswith(f"{name}(")
    if inspect.isclass(value):
        own = {k: v for k, v in vars(value).items() if not k.startswith("_")}
        methods = [k for k, v in own.items() if callable(v) or isinstance(v, property | staticmethod)]
        assert [k for k in methods if not inspect.getdoc(own[k])] == []


@pytest.mark.parametrize("name", laconic.__all__)
def test_every_annotation_can_be_resolved(name):
    value = getattr(laconic, name)
    if inspect.isfunction(value):
        assert "return" in typing.get_type_hints(value)


def test_importing_laconic_imports_nothing_optional():
    code = (
        "import sys, torch.distributed, torch.nn.parallel, torch.distributed.tensor\n"
        "before = set(sys.modules)\n"
        "import laconic\n"
        f"optional = {OPTIONAL!r}\n"
        "new = set(sys.modules) - before\n"
        "print(sorted(m for m in new for o in optional if (m + '.').startswith(o + '.')))\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=100)
    assert run.stdout.strip() == "[]"


def test_the_version_is_in_the_metadata():
    metadata = importlib.metadata.metadata("laconic")
    assert metadata["Version"][0].isdigit()
    assert metadata["Summary"]
    assert importlib.metadata.version("laconic") == metadata["Version"]
