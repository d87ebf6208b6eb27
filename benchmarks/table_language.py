"""Language: an LSTM of 2 x 650 on Penn Treebank, four workers, every method from the same start.

    python benchmarks/table_language.py --virtual --device cuda --jobs 16 --ranks 4 --data-home HOME \
        --out benchmarks/results/table_language.json
    python benchmarks/table_language.py --table benchmarks/results/table_language.json    # for docs/results.md

HOME is where ``laconic data import ptb`` or ``laconic data get ptb`` has left the text. Workers share a process,
the exchange is the library's own; bytes are those that one worker hands over.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import tyro
from many_runs import ManyRuns, Row
from tables import Table, printed

import laconic
from laconic.lab.tasks import Lm
from laconic.lab.training import Training

CLIP = 0.25
PTB = Lm(data="ptb", layers=2, hidden=650, dropout=0.4, tied=True)
SIX = Training(epochs=6.0, batch=5, rate=30.0, clip=CLIP, schedule="linear", final=0.02)
PARENT = laconic.parallel_clip(CLIP)

METHODS = {
    "parallel clipping": PARENT,
    **{f"celgc I={i}": laconic.celgc(i, clip=CLIP, convention="mean") for i in (2, 4, 8, 16, 32)},
    **{
        f"celgc I={i}, outer momentum": laconic.celgc(
            i, clip=CLIP, convention="mean", outer_rate=0.7, outer_momentum=0.6
        )
        for i in (8, 16, 32)
    },
    "topk 0.1%": replace(laconic.topk(0.001, memory="update"), clip=laconic.LocalClip(norm=CLIP)),
    "dgc 0.1%": laconic.dgc(0.001, clip=CLIP),
    "sdagc": laconic.sdagc(clip=CLIP),
    "sdagc c=15, 1 bit": laconic.sdagc(15.0, clip=CLIP, values="sign"),
    "sdagc c=20, 1 bit": laconic.sdagc(20.0, clip=CLIP, values="sign"),
    "sdagc c=30, 1 bit": laconic.sdagc(30.0, clip=CLIP, values="sign"),
    "sdagc c=40, 1 bit": laconic.sdagc(40.0, clip=CLIP, values="sign"),
    **{
        f"sdagc c={c}, one threshold, 1 bit": laconic.sdagc(float(c), clip=CLIP, values="sign", scope="model")
        for c in (15, 20, 30, 40)
    },
    "cat bits": replace(laconic.cat("bits"), clip=laconic.LocalClip(norm=CLIP)),
    "spartan": laconic.spartan(clip=CLIP),
}


def led(density: float, values: str = "sign") -> laconic.Method:
    """Return top-k in which ranks take turns to choose."""
    method = laconic.topk(density, memory="update", scope="model", exchange="led", values=values)
    return replace(method, clip=laconic.LocalClip(norm=CLIP))


def gathered(density: float, values: str = "sign") -> laconic.Method:
    """Return top-k over the whole model."""
    method = laconic.topk(density, memory="update", scope="model", values=values)
    return replace(method, clip=laconic.LocalClip(norm=CLIP))


FRONTIER = {
    **{f"topk {100 * d:g}%, 1 bit": gathered(d) for d in (3e-3, 1e-3, 3e-4, 1e-4)},
    **{f"led {100 * d:g}%, 1 bit": led(d) for d in (1e-2, 3e-3, 1e-3, 3e-4)},
    **{f"led {100 * d:g}%, {v}": led(d, v) for d in (3e-3, 1e-3) for v in ("exact", "int4", "int2", "binned")},
}

ROWS = {("ptb", name): Row(task=PTB, training=SIX, method=method) for name, method in (METHODS | FRONTIER).items()}

TABLE = Table(parent="parallel clipping", rows=ROWS)


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
