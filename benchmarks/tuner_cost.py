"""What weighing costs: the share of a step of 25 million parameters that CAT spends on choosing the amount.

    python benchmarks/tuner_cost.py --out benchmarks/results/tuner_cost.json

One rank, one thread: forward, backward and the reducer's step of a multilayer perceptron with a small batch, the
least favourable kind of step. The same amount is sent throughout. Timed apart within each step: the spectrum, the
look at the change of gradients, and the tuner's choice.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
import tyro
from torch import nn

import laconic
from laconic.gauge import Gauge
from laconic.lab.folder import write_json
from laconic.lab.machine import machine
from laconic.reducer import Reducer
from laconic.segments import Segments
from laconic.transports.lockstep import Lockstep
from laconic.tuners import Cat


@dataclass(frozen=True, kw_only=True)
class Options:
    """Time the parts of steps."""

    out: Path | None = None
    """Where every number goes."""
    layers: int = 24
    """Linear layers, each with a ReLU."""
    width: int = 1024
    """Inputs and outputs of a layer."""
    batch: int = 16
    """Rows of input."""
    steps: int = 30
    """Timed steps, after five others."""
    density: float = 0.001
    """Share of entries sent."""


class Stopwatches:
    """Seconds spent in functions, by name, step by step."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []

    def around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, timed."""

        def timed(*args: Any, **settings: Any) -> Any:
            began = time.perf_counter()
            result = function(*args, **settings)
            now = self.steps[-1]
            now[name] = now.get(name, 0.0) + time.perf_counter() - began
            return result

        return timed


def run(options: Options, method: laconic.Method, watches: Stopwatches) -> None:
    """Take the steps."""
    torch.manual_seed(0)
    layers = [part for _ in range(options.layers) for part in (nn.Linear(options.width, options.width), nn.ReLU())]
    model = nn.Sequential(*layers)
    named = dict(model.named_parameters())
    segments = Segments.of(list(named), [p.numel() for p in named.values()])
    reducer = Reducer(method, segments, Lockstep(1).ports[0])
    for _ in range(options.steps + 5):
        watches.steps.append({})
        began = time.perf_counter()
        loss = model(torch.randn(options.batch, options.width)).square().mean()
        grads = torch.autograd.grad(loss, list(named.values()))
        reducer.begin_step(rates=dict.fromkeys(named, 0.1))
        flat = torch.cat([g.flatten() for g in grads])
        reducer.begin(flat, segments)
        reducer.end_step()
        with torch.no_grad():
            for p, view in zip(named.values(), segments.views(flat), strict=True):
                p.sub_(view.view_as(p), alpha=0.1)
        watches.steps[-1]["step"] = time.perf_counter() - began


def main() -> None:
    """Time, print and write."""
    options = tyro.cli(Options)
    torch.set_num_threads(1)
    watches = Stopwatches()
    for what, name in ((Gauge, "spectrum"), (Gauge, "look"), (Cat, "update")):
        setattr(what, name, watches.around(name, getattr(what, name)))
    share = options.density
    method = laconic.cat(laconic.Affine(fixed_bits=4096.0), start=share, floor=share, ceiling=share)
    method = replace(method, guard=None)
    run(options, method, watches)
    timed = watches.steps[5:]
    parts = {name: median(step[name] for step in timed) for name in ("spectrum", "look", "update")}
    whole = median(step["step"] for step in timed)
    spent = median(sum(step[name] for name in parts) for step in timed)
    print(f"a step takes {1000 * whole:.1f} ms; weighing {1000 * spent:.2f} ms of it, {100 * spent / whole:.2f}%")
    for name, seconds in parts.items():
        print(f"  {name:10} {1000 * seconds:6.2f} ms")
    if options.out is not None:
        facts = machine("python benchmarks/tuner_cost.py", asdict(options))
        write_json(options.out, {**facts, "milliseconds": [{k: 1000 * v for k, v in s.items()} for s in timed],
                                 "share": spent / whole})  # fmt: skip


if __name__ == "__main__":
    main()
