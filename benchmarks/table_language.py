"""Language: an LSTM of 2 x 650 on Penn Treebank, four workers, every method from the same start.

    python benchmarks/table_language.py --virtual --device cuda --jobs 16 --ranks 4 --data-home HOME \
        --out benchmarks/results/table_language.json
    python benchmarks/table_language.py --table benchmarks/results/table_language.json    # for docs/results.md

HOME is where ``laconic data import ptb`` or ``laconic data get ptb`` has left the text. Workers share a process,
the exchange is the library's own; bytes are those that one worker hands over. Six epochs show where methods part;
ten are for those that hold.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import tyro
from many_runs import ManyRuns, Row, run_or_print
from tables import Table, printed

import laconic
from laconic.lab.tasks import Lm
from laconic.lab.training import Training

CLIP = 0.25
PTB = Lm(data="ptb", layers=2, hidden=650, dropout=0.4, tied=True)
SIX = Training(epochs=6.0, batch=5, rate=30.0, clip=CLIP, schedule="linear", final=0.02)
TEN = replace(SIX, epochs=10.0)
PARENT = "parallel clipping"


def _clipped(method: laconic.Method) -> laconic.Method:
    return replace(method, clip=laconic.LocalClip(norm=CLIP))


def topk(density: float, **settings: Any) -> laconic.Method:
    """Return the largest entries of the whole model, one bit each."""
    return _clipped(laconic.topk(density, **{"memory": "update", "scope": "model", "values": "sign"} | settings))


def sdagc(c: float = 20.0, **settings: Any) -> laconic.Method:
    """Return SDAGC with one bit a value."""
    return laconic.sdagc(c, **{"clip": CLIP, "values": "sign"} | settings)


def warm(c: float, **settings: Any) -> laconic.Method:
    """Return SDAGC that does not begin with silence: a share falls to what c sends in 2 c steps."""
    return replace(sdagc(c, **settings), tuner=laconic.Warmup(start=0.03, steps=round(2 * c)))


def celgc(every: int, **settings: Any) -> laconic.Method:
    """Return CELGC; its authors' gamma over eta is this clip."""
    return laconic.celgc(every, **{"clip": CLIP} | settings)


def ahead(send: laconic.Method, share: float | None = None) -> laconic.Method:
    """Return rounds of one step, each taken from where a rank would stand with its share of what it owes."""
    # Steps are clipped, not what is sent of them.
    return laconic.celgc(1, clip=CLIP, convention="mean", restart=share, send=replace(send, clip=None))


OUTER = {"outer_rate": 0.7, "outer_momentum": 0.6}
LOOSE = {"convention": "mean"}

WHERE_THEY_PART = {
    PARENT: laconic.parallel_clip(CLIP),
    "celgc I=4, clip 0.5": celgc(4, **LOOSE),
    "celgc I=16, clip 0.5": celgc(16, **LOOSE),
    "celgc I=16, clip 0.5, outer momentum": celgc(16, **LOOSE, **OUTER),
    "topk 0.1%": _clipped(laconic.topk(0.001, memory="update")),
    "dgc 0.1%": laconic.dgc(0.001, clip=CLIP),
    "sdagc c=15, 1 bit": sdagc(15.0),
    "sdagc c=20, 1 bit": sdagc(20.0),
    "sdagc c=20, one threshold, 1 bit": sdagc(20.0, scope="model"),
    "sdagc c=30, one threshold, 1 bit": sdagc(30.0, scope="model"),
    "topk 0.3%, 1 bit": topk(0.003),
    "topk 0.1%, 1 bit": topk(0.001),
    "topk 0.1%, one selection": topk(0.001, values="exact"),
    "led 0.3%, 1 bit": topk(0.003, exchange="led"),
    "cat bits": _clipped(laconic.cat("bits")),
    "spartan": laconic.spartan(clip=CLIP),
    **{f"topk {100 * d:g}%, 1 bit, ahead": ahead(topk(d)) for d in (3e-3, 1e-3, 3e-4)},
    "topk 0.1%, 1 bit, half ahead": ahead(topk(0.001), share=0.5),
    **{f"led {100 * d:g}%, 1 bit, ahead": ahead(topk(d, exchange="led")) for d in (1e-2, 3e-3, 1e-3)},
    **{f"sdagc c={c}, 1 bit, ahead": ahead(sdagc(float(c), scope="model")) for c in (10, 20, 30)},
    "sdagc 0.1% held, 1 bit, ahead": ahead(sdagc(law="target", density=0.001, scope="model")),
    **{f"sdagc c={c}, 1 bit, warm": warm(float(c), scope="model") for c in (15, 20, 30)},
    "sdagc c=15, per layer, 1 bit, warm": warm(15.0),
    "sdagc c=20, 1 bit, warm, ahead": ahead(warm(20.0, scope="model")),
    "celgc I=16": celgc(16),
    "celgc I=16, outer momentum": celgc(16, **OUTER),
    "celgc I=4, outer momentum": celgc(4, **OUTER),
}

THOSE_THAT_HOLD = {
    PARENT: laconic.parallel_clip(CLIP),
    **{f"celgc I={i}": celgc(i) for i in (2, 4, 8, 16, 32)},
    **{f"celgc I={i}, outer momentum": celgc(i, **OUTER) for i in (4, 16)},
    "topk 0.1%": _clipped(laconic.topk(0.001, memory="update")),
    "dgc 0.1%": laconic.dgc(0.001, clip=CLIP),
    **{f"sdagc c={c}, 1 bit": sdagc(float(c)) for c in (10, 15, 20, 30)},
    **{
        f"sdagc {100 * d:g}% held, 1 bit": sdagc(law="target", density=d, scope="model") for d in (3e-3, 1e-3, 3e-4)
    },
    **{f"topk {100 * d:g}%, 1 bit": topk(d) for d in (3e-3, 1e-3, 3e-4)},
    **{f"led {100 * d:g}%, 1 bit": topk(d, exchange="led") for d in (1e-2, 3e-3, 1e-3)},
    "cat bits": _clipped(laconic.cat("bits")),
    "spartan": laconic.spartan(clip=CLIP),
    **{f"topk {100 * d:g}%, 1 bit, ahead": ahead(topk(d)) for d in (3e-3, 1e-3, 3e-4, 1e-4)},
    **{f"led {100 * d:g}%, 1 bit, ahead": ahead(topk(d, exchange="led")) for d in (3e-3, 1e-3, 5e-4)},
    **{f"sdagc c={c}, 1 bit, ahead": ahead(sdagc(float(c), scope="model")) for c in (10, 20, 30, 60)},
}

ROWS = {
    **{("ptb, 6 epochs", n): Row(task=PTB, training=SIX, method=m) for n, m in WHERE_THEY_PART.items()},
    **{
        ("ptb, 10 epochs", n): Row(task=PTB, training=TEN, method=m, weight=2.0) for n, m in THOSE_THAT_HOLD.items()
    },
}
TABLE = Table(parent=PARENT, rows=ROWS)


def main(options: ManyRuns) -> None:
    run_or_print(options, ROWS, Path(__file__), lambda path: printed(path, TABLE))


if __name__ == "__main__":
    main(tyro.cli(ManyRuns, description=__doc__))
