"""Results of many runs as tables in Markdown: means over seeds, how far seeds lie apart, and what was sent."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Table:
    """Which row the others are measured against."""

    parent: str


def printed(path: Path, table: Table) -> str:
    """Return the tables of a file, one a group."""
    runs = json.loads(path.read_text())["runs"]
    groups = dict.fromkeys(run["group"] for run in runs)
    return "\n\n".join(_group([run for run in runs if run["group"] == group], group, table) for group in groups)


def _group(runs: Sequence[dict[str, Any]], title: str, table: Table) -> str:
    splits = list(runs[0]["scores"])
    heads = ["method", *splits, "seeds apart", "against parent", "ratio as sent", "density", "rounds"]
    lines = [f"**{title}**", "", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    rows: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        rows.setdefault(run["row"], []).append(run)
    for name, mine in rows.items():
        if any(run["diverged"] or not run["scores"] for run in mine):
            lines.append(f"| {name} | diverged |")
            continue
        scores = [mean(run["scores"][split] for run in mine) for split in splits]
        first = [run["scores"][splits[0]] for run in mine]
        ratio = mean(run["ratio"] for run in mine)
        parent = rows.get(table.parent, [])
        against = ""
        if parent and not any(run["diverged"] for run in parent):
            base = mean(run["scores"][splits[0]] for run in parent)
            relative = mine[0]["metric"] == "perplexity"
            against = f"{scores[0] / base - 1:+.2%}" if relative else f"{100 * (scores[0] - base):+.2f} points"
        cells = [
            *(f"{score:.4g}" for score in scores),
            f"{max(first) - min(first):.2g} ({len(mine)})",
            against,
            f"{ratio:,.0f}x",
            f"{mean(run['density'] for run in mine):.2g}",
            f"{mean(run['syncs'] or run['steps'] for run in mine):,.0f}",
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)
