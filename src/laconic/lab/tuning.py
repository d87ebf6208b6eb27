"""What a tuner that weighs gain against cost has chosen, as a run's files and people are told it."""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan
from typing import Any

from laconic.lab.report.amounts import milliseconds, number, rate, whole
from laconic.stats import Tuning


def told(tuning: Tuning, *, curve: bool) -> dict[str, Any]:
    """Return a tuning as plain data, without what is not known; with its curve, rounded, where that is wanted.

    >>> told(Tuning(count=40.0, gain=0.5, cost=100.0, unit="bits"), curve=False)
    {'count': 40.0, 'unit': 'bits', 'gain': 0.5, 'cost': 100.0, 'efficiency': 0.005}
    """
    names = ("gain", "cost", "efficiency", "latency_seconds", "bits_per_second")
    numbers = {name: getattr(tuning, name) for name in names}
    out: dict[str, Any] = {"count": tuning.count, "unit": tuning.unit}
    # A budget has no gain, and a link that was not measured has no rate.
    out |= {name: value for name, value in numbers.items() if not isnan(value)}
    if curve and tuning.curve:
        out["curve"] = [[float(f"{count:.6g}"), float(f"{worth:.4g}")] for count, worth in tuning.curve]
    return out


def in_words(said: Mapping[str, Any]) -> str:
    """Say in a sentence what ``told`` has: the amount, what it was weighed by, and the link as it was fitted.

    >>> in_words({"count": 1234.0, "unit": "bits", "efficiency": 9.0})
    'T is 1,234 entries a rank, for the most gain a bit'
    >>> in_words({"count": 1234.0, "latency_seconds": 0.002, "bits_per_second": 8e6})
    'T is 1,234 entries a rank; the link as fitted: 2.00 ms and 8.00 Mbit/s'
    """
    text = f"T is {whole(number(said.get('count')))} entries a rank"
    if number(said.get("efficiency")) is not None:
        text += f", for the most gain a {one_of(said.get('unit'))}"
    latency, speed = number(said.get("latency_seconds")), number(said.get("bits_per_second"))
    if latency is None:
        return text
    # Where more bytes were seen to take no longer, there is no rate.
    per_bit = f" and {rate(speed)}" if speed is not None else ", whatever the size of a message"
    return f"{text}; the link as fitted: {milliseconds(latency)} ms{per_bit}"


def one_of(unit: object) -> str:
    """Return a unit's name for one of it.

    >>> one_of("bits")
    'bit'
    """
    return str(unit or "unit").removesuffix("s")
