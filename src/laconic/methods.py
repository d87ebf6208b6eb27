"""The named recipes. A method is one answer to each of the four questions, as data that can be read and changed."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from laconic.arguments import check_choice, check_whole
from laconic.compressors import Dense, RandomK, TopK
from laconic.exchanges import GatherMean, ReduceMean
from laconic.tuners import Constant, Warmup
from laconic.types import Compressor, Exchange, Tuner

Unit = Literal["none", "gradient", "update"]
Scope = Literal["layer", "model"]


@dataclass(frozen=True, kw_only=True)
class Method:
    """What is sent, how much, and how; ``dataclasses.replace`` makes variants.

    ``memory`` is the unit of what is owed: ``gradient`` keeps g, ``update`` keeps learning rate times g (so a
    later change of the rate does not rescale what is owed), ``none`` forgets what was not sent. ``scope``
    says over what the compressor selects: each ``layer``, bucket by bucket while backward goes on, or the
    whole ``model`` as one vector, which must wait for the last bucket.
    """

    name: str
    compressor: Compressor
    exchange: Exchange
    tuner: Tuner
    memory: Unit
    scope: Scope

    def __post_init__(self) -> None:
        _check_part("compressor", self.compressor, Compressor, "TopK(density=0.01)")
        _check_part("exchange", self.exchange, Exchange, "GatherMean()")
        _check_part("tuner", self.tuner, Tuner, "Constant()")
        check_choice("memory", self.memory, get_args(Unit))
        check_choice("scope", self.scope, get_args(Scope))
        if isinstance(self.compressor, Dense) and self.memory != "none":
            raise ValueError(
                f"Dense sends everything, nothing is ever owed: set memory='none', got '{self.memory}'."
            )
        self.exchange.check(self.compressor)
        self.tuner.init(self.compressor)


def dense() -> Method:
    """Send every gradient, as plain DDP does, to the bit: the parent that the others are measured against."""
    return Method(
        name="dense",
        compressor=Dense(),
        exchange=ReduceMean(),
        tuner=Constant(),
        memory="none",
        scope="layer",
    )


def topk(
    density: float = 0.01,
    *,
    memory: Unit = "gradient",
    scope: Scope = "layer",
    whole_below: int = 1024,
    warmup_steps: int = 0,
) -> Method:
    """Send the largest entries of each layer and remember the rest: TopK as practised.

    Aji and Heafield 2017; Lin et al. 2018 for the warm-up. Parameters with fewer than ``whole_below``
    entries are sent whole.
    """
    return Method(
        name="topk",
        compressor=TopK(density=density, whole_below=whole_below),
        exchange=GatherMean(),
        tuner=_warmup(warmup_steps),
        memory=memory,
        scope=scope,
    )


def topk_sgd(density: float = 0.01) -> Method:
    """Send the K largest entries of the whole vector, memory in update units: TopK-SGD as published.

    Algorithm 1 of Alistarh et al., "The Convergence of Sparsified Gradient Methods", NeurIPS 2018.
    """
    return Method(
        name="topk_sgd",
        compressor=TopK(density=density, whole_below=0),
        exchange=GatherMean(),
        tuner=Constant(),
        memory="update",
        scope="model",
    )


def randomk(density: float = 0.01, *, memory: Unit = "gradient", seed: int = 0, warmup_steps: int = 0) -> Method:
    """Send random entries, the same on every rank, and remember the rest: the baseline without positions."""
    return Method(
        name="randomk",
        compressor=RandomK(density=density, seed=seed),
        exchange=ReduceMean(),
        tuner=_warmup(warmup_steps),
        memory=memory,
        scope="layer",
    )


METHODS: dict[str, Callable[..., Method]] = {f.__name__: f for f in (dense, randomk, topk, topk_sgd)}


def by_name(name: str, **settings: object) -> Method:
    """Return the named method with the given settings.

    >>> by_name("topk", density=0.001).compressor
    TopK(density=0.001, whole_below=1024)
    """
    if not isinstance(name, str) or name not in METHODS:
        raise ValueError(f"no method is called {name!r}. There are: {', '.join(METHODS)}.")
    recipe = METHODS[name]
    allowed = inspect.signature(recipe).parameters
    unknown = [key for key in settings if key not in allowed]
    if unknown:
        raise ValueError(f"{name}() has no setting {', '.join(unknown)}. It has: {', '.join(allowed) or 'none'}.")
    return recipe(**settings)


def _warmup(steps: int) -> Tuner:
    check_whole("warmup_steps", steps, 0, "For no warm-up write 0.")
    return Warmup(steps=steps) if steps else Constant()


def _check_part(name: str, value: object, protocol: type, example: str) -> None:
    # A class has the protocol's attributes too: TopK instead of TopK(...) is an easy slip.
    if isinstance(value, type) or not isinstance(value, protocol):
        raise TypeError(f"{name} must be a {protocol.__name__.lower()} such as {example}, got {value!r}.")
