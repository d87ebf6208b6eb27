"""Selectors and SDAGC's companions on the language model of ``make demo``: quality against bytes, several seeds.

    python benchmarks/what_to_send.py --out benchmarks/results/what_to_send.json    # 40 minutes on two cores
    python benchmarks/what_to_send.py --table benchmarks/results/what_to_send.json    # the table of docs/sdagc.md

Every run is four real ranks over gloo; bytes are those handed to the collectives by one rank. All sparse methods
clip local gradients by the same rule, so that they differ in what they select. No time is measured here.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch
import tyro
from rich.console import Console

import laconic
from laconic.lab.folder import RunFolder
from laconic.lab.launch import run_ranks
from laconic.lab.loop import Loop
from laconic.lab.session import place_of, prepare
from laconic.lab.show import Show
from laconic.lab.signals import noted_wishes
from laconic.lab.spec import Spec
from laconic.lab.talk import Talk
from laconic.lab.tasks import Lm
from laconic.lab.training import Course, Training

CLIP = laconic.LocalClip(norm=1.0)
PLAIN = Training(eval_every=600)
FALLING = replace(PLAIN, schedule="linear", final=0.1)
MOMENTUM = replace(PLAIN, rate=0.8, momentum=0.9)


def _clipped(method: laconic.Method) -> laconic.Method:
    return replace(method, clip=CLIP)


def _sdagc(c: float = 20.0, **settings: Any) -> laconic.Method:
    return laconic.sdagc(c, **{"clip": CLIP.norm} | settings)


# group, row: how it is trained, with what
ROWS: dict[tuple[str, str], tuple[Training, laconic.Method]] = {
    ("plain", "dense"): (PLAIN, laconic.dense()),
    ("plain", "topk 0.45%"): (PLAIN, _clipped(laconic.topk(0.0045, memory="update"))),
    ("plain", "dgc 0.45%"): (PLAIN, laconic.dgc(0.0045, clip=CLIP.norm, warmup_steps=25)),
    ("plain", "gaussiank 1%"): (PLAIN, _clipped(laconic.gaussiank(0.01, memory="update"))),
    ("plain", "sidco 0.45%"): (PLAIN, _clipped(laconic.sidco(0.0045, memory="update"))),
    ("plain", "strom 0.1"): (PLAIN, _clipped(laconic.strom(0.1))),
    ("plain", "adacomp 1000"): (PLAIN, _clipped(laconic.adacomp(1000, memory="update"))),
    ("plain", "sdagc"): (PLAIN, _sdagc()),
    ("plain", "sdagc without residual"): (PLAIN, replace(_sdagc(momentum=False), memory="none", guard=None)),
    ("plain", "sdagc without clipping"): (PLAIN, _sdagc(clip=None)),
    ("plain", "sdagc, law warmup (25 steps)"): (PLAIN, _sdagc(law="warmup", warmup_steps=25)),
    ("plain", "sdagc, law progress"): (PLAIN, _sdagc(25.0, law="progress")),
    ("plain", "sdagc, law target 0.45%"): (PLAIN, _sdagc(law="target", density=0.0045)),
    ("plain", "sdagc, one threshold"): (PLAIN, _sdagc(over="model")),
    ("plain", "sdagc, deviation of this step"): (PLAIN, _sdagc(running=0.0)),
    ("plain", "sdagc, deviation of the residual"): (PLAIN, _sdagc(2.5, std_of="residual")),
    ("falling", "dense"): (FALLING, laconic.dense()),
    ("falling", "sdagc (revision A)"): (FALLING, _sdagc()),
    ("falling", "sdagc, revision B"): (FALLING, _sdagc(revision="damp")),
    ("falling", "sdagc without revision (C)"): (FALLING, _sdagc(revision="none")),
    ("momentum", "dense"): (MOMENTUM, laconic.dense()),
    ("momentum", "dgc 0.45%"): (MOMENTUM, laconic.dgc(0.0045, clip=CLIP.norm, warmup_steps=25)),
    ("momentum", "sdagc (c = 40)"): (MOMENTUM, _sdagc(40.0)),
    ("momentum", "sdagc (c = 40) without masking"): (MOMENTUM, _sdagc(40.0, masking=False)),
    ("momentum", "sdagc without momentum compensation"): (MOMENTUM, _sdagc(momentum=False)),
}

TITLES = {
    "plain": "SGD, rate 8, as in `make demo`",
    "falling": "The same with a rate that falls to a tenth in the second half",
    "momentum": "SGD with momentum 0.9, rate 0.8",
}


@dataclass(frozen=True, kw_only=True)
class WhatToSend:
    """Train the demo's language model with every selector and every ablation of SDAGC."""

    out: Path = Path("what_to_send.json")
    """Where the results go; rewritten after every run, and a second call goes on where a first one broke off."""
    table: Path | None = None
    """Print the table of a saved file and do nothing else."""
    seeds: int = 3
    """Seeds 0, 1, ..."""
    ranks: int = 4
    """Processes a run."""
    jobs: int = 1
    """Runs at a time; a run uses as many cores as it has ranks."""
    one: str | None = None
    """Run this one (group/row/seed) and print its result. The benchmark calls itself this way."""


def main(options: WhatToSend) -> None:
    if options.table is not None:
        print(table(json.loads(options.table.read_text())))
    elif options.one is not None:
        group, row, seed = options.one.split("/")
        options.out.write_text(json.dumps(run(group, row, int(seed), options.ranks)))
    else:
        run_all(options)


def run(group: str, row: str, seed: int, ranks: int) -> dict[str, Any]:
    training, method = ROWS[group, row]
    training = replace(training, seed=seed)
    done = run_ranks(ranks, _work, training, method)
    return {"group": group, "row": row, "seed": seed, "method": repr(method), "training": asdict(training)} | done


def _work(training: Training, method: laconic.Method) -> dict[str, Any]:
    talk = Talk()
    spec = Spec(
        task=Lm(),
        training=training,
        method=method.name,
        workers=talk.ranks,
        device="cpu",
        data_home="",
        checkpoint_every=None,
    )
    place = place_of(spec, talk)
    work = prepare(spec, place)
    with tempfile.TemporaryDirectory() as scratch, Show(hidden=True, boards=False) as show, noted_wishes() as wish:
        course, folder = Course.of(spec.settled, work.steps_per_epoch), RunFolder(Path(talk.of_first(scratch)))
        watcher = show.begin(method.name, course.steps, work.metric, folder.path, False)
        outcome = Loop(work, course, method, place, talk, folder).run(watcher, wish, checkpoint_every=None)
        talk.wait()
    return {
        "valid_loss": outcome.last["eval_loss"],
        "train_loss": outcome.last["loss"],
        "wire_bytes": outcome.stats.wire_bytes,
        "dense_bytes": outcome.stats.dense_bytes,
        "ratio": outcome.stats.ratio,
        "skipped_steps": outcome.stats.skipped_steps,
        "layers": [asdict(layer) for layer in outcome.stats.layers],
    }


def run_all(options: WhatToSend) -> None:
    console = Console()
    result: dict[str, Any] = {
        "command": f"python benchmarks/what_to_send.py {' '.join(sys.argv[1:])}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cores": os.cpu_count(),
        "ranks": options.ranks,
        "runs": [],
    }
    # Variants ("sdagc, ...") come last: a call that is broken off has the methods and ablations.
    rows = sorted(ROWS, key=lambda key: ", " in key[1])
    names = [f"{group}/{row}/{seed}" for group, row in rows for seed in range(options.seeds)]
    if options.out.exists():
        before = json.loads(options.out.read_text())
        if before["ranks"] != options.ranks:
            raise SystemExit(
                f"{options.out} has runs of {before['ranks']} ranks, not {options.ranks}: name another."
            )
        result["runs"] = before["runs"]
        done = {f"{r['group']}/{r['row']}/{r['seed']}" for r in result["runs"]}
        names = [name for name in names if name not in done]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(options.jobs) as pool, tempfile.TemporaryDirectory() as scratch:
        waiting = [
            pool.submit(_apart, name, options.ranks, Path(scratch) / f"{i}.json") for i, name in enumerate(names)
        ]
        for future in as_completed(waiting):
            one = future.result()
            result["runs"].append(one)
            options.out.write_text(json.dumps(result, indent=1))
            console.print(
                f"{len(result['runs'])} done, {one['group']}/{one['row']} seed {one['seed']}: "
                f"valid {one['valid_loss']:.4f}, {one['ratio']:.1f}x"
            )
    print(table(result))


def _apart(name: str, ranks: int, out: Path) -> dict[str, Any]:
    """Run one in a process of its own: the launcher wants the main thread."""
    command = [sys.executable, __file__, "--one", name, "--ranks", str(ranks), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{name} failed:\n{done.stderr[-2000:]}")
    read: dict[str, Any] = json.loads(out.read_text())
    return read


def table(result: dict[str, Any]) -> str:
    """Lay the results out in Markdown: means over seeds, and the spread of the validation loss."""
    lines = []
    for group, title in TITLES.items():
        lines += ["", f"**{title}**", "", "| method | valid loss | seeds | against dense | bytes a rank | ratio |"]
        lines += ["|---|---|---|---|---|---|"]
        parents = [r["valid_loss"] for r in result["runs"] if (r["group"], r["row"]) == (group, "dense")]
        if not parents:
            continue
        dense = mean(parents)
        for row in (row for g, row in ROWS if g == group):
            runs = sorted(
                (r for r in result["runs"] if (r["group"], r["row"]) == (group, row)), key=lambda r: r["seed"]
            )
            if not runs:
                continue
            loss = mean(r["valid_loss"] for r in runs)
            seeds = " ".join(f"{r['valid_loss']:.3f}" for r in runs)
            sent, ratio = mean(r["wire_bytes"] for r in runs), mean(r["ratio"] for r in runs)
            lines.append(f"| {row} | {loss:.3f} | {seeds} | {loss / dense - 1:+.1%} | {sent:,.0f} | {ratio:.1f}x |")
    return "\n".join(lines).strip()


if __name__ == "__main__":
    main(tyro.cli(WhatToSend))
