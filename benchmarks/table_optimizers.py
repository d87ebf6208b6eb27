"""Optimizers: which composition goes with SGD, with momentum and with AdamW; the laboratory's language model.

    python benchmarks/table_optimizers.py --virtual --seeds 2 --out benchmarks/results/table_optimizers.json
    python benchmarks/table_optimizers.py --table benchmarks/results/table_optimizers.json    # for docs/results.md

Characters of Python's documentation, four workers, 600 steps, 363 thousand parameters: small and short, to tell
compositions apart that differ much.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import tyro
from compositions import ahead, largest
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


def _ahead(every: int, density: float, values: str) -> laconic.Method:
    return ahead(largest(density, values=values, exchange="led"), every, clip=CLIP)


METHODS = {
    "dense": laconic.dense(),
    "topk 1%, 1 bit": laconic.topk(0.01, scope="model", values="sign"),
    "spartan": laconic.spartan(clip=CLIP),
    "spartan, int4": laconic.spartan(clip=CLIP, values="int4"),
    "led 0.3%, 1 bit, ahead": _ahead(1, 0.003, "sign"),
    "led 1%, int4, ahead, I=4": _ahead(4, 0.01, "int4"),
}
ROWS = {
    (group, name): Row(training=training, method=method)
    for group, training in TRAININGS.items()
    for name, method in METHODS.items()
}
TABLE = Table(parent="dense", rows=ROWS)


def main(options: ManyRuns) -> None:
    run_or_print(options, ROWS, Path(__file__), lambda path: printed(path, TABLE))


if __name__ == "__main__":
    main(tyro.cli(ManyRuns, description=__doc__))
