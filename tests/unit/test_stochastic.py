"""Entries by chance: unbiased over all offsets of the draw, spread as published, as many as a rank finds best."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.vectors import Flat, Sent, normal, segments_of, taken_by
from laconic import coding, wire
from laconic.compressors import Stochastic
from laconic.compressors.stochastic import _systematic
from laconic.costs import Affine, Bits, Packets, Seconds

# PAPERS.md 4.8: a gradient, the gains of drawing 1, 2, ... of its entries, and the chances of four.
GOLDEN = torch.tensor([4, -3, 2, -1.5, 1, -0.5, 0.25, 0.1], dtype=torch.float64)
OMEGA = {1: 0.213559, 2: 0.427117, 3: 0.640676, 4: 0.828580, 6: 0.987869}
CHANCES_OF_FOUR = [1, 1, 0.7477, 0.5607, 0.3738, 0.1869, 0.0935, 0.0374]
OFFSETS = 200
COSTS = [
    Bits(),
    Affine(fixed_bits=3000),
    Packets.ieee_802_15_4(),
    Seconds(latency_seconds=0.01, bits_per_second=1e5),
]
some = settings(max_examples=25)


def _over_all_offsets(rule: Stochastic, flat: Flat, monkeypatch, rooms: dict[str, int] | None = None) -> list[Sent]:
    """What is sent for offsets spread evenly over [0, 1), instead of one by chance."""
    sents = []
    for i in range(OFFSETS):
        monkeypatch.setattr(Stochastic, "_share", lambda *_, share=(i + 0.5) / OFFSETS: share)
        sents.append(taken_by(rule, flat, rooms=rooms))
    return sents


def _assert_unbiased(sents: list[Sent], x: torch.Tensor) -> None:
    """An entry is there for a range of offsets as long as its chance: the grid finds that to within one offset."""
    decoded = torch.stack([s.decoded() for s in sents])
    assert bool(((decoded.mean(0) - x).abs() <= decoded.abs().amax(0) * 1.001 / OFFSETS).all())
    assert bool((decoded != decoded[0]).any())


def _chances(values: list[float], count: int) -> list[float]:
    """The best chances by definition: those that would exceed 1 are made sure, one after the other."""
    order, sure = sorted(range(len(values)), key=lambda i: -abs(values[i])), 0
    while True:
        scale = (count - sure) / sum(abs(values[i]) for i in order[sure:])
        if scale * abs(values[order[sure]]) <= 1:
            return [1.0 if i in order[:sure] else scale * abs(v) for i, v in enumerate(values)]
        sure += 1


def _message_bits(count: int, entries: int) -> float:
    """A message of one segment that is counted: header, count, what parts are padded by, float64 and positions."""
    positions = coding.position_bits(entries, count, coding.best_width(entries, count))
    return 8.0 * (wire.HEADER_BYTES + 8 + 24) + 64 * count + positions


def _efficiency(values: list[float], count: int, cost) -> float:
    chances = _chances(values, count) if count < len(values) else [1.0] * count
    gain = sum(v * v for v in values) / sum(v * v / p for v, p in zip(values, chances, strict=True))
    return gain / float(cost.of(torch.tensor([_message_bits(count, len(values))])))


# Laws


@pytest.mark.parametrize("count", OMEGA)
def test_it_is_unbiased_with_the_published_spread(count, monkeypatch):
    sents = _over_all_offsets(
        Stochastic(density=count / 8, whole_below=0), Flat(GOLDEN, segments_of([8])), monkeypatch
    )
    assert {s.payload.values.numel() for s in sents} == {count}
    _assert_unbiased(sents, GOLDEN)
    second_moment = sum(float(s.payload.values.square().sum()) for s in sents) / OFFSETS
    assert float(GOLDEN.square().sum()) / second_moment == pytest.approx(OMEGA[count], rel=0.02)


def test_an_entry_is_sent_as_often_as_published(monkeypatch):
    sents = _over_all_offsets(Stochastic(density=0.5, whole_below=0), Flat(GOLDEN, segments_of([8])), monkeypatch)
    often = torch.stack([s.decoded() != 0 for s in sents]).double().mean(0)
    assert often.tolist() == pytest.approx(CHANCES_OF_FOUR, abs=1 / OFFSETS + 1e-4)
    values = [4, -3, *(2 / 0.7477 * GOLDEN[2:].sign()).tolist()]
    for sent in sents:
        at = sent.payload.positions.tolist()
        assert sent.payload.values.tolist() == pytest.approx([values[i] for i in at], rel=1e-4)


def test_draws_of_unlike_seeds_have_the_vector_as_their_mean():
    flat, tries = Flat(normal(60, 3), segments_of([40, 20])), 400
    rules = [Stochastic(density=0.2, whole_below=0, seed=seed) for seed in range(tries)]
    decoded = torch.stack([taken_by(rule, flat).decoded() for rule in rules])
    # Five deviations of the mean.
    assert bool(((decoded.mean(0) - flat.x).abs() <= 5 * decoded.std(0) / math.sqrt(tries) + 1e-6).all())


@some
@given(data=st.data(), size=st.integers(2, 60), share=st.floats(0.0, 1.0, exclude_max=True))
def test_the_draw_takes_as_many_as_it_should_each_once(data, size, share):
    count = data.draw(st.integers(1, size - 1))
    weights = data.draw(st.lists(st.sampled_from([1e-9, 0.3, 1.0, 1e6]), min_size=size, max_size=size))
    chances = torch.tensor(_chances(weights, count), dtype=torch.float64)
    chances = torch.where(chances < 1e-8, 0.0, chances)
    places = _systematic(chances, count, share)
    assert places.numel() == count
    assert bool((places.diff() > 0).all())
    assert bool((chances[places] > 0).all())


def test_the_draw_is_that_of_the_fractions():
    chances = torch.tensor([0.5, 0.25, 1.0, 0.0, 0.75, 0.5], dtype=torch.float64)
    drawn = {share: _systematic(chances, 3, share).tolist() for share in (0.0, 0.4999, 0.5, 0.7499, 0.75, 0.9999)}
    assert drawn == {
        0.0: [0, 2, 4],
        0.4999: [0, 2, 4],
        0.5: [1, 2, 5],
        0.7499: [1, 2, 5],
        0.75: [2, 4, 5],
        0.9999: [2, 4, 5],
    }


@some
@given(seed=st.integers(0, 999), cost=st.sampled_from(COSTS), power=st.sampled_from([1, 3]))
def test_with_a_cost_a_rank_sends_the_number_with_most_descent_for_it(seed, cost, power):
    x = normal(40, seed, torch.float64) ** power
    rule = Stochastic(density=0.1, cost=cost, whole_below=0, ceiling=1.0)
    sent = taken_by(rule, Flat(x, segments_of([40])), rooms={"p0": 40})
    efficiencies = [_efficiency(x.tolist(), count, cost) for count in range(1, 41)]
    wanted = int(sent.payload.wanted)
    assert efficiencies[wanted - 1] == pytest.approx(max(efficiencies), rel=1e-9)
    assert all(e < efficiencies[wanted - 1] * (1 - 1e-13) for e in efficiencies[: wanted - 1])
    assert sent.payload.values.numel() == wanted


def test_where_room_is_short_fewer_are_drawn_and_it_is_as_unbiased(monkeypatch):
    flat, rule = (
        Flat(GOLDEN, segments_of([8])),
        Stochastic(density=0.5, cost=Affine(fixed_bits=10**6), whole_below=0),
    )
    rule = replace(rule, ceiling=1.0)
    roomy = taken_by(rule, flat, rooms={"p0": 8})
    assert roomy.payload.wanted.tolist() == [8]
    assert torch.equal(roomy.decoded(), GOLDEN)
    sents = _over_all_offsets(rule, flat, monkeypatch, rooms={"p0": 3})
    assert {(int(s.payload.wanted), s.payload.values.numel()) for s in sents} == {(8, 3)}
    _assert_unbiased(sents, GOLDEN)


def test_each_segment_is_drawn_from_and_left_by_itself():
    flat, rule = Flat(normal(90, 1), segments_of([3, 50, 0, 37])), Stochastic(density=0.2, whole_below=4)
    sent = taken_by(rule, flat)
    at = sent.payload.positions
    assert sent.payload.known.tolist() == flat.x[:3].tolist()
    assert [int(((at >= a) & (at < b)).sum()) for a, b in ((3, 53), (53, 90))] == [10, 7]
    assert torch.equal(sent.left[at], flat.x[at] - sent.payload.values)


# Edges


def test_a_draw_is_the_same_again_and_another_for_other_data_seeds_steps_and_names():
    flat, rule = Flat(normal(200, 1), segments_of([200])), Stochastic(density=0.1, whole_below=0)
    renamed = Flat(flat.x, segments_of([0, 200]))
    drawn = taken_by(rule, flat, 5).payload.positions.tolist()
    assert taken_by(rule, flat, 5).payload.positions.tolist() == drawn
    others = [
        taken_by(rule, flat, 6),
        taken_by(replace(rule, seed=1), flat, 5),
        taken_by(rule, renamed, 5),
        # Another rank's gradient.
        taken_by(rule, Flat(flat.x.neg(), flat.segments), 5),
    ]
    for other in others:
        assert other.payload.positions.tolist() != drawn


def test_shares_bound_what_a_rank_may_choose():
    flat, roomy = Flat(normal(100, 1), segments_of([100])), {"p0": 100}
    greedy, thrifty = Affine(fixed_bits=10**9), Bits()
    for cost, floor, ceiling, wanted in ((greedy, 0.1, 0.3, 30), (thrifty, 0.9, 1.0, 90), (greedy, 1e-5, 1.0, 100)):
        rule = Stochastic(density=0.5, cost=cost, whole_below=0, floor=floor, ceiling=ceiling)
        assert taken_by(rule, flat, rooms=roomy).payload.wanted.tolist() == [wanted]


def test_counts_vary_only_with_a_cost_and_the_first_room_is_the_density():
    segments = segments_of([2000, 10])
    for cost in (None, *COSTS):
        rule = Stochastic(density=0.01, cost=cost)
        plan = rule.plan(segments, step=4, rooms={})
        assert rule.counts_vary is plan.counted is (cost is not None)
        assert (plan.rooms, plan.known_count, plan.step) == ((20,), 10, 4)


@pytest.mark.parametrize("cost", [None, Affine(fixed_bits=10**6)], ids=str)
def test_where_few_entries_are_not_zero_these_are_sent_as_they_are(cost):
    x = torch.tensor([0.0, 0.0, 3.0, 0.0, -1.0, 0.0])
    sent = taken_by(Stochastic(density=0.7, cost=cost, whole_below=0, ceiling=1.0), Flat(x, segments_of([6])))
    # A room that is not counted is full all the same.
    assert sent.payload.positions.tolist() == ([0, 1, 2, 4] if cost is None else [2, 4])
    assert torch.equal(sent.decoded(), x)
    assert not sent.left.any()


@pytest.mark.parametrize("cost", [None, Bits()], ids=str)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_breaks_nothing(bad, cost):
    x = normal(20, 1)
    x[3] = bad
    sent = taken_by(Stochastic(density=0.2, cost=cost, whole_below=0), Flat(x, segments_of([10, 10])))
    room = min(int(sent.payload.wanted[0]), 2)
    assert sent.payload.positions.tolist()[:room] == [0, 1][:room]
    assert not torch.isfinite(torch.cat([sent.payload.values, sent.left])).all()


@pytest.mark.parametrize("small", [1e-300, 1e-160, 1e-308, 5e-324])
def test_entries_that_vanish_beside_the_largest(small):
    """Their chances would be no numbers any more, and more would have been drawn than there are."""
    x = torch.tensor([1e160, small, 0.0, small, -small, small], dtype=torch.float64)
    sent = taken_by(Stochastic(density=0.5, whole_below=0), Flat(x, segments_of([6])))
    assert sent.payload.positions.numel() == 3
    assert sent.payload.positions.tolist()[0] == 0
    assert float(sent.payload.values[0]) == 1e160
    assert torch.isfinite(sent.payload.values).all()
