"""Local steps on the laboratory's language model: rounds, clipping, outer steps, compressed drifts; several seeds.

    python benchmarks/local_steps.py --out benchmarks/results/local_steps.json     # hours on two cores
    python benchmarks/local_steps.py --table benchmarks/results/local_steps.json   # the tables of docs/local.md

The second command also draws docs/local-frontier.png, if matplotlib is there.

Every method trains equally long with the same rate, and clips at the same threshold. Ratios are bytes that plain
DDP would have handed over, over bytes handed over.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import tyro
from many_runs import ManyRuns, Row

from laconic.lab.method_words import make
from laconic.lab.training import Training

SGD = Training(eval_every=600, clip=0.25, schedule="linear", final=0.02)
TRAININGS = {
    "sgd": SGD,
    "momentum": replace(SGD, clip=1.0, rate=0.8, momentum=0.9),
    "adamw": replace(SGD, clip=1.0, optimizer="adamw", rate=0.003),
    "loose": replace(SGD, clip=1.0),
}
TITLES = {
    "sgd": "SGD, rate 8, falling linearly in the second half, clipped at 0.25",
    "momentum": "SGD with momentum 0.9, rate 0.8, clipped at 1",
    "adamw": "AdamW, rate 0.003, clipped at 1",
    "loose": "SGD, rate 8, clipped at 1: where we came from",
}
DENSITIES = {4: (0.05, 0.01, 0.003), 16: (0.05, 0.01, 0.003, 0.0007)}


def _spartan(every: int, density: float) -> str:
    return f"spartan:every={every}:density={density}:values=exact"


SPARTANS = [_spartan(every, density) for every, densities in DENSITIES.items() for density in densities]
LONG = "celgc:every=16:outer_momentum=0.6"
# laconic.recommended()
GENTLE = "spartan:density=0.05:outer_rate=1.2:outer_momentum=0.3:values=exact"
SGD_ROWS = [
    "dense",
    "celgc:every=16",
    LONG,
    *SPARTANS,
    GENTLE,
    *(f"topk:density={density}:memory=update:scope=model" for density in (0.01, 0.001)),
    "local_sgd:every=16",
]
SDAGC = "sdagc:scope=layer:values=exact:warmup_steps=0"
MOVED_ROWS = ["dense", "topk:density=0.01", SDAGC, "celgc:every=4", _spartan(4, 0.05), _spartan(4, 0.01), GENTLE]
OUTER = "outer_rate=1.2:outer_momentum=0.3"
LOOSE_ROWS = [
    "dense",
    "parallel_clip",
    "celgc:every=4",
    "celgc:every=16",
    f"celgc:every=16:{OUTER}",
    f"celgc:every=64:{OUTER}",
    "episode:every=16",
    *(f"topk:density={density}:memory=update:scope=model" for density in (0.01, 0.003, 0.001, 0.0003)),
    *(
        f"celgc:every={every}:{OUTER}:restart=0.25:send=topk+density={density}+scope=model"
        for every, densities in {4: (0.05, 0.01, 0.003, 0.001), 16: (0.05, 0.01, 0.003)}.items()
        for density in densities
    ),
    "celgc:every=4:send=topk+density=0.01+scope=model",
    f"celgc:every=4:{OUTER}:restart=0.25:send=sdagc+c=5+scope=layer+values=exact",
    "sparseloco",
    "sparseloco:over=senders",
]
GROUPS: dict[str, list[str]] = {
    "sgd": SGD_ROWS,
    "momentum": MOVED_ROWS,
    "adamw": [*MOVED_ROWS, "diloco:every=16"],
    "loose": LOOSE_ROWS,
}


def _rows() -> dict[tuple[str, str], Row]:
    return {
        (group, word): Row(training=TRAININGS[group], method=make(word, clip=TRAININGS[group].clip or 0.0))
        for group, words in GROUPS.items()
        for word in words
    }


def main(options: ManyRuns) -> None:
    if options.table is not None:
        result = json.loads(options.table.read_text())
        print(table(result))
        draw(result, Path(__file__).parent.parent / "docs" / "local-frontier.png")
    elif options.one is not None:
        options.one_row(_rows())
    else:
        print(table(options.all_rows(_rows(), Path(__file__))))


def summed_up(result: dict[str, Any], group: str, word: str) -> dict[str, Any] | None:
    """Return means over seeds, and the loss against that of dense."""
    runs = [r for r in result["runs"] if (r["group"], r["row"]) == (group, word)]
    dense = [r["valid_loss"] for r in result["runs"] if (r["group"], r["row"]) == (group, "dense")]
    if not runs or not dense:
        return None
    means = {key: mean(r[key] for r in runs) for key in ("valid_loss", "wire_bytes", "ratio", "clipped_share")}
    seeds = [r["valid_loss"] for r in sorted(runs, key=lambda r: int(r["seed"]))]
    return means | {"seeds": seeds, "worse": means["valid_loss"] / mean(dense) - 1, "syncs": runs[0]["syncs"]}


def table(result: dict[str, Any]) -> str:
    """Lay the results out in Markdown: means over seeds, and the spread of the validation loss."""
    lines = []
    for group, words in GROUPS.items():
        lines += ["", f"**{TITLES[group]}**", ""]
        lines += ["| method | valid loss | seeds | against dense | syncs | steps clipped | bytes a rank | ratio |"]
        lines += ["|---|---|---|---|---|---|---|---|"]
        for word in words:
            row = summed_up(result, group, word)
            if row is not None:
                seeds = " ".join(f"{loss:.3f}" for loss in row["seeds"])
                told = [f"`{word}`", f"{row['valid_loss']:.3f}", seeds, f"{row['worse']:+.1%}", row["syncs"]]
                told += [f"{row['clipped_share']:.0%}", f"{row['wire_bytes']:,.0f}", f"{row['ratio']:,.0f}x"]
                lines.append(f"| {' | '.join(str(cell) for cell in told)} |")
    return "\n".join(lines).strip()


def draw(result: dict[str, Any], out: Path) -> None:
    """Draw loss against ratio: what is sent in every step, and what after rounds."""
    try:
        from matplotlib import pyplot
    except ImportError:
        print("no picture: pip install '.[figures]'", file=sys.stderr)
        return
    families = {
        "topk in every step": [word for word in SGD_ROWS if word.startswith("topk")],
        "rounds of 4 steps, topk of the drift (spartan)": [_spartan(4, density) for density in DENSITIES[4]],
        "rounds of 16 steps, topk of the drift": [LONG, *(_spartan(16, density) for density in DENSITIES[16])],
    }
    figure, axes = pyplot.subplots(figsize=(9, 5), dpi=110)
    axes.axhspan(-1, 1, color="0.92", label="within 1% of dense")
    axes.axhline(0, color="0.5", linewidth=1)
    for (name, words), marker in zip(families.items(), "os^", strict=True):
        rows = [row for row in (summed_up(result, "sgd", word) for word in words) if row is not None]
        x, y = [r["ratio"] for r in rows], [100 * r["worse"] for r in rows]
        dense = summed_up(result, "sgd", "dense")
        spread = [100 * (max(r["seeds"]) - min(r["seeds"])) / 2 / dense["valid_loss"] for r in rows] if dense else 0
        axes.errorbar(x, y, yerr=spread, marker=marker, capsize=3, label=name)
    axes.set_xscale("log")
    axes.set_xlabel("ratio: bytes of plain DDP / bytes handed over")
    axes.set_ylabel("validation loss against dense, %")
    axes.set_title("Quality against bytes: character LSTM, 4 ranks, 600 steps, 3 seeds (bars: their spread)")
    axes.legend(frameon=False, loc="upper left")
    axes.grid(alpha=0.25)
    figure.tight_layout()
    figure.savefig(out)
    print(f"{out.name}: {out.stat().st_size:,} bytes", file=sys.stderr)


if __name__ == "__main__":
    main(tyro.cli(ManyRuns, description=__doc__))
