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
    # Rate and threshold at which this LSTM needs its clipping.
    "exploding": replace(SGD, rate=30.0, clip=0.25),
}
OUTER = "outer_rate=1.2:outer_momentum=0.3"

ROUNDS = [
    "dense",
    "parallel_clip",
    "local_sgd:every=16",
    "celgc:every=4",
    "celgc:every=16",
    f"celgc:every=16:{OUTER}",
    "celgc:every=16:outer_momentum=0.6:clip=0.7",
    f"celgc:every=64:{OUTER}",
    "diloco:every=50",
    "episode:every=16",
]


def _sparse(every: int, density: float) -> str:
    return f"celgc:every={every}:{OUTER}:restart=0.25:send=topk+density={density}+scope=model"


FRONTIER = [
    *(f"topk:density={density}:memory=update:scope=model" for density in (0.01, 0.003, 0.001, 0.0003)),
    *(_sparse(4, density) for density in (0.05, 0.01, 0.003, 0.001)),
    *(_sparse(16, density) for density in (0.05, 0.01, 0.003, 0.0008)),
    "celgc:every=4:send=topk+density=0.01+scope=model",
    f"celgc:every=4:{OUTER}:restart=0.25:send=sdagc+c=5",
    "sparseloco",
    "sparseloco:over=senders",
]
ANY_OPTIMIZER = [
    "dense",
    "topk:density=0.01",
    "sdagc",
    "celgc:every=4",
    _sparse(4, 0.05),
    _sparse(4, 0.01),
    "diloco:every=16",
]
EXPLODING = ["dense", "celgc:every=16", f"celgc:every=16:{OUTER}", "local_sgd:every=16"]
GROUPS: dict[str, list[str]] = {
    "sgd": ROUNDS + FRONTIER,
    "momentum": ANY_OPTIMIZER,
    "adamw": ANY_OPTIMIZER,
    "exploding": EXPLODING,
}


def _rows() -> dict[tuple[str, str], Row]:
    return {
        (group, word): Row(training=TRAININGS[group], method=make(word, clip=TRAININGS[group].clip or CLIP))
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
