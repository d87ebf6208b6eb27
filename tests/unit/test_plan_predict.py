"""The pipeline by hand, its laws, and what follows from it: advice."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

import laconic
from laconic.lab.method_words import make
from laconic.plan import Facts, Job, Link, Rehearsed, advise, predict
from laconic.plan.advise import REACHED, is_known, pays_below, reached
from laconic.plan.facts import Cost, Host
from laconic.sim.network import HEADERS
from unit.plan_cases import FREE, IDLE, PROFILE, asked, facts, local, plain, rehearsal, sparse

# 100 bytes a second, without headers or a host's own part.
SLOW = Link(workers=2, bandwidth=8e-4, measured=True)
FAST = Link(workers=2)
RATES = st.floats(min_value=1e-4, max_value=1e5)
SIZES = st.lists(st.floats(min_value=0.0, max_value=1e6), min_size=2, max_size=2)


def _seconds(method: Rehearsed, link: Link, host: Host = IDLE) -> float:
    return predict(facts(host=host), method, link).seconds


def _one(*jobs: Job, **more) -> Rehearsed:
    return Rehearsed(name="one", setting="", rehearsals=(rehearsal(*jobs, **more),))


@given(SIZES, RATES, st.floats(min_value=1.0, max_value=100.0), st.integers(2, 64))
def test_more_bandwidth_is_never_slower(sizes, rate, factor, workers):
    jobs = [
        Job(bucket=i, rounds=(asked(size, after=0.1), asked(size / 2, kind="sum"))) for i, size in enumerate(sizes)
    ]
    link = Link(workers=workers, bandwidth=rate)
    for method in (_one(*jobs), plain(), sparse(), local()):
        assert _seconds(method, replace(link, bandwidth=factor * rate)) <= _seconds(method, link) * (1 + 1e-12)


@given(SIZES, RATES, st.floats(min_value=0.0, max_value=100.0))
def test_more_bytes_are_never_faster(sizes, rate, more):
    link = Link(workers=4, bandwidth=rate)
    few, many = (
        _one(*(Job(bucket=i, rounds=(asked(size + grown),)) for i, size in enumerate(sizes)))
        for grown in (0.0, more)
    )
    assert _seconds(few, link) <= _seconds(many, link) + 1e-9


@given(RATES)
def test_what_sends_nothing_takes_what_computing_takes(rate):
    computing = PROFILE.forward + PROFILE.backward + PROFILE.optimizer
    assert _seconds(_one(), Link(workers=2, bandwidth=rate)) == pytest.approx(computing)


def test_the_line_carries_one_after_the_other_while_backward_goes_on():
    # Put at 2 and at 4; 3 s on the line each: done at 5 and 8; 1 s of backward is left, and the optimizer.
    jobs = [Job(bucket=i, rounds=(asked(300.0),)) for i in range(2)]
    assert _seconds(_one(*jobs), SLOW) == pytest.approx(8.0 + 1.0 + 0.5)


def test_selecting_delays_backward_and_decoding_waits_for_the_reply():
    # Ready at 1 + 1 + 0.5 = 2.5, done at 3.5; at 2.5 + 2 + 0.5 = 5, done at 6, 0.25 s each to add up.
    jobs = [Job(bucket=i, rounds=(asked(100.0, after=0.25),)) for i in range(2)]
    assert _seconds(_one(*jobs, selecting=(0.5, 0.5)), SLOW) == pytest.approx(6.25 + 1.0 + 0.5)


def test_what_waits_for_the_last_bucket_begins_behind_it():
    # Backward is at 4 when the last bucket is full, 0.5 s of closing, 2 s on the line.
    assert _seconds(_one(Job(bucket=2, rounds=(asked(200.0),)), closing=0.5), SLOW) == pytest.approx(6.5 + 1.5)


def test_further_rounds_queue_behind_what_is_under_way():
    # First rounds: 2-3 and 4-5. The first one's second round is put at 4 behind the other: 5-6.
    jobs = [Job(bucket=0, rounds=(asked(100.0), asked(100.0))), Job(bucket=1, rounds=(asked(100.0),))]
    assert _seconds(_one(*jobs), SLOW) == pytest.approx(6.0 + 1.5)


def test_a_job_behind_another_begins_when_that_ends():
    jobs = [Job(bucket=1, rounds=(asked(100.0),)), Job(bucket=2, rounds=(asked(100.0),), behind=0)]
    assert _seconds(_one(*jobs), SLOW) == pytest.approx(6.0 + 1.5)


def test_where_no_core_is_free_talking_delays_backward():
    # A second a byte of a host: bucket 0 of 100 bytes costs 1 s, in which backward does not go on.
    cost = Cost(latency=0.0, per_byte=0.01)
    jobs = [Job(bucket=i, rounds=(asked(100.0),)) for i in range(2)]
    idle, busy = (Host(gather=cost, sum=cost, half=FREE, busy=busy) for busy in (False, True))
    assert _seconds(_one(*jobs), FAST, idle) == pytest.approx(5.0 + 1.5)
    assert _seconds(_one(*jobs), FAST, busy) == pytest.approx(6.0 + 1.5)


def test_the_slower_of_link_and_host_counts_and_both_latencies():
    # The link takes 0.01 s a byte, and 2 s a round; the host 1 s a round and less or more a byte.
    link = Link(workers=2, bandwidth=8e-4 * (1 + HEADERS), latency=2e3)
    for per_byte, expected in ((0.004, 1.0), (0.03, 3.0)):
        cost = Cost(latency=1.0, per_byte=per_byte)
        host = Host(gather=cost, sum=FREE, half=FREE, busy=False)
        one = _one(Job(bucket=1, rounds=(asked(100.0),)))
        assert _seconds(one, link, host) == pytest.approx(4.0 + 3.0 + expected + 1.5)
        assert _seconds(one, SLOW, host) == pytest.approx(4.0 + 1.0 + 1.5)


def test_a_local_method_shares_its_exchange_out_over_its_steps():
    # 0.2 closing, 0.8 s and 0.1, 16 s (2 rounds of half of 1600 bytes) and 0.3: over 4 steps.
    expected = 5.0 + 0.01 + (0.2 + 0.8 + 0.1 + 16.0 + 0.3) / 4
    told = predict(facts(), local(), SLOW)
    assert told.seconds == pytest.approx(expected)
    assert told.link_bytes == pytest.approx((80 + 1600) / 4)
    assert told.communicating == pytest.approx(1 - 5.0 / expected)


def test_headers_are_on_a_given_link_and_in_a_measured_one():
    given_link = replace(SLOW, measured=False)
    job = Job(bucket=1, rounds=(asked(1448.0),))
    assert _seconds(_one(job), SLOW) == pytest.approx(4.0 + 14.48 + 1.5)
    assert _seconds(_one(job), given_link) == pytest.approx(4.0 + 15.14 + 1.5)


def test_between_numbers_of_ranks_seconds_are_linear_and_sizes_powers():
    low = rehearsal(Job(bucket=0, rounds=(asked(100.0, after=1.0),)), ranks=2, selecting=(0.0, 1.0))
    high = rehearsal(Job(bucket=0, rounds=(asked(50.0, after=3.0),)), ranks=4, selecting=(0.0, 1.0))
    method = Rehearsed(name="m", setting="", rehearsals=(high, low))
    assert method.among(3).jobs[0].rounds[0].after == pytest.approx(2.0)
    eight = method.among(8)
    assert eight.jobs[0].rounds[0].size == pytest.approx(25.0)
    assert eight.jobs[0].rounds[0].after == pytest.approx(7.0)
    assert eight.selecting == pytest.approx((0.0, 1.0))


def test_rehearsals_of_unlike_shape_stand_for_their_own_side():
    low = rehearsal(Job(bucket=0, rounds=(asked(100.0),)), ranks=2)
    high = rehearsal(Job(bucket=0, rounds=(asked(100.0), asked(5.0))), ranks=4)
    method = Rehearsed(name="m", setting="", rehearsals=(low, high))
    assert method.among(3) is low
    assert method.among(100) is high


def test_a_method_by_nodes_is_predicted_for_the_nodes_there_are():
    # Four nodes of four ranks: what was rehearsed among four nodes, 100 s behind the reply; 1 s with two nodes.
    worlds = [
        rehearsal(Job(bucket=1, rounds=(asked(100.0, after=after, among="leaders"),)), ranks=nodes)
        for nodes, after in ((2, 1.0), (4, 100.0))
    ]
    method = Rehearsed(name="by nodes", setting="", rehearsals=tuple(worlds), node_size=2)
    four, two = replace(SLOW, workers=16, node_size=4), replace(SLOW, workers=8, node_size=4)
    assert _seconds(method, four) == pytest.approx(4.0 + 3.0 + 100.0 + 1.5)
    assert _seconds(method, two) == pytest.approx(4.0 + 1.0 + 1.0 + 1.5)


def test_only_leaders_talk_between_nodes():
    link = replace(SLOW, workers=8, node_size=4)
    inside = _one(Job(bucket=1, rounds=(asked(100.0, kind="sum", among="node"),)))
    between = _one(Job(bucket=1, rounds=(asked(100.0, among="leaders"),)))
    assert predict(facts(), inside, link).seconds == pytest.approx(4.0 + 1.5)
    assert predict(facts(), inside, link).link_bytes == 0
    assert predict(facts(), between, link).seconds == pytest.approx(4.0 + 1.0 + 1.5)
    assert predict(facts(), between, link).link_bytes == 100.0


def test_facts_survive_json():
    told = facts(sparse(), local())
    assert Facts.from_dict(json.loads(json.dumps(told.as_dict()))) == told


def test_do_not_on_a_link_without_limits():
    advice = advise(facts(sparse(), local()), FAST)
    assert advice.method == "ddp"
    assert advice.text.startswith("Don't")
    assert "begins to pay below" in advice.text
    assert 0 < advice.pays_below < inf


def test_the_quickest_known_method_on_a_slow_link():
    advice = advise(facts(sparse(), sparse("terngrad", selecting=0.05)), SLOW)
    assert advice.predictions[0].name == "terngrad"
    assert advice.method == "topk"
    assert [p.seconds for p in advice.predictions] == sorted(p.seconds for p in advice.predictions)


def test_half_is_enough_where_nothing_is_much_faster():
    slow = sparse(size=4.0, selecting=3.0)
    link = Link(workers=2, bandwidth=8e-6 * 300)
    assert advise(facts(slow), link).method == "ddp-fp16"


def test_the_bandwidth_at_which_it_pays_is_where_the_gain_is_a_tenth():
    told = facts(sparse())
    below = pays_below(told, FAST)
    gains = []
    for factor in (0.98, 1.02):
        seconds = [predict(told, m, Link(workers=2, bandwidth=factor * below)).seconds for m in told.methods]
        gains.append(seconds[0] / min(seconds))
    assert gains[0] > 1.1 > gains[1]


def test_a_method_that_only_selects_never_pays():
    told = facts(sparse(size=400.0 * 4, selecting=9.0))
    without_half = replace(told, methods=tuple(m for m in told.methods if m.name != "ddp-fp16"))
    assert pays_below(without_half, FAST) == 0.0


def test_what_may_be_advised_tells_what_it_came_to_and_at_which_settings():
    measured = replace(sparse("sdagc"), setting=repr(laconic.sdagc()))
    assert "+5.1% with SGD" in advise(facts(measured), SLOW).reached
    other = replace(sparse("sdagc:c=3"), setting=repr(laconic.sdagc(3.0)))
    assert "not measured against dense at these settings. sdagc: +5.1%" in advise(facts(other), SLOW).reached
    assert advise(facts(measured), FAST).reached == ""


@pytest.mark.parametrize("word", REACHED)
def test_every_word_of_what_was_reached_is_a_method(word):
    method = replace(sparse(word), setting=repr(make(word)))
    assert is_known(word)
    assert REACHED[word] in reached(method)
    assert "not measured" not in reached(method)


@pytest.mark.parametrize("word", ["local_sgd", "qsgd", "qsgd:levels=7", "local_sgd by nodes"])
def test_what_lost_is_not_advised(word):
    assert not is_known(word)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [({"workers": 1}, "--workers 2"), ({"bandwidth": 0.0}, "bandwidth"), ({"latency": -1.0}, "--latency 0.1")],
)
def test_links_that_are_none_are_refused(wrong, says):
    with pytest.raises(ValueError, match=says):
        Link(**({"workers": 2} | wrong))


def test_nodes_must_divide_the_workers():
    with pytest.raises(ValueError, match="divides"):
        Link(workers=6, node_size=4)
