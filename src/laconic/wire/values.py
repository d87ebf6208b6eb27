"""Values in a message: known ones, then chosen ones, in a codec's form, with the numbers that a span shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from laconic import kernels
from laconic.coding import Codec, Coded, Form
from laconic.kernels.copies import ends_on, numbers_on
from laconic.types import Payload

# Values of all ranks that are read in one go.
MANY = 1 << 20


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
    """How values are written, and for each rank a row of numbers a span."""

    form: Form
    numbers: Tensor

    def split(self, at: int) -> tuple[Shared, Shared]:
        """Return the first spans, and the others."""
        return (
            Shared(form=self.form, numbers=self.numbers[:, :at]),
            Shared(form=self.form, numbers=self.numbers[:, at:]),
        )

    def of(self, rank: int) -> Shared:
        """Return what one rank's spans share."""
        return Shared(form=self.form, numbers=self.numbers[rank : rank + 1])


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
    values, edges = payload.values, ends
    if known:
        values = torch.cat([payload.known, payload.values])
        edges = torch.cat([ends_of(known, values.device), ends + count])
    coded = codec.encode(values, edges, seed=seed)
    sent = meant(coded, edges, form).to(values.dtype)
    return Written(
        numbers=coded.numbers,
        known=raw_codes(coded.codes[:count], form),
        chosen=raw_codes(coded.codes[count:] if count else coded.codes, form),
        sent_known=sent[:count] if count else payload.known,
        sent_chosen=sent[count:] if count else sent,
    )


def read_values(raw: Tensor, shared: Shared, sizes: Sequence[Sequence[int]]) -> list[Tensor]:
    """Return the values of each rank, a row of bytes and of numbers each, so many of each span."""
    form, dtype, counts = shared.form, shared.numbers.dtype, [sum(each) for each in sizes]
    if form.kind == "float":
        return _first(raw.view(dtype), counts)
    if not any(counts):
        # Nothing to read is no reason to launch what reads.
        return [raw.new_empty(0, dtype=dtype)] * len(counts)
    if len(counts) > 1 and sum(counts) > MANY:
        # What lies between bytes and values is then too large to have of all ranks at a time.
        return [read_values(raw[i : i + 1], shared.of(i), [each])[0] for i, each in enumerate(sizes)]
    if form.kind == "bfloat16":
        return _first(raw.view(torch.bfloat16)[:, : max(counts)].to(dtype), counts)
    codes = kernels.unpack_codes(raw, form.bits, max(counts))
    together = codes.reshape(-1) if min(counts) == max(counts) else torch.cat(_first(codes, counts))
    ends = ends_of([size for each in sizes for size in each], raw.device)
    values = kernels.dequantise(together, ends, shared.numbers.flatten(0, 1), form)
    return list(values.split(counts))


def _first(rows: Tensor, counts: Sequence[int]) -> list[Tensor]:
    """Return so many of each row."""
    return [row[:count] for row, count in zip(rows.unbind(), counts, strict=True)]


def on_device(numbers: Sequence[int], device: torch.device) -> Tensor:
    """Return whole numbers as a tensor there, without waiting for it; it is not to be written to."""
    return numbers_on(device, tuple(numbers))


def ends_of(sizes: Sequence[int], device: torch.device) -> Tensor:
    """Return where spans of these sizes end, one behind the other; it is not to be written to."""
    return ends_on(device, tuple(sizes))


def meant(coded: Coded, ends: Tensor, form: Form) -> Tensor:
    """Return what codes stand for, whose spans end there."""
    return kernels.dequantise(coded.codes, ends, coded.numbers, form) if form.numbers else coded.codes


def raw_codes(codes: Tensor, form: Form) -> Tensor:
    """Return codes as they are written."""
    return kernels.pack_codes(codes, form.bits) if form.numbers and codes.numel() else codes
