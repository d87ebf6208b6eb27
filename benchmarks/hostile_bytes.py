"""Hostile bytes by the million: a message is refused by an error of ours, or read as entries that can be.

    python benchmarks/hostile_bytes.py

Most mutations go to the loop that reads positions, the only one that follows what bytes say: its two inputs and its
output each end where a page begins that nobody may touch (one step too far ends the process), and a canary stands
before them. The others go as whole messages, in every form of values, through ``wire.unpack`` or to the plain twin,
whose answer must be the same, and to both rounds of ``sharded_mean``. Seals, which would stop nearly all of them,
fit whatever comes, as if whoever struck had sealed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
import tyro
from guarded import Bytes, Guarded
from hostile_rounds import strike_rounds
from numba import njit
from numpy.typing import NDArray
from striking import CODECS, KINDS, Seen, mutate_

from laconic import kernels, seals, wire
from laconic.coding import Blocks, Codec, blocks_of
from laconic.errors import LaconicError
from laconic.kernels import cpu_codes as loops
from laconic.kernels import reference_coding
from laconic.lab.folder import write_json
from laconic.lab.machine import machine
from laconic.segments import Segments
from laconic.types import Payload, Plan

BATCH = 1000
EDGES = np.array([-(2**63), -1, 0, 1, 2**31 - 1, 2**31, 2**62, 2**63 - 1], np.int64)
HEADER = wire.Header(fingerprint=7, step=8, count=0, wanted=0, finite=True, rates=5, value_bytes=4)
FAULTS = ("", "", "positions that cannot be", "the input was changed")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Mutate messages and read them."""

    mutations: int = 2_000_000
    """How many, of all kinds together."""
    messages: float = 0.06
    """Share of whole messages, half of them of two rounds."""
    plain: float = 0.01
    """Share of rows of positions that the plain twin reads, too."""
    seed: int = 0
    """Another one makes other mutations."""
    out: Path = Path("benchmarks/results/hostile_bytes.json")
    """Where every number goes."""


def layout_of(chance: np.random.Generator) -> tuple[Segments, tuple[int, ...]]:
    """Draw segments, some empty, some huge, and rooms."""
    sizes = [int(n) for n in chance.choice([0, 1, 5, 64, 1000, 10**6, 2**31 + 7, 2**50], chance.integers(1, 6))]
    if not any(sizes):
        sizes[0] = 77
    rooms = tuple(int(chance.integers(n > 0, min(n, 60) + 1)) for n in sizes)
    return Segments.of([str(i) for i in range(len(sizes))], sizes), rooms


def draw(chance: np.random.Generator, segments: Segments, counts: list[int]) -> torch.Tensor:
    """Draw so many positions of each segment."""
    parts = [np.empty(0, np.int64)]
    for segment, count in zip(segments, counts, strict=True):
        pool = np.unique(np.concatenate([chance.integers(0, max(1, segment.size), 4 * count), np.arange(count)]))
        parts.append(segment.offset + np.sort(chance.permutation(pool)[:count]))
    return torch.from_numpy(np.concatenate(parts))


def batches(chance: np.random.Generator, total: int) -> Iterator[tuple[str, Blocks, Bytes, NDArray[np.int64]]]:
    """Yield rows of positions, mutated, and the counts that come with them."""
    done = 0
    while done < total:
        segments, rooms = layout_of(chance)
        blocks, kind = blocks_of(segments, rooms), KINDS[int(chance.integers(len(KINDS)))]
        size = min(BATCH, total - done)
        sound, told = [], []
        for _ in range(8):
            counts = [int(chance.integers(0, room + 1)) if chance.random() < 0.3 else room for room in rooms]
            ends = torch.tensor(counts).cumsum(0)
            sound.append(kernels.encode_positions(draw(chance, segments, counts), ends, blocks).numpy())
            told.append(counts)
        picked = chance.integers(0, 8, size)
        rows, counted = np.stack(sound)[picked], np.array(told, np.int64)[picked]
        if kind == "counts at the edges":
            bounds = np.stack([np.array(rooms), np.array(rooms) + 1, np.array([s.size for s in segments])])
            edges = np.concatenate([np.repeat(EDGES[:, None], len(rooms), 1), bounds, bounds - 1])
            drawn = edges[chance.integers(0, len(edges), counted.shape), np.arange(len(rooms))]
            counted = np.where(chance.random(counted.shape) < 0.4, drawn, counted)
            # Two thirds of the rows have more ones than there is room for.
            noise = chance.integers(0, 256, rows.shape, np.uint8)
            rows = np.stack([rows, rows | noise, np.full_like(rows, 255)])[
                chance.integers(0, 3, size), np.arange(size)
            ]
        mutate_(rows, kind, chance)
        yield kind, blocks, rows, counted
        done += size


def fault_in(positions: NDArray[np.int64], counts: NDArray[np.int64], blocks: Blocks) -> str:
    """Say what is wrong with positions that were read; nothing, where all is well."""
    if positions.size != counts.sum():
        return f"{positions.size} positions for {counts.sum()}"
    offset, size = (np.repeat(blocks.rows[:-1, column], counts) for column in (0, 1))
    inside = bool(((positions >= offset) & (positions < offset + size)).all())
    return "" if inside and bool((np.diff(positions) > 0).all()) else "positions that cannot be"


@njit
def strike(rows, counts, table, upper, lower, out, found):  # type: ignore[no-untyped-def]
    """Read each row where its parts are guarded; write for each 0 (refused), 1 (read), or 2 and 3 (wrong)."""
    split = len(upper)
    for r in range(len(rows)):
        upper[:], lower[:] = rows[r, :split], rows[r, split:]
        good = loops.decode_positions(upper, lower, counts[r], table, out)
        found[r] = 1 if good else 0
        begin = 0
        for s in range(len(counts[r]) if good else 0):
            before = table[s, 0] - 1
            for position in out[begin : begin + counts[r, s]]:
                if position <= before or position >= table[s, 0] + table[s, 1]:
                    found[r] = 2
                before = position
            begin += counts[r, s]
        for at in range(rows.shape[1]):
            if rows[r, at] != (upper[at] if at < split else lower[at - split]):
                found[r] = 3


def strike_positions(options: Options, seen: Seen, plain: Seen, total: int) -> None:
    """Read rows of positions: Numba's loop each of them, the plain twin some."""
    chance = np.random.default_rng(options.seed)
    places = [Guarded(1 << 16) for _ in range(3)]
    for kind, blocks, rows, counts in batches(chance, total):
        sizes = (blocks.upper_bytes, blocks.lower_bytes, 8 * int(blocks.rows[:, 2].sum()))
        upper, lower, out = (place.take(size).view(np.uint64) for place, size in zip(places, sizes, strict=True))
        found = np.zeros(len(rows), np.int64)
        strike(rows.view(np.uint64), counts, blocks.rows, upper, lower, out.view(np.int64), found)
        for result in found.tolist():
            seen.note(kind, read=result > 0, fault=FAULTS[result])
        if not all(place.whole for place in places):
            seen.wrong.append(f"{kind}: a canary died")
        # The plain twin is asked only for counts that fit, as headers let through.
        fits = ((counts >= 0) & (counts <= blocks.rows[:-1, 2])).all(1) & (chance.random(len(rows)) < options.plain)
        if not fits.any():
            continue
        some, told = torch.from_numpy(rows[fits]), counts[fits].tolist()
        fast, slow = (twin.decode_positions(some, told, blocks) for twin in (kernels, reference_coding))
        for one, other, good, same in zip(fast.positions, slow.positions, slow.good, fast.good, strict=True):
            alike = good == same and torch.equal(one, other)
            plain.note(kind, read=good, fault="" if alike else "the twins differ")


def message_of(chance: np.random.Generator, codec: Codec) -> tuple[wire.Frame, wire.Header, Bytes]:
    """Draw a message that is right."""
    segments, rooms = layout_of(chance)
    counted = bool(chance.random() < 0.5)
    known = tuple(int(n) for n in chance.integers(0, 5, chance.integers(0, 4)))
    counts = [int(chance.integers(0, room + 1)) if counted else room for room in rooms]
    plan = Plan(known=torch.arange(sum(known)), known_sizes=known, choosing=segments, rooms=rooms, counted=counted)
    frame = wire.Frame(
        plan=plan,
        form=codec.form,
        dtype=torch.float32,
        notes=int(chance.integers(0, 9)),
        spectrum=bool(chance.random() < 0.5),
    )
    values = torch.from_numpy(chance.standard_normal(sum(known) + sum(counts)).astype(np.float32))
    payload = Payload(
        known=values[: sum(known)],
        positions=draw(chance, segments, counts),
        values=values[sum(known) :],
        wanted=torch.tensor(counts),
    )
    header = replace(HEADER, count=sum(counts), wanted=sum(counts), form=codec.form)
    return frame, header, wire.pack(frame, payload, header, codec).message.numpy()


def strike_messages(options: Options, seen: Seen, total: int, *, seed: int) -> None:
    """Read whole messages, each flush with a closed page; half of them are struck behind the header alone."""
    chance, at, done = np.random.default_rng((options.seed, seed)), Guarded(1 << 16), 0
    while done < total:
        codec = CODECS[int(chance.integers(len(CODECS)))]
        frame, header, sound = message_of(chance, codec)
        kind = KINDS[int(chance.integers(len(KINDS)))]
        rows = np.repeat(sound[None], min(50, total - done), 0)
        if kind == KINDS[-1]:
            # Words 3 and 4, and the counts that follow the header, as they may come from outside.
            words = rows[:, : frame.layout.spectrum].copy().view(np.int64)
            places = np.array([3, 4, *range(10, words.shape[1])])
            drawn = np.concatenate([EDGES, [frame.plan.capacity, frame.plan.capacity + 1]])
            struck = chance.random((len(rows), len(places))) < 0.4
            words[:, places] = np.where(struck, chance.choice(drawn, struck.shape), words[:, places])
            rows[:, : frame.layout.spectrum] = words.view(np.uint8)
        else:
            mutate_(rows, kind, chance, first=int(chance.choice([8, wire.HEADER_BYTES])) % rows.shape[1])
        home = at.take(frame.total)
        for row in rows:
            home[:] = row
            label, fault, read = f"{codec.form.kind} {codec.form.bits}".removesuffix(" 0"), "", False
            try:
                (message,) = wire.unpack(torch.from_numpy(home).unsqueeze(0), frame, header)
                read, chosen = True, np.array(message.header.chosen, np.int64)
                fault = fault_in(message.payload.positions.numpy(), chosen, frame.blocks)
                if message.payload.values.numel() != chosen.sum():
                    fault = "not as many values as positions"
            except LaconicError:
                pass
            except Exception as error:
                fault = f"{type(error).__name__}: {error}"
            if not np.array_equal(home, row) or not at.whole:
                fault = "the input was changed, or a canary died"
            seen.note(label, read=read, fault=fault)
        done += len(rows)


def main() -> None:
    """Strike, print and write."""
    options = tyro.cli(Options)
    torch.set_num_threads(1)
    seals.short, seals.short_of = lambda *_: 0, lambda totals, _: torch.zeros_like(totals)
    facts = machine("python benchmarks/hostile_bytes.py", asdict(options))
    began, whole = time.perf_counter(), int(options.messages * options.mutations)
    parts = {name: Seen() for name in ("positions", "positions_plain", "messages", "messages_plain", "rounds")}
    strike_rounds(parts["rounds"], whole // 2, seed=options.seed)
    strike_messages(options, parts["messages"], whole // 4, seed=1)
    # What a device uses that has failed its exam: the plain twins.
    kernels._refused.add("cpu")
    strike_messages(options, parts["messages_plain"], whole - whole // 2 - whole // 4, seed=2)
    kernels._refused.clear()
    strike_positions(options, parts["positions"], parts["positions_plain"], options.mutations - whole)
    result = {name: seen.summary() for name, seen in parts.items()}
    for name, of in result.items():
        told = f"{of['mutations']:9,} struck, {of['refused']:9,} refused, {of['read']:8,} read"
        print(f"{name:16} {told}, {of['wrong']} wrong")
    about = {"kernels": kernels.in_use("cpu"), "seconds": time.perf_counter() - began}
    write_json(options.out, {**facts, **about, **result})
    sys.exit(any(of["wrong"] for of in result.values()))


if __name__ == "__main__":
    main()
