"""Workers that come and go without a restart, over torchft: real processes, a real lighthouse, real deaths."""

from __future__ import annotations

import os
import signal
from functools import partial
from importlib.util import find_spec

import pytest
import torch

import laconic
from laconic.errors import ExchangeError
from laconic.integrations.kinds import is_another
from process_group.crowd import EVERY, METHOD, TABLE, VOTE, Crowd

pytestmark = pytest.mark.skipif(find_spec("torchft") is None, reason="torchft has no wheel for this Python")


def _die_within_a_round(quorum, step):
    if step == EVERY + 2:
        os.kill(os.getpid(), signal.SIGKILL)


def _die_at(label, quorum, step):
    """Die where others wait for what is sent under a label."""
    if step == 2 * EVERY - 1:
        start = quorum.link.transport.start

        def start_or_die(steps, *, label, before=label):
            if label.startswith(before):
                os.kill(os.getpid(), signal.SIGKILL)
            return start(steps, label=label)

        quorum.link.transport.start = start_or_die


def _miss_a_vote(quorum, step):
    """Be deaf to one vote, after this worker has given its own."""
    if step == 2 * EVERY - 1:
        meeting = quorum.link.rounds.meeting
        hold = meeting.table

        def hold_and_lose(numbers, what=TABLE):
            table = hold(numbers, what)
            if what == VOTE:
                raise ExchangeError("the line was cut")
            return table

        meeting.table = hold_and_lose


@pytest.fixture
def crowd():
    crowd = Crowd()
    yield crowd
    crowd.close()


def _tensor(told, what):
    return torch.tensor(told[what], dtype=torch.float64)


def _walk(told):
    """What a worker has walked, from where it began: the agreed model minus a share of what it owes."""
    return _tensor(told, "from") - told["share"] * _tensor(told, "owed") - _tensor(told, "to")


def _check_that_nothing_is_lost(told, came=()):
    """What workers owe more is what they walked, less what the model has got of it.

    The mean is over those who worked; ``came``: who did not, and owes nothing yet.
    """
    workers = len(told) + len(came)
    assert {t["workers"] for t in [*told, *came]} == {workers}
    assert len({repr(t["agreed"]) for t in [*told, *came]}) == 1
    walked = sum(_walk(t) for t in told) * workers / len(told)
    got = _tensor(told[0], "from") - _tensor(told[0], "agreed")
    owed = sum(_tensor(t, "owed now") for t in [*told, *came]) - sum(_tensor(t, "owed") for t in told)
    assert walked.norm() > 1e-3
    assert min(_tensor(t, "owed now").norm() for t in told) > 1e-3
    torch.testing.assert_close(owed, walked - workers * got, rtol=0, atol=1e-5)


def _joined_by(crowd, name, *others):
    """Let the others go on until one more is there; return what all tell of that meeting."""
    told = crowd.go_on(*others)
    while told[0]["workers"] == len(others):
        _check_that_nothing_is_lost(told)
        told = crowd.go_on(*others)
    came = crowd.hear(name)
    _check_that_nothing_is_lost(told, [came])
    return came


DEATHS = {
    "within a round": _die_within_a_round,
    "before the table": partial(_die_at, TABLE),
    "in the exchange": partial(_die_at, METHOD.exchange.name),
    "at the vote": partial(_die_at, VOTE),
}


def test_workers_die_and_come_back_and_the_others_go_on(crowd):
    crowd.add("a-0")
    crowd.add("b-1")
    first = [crowd.hear("a-0"), crowd.hear("b-1")]
    assert first[0]["agreed"] == first[1]["agreed"]
    begun = [crowd.hear("a-0"), crowd.hear("b-1")]
    _check_that_nothing_is_lost(begun)
    for number, trouble in enumerate(DEATHS.values()):
        # Its name decides its rank: the first, between them, the last.
        name = f"{['0', 'a-1', 'z', 'a-1'][number]}-{number + 2}"
        crowd.add(name, trouble)
        _joined_by(crowd, name, "a-0", "b-1")
        _check_that_nothing_is_lost([*crowd.go_on("a-0", "b-1"), crowd.hear(name)])
        crowd.workers[name][0].send(True)
        last = crowd.go_on("a-0", "b-1")
        _check_that_nothing_is_lost(last)
        assert crowd.hear(name) is None
    crowd.add("c-2")
    came = _joined_by(crowd, "c-2", "a-0", "b-1")
    told = [*crowd.go_on("a-0", "b-1"), crowd.hear("c-2")]
    assert {t["round"] for t in told} == {came["round"] + 1}
    ended = crowd.go_on("a-0", "b-1", "c-2", goes_on=False)
    assert ended[0]["model"] == told[0]["agreed"]
    assert told[0]["loss"] < 0.3 * begun[0]["loss"]


def test_one_who_did_not_hear_the_vote_keeps_the_round_that_another_kept(crowd):
    """Its walk went into the model once: not lost, not sent again."""
    crowd.add("a-0")
    crowd.add("b-1", _miss_a_vote)
    first = [crowd.hear("a-0"), crowd.hear("b-1")]
    assert first[0]["agreed"] == first[1]["agreed"]
    _check_that_nothing_is_lost([crowd.hear("a-0"), crowd.hear("b-1")])
    crowd.workers["b-1"][0].send(True)
    (kept,) = crowd.go_on("a-0")
    # Only the next meeting, to which the first comes with one more round, tells the second that it was kept.
    (then,) = crowd.go_on("a-0")
    deaf = crowd.hear("b-1")
    assert deaf["agreed"] == then["agreed"]
    assert deaf["round"] == then["round"] == kept["round"] + 1
    # What it told of its walk is of the round in doubt; in the one after that it stood still.
    walked = _walk(kept) + _walk(deaf) + 2 * _walk(then)
    got = _tensor(kept, "from") - _tensor(then, "agreed")
    owed = sum(_tensor(t, "owed now") for t in (then, deaf)) - sum(_tensor(t, "owed") for t in (kept, deaf))
    torch.testing.assert_close(owed, walked - 2 * got, rtol=0, atol=1e-5)
    _check_that_nothing_is_lost(crowd.go_on("a-0", "b-1"))


def test_one_with_another_method_is_refused_and_the_others_go_on(crowd):
    crowd.add("a-0")
    crowd.add("b-1")
    begun = [crowd.hear(name) for name in ("a-0", "b-1", "a-0", "b-1")]
    crowd.add("0-2", method=laconic.local_sgd(EVERY))
    while not crowd.workers["0-2"][0].poll():
        told = crowd.go_on("a-0", "b-1")
        _check_that_nothing_is_lost(told)
    refused = crowd.workers["0-2"][0].recv()
    assert refused["error"] == "GroupError"
    assert "runs Method(name='local_sgd'" in refused["message"]
    _check_that_nothing_is_lost(crowd.go_on("a-0", "b-1"))
    assert begun[0]["workers"] == told[0]["workers"] == 2


def _asked(group, kinds, ranks):
    method = [METHOD, laconic.local_sgd(EVERY)][kinds[group.rank()]]
    return is_another(torch.nn.Linear(3, 2), method, group, ranks[group.rank()])


@pytest.mark.parametrize(
    ("kinds", "ranks", "out"),
    [
        ((0, 0, 1), (-1, -1, -1), [False, False, True]),
        ((1, 0, 0), (-1, -1, -1), [True, False, False]),
        # Those who were here before, however few.
        ((0, 1, 1), (0, -1, -1), [False, True, True]),
        ((0, 0, 0), (0, -1, -1), [False, False, False]),
    ],
)
def test_where_workers_disagree_those_who_came_with_another_method_are_out(pool, kinds, ranks, out):
    """At a first meeting one with another method put an end to all, and a stranger to those who came with it."""
    assert pool.run(3, _asked, kinds, ranks) == out


def test_a_worker_waits_for_others_at_a_lighthouse_that_would_do_with_fewer(crowd):
    """It met itself, twenty times within a moment, and gave up."""
    crowd.light(0, least=1)
    crowd.add("a-0")
    assert not crowd.workers["a-0"][0].poll(3)
    crowd.add("b-1")
    first = [crowd.hear("a-0"), crowd.hear("b-1")]
    assert [told["workers"] for told in first] == [2, 2]
    _check_that_nothing_is_lost([crowd.hear("a-0"), crowd.hear("b-1")])


def test_one_that_stood_still_for_long_loses_its_round_and_no_more(crowd):
    for name in ("a-0", "b-1"):
        crowd.add(name)
    crowd.hear("a-0"), crowd.hear("b-1"), crowd.hear("a-0"), crowd.hear("b-1")
    crowd.add("c-2")
    _joined_by(crowd, "c-2", "a-0", "b-1")
    before = [*crowd.go_on("a-0", "b-1"), crowd.hear("c-2")][2]
    process = crowd.workers["c-2"][1]
    os.kill(process.pid, signal.SIGSTOP)
    crowd.workers["c-2"][0].send(True)
    told = crowd.go_on("a-0", "b-1")
    _check_that_nothing_is_lost(told)
    os.kill(process.pid, signal.SIGCONT)
    told = crowd.go_on("a-0", "b-1")
    while told[0]["workers"] == 2:
        told = crowd.go_on("a-0", "b-1")
    late = crowd.hear("c-2")
    # It stood still at this meeting: it owes what it owed, less what it has sent of that.
    got = 3 * (_tensor(told[0], "from") - _tensor(told[0], "agreed"))
    walked = sum(_walk(t) for t in told) * 3 / 2
    owed = sum(_tensor(t, "owed now") for t in [*told, late]) - sum(_tensor(t, "owed") for t in told)
    torch.testing.assert_close(owed - _tensor(before, "owed now"), walked - got, rtol=0, atol=1e-5)


def test_a_lighthouse_may_be_started_anew(crowd):
    for name in ("a-0", "b-1"):
        crowd.add(name)
    crowd.hear("a-0"), crowd.hear("b-1"), crowd.hear("a-0"), crowd.hear("b-1")
    for name in ("a-0", "b-1"):
        crowd.workers[name][0].send(True)
    crowd.light(crowd.address.rsplit(":", 1)[1])
    _check_that_nothing_is_lost([crowd.hear("a-0"), crowd.hear("b-1")])
