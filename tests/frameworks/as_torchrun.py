"""Two ranks for a framework: forked processes that look to it like torchrun's, with a group over gloo."""

from __future__ import annotations

import logging
import os
import runpy
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import laconic
from laconic.errors import LaconicError
from pool import run_alone

EXAMPLES = Path(__file__).parents[2] / "examples"


def on_two_ranks(job: Callable[..., Any], *args: Any) -> list[Any]:
    """Call ``job(*args)`` on two ranks, once, deaf to what its framework warns of; return what each returned."""
    outcomes = run_alone(2, _joined, job, args, within_seconds=110)
    assert [outcome.error for outcome in outcomes] == ["", ""], outcomes
    return [outcome.value for outcome in outcomes]


def _joined(group: dist.ProcessGroup, job: Callable[..., Any], args: Any) -> Any:
    warnings.simplefilter("ignore")
    rank, ranks = str(dist.get_rank()), str(dist.get_world_size())
    os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    os.environ |= {"GROUP_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "TORCHELASTIC_RUN_ID": "none"}
    logging.disable(logging.WARNING)
    return job(*args)


def printed(example: str) -> str:
    """Return what an example prints on this rank."""
    with redirect_stdout(StringIO()) as said:
        runpy.run_path(str(EXAMPLES / example), run_name="__main__")
    return said.getvalue()


def weights(module: torch.nn.Module) -> list[list[float]]:
    """Return a module's parameters as plain numbers, which say every bit."""
    return [p.detach().flatten().tolist() for p in module.parameters()]


def logged(job: Callable[[], Any]) -> str:
    """Return what laconic logs during a job."""
    said = StringIO()
    log, handler = logging.getLogger("laconic"), logging.StreamHandler(said)
    logging.disable(logging.NOTSET)
    log.addHandler(handler)
    try:
        job()
    finally:
        log.removeHandler(handler)
        logging.disable(logging.WARNING)
    return said.getvalue()


def refusal(job: Callable[[], Any]) -> str:
    """Return what a job is refused with."""
    try:
        job()
    except (LaconicError, ValueError) as error:
        return str(error)
    return "not refused"


def numbers(link: laconic.Link | None) -> dict[str, Any]:
    """Return what a link has counted."""
    if link is None:
        return {}
    names = ("steps", "syncs", "skipped_steps", "wire_bytes", "ratio", "owed_norm")
    return {name: getattr(link.stats, name) for name in names}
