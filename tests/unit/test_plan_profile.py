"""The work's own step, timed in a world of one rank."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from laconic.plan.profile import profile
from laconic.plan.work import Subject


@pytest.fixture(scope="module")
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_the_first_steps_have_other_buckets_and_do_not_count(group):
    # 3.1 MB: one bucket of 1 MB and others, once DDP has dealt them out anew; time is up after six steps.
    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(3)))
    subject = Subject(model=model, loss=lambda model: model(torch.ones(2, 512)).square().mean())
    seen = profile(subject, group=group, steps=16, warmup=12, seconds=0.0)
    assert len(seen.buckets) > 1
    assert len(seen.profile.ready) == len(seen.buckets) == len(seen.gradients[0])
    assert seen.profile.parameters == sum(p.numel() for p in model.parameters())
    assert 0 < seen.profile.ready[0] <= seen.profile.ready[-1] <= seen.profile.backward
