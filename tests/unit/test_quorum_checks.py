"""What workers that come and go cannot do is refused, before any of them talks."""

from __future__ import annotations

import zlib
from types import SimpleNamespace

import pytest
import torch

import laconic
from laconic.integrations.checks import check_quorum
from laconic.integrations.quorum import Quorum

MODEL = torch.nn.Linear(2, 1)
TALKS = {
    "fragments or delay": laconic.diloco(every=4, fragments=2),
    "participants": laconic.celgc(4, participants=2),
    "norm_by": laconic.celgc(4, clip=1.0, norm_by="max"),
    "a correction": laconic.episode(4),
    "start": laconic.post_local(4, start=10),
}


@pytest.mark.parametrize(
    "method", [laconic.celgc(4), laconic.local_sgd(4), laconic.diloco(4), laconic.sparseloco(4), laconic.spartan()]
)
def test_methods_that_talk_at_the_ends_of_rounds_alone_are_taken(method):
    check_quorum(MODEL, method)


@pytest.mark.parametrize("what", TALKS)
def test_methods_that_talk_within_a_round_are_refused_with_the_reason(what):
    with pytest.raises(ValueError, match=f"at the ends of rounds alone, and .* has .*{what}"):
        check_quorum(MODEL, TALKS[what])


def test_methods_of_every_step_are_sent_to_the_other_way():
    with pytest.raises(ValueError, match=r"topk exchanges in every step.*--elastic"):
        check_quorum(MODEL, laconic.topk())


def test_without_torchft_it_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr("laconic.integrations.members.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'laconic\[torchft\]'"):
        Quorum(MODEL, torch.optim.SGD(MODEL.parameters(), 0.1), laconic.celgc(4), lighthouse="http://nowhere:1")


def _compared(mine: dict[int, str], *others: dict[int, str]) -> None:
    """Let a worker hear the pasts of others, as at a meeting."""
    quorum = Quorum.__new__(Quorum)
    quorum._past, quorum._rank, quorum._owed, quorum._out = mine, 0, [0.0] * (1 + len(others)), False
    rows = [[float(zlib.crc32(repr(sorted(past.items())).encode())), i + 1.0] for i, past in enumerate(others)]
    rounds = SimpleNamespace(meeting=SimpleNamespace(table=lambda row: [row, *rows]))
    quorum._compare(rounds)


def test_one_whose_past_is_not_that_of_most_is_told_to_start_anew():
    """It kept a round, was away, and the others, who had not heard of that, did the round in another way."""
    same, other = {0: "first", 5: "second"}, {0: "first", 4: "another"}
    _compared(same, same, same)
    with pytest.raises(laconic.GroupError, match="this worker kept a round that most of the 3 here did not"):
        _compared(other, same, same)
    # The others meet again without it.
    with pytest.raises(laconic.ExchangeError, match=r"workers \[2\] of 3 have another past"):
        _compared(same, same, other)
