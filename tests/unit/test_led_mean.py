"""One rank chooses for all, another one in every step."""

from __future__ import annotations

import pytest
import torch

import laconic
from contracts.vectors import normal, same_bits
from laconic.averaging import dense
from laconic.codecs import SignMean
from laconic.compressors import StdThreshold, TopK
from laconic.exchanges import GatherMean, LedMean
from laconic.exchanges.led_mean import leader_of
from laconic.segments import Segments
from laconic.sim import Network, Pace, World
from laconic.transports import Lockstep
from laconic.types import Compressor, Envelope, Exchange, Mean

SEGMENTS = Segments.of(["first", "second"], [400, 600])
TOP = TopK(density=0.02, whole_below=0)


def _meet(exchange: Exchange, compressor: Compressor, xs: list[torch.Tensor], step: int = 0) -> list[Mean]:
    world = Lockstep(len(xs))
    each = [Envelope(step=step, world_size=len(xs), rank=rank) for rank in range(len(xs))]
    started = [
        port.start(exchange.steps(x, SEGMENTS, compressor, envelope), label="led")
        for port, x, envelope in zip(world.ports, xs, each, strict=True)
    ]
    for port in world.ports:
        port.drain()
    return [future.value() for future in started]


def _handed_over(exchange: Exchange, ranks: int, steps: int) -> list[int]:
    """Bytes that each rank handed over in so many steps."""
    world = Lockstep(ranks)
    for step in range(steps):
        for rank, port in enumerate(world.ports):
            envelope = Envelope(step=step, world_size=ranks, rank=rank)
            x = normal(SEGMENTS.numel, 10 * step + rank)
            port.start(exchange.steps(x, SEGMENTS, TOP, envelope), label="led")
        for port in world.ports:
            port.drain()
    return [port.wire_bytes for port in world.ports]


@pytest.mark.parametrize("step", range(4))
def test_the_mean_lies_where_the_rank_whose_turn_it_is_has_its_largest(step):
    xs = [normal(SEGMENTS.numel, rank) for rank in range(3)]
    leader = xs[leader_of(step, 3)].clone()
    before = [x.clone() for x in xs]
    means = _meet(LedMean(), TOP, xs, step)
    there = dense(means[0].values, xs[0]).nonzero().flatten()
    largest = torch.cat([
        part.abs().topk(round(0.02 * len(part))).indices.sort().values + start
        for start, part in ((0, leader[:400]), (400, leader[400:]))
    ])  # fmt: skip
    assert torch.equal(there, largest)
    torch.testing.assert_close(dense(means[0].values, xs[0])[there], torch.stack(before).mean(0)[there])
    for x, was in zip(xs, before, strict=True):
        # Whoever chose, every rank has sent what it had in these places, and keeps all else.
        assert not x[there].any()
        x[there] = was[there]
        assert torch.equal(x, was)


def test_every_rank_says_what_it_sent_and_where():
    xs = [normal(SEGMENTS.numel, rank) for rank in range(3)]
    before = [x.clone() for x in xs]
    for mean, was in zip(_meet(LedMean(), TOP, xs), before, strict=True):
        assert mean.own is not None
        assert mean.own.positions.numel() == 20
        assert torch.equal(mean.own.values, was[mean.own.positions])


def test_positions_travel_once_whatever_the_number_of_ranks():
    ranks, rounds = 5, 5
    led, gathered = (_handed_over(kind(values=SignMean()), ranks, rounds) for kind in (LedMean, GatherMean))
    # In as many steps as there are ranks each has led once.
    assert len(set(led)) == 1
    # 20 positions take about 7 bits each, and eight bytes say that ranks agree.
    spared = rounds * gathered[0] // rounds - led[0] + 8 * rounds
    positions = 20 * 7 / 8 * (rounds - 1)
    assert positions <= spared <= 2 * positions


def test_what_qualified_with_the_leader_counts_for_all():
    xs = [normal(SEGMENTS.numel, rank) for rank in range(3)]
    leader = xs[leader_of(1, 3)].clone()
    rule = StdThreshold(c=2.0, whole_below=0)
    mean = _meet(LedMean(), rule, xs, step=1)[2]
    for name, part in (("first", leader[:400]), ("second", leader[400:])):
        above = int((part.abs() > 2.0 * part.square().mean().sqrt()).sum())
        assert mean.counts[name] == (above,) * 3
    assert mean.qualified == 3 * sum(counts[0] for counts in mean.counts.values())


@pytest.mark.parametrize("values", ["exact", "sign"])
def test_models_that_take_turns_stay_equal_and_learn(values):
    method = laconic.topk(0.1, scope="model", exchange="led", values=values, memory="update")
    world = World(Network(ranks=3), Pace(ranks=3))

    def train(rank: int) -> tuple[torch.Tensor, list[float]]:
        generator = torch.Generator().manual_seed(0)
        model = torch.nn.Linear(40, 1, bias=False)
        model.weight.data = torch.randn(1, 40, generator=generator)
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        link = world.attach(rank, model, optimizer, method)
        draw, losses = torch.Generator().manual_seed(rank + 1), []
        for _ in range(120):
            x = torch.randn(16, 40, generator=draw)
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss.detach()))
        assert link.stats.skipped_steps == 0
        return model.weight.detach(), losses

    (first, losses), *others = world.run(train)
    assert all(same_bits(weight, first) for weight, _ in others)
    assert losses[-1] < losses[0] / 100


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: laconic.cat("bits", exchange="led"), "one rank chooses for all"),
        (lambda: laconic.strom(exchange="led"), "also changes what each rank sends"),
        (lambda: laconic.sdagc(revision="damp", exchange="led", scope="layer", values="exact"), "damping"),
        (lambda: laconic.celgc(4, participants=2, send=laconic.topk(exchange="led")), "every rank sends"),
    ],
)
def test_what_cannot_be_led_is_refused(make, says):
    with pytest.raises(ValueError, match=says):
        make()


@pytest.mark.parametrize("fragments", [1, 2, 4])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_every_rank_chooses_for_every_fragment(ranks, fragments):
    for fragment in range(fragments):
        turns = {leader_of(step, ranks) for step in range(fragment, 64 * ranks, fragments)}
        assert turns == set(range(ranks))
    assert sorted(leader_of(step, ranks) for step in range(ranks)) == list(range(ranks))


def test_bytes_for_chosen_entries_are_not_fixed():
    fixed = set()
    for density in (0.01, 0.1, 0.4):
        xs = [normal(SEGMENTS.numel, rank) for rank in range(4)]
        mean = _meet(LedMean(), TopK(density=density, whole_below=0), xs)[0]
        fixed.add(mean.fixed_bytes)
        assert mean.message_bytes > mean.fixed_bytes
    assert len(fixed) == 1


@pytest.mark.parametrize("room", [1, 40, 700])
def test_with_one_threshold_no_room_travels_empty(room):
    """What a message takes follows from what was chosen, not from what ranks had agreed on as room."""
    one = SEGMENTS.merged()
    rule, name = StdThreshold(c=2.0, whole_below=0), one.names[0]
    xs = [normal(one.numel, rank) for rank in range(3)]
    leader = leader_of(0, 3)
    passing = int((xs[leader].abs() > 2.0 * xs[leader].square().mean().sqrt()).sum())
    world, started = Lockstep(3), []
    for rank, (port, x) in enumerate(zip(world.ports, xs, strict=True)):
        envelope = Envelope(step=0, world_size=3, rank=rank, rooms={name: room})
        started.append(port.start(LedMean(values=SignMean()).steps(x, one, rule, envelope), label="led"))
    for port in world.ports:
        port.drain()
    mean = started[0].value()
    assert mean.rooms == {name: min(room, passing)}
    assert mean.counts == {name: (passing,) * 3}
    assert mean.sent == 3 * min(room, passing)
    # A digest, a header, a count, a mean and positions of some 7 bits with a bit of value, in words of 8 bytes.
    assert world.ports[leader].wire_bytes < 8 + 80 + 8 + 8 + min(room, passing) + 24


@pytest.mark.parametrize("bit", [0, 19, 20, 33, 47, 48, 63])
def test_a_first_word_that_was_damaged_is_refused_by_its_rank(bit):
    """Ranks that heard it otherwise than others would wait for other things."""
    steps = LedMean().steps(
        normal(100, 0), Segments.of(["w"], [100]), TopK(density=0.1, whole_below=0), Envelope(step=0, world_size=3)
    )
    rows = torch.stack([next(steps).send] * 3)
    rows[2, bit // 8] ^= 1 << bit % 8
    with pytest.raises(laconic.WireError, match="rank 2's first word was damaged on the way"):
        steps.send(rows)
