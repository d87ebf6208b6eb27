"""Local steps on the laboratory's language model: rounds, clipping, outer steps, compressed drifts; several seeds.

    python benchmarks/local_steps.py --out benchmarks/results/local_steps.json     # hours on two cores
    python benchmarks/local_steps.py --table benchmarks/results/local_steps.json   # the tables of docs/local.md

Every method trains equally long with the same rate, and clips at the same threshold. Ratios are bytes that plain
DDP would have handed over, over bytes handed over.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import tyro
from many_runs import ManyRuns, Row

from laconic.lab.method_words import make
from laconic.lab.training import Training

CLIP = 1.0
SGD = Training(eval_every=600, schedule="linear", final=0.02)
TRAININGS = {
    "sgd": SGD,
    "momentum": replace(SGD, rate=0.8, momentum=0.9),
    "adamw": replace(SGD, optimizer="adamw", rate=0.003),
}
MEAN = "convention=mean"
OUTER = f"{MEAN}:outer_rate=0.7:outer_momentum=0.6"

ROUNDS = [
    "dense",
    "parallel_clip",
    "local_sgd:every=16",
    "celgc:every=4",
    "celgc:every=16",
    f"celgc:every=4:{MEAN}",
    f"celgc:every=16:{MEAN}",
    f"celgc:every=16:{OUTER}",
    f"celgc:every=16:{MEAN}:outer_momentum=0.3",
    "diloco:every=50",
    "episode:every=16",
    "episode:every=16:clip=0.25",
]
FRONTIER = [
    "topk:density=0.01:memory=update",
    "topk:density=0.001:memory=update",
    "topk:density=0.0003:memory=update",
    f"celgc:every=4:{MEAN}:send=topk+density=0.01",
    f"celgc:every=4:{MEAN}:restart=0.25:send=topk+density=0.01",
    f"celgc:every=4:{MEAN}:restart=0.25:send=topk+density=0.003",
    f"celgc:every=16:{MEAN}:restart=0.25:send=topk+density=0.03",
    f"celgc:every=16:{MEAN}:restart=0.25:send=topk+density=0.01",
    f"celgc:every=16:{MEAN}:restart=0.25:send=topk+density=0.001",
    f"celgc:every=16:{OUTER}:restart=0.25:send=topk+density=0.01",
    f"celgc:every=16:{MEAN}:restart=0.25:period=growing:over_steps=600:send=topk+density=0.01",
    f"celgc:every=16:{MEAN}:restart=0.25:period=growing:over_steps=600:send=topk+density=0.001",
    "sparseloco",
    "sparseloco:over=senders",
]
ANY_OPTIMIZER = [
    "dense",
    "topk:density=0.01",
    "sdagc",
    f"celgc:every=4:{MEAN}",
    f"celgc:every=4:{MEAN}:send=topk+density=0.05",
    f"celgc:every=4:{MEAN}:restart=0.25:send=topk+density=0.05",
    "diloco:every=16",
]
GROUPS: dict[str, list[str]] = {"sgd": ROUNDS + FRONTIER, "momentum": ANY_OPTIMIZER, "adamw": ANY_OPTIMIZER}


def _rows() -> dict[tuple[str, str], Row]:
    return {
        (group, word): Row(training=TRAININGS[group], method=make(word, clip=CLIP))
        for group, words in GROUPS.items()
        for word in words
    }


def main(options: ManyRuns) -> None:
    if options.table is not None:
        print(table(json.loads(options.table.read_text())))
    elif options.one is not None:
        options.one_row(_rows())
    else:
        print(table(options.all_rows(_rows(), Path(__file__))))


def table(result: dict[str, Any]) -> str:
    """Lay the results out in Markdown: means over seeds, and the spread of the validation loss."""
    lines = []
    for group, words in GROUPS.items():
        dense = mean(r["valid_loss"] for r in result["runs"] if (r["group"], r["row"]) == (group, "dense"))
        lines += [
            "",
            f"**{group}**",
            "",
            "| method | valid loss | seeds | against dense | syncs | bytes a rank | ratio |",
        ]
        lines += ["|---|---|---|---|---|---|---|"]
        for word in words:
            runs = sorted(
                (r for r in result["runs"] if (r["group"], r["row"]) == (group, word)), key=lambda r: int(r["seed"])
            )
            if not runs:
                continue
            loss = mean(r["valid_loss"] for r in runs)
            seeds = " ".join(f"{r['valid_loss']:.3f}" for r in runs)
            sent, ratio = mean(r["wire_bytes"] for r in runs), mean(r["ratio"] for r in runs)
            lines.append(
                f"| `{word}` | {loss:.3f} | {seeds} | {loss / dense - 1:+.1%} | {runs[0]['syncs']} | {sent:,.0f} | "
                f"{ratio:.1f}x |"
            )
    return "\n".join(lines).strip()


if __name__ == "__main__":
    main(tyro.cli(ManyRuns, description=__doc__))
