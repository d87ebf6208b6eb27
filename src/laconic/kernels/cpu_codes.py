"""The coding loops that Numba compiles. Nothing here knows of torch; bits lie in 64-bit words, the lowest first.

Numba checks no bounds: whatever counts and ends say, nothing outside the arrays is read or written.
"""

from __future__ import annotations

import numpy as np

from laconic.coding import LOWER, OFFSET, ROOM, SIZE, UPPER, WIDTH
from laconic.kernels.cpu_loops import compiled, load

_ONE, _ZERO, _FULL, _WORD = np.uint64(1), np.uint64(0), np.uint64(64), np.uint64(63)
# Where the single bit of a word stands: a product with this number has another upper six bits for each.
_DE_BRUIJN = np.uint64(0x03F79D71B4CB0A89)
_PLACES = np.zeros(64, np.int64)
for _bit in range(64):
    _PLACES[(int(_DE_BRUIJN) << _bit & 0xFFFFFFFFFFFFFFFF) >> 58] = _bit


@compiled
def encode_positions(positions, ends, rows, upper, lower):
    """Write the positions' bits; return whether they were as promised. Nothing is written out of bounds."""
    begin, last = 0, len(rows) - 1
    if len(ends) > last or rows[last, UPPER] > 64 * len(upper) or rows[last, LOWER] > 64 * len(lower):
        return False
    for s in range(len(ends)):
        offset, width = rows[s, OFFSET], rows[s, WIDTH]
        count, before = ends[s] - begin, 0
        if count < 0 or count > rows[s, ROOM] or ends[s] > len(positions):
            return False
        most = rows[s, SIZE] - count
        mask = (_ONE << np.uint64(width)) - _ONE
        for i in range(count):
            y = positions[begin + i] - offset - i
            if y < before or y > most:
                return False
            before = y
            bit = rows[s, UPPER] + (y >> width) + i
            upper[bit >> 6] |= _ONE << np.uint64(bit & 63)
            if width:
                at = rows[s, LOWER] + i * width
                low, shift = np.uint64(y) & mask, np.uint64(at & 63)
                lower[at >> 6] |= low << shift
                if (at & 63) + width > 64:
                    lower[(at >> 6) + 1] |= low >> (_FULL - shift)
        begin = ends[s]
    return True


@compiled
def decode_positions(upper, lower, counts, rows, out):
    """Read positions; return whether they ascend within their segments, so many in each."""
    begin, last = 0, len(rows) - 1
    if len(counts) > last or rows[last, UPPER] > 64 * len(upper) or rows[last, LOWER] > 64 * len(lower):
        return False
    for s in range(len(counts)):
        count, width = counts[s], rows[s, WIDTH]
        if count < 0 or count > rows[s, ROOM] or count > rows[s, SIZE] or count > len(out) - begin:
            return False
        start, end = rows[s, UPPER], rows[s + 1, UPPER]
        most, before, found = rows[s, SIZE] - count, 0, 0
        mask = (_ONE << np.uint64(width)) - _ONE
        for word in range(start >> 6, (end + 63) >> 6):
            bits = upper[word]
            if word == start >> 6:
                bits &= ~_ZERO << np.uint64(start & 63)
            if word == end >> 6:
                bits &= (_ONE << np.uint64(end & 63)) - _ONE
            while bits != _ZERO:
                if found == count:
                    return False
                lowest = bits & (~bits + _ONE)
                bits ^= lowest
                bit = (word << 6) + _PLACES[(lowest * _DE_BRUIJN) >> np.uint64(58)]
                y = (bit - start - found) << width
                if width:
                    at = rows[s, LOWER] + found * width
                    low = lower[at >> 6] >> np.uint64(at & 63)
                    if (at & 63) + width > 64:
                        low |= lower[(at >> 6) + 1] << (_FULL - np.uint64(at & 63))
                    y += np.int64(low & mask)
                if y < before or y > most:
                    return False
                before = y
                out[begin + found] = y + found + rows[s, OFFSET]
                found += 1
        if found != count:
            return False
        begin += count
    return True


@compiled
def span_statistics(values, ends, out):
    """Add up each span's row: see ``reference_coding``, whose columns these are."""
    begin = 0
    for s in range(len(ends)):
        row = out[s]
        row[0] = np.inf
        end = min(ends[s], len(values))
        for i in range(begin, end):
            v = np.float64(load(values, i))
            size = abs(v)
            # NaN must not hide behind a comparison.
            if size < row[0] or size != size:
                row[0] = size
            if size > row[1] or size != size:
                row[1] = size
            row[2] += size
            row[3] += v * v
            row[4] += v
            if v < 0:
                row[5] += v
                row[6] += 1
            row[7] += 1
        begin = max(begin, end)


@compiled
def quantise_line(values, ends, numbers, most, salts, half, out):
    """Write each value's code: its sign and the magnitude nearest on its span's line, or one by chance."""
    begin = 0
    for s in range(len(ends)):
        low, step = numbers[s, 0], numbers[s, 1]
        end = min(ends[s], len(values))
        for i in range(begin, end):
            v = values[i]
            shift = half
            if len(salts):
                shift = values.dtype.type(_uniform(i - begin, salts[s]))
            at = np.floor((abs(v) - low) / step + shift)
            code = 0
            if at >= most:
                code = most
            elif at > 0:
                code = int(at)
            out[i] = code + (most + 1 if v < 0 else 0)
        begin = max(begin, end)


@compiled
def dequantise_line(codes, ends, numbers, half, out):
    """Write what codes on lines stand for."""
    begin = 0
    for s in range(len(ends)):
        low, step = numbers[s, 0], numbers[s, 1]
        end = min(ends[s], len(codes))
        for i in range(begin, end):
            code = np.int64(codes[i])
            magnitude = low + step * numbers.dtype.type(code & (half - 1))
            out[i] = magnitude if code < half else -magnitude
        begin = max(begin, end)


@compiled
def dequantise_table(codes, ends, numbers, out):
    """Write what codes stand for in their span's table, whose length is a power of two."""
    begin, last = 0, numbers.shape[1] - 1
    for s in range(len(ends)):
        end = min(ends[s], len(codes))
        for i in range(begin, end):
            out[i] = numbers[s, codes[i] & last]
        begin = max(begin, end)


@compiled
def _uniform(i, salt):
    return np.float32(_mixed(_mixed(np.uint32(i)) ^ np.uint32(salt)) >> np.uint32(8)) * np.float32(2.0**-24)


@compiled
def _mixed(h):
    h = np.uint32(np.uint32(h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B))
    h = np.uint32(np.uint32(h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35))
    return np.uint32(h ^ (h >> np.uint32(16)))
