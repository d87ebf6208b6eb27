"""Once it runs, a step makes no vector of the model's size: what it needs is kept, or lies in the gradient."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import laconic
from contracts.vectors import normal
from laconic.reducer import Reducer
from laconic.segments import Segments
from laconic.transports import Lockstep
from laconic.types import Momentum

MODEL = Segments.of(["w", "b", "v"], [40_000, 30, 20_000])


class _Made(TorchDispatchMode):
    """Notes ops that give back memory, of at least half the model's bytes, that was not among what they got."""

    def __init__(self) -> None:
        super().__init__()
        self.large: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        given = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        made = [t.untyped_storage() for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        self.large += [str(func) for s in made if s.data_ptr() not in given and s.nbytes() >= 2 * MODEL.numel]
        return out


def _made(
    method: laconic.Method, *, momentum: Momentum | None = None, dtype: torch.dtype = torch.float32
) -> list[str]:
    reducer = Reducer(method, MODEL, Lockstep(1).ports[0], velocity=momentum is not None)
    momenta = None if momentum is None else dict.fromkeys(MODEL.names, momentum)
    watch = _Made()
    for step in range(4):
        grad = normal(MODEL.numel, step)
        reducer.begin_step(rates=dict.fromkeys(MODEL.names, 0.1), momenta=momenta)
        if step < 2:
            reducer.begin(grad, MODEL)
            reducer.end_step()
            continue
        with watch:
            reducer.begin(grad, MODEL)
            reducer.end_step()
    return watch.large


METHODS = [
    laconic.topk(0.01),
    laconic.topk(0.01, memory="update"),
    laconic.sdagc(momentum=False, scope="layer", values="exact"),
    laconic.sdagc(momentum=False, clip=1.0, scope="layer", values="exact"),
    laconic.topk_sgd(0.01),
    laconic.strom(2.0),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda m: f"{m.name} {m.memory} {m.clip}")
def test_a_step_makes_no_vector_of_the_models_size(method):
    assert _made(method) == []


@pytest.mark.parametrize("nesterov", [False, True])
def test_nor_does_one_in_which_the_method_owns_momentum(nesterov):
    assert (
        _made(laconic.sdagc(scope="layer", values="exact"), momentum=Momentum(factor=0.9, nesterov=nesterov)) == []
    )


def test_the_watch_sees_a_large_vector():
    with _Made() as watch:
        torch.zeros(MODEL.numel)
        torch.zeros(10)
    assert len(watch.large) == 1
