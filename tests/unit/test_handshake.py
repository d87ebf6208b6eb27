"""The handshake: ranks that agree go on after one round; ranks that differ all hear who, what and both sides."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.errors import GroupError
from laconic.handshake import Identity, handshake
from laconic.transports import Lockstep

OWN = Identity(method="topk(density=0.01)", model=("w (3, 2) torch.float32", "b (3,) torch.float32"))
CPU = torch.device("cpu")
texts = st.text('ab",[ ', max_size=2)


def _shake(identities: list[Identity]) -> list[str | None]:
    """Bring the handshake to its end on every rank; return each rank's complaint."""
    ranks = [handshake(own, rank=rank, device=CPU) for rank, own in enumerate(identities)]
    rows = torch.stack([next(steps).send for steps in ranks])
    complaints: list[str | None] = [None] * len(ranks)
    while True:
        sends = []
        for rank, steps in enumerate(ranks):
            try:
                sends.append(steps.send(rows).send)
            except StopIteration:
                continue
            except GroupError as error:
                complaints[rank] = str(error)
        if not sends:
            return complaints
        # A round that only some ranks enter would hang the others.
        assert len(sends) == len(ranks)
        rows = torch.stack(sends)


def _differing(other: Identity, *, ranks: int, rank: int, own: Identity = OWN) -> list[str | None]:
    identities = [own] * ranks
    identities[rank] = other
    return _shake(identities)


def _huge(lines: int, name: str = "layer.{}.weight") -> Identity:
    return Identity(method="topk", model=tuple(f"{name.format(i)} (64, 64)" for i in range(lines)))


def _changed(own: Identity, line: int, text: str) -> Identity:
    return replace(own, model=(*own.model[:line], text, *own.model[line + 1 :]))


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_ranks_that_agree_go_on_after_one_round(ranks):
    world = Lockstep(ranks)
    futures = [p.start(handshake(OWN, rank=p.rank, device=CPU), label="the handshake") for p in world.ports]
    for port in world.ports:
        port.drain()
    assert [future.value() for future in futures] == [None] * ranks
    assert all(port.collectives == (ranks > 1) for port in world.ports)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_ranks_that_differ_raise_in_lockstep(ranks):
    world = Lockstep(ranks)
    for port in world.ports:
        own = OWN if port.rank < ranks - 1 else replace(OWN, method="dense()")
        port.start(handshake(own, rank=port.rank, device=CPU), label="the handshake")
    for port in world.ports[:-1]:
        port.drain()
    with pytest.raises(GroupError, match=rf"rank 0 runs topk.*, rank {ranks - 1} runs dense\(\)"):
        world.ports[-1].drain()


@pytest.mark.parametrize(("ranks", "rank"), [(2, 1), (3, 1), (4, 3)])
@pytest.mark.parametrize(
    ("other", "says"),
    [
        (replace(OWN, method="dense()"), "rank 0 runs topk(density=0.01), rank {rank} runs dense()"),
        (
            _changed(OWN, 1, "b (4,) torch.float32"),
            "at number 2 rank 0 has b (3,) torch.float32 where rank {rank} has b (4,) torch.float32",
        ),
        (
            replace(OWN, model=OWN.model[:1]),
            "rank 0's model has 2 tensors, rank {rank}'s 1; at number 2 rank 0 has b (3,) torch.float32 "
            "where rank {rank} has nothing",
        ),
        (
            replace(OWN, model=(*OWN.model, "c (1,) torch.float32")),
            "at number 3 rank 0 has nothing where rank {rank} has c (1,) torch.float32",
        ),
        (replace(OWN, model=()), "rank 0's model has 2 tensors, rank {rank}'s 0; at number 1"),
    ],
    ids=["method", "shape", "fewer", "more", "none"],
)
def test_every_rank_hears_both_sides(other, says, ranks, rank):
    complaints = _differing(other, ranks=ranks, rank=rank)
    for listener, complaint in enumerate(complaints):
        assert complaint is not None
        assert says.format(rank=rank) in complaint
        assert f"seen from rank {listener}" in complaint


def test_a_difference_of_the_first_rank_is_heard_too():
    for complaint in _differing(replace(OWN, method="dense()"), ranks=3, rank=0):
        assert complaint is not None
        assert "rank 0 runs dense(), rank 1 runs topk(density=0.01)" in complaint


def test_unlike_methods_are_told_before_unlike_models():
    for complaint in _differing(Identity(method="dense()", model=("x",)), ranks=2, rank=1):
        assert complaint is not None
        assert "rank 1 runs dense()" in complaint


@settings(max_examples=30)
@given(texts, st.lists(texts, max_size=4), texts, st.lists(texts, max_size=4))
def test_fingerprints_are_equal_exactly_when_method_and_model_are(method, model, other_method, other_model):
    one = Identity(method=method, model=tuple(model))
    two = Identity(method=other_method, model=tuple(other_model))
    equal = (method, model) == (other_method, other_model)
    assert (one.fingerprint() == two.fingerprint()) is equal
    assert -(2**63) <= one.fingerprint() < 2**63


def test_names_cannot_run_together():
    prints = {Identity(method="m", model=model).fingerprint() for model in [("ab", "c"), ("a", "bc"), ("abc",)]}
    assert len(prints) == 3


@settings(max_examples=20)
@given(st.integers(1, 40), st.data())
def test_the_first_difference_is_found_wherever_it_is(lines, data):
    own, line = _huge(lines), data.draw(st.integers(0, lines - 1))
    later = data.draw(st.integers(line, lines - 1))
    other = _changed(_changed(own, later, "later"), line, "changed")
    for complaint in _differing(other, ranks=2, rank=1, own=own):
        assert complaint is not None
        assert f"at number {line + 1} rank 0 has layer.{line}.weight (64, 64) where rank 1 has changed" in complaint


@pytest.mark.parametrize("line", [0, 12_345, 19_999])
def test_a_difference_anywhere_in_a_huge_model_is_named(line):
    """Only the first 64 KiB of a model's text used to travel; a difference behind them was blamed on the step."""
    own = _huge(20_000)
    for complaint in _differing(_changed(own, line, "changed"), ranks=2, rank=1, own=own):
        assert complaint is not None
        assert f"rank 0 has layer.{line}.weight (64, 64) where rank 1 has changed" in complaint


def test_a_huge_model_with_names_beyond_ascii_is_compared():
    """Cut at a number of bytes, a text used to break off within a letter and could not be read."""
    own = _huge(3_000, "слой_внимания.{}.вес")
    for complaint in _differing(_changed(own, 2_999, "сдвиг" * 1000), ranks=2, rank=1, own=own):
        assert complaint is not None
        assert "rank 0 has слой_внимания.2999.вес (64, 64) where rank 1 has сдвигсдвиг" in complaint


def test_a_very_long_method_is_compared():
    for complaint in _differing(replace(OWN, method="m" * 100_000), ranks=2, rank=1):
        assert complaint is not None
        assert "rank 1 runs mmmm" in complaint
