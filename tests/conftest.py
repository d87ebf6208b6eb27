from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
import torch
from hypothesis import settings

from pool import Pool

# Without a GPU Triton's kernels run in its interpreter, which must be said before it is imported.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
# Tests share two cores with four ranks: more threads only make them wait for each other.
torch.set_num_threads(1)
settings.register_profile("laconic", deadline=None, max_examples=60, derandomize=True)
settings.load_profile("laconic")


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    pool = Pool()
    yield pool
    pool.close()


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Import a file of the benchmarks."""
    there, before = str(Path(__file__).parents[1] / "benchmarks"), set(sys.modules)
    monkeypatch.syspath_prepend(there)
    yield import_module
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(there):
            del sys.modules[name]
