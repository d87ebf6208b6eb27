"""The loops that Numba compiles. Nothing here knows of torch; ``cpu`` gives arrays and takes arrays.

bfloat16 comes as uint16 and float16 as int16: NumPy has no name for the first, Numba no arithmetic for the second.
A row of a table says of one segment where it begins in the gradient, in x and at home, its size, and the number of
its first chunk; a last row closes the counting.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, overload

# Entries in a chunk: sums are taken chunk by chunk. Entries in a block: what stays in the nearest cache.
CHUNK = 1 << 16
_BLOCK = 1024
# Entries looked at together when few are expected to pass.
GROUP = 64
GRAD, X, HOME, SIZE, FIRST = range(5)
GAIN, UNIT, MOMENTUM, NESTEROV = range(4)

compiled = njit(nogil=True, cache=True, error_model="numpy")
# Sums may be taken in any order; nothing else may be changed.
_summing = njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})


def load(a, i):
    """Return an entry as a float of at least 32 bits."""
    raise NotImplementedError


@overload(load, inline="always")
def _load(a, i):  # noqa: ARG001
    if a.dtype == types.uint16:
        return lambda a, i: np.uint32(np.uint32(a[i]) << 16).view(np.float32)
    if a.dtype == types.int16:
        return lambda a, i: _float16(np.uint16(a[i]))
    return lambda a, i: a[i]


@intrinsic
def ticket(_context, tickets):
    """Return the count and add one to it, as one thing: no two threads get the same."""

    def code(context, builder, signature, arguments):
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        return builder.atomic_rmw("add", array.data, ir.IntType(64)(1), "monotonic")

    return types.int64(tickets), code


@compiled
def _float16(h):
    """Shift the fields to where float32 has them; a product by 2^112 mends the exponent, for subnormals too."""
    fields = np.uint32((h & 0x7FFF) << 13)
    value = fields.view(np.float32) * np.float32(2.0**112)
    if fields >= 0x0F800000:
        value = np.uint32(fields | 0x7F800000).view(np.float32)
    return -value if h & 0x8000 else value


@_summing
def _sum_of_squares(a, count):
    total = a[0] * 0
    for i in range(count):
        total += a[i] * a[i]
    return total


@compiled
def _scaled(step, grad, gain):
    for i in range(grad.size):
        # Rounded first: a gradient may be wider than what it becomes.
        step[i] = load(grad, i)
        step[i] *= gain


@compiled
def _moved(step, velocity, proposed, momentum, nesterov):
    for i in range(velocity.size):
        proposed[i] = velocity[i] * momentum + step[i]
    if nesterov:
        for i in range(velocity.size):
            step[i] += proposed[i] * momentum
    else:
        for i in range(velocity.size):
            step[i] = proposed[i]


@compiled
def _multiply(step, unit, count):
    for i in range(count):
        step[i] *= unit


@compiled
def _add_owed(x, step, owed):
    if owed.size:
        for i in range(x.size):
            x[i] = step[i] + owed[i]
    else:
        for i in range(x.size):
            x[i] = step[i]


@compiled
def _largest(bits, mask):
    """Bits of magnitudes order as the magnitudes do, and those of NaN above all."""
    peak = mask & 0
    for i in range(bits.size):
        peak = max(peak, bits[i] & mask)
    return peak


@compiled
def _accumulate(low, high, x, bits, mask, grad, owed, velocity, proposed, table, flow, squares, peaks):
    """Make x = owed + unit * step in the chunks from low to high; learn each one's squares and its largest bits."""
    step = np.empty(_BLOCK, x.dtype)
    for s in range(table.shape[0] - 1):
        gain, unit, momentum, nesterov = flow[GAIN, s], flow[UNIT, s], flow[MOMENTUM, s], flow[NESTEROV, s]
        for chunk in range(max(low, table[s, FIRST]), min(high, table[s + 1, FIRST])):
            begin = (chunk - table[s, FIRST]) * CHUNK
            end = min(begin + CHUNK, table[s, SIZE])
            total, peak = 0.0, mask & 0
            for at in range(begin, end, _BLOCK):
                count = min(_BLOCK, end - at)
                g, to, home = table[s, GRAD] + at, table[s, X] + at, table[s, HOME] + at
                # Slices, for an index counted from 0 cannot be negative: only then are loops vectorised.
                _scaled(step, grad[g : g + count], gain)
                if velocity.size:
                    _moved(step, velocity[home : home + count], proposed[to : to + count], momentum, nesterov)
                _multiply(step, unit, count)
                total += _sum_of_squares(step, count)
                _add_owed(x[to : to + count], step, owed[home : home + count])
                peak = max(peak, _largest(bits[to : to + count], mask))
            squares[chunk], peaks[chunk] = total, peak


@compiled
def combine(table, squares, peaks, norms, largest):
    """Put together what the chunks of each segment found, in their order."""
    for s in range(norms.size):
        total, peak = 0.0, 0
        for chunk in range(table[s, FIRST], table[s + 1, FIRST]):
            total += squares[chunk]
            peak = max(peak, peaks[chunk])
        norms[s], largest[s] = np.sqrt(total), peak


@compiled
def _store(low, high, x, owed, table):
    """Move the chunks from low to high of x to where they are at home, and leave zeros."""
    for s in range(table.shape[0] - 1):
        begin = max(low - table[s, FIRST], 0) * CHUNK
        end = min((high - table[s, FIRST]) * CHUNK, table[s, SIZE])
        if begin < end:
            _move(x[table[s, X] + begin : table[s, X] + end], owed[table[s, HOME] + begin : table[s, HOME] + end])


@compiled
def _move(x, owed):
    for i in range(x.size):
        owed[i] = x[i]
        x[i] = 0


@compiled
def _scan_range(x, base, limit, places, values):
    """Take entries beyond the limit while there is room; places count from base. Return how many there are."""
    found, taken, at = 0, 0, 0
    while at < x.size:
        end, hit = min(at + GROUP, x.size), True
        if end - at == GROUP:
            hit = False
            for i in range(GROUP):
                hit |= abs(load(x, at + i)) > limit
        if hit:
            for i in range(at, end):
                if abs(load(x, i)) > limit:
                    found += 1
                    if taken < places.size:
                        places[taken], values[taken] = base + i, x[i]
                        x[i] = 0
                        taken += 1
        at += GROUP
    return found


@compiled
def _scan(low, high, piece, x, table, limits, begins, rooms, places, values, counts, starts):
    """Take in the chunks from low to high the entries beyond each segment's limit.

    A segment has two parts, before and from its place to begin; of each the first ``room`` are taken, while they
    are in the nearest cache, and those that turn out to be too many are put back.
    """
    at = 0
    for s in range(table.shape[0] - 1):
        first, last = max(low, table[s, FIRST]), min(high, table[s + 1, FIRST])
        if first >= last:
            continue
        base = table[s, X]
        begin = base + (first - table[s, FIRST]) * CHUNK
        end = base + min((last - table[s, FIRST]) * CHUNK, table[s, SIZE])
        turn = min(max(base + begins[s], begin), end)
        for part in range(2):
            a, b = (begin, turn) if part == 0 else (turn, end)
            to = at + min(rooms[s], b - a)
            found = _scan_range(x[a:b], a, limits[s], places[piece, at:to], values[piece, at:to])
            counts[piece, s, part], starts[piece, s, part] = found, at
            at += min(found, rooms[s])


@compiled
def collect(x, places, values, counts, starts, rooms, taken, to_places, to_values):
    """Put together what each segment gives, of its later part what fits, then of the earlier; put the rest back."""
    at = 0
    for s in range(taken.size):
        late = min(counts[:, s, 1].sum(), taken[s])
        for part in range(2):
            most = late if part else taken[s] - late
            for piece in range(counts.shape[0]):
                start = starts[piece, s, part]
                end = start + min(counts[piece, s, part], rooms[s])
                given = min(end - start, most)
                for i in range(start, start + given):
                    to_places[at], to_values[at] = places[piece, i], values[piece, i]
                    at += 1
                for i in range(start + given, end):
                    x[places[piece, i]] = values[piece, i]
                most -= given


# Each thread calls one of these once, and takes the next piece until none is left: Python's lock is not asked for.


@compiled
def accumulate(
    tickets, bounds, _worker, x, bits, mask, grad, owed, velocity, proposed, table, flow, squares, peaks
):
    """Make x = owed + unit * step."""
    piece = ticket(tickets)
    while piece < bounds.size - 1:
        low, high = bounds[piece], bounds[piece + 1]
        _accumulate(low, high, x, bits, mask, grad, owed, velocity, proposed, table, flow, squares, peaks)
        piece = ticket(tickets)


@compiled
def store(tickets, bounds, _worker, x, owed, table):
    """Move x to memory."""
    piece = ticket(tickets)
    while piece < bounds.size - 1:
        _store(bounds[piece], bounds[piece + 1], x, owed, table)
        piece = ticket(tickets)


@compiled
def scan(tickets, bounds, _worker, x, table, limits, begins, rooms, places, values, counts, starts):
    """Take what exceeds the limits."""
    piece = ticket(tickets)
    while piece < bounds.size - 1:
        low, high = bounds[piece], bounds[piece + 1]
        _scan(low, high, piece, x, table, limits, begins, rooms, places, values, counts, starts)
        piece = ticket(tickets)


@compiled
def add(out, positions, values, scale):
    """out[positions] += values * scale."""
    for i in range(positions.size):
        out[positions[i]] += values[i] * scale
