"""What shards owe at the end of rounds, settled by all that hold a replica or by none."""

from __future__ import annotations

import pytest

import laconic
from process_group.shards import equal, mesh_of, of_this_rank, sharded, train, whole


def _settled(group, method, values):
    model, optimizer, link = sharded(method)
    train(model, optimizer, range(7), of_this_rank)
    link.finish()
    owed = link.stats.owed_norm
    link.finish(settle=values)
    left = link.stats.owed_norm
    link.detach()
    return owed, left, whole(model)


@pytest.mark.parametrize("values", ["sign", "exact"])
@pytest.mark.parametrize("method", [laconic.spartan(4, density=0.1), laconic.celgc(1, send=laconic.topk(0.01))])
def test_what_shards_owe_at_the_end_is_sent_and_replicas_stay_equal(pool, method, values):
    ranks = pool.run(4, _settled, method, values)
    for owed, left, model in ranks:
        assert left < owed
        assert left == 0 or values == "sign"
        assert equal(model, ranks[0][2])


def _owes_here_alone(group):
    model, optimizer, link = sharded(laconic.celgc(1, send=laconic.topk(0.01, whole_below=10**9)))
    train(model, optimizer, range(2), of_this_rank)
    link.finish()
    state = link.state_dict()
    if mesh_of().get_local_rank("shard") == 1:
        for owed in state["memory"]["owed"].values():
            owed.fill_(0.5)
    link.load_state_dict(state)
    owed = link.stats.owed_norm
    link.finish(settle="exact")
    return owed > 0, link.stats.owed_norm


def test_a_shard_without_debts_takes_part_in_the_settling_of_another(pool):
    assert pool.run(4, _owes_here_alone) == [(False, 0.0), (True, 0.0)] * 2


def _unlike_settling(group):
    model, optimizer, link = sharded(laconic.spartan(4, density=0.1))
    train(model, optimizer, range(7), of_this_rank)
    with pytest.raises(laconic.GroupError, match=r"shards of a replica settle .* unlike ways.*same settle="):
        link.finish(settle="sign" if mesh_of().get_local_rank("shard") == 0 else None)
    return True


def test_shards_that_settle_in_unlike_ways_are_told_so(pool):
    """The one that settled waited for the other for ever."""
    assert pool.run(4, _unlike_settling) == [True] * 4
