"""Which rank the others wait for: the rule, and how it is said."""

from __future__ import annotations

import pytest
import torch

from laconic import Waits
from laconic.integrations.waiting import Waiting
from laconic.lab.show import note_of
from laconic.lab.waits import slow_rank, told
from laconic.transports import Lockstep


def _waits(*seconds: float, of: float = 10.0) -> Waits:
    return Waits(seconds=seconds, of_seconds=of)


@pytest.mark.parametrize(
    ("seconds", "slowest", "waiting"),
    [
        ((2.0, 2.0, 0.1, 2.0), 2, (0, 1, 3)),
        ((0.0, 1.0), 0, (1,)),
        # Two slow ranks of four: one is named, and the other is not among those that wait for it.
        ((2.0, 0.1, 2.0, 0.0), 3, (0, 2)),
    ],
)
def test_the_one_that_waits_least_is_the_slowest_if_most_wait_for_it(seconds, slowest, waiting):
    assert (_waits(*seconds).slowest, _waits(*seconds).waiting) == (slowest, waiting)


@pytest.mark.parametrize(
    "waits",
    [
        _waits(0.0),
        _waits(0.0, 0.0, of=0.0),
        # The network: all wait alike.
        _waits(6.0, 6.0, 5.5, 6.0),
        # Less than a tenth of the time, or of a second.
        _waits(0.9, 0.9, 0.0),
        _waits(0.09, 0.09, 0.0, of=0.1),
        # One rank is fast: of three, no more than half wait for either of the others.
        _waits(0.0, 0.0, 3.0),
    ],
    ids=str,
)
def test_where_no_one_rank_is_slow_none_is_named(waits):
    assert waits.slowest is None
    assert waits.waiting == ()
    assert "for rank" not in str(waits)


def test_it_is_said_in_a_sentence():
    assert str(_waits(2.2, 2.2, 0.1, 2.2)) == "ranks 0, 1 and 3 waited 2.1 s of 10.0 s for rank 2"
    assert str(_waits(1.0, 1.2)) == "ranks waited 1.0 to 1.2 s of 10.0 s, for no one rank"
    assert str(_waits(*[3.0] * 20, 0.0)) == "20 ranks waited 3.0 s of 10.0 s for rank 20"
    assert str(_waits(0.0)) == "one rank alone waits for nobody"


def test_spans_add_up():
    assert _waits(1.0, 0.0) + _waits(2.0, 1.0, of=5.0) == _waits(3.0, 1.0, of=15.0)


def test_a_line_and_a_result_tell_of_a_slow_rank_and_of_no_other():
    slow, even = {"waits": told(_waits(2.0, 0.0))}, {"waits": told(_waits(2.0, 2.0))}
    assert slow_rank(slow) == "rank 0 waited 2.0 s of 10.0 s for rank 1"
    # Runs of before had no such thing, and one that was never evaluated has none.
    assert [slow_rank(said) for said in (even, {}, {"waits": None})] == [None] * 3
    line = {"loss": 1.5, "wire_bytes": 2e6, "dense_bytes": 8e6, "step_seconds": 0.01, "data_share": 0.002}
    assert note_of(line | slow, "").endswith("data 0.2%  slow: rank 1")
    assert note_of(line | even, "") == note_of(line, "")


def test_a_span_goes_from_call_to_call_without_what_was_paused():
    port, seconds = Lockstep(1, threaded=True).ports[0], [100.0]
    waiting = Waiting(port, torch.device("cpu"))
    waiting.begin(lambda: seconds[0])

    def goes_by(worked: float, waited: float) -> None:
        seconds[0] += worked + waited
        port.blocked_seconds += waited

    goes_by(3.0, 1.0)
    with waiting.paused():
        goes_by(7.0, 5.0)
    goes_by(1.0, 0.5)
    assert waiting.tell() == Waits(seconds=(1.5,), of_seconds=5.5)
    goes_by(2.0, 0.0)
    assert waiting.tell() == waiting.told == Waits(seconds=(0.0,), of_seconds=2.0)
