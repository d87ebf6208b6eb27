"""The spine on a GPU: the kernels' definitions give the CPU's bits, and ranks that share a GPU stay equal."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

import laconic
from laconic.kernels import reference
from laconic.types import Segments
from models import Mlp, batch, same, wrap

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_selection_on_cuda_gives_the_bits_of_the_cpu():
    segments = Segments.of(["a", "b", "c"], [1, 70_001, 333])
    x = torch.randn(segments.numel).mul(8).round().div(8)  # rounded: many ties
    on_cuda = x.cuda()
    for a, b in (
        (reference.take_top_(x, segments, [1, 700, 3]), reference.take_top_(on_cuda, segments, [1, 700, 3])),
        (
            reference.take_above_(x, segments, [2.0] * 3, 50),
            reference.take_above_(on_cuda, segments, [2.0] * 3, 50),
        ),
    ):
        assert torch.equal(a.positions, b.positions.cpu())
        assert torch.equal(a.values, b.values.cpu())
        assert torch.equal(x, on_cuda.cpu())


def _train(group, kind, method, scaled, poison_step):
    torch.manual_seed(0)
    rank = dist.get_rank(group)
    model: nn.Module = Mlp().cuda()
    if kind == "ddp":
        model = wrap(model, group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10, enabled=scaled)
    link = laconic.attach(
        model, optimizer, method, scaler=scaler if scaled else None, group=None if kind == "ddp" else group
    )
    for step in range(8):
        x, y = (t.cuda() for t in batch(rank, step))
        with torch.autocast("cuda", dtype=torch.float16, enabled=scaled):
            loss = nn.functional.mse_loss(model(x).float(), y)
        if step == poison_step and rank == 0:
            loss = loss * torch.inf
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    torch.cuda.synchronize()
    return [p.detach().cpu() for p in link.parameters.values()], link.stats.skipped_steps, scaler.get_scale()


@pytest.mark.parametrize("scaled", [False, True], ids=["float32", "float16-scaled"])
@pytest.mark.parametrize("kind", ["ddp", "plain"])
@pytest.mark.parametrize("name", list(laconic.methods.METHODS))
def test_two_ranks_that_share_a_gpu_stay_equal_through_a_poisoned_step(pool, name, kind, scaled):
    results = pool.run(2, _train, kind, laconic.by_name(name), scaled, 4)
    first, skipped, scale = results[0]
    assert skipped == 1
    assert all(torch.isfinite(w).all() for w in first)
    for other in results[1:]:
        assert same(first, other[0])
        assert (other[1], other[2]) == (skipped, scale)
