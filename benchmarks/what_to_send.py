"""Selectors and SDAGC's companions on the language model of ``make demo``: quality against bytes, several seeds.

    python benchmarks/what_to_send.py --out benchmarks/results/what_to_send.json    # 40 minutes on two cores
    python benchmarks/what_to_send.py --table benchmarks/results/what_to_send.json    # the table of docs/sdagc.md

Every run is four real ranks over gloo; bytes are those handed to the collectives by one rank. All sparse methods
clip local gradients by the same rule, so that they differ in what they select. No time is measured here.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import tyro
from many_runs import ManyRuns, Row

import laconic
from laconic.lab.training import Training

CLIP = laconic.LocalClip(norm=1.0)
PLAIN = Training(eval_every=600)
FALLING = replace(PLAIN, schedule="linear", final=0.1)
MOMENTUM = replace(PLAIN, rate=0.8, momentum=0.9)


def _clipped(method: laconic.Method) -> laconic.Method:
    return replace(method, clip=CLIP)


def _sdagc(c: float = 20.0, **settings: Any) -> laconic.Method:
    """Return SDAGC with a threshold a layer and 32 bits a value, which were its defaults (decisions 9 and 21)."""
    method = laconic.sdagc(c, **{"clip": CLIP.norm, "scope": "layer", "values": "exact"} | settings)
    return method if "law" in settings else replace(method, tuner=laconic.Constant())


# group, row: how it is trained, with what
TRAINED: dict[tuple[str, str], tuple[Training, laconic.Method]] = {
    ("plain", "dense"): (PLAIN, laconic.dense()),
    ("plain", "topk 0.45%"): (PLAIN, _clipped(laconic.topk(0.0045, memory="update"))),
    ("plain", "dgc 0.45%"): (PLAIN, laconic.dgc(0.0045, clip=CLIP.norm, warmup_steps=25)),
    ("plain", "gaussiank 1%"): (PLAIN, _clipped(laconic.gaussiank(0.01, memory="update"))),
    ("plain", "sidco 0.45%"): (PLAIN, _clipped(laconic.sidco(0.0045, memory="update"))),
    ("plain", "strom 0.1"): (PLAIN, _clipped(laconic.strom(0.1))),
    ("plain", "adacomp 1000"): (PLAIN, _clipped(laconic.adacomp(1000, memory="update"))),
    ("plain", "sdagc"): (PLAIN, _sdagc()),
    ("plain", "sdagc without residual"): (PLAIN, replace(_sdagc(momentum=False), memory="none", guard=None)),
    ("plain", "sdagc without clipping"): (PLAIN, _sdagc(clip=None)),
    ("plain", "sdagc, law warmup (25 steps)"): (PLAIN, replace(_sdagc(), tuner=laconic.Warmup(steps=25))),
    ("plain", "sdagc, law progress"): (PLAIN, _sdagc(25.0, law="progress")),
    ("plain", "sdagc, law target 0.45%"): (PLAIN, _sdagc(law="target", density=0.0045)),
    ("plain", "sdagc, one threshold"): (PLAIN, _sdagc(over="model")),
    ("plain", "sdagc, deviation of this step"): (PLAIN, _sdagc(running=0.0)),
    ("plain", "sdagc, deviation of the residual"): (PLAIN, _sdagc(2.5, std_of="residual")),
    ("falling", "dense"): (FALLING, laconic.dense()),
    ("falling", "sdagc (revision A)"): (FALLING, _sdagc()),
    ("falling", "sdagc, revision B"): (FALLING, _sdagc(revision="damp")),
    ("falling", "sdagc without revision (C)"): (FALLING, _sdagc(revision="none")),
    ("momentum", "dense"): (MOMENTUM, laconic.dense()),
    ("momentum", "dgc 0.45%"): (MOMENTUM, laconic.dgc(0.0045, clip=CLIP.norm, warmup_steps=25)),
    ("momentum", "sdagc (c = 40)"): (MOMENTUM, _sdagc(40.0)),
    ("momentum", "sdagc (c = 40) without masking"): (MOMENTUM, _sdagc(40.0, masking=False)),
    ("momentum", "sdagc without momentum compensation"): (MOMENTUM, _sdagc(momentum=False)),
}

ROWS = {key: Row(training=training, method=method) for key, (training, method) in TRAINED.items()}

TITLES = {
    "plain": "SGD, rate 8, as in `make demo`",
    "falling": "The same with a rate that falls to a tenth in the second half",
    "momentum": "SGD with momentum 0.9, rate 0.8",
}


def main(options: ManyRuns) -> None:
    if options.table is not None:
        print(table(json.loads(options.table.read_text())))
    elif options.one is not None:
        options.one_row(ROWS)
    else:
        print(table(options.all_rows(ROWS, Path(__file__))))


def table(result: dict[str, Any]) -> str:
    """Lay the results out in Markdown: means over seeds, and the spread of the validation loss."""
    lines = []
    for group, title in TITLES.items():
        lines += ["", f"**{title}**", "", "| method | valid loss | seeds | against dense | bytes a rank | ratio |"]
        lines += ["|---|---|---|---|---|---|"]
        parents = [r["valid_loss"] for r in result["runs"] if (r["group"], r["row"]) == (group, "dense")]
        if not parents:
            continue
        dense = mean(parents)
        for row in (row for g, row in ROWS if g == group):
            runs = sorted(
                (r for r in result["runs"] if (r["group"], r["row"]) == (group, row)), key=lambda r: r["seed"]
            )
            if not runs:
                continue
            loss = mean(r["valid_loss"] for r in runs)
            seeds = " ".join(f"{r['valid_loss']:.3f}" for r in runs)
            sent, ratio = mean(r["wire_bytes"] for r in runs), mean(r["ratio"] for r in runs)
            lines.append(f"| {row} | {loss:.3f} | {seeds} | {loss / dense - 1:+.1%} | {sent:,.0f} | {ratio:.1f}x |")
    return "\n".join(lines).strip()


if __name__ == "__main__":
    main(tyro.cli(ManyRuns, description=__doc__))
