"""The fast kernels write and read positions as the definition does, and find out what was damaged on the way."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from contracts.spans import chosen, ends_of
from contracts.twins import NEEDS, SEEDS, Twin, laid_out, twin_of
from laconic.coding import LOWER, UPPER, WIDTH, Blocks, blocks_of
from laconic.kernels import Placed, reference_coding
from laconic.segments import Segments


@pytest.fixture(scope="module", params=NEEDS)
def twin(request) -> Twin:
    return twin_of(request.param)


@st.composite
def _segment(draw) -> tuple[int, int]:
    """A size and a room: none, all, few of so many that width is above 32, anything between."""
    size = draw(st.one_of(st.sampled_from([0, 1, 63, 64, 65, 2**33 + 7, 2**40]), st.integers(0, 300)))
    most = min(size, 300)
    return size, draw(st.one_of(st.sampled_from([0, min(1, most), most]), st.integers(0, most)))


LAYOUT: dict[str, st.SearchStrategy] = {
    "sized": st.lists(_segment(), max_size=4),
    "gap": st.integers(0, 2),
    # How much of its room each rank uses.
    "shares": st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=3),
    "seed": SEEDS,
    # Bytes beside a row, all of whose bits are set.
    "edge": st.sampled_from([0, 8]),
}
TILES = [[(2**40, 1), (2**62, 2), (5000, 1023)], [(3000, 1024), (1, 1)], [(5000, 1025)], [(0, 0), (2049, 2049)]]


def _made(sized: list[tuple[int, int]], gap: int = 0) -> tuple[Segments, Blocks]:
    segments = laid_out([size for size, _ in sized], gap=gap)[0]
    return segments, blocks_of(segments, tuple(room for _, room in sized))


def _rows(segments: Segments, blocks: Blocks, counts: list[list[int]], seed: int, edge: int) -> Tensor:
    """What ranks with so many entries send, inside wider rows of ones."""
    rows = [
        reference_coding.encode_positions(chosen(segments, count, seed + i), ends_of(count), blocks)
        for i, count in enumerate(counts)
    ]
    around = torch.full((len(rows), rows[0].numel() + 2 * edge), 255, dtype=torch.uint8)
    around[:, edge : edge + rows[0].numel()] = torch.stack(rows)
    return around


def _inner(around: Tensor, blocks: Blocks) -> Tensor:
    width = blocks.upper_bytes + blocks.lower_bytes
    edge = (around.shape[1] - width) // 2
    return around[:, edge : edge + width]


def _check_decoded(twin: Twin, around: Tensor, counts: list[list[int]], blocks: Blocks) -> Placed:
    expected = reference_coding.decode_positions(_inner(around, blocks), counts, blocks)
    got = twin.module.coding.decode_positions(_inner(around.to(twin.device), blocks), counts, blocks)
    assert got.good == expected.good
    for mine, theirs in zip(expected.positions, got.positions, strict=True):
        assert theirs.dtype == torch.int64
        assert torch.equal(theirs.cpu(), mine)
    return got


def _check_encoded(twin: Twin, positions: Tensor, counts: list[int], blocks: Blocks, padding: int = 0) -> None:
    expected = reference_coding.encode_positions(positions, ends_of(counts), blocks)
    given = torch.cat([positions, positions.new_zeros(0 if twin.trims else padding)]).to(twin.device)
    got = twin.module.coding.encode_positions(given, ends_of(counts, twin.device), blocks)
    assert got.dtype == torch.uint8
    assert torch.equal(got.cpu(), expected)


def test_positions_are_written_as_the_definition_writes_them(twin):
    def check(sized, gap, shares, seed, edge):
        segments, blocks = _made(sized, gap)
        for i, share in enumerate(shares):
            counts = [int(room * share) for _, room in sized]
            positions = chosen(segments, counts, seed + i)
            small = segments.numel < 2**31 and i == 1
            _check_encoded(twin, positions.int() if small else positions, counts, blocks, padding=edge)

    twin.holds(check, 40, **LAYOUT)


def test_what_was_written_is_read_by_all_ranks_at_once(twin):
    def check(sized, gap, shares, seed, edge):
        segments, blocks = _made(sized, gap)
        counts = [[int(room * share) for _, room in sized] for share in shares]
        assert all(_check_decoded(twin, _rows(segments, blocks, counts, seed, edge), counts, blocks).good)

    twin.holds(check, 40, **LAYOUT)


def test_damaged_bytes_are_found_out_as_the_definition_finds_them_out(twin):
    """Good or not, no exception; and what is called good ascends within its segments."""

    def check(sized, gap, shares, seed, edge, flips, more):
        segments, blocks = _made(sized, gap)
        counts = [[int(room * share) for _, room in sized] for share in shares]
        around = _rows(segments, blocks, counts, seed, edge)
        inner, source = _inner(around, blocks), torch.Generator().manual_seed(seed)
        for _ in range(flips if inner.numel() else 0):
            rank, at, bit = (int(torch.randint(n, (), generator=source)) for n in (*inner.shape, 8))
            inner[rank, at] ^= 1 << bit
        if sized:
            counts[0][seed % len(sized)] += more
        placed = _check_decoded(twin, around, counts, blocks)
        for positions, count, good in zip(placed.positions, counts, placed.good, strict=True):
            parts = positions.cpu().split(count) if good else ()
            for segment, part in zip(segments, parts, strict=False):
                assert (part.diff() > 0).all()
                assert ((part >= segment.offset) & (part < segment.offset + segment.size)).all()

    twin.holds(check, 60, **LAYOUT, flips=st.sampled_from([0, 1, 2, 40]), more=st.sampled_from([0, 0, 1, 300]))


def test_a_segment_does_not_look_at_the_one_before_it(twin):
    """The last bit of one and the first of the next are neighbours, and their lower parts fall."""
    _, blocks = _made([(303, 20), (303, 20)])
    positions = torch.cat([torch.arange(283, 303), 303 + torch.arange(20)])
    row = reference_coding.encode_positions(positions, ends_of([20, 20]), blocks)
    assert _check_decoded(twin, row.unsqueeze(0), [[20, 20]], blocks).good == [True]


def test_rows_of_one_byte_are_no_trap(twin):
    _, blocks = _made([(300, 100), (2**40, 3), (64, 64), (9, 0)])
    cases = list(product([0, 255, 0b01010101], [[100, 3, 64, 0], [0, 0, 0, 0], [0, 0, 64, 0]]))
    width = blocks.upper_bytes + blocks.lower_bytes
    around = torch.tensor([[fill] * width for fill, _ in cases], dtype=torch.uint8)
    # Zeros say that there is nothing.
    assert _check_decoded(twin, around, [counts for _, counts in cases], blocks).good == [False, True, *[False] * 7]


def test_lower_parts_that_fall_or_go_too_far_are_found_out(twin):
    """Twenty entries, three lower bits each: pairs of equal upper parts, the last one as high as it can be."""
    _, blocks = _made([(1, 1), (300, 20)])
    assert blocks.rows[1].tolist() == [1, 300, 20, 3, 1, 0]
    upper = torch.zeros(8 * blocks.upper_bytes, dtype=torch.uint8)
    upper[[0, *(1 + 5 * i + j for i in range(9) for j in range(2)), 54, 55]] = 1
    rows, cases = [], {1: True, 9: True, 0: False, 8: False, 18: False, 19: False}
    for entry in cases:
        lower = torch.zeros(8 * blocks.lower_bytes, dtype=torch.uint8)
        lower[3 * entry] = 1
        rows.append(reference_coding.pack_codes(torch.cat([upper, lower]), 1))
    assert _check_decoded(twin, torch.stack(rows), [[1, 20]] * 6, blocks).good == list(cases.values())


def test_a_count_below_zero_or_beyond_its_room_is_not_good(twin):
    segments, blocks = _made([(300, 20), (50, 50)])
    around = _rows(segments, blocks, [[20, 7]] * 4, 1, 0)
    counts = [[20, 7], [-1, 7], [21, 7], [20, 51]]
    got = twin.module.coding.decode_positions(around.to(twin.device), counts, blocks)
    assert got.good == [True, False, False, False]
    assert [p.numel() for p in got.positions] == [27, 0, 0, 0]


@pytest.mark.parametrize("sized", TILES, ids=str)
def test_many_tiles_and_wide_numbers_are_written_and_read(twin, sized):
    segments, blocks = _made(sized)
    counts = [room for _, room in sized]
    _check_encoded(twin, chosen(segments, counts, 3), counts, blocks, padding=2000)
    fewer = [counts, [room // 3 for room in counts]]
    assert _check_decoded(twin, _rows(segments, blocks, fewer, 3, 8), fewer, blocks).good == [True, True]


def test_widths_of_none_and_of_more_than_half_a_word_are_among_them():
    _, blocks = _made([(2**40, 1), (2**62, 2), (64, 64)])
    assert blocks.rows[:-1, WIDTH].tolist() == [39, 60, 0]


def test_rows_that_begin_anywhere_are_read(twin):
    segments, blocks = _made([(300, 20), (50, 50)])
    for counts in ([[20, 7]], [[20, 7], [3, 50]]):
        assert all(_check_decoded(twin, _rows(segments, blocks, counts, 1, 3), counts, blocks).good)


def test_on_cuda_rows_of_another_length_are_refused():
    twin, (_, blocks) = twin_of("cuda"), _made([(300, 20)])
    with pytest.raises(ValueError, match="bytes of their blocks"):
        twin.module.coding.decode_positions(
            torch.zeros(2, 8, dtype=torch.uint8, device=twin.device), [[1]] * 2, blocks
        )


@pytest.mark.parametrize(
    ("first", "count"), [([5, 4], 2), ([3, 3], 2), ([-1, 3], 2), ([3, 300], 2), ([1, 2, 3], 3), ([2**60], 1)]
)
def test_positions_that_are_not_as_promised_harm_no_other_segment(twin, first, count):
    """An error where one can be raised without waiting; else bytes that mean nothing, within the segment's own."""
    segments, blocks = _made([(300, 2), (70, 40)])
    rest = chosen(segments, [0, 40], 1)
    given, ends = torch.cat([torch.tensor(first), rest]).to(twin.device), ends_of([count, 40], twin.device)
    if twin.trims:
        with pytest.raises(ValueError, match="must ascend"):
            twin.module.coding.encode_positions(given, ends, blocks)
        return
    got = twin.module.coding.encode_positions(given, ends, blocks).cpu()
    alone = reference_coding.encode_positions(rest, ends_of([0, 40]), blocks)
    assert got.numel() == alone.numel()
    for begin, column in ((0, UPPER), (blocks.upper_bytes, LOWER)):
        mine, theirs = (
            reference_coding.unpack_codes(raw[begin:], 1, 8 * raw[begin:].numel())[blocks.rows[1, column] :]
            for raw in (got, alone)
        )
        assert torch.equal(mine[: blocks.rows[2, column]], theirs[: blocks.rows[2, column]])
