"""The spine on a GPU: the kernels' definitions give the CPU's bits, and ranks that share a GPU stay equal."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from torch import nn

import laconic
from contracts.registry import compressors
from laconic import kernels, wire
from laconic.averaging import dense
from laconic.codecs import Exact, Linear, SignMean
from laconic.compressors import StdThreshold
from laconic.exchanges import GatherMean, ReduceMean
from laconic.kernels import Taken, reference
from laconic.methods import METHODS
from laconic.segments import Segments
from laconic.transports import Lockstep
from laconic.types import Envelope
from models import Mlp, batch, same, wrap

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


SEGMENTS = Segments.of(["a", "b", "c"], [1, 70_001, 333])


@contextmanager
def no_host_sync() -> Iterator[None]:
    """Raise where the host would wait for the device."""
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        # That it does not see everything.
        warnings.filterwarnings("ignore", "Synchronization debug mode", UserWarning)
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def compiled() -> int:
    """How many versions of how many Triton kernels there are in this process."""
    modules = [m for name, m in sys.modules.items() if name.startswith("laconic.kernels.cuda")]
    caches = {id(c): c for m in modules for v in vars(m).values() for c in getattr(v, "device_caches", {}).values()}
    return sum(len(cache[0]) for cache in caches.values())


def _ties(seed: int = 0) -> torch.Tensor:
    """Rounded draws: many ties."""
    source = torch.Generator().manual_seed(seed)
    return torch.randn(SEGMENTS.numel, generator=source).mul(8).round().div(8)


def _same_taken(here: Taken, there: Taken, rooms: list[int]) -> None:
    """On CUDA there may be unused room at the end, which is zero."""
    assert torch.equal(here.wanted, there.wanted.cpu())
    count = int(torch.minimum(here.wanted, torch.tensor(rooms)).sum())
    assert count == here.positions.numel()
    for a, b in ((here.positions, there.positions.cpu()), (here.values, there.values.cpu())):
        assert torch.equal(a, b[:count])
        assert not b[count:].any()


def test_the_largest_taken_on_cuda_are_those_of_the_cpu():
    x, on_cuda = _ties(), _ties().cuda()
    counts = [1, 700, 3]
    _same_taken(
        reference.take_top_(x, SEGMENTS, counts), reference.take_top_(on_cuda, SEGMENTS, counts), rooms=counts
    )
    assert torch.equal(x, on_cuda.cpu())


@pytest.mark.parametrize("rooms", [[1, 50, 2], [1, 70_001, 333], [0, 0, 0]], ids=str)
@pytest.mark.parametrize("thresholds", [[2.0, 2.0, 2.0], [9.0, 9.0, 9.0], [0.0, 1.0, 0.0]], ids=str)
@pytest.mark.parametrize("one", [False, True])
@pytest.mark.parametrize("turn", [0, 1, 2, 1000])
def test_what_is_taken_above_a_threshold_on_cuda_is_that_of_the_cpu(rooms, thresholds, one, turn):
    x, on_cuda, level = _ties(), _ties().cuda(), torch.tensor(thresholds)
    largest = kernels.fresh_of(x, SEGMENTS).largest
    here = kernels.take_above_(x, SEGMENTS, level, rooms, largest=largest if one else None, turn=turn)
    there = kernels.take_above_(
        on_cuda, SEGMENTS, level.cuda(), rooms, largest=largest.cuda() if one else None, turn=turn
    )
    _same_taken(here, there, rooms)
    assert torch.equal(x, on_cuda.cpu())


@pytest.mark.parametrize(
    "rule",
    [
        StdThreshold(c=2.0, whole_below=2),
        StdThreshold(c=1.5, running=0.9, whole_below=0),
        StdThreshold(c=2.0, std_of="residual", whole_below=400),
    ],
    ids=repr,
)
@pytest.mark.parametrize("codec", [Exact(), Linear(bits=4), SignMean()], ids=repr)
def test_a_threshold_is_taken_and_packed_without_a_host_sync(rule, codec):
    x = _ties().cuda()
    fresh, finite = kernels.fresh_of(x, SEGMENTS), torch.tensor(True, device="cuda")

    def message(left: torch.Tensor) -> torch.Tensor:
        plan = rule.plan(SEGMENTS, step=3, rooms={"b": 900})
        payload = rule.compress_(left, SEGMENTS, plan, fresh)
        header = wire.Header(
            fingerprint=1,
            step=3,
            count=payload.wanted.sum(),
            wanted=payload.wanted.sum(),
            finite=finite,
            rates=0,
            value_bytes=4,
            form=codec.form,
        )
        frame = wire.Frame(plan=plan, form=codec.form, dtype=left.dtype)
        return wire.pack(frame, payload, header, codec).message

    # The first time, what every step needs is put on the device.
    first, left = message(x.clone()), x.clone()
    with no_host_sync():
        again = message(left)
    assert torch.equal(first, again)
    assert int(left.count_nonzero()) < int(x.count_nonzero())


# Of entries of equal magnitude, of which there are many here, ChunkTopK may take any.
@pytest.mark.parametrize("compressor", [c for c in compressors() if c.name != "chunk_topk"], ids=repr)
def test_a_mean_on_cuda_is_that_of_the_cpu(compressor):
    """Two ranks in one process: what each device sends, counts and leaves."""
    exchange = GatherMean() if compressor.ranks_choose else ReduceMean()
    results = []
    for device in ("cpu", "cuda"):
        xs = [_ties(rank).to(device) for rank in range(2)]
        world, envelope = Lockstep(2), Envelope(step=1, world_size=2, rooms={"b": 900, "c": 7})
        steps = [exchange.steps(x, SEGMENTS, compressor, envelope) for x in xs]
        futures = [port.start(s, label="a mean") for port, s in zip(world.ports, steps, strict=True)]
        for port in world.ports:
            port.drain()
        mean = futures[0].value()
        values = dense(mean.values, xs[0]).cpu()
        results.append((values, mean.sent, mean.wanted, mean.counts, [x.cpu() for x in xs]))
    here, there = results
    # Deviations are summed in another order there: an entry at the very threshold may go either way.
    assert there[1] == pytest.approx(here[1], rel=0.01)
    assert there[2] == pytest.approx(here[2], rel=0.01)
    differ = (here[0] - there[0]).abs() > 1e-5
    assert int(differ.sum()) <= 0.01 * SEGMENTS.numel
    for x, y in zip(here[4], there[4], strict=True):
        assert int(((x - y).abs() > 1e-5).sum()) <= 0.01 * SEGMENTS.numel


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
    before = compiled()
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
    found = link.stats.skipped_steps, scaler.get_scale(), compiled() - before
    return [p.detach().cpu() for p in link.parameters.values()], found


@pytest.mark.parametrize("scaled", [False, True], ids=["float32", "float16-scaled"])
@pytest.mark.parametrize("kind", ["ddp", "plain"])
@pytest.mark.parametrize("name", [name for name in METHODS if laconic.by_name(name).local is None])
def test_two_ranks_that_share_a_gpu_stay_equal_through_a_poisoned_step(pool, name, kind, scaled):
    results = pool.run(2, _train, kind, laconic.by_name(name), scaled, 4)
    first, found = results[0]
    assert found[0] == 1
    # What is compiled is compiled when the link is made, not in the first step.
    assert found[2] == 0
    assert all(torch.isfinite(w).all() for w in first)
    for other in results[1:]:
        assert same(first, other[0])
        assert other[1] == found
