"""The kernels in use. One visible choice: today the plain-torch definitions, on every device."""

from laconic.kernels.reference import (
    Accumulated,
    Inflow,
    Taken,
    accumulate_,
    add_payloads_,
    all_finite,
    fresh_of,
    segment_norms,
    take_above_,
    take_top_,
    take_where_,
)

__all__ = [
    "Accumulated",
    "Inflow",
    "Taken",
    "accumulate_",
    "add_payloads_",
    "all_finite",
    "fresh_of",
    "segment_norms",
    "take_above_",
    "take_top_",
    "take_where_",
]
