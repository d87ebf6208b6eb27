"""Methods that exchange in every step."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

from laconic import costs
from laconic.arguments import check_choice, check_whole
from laconic.clipping import ClipScope, Convention, LocalClip
from laconic.coding import Codec
from laconic.compressors import (
    AdaComp,
    Dense,
    GaussianK,
    RandomK,
    SampledTopK,
    Sidco,
    StdThreshold,
    Strom,
    TopK,
)
from laconic.compressors.std_threshold import Over, Source
from laconic.costs import Cost
from laconic.exchanges import ReduceMean
from laconic.guard import Guard
from laconic.method import Method, Scope, Unit
from laconic.methods.parts import Carrier, carried
from laconic.tuners import Cat, Constant, Progress, Relief, Stages, TargetDensity, Warmup
from laconic.types import Compressor, Exchange, Tuner

Law = Literal["fixed", "progress", "target", "cat"]
Revision = Literal["rescale", "damp", "none"]
# With a fixed c nothing is sent until something has gathered c steps, and then much at once: begin with this share.
_FIRST_SHARE = 0.03


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
    values: Codec | str = "exact",
    exchange: Carrier = "gather",
    parts: int = 1,
) -> Method:
    """Send the largest entries of each layer and remember the rest: TopK as practised.

    Aji and Heafield 2017; Lin et al. 2018 for the warm-up. Parameters with fewer than ``whole_below``
    entries are sent whole. ``values`` are written as a codec says, or its word: ``int4``, say; what that loses is
    remembered too. ``exchange`` says how messages become a mean; with ``scope="model"`` each step may send from one
    of several ``parts`` of the model, which take turns.
    """
    return Method(
        name="topk",
        compressor=TopK(density=density, whole_below=whole_below),
        exchange=carried(exchange, values, parts=parts),
        tuner=_warmup(warmup_steps),
        memory=memory,
        scope=scope,
    )


def topk_sgd(density: float = 0.01, *, values: Codec | str = "exact", exchange: Carrier = "gather") -> Method:
    """Send the K largest entries of the whole vector, memory in update units: TopK-SGD as published.

    Algorithm 1 of Alistarh et al., "The Convergence of Sparsified Gradient Methods", NeurIPS 2018.
    """
    return Method(
        name="topk_sgd",
        compressor=TopK(density=density, whole_below=0),
        exchange=carried(exchange, values),
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


def sdagc(
    c: float = 20.0,
    *,
    std_of: Source = "gradient",
    over: Over = "layer",
    running: float | None = None,
    law: Law = "fixed",
    warmup_steps: int | None = None,
    density: float | None = None,
    clip: float | None = None,
    clip_scope: ClipScope = "model",
    convention: Convention = "mean",
    momentum: bool = True,
    masking: bool = True,
    revision: Revision = "rescale",
    scope: Scope = "model",
    whole_below: int = 1024,
    fallback: bool = False,
    cost: Cost | str | None = None,
    values: Codec | str = "sign",
    exchange: Carrier = "gather",
    parts: int = 1,
) -> Method:
    """Send what exceeds c deviations of the fresh gradient, with four companions: SDAGC (reconstruction).

    Chen et al., "Standard Deviation Based Adaptive Gradient Compression", CCGRID 2020; only its abstract is
    public, the rest is ours (docs/sdagc.md). The companions: residual accumulation; ``clip``, local clipping
    (a number as ``clip_grad_norm_`` takes it); ``momentum``, which moves the optimizer's momentum into the
    method, with ``masking``; and the learning-rate ``revision``: ``rescale`` what is owed when the rate changes
    (A), ``damp`` what waited (B), or ``none`` (C).

    ``law`` says how c moves: ``fixed``, begun with a share of 3% that falls to what c sends within ``warmup_steps``
    (2 c; 0 for none); ``progress`` from c / 2 to c as the loss falls, which ``link.observe`` must be told before
    every step; ``target``, which holds ``density`` (0.004); ``cat``, which sends what is worth its ``cost``
    (measured seconds; see ``cat``). ``running`` is the weight of the past in the gradient's deviation (0.9). All
    parameters are taken as one vector, with one threshold; with ``scope="layer"`` each layer has its own, and
    parameters of fewer than ``whole_below`` entries go whole. Of values one bit is sent, their sign; ``values``
    takes other codecs. ``parts`` of the model may take turns.
    """
    if running is None:
        running = 0.9 if std_of == "gradient" else 0.0
    check_choice("revision", revision, get_args(Revision))
    rule = StdThreshold(c=c, std_of=std_of, over=over, running=running, whole_below=whole_below)
    tuner = _law(law, rule, warmup_steps, density, cost)
    return Method(
        name="sdagc",
        compressor=rule,
        exchange=carried(exchange, values, parts=parts),
        tuner=Relief(inner=tuner) if fallback else tuner,
        memory="update" if revision == "rescale" else "gradient",
        scope=scope,
        clip=_clip(clip, convention, clip_scope),
        momentum="method" if momentum else "optimizer",
        masking=momentum and masking,
        damping=revision == "damp",
        guard=Guard(),
    )


def dgc(
    density: float = 0.001,
    *,
    warmup_steps: int = 100,
    clip: float | None = None,
    clip_scope: ClipScope = "model",
    masking: bool = True,
    sample: float = 0.01,
    whole_below: int = 1024,
    values: Codec | str = "exact",
    exchange: Carrier = "gather",
) -> Method:
    """Send about the largest entries, by a sampled threshold, with momentum correction: Deep Gradient Compression.

    Lin et al., ICLR 2018: warm-up, local clipping at ``clip``, momentum correction and momentum factor
    masking. Memory is in gradient units, as published.
    """
    return Method(
        name="dgc",
        compressor=SampledTopK(density=density, sample=sample, whole_below=whole_below),
        exchange=carried(exchange, values),
        tuner=_warmup(warmup_steps),
        memory="gradient",
        scope="layer",
        clip=_clip(clip, "mean", clip_scope),
        momentum="method",
        masking=masking,
        guard=Guard(),
    )


def gaussiank(
    density: float = 0.001, *, memory: Unit = "gradient", whole_below: int = 1024, values: Codec | str = "exact",
    exchange: Carrier = "gather",
) -> Method:  # fmt: skip
    """Send what a normal distribution would have beyond a quantile, and remember the rest: Shi et al. 2019."""
    return _plain(
        "gaussiank", GaussianK(density=density, whole_below=whole_below), memory, carried(exchange, values)
    )


def sidco(
    density: float = 0.001, *, memory: Unit = "gradient", whole_below: int = 1024, values: Codec | str = "exact",
    exchange: Carrier = "gather",
) -> Method:  # fmt: skip
    """Send what a fitted tail has beyond a quantile, in adapted stages, and remember the rest.

    Abdelmoniem et al., MLSys 2021, with the exponential fit.
    """
    rule = Sidco(density=density, whole_below=whole_below)
    return replace(_plain("sidco", rule, memory, carried(exchange, values)), tuner=Stages())


def strom(
    tau: float = 0.01, *, memory: Unit = "update", whole_below: int = 1024, values: Codec | str = "exact",
    exchange: Carrier = "gather",
) -> Method:  # fmt: skip
    """Send +-tau of every entry beyond it, and remember the rest: Strom 2015. tau is in memory's units.

    Chosen values differ by their sign alone, so with ``whole_below=0`` one bit each (``values="sign"``) loses
    nothing. It is not the default, for it would round parameters that are sent whole to one magnitude.
    """
    return _plain("strom", Strom(tau=tau, whole_below=whole_below), memory, carried(exchange, values))


def adacomp(
    bin_size: int = 500, *, memory: Unit = "gradient", whole_below: int = 1024, values: Codec | str = "exact",
    exchange: Carrier = "gather",
) -> Method:  # fmt: skip
    """Send each bin's leaders as sign times one magnitude, and remember the rest: AdaComp, Chen et al. 2018.

    A layer has one magnitude, so with ``whole_below=0`` one bit a value (``values="sign"``) loses nothing; see
    ``strom`` for why it is not the default.
    """
    return _plain("adacomp", AdaComp(bin_size=bin_size, whole_below=whole_below), memory, carried(exchange, values))


def _warmup(steps: int, start: float = 0.25) -> Tuner:
    check_whole("warmup_steps", steps, 0, "For no warm-up write 0.")
    return Warmup(steps=steps, start=start) if steps else Constant()


def _law(
    law: Law, rule: StdThreshold, warmup_steps: int | None, density: float | None, cost: Cost | str | None
) -> Tuner:
    check_choice("law", law, get_args(Law))
    if density is not None and law != "target":
        raise ValueError(
            f"density is what law='target' holds; with law='{law}' the share follows from c. Leave it out."
        )
    if warmup_steps is not None and law != "fixed":
        raise ValueError(f"warmup_steps is for law='fixed', got law='{law}'. Leave it out.")
    if cost is not None and law != "cat":
        raise ValueError(f"cost is for law='cat', got law='{law}'. Leave it out.")
    if law == "cat":
        price = "seconds" if cost is None else cost
        return Cat(cost=costs.by_name(price) if isinstance(price, str) else price, gain="lag", floor=1e-4)
    if law == "progress":
        return Progress(c_min=rule.c / 2)
    if law == "target":
        # The residual's tail is a normal one, where eight deviations are out of the world.
        most = 8.0 if rule.std_of == "residual" else 1000.0
        return TargetDensity(density=0.004 if density is None else density, c_max=most)
    if rule.density >= _FIRST_SHARE:
        # No silence to begin with.
        if warmup_steps:
            raise ValueError(
                f"warmup_steps: c={rule.c:g} lets a share of {rule.density:.2g} pass, and a warm-up begins with "
                f"{_FIRST_SHARE}. Leave it out, or put a tuner in: replace(method, tuner=Warmup(steps=100))."
            )
        return Constant()
    return _warmup(round(2 * rule.c) if warmup_steps is None else warmup_steps, start=_FIRST_SHARE)


def _clip(norm: float | None, convention: Convention, scope: ClipScope) -> LocalClip | None:
    return None if norm is None else LocalClip(norm=norm, convention=convention, scope=scope)


def _plain(name: str, compressor: Compressor, memory: Unit, exchange: Exchange) -> Method:
    """Return a selector with error memory and nothing else."""
    return Method(
        name=name,
        compressor=compressor,
        exchange=exchange,
        tuner=Constant(),
        memory=memory,
        scope="layer",
    )
