"""Values in a message: known ones, then chosen ones, in a codec's form, with the numbers that a span shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from laconic import kernels
from laconic.coding import Codec, Coded, Form
from laconic.types import Payload


@dataclass(frozen=True, kw_only=True)
class Written:
    """What goes into a message, and the values as they will be read."""

    numbers: Tensor
    known: Tensor
    chosen: Tensor
    sent_known: Tensor
    sent_chosen: Tensor


@dataclass(frozen=True, kw_only=True)
class Shared:
    """How values are written, and a row of numbers a span."""

    form: Form
    numbers: Tensor

    def split(self, at: int) -> tuple[Shared, Shared]:
        """Return the first spans, and the others."""
        return (
            Shared(form=self.form, numbers=self.numbers[:at]),
            Shared(form=self.form, numbers=self.numbers[at:]),
        )


def encode_values(codec: Codec, payload: Payload, known: Sequence[int], ends: Tensor, *, seed: int) -> Written:
    """Write a payload's values: the known ones of these sizes, and chosen ones whose spans end at ``ends``."""
    form, count = codec.form, payload.known.numel()
    if form.kind == "float":
        return Written(
            numbers=payload.known[:0],
            known=payload.known,
            chosen=payload.values,
            sent_known=payload.known,
            sent_chosen=payload.values,
        )
    values = torch.cat([payload.known, payload.values])
    edges = torch.cat([ends_of(known, values.device), ends + count])
    coded = codec.encode(values, edges, seed=seed)
    sent = meant(coded, edges, form).to(values.dtype)
    return Written(
        numbers=coded.numbers,
        known=raw_codes(coded.codes[:count], form),
        chosen=raw_codes(coded.codes[count:], form),
        sent_known=sent[:count],
        sent_chosen=sent[count:],
    )


def read_values(raw: Tensor, shared: Shared, sizes: Sequence[int]) -> Tensor:
    """Return values, so many of each span."""
    form, count, dtype = shared.form, sum(sizes), shared.numbers.dtype
    if form.kind == "float":
        return raw.view(dtype)[:count]
    if form.kind == "bfloat16":
        return raw.view(torch.bfloat16)[:count].to(dtype)
    if not count:
        # Nothing to read is no reason to launch what reads.
        return raw.new_empty(0, dtype=dtype)
    codes = kernels.unpack_codes(raw, form.bits, count)
    return kernels.dequantise(codes, ends_of(sizes, raw.device), shared.numbers, form)


def on_device(numbers: Sequence[int], device: torch.device) -> Tensor:
    """Return whole numbers as a tensor there, without waiting for it."""
    return torch.tensor(numbers, dtype=torch.int64).to(device, non_blocking=True)


def ends_of(sizes: Sequence[int], device: torch.device) -> Tensor:
    """Return where spans of these sizes end, one behind the other."""
    return torch.tensor(sizes, dtype=torch.int64).cumsum(0).to(device, non_blocking=True)


def meant(coded: Coded, ends: Tensor, form: Form) -> Tensor:
    """Return what codes stand for, whose spans end there."""
    return kernels.dequantise(coded.codes, ends, coded.numbers, form) if form.numbers else coded.codes


def raw_codes(codes: Tensor, form: Form) -> Tensor:
    """Return codes as they are written."""
    return kernels.pack_codes(codes, form.bits) if form.numbers and codes.numel() else codes
