"""A file in a registered folder is in every list: its folder's, the package's, and the exams'."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import typing

import pytest

import laconic
from contracts.registry import CODECS, COMPRESSORS, EXCHANGES, RECIPES, TUNERS
from laconic import codecs, compressors, exchanges, methods, tuners
from laconic.cli.train import TaskChoice
from laconic.lab import tasks
from laconic.lab.tasks import TASKS

FOLDERS = {codecs: CODECS, compressors: COMPRESSORS, exchanges: EXCHANGES, tuners: TUNERS}
# Beside its classes a folder may offer a table of words, and what reads it.
WORDS = {"WORDS", "by_name"}


def _public_classes(module) -> list[type]:
    found = inspect.getmembers(module, inspect.isclass)
    return [cls for name, cls in found if cls.__module__ == module.__name__ and not name.startswith("_")]


def _files():
    """Every file of a registered folder, with its folder."""
    for folder in FOLDERS:
        for found in pkgutil.iter_modules(folder.__path__):
            yield folder, importlib.import_module(f"{folder.__name__}.{found.name}")


# A file without a public class is a helper of the others (compressors/selection.py) and is not registered.
ENTRIES = [(folder, module) for folder, module in _files() if _public_classes(module)]
HELPERS = [module.__name__ for _, module in _files() if not _public_classes(module)]
every_entry = pytest.mark.parametrize(("folder", "module"), ENTRIES, ids=[m.__name__ for _, m in ENTRIES])


@every_entry
def test_a_file_holds_one_answer_named_as_the_file(folder, module):
    (cls,) = _public_classes(module)
    assert cls.name == module.__name__.rsplit(".", 1)[1]


@every_entry
def test_a_file_is_registered_everywhere(folder, module):
    (cls,) = _public_classes(module)
    assert cls.__name__ in folder.__all__, f"re-export it in {folder.__name__}/__init__.py"
    assert getattr(folder, cls.__name__) is cls
    assert cls.__name__ in laconic.__all__, "export it in laconic/__init__.py"
    assert getattr(laconic, cls.__name__) is cls
    assert FOLDERS[folder].get(cls), "give it instances in tests/contracts/registry.py"
    assert all(type(instance) is cls for instance in FOLDERS[folder][cls])


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda f: f.__name__)
def test_everything_registered_has_a_file(folder):
    from_files = {cls.__name__ for f, module in ENTRIES if f is folder for cls in _public_classes(module)}
    offered = [name for name in folder.__all__ if name not in WORDS]
    assert set(offered) == from_files == {cls.__name__ for cls in FOLDERS[folder]}
    assert offered == sorted(offered)


def test_helpers_define_no_class_at_all():
    for name in HELPERS:
        defined = inspect.getmembers(importlib.import_module(name), inspect.isclass)
        assert [cls for _, cls in defined if cls.__module__ == name] == []


@pytest.mark.parametrize("name", methods.METHODS)
def test_a_method_is_public_and_sits_the_exams(name):
    recipe = methods.METHODS[name]
    assert recipe.__name__ == name
    assert name in laconic.__all__
    assert getattr(laconic, name) is recipe
    assert RECIPES.get(name), "give it variants in tests/contracts/registry.py"
    assert all(method.name == name for method in RECIPES[name])


def test_every_function_that_makes_a_method_is_in_the_table():
    files = [
        importlib.import_module(f"{methods.__name__}.{f.name}") for f in pkgutil.iter_modules(methods.__path__)
    ]
    found = [(file, name, f) for file in files for name, f in inspect.getmembers(file, inspect.isfunction)]
    # What makes a part of one is a helper of the others (methods/parts.py).
    makers = {
        name
        for file, name, f in found
        if f.__module__ == file.__name__ and not name.startswith("_") and f.__annotations__["return"] == "Method"
    }
    assert makers == set(methods.METHODS) == set(RECIPES)
    assert set(methods.__all__) == makers | {"METHODS", "by_name", "recommended"}


def test_every_task_has_a_word_on_the_command_line():
    words = {typing.get_args(word)[0].name: typing.get_args(word)[1].name for word in typing.get_args(TaskChoice)}
    assert words == {name: name for name in TASKS}
    files = {found.name for found in pkgutil.iter_modules(tasks.__path__)}
    assert files == set(TASKS), "a task is a file of its own, named as the task"
