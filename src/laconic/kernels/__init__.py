"""The kernels in use. One visible choice: today the plain-torch definitions, on every device."""

from laconic.kernels.reference import (
    SegmentSums,
    Taken,
    accumulate_,
    add_payloads_,
    all_finite,
    take_above_,
    take_top_,
)

__all__ = ["SegmentSums", "Taken", "accumulate_", "add_payloads_", "all_finite", "take_above_", "take_top_"]
