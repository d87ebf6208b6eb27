"""``laconic --version``: what is at work here, for a report of a fault. Needs nothing that is optional."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from json import dumps
from typing import Any

import torch
import torch.distributed as dist

from laconic import kernels

_PACKAGES = ("laconic", "torch", "numba", "triton")


def wanted(words: Sequence[str]) -> bool:
    """Whether the words ask for versions, and for nothing else.

    >>> wanted(["--version", "--json"]), wanted(["--json"]), wanted(["train", "--version"])
    (True, False, False)
    """
    return "--version" in words and set(words) <= {"--version", "--json"}


def versions() -> dict[str, Any]:
    """Return the versions of what computes and talks here, None for what is not there, and the kernels by device.

    >>> found = versions()
    >>> list(found)
    ['laconic', 'python', 'system', 'torch', 'numba', 'triton', 'backends', 'kernels']
    >>> found["backends"]["gloo"]
    True
    """
    found = {name: _version(name) for name in _PACKAGES}
    return {
        "laconic": found.pop("laconic"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        # What is imported, with its build: the metadata does not always say whether it is one for CUDA.
        **found | {"torch": str(torch.__version__)},
        "backends": _backends(),
        "kernels": {where: kernels.in_use(where.split()[0]) for where in _devices()},
    }


def show(*, json: bool) -> None:
    """Print the versions, one a line, or as JSON."""
    found = versions()
    if json:
        print(dumps(found, indent=1))
        return
    backends, used = found.pop("backends"), found.pop("kernels")
    for name, number in found.items():
        print(f"{name} {number or 'not installed'}")
    for name, number in backends.items():
        print(f"{name} {'available' if number is True else number or 'not available'}")
    for where, name in used.items():
        print(f"kernels on {where}: {name}")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _backends() -> dict[str, str | bool]:
    """Return for gloo and nccl the version, or whether they are there; torch tells gloo's version to nobody."""
    if not dist.is_available():
        return {"gloo": False, "nccl": False}
    nccl = dist.is_nccl_available()
    # Of builds for AMD's GPUs it is the version of RCCL.
    number = ".".join(map(str, torch.cuda.nccl.version())) if nccl else False
    return {"gloo": dist.is_gloo_available(), "nccl": number}


def _devices() -> list[str]:
    """Return the kinds of device that are here, with the names of GPUs behind them."""
    if not torch.cuda.is_available():
        return ["cpu"]
    names = dict.fromkeys(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
    return ["cpu", *(f"cuda ({name})" for name in names)]
