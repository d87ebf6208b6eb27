"""DGC's selection finds what passes by counting or by ranks: the two must not be told apart by their results."""

from __future__ import annotations

from collections import Counter
from math import inf, nan

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from contracts.vectors import Flat, normal, same_bits, segments_of, taken_by
from laconic import kernels
from laconic.compressors import SampledTopK, sampled_topk
from laconic.kernels import reference
from laconic.segments import Segments

WAYS = {"count": sampled_topk._by_count_, "rank": sampled_topk._by_rank_}
# Sums of a few numbers have ties; high powers have tails in which thresholds fall far; some are mostly zero.
SHAPES = {
    "normal": lambda x: x,
    "tail": lambda x: x**9,
    "far tail": lambda x: x**31,
    "whole numbers": lambda x: (2 * x).round(),
    "mostly zero": lambda x: x * (x.abs() > 2.5),
    "alike": lambda x: x.sign(),
    "zero": lambda x: x * 0,
}


def _taken(way: str, rule: SampledTopK, flat: Flat, step: int):
    plan, left = rule.plan(flat.segments, step=step, rooms={}), flat.x.clone()
    found = WAYS[way](left, plan, rule.sample)
    return found, left, torch.minimum(found.taken.wanted, torch.tensor(plan.rooms, dtype=torch.int64))


def _check_same(rule: SampledTopK, flat: Flat, step: int, *, padded: bool) -> None:
    counted, counted_left, counted_wanted = _taken("count", rule, flat, step)
    with pytest.MonkeyPatch.context() as patch:
        if padded:
            # As on a GPU: room for all that may come, and zeros behind what came.
            patch.setattr(kernels, "_twin", lambda x: reference)
            patch.setattr(reference, "_take_passed_", reference._take_static_)
        ranked, ranked_left, ranked_wanted = _taken("rank", rule, flat, step)
    used = counted.taken.values.numel()
    assert torch.equal(ranked.taken.positions[:used], counted.taken.positions)
    assert same_bits(ranked.taken.values[:used], counted.taken.values)
    assert not ranked.taken.positions[used:].any()
    assert not ranked.taken.values[used:].any()
    assert same_bits(ranked_left, counted_left)
    assert same_bits(ranked.thresholds, counted.thresholds)
    assert torch.equal(ranked_wanted, counted_wanted)


@pytest.mark.parametrize("padded", [False, True], ids=["exact", "padded"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@given(
    st.lists(st.sampled_from([0, 1, 3, 20, 300, 1024, 2999]), max_size=4),
    st.lists(st.sampled_from(sorted(SHAPES)), min_size=4, max_size=4),
    st.sampled_from([0.001, 0.01, 0.1, 0.5, 0.9]),
    st.sampled_from([0.01, 0.2, 1.0]),
    st.integers(0, 10**4),
)
def test_ranks_find_what_counts_find_to_the_bit(padded, dtype, sizes, shapes, density, sample, seed):
    parts = [
        SHAPES[shape](normal(n, seed + i, dtype)) for i, (n, shape) in enumerate(zip(sizes, shapes, strict=False))
    ]
    flat = Flat(torch.cat([torch.empty(0, dtype=dtype), *parts]), segments_of(sizes))
    _check_same(SampledTopK(density=density, sample=sample, whole_below=0), flat, seed, padded=padded)


@pytest.mark.parametrize("way", WAYS)
def test_a_threshold_falls_ten_times_and_no_further(way):
    """A sample of every fourth entry, from the first on, sees the two large ones and takes them for its share."""
    rule, last = SampledTopK(density=10 / 1024, sample=0.01, whole_below=0), 0.8**10
    step = next(s for s in range(60) if sampled_topk._draw(s, "p0") % 4 == 0)
    x = torch.zeros(1024, dtype=torch.float64)
    x[[0, 1, 2, 4]] = torch.tensor([1.0, last, 0.99 * last, 1.0], dtype=torch.float64)
    found, _, _ = _taken(way, rule, Flat(x, segments_of([1024])), step)
    assert found.taken.positions.tolist() == [0, 1, 4]
    assert found.thresholds.tolist() == [last]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("bad", [nan, inf, -inf])
@pytest.mark.parametrize("twin", ["fast", "plain"])
@pytest.mark.parametrize("count", [1, 40, 3000])
def test_a_vector_that_is_not_finite_stops_nothing(way, bad, twin, count, monkeypatch):
    """The step is dropped; what is sent until then must fit its plan all the same."""
    if twin == "plain":
        monkeypatch.setattr(kernels, "_twin", lambda x: reference)
    x, segments = normal(5000, 1), segments_of([3000, 2000])
    x[:count] = bad
    for step in range(8):
        found, _, wanted = _taken(way, SampledTopK(density=0.01, whole_below=0), Flat(x, segments), step)
        assert found.taken.positions.numel() == found.taken.values.numel() == int(wanted.sum())
        assert found.thresholds.numel() == 2


class _Calls(TorchDispatchMode):
    """Counts calls by name."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names[str(func)] += 1
        return func(*args, **(kwargs or {}))


def _calls(way: str, sizes: list[int]) -> Counter[str]:
    flat, rule, watch = Flat(normal(sum(sizes), 1), segments_of(sizes)), SampledTopK(density=0.001), _Calls()
    # The first time, what every step needs is made.
    _taken(way, rule, flat, 0)
    with watch:
        _taken(way, rule, flat, 1)
    return watch.names


def test_by_ranks_nothing_is_asked_and_more_segments_need_no_more_calls():
    few, many = _calls("rank", [5000, 3000]), _calls("rank", [5000, 3000] * 15)
    asks = {"aten._local_scalar_dense.default", "aten.nonzero.default", "aten.item.default"}
    assert few == many
    assert not asks & set(many)
    assert asks & set(_calls("count", [5000, 3000])), "the names of questions are those that torch has"


@pytest.mark.parametrize(("density", "way"), [(0.001, "rank"), (0.01, "rank"), (0.02, "count"), (0.25, "count")])
def test_a_small_share_is_found_by_ranks_and_a_large_one_by_counting(density, way, monkeypatch):
    asked = []
    for name, find in WAYS.items():
        monkeypatch.setattr(
            sampled_topk, f"_by_{name}_", lambda *given, name=name, find=find: asked.append(name) or find(*given)
        )
    segments = Segments.of(["bias", "weight"], [1000, 20_000])
    taken_by(SampledTopK(density=density), Flat(normal(21_000, 1), segments))
    assert asked == [way]
