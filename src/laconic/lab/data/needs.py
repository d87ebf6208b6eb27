"""The libraries that read data: they come with the extra ``lab`` and are imported when first asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def needs(module: str) -> Any:
    """Return a module, or say which extra has it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f'this data needs {error.name}: pip install "laconic[lab]"', name=error.name
        ) from error
