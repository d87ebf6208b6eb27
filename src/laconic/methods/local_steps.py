"""Methods that exchange after rounds of local steps: CELGC, EPISODE, DiLoCo, SparseLoCo and their kin."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

from laconic.arguments import check_choice
from laconic.clipping import Convention, LocalClip
from laconic.coding import Codec
from laconic.compressors import ChunkTopK, Dense
from laconic.exchanges import GatherMean
from laconic.local import AdaComm, DriftBudget, Every, Growing, LocalSteps, OuterStep
from laconic.local.periods import Period
from laconic.local.steps import Buffers, NormBy, NormOf, OptimizerState
from laconic.method import Method
from laconic.methods.every_step import dense, topk
from laconic.methods.parts import Carrier, carried
from laconic.tuners import Constant
from laconic.types import Over

Law = Literal["fixed", "growing", "adacomm", "drift"]


def celgc(
    every: int = 16,
    *,
    clip: float | None = None,
    convention: Convention = "local",
    norm_of: NormOf = "gradient",
    norm_by: NormBy = "local",
    send: Method | None = None,
    outer_rate: float = 1.0,
    outer_momentum: float = 0.0,
    restart: float | None = 0.0,
    participants: int | None = None,
    seed: int = 0,
    start: int = 0,
    period: Law = "fixed",
    over_steps: int = 1000,
    budget: float = 0.02,
    optimizer_state: OptimizerState = "keep",
    buffers: Buffers = "average",
) -> Method:
    """Step locally with local clipping, and average models every so many steps: CELGC.

    Liu et al., "A Communication-Efficient Distributed Gradient Clipping Algorithm", NeurIPS 2022. ``clip`` is a
    threshold on the gradient's norm, as ``clip_grad_norm_`` takes it: the paper's gamma is clip times the learning
    rate, and follows its schedule. ``convention="mean"`` takes it for the mean gradient's and clips each rank at
    sqrt(N) times that. ``send`` says how drifts travel: ``celgc(every=16, send=topk(0.01))``; by default whole.
    With an outer rate or momentum the mean drift is the gradient of an outer step, and ranks ``restart`` from
    the anchor minus that share of what they owe (None: 1/N).

    ``period`` says how many steps the next round has: ``fixed``; ``growing`` from 1 to ``every`` in ``over_steps``
    steps; ``adacomm``, from ``every`` downwards as the loss falls; ``drift``, as many as keep ranks within
    ``budget`` of the model's norm, at most 4 * ``every``.
    """
    return _local(
        "celgc",
        send,
        LocalSteps(
            period=_period(period, every, over_steps, budget),
            clip=_clip(clip, convention),
            norm_of=norm_of,
            norm_by=norm_by,
            participants=participants,
            seed=seed,
            start=start,
            outer=OuterStep(rate=outer_rate, momentum=outer_momentum),
            restart=restart,
            optimizer_state=optimizer_state,
            buffers=buffers,
        ),
    )


def local_sgd(every: int = 16, *, send: Method | None = None, buffers: Buffers = "average") -> Method:
    """Step locally without clipping, and average models every so many steps: local SGD."""
    return _local("local_sgd", send, LocalSteps(period=Every(steps=every), buffers=buffers))


def post_local(
    every: int = 16, *, start: int = 100, clip: float | None = None, send: Method | None = None
) -> Method:
    """Average gradients in every step up to ``start``, then models every so many steps: post-local SGD.

    Lin et al., "Don't Use Large Mini-Batches, Use Local SGD", ICLR 2020.
    """
    local = LocalSteps(period=Every(steps=every), start=start, clip=_clip(clip, "mean"), buffers="average")
    return _local("post_local", send, local)


def parallel_clip(clip: float | None = None) -> Method:
    """Average gradients in every step, then clip the mean: naive parallel clipping, the baseline of CELGC."""
    return _local("parallel_clip", None, LocalSteps(start=None, clip=_clip(clip, "mean"), buffers="average"))


def episode(
    every: int = 16, *, clip: float | None = None, send: Method | None = None, buffers: Buffers = "average"
) -> Method:
    """Step along gradients corrected for unlike data, where a whole round clips or does not: EPISODE.

    Crawshaw et al., ICLR 2023. Each round begins with a batch that only measures: its gradient is this rank's
    share of the correction, and the mean of all decides whether the round clips. One more dense exchange a round.
    """
    local = LocalSteps(
        period=Every(steps=every), clip=_clip(clip, "local"), correction="resampled", buffers=buffers
    )
    return _local("episode", send, local)


def episode_pp(
    every: int = 16, *, participants: int | None = None, clip: float | None = None, seed: int = 0,
    send: Method | None = None, buffers: Buffers = "average",
) -> Method:  # fmt: skip
    """Correct by the gradients of the last round a rank took part in, with a sample of ranks a round: EPISODE++.

    Crawshaw et al., NeurIPS 2023. The run begins with a round's worth of batches that only measure.
    """
    local = LocalSteps(
        period=Every(steps=every),
        clip=_clip(clip, "local"),
        correction="stored",
        participants=participants,
        seed=seed,
        buffers=buffers,
    )
    return _local("episode_pp", send, local)


def diloco(
    every: int = 50,
    *,
    rate: float = 0.7,
    momentum: float = 0.9,
    clip: float | None = None,
    convention: Convention = "local",
    send: Method | None = None,
    fragments: int = 1,
    delay: int = 0,
    mix: float = 0.0,
    optimizer_state: OptimizerState = "keep",
    buffers: Buffers = "average",
) -> Method:
    """Step locally, and take the mean drift for the gradient of an outer step with Nesterov momentum: DiLoCo.

    Douillard et al. 2023, whose rounds have 500 steps of AdamW. With ``fragments`` parts of the model are
    synchronised in turn, ``delay`` steps after their exchange began, and mixed: Streaming DiLoCo.
    """
    local = LocalSteps(
        period=Every(steps=every),
        clip=_clip(clip, convention),
        outer=OuterStep(rate=rate, momentum=momentum),
        optimizer_state=optimizer_state,
        buffers=buffers,
        fragments=fragments,
        delay=delay,
        mix=mix,
    )
    return _local("diloco", send, local)


def sparseloco(
    every: int = 30,
    *,
    k: int = 64,
    chunk: int = 4096,
    values: Codec | str = "binned",
    decay: float = 0.95,
    rate: float = 1.0,
    over: Over = "ranks",
    clip: float | None = None,
    convention: Convention = "local",
    buffers: Buffers = "average",
    exchange: Carrier = "gather",
) -> Method:
    """Send the k largest of each chunk of the drift, coarsely rounded, and let the rest fade: SparseLoCo.

    2025, arXiv 2508.15706. What is owed fades by ``decay`` a round and takes the place of outer momentum. ``over``
    says whether an entry's mean is over all ranks (the paper's formula) or over those that sent it (its code).
    ``values`` have two bits, those of small parameters that are sent whole too; a codec such as ``Binned(bits=4)``,
    or a word, says otherwise.
    """
    send = Method(
        name="sparseloco",
        compressor=ChunkTopK(k=k, chunk=chunk),
        exchange=carried(exchange, values, over=over),
        tuner=Constant(),
        memory="update",
        scope="layer",
        decay=decay,
    )
    local = LocalSteps(
        period=Every(steps=every), clip=_clip(clip, convention), outer=OuterStep(rate=rate), buffers=buffers
    )
    return _local("sparseloco", send, local)


def spartan(
    every: int = 4,
    *,
    density: float = 0.01,
    clip: float | None = None,
    outer_rate: float = 1.0,
    outer_momentum: float = 0.6,
    restart: float | None = None,
    buffers: Buffers = "average",
    values: Codec | str = "int4",
    exchange: Carrier = "gather",
) -> Method:
    """Step locally with clipping, send the largest entries of the drift and owe the rest: all of it at once.

    What our measurements can defend (docs/local.md): short rounds clipped as CELGC is, one selection over the
    whole drift, four bits a value, a rank that restarts with its share of what it owes, and an outer step with some
    momentum. It keeps the inner optimizer as it is.
    """
    local = LocalSteps(
        period=Every(steps=every),
        clip=_clip(clip, "local"),
        outer=OuterStep(rate=outer_rate, momentum=outer_momentum),
        restart=restart,
        buffers=buffers,
    )
    send = topk(density, memory="update", scope="model", values=values, exchange=exchange)
    return _local("spartan", send, local)


def _local(name: str, send: Method | None, local: LocalSteps) -> Method:
    """Return a method whose drifts travel as ``send`` says."""
    if send is None:
        send = dense()
    if not isinstance(send, Method):
        raise TypeError(f"send must be a method such as topk(0.01), which says how drifts travel, got {send!r}.")
    if send.local is not None:
        raise ValueError(
            f"send={send.name}() has local steps of its own. Give a method that exchanges in every step."
        )
    if local.participants is not None and isinstance(send.compressor, Dense) and send.exchange.lossless:
        send = replace(send, exchange=GatherMean())
    # Momentum of drifts is the outer step's.
    return replace(send, name=name, local=local, momentum="optimizer", masking=False)


def _period(law: Law, every: int, over_steps: int, budget: float) -> Period:
    check_choice("period", law, get_args(Law))
    if law == "growing":
        return Growing(first=1, last=every, steps=over_steps)
    if law == "adacomm":
        return AdaComm(first=every)
    if law == "drift":
        return DriftBudget(budget=budget, first=every, most=4 * every)
    return Every(steps=every)


def _clip(norm: float | None, convention: Convention) -> LocalClip | None:
    return None if norm is None else LocalClip(norm=norm, convention=convention)
