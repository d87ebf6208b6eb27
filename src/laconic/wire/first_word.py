"""The first word of what a rank gives to another in the first of two rounds: who it is, what it has, and a seal.

It has a mark, the last bits of the step, the last bits of a digest of what ranks agree on with the seal of the part
mixed into them, and how many entries the rank has chosen.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from laconic import seals
from laconic.errors import GroupError, WireError
from laconic.wire.header import VERSION, Header

_MARK = 0xA0 | VERSION
_DIGEST_AT, _DIGEST_BITS = 16, 16


def first_word(own: Header) -> int:
    """Return the first word of a part, but for count and seal."""
    agreed = f"{own.fingerprint} {own.rates} {own.value_bytes} {own.written}"
    digest = zlib.crc32(agreed.encode()) & ((1 << _DIGEST_BITS) - 1)
    return _MARK | (own.step & 0xFF) << 8 | digest << _DIGEST_AT


def seal_parts_(given: Tensor, begins: Sequence[int]) -> Tensor:
    """Mix the seal of each part into its first word, and return all of them; ``begins`` counts words."""
    places = torch.tensor(begins, device=given.device)
    seal = seals.short_of(seals.part_sums(given, places), _DIGEST_BITS)
    given.view(torch.int64)[places[:-1]] ^= seal << _DIGEST_AT
    return given


def chosen_by(words: Sequence[int], totals: Sequence[int], own: Header, begin: int) -> list[int]:
    """Return how many entries each rank has chosen, by the first words; raise unless they are as they should be.

    ``totals`` are the sums of the parts, which begin at word ``begin`` of all that a rank gives.
    """
    return [
        _chosen(word, total, own, begin, rank) for rank, (word, total) in enumerate(zip(words, totals, strict=True))
    ]


def _chosen(word: int, total: int, own: Header, begin: int, rank: int) -> int:
    if word & 0xFF != _MARK:
        raise WireError(
            f"rank {rank} sent bytes that are not a laconic message of version {VERSION} (first byte "
            f"{word & 0xFF:#x}, expected {_MARK:#x}). Run the same laconic version on every rank."
        )
    # As it was before the seal was mixed in, if they agree.
    plain = word & ~0xFFFFFFFF | first_word(own)
    seal = seals.short(total + (plain - word) * (2 * begin + 1), _DIGEST_BITS)
    if plain ^ seal << _DIGEST_AT != word:
        raise GroupError(
            f"rank {rank} is at another step, or has another method, model or learning rates, while this rank is "
            f"at step {own.step} with fingerprint {own.fingerprint} and rates {own.rates}; or what it sent was "
            f"damaged on the way. Run the same loop, schedule and checkpoint on every rank."
        )
    return word >> 32
