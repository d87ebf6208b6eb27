"""torch.compile before or after DDP, of the step, of a whole iteration: the same bits, bytes, memory and names."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import laconic
from laconic.integrations.compiled import named_parameters, named_tensors, uncompiled
from models import Mlp, Watch, batch, digest, imbalance, loss, memory_bits, weights, wrap
from pool import run_alone

STEPS = 5
METHODS = {
    "topk": partial(laconic.topk, 0.05),
    "sdagc": laconic.sdagc,
    "celgc": partial(laconic.celgc, 2, clip=0.1),
    "spartan": partial(laconic.spartan, 2),
}
# The backend of the jobs: it traces forward and backward as inductor does, and runs torch's own operations.
compiled: Callable[[Any], Any] = partial(torch.compile, backend="aot_eager")


@contextmanager
def compiling() -> Iterator[None]:
    """From a fresh compiler, which warns of itself: of what it imports, and of what it looks at while it traces."""
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`torch.jit.script_method` is deprecated")
        warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not a leaf")
        yield


def in_place(model: nn.Module) -> nn.Module:
    model.compile(backend="aot_eager")
    return model


def in_part(model: Mlp) -> nn.Module:
    model.net[2] = compiled(model.net[2])
    return model


def made(group: dist.ProcessGroup, kind: str) -> nn.Module:
    """A model of one kind, equal on all ranks; in DDP of three buckets, between which the compiler cuts."""
    torch.manual_seed(1)
    model, ddp = Mlp(512), partial(wrap, group=group, bucket_cap_mb=1)
    kinds = {
        "plain": lambda: model,
        "plain, compiled": lambda: compiled(model),
        "plain, compiled in place": lambda: in_place(model),
        "plain, compiled in part": lambda: in_part(model),
        "DDP": lambda: ddp(model),
        "DDP of a compiled model": lambda: ddp(compiled(model)),
        "DDP, compiled": lambda: compiled(ddp(model)),
        "DDP, compiled in place": lambda: in_place(ddp(model)),
    }
    return kinds[kind]()


def attached(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    method: laconic.Method,
    group: dist.ProcessGroup,
    **options: Any,
) -> laconic.Link:
    """Attach the model as it is, compiled or not."""
    alone = not isinstance(uncompiled(model), DistributedDataParallel)
    return laconic.attach(model, optimizer, method, group=group if alone else None, **options)


@compiling()
def train(group: dist.ProcessGroup, kind: str, method: str, *, step: str = "as it is", autograd: bool = False):
    """Train some steps; return what must not depend on the compiler: model, memory, bytes and names."""
    model = made(group, kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu") if "scaled" in step else None
    link = attached(model, optimizer, METHODS[method](), group, scaler=scaler)
    take = compiled(optimizer.step) if step == "compiled" else optimizer.step

    def iteration(x: torch.Tensor, y: torch.Tensor) -> None:
        value = nn.functional.mse_loss(model(x), y)
        if scaler is None:
            value.backward()
            take()
        else:
            scaler.scale(value).backward()
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad()

    counters = torch._dynamo.utils.counters["compiled_autograd"]
    before = counters["captures"]
    with torch._dynamo.config.patch(compiled_autograd=autograd):
        whole = compiled(iteration) if "whole" in step else iteration
        for number in range(STEPS):
            whole(*batch(dist.get_rank(group), number))
    assert (counters["captures"] > before) == autograd
    link.finish()
    link.detach()
    return digest(weights(uncompiled(model))), memory_bits(link), link.stats.wire_bytes, tuple(link.parameters)


def kinds_of(group: dist.ProcessGroup, method: str, kinds: list[str]) -> dict[str, Any]:
    return {kind: train(group, kind, method) for kind in kinds}


PLAIN = ["plain", "plain, compiled", "plain, compiled in place", "plain, compiled in part"]
DDP = ["DDP", "DDP of a compiled model", "DDP, compiled", "DDP, compiled in place"]
FEW = [["plain", "plain, compiled"], ["DDP", "DDP, compiled"]]


@pytest.mark.parametrize(
    ("method", "kinds"),
    [("topk", PLAIN), ("topk", DDP), *((m, kinds) for m in ("sdagc", "celgc", "spartan") for kinds in FEW)],
    ids=lambda x: x if isinstance(x, str) else x[0],
)
def test_a_compiled_model_has_the_bits_bytes_and_names_of_one_that_is_not(pool, method, kinds):
    first, second = pool.run(2, kinds_of, method, kinds)
    for kind in kinds:
        assert first[kind][0] == second[kind][0], f"ranks differ with {kind}"
        assert first[kind] == first[kinds[0]], kind
        assert second[kind] == second[kinds[0]], kind


STEPS_COMPILED = [
    ("plain", "topk", "compiled"),
    ("plain", "celgc", "compiled"),
    ("plain, compiled", "sdagc", "whole"),
    ("DDP", "topk", "whole"),
    ("DDP, compiled", "celgc", "whole"),
    ("plain", "topk", "whole, scaled"),
]


def steps_of(group: dist.ProcessGroup, kind: str, method: str, step: str) -> list[Any]:
    scaled = "as it is, scaled" if "scaled" in step else "as it is"
    return [train(group, kind, method, step=scaled), train(group, kind, method, step=step)]


@pytest.mark.parametrize(("kind", "method", "step"), STEPS_COMPILED)
def test_a_compiled_step_leaves_the_exchange_alone(pool, kind, method, step):
    ranks = pool.run(2, steps_of, kind, method, step)
    assert all(eager == done for eager, done in ranks)
    assert ranks[0][1][0] == ranks[1][1][0]


def by_compiled_autograd(group: dist.ProcessGroup) -> list[Any]:
    return [train(group, "plain", "topk"), train(group, "plain", "topk", step="whole", autograd=True)]


def test_a_plain_module_goes_with_compiled_autograd(pool):
    ranks = pool.run(2, by_compiled_autograd)
    assert all(eager == done for eager, done in ranks)


def mixed(group: dist.ProcessGroup) -> Any:
    return train(group, "DDP, compiled" if dist.get_rank(group) else "DDP", "topk")


def test_ranks_of_which_some_compile_agree(pool):
    first, second = pool.run(2, mixed)
    assert first[0] == second[0] == pool.control(2, train, "DDP", "topk")[0][0]


@compiling()
def resumed(group: dist.ProcessGroup, kinds: tuple[str, str]) -> str:
    """Train by one kind, and go on by the other from what was saved."""
    state: dict[str, Any] = {}
    for kind, steps in zip(kinds, (range(3), range(3, 6)), strict=True):
        model = made(group, kind)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        plain = uncompiled(model)
        if state:
            plain.load_state_dict(state["model"])
        with attached(model, optimizer, laconic.sdagc(), group) as link:
            if state:
                optimizer.load_state_dict(state["optimizer"])
                link.load_state_dict(state["link"])
            for number in steps:
                loss(model, dist.get_rank(group), number).backward()
                optimizer.step()
                optimizer.zero_grad()
            parts = {"model": plain, "optimizer": optimizer, "link": link}
            state = {name: part.state_dict() for name, part in parts.items()}
    return digest(weights(model))


def test_what_a_compiled_run_saved_loads_in_one_that_is_not_and_the_other_way_round(pool):
    control = pool.run(2, resumed, ("plain", "plain"))
    assert control == pool.run(2, resumed, ("plain, compiled", "plain"))
    assert control == pool.run(2, resumed, ("plain", "plain, compiled"))


class Normalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Linear(32, 4)

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.first(x))))


@compiling()
def recomputed(group: dist.ProcessGroup) -> list[str]:
    """Statistics that a sync makes anew from the inputs of a module, as it is and compiled in place."""
    found = []
    for compile_ in (lambda model: model, in_place, compiled):
        torch.manual_seed(1)
        model = compile_(Normalised())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        with attached(model, optimizer, laconic.celgc(2, clip=0.1, buffers="recompute"), group):
            for number in range(4):
                loss(model, dist.get_rank(group), number).backward()
                optimizer.step()
                optimizer.zero_grad()
        found.append(digest([*weights(model), *model.buffers()]))
    return found


def test_statistics_are_recomputed_from_the_inputs_of_a_compiled_module(pool):
    ranks = pool.run(2, recomputed)
    assert len({each for rank in ranks for each in rank}) == 1


@compiling()
def by_inductor(group: dist.ProcessGroup, compile_: bool) -> Any:
    inductor = import_module("torch._inductor.config")
    torch.manual_seed(1)
    # One graph each way, of one kernel, as plain as can be: each takes seconds of g++.
    inside = nn.Sequential(nn.Linear(16, 90), nn.Tanh(), nn.Linear(90, 4))
    model: nn.Module = wrap(inside, group, bucket_cap_mb=25)
    model = torch.compile(model) if compile_ else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    link = laconic.attach(model, optimizer, laconic.topk(0.05))
    watch = Watch(uncompiled(model), optimizer)
    with inductor.patch({"compile_threads": 1, "cpp_cache_precompile_headers": False, "cpp.simdlen": 1}):
        for number in range(STEPS):
            loss(model, dist.get_rank(group), number).backward()
            optimizer.step()
            optimizer.zero_grad()
    return weights(uncompiled(model)), watch.account(link), link.stats.wire_bytes


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor compiles for CPUs with g++, which is not here")
def test_inductor_rounds_otherwise_and_ranks_agree_and_nothing_is_lost(pool):
    ranks = pool.run(2, by_inductor, True)
    assert digest(ranks[0][0]) == digest(ranks[1][0])
    assert imbalance([account for _, account, _ in ranks]) < 1e-5
    expected, _, sent = pool.run(2, by_inductor, False)[0]
    assert ranks[0][2] == pytest.approx(sent, rel=0.01)
    for ours, theirs in zip(ranks[0][0], expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def python_reducer(group: dist.ProcessGroup) -> None:
    with torch._dynamo.config.patch(optimize_ddp="python_reducer"):
        model = wrap(Mlp(), group)
    laconic.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), laconic.topk(0.05))


def test_ddp_that_was_made_for_compiled_autograd_is_refused():
    (done,) = run_alone(1, python_reducer)
    assert done.error == "ValueError"
    assert "Attach the plain module, without DDP" in done.message


@compiling()
def test_names_are_those_of_a_model_that_is_not_compiled():
    def model() -> nn.Module:
        inside = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
        inside[1].add_module("_orig_mod", nn.Linear(2, 2))
        return inside

    plain, both = model(), model()
    both[1] = torch.compile(both[1])
    both = torch.compile(both)
    assert isinstance(uncompiled(both), nn.Sequential)
    assert list(named_tensors(both)) == list(named_tensors(plain))
    assert list(named_parameters(plain)) == [name for name, _ in plain.named_parameters()]
    assert "1._orig_mod.weight" in named_parameters(both)
