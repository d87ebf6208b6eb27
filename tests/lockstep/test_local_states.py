"""What a sync does with the inner optimizer's state and with a module's buffers."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref

import pytest
import torch
from torch import nn

import laconic
from lockstep.locals import Point, Rank, close, draw, drawn, run, sgd

RANKS, EVERY = 3, 2


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.05)


def _kept(rank: Rank, kind: str) -> torch.Tensor:
    return torch.cat([rank.optimizer.state[p][kind].flatten().clone() for p in rank.parameters.values()])


def _obvious(make, what: str, steps: int):
    """Local steps and means of models, with an optimizer a rank."""
    x = [nn.Parameter(torch.zeros(8, dtype=torch.float64)) for _ in range(RANKS)]
    optimizers = [make([p]) for p in x]
    for step in range(steps):
        for rank in range(RANKS):
            x[rank].grad = draw(rank, step)
            optimizers[rank].step()
        if (step + 1) % EVERY:
            continue
        mean = sum(p.detach() for p in x) / RANKS
        for p in x:
            p.data.copy_(mean)
        if what == "reset":
            for optimizer in optimizers:
                optimizer.state.clear()
        elif what == "average":
            for kind in ("momentum_buffer", "exp_avg", "exp_avg_sq"):
                states = [o.state[p] for o, p in zip(optimizers, x, strict=True)]
                if kind in states[0]:
                    average = sum(s[kind] for s in states) / RANKS
                    for s in states:
                        s[kind] = average.clone()
    return x[0].detach()


@pytest.mark.parametrize("make", [sgd(0.1, momentum=0.9), adam], ids=["sgd", "adam"])
@pytest.mark.parametrize("what", ["keep", "average", "reset"])
def test_the_inner_state_by_the_obvious_loop(what, make):
    ours = run(laconic.celgc(EVERY, optimizer_state=what), RANKS, lambda r: drawn(r, range(8)), make=make)
    close(ours[0][-1], _obvious(make, what, 8))


def test_the_three_are_unlike():
    ends = [_obvious(sgd(0.1, momentum=0.9), what, 7) for what in ("keep", "average", "reset")]
    assert not torch.allclose(ends[0], ends[1])
    assert not torch.allclose(ends[0], ends[2])


@pytest.mark.parametrize(
    ("make", "kinds"), [(sgd(0.1, momentum=0.9), ["momentum_buffer"]), (adam, ["exp_avg", "exp_avg_sq"])]
)
def test_states_are_equal_after_averaging_and_gone_after_a_reset(make, kinds):
    def averaged(rank: Rank):
        drawn(rank, range(EVERY))
        return [_kept(rank, kind) for kind in kinds]

    ends = run(laconic.celgc(EVERY, optimizer_state="average"), RANKS, averaged, make=make)
    kept = run(laconic.celgc(EVERY, optimizer_state="keep"), RANKS, averaged, make=make)
    for i in range(len(kinds)):
        assert all(torch.equal(end[i], ends[0][i]) for end in ends)
        assert not torch.equal(kept[0][i], kept[1][i])
        close(ends[0][i], sum(end[i] for end in kept) / RANKS)

    def reset(rank: Rank):
        drawn(rank, range(EVERY))
        return len(rank.optimizer.state)

    assert run(laconic.celgc(EVERY, optimizer_state="reset"), RANKS, reset, make=make) == [0] * RANKS


def test_a_rank_that_skipped_every_step_has_no_state_to_average():
    def job(rank: Rank):
        for step in range(EVERY):
            rank.follow(float("nan") if rank.rank == 1 else draw(rank.rank, step))
        state = None if rank.rank == 1 else _kept(rank, "momentum_buffer")
        drawn(rank, range(EVERY, 3 * EVERY))
        return state, rank.x

    method = laconic.celgc(EVERY, optimizer_state="average")
    (first, x), (_, y), (third, z) = run(method, RANKS, job, make=sgd(0.1, momentum=0.9))
    velocity = [0.9 * draw(rank, 0) + draw(rank, 1) for rank in (0, 2)]
    close(first, (velocity[0] + velocity[1]) / 2)
    assert torch.equal(first, third)
    assert torch.equal(x, y)
    assert torch.equal(x, z)


def test_a_parameter_counts_the_ranks_that_have_state_for_it():
    def job(rank: Rank):
        for step in range(EVERY):
            first, *others = rank.parameters.values()
            # Nothing of rank 2's loss depends on the other parameters.
            for p in [first] if rank.rank == 2 else [first, *others]:
                p.grad = torch.full_like(p, 1.0 + rank.rank + 10 * step)
            rank._attempt(None)
        return [rank.optimizer.state[p]["momentum_buffer"][0].item() for p in [first, *others][: 3 - rank.rank]]

    ends = run(laconic.celgc(EVERY, optimizer_state="average"), 3, job, make=sgd(0.1, momentum=0.5))
    velocity = [0.5 * (1 + rank) + 11 + rank for rank in range(3)]
    all_three, two = sum(velocity) / 3, sum(velocity[:2]) / 2
    assert ends == [pytest.approx(want) for want in ([all_three, two, two], [all_three, two], [all_three])]


class Normed(nn.Module):
    """A net with BatchNorm in the middle."""

    def __init__(self) -> None:
        super().__init__()
        source = torch.Generator().manual_seed(3)
        self.first, self.norm, self.last = nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)
        for p in (*self.first.parameters(), *self.last.parameters()):
            p.data.copy_(torch.randn(p.shape, generator=source))
        self.double()

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        return self.last(torch.tanh(self.norm(scale * self.first(x))))


def _input(rank: int, step: int) -> torch.Tensor:
    return (1 + rank) * draw(rank, step, 40).view(10, 4) + rank


def _trained(rank: Rank, steps: int):
    buffers = []
    for step in range(steps):
        rank.step(lambda m, s=step: m(_input(rank.rank, s), scale=0.5).square().mean())
        norm = rank.model.norm
        buffers.append((norm.running_mean.clone(), norm.running_var.clone(), int(norm.num_batches_tracked)))
    return buffers, copy.deepcopy(rank.model)


def test_buffers_are_kept():
    ends = run(laconic.celgc(3, buffers="keep"), 2, lambda r: _trained(r, 3), model=Normed())
    (a, model), (b, _) = ends
    assert not torch.equal(a[-1][0], b[-1][0])
    for seen, rank in ((a, 0), (b, 1)):
        alone = run(laconic.celgc(9, buffers="keep"), 2, lambda r: _trained(r, 3), model=Normed())[rank][0]
        assert torch.equal(seen[-1][0], alone[-1][0])
    assert model.norm.momentum == 0.1


def test_buffers_are_averaged():
    kept = run(laconic.celgc(3, buffers="keep"), 2, lambda r: _trained(r, 3), model=Normed())
    ends = run(laconic.celgc(3, buffers="average"), 2, lambda r: _trained(r, 3), model=Normed())
    for i in range(2):
        assert torch.equal(ends[0][0][-1][i], ends[1][0][-1][i])
        close(ends[0][0][-1][i], (kept[0][0][-1][i] + kept[1][0][-1][i]) / 2)
        # Within a round each has its own.
        assert not torch.equal(ends[0][0][-2][i], ends[1][0][-2][i])
    assert ends[0][0][-1][2] == 3


def _beside(rank: Rank, **values: list[float]) -> dict[str, torch.Tensor]:
    """Give this rank its value of each buffer, train for a round, and return the buffers."""
    buffers = {name.replace(".", "_"): b for name, b in rank.model.named_buffers()}
    for name, value in values.items():
        buffers[name].fill_(value[rank.rank])
    drawn(rank, range(EVERY))
    return {name: b.cpu() for name, b in buffers.items()}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_statistics_are_averaged_over_the_ranks_that_have_them_finite(device):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    model, nan, huge, least = Point(3, 4, 1), float("nan"), 3e38, torch.finfo(torch.float32).min
    # Statistics may lie on another device than what is trained.
    model.a = nn.BatchNorm1d(2, affine=False)
    model.b = nn.InstanceNorm1d(3, track_running_stats=True, device=device)
    # A mask and a table are no statistics, and stay as they are.
    model.register_buffer("mask", torch.full((2, 2), least))
    model.register_buffer("table", torch.zeros(3))
    values = {"a_running_mean": [1.0, nan, 4.0], "a_running_var": [2.0, 3.0, 4.0]}
    values |= {"b_running_mean": [nan, float("inf"), nan], "b_running_var": [huge] * 3, "table": [1.0, 2.0, 3.0]}
    ends = run(laconic.celgc(EVERY, buffers="average"), RANKS, lambda r: _beside(r, **values), model=model)
    for rank, end in enumerate(ends):
        assert end["a_running_mean"].tolist() == [2.5] * 2
        assert end["a_running_var"].tolist() == [3.0] * 2
        assert str(end["b_running_mean"].tolist()) == str([values["b_running_mean"][rank]] * 3)
        assert torch.equal(end["mask"], model.mask)
        assert end["table"].tolist() == [1.0 + rank] * 3
        # Equal on all, it has not changed by a bit.
        assert torch.equal(end["b_running_var"], torch.full((3,), huge))


@pytest.mark.parametrize("every", [3, 11])
def test_buffers_are_made_anew_from_the_last_inputs_of_the_averaged_model(every):
    ends = run(laconic.celgc(every, buffers="recompute"), 2, lambda r: _trained(r, every), model=Normed())
    model = ends[0][1]
    inputs = range(max(0, every - 8), every)
    means, variances = [], []
    with torch.no_grad():
        for rank in range(2):
            outs = [0.5 * model.first(_input(rank, step)) for step in inputs]
            means.append(sum(o.mean(0) for o in outs) / len(outs))
            variances.append(sum(o.var(0, unbiased=True) for o in outs) / len(outs))
    for buffers, ours in ends:
        close(buffers[-1][0], (means[0] + means[1]) / 2)
        close(buffers[-1][1], (variances[0] + variances[1]) / 2)
        # As it was found: the mode, and how statistics follow.
        assert ours.training
        assert ours.norm.training
        assert ours.norm.momentum == 0.1


def test_recomputing_leaves_parameters_modes_and_the_hook_as_they_were():
    def job(rank: Rank):
        rank.model.last.eval()
        _trained(rank, 6)
        assert rank.model.training
        assert not rank.model.last.training
        held = len(rank.model._forward_pre_hooks)
        rank.rounds.remove()
        return held, len(rank.model._forward_pre_hooks), rank.x

    again = run(laconic.celgc(3, buffers="average"), 2, job, model=Normed())
    for (held, left, x), (none, _, y) in zip(
        run(laconic.celgc(3, buffers="recompute"), 2, job, model=Normed()), again, strict=True
    ):
        assert (held, left, none) == (1, 0, 0)
        # In training mode BatchNorm does not read its buffers.
        assert torch.equal(x, y)


def test_looking_at_a_model_does_not_count_as_an_input():
    """What is evaluated between two steps, or fed to a copy, is not what statistics are made of."""

    def job(rank: Rank, *, looks: bool):
        for step in range(3):
            rank.step(lambda m, s=step: m(_input(rank.rank, s), scale=0.5).square().mean())
            if looks and step < 2:
                rank.model.eval()
                rank.model(100 * _input(rank.rank, step))
                rank.model.train()
                for clone in (copy.deepcopy(rank.model), pickle.loads(pickle.dumps(rank.model))):
                    clone(100 * _input(rank.rank, step))
        return rank.model.norm.running_mean.clone()

    method = laconic.celgc(3, buffers="recompute")
    looked = run(method, 2, lambda r: job(r, looks=True), model=Normed())
    plain = run(method, 2, lambda r: job(r, looks=False), model=Normed())
    assert torch.equal(looked[0], plain[0])


@pytest.mark.parametrize("within", ["forward", "step"])
def test_statistics_are_made_anew_in_the_autocast_of_the_loop(within):
    def job(rank: Rank):
        seen = []
        rank.model.norm.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
        for step in range(3):
            # The first call is in full precision, and so it is when it is made again.
            def loss(model, step=step):
                with torch.autocast("cpu", torch.bfloat16, enabled=step > 0):
                    return model(_input(rank.rank, step).float()).float().square().mean()

            with torch.autocast("cpu", torch.bfloat16, enabled=within == "step"):
                rank.step(loss)
        assert [x.dtype for x in seen] == 2 * [torch.float32, torch.bfloat16, torch.bfloat16]
        # With the weights of the averaged model, not those that autocast has kept from the last forward.
        weight, bias = (p.detach().bfloat16() for p in rank.model.first.parameters())
        x = _input(rank.rank, 2).bfloat16()
        assert torch.equal(seen[-1], nn.functional.linear(x, weight, bias))

    run(laconic.celgc(3, buffers="recompute"), 2, job, model=Normed().float())


def test_inputs_that_are_kept_keep_no_graph():
    class Nested(Normed):
        def forward(self, pair, *, more):
            return super().forward(pair[0] + more["x"][0])

    def job(rank: Rank):
        source = torch.ones((), requires_grad=True, dtype=torch.float64)
        gone = weakref.ref(source)
        kept = _input(rank.rank, 0) * source
        rank.step(lambda m, x=kept: m((x, 1), more={"x": [x]}).square().mean())
        del kept, source
        gc.collect()
        return gone() is None

    assert run(laconic.celgc(3, buffers="recompute"), 2, job, model=Nested()) == [True, True]
