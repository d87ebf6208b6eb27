"""Parts: one part of the model in each step against all of it, at equal bytes, on a CPU.

    python benchmarks/table_parts.py --virtual --jobs 2 --out benchmarks/results/table_parts.json
    python benchmarks/table_parts.py --table benchmarks/results/table_parts.json    # for docs/results.md

Characters of Python's documentation, an LSTM of 256; one bit a value, ahead. Positions in a part take fewer
bits, so that more entries are sent.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import tyro
from compositions import ahead, largest
from many_runs import ManyRuns, Row, run_or_print
from tables import Table, printed

import laconic
from laconic.lab.tasks import Lm
from laconic.lab.training import Training

CLIP = 1.0
SHORT = Training(steps=1500, batch=8, rate=8.0, clip=CLIP, schedule="linear", final=0.02, eval_every=150)
LONG = replace(SHORT, steps=4000, eval_every=400)
PARENT = "parallel clipping"


def sent(density: float, parts: int = 1, *, exchange: str = "led") -> laconic.Method:
    """Return what sends so much in every step, from where a rank would stand."""
    return ahead(largest(density, exchange=exchange, parts=parts), clip=CLIP)


def rounds(density: float, parts: int = 1, *, every: int = 4, share: float | None = None) -> laconic.Method:
    """Return rounds with an outer step, each begun with a share of what a rank owes (None: 1/N)."""
    send = largest(density, exchange="led", parts=parts)
    settings = {"convention": "local", "outer_rate": 1.0, "outer_momentum": 0.6}
    return ahead(send, every, clip=CLIP, share=share, **settings)


EVERY_STEP = {
    PARENT: laconic.parallel_clip(CLIP),
    "led 0.3%": sent(0.003),
    "led 0.4%, 8 parts": sent(0.004, 8),
    "led 0.43%, 16 parts": sent(0.0043, 16),
    "topk 0.3%": sent(0.003, exchange="gather"),
    "topk 0.52%, 16 parts": sent(0.0052, 16, exchange="gather"),
}
TOO_MANY = {"led 0.63%, 64 parts": sent(0.0063, 64)}
LONGER = {
    PARENT: laconic.parallel_clip(CLIP),
    "led 0.1%": sent(0.001),
    "led 0.14%, 16 parts": sent(0.0014, 16),
    "led 0.16%, 32 parts": sent(0.0016, 32),
}
IN_ROUNDS = {
    "led 1%, I=4": rounds(0.01),
    "led 1.3%, 4 parts, I=4": rounds(0.013, 4),
    "led 1.5%, 8 parts, I=4": rounds(0.015, 8),
}
FEW = Row(task=Lm(dropout=0.2), training=SHORT, method=laconic.dense())
MANY = Row(task=Lm(dropout=0.3), training=LONG, method=laconic.dense(), weight=3.0)
SETTLED = replace(MANY, training=replace(LONG, rate=5.3, settle="sign"))
GROUPS = (
    ("1,500 steps", FEW, EVERY_STEP | TOO_MANY),
    ("4,000 steps", MANY, LONGER),
    ("4,000 steps", SETTLED, IN_ROUNDS),
)
ROWS = {
    (f"characters, {name}", each): replace(row, method=method)
    for name, row, methods in GROUPS
    for each, method in methods.items()
}
TABLE = Table(parent=PARENT, rows=ROWS)


def main(options: ManyRuns) -> None:
    run_or_print(options, ROWS, Path(__file__), lambda path: printed(path, TABLE))


if __name__ == "__main__":
    main(tyro.cli(ManyRuns, description=__doc__))
