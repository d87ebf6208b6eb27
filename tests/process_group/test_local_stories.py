"""What went wrong with local steps over process groups once: each exam begins with what happened."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn

import laconic
from laconic.errors import GroupError, LaconicError
from models import Mlp, attach, build, digest, inner, loss, train, weights, wrap

KINDS = pytest.mark.parametrize("kind", ["ddp", "plain"])


def _reattached(group, kind, steps):
    model, optimizer, link = build(group, kind, laconic.celgc(8, clip=1.0))
    train(model, optimizer, group, range(steps))
    link.detach()
    apart = digest(weights(model))
    link = attach(model, optimizer, laconic.celgc(4, clip=1.0), group)
    begun = digest(weights(model))
    train(model, optimizer, group, range(6))
    link.finish()
    return apart, begun, digest(weights(model))


@KINDS
def test_attached_anew_after_a_detach_within_a_round(pool, kind):
    # DDP had made models equal long before: each rank took its own for the anchor, and they never met again.
    (apart, begun, end), (others_apart, others_begun, others_end) = pool.run(2, _reattached, kind, 3)
    assert apart != others_apart
    assert begun == others_begun == apart
    assert end == others_end


def _after_detach(group, kind):
    model, optimizer, link = build(group, kind, laconic.spartan(4, density=0.05))
    with link:
        train(model, optimizer, group, range(4))
    train(model, optimizer, group, range(2))
    trained = digest(weights(model))
    with pytest.raises(LaconicError, match=r"link\.finish\(\) was called after detach\(\)"):
        link.finish()
    with pytest.raises(LaconicError, match=r"link\.averaged\(\) was called after detach\(\)"), link.averaged():
        pass
    return digest(weights(model)) == trained


@KINDS
def test_finish_and_averaged_after_detach_are_refused(pool, kind):
    # They brought back the model of the last sync, and all steps since were lost without a word.
    assert pool.run(2, _after_detach, kind) == [True, True]


def _unlike_rates(group, kind, method):
    model, optimizer, _ = build(group, kind, method)
    optimizer.param_groups[0]["lr"] = 0.05 * (1 + dist.get_rank(group))
    with pytest.raises(GroupError, match=r"unlike learning rates.*Use the same on all ranks"):
        train(model, optimizer, group, range(1))
    return True


@KINDS
@pytest.mark.parametrize("method", [laconic.parallel_clip(), laconic.post_local(2, start=3)], ids=lambda m: m.name)
def test_unlike_learning_rates_in_the_start_phase_are_told_to_all(pool, kind, method):
    # The same mean at unlike rates led to unlike models.
    assert pool.run(3, _unlike_rates, kind, method) == [True] * 3


def _scaled(group, kind, method, scales, steps):
    """Train with a loss scale of this rank's own, a power of two; return the models seen."""
    scaler = torch.amp.GradScaler("cpu", init_scale=scales[dist.get_rank(group)], growth_interval=2)
    torch.manual_seed(1)
    model = wrap(Mlp(), group) if kind == "ddp" else Mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    link = attach(model, optimizer, method, group, scaler=scaler)
    seen = []
    for step in range(steps):
        scaler.scale(loss(model, dist.get_rank(group), step)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        seen.append(digest(weights(model)))
    link.finish()
    return seen, digest(weights(model)), scaler.get_scale()


@KINDS
@pytest.mark.parametrize(
    "method", [laconic.parallel_clip(0.5), laconic.post_local(2, start=4)], ids=lambda m: m.name
)
def test_unlike_loss_scales_in_the_start_phase_do_not_show(pool, kind, method):
    # Gradients were added up as they were scaled: after a finish at unlike batches scales differ, and the rank with
    # the larger one had the larger say.
    alike = pool.run(2, _scaled, kind, method, (8.0, 8.0), 6)
    apart = pool.run(2, _scaled, kind, method, (8.0, 64.0), 6)
    assert [a[:2] for a in apart] == [a[:2] for a in alike]
    assert apart[0][0][:4] == apart[1][0][:4]
    assert apart[0][1] == apart[1][1]
    # Each goes on with its own.
    assert apart[0][2] < apart[1][2]


def _normalised(group, kind, method, counts):
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
    model = wrap(net, group) if kind == "ddp" else net
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    link = attach(model, optimizer, method, group)
    train(model, optimizer, group, range(counts[dist.get_rank(group)]))
    link.finish()
    norm = inner(model)[1]
    return digest(weights(model)), digest([norm.running_mean, norm.running_var])


@KINDS
@pytest.mark.parametrize("counts", [(4, 4), (1, 3), (1, 7)], ids=["even", "uneven", "past the start"])
@pytest.mark.parametrize("method", [laconic.parallel_clip(), laconic.post_local(2, start=5)], ids=lambda m: m.name)
def test_buffers_are_equal_after_a_finish_in_the_start_phase(pool, kind, method, counts):
    # Only the end of a round saw to them; and then a rank that ended saw to them while others were at a sync.
    a, b = pool.run(2, _normalised, kind, method, counts)
    assert a == b


def _looks(group, kind, attempts):
    model, optimizer, link = build(group, kind, laconic.celgc(4))
    train(model, optimizer, group, range(attempts[dist.get_rank(group)]))
    mine = weights(model)
    with link.averaged():
        mean = weights(model)
    return mine, mean


@KINDS
def test_a_look_when_ranks_are_a_given_up_step_apart(pool, kind):
    # One was at its anchor and said nothing; the other waited for ever.
    (mine, mean), (others, same) = pool.run(2, _looks, kind, (5, 4))
    assert digest(mean) == digest(same)
    for a, b, m in zip(mine, others, mean, strict=True):
        torch.testing.assert_close(m, (a + b) / 2)


def _looks_at_a_sync(group, kind):
    with pytest.raises(GroupError, match=r"ranks \[1\] are in link\.averaged\(\) and the others at a sync"):
        _looks(group, kind, (4, 3))
    return True


@KINDS
def test_a_look_when_others_are_at_a_sync_is_refused_on_all(pool, kind):
    # Tables of unlike sizes met, and gloo ended the process.
    assert pool.run(2, _looks_at_a_sync, kind) == [True, True]


def _loads_in_flight(group, kind, send):
    model, optimizer, link = build(group, kind, laconic.diloco(4, delay=1, send=send))
    train(model, optimizer, group, range(2))
    saved = copy.deepcopy([link.state_dict(), inner(model).state_dict(), optimizer.state_dict()])
    straight = train(model, optimizer, group, range(2, 12))
    # Elsewhere; after the third step of a round an exchange is under way.
    train(model, optimizer, group, range(20, 23))
    assert link.reducer.open
    inner(model).load_state_dict(saved[1])
    optimizer.load_state_dict(saved[2])
    link.load_state_dict(saved[0])
    again = train(model, optimizer, group, range(2, 12))
    return straight, again, link.stats.syncs


@KINDS
@pytest.mark.parametrize("send", [None, laconic.topk(0.05, whole_below=0)], ids=["whole", "topk"])
def test_a_state_that_is_loaded_while_an_exchange_is_under_way(pool, kind, send):
    # The end of the old exchange was written over what had been loaded.
    for straight, again, syncs in pool.run(2, _loads_in_flight, kind, send):
        assert again == straight
        assert syncs == 3


def _rounds_into_none(group, kind):
    model, optimizer, link = build(group, kind, laconic.celgc(4, send=laconic.topk(0.1)))
    train(model, optimizer, group, range(4))
    state = link.state_dict()
    link.detach()
    link = attach(model, optimizer, laconic.topk(0.1), group)
    with pytest.raises(ValueError, match=r"rounds of local steps, and this method has none"):
        link.load_state_dict(state)
    return link.stats.steps


@KINDS
def test_a_state_with_rounds_is_refused_by_a_method_without(pool, kind):
    # It was taken: drifts that ranks owed were sent as gradients.
    assert pool.run(2, _rounds_into_none, kind) == [0, 0]


def _two_optimizers(group):
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(16, 8), nn.Linear(8, 4))
    model = wrap(net, group)
    ours = torch.optim.SGD(net[0].parameters(), lr=0.05)
    other = torch.optim.SGD(net[1].parameters(), lr=0.05)
    with pytest.warns(UserWarning, match="2 trainable parameters"):
        attach(model, ours, laconic.episode(4, clip=1.0), group)
    seen = []
    for step in range(2):
        before = weights(model)
        loss(model, dist.get_rank(group), step).backward()
        ours.step()
        other.step()
        model.zero_grad()
        seen.append([not torch.equal(a, b) for a, b in zip(before, weights(model), strict=True)])
    return seen


def test_a_batch_that_only_measures_moves_no_other_optimizers_parameters(pool):
    # Gradients of the attached optimizer were taken away, and another one stepped along those of its own.
    assert pool.run(2, _two_optimizers) == [[[False] * 4, [True] * 4]] * 2
