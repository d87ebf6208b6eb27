"""The kernels on CPU, compiled by Numba: each a twin of a function in ``reference``, at the speed of memory.

Compiled code releases Python's lock and runs on as many threads as torch does. Work is cut in chunks that are
counted from a segment's start, and what chunks find is put together in their order: the number of threads
changes no bit.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from laconic.kernels import cpu_coding as coding
from laconic.kernels import cpu_loops as loops
from laconic.kernels import cpu_top as top
from laconic.kernels import reference
from laconic.kernels.reference import Accumulated, Inflow, Places, Taken
from laconic.segments import Segments

__all__ = ["accumulate_", "add_payloads_", "coding", "store_", "take_above_", "take_top_", "version"]

Array = np.ndarray[Any, np.dtype[Any]]

# With fewer entries than this for each thread, waking one costs more than it saves.
_WORTH_A_THREAD = 1 << 20
# Pieces a thread; an entry taken needs 12 bytes, so this many times a room are ten times its bytes.
_PIECES, _SHARE = 8, 30
# Candidates for the largest k may be this many times k, and a few, before another way is taken to find them.
_CROWD, _FEW = 4, 1 << 16
_BITS: dict[int, Any] = {2: np.int16, 4: np.int32, 8: np.int64}
_MASKS = {size: kind(np.iinfo(kind).max) for size, kind in _BITS.items()}
_RAW = {torch.bfloat16: torch.uint16, torch.float16: torch.int16}

_pools: dict[int, ThreadPoolExecutor] = {}
os.register_at_fork(after_in_child=_pools.clear)


def version() -> str:
    """Name what the kernels run on."""
    return f"numba {numba.__version__}"


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
    """Do what ``reference.accumulate_`` does in one pass."""
    if x.dtype in _RAW:
        return reference.accumulate_(x, grad, inflow, places, owed=owed, velocity=velocity, proposed=proposed)
    if proposed is None:
        velocity = None
    table = _table(places.grad, places.x, places.home)
    flow = torch.stack([inflow.gain, inflow.unit, inflow.momentum, inflow.nesterov]).numpy()
    out, nothing = _array(x), _array(x[:0])
    bits, mask = _bits(out)
    squares, peaks = np.zeros(table.chunks), np.zeros(table.chunks, np.int64)
    vectors = [nothing if v is None else _array(v) for v in (owed, velocity, proposed)]
    _spread(loops.accumulate, table, out, bits, mask, _array(grad), *vectors, table.rows, flow, squares, peaks)
    norms, largest = x.new_empty(len(places.x)), x.new_empty(len(places.x))
    loops.combine(table.rows, squares, peaks, norms.numpy(), _bits(largest.numpy())[0])
    return Accumulated(norms=norms, largest=largest)


def take_above_(
    x: Tensor,
    segments: Segments,
    thresholds: Tensor,
    rooms: Sequence[int],
    *,
    largest: Tensor | None = None,
    turn: int = 0,
) -> Taken:
    """Do what ``reference.take_above_`` does in one pass."""
    table, alone = _table(segments, segments, segments), None
    if largest is not None:
        alone = ~(largest > thresholds)
        thresholds = torch.where(alone, torch.nextafter(largest, torch.zeros_like(largest)), thresholds)
    begins = np.array([reference.turned(s.size, turn) for s in segments], np.int64)
    room = np.array(rooms, np.int64)
    places, near, counts, starts = _scan(x, table, _wide(thresholds), begins, room)
    wanted = counts.sum(axis=(0, 2))
    if alone is not None:
        wanted = np.where(alone.numpy(), np.minimum(wanted, 1), wanted)
    taken = np.minimum(room, wanted)
    positions, values = _room(x, int(taken.sum()))
    loops.collect(_array(x), places, near, counts, starts, room, taken, positions.numpy(), _array(values))
    return Taken(positions=positions, values=values, wanted=_counted(wanted))


def take_top_(x: Tensor, segments: Segments, counts: Sequence[int]) -> Taken:
    """Do what ``reference.take_top_`` does: take what may be among the largest, and put back what is not.

    A sample tells beyond what to look, so that one pass is enough. Where it leads astray, a histogram of the upper
    bits of all magnitudes tells.
    """
    table, out = _table(segments, segments, segments), _array(x)
    bits, mask = _bits(out)
    kept = np.minimum(np.array(counts, np.int64), table.sizes)
    few = np.ones(len(segments), np.bool_)
    near = _candidates_of_sample(x, table, kept)
    if near is None:
        bins = np.zeros((_threads(table), len(segments), top.BINS), np.int64)
        _spread(top.histogram, table, bits, mask, table.rows, kept, bins)
        lowest, candidates = _edges(bits, table, kept, bins)
        few = candidates <= np.maximum(_CROWD * kept, kept + _FEW)
        near = _scan(
            x, table, _beyond(x, lowest, few & (kept > 0)), np.zeros_like(kept), np.where(few, candidates, 0)
        )
    places, values, found, starts = near
    positions, largest = _room(x, int(kept.sum()))
    taken = np.zeros_like(kept)
    given = (bits, mask, table.rows, kept, few, places, _bits(values)[0], found, starts, taken)
    top.pick_top(*given, positions.numpy(), _bits(_array(largest))[0])
    used = int(taken.sum())
    return Taken(positions=positions[:used], values=largest[:used], wanted=_counted(taken))


def _candidates_of_sample(x: Tensor, table: _Table, kept: Array) -> tuple[Array, ...] | None:
    """Take what may be among the largest as a sample has it; None, and x as it was, where that is not enough."""
    bits, mask = _bits(_array(x))
    # Of a small segment every entry may be one.
    large = table.sizes > top.SMALL
    if bool((large & (top.LEAST_RATIO * kept > table.sizes)).any()):
        return None
    bins = np.zeros((1, len(kept), top.BINS), np.int64)
    top.sample(bits, mask, table.rows, bins[0])
    # Twice as many as are wanted, and some: a sample errs.
    lowest, seen = _edges(bits, table, np.where(kept > 0, 2 * kept // top.SAMPLED + 8, 0), bins)
    if bool((large & (lowest == 0) & (kept > 0)).any()):
        return None
    lowest, rooms = np.where(large, lowest, 0), np.where(large, 2 * top.SAMPLED * seen + top.SMALL, table.sizes)
    near = _scan(x, table, _beyond(x, lowest, kept > 0), np.zeros_like(kept), rooms)
    places, values, found, starts = near
    count = found[:, :, 1].sum(axis=0)
    if bool(((count >= kept) & (found[:, :, 1] <= rooms)).all()):
        return near
    top.put_back(_array(x), places, values, found, starts, rooms)
    return None


def _edges(bits: Array, table: _Table, kept: Array, bins: Array) -> tuple[Array, Array]:
    """Return of each segment the lowest bits that may be among its ``kept`` largest, and how many have as much."""
    lowest, candidates = np.zeros(len(kept), bits.dtype), np.zeros(len(kept), np.int64)
    top.edges(bits, table.rows, kept, bins, lowest, candidates)
    return lowest, candidates


def _beyond(x: Tensor, lowest: Array, some: Array) -> Array:
    """Return what entries must exceed to be at the lowest bits or beyond; where there are to be none, infinity."""
    # To exceed the number just below the edge is to be at it or beyond; every magnitude exceeds -1.
    edge = _wide(torch.from_numpy((lowest - (lowest > 0)).astype(lowest.dtype)).view(x.dtype))
    limits: Array = np.where(some, np.where(lowest > 0, edge, -1), np.inf).astype(edge.dtype)
    return limits


def store_(x: Tensor, owed: Tensor, places: Places) -> None:
    """Do what ``reference.store_`` does in one pass."""
    table = _table(places.grad, places.x, places.home)
    _spread(loops.store, table, _array(x), _array(owed), table.rows)


def add_payloads_(
    out: Tensor, positions: Sequence[Tensor], values: Sequence[Tensor], *, scale: float = 1.0
) -> None:
    """Do what ``reference.add_payloads_`` does."""
    fits = all(at.shape == v.shape and v.dtype == out.dtype for at, v in zip(positions, values, strict=True))
    if out.dtype in _RAW or not fits:
        reference.add_payloads_(out, positions, values, scale=scale)
        return
    to = _array(out)
    factor = to.dtype.type(scale)
    for at, value in zip(positions, values, strict=True):
        loops.add(to, at.numpy(), _array(value), factor)


@dataclass(frozen=True)
class _Table:
    """Segments as the loops read them."""

    rows: Array
    sizes: Array
    chunks: int
    numel: int


@lru_cache(maxsize=1024)
def _table(grad: Segments, x: Segments, home: Segments) -> _Table:
    rows = np.zeros((len(x) + 1, 5), np.int64)
    chunks = 0
    for i, (a, b, c) in enumerate(zip(grad, x, home, strict=True)):
        rows[i] = a.offset, b.offset, c.offset, b.size, chunks
        chunks += -(-b.size // loops.CHUNK)
    rows[len(x), loops.FIRST] = chunks
    return _Table(rows, rows[:-1, loops.SIZE].copy(), chunks, x.numel)


def _threads(table: _Table) -> int:
    return max(1, min(torch.get_num_threads(), table.chunks, table.numel // _WORTH_A_THREAD))


def _pieces(table: _Table, room: int = 0) -> int:
    """Return in how many pieces work is cut: several a thread, for one that wakes up late should find less left.

    Where each piece needs ``room`` for entries, no more than together take a tenth of the vector, or one a thread.
    """
    threads = _threads(table)
    few = max(threads, table.numel // max(1, _SHARE * room))
    return min(max(1, table.chunks), _PIECES * threads, few)


def _spread(loop: Callable[..., None], table: _Table, *given: object, room: int = 0) -> None:
    """Run the loop over all chunks: each thread takes the next piece of them until none is left."""
    threads, pieces = _threads(table), _pieces(table, room)
    bounds = _bounds(table.chunks, pieces)
    tickets = np.zeros(1, np.int64)
    others: list[Future[None]] = []
    if threads > 1:
        pool = _pools.get(threads) or _pools.setdefault(threads, ThreadPoolExecutor(threads - 1, "laconic"))
        others = [pool.submit(loop, tickets, bounds, worker, *given) for worker in range(1, threads)]
    loop(tickets, bounds, 0, *given)
    for other in others:
        other.result()


@lru_cache(maxsize=1024)
def _bounds(chunks: int, pieces: int) -> Array:
    """Return where pieces of so many chunks begin, and where the last ends."""
    return np.array([chunks * i // pieces for i in range(pieces + 1)], np.int64)


def _scan(x: Tensor, table: _Table, limits: Array, begins: Array, rooms: Array) -> tuple[Array, ...]:
    """Take what exceeds the limits: places and values a piece; of each segment's two parts how many, and where."""
    room = 2 * int(rooms.sum())
    pieces = _pieces(table, room)
    most = min(room, -(-table.chunks // pieces) * loops.CHUNK)
    places, values = np.empty((pieces, most), np.int64), np.empty((pieces, most), _array(x).dtype)
    counts = np.zeros((pieces, len(limits), 2), np.int64)
    starts = np.zeros_like(counts)
    given = (_array(x), table.rows, limits, begins, rooms, places, values, counts, starts)
    _spread(loops.scan, table, *given, room=room)
    return places, values, counts, starts


def _room(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    return torch.empty(count, dtype=torch.int64), torch.empty(count, dtype=x.dtype)


def _counted(counts: Array) -> Tensor:
    # An empty array made a tensor has a stride of 0, and cannot be viewed as bytes.
    return torch.tensor(counts.tolist(), dtype=torch.int64)


def _array(x: Tensor) -> Array:
    if x.requires_grad:
        x = x.detach()
    array: Array = (x.view(_RAW[x.dtype]) if x.dtype in _RAW else x).numpy()
    return array


def _bits(array: Array) -> tuple[Array, Any]:
    """Return the array's bits as signed numbers, and what masks the sign away."""
    dtype = _BITS[array.itemsize]
    return array.view(dtype), _MASKS[array.itemsize]


def _wide(x: Tensor) -> Array:
    """Return a small tensor in the dtype that the loops compute in."""
    # Another memory layout would be compiled anew.
    array: Array = (x if x.dtype == torch.float64 else x.float()).detach().contiguous().numpy()
    return array
