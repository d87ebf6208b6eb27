"""Hostile bytes: whatever comes, it is refused by an error of ours or read as entries that can be."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from itertools import pairwise
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from contracts.twins import twin_of
from contracts.vectors import segments_of
from laconic.codecs import BFloat16, Binned, Exact, Linear, SignMean
from laconic.coding import Blocks, Codec, blocks_of
from laconic.errors import LaconicError, WireError
from laconic.kernels import Placed, reference_coding
from laconic.wire import HEADER_BYTES
from laconic.wire.header import MAGIC
from letters import Letter, a_letter, resealed

# One codec for each form that values are written in.
FORMS: list[Codec] = [Exact(), BFloat16(), *(Linear(bits=b) for b in (2, 4, 8)), SignMean()]
FORMS += [Binned(bits=b) for b in (2, 4, 8)]
EDGES = [-(2**63), -1, 0, 1, 2, 2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1]
ROUNDS = 140

Mutation = Callable[[Random, Letter, bytearray], bytearray]


def _flips(source: Random, _: Letter, row: bytearray) -> bytearray:
    for _ in range(source.randint(1, 8)):
        row[source.randrange(len(row))] ^= 1 << source.randrange(8)
    return row


def _flips_in_positions(source: Random, letter: Letter, row: bytearray) -> bytearray:
    first = min(letter.frame.layout.positions, len(row) - 1)
    for _ in range(source.randint(1, 3)):
        row[source.randrange(first, len(row))] ^= 1 << source.randrange(8)
    return row


def _noise(source: Random, letter: Letter, row: bytearray) -> bytearray:
    """A right header before what is none of ours."""
    first = source.choice([HEADER_BYTES, letter.frame.layout.values, letter.frame.layout.positions])
    row[first:] = source.randbytes(len(row) - first)
    return row


def _splice(source: Random, _: Letter, row: bytearray) -> bytearray:
    """A piece of the row goes to another place in it."""
    size = source.randrange(1, len(row))
    to, frm = (source.randrange(len(row) - size + 1) for _ in range(2))
    row[to : to + size] = row[frm : frm + size]
    return row


def _sizes(source: Random, _: Letter, row: bytearray) -> bytearray:
    return (
        row[: source.randrange(len(row))]
        if source.random() < 0.5
        else row + source.randbytes(source.randint(1, 64))
    )


def _headers(source: Random, _: Letter, row: bytearray) -> bytearray:
    """Words of chance behind a right magic; those that must agree, and counts, mostly as they were."""
    words = [source.choice(EDGES) if source.random() < 0.3 else source.getrandbits(64) - 2**63 for _ in range(10)]
    for at, word in enumerate([MAGIC, *words[1:]]):
        if at in (0, 7, 8, 9) or source.random() < (0.25 if at in (3, 4, 5) else 0.05):
            row[8 * at : 8 * at + 8] = word.to_bytes(8, "little", signed=True)
    return row


def _counts(source: Random, letter: Letter, row: bytearray) -> bytearray:
    """Counts at the edges that agree with each other, so that positions are looked at."""
    size = letter.frame.count_dtype.itemsize
    most = 2 ** (8 * size - 1) - 1
    told = [source.choice([0, p.room, p.room + 1, p.size, len(p.chosen), *EDGES]) for p in letter.parts]
    told = [min(max(n, -most), most) for n in told]
    if letter.counted:
        raw = b"".join(n.to_bytes(size, "little", signed=True) for n in told)
        row[HEADER_BYTES : HEADER_BYTES + len(raw)] = raw
    count = sum(min(n, p.room) for n, p in zip(told, letter.parts, strict=True)) + (source.random() < 0.1)
    for at, word in ((3, count), (4, sum(told))):
        row[8 * at : 8 * at + 8] = min(max(word, -(2**63)), 2**63 - 1).to_bytes(8, "little", signed=True)
    # The flag that says whether the gradient is finite.
    row[40] ^= source.random() < 0.2
    return row


MUTATIONS: list[Mutation] = [_flips, _flips_in_positions, _noise, _splice, _sizes, _headers, _counts]


def _survives(letter: Letter, raw: bytearray) -> bool:
    """Read bytes; True if they were read, and then they must be entries that can be. No other error may come."""
    row = resealed(torch.frombuffer(raw, dtype=torch.uint8) if raw else torch.empty(0, dtype=torch.uint8))
    before = row.clone()
    try:
        (message,) = letter.read(row)
    except LaconicError:
        return False
    finally:
        assert torch.equal(row, before)
    payload, chosen = message.payload, message.header.chosen
    assert payload.positions.numel() == payload.values.numel() == sum(chosen)
    assert payload.known.numel() == sum(letter.known)
    for part, count, segment, places in zip(
        letter.parts, chosen, letter.plan.choosing, payload.positions.split(chosen), strict=True
    ):
        assert 0 <= count <= part.room
        assert _ascend(places.tolist(), segment.offset, segment.size)
    return True


def _ascend(places: list[int], offset: int, size: int) -> bool:
    edges = [offset - 1, *places, offset + size]
    return all(a < b for a, b in pairwise(edges))


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.__name__)
@pytest.mark.parametrize("codec", FORMS, ids=str)
def test_mutated_messages_are_refused_or_read_as_entries_that_can_be(codec, mutation):
    source = Random(f"{codec} {mutation.__name__}")
    read = 0
    for _ in range(ROUNDS // 10):
        letter = a_letter(source, codec)
        whole = bytes(letter.row().tolist())
        assert _survives(letter, bytearray(whole))
        read += sum(_survives(letter, mutation(source, letter, bytearray(whole))) for _ in range(10))
    # Where everything is refused nothing was tried; a row of another size must be.
    assert (read == 0) == (mutation is _sizes)


@pytest.mark.parametrize("codec", FORMS, ids=str)
def test_without_a_seal_that_fits_no_change_passes(codec):
    """Values too: nothing else would tell that one was changed."""
    source = Random(f"seal {codec}")
    for _ in range(20):
        letter = a_letter(source, codec)
        row = letter.row()
        for _ in range(10):
            struck = row.clone()
            for _ in range(source.choice([1, 1, 2, 7])):
                struck[source.randrange(8, len(row))] ^= source.randrange(1, 256)
            if not torch.equal(struck, row):
                with pytest.raises(WireError, match=r"rank 1's message was damaged on the way"):
                    letter.read(row, struck)


@settings(max_examples=150)
@given(
    seed=st.integers(0, 10**6),
    codec=st.sampled_from(FORMS),
    blows=st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=6),
)
def test_bytes_that_were_struck_are_refused_or_read(seed, codec, blows):
    letter = a_letter(Random(seed), codec)
    raw = bytearray(letter.row().tolist())
    for at, byte in blows:
        # Every other blow goes to the words that steer the reading.
        place = 24 + at // 2 % (HEADER_BYTES - 16) if at % 2 else at // 2
        raw[place % len(raw)] = byte
    _survives(letter, raw)


def _blocks(source: Random) -> Blocks:
    sizes = [source.choice([0, 1, 5, 64, 1000, 2**31 + 7, 2**50]) for _ in range(source.randint(1, 5))]
    return blocks_of(segments_of(sizes), tuple(source.randint(0, min(size, 40)) for size in sizes))


def _mutated_rows(source: Random, blocks: Blocks, counts: list[list[int]]) -> Tensor:
    """A row a rank: positions that are right, and then a few bits that are not."""
    rows = []
    for count in counts:
        places = [
            offset + p
            for (offset, size, *_), k in zip(blocks.rows.tolist(), count, strict=False)
            for p in sorted(source.sample(range(size), k))
        ]
        ends = torch.tensor(count).cumsum(0)
        raw = bytearray(
            reference_coding.encode_positions(torch.tensor(places, dtype=torch.int64), ends, blocks).tolist()
        )
        for _ in range(source.choice([0, 1, 1, 2, 8]) if raw else 0):
            raw[source.randrange(len(raw))] ^= 1 << source.randrange(8)
        rows.append(list(raw))
    return torch.tensor(rows, dtype=torch.uint8)


def _can_be(placed: Placed, counts: list[list[int]], blocks: Blocks) -> int:
    """Check what was read of each row; return how many were good."""
    for positions, good, count in zip(placed.positions, placed.good, counts, strict=True):
        assert positions.numel() == (sum(count) if good else 0)
        for row, places in zip(blocks.rows.tolist(), positions.split(count) if good else (), strict=False):
            assert _ascend(places.tolist(), row[0], row[1])
    return sum(placed.good)


def test_both_twins_read_and_refuse_the_same_positions():
    fast, source = twin_of("cpu").module.coding, Random(1)
    good = 0
    for _ in range(60):
        blocks = _blocks(source)
        rooms = blocks.rows[:-1, 2].tolist()
        counts = [[source.choice([room, room, source.randint(0, room)]) for room in rooms] for _ in range(20)]
        rows = _mutated_rows(source, blocks, counts)
        placed, plain = (
            fast.decode_positions(rows, counts, blocks),
            reference_coding.decode_positions(rows, counts, blocks),
        )
        assert placed.good == plain.good
        assert all(torch.equal(a, b) for a, b in zip(placed.positions, plain.positions, strict=True))
        good += _can_be(placed, counts, blocks)
    assert 0 < good < 1200


def test_rows_of_chance_are_refused_or_read():
    """Ten thousand rows in a hundred calls: no row is right by design, few are right by chance."""
    fast, source = twin_of("cpu").module.coding, Random(2)
    noise = torch.Generator().manual_seed(2)
    good = 0
    for _ in range(100):
        blocks = _blocks(source)
        rooms = blocks.rows[:-1, 2].tolist()
        counts = [[source.randint(0, room) for room in rooms] for _ in range(100)]
        size = blocks.upper_bytes + blocks.lower_bytes
        rows = torch.randint(0, 256, (100, size), dtype=torch.uint8, generator=noise)
        # Few ones: as many as there are entries, sometimes.
        for _ in range(source.randint(0, 4)):
            rows &= torch.randint(0, 256, rows.shape, dtype=torch.uint8, generator=noise)
        good += _can_be(fast.decode_positions(rows, counts, blocks), counts, blocks)
    assert 0 < good < 10_000


def test_counts_that_cannot_be_are_refused_by_the_loops_themselves():
    """Numba checks no bounds: more than the room, fewer than none and sums that wrap are the loops' to refuse."""
    twin_of("cpu")
    loops = importlib.import_module("laconic.kernels.cpu_codes")
    blocks = blocks_of(segments_of([100, 100, 100]), (4, 4, 4))
    words = torch.full((blocks.upper_bytes + blocks.lower_bytes,), 255, dtype=torch.uint8).numpy().view("uint64")
    upper, lower = words[: blocks.upper_bytes // 8], words[blocks.upper_bytes // 8 :]
    around = torch.full((24,), -7)
    for counts in ([4, 2**63 - 1, 2**63 - 1], [5, 0, 0], [-1, 4, 4], [4, 4, 4], [4, -(2**63), 0], [4, 4, 4, 4]):
        out = around[8:10].numpy()
        assert not loops.decode_positions(upper, lower, torch.tensor(counts).numpy(), blocks.rows, out)
    assert not loops.decode_positions(
        upper[:0], lower, torch.tensor([4, 4, 4]).numpy(), blocks.rows, around[6:18].numpy()
    )
    assert around.unique().tolist() == [-7]
