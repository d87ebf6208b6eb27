"""Optimizers: which composition goes with SGD, with momentum and with AdamW; the laboratory's language model.

    python benchmarks/table_optimizers.py --virtual --seeds 2 --out benchmarks/results/table_optimizers.json
    python benchmarks/table_optimizers.py --table benchmarks/results/table_optimizers.json    # for docs/results.md

Characters of Python's documentation, four workers, 600 steps, 363 thousand parameters: small and short, to tell
compositions apart that differ much.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import tyro
from compositions import ahead, cold, largest, warm
from many_runs import ManyRuns, Row, run_or_print
from tables import Table, printed

import laconic
from laconic.lab.training import Training

CLIP = 1.0
SGD = Training(steps=600, rate=8.0, clip=CLIP, schedule="linear", final=0.02, eval_every=600)
TRAININGS = {
    "sgd": SGD,
    "momentum 0.9": replace(SGD, rate=0.8, momentum=0.9),
    "adamw": replace(SGD, optimizer="adamw", rate=0.003),
}
OUTER = {"outer_rate": 1.0, "outer_momentum": 0.6}
TIGHT = {"convention": "local"}


def _ahead(every: int, density: float, values: str, exchange: str = "led", **settings: Any) -> laconic.Method:
    return ahead(largest(density, values=values, exchange=exchange), every, clip=CLIP, **settings)


def _sdagc(c: float = 20.0, **settings: Any) -> laconic.Method:
    """Return SDAGC with one threshold."""
    settings = {"clip": CLIP, "scope": "model", "values": "sign"} | settings
    return laconic.sdagc(c, **settings) if "law" in settings else cold(c, **settings)


def _held(every: int, density: float, values: str) -> laconic.Method:
    """Return rounds whose drifts SDAGC sends, with the threshold that holds this share."""
    return ahead(_sdagc(law="target", density=density, momentum=False, values=values), every, clip=CLIP)


BITS = {"1 bit": "sign", "int4": "int4"}
METHODS = {
    "dense": laconic.dense(),
    "topk 1%, 1 bit": laconic.topk(0.01, scope="model", values="sign"),
    "sdagc c=20, per layer, 32 bits": cold(20.0, clip=CLIP, values="exact", scope="layer"),
    **{f"sdagc c={c}, 1 bit, warm": warm(_sdagc(c), c) for c in (10, 20, 40)},
    **{f"sdagc c={c}, 1 bit, warm, not masked": warm(_sdagc(c, masking=False), c) for c in (20, 40)},
    "sdagc c=20, int4, warm": warm(_sdagc(values="int4"), 20),
    "sdagc c=10, 1 bit, ahead": ahead(_sdagc(10.0, momentum=False), clip=CLIP),
    **{f"sdagc 1% held, {bits}, ahead, I=4": _held(4, 0.01, values) for bits, values in BITS.items()},
    # Steps clipped at the number itself, as celgc does, and at its root-of-ranks fold, as the rows below do.
    **{
        f"topk 1%, {bits}, I=4, outer momentum, clip 1": _ahead(4, 0.01, values, "gather", **OUTER, **TIGHT)
        for bits, values in {"32 bits": "exact", **BITS}.items()
    },
    # The same from further ahead than 1/4: an outer momentum of 0.6 makes 2.5 times of what arrives.
    **{
        f"topk 1%, int4, I=4, outer momentum, clip 1, {share:g} ahead": _ahead(
            4, 0.01, "int4", "gather", share=share, **OUTER, **TIGHT
        )
        for share in (0.4, 0.625)
    },
    # Four bits that say the octave of a magnitude, instead of a place on an even scale.
    **{
        f"topk 1%, octaves, I=4, outer momentum, clip 1{', 0.625 ahead' if share else ''}": _ahead(
            4, 0.01, "octaves", "gather", share=share, **OUTER, **TIGHT
        )
        for share in (None, 0.625)
    },
    **{f"topk 1%, {bits}, ahead, I=4, clip 1": _ahead(4, 0.01, v, "gather", **TIGHT) for bits, v in BITS.items()},
    "topk 1%, 32 bits, I=4, outer momentum": _ahead(4, 0.01, "exact", "gather", **OUTER),
    **{f"topk 1%, {bits}, ahead, I=4": _ahead(4, 0.01, values, "gather") for bits, values in BITS.items()},
    "led 0.3%, 1 bit, ahead": _ahead(1, 0.003, "sign"),
    **{f"led 1%, {bits}, ahead, I=4": _ahead(4, 0.01, values) for bits, values in BITS.items()},
}
ROWS = {
    (group, name): Row(training=training, method=method)
    for group, training in TRAININGS.items()
    for name, method in METHODS.items()
    # Without momentum there is nothing to mask.
    if training.momentum or "not masked" not in name
}
# What it is worth to send what is owed at the end too, a bit an entry.
ROWS |= {
    ("sgd", f"{name}, settled"): replace(ROWS["sgd", name], training=replace(SGD, settle="sign"))
    for name in ("led 0.3%, 1 bit, ahead", "topk 1%, 1 bit, ahead, I=4", "led 1%, 1 bit, ahead, I=4")
}
TABLE = Table(parent="dense", rows=ROWS)


def main(options: ManyRuns) -> None:
    run_or_print(options, ROWS, Path(__file__), lambda path: printed(path, TABLE))


if __name__ == "__main__":
    main(tyro.cli(ManyRuns, description=__doc__))
