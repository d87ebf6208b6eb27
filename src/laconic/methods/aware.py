"""Methods that send what is worth its cost."""

from __future__ import annotations

from typing import Literal, get_args

from laconic import costs
from laconic.arguments import check_choice, check_share
from laconic.coding import Codec
from laconic.compressors import StdThreshold, Stochastic, TopK
from laconic.costs import Cost, Seconds
from laconic.guard import Guard
from laconic.method import Method, Scope, Unit
from laconic.methods.parts import Carrier, carried
from laconic.tuners import Budget, Cat, Constant
from laconic.tuners.cat import Coding, Weighed
from laconic.types import Compressor, Tuner

Rule = Literal["top", "sign", "random"]
_GAINS: dict[Rule, Weighed] = {"top": "lag", "sign": "beta", "random": "omega"}


def cat(
    cost: Cost | str = "seconds",
    *,
    rule: Rule = "top",
    per: Scope = "model",
    start: float = 0.01,
    floor: float = 1e-4,
    ceiling: float = 0.5,
    gain: Weighed | None = None,
    coding: Coding = "wire",
    share: float | None = None,
    bits_per_second: float | None = None,
    memory: Unit | None = None,
    whole_below: int = 1024,
    values: Codec | str | None = None,
    exchange: Carrier = "gather",
) -> Method:
    """Send at every step the amount with the most descent for its cost: CAT, Khirirat et al. 2021.

    ``cost`` is one of ``laconic.costs`` or its name: ``bits``, ``packets``, ``udp``, ``802.15.4``, ``paper`` or
    ``seconds``, which are measured while training. ``rule``: the ``top`` entries with memory, their ``sign`` and
    mean magnitude with memory, or entries at ``random``, unbiased and without memory, where each rank chooses its
    own amount if the cost is fixed (as published for several nodes). ``per="layer"`` goes bucket by bucket with one
    threshold for all layers, so that the last entry gains the same everywhere; ``per="model"`` waits for the last
    bucket. The share sent begins at ``start`` and stays between ``floor`` and ``ceiling``. ``gain`` is what is
    weighed against the cost: by default what ``Cat`` has for the rule, with memory ``lag``. ``values`` are written
    as a codec says, or its word: by default exactly, and with ``sign`` in one bit, those of parameters that are
    sent whole too.

    Instead of the best amount: the most that takes at most ``share`` of a step's time, or ``bits_per_second`` of
    each rank's link.
    """
    check_choice("rule", rule, get_args(Rule))
    check_choice("per", per, get_args(Scope))
    check_share("start", start, "It is the share sent before anything is known.")
    start = min(max(start, floor), ceiling)
    _check_start(start, rule, per)
    written = _written(values, rule)
    price = costs.by_name(cost) if isinstance(cost, str) else cost
    if gain is None:
        gain = "alpha" if rule == "top" and memory == "none" else _GAINS[rule]
    tuner = _tuner(price, gain, coding, floor, ceiling, share, bits_per_second)
    # Where each rank chooses its own amount there is nothing to agree on.
    own = rule == "random" and isinstance(tuner, Cat) and not tuner.measures and coding == "wire"
    if rule == "random" and memory is None:
        memory = "none"
    return Method(
        name="cat",
        compressor=(
            Stochastic(density=start, cost=price, whole_below=whole_below, floor=floor, ceiling=ceiling)
            if own
            else _chooser(rule, per, start, whole_below)
        ),
        exchange=carried(exchange, written),
        tuner=Constant() if own else tuner,
        memory="update" if memory is None else memory,
        scope=per,
        guard=None if memory == "none" else Guard(),
    )


def _check_start(start: float, rule: Rule, per: Scope) -> None:
    if start == 1 and (rule == "random" or per == "layer"):
        raise ValueError(
            f"start must be below 1 with rule={rule!r} and per={per!r}, got 1: where all is sent there is nothing "
            f"to move. Write a smaller floor and start."
        )


def _written(values: Codec | str | None, rule: Rule) -> Codec | str:
    """Return how values are written; ``sign`` says so itself."""
    if rule == "sign" and values is not None:
        raise ValueError(f"rule='sign' says how values are written, got values={values!r}. Leave them out.")
    if values is None:
        return "sign" if rule == "sign" else "exact"
    return values


def _chooser(rule: Rule, per: Scope, start: float, whole_below: int) -> Compressor:
    """Return what chooses entries, as many as it is told."""
    if rule == "random":
        return Stochastic(density=start, whole_below=whole_below)
    if per == "layer" and rule == "top":
        return StdThreshold(c=1.0, over="model", running=0.9, whole_below=whole_below).at_density(start)
    return TopK(density=start, whole_below=whole_below)


def _tuner(
    price: Cost,
    gain: Weighed,
    coding: Coding,
    floor: float,
    ceiling: float,
    share: float | None,
    bits_per_second: float | None,
) -> Tuner:
    if share is None and bits_per_second is None:
        return Cat(cost=price, gain=gain, coding=coding, floor=floor, ceiling=ceiling)
    if not isinstance(price, Seconds) or not price.measured:
        raise ValueError(
            f"a budget of time or bits a second is kept on the link as it is measured, got cost={price!r}. Leave "
            f"the cost out, or the budget."
        )
    return Budget(share=share, bits_per_second=bits_per_second, floor=floor, ceiling=ceiling)
