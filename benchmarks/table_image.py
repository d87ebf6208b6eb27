"""Pictures: residual networks of 20 and 56 layers on CIFAR-10, four and eight workers, 128 pictures a step.

    python benchmarks/table_image.py --virtual --device cuda --jobs 16 --data-home HOME \
        --out benchmarks/results/table_image.json
    python benchmarks/table_image.py --table benchmarks/results/table_image.json    # what docs/results.md has

HOME is where ``laconic data import cifar10`` or ``laconic data get cifar10`` has left the pictures.
"""

from __future__ import annotations

from pathlib import Path

import tyro
from many_runs import ManyRuns, Row
from tables import Table, printed

import laconic
from laconic.lab.tasks import Vision
from laconic.lab.training import Training

THIRTY = Training(epochs=30.0, batch=32, rate=0.1, momentum=0.9, decay=5e-4, schedule="cosine", final=0.0)

METHODS = {
    "dense": laconic.dense(),
    **{f"celgc I={i}": laconic.celgc(i) for i in (2, 4, 8, 16, 32)},
    "topk 0.1%": laconic.topk(0.001, memory="update"),
    "dgc 0.1%": laconic.dgc(0.001),
    "sdagc": laconic.sdagc(),
    "cat bits": laconic.cat("bits"),
    "spartan": laconic.spartan(),
    "sdagc c=20, 1 bit": laconic.sdagc(20.0, values="sign"),
    "sdagc c=20, int4": laconic.sdagc(20.0, values="int4"),
    "sdagc c=20, 1 bit, no momentum": laconic.sdagc(20.0, values="sign", momentum=False),
    "sdagc c=10, 1 bit, no momentum, model": laconic.sdagc(10.0, values="sign", momentum=False, scope="model"),
    "sdagc c=20, 1 bit, no momentum, model": laconic.sdagc(20.0, values="sign", momentum=False, scope="model"),
    "sdagc c=40, 1 bit, no momentum, model": laconic.sdagc(40.0, values="sign", momentum=False, scope="model"),
    "sdagc c=20, int4, model": laconic.sdagc(20.0, values="int4", scope="model"),
    "sdagc c=40, int4, model": laconic.sdagc(40.0, values="int4", scope="model"),
}


def led(density: float, values: str = "sign") -> laconic.Method:
    """Return top-k in which ranks take turns to choose."""
    return laconic.topk(density, memory="update", scope="model", exchange="led", values=values)


FRONTIER = {
    **{
        f"topk {100 * d:g}%, 1 bit": laconic.topk(d, memory="update", scope="model", values="sign")
        for d in (1e-2, 1e-3)
    },
    **{f"led {100 * d:g}%, {v}": led(d, v) for d in (1e-2, 3e-3, 1e-3) for v in ("sign", "int4")},
    **{
        f"celgc I={i} led {100 * d:g}% int4": laconic.celgc(i, send=led(d, "int4"), restart=None)
        for i in (4, 16)
        for d in (1e-1, 1e-2)
    },
}

ROWS = {
    ("resnet20", name): Row(task=Vision(data="cifar10"), training=THIRTY, method=method)
    for name, method in (METHODS | FRONTIER).items()
}

TABLE = Table(parent="dense", rows=ROWS)


def main(options: ManyRuns) -> None:
    if options.table is not None:
        print(printed(options.table, TABLE))
    elif options.one is not None:
        options.one_row(ROWS)
    else:
        options.all_rows(ROWS, Path(__file__))
        print(printed(options.out, TABLE))


if __name__ == "__main__":
    main(tyro.cli(ManyRuns, description=__doc__))
