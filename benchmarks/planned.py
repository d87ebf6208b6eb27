"""The planner against the clock: what ``laconic plan`` predicts over what ``laconic bench network`` measured.

    laconic bench network steps --hosts 2 4 --json network.json
    laconic plan module benchmarks/planned.py:perceptron --ranks-here 2 --density 0.001 --bandwidth 100 \
        --methods dense,topk,sdagc,spartan --warmup 5 --steps 12 --json plan-2.json
    python benchmarks/planned.py --network network.json --plans plan-2.json --json planned.json

Each plan stands for as many hosts as it had ranks at work at once: the benchmark's hosts share this machine.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import torch
import tyro
from rich import box
from rich.console import Console
from rich.table import Table

from laconic.lab.models.perceptron import perceptron as layers_of
from laconic.plan import Facts, Link, Subject, predict

LAYERS, WIDTH, BATCH = 10, 1024, 16


def perceptron() -> Subject:
    """The benchmark's work: linear layers with ReLU on an input that never changes."""
    model = layers_of(LAYERS, WIDTH)
    x = torch.randn(BATCH, WIDTH)
    return Subject(
        model=model,
        loss=lambda model: model(x).square().mean(),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
    )


@dataclass(frozen=True, kw_only=True)
class Planned:
    """Compare predictions with measured steps."""

    network: Path
    """What laconic bench network wrote."""
    plans: tuple[Path, ...]
    """What laconic plan wrote, one file for each number of hosts."""
    latency: float = 0.0
    """Milliseconds that the hosts' links add: none."""
    json: Path | None = None
    """Where to write every ratio."""

    def run(self) -> None:
        """Print the table, and write the file."""
        measured = json.loads(self.network.read_text())
        plans = {plan["ranks_here"]: plan for plan in (json.loads(path.read_text()) for path in self.plans)}
        rows = [row for row in measured["rows"] if row["milliseconds"] and row["hosts"] in plans]
        links = {(found["hosts"], found["megabits"]): self._link(found) for found in measured["links"]}
        pairs = [(row, links[row["hosts"], row["megabits"]]) for row in rows]
        tried = [self._compared(row, link, plans[row["hosts"]]) for row, link in pairs]
        compared = [row for row in tried if row is not None]
        if not compared:
            raise SystemExit(
                f"no plan is for what was measured: plans are for {sorted(plans)} hosts, {self.network} has rows "
                f"of {sorted({row['hosts'] for row in measured['rows']})}. Make a plan with --ranks-here of that "
                f"number, and with --methods of the benchmark's names."
            )
        Console(width=120).print(_table(compared))
        ratios = sorted(row["ratio"] for row in compared)
        inside = sum(1 / 1.2 <= ratio <= 1.2 for ratio in ratios)
        print(f"{inside} of {len(ratios)} within 20%; predicted over measured: {ratios[0]:.2f} to {ratios[-1]:.2f}")
        if self.json is not None:
            about = {key: measured[key] for key in ("date", "command", "cpu", "cores", "torch")}
            commands = {str(ranks): plan["command"] for ranks, plan in plans.items()}
            told = {"measured": about, "plans": commands, "rows": compared}
            self.json.write_text(json.dumps(told, indent=1) + "\n")

    def _link(self, found: dict[str, Any]) -> Link:
        """Return the link as its rate was set.

        Without a limit there is none: what a plain transfer then takes is the host's copying, which the plan has
        measured by itself, for each kind of collective.
        """
        return Link(workers=found["hosts"], bandwidth=found["megabits"] or inf, latency=self.latency)

    def _compared(self, row: dict[str, Any], link: Link, plan: dict[str, Any]) -> dict[str, Any] | None:
        facts = Facts.from_dict(plan["facts"])
        named = {method.name: method for method in facts.methods}
        name = row["peer"].removesuffix(" again")
        if name == "alone":
            seconds, sent = facts.profile.alone, 0.0
        elif name in named:
            prediction = predict(facts, named[name], link)
            seconds, sent = prediction.seconds, prediction.link_bytes
        else:
            return None
        return {
            "hosts": row["hosts"],
            "megabits": row["megabits"],
            "peer": row["peer"],
            "measured": row["milliseconds"],
            "p10": row["p10"],
            "p90": row["p90"],
            "predicted": 1e3 * seconds,
            "ratio": 1e3 * seconds / row["milliseconds"],
            "interface_bytes": row["interface_bytes"],
            "predicted_link_bytes": sent,
        }


def _table(rows: list[dict[str, Any]]) -> Table:
    out = Table(title="predicted over measured", box=box.SIMPLE, padding=0)
    for heading in ("hosts", "Mbit/s", "method"):
        out.add_column(heading)
    for heading in ("measured ms", "p10", "p90", "predicted ms", "ratio", "bytes sent", "predicted"):
        out.add_column(heading, justify="right")
    for row in rows:
        sent = "-" if row["interface_bytes"] is None else f"{row['interface_bytes']:,.0f}"
        rate = "-" if row["megabits"] is None else f"{row['megabits']:g}"
        times = (f"{row[key]:.1f}" for key in ("measured", "p10", "p90", "predicted"))
        cells = (f"{row['ratio']:.2f}", sent, f"{row['predicted_link_bytes']:,.0f}")
        out.add_row(str(row["hosts"]), rate, row["peer"], *times, *cells)
    return out


if __name__ == "__main__":
    tyro.cli(Planned).run()
