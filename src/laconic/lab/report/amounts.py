"""Numbers from files, and numbers for people."""

from __future__ import annotations

import math
from typing import Any

# A loss beyond this is on its way to infinity: it would flatten every other line of a chart.
_TOO_LARGE = 1e15
NOTHING = "\u2013"
_MINUS = "\u2212"


def number(value: Any) -> float | None:
    """Return a number that can be drawn; None for what is missing, not a number, infinite or as good as infinite.

    >>> number(3), number("3"), number(float("nan")), number(1e300)
    (3.0, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and abs(value) < _TOO_LARGE else None


def plain(value: float | None) -> str:
    """Write a number with four digits that count.

    >>> plain(1.23456), plain(0.9), plain(1234567.0), plain(0.000012345), plain(-0.5)
    ('1.235', '0.9000', '1,234,567', '1.234e-05', '−0.5000')
    """
    if value is None:
        return NOTHING
    size = abs(value)
    if size >= 1000:
        text = f"{size:,.0f}"
    elif size >= 1e-4 or size == 0:
        text = f"{size:.{3 - math.floor(math.log10(size))}f}" if size else "0"
    else:
        text = f"{size:.3e}"
    return f"{_MINUS}{text}" if value < 0 else text


def difference(value: float | None) -> str:
    """Write a difference: its sign, and three digits that count.

    >>> difference(-0.06723), difference(12.0), difference(0.0)
    ('−0.0672', '+12.0', '0')
    """
    if value is None:
        return NOTHING
    return (_MINUS if value < 0 else "+") + _three(abs(value)) if value else "0"


def size(count: float | None) -> str:
    """Write a number of bytes.

    >>> size(999), size(12_345), size(7_654_321), size(4.56e12)
    ('999 B', '12.3 kB', '7.65 MB', '4.56 TB')
    """
    if count is None:
        return NOTHING
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        # 999.6 of a unit would be written as 1000 of it.
        if abs(count) < 999.5 or unit == "PB":
            break
        count /= 1000
    return f"{count:.0f} B" if unit == "B" else f"{_three(count)} {unit}"


def rate(bits_per_second: float | None) -> str:
    """Write how fast a link is.

    >>> rate(950.0), rate(8.123e8), rate(2.5e12), rate(None)
    ('950 bit/s', '812 Mbit/s', '2,500 Gbit/s', '–')
    """
    if bits_per_second is None:
        return NOTHING
    for unit in ("bit/s", "kbit/s", "Mbit/s", "Gbit/s"):
        if bits_per_second < 999.5 or unit == "Gbit/s":
            break
        bits_per_second /= 1000
    return f"{_three(bits_per_second)} {unit}"


def whole(count: float | None) -> str:
    """Write how often something happened.

    >>> whole(12_345.0), whole(None)
    ('12,345', '–')
    """
    return NOTHING if count is None else f"{count:,.0f}"


def share(value: float | None) -> str:
    """Write a share as a percentage.

    >>> share(1.0), share(0.0123), share(0.00001), share(0.0)
    ('100%', '1.23%', '0.001%', '0%')
    """
    return NOTHING if value is None else f"{100 * value:.3g}%" if value < 1e4 else plain(value)


def times(value: float | None) -> str:
    """Write a ratio.

    >>> times(49.12), times(612.3), times(None)
    ('49.1x', '612x', '–')
    """
    return NOTHING if value is None else f"{_three(value)}x"


def milliseconds(seconds: float | None) -> str:
    """Write seconds as milliseconds.

    >>> milliseconds(0.04567)
    '45.7'
    """
    return NOTHING if seconds is None else _three(1000 * seconds)


def span(seconds: float | None) -> str:
    """Write how long a training took.

    >>> span(29.04), span(754), span(5000), span(45_000)
    ('29.0 s', '754 s', '83.3 min', '12.5 h')
    """
    if seconds is None:
        return NOTHING
    if seconds < 1000:
        return f"{_three(seconds)} s"
    return f"{_three(seconds / 60)} min" if seconds < 6000 else f"{_three(seconds / 3600)} h"


def _three(value: float) -> str:
    """Write a number with three digits that count, or all of its whole ones.

    >>> _three(1.0), _three(12.34), _three(999.9), _three(0.33), _three(0.0123)
    ('1.00', '12.3', '1,000', '0.330', '0.0123')
    """
    size = abs(value)
    if size >= 99.95:
        return f"{value:,.0f}"
    if size < 1e-4:
        return f"{value:.3g}"
    return f"{value:.1f}" if size >= 9.995 else f"{value:.{2 - math.floor(math.log10(size))}f}"
