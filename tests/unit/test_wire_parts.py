"""Messages in two rounds: bytes that were changed are refused, and the rank is named that sent them."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from contracts.vectors import normal
from laconic import seals
from laconic.codecs import Exact, Linear
from laconic.collectives import AllGather, AllToAll
from laconic.compressors import StdThreshold, TopK
from laconic.errors import GroupError, WireError
from laconic.exchanges import ShardedMean
from laconic.segments import Segments
from laconic.shards import Part
from laconic.types import Compressor, Envelope, Mean
from laconic.wire.parts import Entries, read_parts, write_parts
from laconic.wire.sheet import Sheet

MODEL = Segments.of(["w", "empty", "b", "v", "last"], [600, 0, 40, 300, 0])
HALF = TopK(density=0.1, whole_below=100)


def _first_round(rule: Compressor = HALF):
    xs = [normal(MODEL.numel, r) for r in range(3)]
    steps = [
        ShardedMean(values=Linear(bits=4)).steps(x, MODEL, rule, Envelope(step=3, world_size=3, rank=r))
        for r, x in enumerate(xs)
    ]
    requests = [next(s) for s in steps]
    assert all(isinstance(r, AllToAll) for r in requests)
    replies = [torch.cat([r.send.split(r.given)[rank] for r in requests]) for rank in range(3)]
    return steps, replies


def _outcome(steps, reply: Tensor) -> object:
    """What comes of a reply: the next request, the mean, or what was raised."""
    try:
        return steps.send(reply)
    except StopIteration as end:
        return end.value
    except (WireError, GroupError) as error:
        return str(error)


changed = given(at=st.integers(0, 10_000), change=st.integers(1, 255))


@contextmanager
def _any_seal_fits():
    """As if whoever changed the bytes had sealed them, too: what else is checked must do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seals, "short", lambda total, bits: 0)
        patch.setattr(seals, "short_of", lambda totals, bits: torch.zeros_like(totals))
        yield


@settings(max_examples=30)
@changed
def test_bytes_that_were_changed_are_refused_in_the_first_round(at, change):
    steps, replies = _first_round()
    replies[0][at % replies[0].numel()] ^= change
    assert str(_outcome(steps[0], replies[0])).startswith("rank ")


@settings(max_examples=30)
@changed
def test_bytes_that_were_changed_are_refused_in_the_second_round(at, change):
    steps, replies = _first_round()
    rows = torch.stack([s.send(r).send for s, r in zip(steps, replies, strict=True)])
    rows.view(-1)[at % rows.numel()] ^= change
    assert str(_outcome(steps[0], rows)).startswith("rank ")


@settings(max_examples=30)
@changed
@_any_seal_fits()
def test_bytes_that_were_changed_are_refused_or_harmless_in_the_first_round(at, change):
    """Values may be anything; what would be read out of bounds, or from nowhere, is refused."""
    steps, replies = _first_round()
    replies[0][at % replies[0].numel()] ^= change
    outcome = _outcome(steps[0], replies[0])
    assert isinstance(outcome, AllGather) or str(outcome).startswith("rank ")


@settings(max_examples=30)
@changed
@_any_seal_fits()
def test_bytes_that_were_changed_are_refused_or_harmless_in_the_second_round(at, change):
    steps, replies = _first_round()
    rows = torch.stack([s.send(r).send for s, r in zip(steps, replies, strict=True)])
    rows.view(-1)[at % rows.numel()] ^= change
    outcome = _outcome(steps[0], rows)
    assert isinstance(outcome, Mean) or str(outcome).startswith("rank ")


@pytest.mark.parametrize("word", [0, 0xFF << 32 | 0xA5])
def test_a_message_that_is_none_names_its_rank(word):
    steps, replies = _first_round()
    size = replies[0].numel() // 3
    replies[0][2 * size : 2 * size + 8] = torch.tensor([word]).view(torch.uint8)
    with pytest.raises((WireError, GroupError), match=r"^rank 2 "):
        steps[0].send(replies[0])


@_any_seal_fits()
def test_more_entries_than_can_be_and_messages_of_another_size_are_refused():
    steps, replies = _first_round()
    size = replies[0].numel() // 3
    replies[0][size + 4 : size + 8] = torch.tensor([77_777], dtype=torch.int32).view(torch.uint8)
    with pytest.raises(WireError, match=r"^rank 1 says it has chosen 77777 "):
        steps[0].send(replies[0])
    with pytest.raises(WireError, match=r"the plan says"):
        steps[1].send(replies[1][:-8])
    rows = torch.zeros(3, 8, dtype=torch.uint8)
    steps[2].send(replies[2])
    with pytest.raises(WireError, match=r"a message has 8 bytes"):
        steps[2].send(rows)


def test_a_position_that_nothing_is_chosen_from_is_refused():
    """Known entries have no positions: one that lies among them was not chosen by anybody."""
    whole = Part(span=range(10, 90), room=4, pieces=(range(10, 90),))
    holes = replace(whole, pieces=(range(10, 40), range(60, 80)))
    sheets = [Sheet(parts=(part, part), form=Exact().form, dtype=torch.float32) for part in (whole, holes)]
    rows = []
    for at in ([12, 39, 60, 79], [12, 39, 59, 79], [10, 80]):
        entries = Entries(known=torch.empty(0), positions=torch.tensor(at), values=torch.ones(len(at)))
        alone = replace(sheets[0], parts=(whole,))
        rows.append(torch.cat(write_parts(alone, entries, Exact(), seed=0).raw[0]))
    assert read_parts(sheets[1], [rows[0], rows[0]], [4, 4]).positions.tolist() == [12, 39, 60, 79] * 2
    for row, count in zip(rows[1:], (4, 2), strict=True):
        assert read_parts(sheets[0], [rows[0], row], [4, count]).positions.numel() == 4 + count
        with pytest.raises(WireError, match=r"^rank 1 sent a position that nothing is chosen from"):
            read_parts(sheets[1], [rows[0], row], [4, count])
    with pytest.raises(WireError, match=r"^rank 1 sent positions that do not ascend"):
        read_parts(sheets[0], [rows[0], rows[2]], [4, 3])
    with pytest.raises(WireError, match=r"^rank 0 sent \d+ bytes of entries"):
        read_parts(sheets[0], [rows[0][:-8], rows[0]], [4, 4])


@_any_seal_fits()
def test_more_than_there_are_cannot_have_qualified_in_the_first_round():
    """Summed over ranks, such counts would not fit the second round's numbers."""
    steps, replies = _first_round(StdThreshold(c=1.0, whole_below=100))
    part = replies[0].numel() // 3
    replies[0][part + 8 : part + 12] = torch.tensor([601], dtype=torch.int32).view(torch.uint8)
    assert "rank 1 says it has chosen" in str(_outcome(steps[0], replies[0]))


@pytest.mark.parametrize(("word", "number"), [(4, 2**62), (4, 901), (3, -1), (10, 2**31 - 1), (10, -1)])
@_any_seal_fits()
def test_no_number_of_the_second_round_can_be_larger_than_it_may_be(word, number):
    steps, replies = _first_round()
    rows = torch.stack([s.send(r).send for s, r in zip(steps, replies, strict=True)])
    # Word 10 has two numbers: what ranks had for the range, and what is in its sums.
    rows[2].view(torch.int64)[word] = number
    assert str(_outcome(steps[0], rows)).startswith("rank 2 says")
