"""Stats: plain numbers that cannot be changed afterwards."""

from __future__ import annotations

import dataclasses
import math

import pytest

from laconic.stats import Counters, Stats

EMPTY = Stats(
    steps=0,
    skipped_steps=0,
    wire_bytes=0,
    dense_bytes=0,
    collectives=0,
    density=0.0,
    owed_norm=0.0,
    select_seconds=0.0,
    wait_seconds=0.0,
)


def test_the_ratio_is_dense_bytes_over_wire_bytes():
    assert dataclasses.replace(EMPTY, wire_bytes=30, dense_bytes=300).ratio == 10.0
    assert dataclasses.replace(EMPTY, wire_bytes=300, dense_bytes=30).ratio == 0.1


def test_the_ratio_is_infinite_while_nothing_was_sent():
    assert EMPTY.ratio == math.inf
    assert dataclasses.replace(EMPTY, dense_bytes=300).ratio == math.inf


def test_stats_do_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        EMPTY.wire_bytes = 1


def test_everything_that_is_counted_is_told():
    assert {f.name for f in dataclasses.fields(Counters)} <= {f.name for f in dataclasses.fields(Stats)}


def test_history_is_not_printed():
    assert "history" not in repr(EMPTY)
