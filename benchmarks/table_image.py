"""Pictures: residual networks of 20 and 56 layers on CIFAR-10, four or eight workers of 32 pictures a step.

    python benchmarks/table_image.py --virtual --device cuda --jobs 16 --data-home HOME \
        --out benchmarks/results/table_image.json
    python benchmarks/table_image.py --table benchmarks/results/table_image.json    # what docs/results.md has

HOME is where ``laconic data import cifar10`` or ``laconic data get cifar10`` has left the pictures.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import compositions
import tyro
from compositions import cold, largest, warm
from many_runs import ManyRuns, Row, run_or_print
from tables import Table, printed

import laconic
from laconic.lab.tasks import Vision
from laconic.lab.training import Training

FIFTEEN = Training(epochs=15.0, batch=32, rate=0.1, momentum=0.9, decay=5e-4, schedule="cosine", final=0.0)
THIRTY = replace(FIFTEEN, epochs=30.0)
FORTY = replace(FIFTEEN, epochs=40.0)


# Each rank keeps its statistics of batches, as under DDP: their mean would be most of what is sent.
ahead = partial(compositions.ahead, buffers="keep")
topk = largest


def outside(c: float, **settings: Any) -> laconic.Method:
    """Return SDAGC with one threshold and one bit a value; momentum is the optimizer's."""
    return cold(c, **{"values": "sign", "momentum": False, "scope": "model"} | settings)


def held(density: float, every: int = 4, **settings: Any) -> laconic.Method:
    """Return rounds whose drifts SDAGC sends, with the threshold that holds this share, four bits a value."""
    rule = {"law": "target", "density": density, "momentum": False, "scope": "model", "values": "int4"}
    return ahead(laconic.sdagc(**rule | settings), every)


OUTER = {"outer_rate": 0.7, "outer_momentum": 0.6}
INT4, LED = {"values": "int4"}, {"exchange": "led"}

METHODS = {
    "dense": laconic.dense(),
    **{f"celgc I={i}": laconic.celgc(i) for i in (2, 4, 8, 16)},
    "celgc I=8, outer momentum": laconic.celgc(8, **OUTER),
    "topk 0.1%": laconic.topk(0.001, memory="update"),
    "dgc 0.1%": laconic.dgc(0.001),
    "sdagc c=20, per layer, 32 bits": cold(20.0, scope="layer", values="exact"),
    "sdagc c=20, per layer, int4, warm": warm(cold(20.0, scope="layer", values="int4"), 20.0),
    "sdagc": laconic.sdagc(),
    "sdagc, not masked": laconic.sdagc(masking=False),
    "sdagc c=20, 1 bit, momentum outside, warm": warm(outside(20), 20),
    **{f"sdagc c={c}, 1 bit, ahead": ahead(warm(outside(c), c)) for c in (10, 20, 40)},
    **{f"sdagc {100 * d:g}% held, int4, ahead, I=4": held(d) for d in (0.03, 0.023, 0.02, 0.01)},
    "sdagc 2% held, int4, led, ahead, I=4": held(0.02, **LED),
    **{f"sdagc {100 * d:g}% held, int4, ahead, I=2": held(d, 2) for d in (0.02, 0.01)},
    "sdagc 2% held, 1 bit, led, ahead, I=2": held(0.02, 2, values="sign", **LED),
    "cat bits": laconic.cat("bits"),
    "spartan, 32 bits": laconic.spartan(values="exact"),
    "spartan": laconic.spartan(),
    "topk 0.1%, 1 bit": topk(0.001),
    **{f"topk {100 * d:g}%, 1 bit, ahead": ahead(topk(d)) for d in (3e-3, 1e-3)},
    "led 0.3%, 1 bit, ahead": ahead(topk(0.003, **LED)),
    "topk 1%, 1 bit, ahead, I=4": ahead(topk(0.01), 4),
    **{f"topk 1%, int4, ahead, I={i}": ahead(topk(0.01, **INT4), i) for i in (4, 16)},
    **{f"led {100 * d:g}%, 1 bit, ahead, I=4": ahead(topk(d, **LED), 4) for d in (0.01, 0.008)},
    **{f"led {100 * d:g}%, int4, ahead, I=4": ahead(topk(d, **LED, **INT4), 4) for d in (0.03, 0.01)},
    # The bytes of 0.8% with one bit.
    "led 0.4%, octaves, ahead, I=4": ahead(topk(0.004, **LED, values="octaves"), 4),
}
# What is worth twice the time, three times the layers or twice the workers.
CHOSEN = (
    "dense", "celgc I=4", "sdagc 2% held, int4, ahead, I=4", "led 1%, int4, ahead, I=4", "led 1%, 1 bit, ahead, I=4"
)  # fmt: skip
# Whether what is sent late is made up for in a longer training.
LONGER = (
    "dense",
    "sdagc 2.3% held, int4, ahead, I=4",
    "sdagc 2% held, int4, ahead, I=4",
    "led 0.8%, 1 bit, ahead, I=4",
    "led 0.4%, octaves, ahead, I=4",
)
SHORT = Row(task=Vision(data="cifar10"), training=FIFTEEN, method=laconic.dense())
GROUPS = {
    "resnet20, 15 epochs": SHORT,
    "resnet20, 30 epochs": replace(SHORT, training=THIRTY, weight=2.0),
    "resnet20, 40 epochs": replace(SHORT, training=FORTY, weight=3.0),
    "resnet56, 15 epochs": replace(SHORT, task=Vision(data="cifar10", model="resnet56"), weight=3.0),
    "resnet20, 8 workers, 15 epochs": replace(SHORT, ranks=8, weight=1.5),
}
# How often steps are clipped: rate and threshold of CELGC's authors (eta 0.3, gamma 1), without momentum. Of dense
# the training loop clips the mean gradient, which is naive parallel clipping.
CLIP = 1 / 0.3
CLIPPED = replace(SHORT, training=replace(FIFTEEN, epochs=6.0, batch=64, rate=0.3, momentum=0.0, clip=CLIP))
CLIPPING = {
    "dense": laconic.dense(),
    **{f"celgc I={i}": laconic.celgc(i, clip=CLIP) for i in (4, 16)},
}
ROWS = {
    (group, name): replace(row, method=method)
    for group, row in GROUPS.items()
    for name, method in METHODS.items()
    if name in (LONGER if "40" in group else CHOSEN) or group.startswith(("resnet20, 15", "resnet20, 30"))
} | {("resnet20, clipped, 6 epochs", name): replace(CLIPPED, method=method) for name, method in CLIPPING.items()}
TABLE = Table(parent="dense", rows=ROWS)


def main(options: ManyRuns) -> None:
    run_or_print(options, ROWS, Path(__file__), lambda path: printed(path, TABLE))


if __name__ == "__main__":
    main(tyro.cli(ManyRuns, description=__doc__))
