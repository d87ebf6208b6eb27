from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from laconic.lab.data.splits import check_split, split

WAYS = st.one_of(
    st.just("iid"),
    st.just("speaker"),
    st.floats(0, 100).map(lambda s: f"similarity:{s}"),
    st.floats(1e-3, 1e3).map(lambda a: f"dirichlet:{a}"),
)


def labels_of(classes: int, each: int) -> NDArray[np.int64]:
    return np.random.default_rng(1).permutation(np.repeat(np.arange(classes), each))


@given(
    how=WAYS,
    ranks=st.integers(1, 5),
    seed=st.integers(0, 2**40),
    labels=st.lists(st.integers(0, 6), min_size=5, max_size=120),
    people=st.integers(5, 9),
)
def test_parts_are_disjoint_whole_and_the_same_again(
    how: str, ranks: int, seed: int, labels: list[int], people: int
) -> None:
    array = np.array(labels, dtype=np.int64)
    who = [f"speaker {i % people}" for i in range(len(labels))]
    parts = split(how, ranks=ranks, seed=seed, labels=array, speakers=who)
    again = split(how, ranks=ranks, seed=seed, labels=array, speakers=who)
    together = np.concatenate(parts)
    assert len(parts) == ranks
    assert all(len(part) for part in parts)
    assert all(part.dtype == np.int64 for part in parts)
    assert len(np.unique(together)) == len(together)
    assert together.min() >= 0
    assert together.max() < len(labels)
    equal = how.startswith(("iid", "similarity"))
    assert len(together) == len(labels) - (len(labels) % ranks if equal else 0)
    if equal:
        assert {len(part) for part in parts} == {len(labels) // ranks}
    assert all(np.array_equal(one, other) for one, other in zip(parts, again, strict=True))


@pytest.mark.parametrize("how", ["iid", "similarity:50", "dirichlet:1"])
def test_another_seed_gives_another_split(how: str) -> None:
    labels = labels_of(10, 30)
    one, other = (split(how, ranks=3, seed=seed, labels=labels) for seed in (0, 1))
    assert any(not np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_similarity_0_gives_each_rank_its_own_labels() -> None:
    labels = labels_of(10, 100)
    for rank, part in enumerate(split("similarity:0", ranks=5, seed=3, labels=labels)):
        assert set(labels[part]) == {2 * rank, 2 * rank + 1}


@pytest.mark.parametrize("how", ["similarity:100", "iid"])
def test_similarity_100_gives_each_rank_all_labels_alike(how: str) -> None:
    labels = labels_of(4, 1000)
    for part in split(how, ranks=4, seed=3, labels=labels):
        # 250 of each expected, with a deviation below 12.
        assert np.abs(np.bincount(labels[part], minlength=4) - 250).max() < 60


def test_similarity_s_leaves_that_share_of_every_label_outside_its_own_ranks() -> None:
    labels = labels_of(4, 1000)
    for rank, part in enumerate(split("similarity:40", ranks=4, seed=0, labels=labels)):
        # 600 of its own from the sorted pool, and of the 400 of the shuffled pool about a quarter.
        assert (labels[part] == rank).sum() == pytest.approx(700, abs=50)
        assert len(part) == 1000


def test_a_smaller_dirichlet_number_makes_ranks_differ_more() -> None:
    labels = labels_of(10, 200)

    def unevenness(how: str) -> float:
        counts = [np.bincount(labels[part], minlength=10) for part in split(how, ranks=4, seed=0, labels=labels)]
        return float(np.std(counts, axis=0).mean())

    assert unevenness("dirichlet:0.1") > 2 * unevenness("dirichlet:10") > 4 * unevenness("dirichlet:10000")


@pytest.mark.parametrize("number", ["1e-300", "1e-9", "0.001"])
def test_even_the_smallest_dirichlet_numbers_leave_no_rank_empty(number: str) -> None:
    labels = np.zeros(50, dtype=np.int64)
    parts = split(f"dirichlet:{number}", ranks=8, seed=0, labels=labels)
    assert min(len(part) for part in parts) == 1
    assert sum(len(part) for part in parts) == 50


def test_whole_speakers_go_to_ranks_as_evenly_as_may_be() -> None:
    counts = {"a": 7, "b": 6, "c": 5, "d": 4, "e": 3, "f": 3}
    who = [name for name, count in counts.items() for _ in range(count)]
    parts = split("speaker", ranks=2, seed=0, labels=np.zeros(len(who), dtype=np.int64), speakers=who)
    mine, theirs = ({who[i] for i in part} for part in parts)
    assert not mine & theirs
    # Largest first to whoever has least: a d e against b c f.
    assert [len(part) for part in parts] == [14, 14]
    assert mine == {"a", "d", "e"}


def test_fewer_speakers_than_ranks_or_none_are_refused() -> None:
    labels = np.zeros(6, dtype=np.int64)
    with pytest.raises(ValueError, match=r"2 speakers do not go round 3 ranks\. Use at most 2"):
        split("speaker", ranks=3, seed=0, labels=labels, speakers=["a", "b"] * 3)
    with pytest.raises(ValueError, match="has no speakers"):
        split("speaker", ranks=2, seed=0, labels=labels)


def test_fewer_examples_than_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match="2 examples cannot be shared out over 3 ranks"):
        split("iid", ranks=3, seed=0, labels=np.zeros(2, dtype=np.int64))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("random", "there is no split 'random' here. There is: iid, similarity:50, dirichlet:0.5, speaker"),
        ("similarity", "similarity wants a number, got 'similarity'. Write similarity:50"),
        ("similarity:half", "wants a number"),
        ("similarity:101", "in percent, 0 to 100, got 'similarity:101'"),
        ("similarity:nan", "in percent, 0 to 100"),
        ("dirichlet:0", "a finite number above 0, got 'dirichlet:0'"),
        ("dirichlet:inf", "a finite number above 0"),
        ("iid:3", "iid takes no number, got 'iid:3'"),
    ],
)
def test_what_is_not_a_split_is_refused_in_words(how: str, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        check_split(how)


def test_a_task_may_allow_fewer_ways() -> None:
    check_split("speaker")
    with pytest.raises(ValueError, match=r"There is: iid, dirichlet:0\.5"):
        check_split("speaker", allowed=("iid", "dirichlet"))
