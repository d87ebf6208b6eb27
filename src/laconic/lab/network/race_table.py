"""What came of tuning and of a race, as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.table import Table

from laconic.lab.network.race_files import Tried, Tuned, best_of, choose
from laconic.lab.report.amounts import NOTHING

HEADINGS = (
    "competitor", "rate", "seconds\nto target", "steps", "ms\na step", "MB sent\na rank", "sooner\nthan ddp",
    "than\nddp-fp16", "than the\nbest peer",
)  # fmt: skip


def race_table(whole: Mapping[str, Any]) -> Table:
    """Return the table of a race."""
    settings, metric = whole["settings"], whole["metric"]
    rate = "unlimited" if settings["megabits"] is None else f"{settings['megabits']:g} Mbit/s"
    link = "loopback" if settings["loopback"] else rate
    title = f"to {metric['name']} {settings['target']:g}, {settings['ranks']} ranks, {link}"
    out = Table(title=title, box=box.SIMPLE, padding=0)
    out.add_column(HEADINGS[0], no_wrap=True)
    for heading in HEADINGS[1:]:
        out.add_column(heading, justify="right")
    for row in whole["rows"]:
        out.add_row(*cells(row))
    for each in whole["not_raced"]:
        out.add_row(each["competitor"], f"{each['rate']:g}", "not raced", *[NOTHING] * (len(HEADINGS) - 3))
    return out


def cells(row: Mapping[str, Any]) -> list[str]:
    """Return a row of a race as texts; what it does not have is a dash."""
    missed = "failed" if row["failed"] else "not reached"
    megabytes = row.get("interface_bytes")
    times = [row.get(key) for key in ("over_ddp", "over_fp16", "over_best_peer")]
    return [
        row["competitor"],
        f"{row['rate']:g}",
        f"{row['seconds']:.{1 if row['seconds'] >= 10 else 2}f}" if row["reached"] else missed,
        NOTHING if row["steps"] is None else str(row["steps"]),
        f"{row['step_milliseconds']:.0f}" if "step_milliseconds" in row else NOTHING,
        NOTHING if megabytes is None else f"{megabytes / 1e6:,.{0 if megabytes > 1e9 else 1}f}",
        *(NOTHING if each is None else f"{each:.2f}x" for each in times),
    ]


def closing(whole: Mapping[str, Any]) -> str:
    """Say what a table cannot: who did not come to the target, and what the numbers are."""
    lines = []
    for row in whole["rows"]:
        if not row["reached"]:
            what = row["failed"].splitlines()[-1] if row["failed"] else f"{row['best']:.4g} at best"
            lines.append(f"{row['competitor']} did not come to the target: {what}.")
    for each in whole["not_raced"]:
        best = NOTHING if each["best"] is None else f"{each['best']:.4g}"
        lines.append(f"{each['competitor']} came to {best} at best in tuning, and was not raced.")
    lines.append(
        "Seconds are those of training, without evaluation, up to the first evaluation that showed the target; "
        "ms: median over stretches between evaluations; bytes are those of the rank's own interface."
    )
    return "\n".join(lines)


def tuning_table(tuned: Tuned, target: float | None) -> Table:
    """Return the best figure of each competitor at each rate; with a target, steps to it and the rate chosen."""
    rates = sorted({run.rate for run in tuned.runs})
    out = Table(title=f"{tuned.metric.name} at best, {tuned.settings['steps']} steps", box=box.SIMPLE, padding=0)
    out.add_column("competitor")
    for rate in rates:
        out.add_column(f"rate {rate:g}", justify="right")
    if target is not None:
        out.add_column(f"steps to\n{target:g}", justify="right")
        out.add_column("at rate", justify="right")
    for word in dict.fromkeys(run.competitor for run in tuned.runs):
        runs = {run.rate: run for run in tuned.of(word)}
        row = [word, *(_best(runs.get(rate), tuned) for rate in rates)]
        if target is not None:
            chosen = choose(tuned.of(word), tuned.metric, target)
            edge = ", an end of the grid" if chosen.at_edge else ""
            row += [NOTHING if chosen.steps is None else str(chosen.steps), f"{chosen.rate:g}{edge}"]
        out.add_row(*row)
    return out


def _best(run: Tried | None, tuned: Tuned) -> str:
    if run is None:
        return NOTHING
    diverged = " diverged" if run.ended == "diverged" else ""
    return f"{best_of([run], tuned.metric):.4g}{diverged}"
