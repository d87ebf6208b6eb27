"""Fragments that are synchronised in turn: when, from where, and how they are mixed (Streaming DiLoCo)."""

from __future__ import annotations

import pytest
import torch

import laconic
from laconic.rounds.fragment import in_turn
from lockstep.locals import Point, Rank, close, draw, drawn, run

PLAIN = {"rate": 1.0, "momentum": 0.0}


def _streamed(rank: Rank, steps: int):
    """The model and the anchor after each step, a row each."""
    seen = []
    for step in range(steps):
        rank.follow(draw(rank.rank, step, 6))
        seen.append(torch.stack([rank.x, rank.anchor]))
    return seen


@pytest.mark.parametrize("fragments", [1, 2, 3])
@pytest.mark.parametrize("delay", [0, 1])
def test_each_parameter_is_synchronised_once_a_period_at_its_own_step(fragments, delay):
    method = laconic.diloco(6, fragments=fragments, delay=delay, **PLAIN)
    a, b = run(method, 2, lambda r: _streamed(r, 24), model=Point(1, 1, 1, 1, 1, 1))
    before = torch.zeros(6, dtype=torch.float64)
    for step, (ours, theirs) in enumerate(zip(a, b, strict=True), 1):
        assert torch.equal(ours[1], theirs[1])
        changed = (ours[1] != before).nonzero().flatten().tolist()
        # Parameter i belongs to fragment i mod F, which is due at the end of its share of the period.
        turn, within = divmod((step - 1) % 6 + 1, 6 // fragments)
        due = [] if within else [i for i in range(6) if i % fragments == turn - 1]
        assert changed == due
        assert (ours[0] == theirs[0]).nonzero().flatten().tolist() == due
        before = ours[1]


@pytest.mark.parametrize("mix", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("delay", [0, 1, 2])
def test_streaming_by_the_obvious_loop(delay, mix):
    period, fragments, ranks = 6, 2, 2
    method = laconic.diloco(period, rate=0.7, momentum=0.9, fragments=fragments, delay=delay, mix=mix)
    ours = run(method, ranks, lambda r: _streamed(r, 18), model=Point(1, 1, 1, 1, 1, 1))
    x, anchor = torch.zeros(ranks, 6, dtype=torch.float64), torch.zeros(6, dtype=torch.float64)
    velocity, mean = torch.zeros(6, dtype=torch.float64), torch.zeros(6, dtype=torch.float64)
    stride = period // fragments
    for step in range(1, 19):
        for rank in range(ranks):
            x[rank] -= 0.1 * draw(rank, step - 1, 6)
        for f in range(fragments):
            at = slice(f, 6, fragments)
            sync = stride * (f + 1) % period
            if (step + delay) % period == sync:
                mean[at] = (anchor - x).mean(0)[at]
            if step % period == sync:
                velocity[at] = 0.9 * velocity[at] + mean[at]
                anchor[at] -= 0.7 * (mean[at] + 0.9 * velocity[at])
                x[:, at] = (1 - mix) * anchor[at] + mix * x[:, at]
        for rank in range(ranks):
            close(ours[rank][step - 1], torch.stack([x[rank], anchor]))


def test_one_fragment_without_delay_is_diloco():
    streamed = laconic.diloco(4, fragments=1, delay=0)
    # Fragments of one parameter each, all due at once, is what one fragment is.
    ours = run(streamed, 2, lambda r: drawn(r, range(12)))
    plain = run(laconic.diloco(4), 2, lambda r: drawn(r, range(12)))
    for a, b in zip(ours[1], plain[1], strict=True):
        assert torch.equal(a, b)


def test_an_exchange_under_way_leaves_ranks_alone():
    """With delay no rank waits when it starts its exchange: what is sent goes while it steps on."""

    def job(rank: Rank):
        flying = []
        for step in range(8):
            rank.follow(draw(rank.rank, step))
            flying.append(rank.reducer.open)
        return flying

    # Due after step 4 and 8, begun two before.
    golden = [False, True, True, False] * 2
    assert run(laconic.diloco(4, delay=2), 2, job) == [golden, golden]


@pytest.mark.parametrize("delay", [0, 1])
def test_fragments_keep_what_they_owe_apart(delay):
    """Conservation by fragment: compressed drifts of each are its own."""
    send = laconic.topk(0.5, memory="update", whole_below=0)
    method = laconic.diloco(4, fragments=2, delay=delay, send=send, **PLAIN)

    def job(rank: Rank):
        for step in range(12):
            rank.follow(draw(rank.rank, step))
        return -rank.anchor, rank.owed

    ends = run(method, 2, job, model=Point(4, 4))
    # What came in the delay is dropped.
    dropped = {2 - 1, 6 - 1, 10 - 1} if delay else set()
    late = {4 - 1, 8 - 1, 12 - 1} if delay else set()
    walked = torch.zeros(8, dtype=torch.float64)
    for rank in range(2):
        for step in range(12):
            g = 0.1 * draw(rank, step)
            if step not in dropped and not (not delay and step >= 10):
                walked[:4] += g[:4]
            if step not in late:
                walked[4:] += g[4:]
    if delay:
        # Of the first fragment nothing after its last exchange began has come.
        for rank in range(2):
            walked[:4] -= 0.1 * (draw(rank, 10) + draw(rank, 11))[:4]
    close(2 * ends[0][0] + ends[0][1] + ends[1][1], walked)


def test_layers_are_dealt_out_and_too_many_fragments_are_refused():
    names = [f"{i}.{kind}" for i in range(5) for kind in ("weight", "bias")]
    parameters = {name: torch.nn.Parameter(torch.zeros(1)) for name in names}
    parts = in_turn(parameters, 3)
    assert sorted(n for part in parts for n in part) == sorted(names)
    assert all(f"{i}.weight" in parts[i % 3] and f"{i}.bias" in parts[i % 3] for i in range(5))
    with pytest.raises(ValueError, match=r"10 parameters cannot be dealt out to 11 fragments. Use fewer"):
        in_turn(parameters, 11)
