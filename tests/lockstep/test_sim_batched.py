"""Ranks whose gradients are computed in one call: those of each rank, or none."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from laconic.sim.batched import batched, handed_out, tried


class Remembering:
    """A task that remembers its last loss, and adds it to the next."""

    def __init__(self, seed: int, width: int = 3) -> None:
        torch.manual_seed(seed)
        self.model, self._state = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 1)), None

    def loss(self, model, batch):
        value = model(batch["x"]).square().mean()
        value = value if self._state is None else value * (1 + self._state)
        self._state = value.detach()
        return value

    def state_dict(self):
        return {"state": self._state}

    def load_state_dict(self, state):
        self._state = state["state"]


@pytest.mark.parametrize("alike", [True, False])
def test_batched_gradients_are_those_of_each_rank(alike):
    works = [Remembering(0 if alike else seed) for seed in range(3)]
    twins = [Remembering(0 if alike else seed) for seed in range(3)]
    for step in range(3):
        batches = [
            {"x": torch.randn(2, 4, generator=torch.Generator().manual_seed(10 * step + r))} for r in range(3)
        ]
        verdict = tried(works, batches, alike=alike)
        assert verdict.reason == ""
        assert verdict.seconds > 0
        made = batched(works, batches, alike=verdict.alike)
        for work, twin, batch, mine in zip(works, twins, batches, made, strict=True):
            work.load_state_dict(mine.state)
            loss = twin.loss(twin.model, batch)
            twin.model.zero_grad()
            loss.backward()
            torch.testing.assert_close(mine.loss, loss.detach())
            parameters, arrived = dict(work.model.named_parameters()), []
            order = sorted(parameters, reverse=True)
            hooks = [
                p.register_post_accumulate_grad_hook(lambda _, name=name, seen=arrived: seen.append(name))
                for name, p in parameters.items()
            ]
            work.model.zero_grad()
            (2 * handed_out(mine, parameters, order)).backward()
            assert arrived == order
            for name, p in twin.model.named_parameters():
                torch.testing.assert_close(parameters[name].grad, 2 * p.grad)
            for hook in hooks:
                hook.remove()


def test_what_cannot_be_batched_says_why_and_leaves_nothing_behind():
    works, sizes, heard = [Remembering(0), Remembering(0)], (2, 3), []
    for parameter in works[-1].model.parameters():
        parameter.register_hook(heard.append)
    assert tried(works, [{"x": torch.ones(2, 4)}] * 2, alike=True).reason == ""
    assert not heard
    unlike = tried(works, [{"x": torch.ones(size, 4)} for size in sizes], alike=True)
    assert "batches of unlike sizes" in unlike.reason
    for work in works:
        work.model.append(nn.Dropout(0.5))
    alike = [{"x": torch.ones(2, 4)}] * 2
    assert "cannot be batched" in tried(works, alike, alike=True).reason
    for work in works:
        work.model[-1] = nn.BatchNorm1d(1)
    assert tried(works, alike, alike=True).reason == "the model has buffers"
    assert [work.state_dict() for work in works] == [{"state": None}] * 2


class Sly(Remembering):
    """A task whose loss is another one where it is batched."""

    def __init__(self, change) -> None:
        super().__init__(0)
        self._change = change
        with torch.no_grad():
            # The first layer has small gradients beside the last one's, and these are small beside the loss.
            self.model[2].weight.mul_(1e-3)

    def loss(self, model, batch):
        value = super().loss(model, batch) + 7.0
        return self._change(model, value) if torch._C._functorch.peek_interpreter_stack() else value


def _first_layer_twice(model, value):
    weight = model[0].weight
    return value + 1e-3 * (weight - weight.detach()).sum()


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        (lambda model, value: value * 2, "the loss"),
        (_first_layer_twice, "0.weight"),
        (lambda model, value: value * float("nan"), "the loss"),
        (lambda model, value: value + (model[0].bias * 0).sqrt().sum(), "0.bias"),
    ],
    ids=["loss", "one small gradient", "no number", "a gradient that is no number"],
)
def test_a_loss_that_cannot_be_trusted_in_a_batch_is_noticed(change, differs):
    batches = [{"x": torch.ones(2, 4)}] * 2
    assert (
        tried([Sly(lambda model, value: value), Sly(lambda model, value: value)], batches, alike=True).reason == ""
    )
    reason = tried([Sly(change), Sly(change)], batches, alike=True).reason
    assert "not those that a rank gets alone" in reason
    assert f"{differs} differs" in reason
