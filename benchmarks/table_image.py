"""Pictures: a residual network of 20 layers on CIFAR-10, four workers, 128 pictures a step.

    python benchmarks/table_image.py --virtual --device cuda --jobs 16 --data-home HOME \
        --out benchmarks/results/table_image.json
    python benchmarks/table_image.py --table benchmarks/results/table_image.json    # what docs/results.md has

HOME is where ``laconic data import cifar10`` or ``laconic data get cifar10`` has left the pictures.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import tyro
from many_runs import ManyRuns, Row, run_or_print
from tables import Table, printed

import laconic
from laconic.lab.tasks import Vision
from laconic.lab.training import Training

FIFTEEN = Training(epochs=15.0, batch=32, rate=0.1, momentum=0.9, decay=5e-4, schedule="cosine", final=0.0)
THIRTY = replace(FIFTEEN, epochs=30.0)


def topk(density: float, **settings: Any) -> laconic.Method:
    """Return the largest entries of the whole model, one bit each."""
    return laconic.topk(density, **{"memory": "update", "scope": "model", "values": "sign"} | settings)


def ahead(send: laconic.Method, every: int = 1) -> laconic.Method:
    """Return rounds, each begun from where a rank would stand with its share of what it owes."""
    # Each rank keeps its statistics of batches, as under DDP: their mean would be most of what is sent.
    return laconic.celgc(every, restart=None, send=send, buffers="keep")


def outside(c: float, **settings: Any) -> laconic.Method:
    """Return SDAGC with one threshold and one bit a value; momentum is the optimizer's."""
    return laconic.sdagc(c, **{"values": "sign", "momentum": False, "scope": "model"} | settings)


def warm(method: laconic.Method, c: float) -> laconic.Method:
    """Return SDAGC that does not begin with silence: a share falls to what c sends in 2 c steps."""
    return replace(method, tuner=laconic.Warmup(start=0.03, steps=round(2 * c)))


METHODS = {
    "dense": laconic.dense(),
    **{f"celgc I={i}": laconic.celgc(i) for i in (2, 4, 8, 16, 32)},
    "topk 0.1%": laconic.topk(0.001, memory="update"),
    "dgc 0.1%": laconic.dgc(0.001),
    "sdagc": laconic.sdagc(),
    "sdagc c=20, int4": laconic.sdagc(20.0, values="int4"),
    "sdagc c=20, int4, warm": warm(laconic.sdagc(20.0, values="int4"), 20.0),
    **{f"sdagc c={c}, 1 bit, momentum outside, warm": warm(outside(c), c) for c in (10, 20, 40)},
    **{f"sdagc c={c}, 1 bit, ahead": ahead(warm(outside(c), c)) for c in (10, 20, 40)},
    "cat bits": laconic.cat("bits"),
    "spartan": laconic.spartan(),
    **{f"topk {100 * d:g}%, 1 bit": topk(d) for d in (3e-3, 1e-3)},
    **{f"topk {100 * d:g}%, 1 bit, ahead": ahead(topk(d)) for d in (1e-2, 3e-3, 1e-3)},
    **{f"topk 1%, 1 bit, ahead, I={i}": ahead(topk(0.01), i) for i in (4, 16)},
    **{f"topk 1%, int4, ahead, I={i}": ahead(topk(0.01, values="int4"), i) for i in (4, 16)},
    "led 1%, 1 bit, ahead, I=4": ahead(topk(0.01, exchange="led"), 4),
}

ROWS = {
    **{
        ("resnet20, 15 epochs", name): Row(task=Vision(data="cifar10"), training=FIFTEEN, method=method)
        for name, method in METHODS.items()
    },
    **{
        ("resnet20, 30 epochs", name): Row(task=Vision(data="cifar10"), training=THIRTY, method=method, weight=2.0)
        for name, method in METHODS.items()
    },
}

TABLE = Table(parent="dense", rows=ROWS)


def main(options: ManyRuns) -> None:
    run_or_print(options, ROWS, Path(__file__), lambda path: printed(path, TABLE))


if __name__ == "__main__":
    main(tyro.cli(ManyRuns, description=__doc__))
