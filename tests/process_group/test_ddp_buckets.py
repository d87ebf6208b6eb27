"""DDP's buckets: many of them, laid out anew after the first step, and none of it may be seen in the result."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

import laconic
from covering import crossed, in_turn
from models import attach, build, digest, memory_bits, owed, train, wrap

STEPS = 6
GATHERED = [
    laconic.topk(0.05),
    laconic.topk_sgd(0.05),
    laconic.sdagc(3.0, scope="layer", values="exact"),
    laconic.sdagc(3.0, over="model", scope="model", clip=0.5, values="exact"),
    laconic.dgc(0.05, warmup_steps=3, clip=0.5),
]


def _result(group, kind, method, **options):
    model, optimizer, link = build(group, kind, method, **options)
    seen = train(model, optimizer, group, range(STEPS))
    return seen, {name: digest([t]) for name, t in owed(link).items()}, memory_bits(link)


def _label(value):
    return (
        f"{value.name}-{value.scope}-{value.clip is not None}" if isinstance(value, laconic.Method) else str(value)
    )


@pytest.mark.parametrize(
    ("method", "ranks", "megabytes"), crossed(GATHERED, [2, 3], [0.0001, 0.01, 25], ids=_label)
)
def test_weights_and_memory_do_not_depend_on_the_buckets(pool, method, ranks, megabytes):
    # A plain module has no buckets at all: each parameter's memory must be the same by name, to the bit.
    assert pool.run(ranks, _bucketed, method, megabytes) == pool.control(ranks, _result, "plain", method)


def _bucketed(group, method, megabytes):
    return _result(group, "ddp", method, bucket_cap_mb=megabytes)


@pytest.mark.parametrize("megabytes", [0.0001, 0.01, 25])
def test_random_selection_follows_names_too(pool, megabytes):
    # Two ranks only: with three or more an all-reduce adds in an order that depends on the bucket's size.
    method = laconic.randomk(0.05)
    assert pool.run(2, _bucketed, method, megabytes) == pool.control(2, _result, "plain", method)


def _layouts(group, static_graph):
    model, optimizer, link = build(group, "ddp", laconic.topk(0.05, whole_below=0), static_graph=static_graph)
    begin, seen = link.reducer.begin, []

    def watched(grad, segments, **rest):
        seen[-1].append(segments.names)
        return begin(grad, segments, **rest)

    link.reducer.begin = watched
    owing = []
    for step in range(4):
        seen.append([])
        train(model, optimizer, group, [step])
        owing.append(link.stats.owed_norm)
    return seen, owing


@pytest.mark.parametrize("static_graph", [False, True])
def test_the_buckets_really_are_laid_out_anew_and_memory_is_used_from_step_0(pool, static_graph):
    for layouts, owing in pool.run(2, _layouts, static_graph):
        assert layouts[0] != layouts[-1]
        assert len(layouts[-1]) > 1
        names = [sorted(name for bucket in layout for name in bucket) for layout in layouts]
        assert all(n == names[0] for n in names)
        assert owing[0] > 0


class OutOfOrder(nn.Module):
    """Layers used in another order than they were registered in: DDP's second layout differs most here."""

    def __init__(self) -> None:
        super().__init__()
        self.c, self.a, self.b = nn.Linear(48, 4), nn.Linear(16, 48), nn.Linear(48, 48)

    def forward(self, x):
        return self.c(torch.tanh(self.b(torch.tanh(self.a(x)))))


def _out_of_order(group, kind, method):
    torch.manual_seed(1)
    model = OutOfOrder()
    model = wrap(model, group) if kind == "ddp" else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    link = attach(model, optimizer, method, group)
    return train(model, optimizer, group, range(STEPS)), digest(owed(link).values())


@pytest.mark.parametrize("method", [laconic.topk(0.05), laconic.topk_sgd(0.05)], ids=lambda m: m.name)
def test_layers_registered_out_of_order_change_nothing(pool, method):
    assert pool.run(3, _out_of_order, "ddp", method) == pool.run(3, _out_of_order, "plain", method)


OPTIONS = [
    {"gradient_as_bucket_view": True},
    {"static_graph": True},
    {"static_graph": True, "gradient_as_bucket_view": True},
    {"bucket_cap_mb": 0.0001, "gradient_as_bucket_view": True},
]


@pytest.mark.parametrize(("options", "method"), in_turn([*OPTIONS, *OPTIONS], GATHERED[:3], ids="+".join))
def test_ddps_options_do_not_show_in_the_bits(pool, method, options):
    ours = pool.run(3, _with_options, method, options)
    assert ours == pool.control(3, _with_options, method, {})


def _with_options(group, method, options):
    return _result(group, "ddp", method, **options)


def _dense_with_options(group, method, options):
    model, optimizer, _ = build(group, "ddp", method, **options)
    return train(model, optimizer, group, range(STEPS))


@pytest.mark.parametrize("options", [{"static_graph": True}, {"bucket_cap_mb": 0.0001}], ids=lambda o: "+".join(o))
@pytest.mark.parametrize("method", [laconic.dense(), laconic.randomk(0.05)], ids=lambda m: m.name)
def test_all_reducing_methods_agree_under_every_option(pool, method, options):
    first, *others = pool.run(4, _dense_with_options, method, options)
    assert len(set(first)) == STEPS
    assert all(other == first for other in others)
    if method.name == "dense":
        assert first == pool.run(4, _dense_with_options, None, options)[0]


def _deep(group, width, megabytes, method, steps, measure_every):
    torch.manual_seed(1)
    layers = [nn.Linear(width, width, bias=False) for _ in range(20)]
    model = wrap(nn.Sequential(*layers), group, bucket_cap_mb=megabytes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    link = attach(model, optimizer, method, group, measure_every=measure_every)
    source = torch.Generator().manual_seed(dist.get_rank(group))
    for _ in range(steps):
        before = link.transport.collectives
        model(torch.randn(2, width, generator=source)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    stats = link.stats
    return digest(model.parameters()), stats.steps, link.transport.collectives - before, len(stats.history)


def test_forty_steps_with_twenty_buckets_end(pool):
    # PyTorch's own PowerSGD hook finished none of seven runs with more than one bucket over gloo: it issues
    # collectives from completion callbacks, which come in another order on each rank.
    # Messages are as long as 1% of a bucket of a megabyte.
    results = pool.run(4, _deep, 256, 1 / 4, laconic.topk(0.04), 40, 0)
    assert len({bits for bits, *_ in results}) == 1
    for _, steps, buckets, _ in results:
        assert steps == 40
        assert buckets >= 20


def test_twenty_buckets_of_a_megabyte_with_five_rounds_each_end(pool):
    # The first step has one bucket, the second 20.
    results = pool.run(4, _deep, 512, 1, laconic.topk(0.01), 2, 1)
    assert len({bits for bits, *_ in results}) == 1
    for _, steps, collectives, measured in results:
        assert (steps, measured) == (2, 2)
        assert collectives >= 20 * 5


def test_eight_measured_steps_with_many_buckets_in_flight_end(pool):
    results = pool.run(4, _deep, 64, 1 / 64, laconic.topk(0.02, whole_below=0), 8, 1)
    assert len({bits for bits, *_ in results}) == 1
    for _, steps, collectives, measured in results:
        assert (steps, measured) == (8, 8)
        assert collectives >= 20 * 5
