"""The named recipes. Each is data: ``dataclasses.replace`` makes variants of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from laconic.method import Method
from laconic.methods.aware import cat
from laconic.methods.every_step import (
    adacomp,
    dense,
    dgc,
    gaussiank,
    randomk,
    sdagc,
    sidco,
    strom,
    topk,
    topk_sgd,
)
from laconic.methods.local_steps import (
    celgc,
    diloco,
    episode,
    episode_pp,
    local_sgd,
    parallel_clip,
    post_local,
    sparseloco,
    spartan,
)
from laconic.methods.low_rank import powersgd
from laconic.methods.quantised import ef_sign, one_bit, qsgd, terngrad

__all__ = [
    "METHODS",
    "adacomp",
    "by_name",
    "cat",
    "celgc",
    "dense",
    "dgc",
    "diloco",
    "ef_sign",
    "episode",
    "episode_pp",
    "gaussiank",
    "local_sgd",
    "one_bit",
    "parallel_clip",
    "post_local",
    "powersgd",
    "qsgd",
    "randomk",
    "recommended",
    "sdagc",
    "sidco",
    "sparseloco",
    "spartan",
    "strom",
    "terngrad",
    "topk",
    "topk_sgd",
]

METHODS: dict[str, Callable[..., Method]] = {
    f.__name__: f
    for f in (
        adacomp,
        cat,
        celgc,
        dense,
        dgc,
        diloco,
        ef_sign,
        episode,
        episode_pp,
        gaussiank,
        local_sgd,
        one_bit,
        parallel_clip,
        post_local,
        powersgd,
        qsgd,
        randomk,
        sdagc,
        sidco,
        sparseloco,
        spartan,
        strom,
        terngrad,
        topk,
        topk_sgd,
    )
}


def recommended() -> Method:
    """Return the method that ``attach`` uses where none is named.

    It is ``spartan``, sending more and with a gentler outer step. Of all we measured it stays closest to plain DDP
    for its bytes whatever the optimizer: SGD, SGD with momentum or AdamW (docs/local.md).
    """
    return spartan(density=0.05, outer_rate=1.2, outer_momentum=0.3, values="exact")


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
