"""A page that predicts again as its sliders move: one small file, with rehearsed numbers and the formula in it."""

from __future__ import annotations

import json
from dataclasses import asdict
from html import escape
from importlib.resources import files
from math import inf
from pathlib import Path
from typing import Any

from laconic.lab.report.markup import json_in_script
from laconic.plan.advise import is_known, reached
from laconic.plan.facts import Facts
from laconic.plan.predict import Link
from laconic.sim.network import HEADERS

# The report's hues: colour-blind readers tell them apart. Plain DDP has the colour of text.
_PLAIN = "#7d858d"
_HUES = ("#0072b2", "#d55e00", "#00805f", "#a3418f", "#8a6a00", "#5f5bd0", "#c2315b", "#2a9fc9", "#b07bd6")
_HEADINGS = ("step", "communicating", "over DDP", "over fp16", "bytes a rank and step")


def write_page(facts: Facts, link: Link, path: Path) -> Path:
    """Write the page, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(facts, link), encoding="utf-8")
    return path


def page(facts: Facts, link: Link) -> str:
    """Return the page as HTML."""
    headings = "".join(f'<th scope="col">{heading}</th>' for heading in ("method", *_HEADINGS))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Will it pay? {escape(facts.work)}</title>
<style>
{_own("page.css")}</style>
</head>
<body>
<main>
<h1>Will it pay on my network?</h1>
<p id="about"></p>
<div class="sliders">
<label>bandwidth <output id="bandwidth-told"></output>
<input id="bandwidth" type="range" min="0" max="5" step="0.02"></label>
<label>workers <output id="workers-told"></output>
<input id="workers" type="range" min="0" step="1"></label>
</div>
<p id="advice" aria-live="polite"></p>
<div class="box"><table><thead><tr>{headings}</tr></thead><tbody id="rows"></tbody></table></div>
<svg id="chart" role="img" aria-label="seconds of a step against bandwidth, a line a method"></svg>
<p class="note">Step times are predictions: each method was rehearsed with its own code on the host that planned,
and only the time on the link is computed, as latency and bytes over bandwidth. The planner knows time, not your
task's accuracy. cat weighs the link while it trains; its amount here is that of the bandwidth the plan was made
for.</p>
</main>
<script type="application/json" id="told">{json_in_script(json.dumps(told(facts, link)))}</script>
<script>
{_own("formula.js")}</script>
<script>
{_own("page.js")}</script>
</body>
</html>
"""


def told(facts: Facts, link: Link) -> dict[str, Any]:
    """Return what the page's scripts read."""
    names, hues = [method.name for method in facts.methods], iter(_HUES * 8)
    given = {key: None if value == inf else value for key, value in asdict(link).items()}
    invented = ", layout invented" if facts.profile.invented else ""
    words = (
        f"{facts.work}: {facts.profile.parameters:,} parameters, {1e3 * facts.profile.alone:.3g} ms a step alone"
    )
    nodes = f", {link.node_size} workers a node" if link.node_size > 1 else ""
    data = facts.as_dict()
    for method in data["methods"]:
        del method["setting"]
    return {
        "facts": data,
        "link": given | {"headers": HEADERS},
        "known": {method.name: reached(method) for method in facts.methods if is_known(method.name)},
        "looks": {name: _PLAIN if name == "ddp" else next(hues) for name in names},
        "words": f"{words}{invented}; latency {link.latency:.3g} ms{nodes}",
    }


def _own(name: str) -> str:
    return files("laconic.plan").joinpath(name).read_text(encoding="utf-8")
