"""Checks of plain arguments: what was given, what is wanted, what to write."""

from __future__ import annotations

from math import isfinite


def check_share(name: str, value: object, hint: str) -> None:
    """Refuse anything but a number in (0, 1]; ``hint`` says what to write."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise ValueError(f"{name} must be a number in (0, 1], got {value!r}. {hint}")


def check_number(name: str, value: object, least: float, hint: str) -> None:
    """Refuse anything but a finite number of at least ``least``; ``hint`` says what to write."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not isfinite(value) or value < least:  # type: ignore[arg-type,operator]
        raise ValueError(f"{name} must be a finite number of {least:g} or more, got {value!r}. {hint}")


def check_whole(name: str, value: object, least: int, hint: str) -> None:
    """Refuse anything but a whole number of at least ``least``; ``hint`` says what to write."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number of {least} or more, got {value!r}. {hint}")


def check_choice(name: str, value: object, wanted: tuple[str, ...]) -> None:
    """Refuse anything but one of the words wanted."""
    if value not in wanted:
        raise ValueError(f"{name} must be one of {', '.join(wanted)}; got {value!r}.")


def check_amounts(floor: float, ceiling: float) -> None:
    """Refuse anything but two shares in order: the least and the most that may be sent."""
    check_share("floor", floor, "For at least a thousandth write 0.001.")
    check_share("ceiling", ceiling, "For at most half of the entries write 0.5.")
    if floor > ceiling:
        raise ValueError(f"floor must be at most the ceiling {ceiling!r}, got {floor!r}. Write a smaller floor.")
