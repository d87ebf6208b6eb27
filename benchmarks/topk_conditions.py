"""What the convergence of TopK-SGD rests on, measured while it trains (docs/theory.md), on the laboratory's model.

    python benchmarks/topk_conditions.py --out benchmarks/results/topk_conditions.json    # 2 minutes on two cores
    python benchmarks/topk_conditions.py --table benchmarks/results/topk_conditions.json    # for docs/theory.md

Four real ranks over gloo. Measuring costs bytes of its own, so that none are told here; no time is measured.
"""

from __future__ import annotations

import json
import platform
import tempfile
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import tyro
from run_record import Lines

import laconic
from laconic.lab.data.home import default_home
from laconic.lab.folder import RunFolder
from laconic.lab.launch import run_ranks
from laconic.lab.loop import Loop, Ways
from laconic.lab.session import place_of, prepare
from laconic.lab.signals import noted_wishes
from laconic.lab.spec import Spec
from laconic.lab.talk import Talk
from laconic.lab.tasks import Lm
from laconic.lab.training import Course, Training

DENSITIES = (0.1, 0.01, 0.001)
EVERY, SHOWN = 25, (100, 200, 300, 400, 500, 600)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Train with each density, and keep what was measured."""

    out: Path = Path("results.json")
    """Where the results go."""
    table: Path | None = None
    """Print the table of a saved file and do nothing else."""
    ranks: int = 4
    """How many ranks."""


def main(options: Options) -> None:
    if options.table is not None:
        print(table(json.loads(options.table.read_text())))
        return
    training = Training(schedule="linear", final=0.02, eval_every=600, steps=600)
    spec = Spec(
        task=Lm(),
        training=training,
        method="topk_sgd",
        workers=options.ranks,
        device="cpu",
        data_home=str(default_home()),
        checkpoint_every=None,
    )
    runs = [run_ranks(spec.workers, _work, spec, density) for density in DENSITIES]
    about = {"command": f"python benchmarks/topk_conditions.py --out {options.out}", "ranks": options.ranks}
    result = about | {"python": platform.python_version(), "torch": torch.__version__, "runs": runs}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(table(result))


def _work(spec: Spec, density: float) -> dict[str, Any]:
    """Train on this rank, and return what it measured."""
    talk = Talk()
    place = place_of(spec, talk)
    work = prepare(spec, place)
    ways = Ways(attach=partial(laconic.attach, measure_every=EVERY))
    with tempfile.TemporaryDirectory() as scratch, noted_wishes() as wish:
        course, folder = Course.of(spec.settled, work.steps_per_epoch), RunFolder(Path(talk.of_first(scratch)))
        loop = Loop(work, course, laconic.topk_sgd(density), place, talk, folder, ways=ways)
        outcome = loop.run(Lines(wish), wish, checkpoint_every=None)
        talk.wait()
    return {
        "density": density,
        "scores": outcome.scores,
        "history": [asdict(measured) for measured in outcome.stats.history],
    }


def table(result: dict[str, Any]) -> str:
    """Lay out in Markdown: xi, what is not kept, and the drift over its bound, means of a hundred steps."""
    head = ["density", "number", *(f"steps {end - 100} to {end}" for end in SHOWN)]
    lines = [f"| {' | '.join(head)} |", f"|---|---|{'---:|' * len(SHOWN)}"]
    for run in result["runs"]:
        numbers = {
            "xi": lambda m: m["xi"],
            "kept error": lambda m: m["kept_error"],
            "drift": lambda m: m["drift"],
            "drift over its bound": lambda m: m["drift"] / m["drift_bound"],
        }
        for name, number in numbers.items():
            cells = []
            for end in SHOWN:
                values = [number(m) for m in run["history"] if end - 100 < m["step"] <= end]
                cells.append(f"{sum(values) / len(values):.3g}")
            lines.append(f"| {100 * run['density']:g}% | {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
