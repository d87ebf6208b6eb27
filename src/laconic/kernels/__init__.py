"""The kernels in use. One visible choice, by device: Numba's on CPU, Triton's on CUDA, else the plain-torch twins.

A vector that the fast twins have no loop for (not contiguous, or of an unusual dtype) takes the plain way.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Sequence
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

from laconic.coding import Blocks, Form
from laconic.kernels import reference, reference_coding
from laconic.kernels.reference import (
    Accumulated,
    Inflow,
    Places,
    Taken,
    all_finite,
    fresh_of,
    segment_norms,
    take_where_,
)
from laconic.kernels.reference_coding import (
    BELOW,
    BELOW_COUNT,
    COUNT,
    LARGEST,
    LEAST,
    MAGNITUDES,
    SQUARES,
    SUM,
    Placed,
    owners,
    pack_codes,
    unpack_codes,
)
from laconic.kernels.selfcheck import differences
from laconic.segments import Segments

__all__ = [
    "BELOW",
    "BELOW_COUNT",
    "COUNT",
    "LARGEST",
    "LEAST",
    "MAGNITUDES",
    "SQUARES",
    "SUM",
    "Accumulated",
    "Inflow",
    "Placed",
    "Places",
    "Taken",
    "accumulate_",
    "add_payloads_",
    "all_finite",
    "decode_positions",
    "dequantise",
    "encode_positions",
    "fresh_of",
    "in_use",
    "owners",
    "pack_codes",
    "quantise_line",
    "segment_norms",
    "span_statistics",
    "store_",
    "take_above_",
    "take_top_",
    "take_where_",
    "unpack_codes",
    "warm",
]

_log = logging.getLogger("laconic")
_NEEDS = {"cpu": "numba", "cuda": "triton"}
# Kinds of device on which the fast twins were found wanting.
_refused: set[str] = set()
# What has passed its exam in this process: twins, device and dtypes.
_passed: set[tuple[object, ...]] = set()
_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@cache
def _fast(device_type: str) -> ModuleType | None:
    """Return the fast twins for a kind of device, or say once that there are none."""
    needs = _NEEDS.get(device_type)
    if needs is None:
        return None
    try:
        return importlib.import_module(f"laconic.kernels.{device_type}")
    except ImportError as error:
        _log.warning(
            "%s cannot be imported (%s): selecting runs in plain torch on %s, several times slower. "
            "Install it with: pip install %s",
            needs,
            error,
            device_type,
            needs,
        )
        return None


def _twin(x: Tensor) -> ModuleType:
    kind = x.device.type
    plain = kind in _refused or x.dtype not in _FLOATS or not x.is_contiguous()
    return reference if plain else _fast(kind) or reference


def _check_each(what: str, got: int, segments: Segments) -> None:
    if got != len(segments):
        raise ValueError(f"{got} {what} were given for {len(segments)} segments. Give one for each.")


def in_use(device: torch.device | str) -> str:
    """Name the kernels that run on a device.

    >>> in_use("meta")
    'plain torch'
    """
    kind = torch.device(device).type
    fast = None if kind in _refused else _fast(kind)
    return "plain torch" if fast is None else str(fast.version())


def accumulate_(
    x: Tensor,
    grad: Tensor,
    inflow: Inflow,
    places: Places,
    *,
    owed: Tensor | None,
    velocity: Tensor | None = None,
    proposed: Tensor | None = None,
) -> Accumulated:
    """Turn fresh gradients into what is owed: x = owed + unit * step; see ``reference``."""
    done: Accumulated = _twin(x).accumulate_(
        x, grad, inflow, places, owed=owed, velocity=velocity, proposed=proposed
    )
    return done


def take_above_(
    x: Tensor,
    segments: Segments,
    thresholds: Tensor,
    rooms: Sequence[int],
    *,
    largest: Tensor | None = None,
    turn: int = 0,
) -> Taken:
    """Take each segment's entries with |x| > its threshold, at most its room; see ``reference``."""
    _check_each("thresholds", len(thresholds), segments)
    _check_each("rooms", len(rooms), segments)
    taken: Taken = _twin(x).take_above_(x, segments, thresholds, rooms, largest=largest, turn=turn)
    return taken


def take_top_(x: Tensor, segments: Segments, counts: Sequence[int]) -> Taken:
    """Take each segment's ``count`` entries of largest magnitude; see ``reference``."""
    _check_each("counts", len(counts), segments)
    taken: Taken = _twin(x).take_top_(x, segments, counts)
    return taken


def store_(x: Tensor, owed: Tensor, places: Places) -> None:
    """Write what x holds to memory, and make x zero there; see ``reference``."""
    (_twin(x) if x.dtype == owed.dtype else reference).store_(x, owed, places)


def add_payloads_(
    out: Tensor, positions: Sequence[Tensor], values: Sequence[Tensor], *, scale: float = 1.0
) -> None:
    """Add each rank's values, times ``scale``, at its positions, rank after rank; see ``reference``."""
    _twin(out).add_payloads_(out, positions, values, scale=scale)


def warm(device: torch.device | str, dtype: torch.dtype, grads: Sequence[torch.dtype]) -> None:
    """Compile the kernels for these dtypes of memory and gradients, or find them on disk, and try them.

    If they do not do here what the plain ones do, that is said, and the plain ones are used. Once is enough.
    """
    kind = torch.device(device).type
    fast = _fast(kind)
    exam = (fast, str(device), dtype, tuple(grads))
    if fast is None or kind in _refused or exam in _passed:
        return
    try:
        wrong = ", ".join(differences(fast, device, dtype, grads))
    # Whatever a compiler raises: training can go on without it.
    except Exception as error:
        wrong = f"{type(error).__name__}: {error}"
    if wrong:
        _refused.add(kind)
        _log.warning(
            "%s failed its exam on %s, so selecting runs in plain torch, several times slower. Please report: %s",
            fast.version(),
            kind,
            wrong,
        )
    else:
        _passed.add(exam)


def encode_positions(positions: Tensor, ends: Tensor, blocks: Blocks) -> Tensor:
    """Return the bytes of ascending positions; see ``reference_coding``."""
    raw: Tensor = _coder(positions).encode_positions(positions, ends, blocks)
    return raw


def decode_positions(rows: Tensor, counts: list[list[int]], blocks: Blocks) -> Placed:
    """Read each row's positions and say whether they are good; see ``reference_coding``."""
    placed: Placed = _coder(rows).decode_positions(rows, counts, blocks)
    return placed


def span_statistics(values: Tensor, ends: Tensor) -> Tensor:
    """Return eight numbers of each span's values; see ``reference_coding``."""
    numbers: Tensor = _coder(values).span_statistics(values, ends)
    return numbers


def quantise_line(values: Tensor, ends: Tensor, numbers: Tensor, *, bits: int, seed: int | None = None) -> Tensor:
    """Return the codes of values on their span's line; see ``reference_coding``."""
    codes: Tensor = _coder(values).quantise_line(values, ends, numbers, bits=bits, seed=seed)
    return codes


def dequantise(codes: Tensor, ends: Tensor, numbers: Tensor, form: Form) -> Tensor:
    """Return what codes stand for; see ``reference_coding``."""
    values: Tensor = _coder(codes).dequantise(codes, ends, numbers, form)
    return values


def _coder(x: Tensor) -> ModuleType:
    kind = x.device.type
    fast = None if kind in _refused else _fast(kind)
    coder: ModuleType = reference_coding if fast is None else fast.coding
    return coder
