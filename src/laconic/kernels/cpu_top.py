"""The loops that find the largest entries: a histogram of the upper bits of magnitudes tells who may be one."""

from __future__ import annotations

import numpy as np

from laconic.kernels.cpu_loops import CHUNK, FIRST, GROUP, SIZE, X, compiled, ticket

_UPPER_BITS = 12
BINS = 1 << _UPPER_BITS
# How many entries are counted before the histogram is asked what can no longer matter.
_OFTEN = 8192
# A sample has the first line of every so many; a line is what memory gives at once. It is worth its time where at
# most one entry of so many is wanted.
SAMPLED, _LINE = 32, 16
LEAST_RATIO, SMALL = 64, 4096


@compiled
def _count(bits, mask, shift, kept, counts):
    floor, unseen, at = mask & (_edge(counts, kept)[0] << shift), 0, 0
    while at + GROUP <= bits.size:
        hit = False
        for i in range(GROUP):
            hit |= (bits[at + i] & mask) >= floor
        if hit:
            for i in range(at, at + GROUP):
                counts[(bits[i] & mask) >> shift] += 1
            unseen += GROUP
            if unseen >= _OFTEN:
                floor, unseen = mask & (_edge(counts, kept)[0] << shift), 0
        at += GROUP
    for i in range(at, bits.size):
        counts[(bits[i] & mask) >> shift] += 1


@compiled
def _histogram(low, high, bits, mask, table, kept, bins):
    """Count magnitudes by their upper bits, but for those that cannot be among the ``kept`` largest any more."""
    for s in range(table.shape[0] - 1):
        base = table[s, X]
        begin = base + max(low - table[s, FIRST], 0) * CHUNK
        end = base + min((high - table[s, FIRST]) * CHUNK, table[s, SIZE])
        if begin < end and 0 < kept[s] < table[s, SIZE]:
            _count(bits[begin:end], mask, _shift(bits), kept[s], bins[s])


@compiled
def histogram(tickets, bounds, worker, bits, mask, table, kept, bins):
    """Take the next piece until none is left."""
    piece = ticket(tickets)
    while piece < bounds.size - 1:
        _histogram(bounds[piece], bounds[piece + 1], bits, mask, table, kept, bins[worker])
        piece = ticket(tickets)


@compiled
def sample(bits, mask, table, bins):
    """Count the magnitudes of a sample by their upper bits."""
    shift = _shift(bits)
    for s in range(table.shape[0] - 1):
        base, size = table[s, X], table[s, SIZE]
        for line in range(0, size, _LINE * SAMPLED):
            for i in range(base + line, base + min(line + _LINE, size)):
                bins[s, (bits[i] & mask) >> shift] += 1


@compiled
def put_back(x, places, values, counts, starts, rooms):
    """Put everything back that a scan took."""
    for piece in range(counts.shape[0]):
        for s in range(rooms.size):
            for part in range(2):
                start = starts[piece, s, part]
                for i in range(start, start + min(counts[piece, s, part], rooms[s])):
                    x[places[piece, i]] = values[piece, i]


@compiled
def edges(bits, table, kept, bins, lowest, candidates):
    """Find for each segment the lowest bits that may be among its ``kept`` largest, and how many have as much."""
    for s in range(kept.size):
        if kept[s] == 0 or kept[s] >= table[s, SIZE]:
            lowest[s], candidates[s] = 0, kept[s]
            continue
        counts = bins[:, s].sum(axis=0)
        edge, above = _edge(counts, kept[s])
        lowest[s], candidates[s] = edge << _shift(bits), above + counts[edge]


@compiled
def _shift(bits):
    return bits.itemsize * 8 - 1 - _UPPER_BITS


@compiled
def _edge(counts, kept):
    """Return the bin that the ``kept``-th largest lies in, or the lowest, and how many are above it."""
    above = 0
    for b in range(counts.size - 1, 0, -1):
        if above + counts[b] >= kept:
            return b, above
        above += counts[b]
    return 0, above


@compiled
def _kth(bits, mask, kept):
    """Return the bits of the ``kept``-th largest magnitude, and how many exceed it: the upper bits first."""
    known, shift, above = 0, bits.itemsize * 8 - 1, 0
    counts = np.zeros(BINS, np.int64)
    while shift > 0:
        width = min(_UPPER_BITS, shift)
        counts[:] = 0
        for i in range(bits.size):
            magnitude = bits[i] & mask
            if magnitude >> shift == known:
                counts[(magnitude >> (shift - width)) & (BINS - 1 >> (_UPPER_BITS - width))] += 1
        digit, larger = _edge(counts, kept - above)
        known, shift, above = (known << width) | digit, shift - width, above + larger
    return known, above


@compiled
def pick_top(bits, mask, table, kept, few, places, values, counts, starts, taken, to_places, to_values):
    """Take of each segment the ``kept`` largest, the lowest index first among equals; all values are bits.

    ``few`` marks the segments whose candidates were taken: those that are not among the largest are put back. Where
    most entries are alike there are none, and the largest are looked for in the whole segment. Where there is a NaN
    fewer may be found: such a step is dropped.
    """
    at = 0
    for s in range(kept.size):
        if few[s]:
            end = _pick(bits, mask, kept[s], s, places, values, counts, starts, to_places[at:], to_values[at:])
        else:
            begin = table[s, X]
            end = _search(
                bits[begin : begin + table[s, SIZE]], begin, mask, kept[s], to_places[at:], to_values[at:]
            )
        taken[s] = end
        at += end


@compiled
def _pick(bits, mask, kept, s, places, values, counts, starts, to_places, to_values):
    near = np.empty(counts[:, s, 1].sum(), bits.dtype)
    at = 0
    for piece in range(counts.shape[0]):
        for i in range(counts[piece, s, 1]):
            near[at] = values[piece, starts[piece, s, 1] + i]
            at += 1
    least, above = _kth(near, mask, kept)
    equal, at, to = kept - above, 0, 0
    for piece in range(counts.shape[0]):
        for i in range(starts[piece, s, 1], starts[piece, s, 1] + counts[piece, s, 1]):
            magnitude = near[at] & mask
            if magnitude > least or (magnitude == least and equal > 0):
                equal -= magnitude == least
                to_places[to], to_values[to] = places[piece, i], near[at]
                to += 1
            else:
                bits[places[piece, i]] = near[at]
            at += 1
    return to


@compiled
def _search(bits, base, mask, kept, to_places, to_values):
    least, above = _kth(bits, mask, kept)
    equal, to = kept - above, 0
    for i in range(bits.size):
        magnitude = bits[i] & mask
        if to < kept and (magnitude > least or (magnitude == least and equal > 0)):
            equal -= magnitude == least
            to_places[to], to_values[to] = base + i, bits[i]
            bits[i] = 0
            to += 1
    return to
