"""Values: what the bits of a value are worth where ranks take turns in rounds of four steps, on a CPU.

    python benchmarks/table_values.py --virtual --jobs 2 --data-home HOME --out benchmarks/results/table_values.json
    python benchmarks/table_values.py --table benchmarks/results/table_values.json    # for docs/results.md

HOME is where ``laconic data import ptb`` or ``laconic data get ptb`` has left the text. An LSTM of 100, 4,000 steps
of four workers: ten minutes a row on one core. Rows with few bits have more entries, so that bytes are the same.
Then shares of the debt on characters that are read fifteen times over.
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

CLIP = 0.25
PTB = Lm(data="ptb", layers=1, hidden=100, dropout=0.2, tied=True)
PARENT = "parallel clipping"
DENSE = Training(
    steps=4000, batch=5, rate=30.0, clip=CLIP, schedule="linear", final=0.02, eval_every=400, optimizer="sgd"
)
SETTLED = replace(DENSE, rate=20.0, settle="sign")


def led(density: float, values: str = "sign", *, share: float | None = None, clip: float = CLIP) -> laconic.Method:
    """Return rounds in which ranks take turns, begun from where a rank would stand with a share of what it owes."""
    send = largest(density, exchange="led", values=values)
    outer = {"outer_rate": 1.0, "outer_momentum": 0.6}
    return ahead(send, 4, clip=clip, convention="local", share=share, **outer)


SENT = {
    "led 3%, 1 bit, ahead, I=4": led(0.03),
    **{f"led 3%, 1 bit, {share} ahead, I=4": led(0.03, share=share) for share in (0.4, 0.625)},
    "led 2.13%, octaves2, 0.625 ahead, I=4": led(0.0213, "octaves2", share=0.625),
    "led 1.38%, int4, 0.625 ahead, I=4": led(0.0138, "int4", share=0.625),
    **{f"led 1.38%, octaves, {share} ahead, I=4": led(0.0138, "octaves", share=share) for share in (0.625, 1.0)},
    # What is lost by rounding, and what by few entries: these send more bytes.
    "led 3%, octaves, 0.625 ahead, I=4": led(0.03, "octaves", share=0.625),
    **{f"led {100 * d:g}%, 32 bits, 0.625 ahead, I=4": led(d, "exact", share=0.625) for d in (0.0138, 0.03)},
}
GROUP = "ptb, an LSTM of 100, 3 epochs"
ROWS = {(GROUP, PARENT): Row(task=PTB, training=DENSE, method=laconic.parallel_clip(CLIP))} | {
    (GROUP, name): Row(task=PTB, training=SETTLED, method=method) for name, method in SENT.items()
}
# How far ahead is best where a text is read again and again, as in the long trainings of the large tables.
CHARACTERS, AGAIN = Lm(dropout=0.3), "characters, many epochs"
MANY = replace(DENSE, batch=8, rate=8.0, clip=1.0)
ROWS |= {(AGAIN, PARENT): Row(task=CHARACTERS, training=MANY, method=laconic.parallel_clip(1.0))} | {
    (AGAIN, f"led 3%, 1 bit, {share:g} ahead, I=4"): Row(
        task=CHARACTERS, training=replace(MANY, rate=5.3, settle="sign"), method=led(0.03, share=share, clip=1.0)
    )
    for share in (0.0, 0.25, 0.625)
}
TABLE = Table(parent=PARENT, rows=ROWS)


def main(options: ManyRuns) -> None:
    run_or_print(options, ROWS, Path(__file__), lambda path: printed(path, TABLE))


if __name__ == "__main__":
    main(tyro.cli(ManyRuns, description=__doc__))
