"""Nodes of ranks that share a GPU: equal models, one memory a node, and all skip what is poisoned on one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

import laconic
from laconic.exchanges import ReduceMean, TwoLevel
from models import Mlp, attach, batch, digest, weights, wrap

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

METHODS = {
    "dense": replace(laconic.dense(), exchange=TwoLevel(inner=ReduceMean(), node_size=2)),
    "sdagc": replace(
        laconic.sdagc(3.0, clip=0.5, whole_below=0, scope="layer", values="exact"), exchange=TwoLevel(node_size=2)
    ),
    "topk_sgd": replace(laconic.topk_sgd(0.05), exchange=TwoLevel(node_size=2)),
}


def _train(group, kind, name):
    torch.manual_seed(0)
    rank, model = dist.get_rank(group), Mlp().cuda()
    model = wrap(model, group) if kind == "ddp" else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    link = attach(model, optimizer, METHODS[name], group)
    for step in range(6):
        x, y = (t.cuda() for t in batch(rank, step))
        loss = torch.nn.functional.mse_loss(model(x), y)
        (loss * (float("inf") if (rank, step) == (3, 3) else 1.0)).backward()
        optimizer.step()
        optimizer.zero_grad()
    state = link.state_dict()
    memory = digest(t.cpu() for kinds in state["memory"].values() for t in kinds.values())
    return digest(w.cpu() for w in weights(model)), memory, link.stats


@pytest.mark.parametrize("kind", ["ddp", "plain"])
@pytest.mark.parametrize("name", METHODS)
def test_four_ranks_as_two_nodes(pool, kind, name):
    models, memory, stats = zip(*pool.run(4, _train, kind, name), strict=True)
    assert len(set(models)) == 1
    assert memory[0] == memory[1]
    assert memory[2] == memory[3]
    assert name == "dense" or memory[0] != memory[2]
    assert [s.skipped_steps for s in stats] == [1] * 4
    assert [s.wire_bytes > 0 for s in stats] == [True, False, True, False]
    assert all(s.node_bytes > 0 for s in stats)
