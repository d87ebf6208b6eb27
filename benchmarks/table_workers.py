"""Workers: one to sixteen of them with equal batches each, all seeing equally much text.

    python benchmarks/table_workers.py --virtual --jobs 2 --seeds 1 --out benchmarks/results/table_workers.json
    python benchmarks/table_workers.py --table benchmarks/results/table_workers.json    # for docs/results.md

A linear speed-up means that N workers need an N-th of the steps. So steps times workers are the same in every row,
and what is compared is where they end, each with the best of three rates. The text is Python's documentation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tyro
from many_runs import ManyRuns, Row, run_or_print
from tables import YARDSTICKS

import laconic
from laconic.lab.report.amounts import NOTHING, whole
from laconic.lab.tasks import Lm
from laconic.lab.training import Training

CLIP = 1.0
STEPS_OF_ALL = 4800
RATES = {1: (2.0, 4.0, 8.0), 2: (4.0, 8.0, 16.0), 4: (4.0, 8.0, 16.0), 8: (8.0, 16.0, 32.0), 16: (8.0, 16.0, 32.0)}
METHODS = {"parallel clipping": laconic.parallel_clip(CLIP), "celgc I=4": laconic.celgc(4, clip=CLIP)}


def _training(workers: int, rate: float) -> Training:
    steps = STEPS_OF_ALL // workers
    return Training(steps=steps, rate=rate, clip=CLIP, eval_every=steps)


ROWS = {
    (f"{workers} workers", f"{name}, rate {rate:g}"): Row(
        task=Lm(), training=_training(workers, rate), method=method, ranks=workers
    )
    for workers, rates in RATES.items()
    for name, method in METHODS.items()
    for rate in rates
}


def _mean(runs: list[Mapping[str, Any]]) -> float:
    return sum(run["scores"]["valid"] for run in runs) / len(runs)


def printed(path: Path) -> str:
    """Return a table with a line a number of workers: of each method its best rate, and where that ended."""
    by_row: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for run in json.loads(path.read_text())["runs"]:
        if run["scores"].get("valid") is not None and not run["stopped"]:
            by_row.setdefault((run["group"], run["row"]), []).append(run)
    heads = [f"{name}: rate | {name}: bits per character | {name}: rounds" for name in METHODS]
    lines = [f"| workers | steps | {' | '.join(heads)} |", "|" + "---:|" * (2 + 3 * len(METHODS))]
    score = YARDSTICKS["bits per character"].score
    for workers in RATES:
        cells = [str(workers), whole(STEPS_OF_ALL // workers)]
        for name in METHODS:
            rows = [runs for (group, row), runs in by_row.items()
                    if group == f"{workers} workers" and row.startswith(f"{name},")]  # fmt: skip
            if not rows:
                cells += [NOTHING] * 3
                continue
            best = min(rows, key=_mean)
            cells += [f"{best[0]['course']['rate']:g}", score(_mean(best)), whole(best[0]["syncs"])]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(options: ManyRuns) -> None:
    run_or_print(options, ROWS, Path(__file__), printed)


if __name__ == "__main__":
    main(tyro.cli(ManyRuns, description=__doc__))
