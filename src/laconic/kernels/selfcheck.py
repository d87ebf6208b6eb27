"""A short exam of compiled kernels against their definition: a compiler or driver may be at fault where it runs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from types import ModuleType

import torch
from torch import Tensor

from laconic.coding import Form, blocks_of
from laconic.kernels import reference, reference_coding
from laconic.kernels.reference import Inflow, Places, Taken
from laconic.segments import Segments

# Several blocks of every kernel: with an odd tail and a segment of one entry; and such that vectors can be read.
_LAYERS = {
    Segments.of(["one", "many", "odd"], [1, 150_001, 777]): (1, 1_500, 5),
    Segments.of(["even"], [150_016]): (1_500,),
}


def differences(
    fast: ModuleType, device: torch.device | str, dtype: torch.dtype, grads: Sequence[torch.dtype]
) -> list[str]:
    """Return the names of the ops that do not give the definition's bits. Running them compiles them."""
    found = [name for layer in _LAYERS for name in _differ(layer, fast, device, dtype, grads)]
    return list(dict.fromkeys(found))


def _differ(
    layer: Segments,
    fast: ModuleType,
    device: torch.device | str,
    dtype: torch.dtype,
    grads: Sequence[torch.dtype],
) -> list[str]:
    source = torch.Generator().manual_seed(0)
    # Multiples of 1/64: many are equal, and bfloat16 can have most of them.
    gradient, owed = (
        torch.randn(layer.numel, generator=source).mul(64).round().div(64).to(dtype) for _ in range(2)
    )
    found = []
    for grad, moves in product(grads, (True, False)):
        here, there = (
            _accumulated(layer, k, d, gradient.to(grad), owed, moves=moves)
            for k, d in ((reference, "cpu"), (fast, device))
        )
        if not all(torch.equal(a, b.cpu()) for a, b in zip(here, there, strict=True)):
            found.append(f"accumulate_ or store_ of {grad}")
    for name in ("take_above_", "take_above_ or the largest", "take_top_"):
        results = [_taken(name, layer, k, d, gradient) for k, d in ((reference, "cpu"), (fast, device))]
        if not torch.equal(*(r.cpu() for r in results)):
            found.append(name)
    at, values = torch.arange(0, layer.numel, 7), owed[::7].contiguous()
    sums = []
    for kernels, place in ((reference, "cpu"), (fast, device)):
        out = gradient.to(place, copy=True)
        positions = [at.to(place), at.to(place, torch.int32)]
        kernels.add_payloads_(out, positions, [values.to(place)] * 2, scale=1 / 3)
        sums.append(out.cpu())
    if not torch.equal(*sums):
        found.append("add_payloads_")
    plain, compiled = (_coded(layer, k, d, gradient) for k, d in ((reference_coding, "cpu"), (fast.coding, device)))
    return found + [name for name in plain if not torch.equal(plain[name], compiled[name].cpu())]


def _accumulated(
    layer: Segments,
    kernels: ModuleType,
    device: torch.device | str,
    grad: Tensor,
    owed: Tensor,
    *,
    moves: bool,
) -> tuple[Tensor, ...]:
    x, proposed, stored = (owed.to(device, copy=True) for _ in range(3))
    places = Places(grad=layer, x=layer, home=layer)
    ones = torch.ones(len(layer), dtype=x.dtype, device=x.device)
    inflow = Inflow(gain=ones * 0.3, unit=ones * 0.7, momentum=ones * 0.9, nesterov=ones)
    velocity = {"velocity": owed.to(device), "proposed": proposed} if moves else {}
    done = kernels.accumulate_(x, grad.to(device), inflow, places, owed=owed.to(device), **velocity)
    made, alone = x.clone(), owed.to(device, copy=True)
    kernels.store_(x, stored, places)
    # A method may have no memory.
    kernels.accumulate_(alone, grad.to(device), inflow, places, owed=None, **velocity)
    return made, proposed, done.largest, x, stored, alone


def _taken(name: str, layer: Segments, kernels: ModuleType, device: torch.device | str, x: Tensor) -> Tensor:
    """Everything that comes out, in one vector: what was taken, how many qualified, and what is left."""
    x, rooms = x.to(device, copy=True), _LAYERS[layer]
    taken: Taken
    if name == "take_top_":
        taken = kernels.take_top_(x, layer, rooms)
    else:
        levels = torch.tensor([9.0, 2.0, 1.0], dtype=x.dtype, device=device)[-len(layer) :]
        largest = None if name == "take_above_" else reference.fresh_of(x, layer).largest
        taken = kernels.take_above_(x, layer, levels, rooms, largest=largest, turn=3)
    # On CUDA there may be zeros behind what was taken.
    count = int(torch.minimum(taken.wanted.cpu(), torch.tensor(rooms)).sum())
    parts = (taken.positions[:count], taken.values[:count], taken.wanted, x)
    return torch.cat([p.to("cpu", torch.float64) for p in parts])


def _coded(layer: Segments, coding: ModuleType, device: torch.device | str, x: Tensor) -> dict[str, Tensor]:
    """What each of the coding kernels makes of a few entries: all room is used but for the last entry."""
    rooms = _LAYERS[layer]
    blocks = blocks_of(layer, rooms)
    counts = [*rooms[:-1], rooms[-1] - 1]
    # The further on, the longer the gaps.
    places = [torch.arange(k) for k in counts]
    chosen = [s.offset + i + i * i * (s.size - k) // k**2 for s, k, i in zip(layer, counts, places, strict=True)]
    positions, ends = torch.cat(chosen).to(device), torch.tensor(counts).cumsum(0).to(device)
    raw = coding.encode_positions(positions, ends, blocks)
    placed = coding.decode_positions(torch.stack([raw, raw]), [counts, list(rooms)], blocks)
    values = x[: sum(rooms)].to(device)
    line, table = Form(kind="line", bits=4), Form(kind="table", bits=4)
    numbers = torch.linspace(0.1, 0.7, 16 * len(rooms), dtype=x.dtype).view(-1, 16).to(device)
    nearest, chance = (
        coding.quantise_line(values, ends, numbers[:, :2], bits=4, seed=seed) for seed in (None, 12345)
    )
    return {
        "encode_positions": raw,
        "decode_positions": torch.cat([*placed.positions, torch.tensor(placed.good, device=device)]),
        # Sums of so few multiples of 1/64 are exact in any order.
        "span_statistics": coding.span_statistics(values, ends),
        "quantise_line": torch.cat([nearest, chance]),
        "dequantise": torch.cat([
            coding.dequantise(chance, ends, numbers[:, :2], line),
            coding.dequantise(chance, ends, numbers, table),
        ]),
    }  # fmt: skip
