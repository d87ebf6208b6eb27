"""The fast kernels that take entries give the definition's answer to the bit, whatever the vector."""

from __future__ import annotations

import math
from itertools import product
from types import ModuleType

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from contracts.twins import (
    ANY,
    BORDERS,
    FAMILIES,
    FLOATS,
    LARGE,
    NEEDS,
    SEEDS,
    Twin,
    check_take,
    laid_out,
    numpy_may_warn,
    twin_of,
)
from contracts.vectors import segments_of
from laconic.kernels import Taken, fresh_of
from laconic.segments import Segments

pytestmark = numpy_may_warn
every_dtype = pytest.mark.parametrize("dtype", FLOATS, ids=str)
LEVELS = [0.0, -0.0, -1.0, 0.5, 1.0, 1.5, 2.0, 60.0, math.inf, -math.inf, math.nan]


@pytest.fixture(scope="module", params=NEEDS)
def twin(request) -> Twin:
    return twin_of(request.param)


def _above(twin: Twin, x: Tensor, layout: Segments, levels: list[float], rooms: list[int], **given) -> Taken:
    """Take above the levels by the twin and by the definition. ``one``: give the largest magnitudes too."""
    offset, one, turn = given.get("offset", 0), given.get("one", False), given.get("turn", 0)
    thresholds = torch.tensor(levels, dtype=x.dtype)
    largest = fresh_of(x, layout).largest if one else None

    def take(module: ModuleType, x: Tensor) -> Taken:
        top = None if largest is None else largest.to(x.device)
        return module.take_above_(x, layout, thresholds.to(x.device), rooms, largest=top, turn=turn)

    taken = check_take(twin, x, take, offset)
    if not twin.trims:
        assert taken.positions.numel() == taken.values.numel() == sum(rooms)
    return taken


def _top(twin: Twin, x: Tensor, layout: Segments, counts: list[int], offset: int = 0) -> Taken:
    return check_take(twin, x, lambda module, x: module.take_top_(x, layout, counts), offset)


def _count(size: int, seed: int) -> int:
    """Few, many, all and more than there are; and around a sixteenth, which is what a sparse vector has."""
    choices = [0, 1, 2, size // 100, size // 16, size // 16 + 1, size // 2, size - 1, size, size + 3]
    return max(0, choices[seed % len(choices)])


@every_dtype
def test_what_is_above_a_threshold_is_the_definitions_on_any_layout(twin, dtype):
    def check(sizes, gap, family, seed, offset, one, turn, levels, rooms):
        layout, end = laid_out(sizes, gap=gap)
        x = twin.draw(family, end, seed, dtype)
        rooms = [[0, 1, 5, n // 2, n, n + 2][r] for n, r in zip(sizes, rooms, strict=False)]
        _above(twin, x, layout, levels[: len(sizes)], rooms, offset=offset, one=one, turn=turn)

    twin.holds(
        check,
        50,
        **ANY,
        one=st.booleans(),
        turn=st.one_of(st.integers(0, 5), SEEDS),
        levels=st.lists(st.sampled_from(LEVELS), min_size=4, max_size=4),
        rooms=st.lists(st.integers(0, 5), min_size=4, max_size=4),
    )


@every_dtype
def test_the_largest_are_the_definitions_on_any_layout(twin, dtype):
    def check(sizes, gap, family, seed, offset, picks):
        layout, end = laid_out(sizes, gap=gap)
        counts = [_count(n, pick) for n, pick in zip(sizes, picks, strict=False)]
        _top(twin, twin.draw(family, end, seed, dtype), layout, counts, offset)

    twin.holds(
        check,
        50,
        **ANY,
        picks=st.lists(st.integers(0, 9), min_size=4, max_size=4),
    )


@pytest.mark.parametrize("sizes", BORDERS, ids=str)
def test_at_the_borders_of_blocks_they_take_the_definitions_entries(twin, sizes):
    layout, seed = segments_of(sizes), sum(sizes)
    for i, family in enumerate(["normal"] if twin.slow else FAMILIES):
        for dtype in [FLOATS[(seed + i) % 4]] if twin.slow else FLOATS:
            x = twin.draw(family, layout.numel, seed, dtype)
            _top(twin, x, layout, [_count(n, 4 + i + seed) for n in sizes], offset=i % 2)
            rooms = [max(1, n // 9) for n in sizes]
            _above(twin, x, layout, [1.0] * len(sizes), rooms, offset=3 * (i % 2), one=i % 3 == 0, turn=i)


@pytest.mark.parametrize("sizes", LARGE, ids=str)
def test_segments_larger_than_a_chunk_give_the_definitions_entries(twin, sizes):
    """Where all are alike and few are wanted, there are too many candidates for the way that is taken else."""
    if twin.slow:
        pytest.skip("interpreted, a block costs milliseconds: the large vectors of the next test are enough")
    layout = segments_of(sizes)
    for i, (family, dtype) in enumerate(product(FAMILIES, FLOATS)):
        x = twin.draw(family, layout.numel, i, dtype)
        _top(twin, x, layout, [_count(n, i) for n in sizes], offset=i % 4)
        _top(twin, x, layout, [min(n, 5) for n in sizes])
        level, rooms = [(0.0, sizes), (1.4, [n // 100 for n in sizes]), (100.0, [2] * len(sizes))][i % 3]
        _above(twin, x, layout, [level] * len(sizes), rooms, one=i % 5 == 0, turn=i, offset=i % 4)


@pytest.mark.parametrize(
    ("family", "count"), [("normal", 700), ("clustered", 700), ("striped", 6000), ("equal", 700), ("sparse", 700)]
)
def test_where_a_sample_comes_first_the_largest_are_the_definitions(twin, family, count):
    """A sample may mislead: all that is large lies where it looks, or more of it in a block than was reckoned."""
    # Interpreted, a list that is too short for its candidates takes long.
    few = (20_003,) if family in ("equal", "sparse") else (140_003,)
    for size in few if twin.slow else (20_003, 65_539, 140_003, 1_000_003):
        layout = segments_of([size, 5])
        _top(twin, twin.draw(family, size + 5, 1, torch.float32), layout, [count, 2], offset=1)


def test_where_a_sample_sees_all_that_is_large_the_rest_is_taken_too(twin):
    """Of 8192 large entries, all in the Triton twin's sample, an edge is made that few of all reach."""
    size, i = 40_003, torch.arange(8192)
    watched = ((i * size) >> 13) + ((((i * 40503) & 0xFFFF) * (size >> 13)) >> 16)
    x = twin.draw("normal", size, 6, torch.float32)
    x[watched] = 50 + x[watched].abs()
    for count in (700,) if twin.slow else (700, 9000):
        _top(twin, x, segments_of([size]), [count])


@pytest.mark.parametrize("family", ["clustered", "equal"])
@pytest.mark.parametrize("turn", [0, 1, 4])
def test_more_in_a_block_than_was_reckoned_is_taken_as_the_definition_does(twin, family, turn):
    layout = segments_of([9000, 4])
    x = twin.draw(family, 9004, 3, torch.float32)
    taken = _above(twin, x, layout, [1.2, 0.0], [90, 4], turn=turn)
    # Those in its middle lie so close together that a word of marks has many.
    assert int(taken.wanted[0]) > 400


def test_many_segments_each_give_their_own(twin):
    sizes = [i * 7 % 11 for i in range(12 if twin.slow else 5000)]
    layout = segments_of(sizes)
    x = twin.draw("few", layout.numel, 4, torch.float32)
    _top(twin, x, layout, [i % 4 for i in range(len(sizes))])
    _above(
        twin, x, layout, [(i % 5 - 1) / 2 for i in range(len(sizes))], [i % 6 for i in range(len(sizes))], turn=2
    )


@pytest.mark.parametrize("one", [False, True])
@pytest.mark.parametrize("level", LEVELS, ids=str)
def test_a_threshold_of_any_kind_takes_what_the_definition_takes(twin, level, one):
    # Interpreted, an entry that is taken costs as much as a block.
    layout, each = (segments_of([5, 1, 18]), 6) if twin.slow else (segments_of([5, 0, 1, 70, 40]), 29)
    for dtype in [FLOATS[(LEVELS.index(level) + one) % 4]] if twin.slow else FLOATS:
        x = torch.cat([twin.draw(f, each, 2, dtype) for f in ("infinite", "few", "zero", "denormal")])
        rooms = [2, 1, 20] if twin.slow else [2, 1, 1, 90, 7]
        _above(twin, x, layout, [level] * len(layout), rooms, one=one, turn=1)


@every_dtype
def test_a_vector_with_nan_breaks_nothing_and_the_count_is_that_of_the_positions(twin, dtype):
    """Such a step is dropped: what is taken does not matter, that it can be packed does."""
    for size in (300,) if twin.slow else (9, 300, 70_000):
        for family in ("infinite",) if twin.slow else ("normal", "zero", "infinite"):
            x = twin.draw(family, size + 3, 5, dtype)
            x[:: max(1, size // 7)] = math.nan
            for count in (1, 5, size - 1, size + 2):
                around = x.clone().to(twin.device)
                taken = twin.module.take_top_(around, segments_of([size, 3]), [count, 2])
                if twin.trims:
                    assert int(taken.wanted.sum()) == taken.positions.numel() == taken.values.numel()
                assert bool(((taken.positions >= 0) & (taken.positions < size + 3)).all())
                if twin.slow:
                    break


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_no_segments_and_empty_segments_give_nothing(twin, dtype):
    for sizes in ([], [0], [0, 0, 0]):
        layout, x = segments_of(sizes), torch.empty(0, dtype=dtype)
        _top(twin, x, layout, [1] * len(sizes), offset=1)
        for one in (False, True):
            _above(twin, x, layout, [0.0] * len(sizes), [2] * len(sizes), one=one)
