"""Models of every kind: whatever the layers, ranks agree, and with everything sent it is plain DDP to the bit."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

import laconic
from models import Watch, attach, batch, digest, imbalance, inner, weights, wrap

STEPS = 4


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(4, 24, num_layers=2, batch_first=True), nn.Linear(24, 4)

    def forward(self, x):
        return self.head(self.lstm(x.view(8, 4, 4))[0][:, -1])


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, dim_feedforward=48, dropout=0.0, batch_first=True)

    def forward(self, x):
        return self.layer(self.embed((x.abs() * 5).long() % 11))


class Tied(nn.Module):
    """Two layers that share one weight: one name, one gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


class Tiny(nn.Module):
    """Parameters without a dimension, with one entry, and one large enough to be selected from."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.ones(1))
        self.body = nn.Linear(16, 90)

    def forward(self, x):
        return self.body(x) * self.scale + self.shift


class Empty(nn.Module):
    """A parameter without any entry, as pruning leaves behind."""

    def __init__(self) -> None:
        super().__init__()
        self.none, self.body = nn.Parameter(torch.empty(0, 3)), nn.Linear(16, 90)

    def forward(self, x):
        return self.body(x) + self.none.sum()


class Mixed(nn.Module):
    """Layers of three dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(16, 40), nn.Linear(40, 40).double(), nn.Linear(40, 40).bfloat16()

    def forward(self, x):
        return self.c(torch.tanh(self.b(torch.tanh(self.a(x)).double())).bfloat16())


def _conv():
    return nn.Sequential(
        nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 8, 3, padding=1), nn.Tanh(), nn.Conv2d(8, 20, 3), nn.Flatten()
    )


def _frozen():
    model = nn.Sequential(nn.Linear(16, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 4))
    model[2].requires_grad_(False)
    return model


MODELS = {
    "conv": _conv,
    "channels_last": lambda: _conv().to(memory_format=torch.channels_last),
    "lstm": Lstm,
    "transformer": Transformer,
    "tied": Tied,
    "tiny": Tiny,
    "empty": Empty,
    "mixed": Mixed,
    "frozen": _frozen,
    "batch_norm": lambda: nn.Sequential(nn.Linear(16, 70), nn.BatchNorm1d(70), nn.Tanh(), nn.Linear(70, 4)),
}
KINDS = {
    "plain": None,
    "ddp": {},
    "ddp unused": {"find_unused_parameters": True},
    "ddp static view": {"static_graph": True, "gradient_as_bucket_view": True},
}


def _build(group, name, kind, method, *, dtype=None):
    torch.manual_seed(1)
    model = MODELS[name]()
    model = model if dtype is None else model.to(dtype)
    if KINDS[kind] is not None:
        model = wrap(model, group, **KINDS[kind])
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05, momentum=0.9)
    return model, optimizer, None if method is None else attach(model, optimizer, method, group)


def _train(model, optimizer, group, dtype=torch.float32):
    seen = []
    for step in range(STEPS):
        x, _ = batch(dist.get_rank(group), step, dtype=dtype)
        model(x).double().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(digest(weights(model)))
    return seen


def _digests(group, name, kind, method):
    model, optimizer, _ = _build(group, name, kind, method)
    return _train(model, optimizer, group)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [name for name in MODELS if name != "mixed"])
def test_with_everything_sent_every_model_trains_as_plain_ddp_to_the_bit(pool, name, kind):
    # Two ranks, so that sums have one order only.
    plain = pool.control(2, _digests, name, "ddp", None)
    assert len(set(plain[0])) == STEPS
    assert pool.run(2, _digests, name, kind, laconic.topk(1.0, whole_below=0)) == plain


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_of_several_dtypes_agrees_and_loses_nothing(pool, kind):
    # Under a static graph DDP's first step gave every bucket number 0 and called none the last, so a step with
    # several buckets (one a dtype) was begun twice. On a plain module all gradients met in one float64 arena, and
    # what bfloat16 could not carry was lost on the way out of it.
    results = pool.run(2, _digests_and_account, "mixed", kind, laconic.topk(0.05, whole_below=0))
    assert results[0][0] == results[1][0]
    assert len(set(results[0][0])) == STEPS
    assert imbalance([account for _, account in results]) < 1e-5


def _digests_and_account(group, name, kind, method):
    model, optimizer, link = _build(group, name, kind, method)
    watch = Watch(model, optimizer, unit=method.memory)
    return _train(model, optimizer, group), watch.account(link)


@pytest.mark.parametrize("name", MODELS)
def test_dense_trains_every_plain_module_as_plain_ddp_to_the_bit(pool, name):
    ours = pool.run(2, _digests, name, "plain", laconic.dense())
    assert ours == pool.control(2, _digests, name, "ddp", None)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("kind", "method"),
    [
        ("plain", laconic.topk(0.05, whole_below=20)),
        ("ddp", laconic.topk_sgd(0.05)),
        ("ddp", laconic.randomk(0.05)),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_ranks_agree_on_every_model(pool, name, kind, method):
    first, *others = pool.run(3, _digests, name, kind, method)
    assert len(set(first)) == STEPS
    assert all(other == first for other in others)


def _account(group, name, kind, method):
    model, optimizer, link = _build(group, name, kind, method, dtype=torch.float64)
    watch = Watch(model, optimizer, unit=method.memory)
    _train(model, optimizer, group, torch.float64)
    return watch.account(link)


@pytest.mark.parametrize("kind", ["plain", "ddp"])
@pytest.mark.parametrize("name", ["conv", "lstm", "transformer", "tied", "tiny", "frozen", "batch_norm"])
def test_nothing_is_lost_in_any_model(pool, name, kind):
    assert imbalance(pool.run(2, _account, name, kind, laconic.topk(0.05, whole_below=0))) < 1e-12


@pytest.mark.parametrize("kind", ["plain", "ddp"])
@pytest.mark.parametrize("name", ["tied", "frozen"])
def test_topk_of_the_whole_vector_loses_nothing_with_shared_and_frozen_weights(pool, name, kind):
    assert imbalance(pool.run(2, _account, name, kind, laconic.topk_sgd(0.05))) < 1e-12


def _start_and_end(group):
    """Every rank starts elsewhere; return the bits of weights and buffers after attach, and after training."""
    torch.manual_seed(dist.get_rank(group))
    model = MODELS["batch_norm"]()
    model[1].running_mean.fill_(float(dist.get_rank(group)))
    model[1].num_batches_tracked.fill_(7 + dist.get_rank(group))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    attach(model, optimizer, laconic.topk(0.05), group)
    start = digest(weights(model)), digest(model.buffers()), int(model[1].num_batches_tracked)
    _train(model, optimizer, group)
    return start, digest(weights(model)), digest(model.buffers())


def test_a_plain_module_starts_from_the_first_ranks_weights_and_buffers_and_then_keeps_its_own_buffers(pool):
    results = pool.run(3, _start_and_end)
    assert {start for start, _, _ in results} == {results[0][0]}
    assert results[0][0][2] == 7
    assert len({end for _, end, _ in results}) == 1
    assert len({buffers for _, _, buffers in results}) == 3


def _channels_last_start(group):
    torch.manual_seed(dist.get_rank(group))
    model = MODELS["channels_last"]()
    before = model[3].weight.detach().clone()
    attach(model, torch.optim.SGD(model.parameters(), lr=0.05), laconic.topk(0.05), group)
    kept = model[3].weight.is_contiguous(memory_format=torch.channels_last)
    return digest(weights(model)), torch.equal(before, model[3].weight), kept


def test_the_first_broadcast_keeps_the_memory_format(pool):
    results = pool.run(2, _channels_last_start)
    assert results[0][0] == results[1][0]
    assert [unchanged for _, unchanged, _ in results] == [True, False]
    assert all(kept for _, _, kept in results)


def _frozen_weights(group, kind):
    model, optimizer, link = _build(group, "frozen", kind, laconic.topk(0.05))
    before = digest(inner(model)[2].parameters())
    _train(model, optimizer, group)
    return digest(inner(model)[2].parameters()) == before, sorted(link.parameters)


@pytest.mark.parametrize("kind", ["plain", "ddp"])
def test_frozen_parameters_are_neither_exchanged_nor_moved(pool, kind):
    for untouched, names in pool.run(2, _frozen_weights, kind):
        assert untouched
        assert names == ["0.bias", "0.weight", "4.bias", "4.weight"]
