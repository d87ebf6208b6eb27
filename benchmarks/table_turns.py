"""Turns: one of all ranks chooses; how far ahead each stands, how long a round is, how many they are. On a CPU.

    python benchmarks/table_turns.py --virtual --jobs 2 --seeds 2 --out benchmarks/results/table_turns.json
    python benchmarks/table_turns.py --table benchmarks/results/table_turns.json    # for docs/results.md

The task and training of table_parts.py, at equal bytes a step; where there are more ranks each has fewer streams.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import table_parts
import tyro
from many_runs import ManyRuns, Row, run_or_print
from tables import Table, printed

import laconic


def among(ranks: int, density: float) -> Row:
    """Return as many streams in all, dealt out to so many ranks; each looks 1.6 times its share ahead."""
    batch = 4 * _BATCH // ranks
    training = replace(table_parts.SETTLED.training, batch=batch)
    return replace(
        table_parts.SETTLED,
        training=training,
        method=table_parts.rounds(density, share=1.6 / ranks),
        ranks=ranks,
        weight=ranks,
    )


_BATCH = table_parts.SHORT.batch
# Of a message a rank pays for positions, ten bits each, in one of as many rounds as there are ranks.
RANKS = {2: 0.0058, 4: 0.01, 8: 0.0156, 16: 0.022}
ROWS = {
    table_parts.PARENT: replace(table_parts.MANY, method=laconic.parallel_clip(table_parts.CLIP)),
    "1%, I=4": replace(table_parts.SETTLED, method=table_parts.rounds(0.01, share=0.25)),
    "1%, I=4, 0.625 ahead": replace(table_parts.SETTLED, method=table_parts.rounds(0.01, share=0.625)),
    "0.5%, I=2, 0.625 ahead": replace(table_parts.SETTLED, method=table_parts.rounds(0.005, every=2, share=0.625)),
    **{f"{100 * d:g}%, I=4, {1.6 / n:g} ahead, {n} workers": among(n, d) for n, d in RANKS.items()},
}
GROUP = {("characters, 4,000 steps, turns", name): row for name, row in ROWS.items()}
TABLE = Table(parent=table_parts.PARENT, rows=GROUP)


def main(options: ManyRuns) -> None:
    run_or_print(options, GROUP, Path(__file__), lambda path: printed(path, TABLE))


if __name__ == "__main__":
    main(tyro.cli(ManyRuns, description=__doc__))
