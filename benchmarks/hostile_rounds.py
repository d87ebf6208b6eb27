"""Hostile bytes for the two rounds of ``sharded_mean``."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from guarded import Guarded
from numpy.typing import NDArray
from striking import CODECS, KINDS, Seen, mutate_

from laconic import wire
from laconic.coding import Codec
from laconic.compressors import Dense, RandomK, StdThreshold, TopK
from laconic.errors import LaconicError
from laconic.exchanges import ShardedMean
from laconic.exchanges.lettering import frame_of, header_of
from laconic.segments import Segments
from laconic.shards import first_cut, shards_of
from laconic.types import Envelope

RANKS = 3
_RULES = (
    TopK(density=0.1, whole_below=100),
    StdThreshold(c=1.0, whole_below=100),
    RandomK(density=0.2),
    Dense(),
)


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """What rank 0 hears in both rounds, as bytes, and what it reads them by."""

    deal: wire.Deal
    header: wire.Header
    heard: NDArray[np.uint8]
    told: NDArray[np.uint8]

    def read(self, raw: NDArray[np.uint8], *, second: bool) -> str:
        """Read struck bytes; return what is wrong with what came of them, or raise as the exchange would."""
        if second:
            learnt = self.deal.learn(torch.from_numpy(raw).view(RANKS, -1), self.header)
            entries, counts = learnt.entries, [h.count for h in learnt.headers]
        else:
            came = self.deal.hear(torch.from_numpy(raw), self.header)
            entries, counts = came.entries, came.counts
        at, ends = entries.positions, np.cumsum([0, *counts])
        numel = self.deal.frame.plan.choosing.numel + self.deal.frame.plan.known_count
        apart = [at[a:b] for a, b in pairwise(ends)]
        if at.numel() != ends[-1] or entries.values.numel() != ends[-1]:
            return "not as many entries as were counted"
        ordered = all(bool((part.diff() > 0).all()) for part in apart)
        return "" if ordered and bool(((at >= 0) & (at < numel)).all()) else "positions that cannot be"


def rounds_of(chance: np.random.Generator, codec: Codec) -> Rounds:
    """Draw a model and a compressor, and run an exchange of three ranks."""
    sizes = [int(n) for n in chance.choice([0, 1, 40, 300, 900], 5)]
    segments = Segments.of([str(i) for i in range(len(sizes))], [*sizes[:-1], sizes[-1] + 1])
    rule = _RULES[int(chance.integers(len(_RULES)))]
    xs = [torch.from_numpy(chance.standard_normal(segments.numel).astype(np.float32)) for _ in range(RANKS)]
    envelopes = [Envelope(step=3, world_size=RANKS, rank=rank) for rank in range(RANKS)]
    steps = [ShardedMean(values=codec).steps(x, segments, rule, e) for x, e in zip(xs, envelopes, strict=True)]
    given = [next(s) for s in steps]
    replies = [torch.cat([g.send.split(g.given)[rank] for g in given]) for rank in range(RANKS)]
    told = torch.stack([s.send(reply).send for s, reply in zip(steps, replies, strict=True)])
    plan = rule.plan(segments, step=3, rooms={})
    frame = frame_of(plan, codec, xs[0], envelopes[0])
    cut = first_cut(plan, ranks=RANKS, numel=segments.numel, value_bits=frame.value_bits)
    return Rounds(
        deal=wire.Deal(frame=frame, shards=shards_of(plan, cut), rank=0),
        header=header_of(None, frame, envelopes[0]),
        heard=replies[0].numpy(),
        told=told.flatten().numpy(),
    )


def strike_rounds(seen: Seen, total: int, *, seed: int) -> None:
    """Read what ranks give and tell in an exchange of two rounds, flush with a closed page."""
    chance, at, done = np.random.default_rng((seed, 3)), Guarded(1 << 16), 0
    while done < total:
        codec = CODECS[int(chance.integers(len(CODECS)))]
        case, second = rounds_of(chance, codec), bool(chance.integers(2))
        sound = case.told if second else case.heard
        rows = np.repeat(sound[None], min(50, total - done), 0)
        mutate_(rows, KINDS[int(chance.integers(len(KINDS) - 1))], chance, first=int(chance.choice([0, 8])))
        home = at.take(sound.size)
        for row in rows:
            home[:] = row
            fault, read = "", False
            try:
                fault, read = case.read(home, second=second), True
            except LaconicError:
                pass
            except Exception as error:
                fault = f"{type(error).__name__}: {error}"
            if not np.array_equal(home, row) or not at.whole:
                fault = "the input was changed, or a canary died"
            seen.note("second round" if second else "first round", read=read, fault=fault)
        done += len(rows)
