"""The table and the figures of ``cat_logreg.py``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def table(rows: list[dict[str, Any]]) -> str:
    """Lay the rows out in Markdown."""
    lines = [
        "| data | ranks | scheme | cost | target | CAT | steps | T least, mean, most | best T | its cost | its "
    ]
    lines[0] += "steps | ratio | dense / CAT | values only |"
    lines += ["|---" * 14 + "|"]
    for r in rows:
        best, reached = r["best_fixed"], r["ratio"] is not None
        fate = "" if reached else f"{'diverged' if r['diverged'] else 'stopped'} at {r['came']:.1%}"
        told = [r["data"], r["ranks"], r["scheme"], r["cost"], f"{r['target']:.0%}"]
        told += [f"{r['cat_cost']:.4g}" if reached else fate, r["steps"] or r["gave_up_after_steps"]]
        told += ["{:,} {:,} {:,}".format(*r["T"]), f"{best['T']:,}", f"{best['cost']:.4g}", best["steps"]]
        told += [f"{r[key]:.3g}" if reached else "-" for key in ("ratio", "dense_ratio", "dense_values_ratio")]
        lines.append(f"| {' | '.join(map(str, told))} |")
    return "\n".join(lines)


def draw(drawn: list[dict[str, Any]], panels_of: Sequence[tuple[int, str]], out: Path) -> None:
    """Draw what is left of the way over bits, a panel each for ranks and scheme."""
    try:
        from matplotlib import pyplot
    except ImportError:
        print("no picture: pip install '.[figures]'", file=sys.stderr)
        return
    pyplot.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": out.stem})
    figure, panels = pyplot.subplots(1, len(panels_of), figsize=(11, 4.2), sharey=True)
    for axes, (ranks, scheme) in zip(panels, panels_of, strict=True):
        for curve in (c for c in drawn if (c["ranks"], c["scheme"]) == (ranks, scheme)):
            style = {"CAT": ("tab:red", 2.4), "dense": ("0.4", 1.2)}.get(curve["label"], (None, 1.2))
            axes.loglog(curve["bits"], curve["left"], label=curve["label"], color=style[0], linewidth=style[1])
        axes.set_title(f"{drawn[0]['data']}, {ranks} rank{'s' * (ranks > 1)}, {scheme}", fontsize=11)
        axes.set_xlabel("bits a rank, 512 a message among them")
        axes.set_ylim(top=2)
        axes.grid(alpha=0.25, which="both")
        axes.legend(frameon=False)
    panels[0].set_ylabel("loss over the optimum, share of the first")
    figure.tight_layout()
    figure.savefig(out, metadata={"Date": None})
    print(f"{out.name}: {out.stat().st_size:,} bytes", file=sys.stderr)
