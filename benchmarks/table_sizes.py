"""Sizes: the same entries a step for models of unlike size, on a CPU: whether what must be sent grows with a model.

    python benchmarks/table_sizes.py --virtual --jobs 2 --seeds 1 --out benchmarks/results/table_sizes.json
    python benchmarks/table_sizes.py --table benchmarks/results/table_sizes.json    # for docs/results.md

Characters of Python's documentation, LSTMs of 256, 512 and 1,024: 0.4, 1.2 and 4.6 million parameters. Ranks take
turns to choose, one bit a value, ahead; a step sends 317, 1,088 or 3,628 entries.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import tyro
from compositions import ahead, largest
from many_runs import ManyRuns, Row, run_or_print
from table_parts import CLIP, FEW, PARENT
from tables import Table, printed

import laconic

PARAMETERS = {256: 362_791, 512: 1_243_175, 1024: 4_576_807}
# The first of 256 are the share of its model that the second are of 512's, and about what the third are of 1024's.
ENTRIES = {256: (317, 1_088, 3_628), 512: (1_088, 3_628), 1024: (1_088, 3_628)}


def rows_of(hidden: int, parameters: int) -> dict[tuple[str, str], Row]:
    """Return the rows of a model with so many parameters."""
    row = replace(FEW, task=replace(FEW.task, hidden=hidden), weight=parameters / PARAMETERS[256])
    methods = {PARENT: laconic.parallel_clip(CLIP)} | {
        f"led {entries:,} entries, 1 bit, ahead": ahead(largest(entries / parameters, exchange="led"), clip=CLIP)
        for entries in ENTRIES[hidden]
    }
    group = f"characters, an LSTM of {hidden}"
    return {(group, name): replace(row, method=method) for name, method in methods.items()}


ROWS = {name: row for hidden, number in PARAMETERS.items() for name, row in rows_of(hidden, number).items()}
TABLE = Table(parent=PARENT, rows=ROWS)


def main(options: ManyRuns) -> None:
    run_or_print(options, ROWS, Path(__file__), lambda path: printed(path, TABLE))


if __name__ == "__main__":
    main(tyro.cli(ManyRuns, description=__doc__))
