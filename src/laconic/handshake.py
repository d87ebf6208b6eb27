"""Before the first exchange: do all ranks have the same method, the same model and the same step?

Two rounds at most. Digests first; only if they differ do the ranks exchange what they stand for, so that
every rank can name both sides and none waits for a partner that will never come.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from laconic.errors import GroupError
from laconic.types import AllGather, Reply, Request

_TEXT_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Identity:
    """What ranks must have in common."""

    method: str
    model: tuple[str, ...]
    step: int = 0

    def fingerprint(self) -> int:
        """Digest method and model (not the step) into 63 bits."""
        text = json.dumps([self.method, self.model])
        return int.from_bytes(hashlib.blake2s(text.encode(), digest_size=8).digest(), "little") >> 1


def handshake(own: Identity, *, rank: int, device: torch.device) -> Generator[Request, Reply, None]:
    """Raise ``GroupError`` on every rank if any two ranks differ."""
    words = torch.tensor([own.fingerprint(), own.step], dtype=torch.int64).view(torch.uint8)
    rows = yield AllGather(send=words.to(device))
    table = rows.cpu().view(torch.int64).tolist()
    others = [r for r, row in enumerate(table) if row != table[0]]
    if not others:
        return
    texts = yield AllGather(send=_text(own).to(device))
    first, second = _identity(texts[0]), _identity(texts[others[0]])
    raise GroupError(f"ranks disagree (seen from rank {rank}): {_difference(first, second, others[0])}")


def _difference(first: Identity, second: Identity, rank: int) -> str:
    if first.method != second.method:
        return (
            f"rank 0 runs {first.method}, rank {rank} runs {second.method}. "
            f"Give every rank the same method, settings and group."
        )
    if first.model != second.model:
        return f"{_model_difference(first.model, second.model, rank)} Build the same model on every rank."
    return (
        f"rank 0 is at step {first.step}, rank {rank} at step {second.step}. "
        f"Load checkpoints of the same step on every rank."
    )


def _model_difference(first: tuple[str, ...], second: tuple[str, ...], rank: int) -> str:
    for ours, theirs in zip(first, second, strict=False):
        if ours != theirs:
            return f"rank 0 has parameter '{ours}' where rank {rank} has '{theirs}'."
    return f"rank 0's model has {len(first)} tensors, rank {rank}'s has {len(second)}."


def _text(identity: Identity) -> Tensor:
    raw = json.dumps(asdict(identity)).encode()
    if len(raw) > _TEXT_BYTES:
        # A very large model: what fits still names the first parameters, and the count tells the rest.
        fitting, size = [], len(identity.method) + 1000
        for line in identity.model:
            size += len(line) + 8
            if size > _TEXT_BYTES:
                break
            fitting.append(line)
        model = (*fitting, f"... {len(identity.model)} in all")
        raw = json.dumps(asdict(identity) | {"model": model}).encode()
    return torch.frombuffer(bytearray(raw.ljust(_TEXT_BYTES, b" ")[:_TEXT_BYTES]), dtype=torch.uint8)


def _identity(row: Tensor) -> Identity:
    fields = json.loads(bytes(row.cpu().tolist()))
    return Identity(method=fields["method"], model=tuple(fields["model"]), step=fields["step"])
