"""What to do: the quickest of the methods that came near dense training where we measured them, or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, sqrt

from laconic.lab.method_words import make, name_of
from laconic.plan.facts import Facts, Rehearsed
from laconic.plan.predict import Link, Prediction, predict

PLAIN, HALF = "ddp", "ddp-fp16"
# Methods that may be advised, as words of the command line, and what they came to: validation loss against dense
# training of a small LSTM. local_sgd (+68.8%) and qsgd (levels=7: +23%) are not here for what they lost.
REACHED = {
    "dense": "the mean that plain DDP has",
    "topk": "up to +2.1% with SGD (docs/exchanges.md), +9.6% with momentum, +12.6% with AdamW (docs/local.md)",
    "topk:density=0.001:memory=update:scope=model": "+12.6% to +15.1% with SGD (docs/local.md)",
    "sdagc": "+5.1% with SGD, +5.6% with momentum, +13.5% with AdamW, one seed (docs/results.md)",
    "dgc:density=0.0045:warmup_steps=25": "+0.7% with SGD, +6.1% with momentum (docs/sdagc.md)",
    "cat": "not set beside dense; about what the best densities of topk came to (docs/cat.md)",
    "celgc": "clipped at 0.25 +7.4%, at 1 +4.8%, with SGD (docs/local.md)",
    "celgc:every=4": "clipped at 1 +2.6% with SGD, +0.3% with momentum, +7.8% with AdamW (docs/local.md)",
    "spartan": "clipped, +3.5% with SGD, +4.6% with momentum, -2.1% with AdamW, one seed (docs/results.md)",
    "spartan:density=0.05:outer_rate=1.2:outer_momentum=0.3:values=exact": (
        "clipped, +0.1% to +1.6% (docs/local.md)"
    ),
    "powersgd": "+1.5% with SGD, one seed (docs/exchanges.md)",
}
# What is gained has to be worth a method that is not plain.
_WORTH = 1.1
_SLOWEST, _FASTEST = 1e-3, 1e6


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What to take (``ddp``: don't), in words, and the fastest link on which something pays; 0: none does.

    ``reached`` says what its quality came to where we measured it.
    """

    method: str
    text: str
    reached: str
    pays_below: float
    predictions: tuple[Prediction, ...]


def advise(facts: Facts, link: Link) -> Advice:
    """Rank the methods by their predicted step, and say which to take."""
    ranked = sorted((predict(facts, method, link) for method in facts.methods), key=lambda p: p.seconds)
    by_name = {prediction.name: prediction for prediction in ranked}
    best = next(p for p in ranked if is_known(p.name))
    plain, half, below = by_name[PLAIN], by_name.get(HALF), pays_below(facts, link)
    if plain.seconds <= _WORTH * best.seconds:
        chosen, text = PLAIN, f"Don't: plain DDP is within 10% of {_best(best, plain)}. {_when(below)}"
    elif half is not None and half.seconds <= _WORTH * best.seconds:
        chosen = HALF
        text = f"PyTorch's fp16 hook is enough: it is within 10% of {_best(best, half)}. {_when(below)}"
    else:
        chosen = best.name
        text = f"{best.name}: {plain.seconds / best.seconds:.3g} times faster than plain DDP"
        text += "" if half is None else f", {half.seconds / best.seconds:.3g} times faster than its fp16 hook"
        text += f". {_when(below)}"
    known = reached(next(method for method in facts.methods if method.name == chosen))
    return Advice(method=chosen, text=text, reached=known, pays_below=below, predictions=tuple(ranked))


def pays_below(facts: Facts, link: Link) -> float:
    """Return the megabits a second below which some method beats plain DDP by more than 10%, by bisection.

    Infinite if one does on every link, 0 if none does on any.
    """
    methods = [method for method in facts.methods if is_known(method.name)]
    if _gain(facts, methods, replace(link, bandwidth=_FASTEST)) > _WORTH:
        return inf
    low, high = _SLOWEST, _FASTEST
    if _gain(facts, methods, replace(link, bandwidth=low)) <= _WORTH:
        return 0.0
    while high / low > 1.01:
        middle = sqrt(low * high)
        if _gain(facts, methods, replace(link, bandwidth=middle)) > _WORTH:
            low = middle
        else:
            high = middle
    return low


def is_known(name: str) -> bool:
    """Whether a method may be advised, whatever its settings: ``reached`` says whether those were measured.

    >>> is_known("topk:density=0.01"), is_known("qsgd")
    (True, False)
    """
    return _family(name) in (*map(_family, REACHED), PLAIN, HALF)


def reached(method: Rehearsed) -> str:
    """Say what a method's quality came to at its settings, or that nobody measured that."""
    if method.name == PLAIN:
        return ""
    near = [word for word in REACHED if _family(word) == _family(method.name)]
    for word in near:
        if repr(make(word)) == method.setting:
            return f"{method.name} where it was measured, against dense: {REACHED[word]}."
    others = "".join(f" {word}: {REACHED[word]}." for word in near)
    return f"{method.name} was not measured against dense at these settings.{others}"


def _family(name: str) -> str:
    return name_of(name.removesuffix(" by nodes"))


def _gain(facts: Facts, methods: Sequence[Rehearsed], link: Link) -> float:
    """How many times faster than plain DDP the fastest method is."""
    seconds = {method.name: predict(facts, method, link).seconds for method in methods}
    return seconds[PLAIN] / min(seconds.values())


def _best(best: Prediction, other: Prediction) -> str:
    return f"the best, {best.name}" if best.name != other.name else "the best, which is itself"


def _when(below: float) -> str:
    if below == inf:
        return "On this host something pays on every link."
    if below == 0.0:
        return "Nothing pays, however slow the link: the model is small, or the latency is all there is."
    return f"With these workers a method begins to pay below {rate(below)}."


def rate(megabits: float) -> str:
    """Write a bandwidth.

    >>> rate(0.5), rate(87.3), rate(2500.0), rate(inf)
    ('0.5 Mbit/s', '87 Mbit/s', '2.5 Gbit/s', 'no limit')
    """
    if megabits == inf:
        return "no limit"
    if megabits >= 1000:
        return f"{megabits / 1000:.2g} Gbit/s" if megabits < 1e5 else f"{megabits / 1000:,.0f} Gbit/s"
    return f"{megabits:.2g} Mbit/s" if megabits < 100 else f"{megabits:.0f} Mbit/s"
