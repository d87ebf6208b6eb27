"""The parts of the page, each an HTML section with a heading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from laconic.lab.report.figures import AXES
from laconic.lab.report.markup import results_table, settings_tables
from laconic.lab.report.read import Run
from laconic.lab.tuning import in_words
from laconic.lab.waits import slow_rank


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart's place in the page: which figure, its heading, and what must be known to read it."""

    figure: str
    name: str
    note: str


def results(runs: Sequence[Run]) -> str:
    """Return the table of the results and what copies it."""
    tools = (
        '<div class="tools"><button type="button" data-copy="markdown">Copy as Markdown</button>'
        '<button type="button" data-copy="csv">Copy as CSV</button></div>'
    )
    return _section("Results", results_table(runs), beside=tools)


def charts(name: str, drawn: Sequence[Chart], *, switch: bool) -> str:
    """Return charts over all methods, with one legend for them and, if wanted, the switch of their axis."""
    buttons = "".join(
        f'<button type="button" data-axis="{axis}" aria-pressed="{"true" if axis == "steps" else "false"}">'
        f"{axis}</button>"
        for axis in AXES
    )
    beside = f'<div class="switch" role="group" aria-label="Horizontal axis">{buttons}</div>' if switch else ""
    body = "".join(_figure(chart, methods=True) for chart in drawn)
    legend = '<ul class="key" aria-label="Methods: show or hide"></ul>'
    return _section(name, f'{_NO_SCRIPT}<div class="grid">{body}</div>{legend}', beside=beside)


def layers(runs: Sequence[Run], places: Sequence[int], first: int) -> str:
    """Return the charts of one method's layers, and the choice of the method."""
    options = "".join(
        f'<option value="{place}"{" selected" if place == first else ""}>{escape(runs[place].label)}</option>'
        for place in places
    )
    beside = f'<label class="tools">Method <select id="run">{options}</select></label>'
    drawn = [
        Chart(figure="layer_bytes:{run}", name="Bytes a step", note="of one rank, apportioned by entries sent"),
        Chart(figure="layer_density:{run}", name="Density", note="share of each layer's entries that is sent"),
    ]
    body = "".join(_figure(chart, methods=False) for chart in drawn)
    return _section("Layer by layer", f'<div class="grid">{body}</div>', beside=beside)


def methods(runs: Sequence[Run]) -> str:
    """Return what each method is: a sentence, the paper, the settings."""
    parts = []
    for run in runs:
        what, paper, settings = (str(run.result.get(key) or "") for key in ("what", "paper", "settings"))
        settings = settings or str(run.spec.get("method") or "")
        lines = [(what, "{}"), (paper, "<small>{}</small>"), (settings, "<code>{}</code>")]
        if isinstance(tuning := run.result.get("tuning"), Mapping):
            lines.append((f"At the end {in_words(tuning)}.", "{}"))
        if (slow := slow_rank(run.result)) is not None:
            lines.append((f"A rank was slow: {slow}.", "{}"))
        told = "".join(f"<p>{form.format(escape(text))}</p>" for text, form in lines if text)
        parts.append(f"<div><h3>{escape(run.label)}</h3>{told}</div>")
    return _section("What each method is", f'<div class="methods">{"".join(parts)}</div>')


def again(runs: Sequence[Run]) -> str:
    """Return the commands, the settings and the machine."""
    commands = "".join(
        f'<div class="command"><pre><code>{escape(command)}</code></pre>'
        f'<button type="button" data-copy="command{place}">Copy</button></div>'
        for place, command in enumerate(commands_of(runs))
    )
    # The course is the training with nothing left open; the method is told above.
    specs = [{key: each for key, each in run.spec.items() if key not in ("training", "method")} for run in runs]
    spec = settings_tables(runs, specs, "Settings")
    machines = [{key: each for key, each in run.environment.items() if key != "command"} for run in runs]
    where = settings_tables(runs, machines, "Environment")
    count = len(commands_of(runs))
    if count > _MOST_COMMANDS:
        commands = f"<details><summary>{count} commands</summary>{commands}</details>"
    body = commands or '<p class="note">The runs have not kept their command.</p>'
    body += f"<details><summary>Settings</summary>{spec}</details>" if spec else ""
    body += f"<details><summary>Machine and versions</summary>{where}</details>" if where else ""
    return _section("Run it again", body)


def commands_of(runs: Sequence[Run]) -> list[str]:
    """Return the commands that made the runs, each once."""
    return list(dict.fromkeys(str(run.environment["command"]) for run in runs if run.environment.get("command")))


def _about_seconds(runs: Sequence[Run]) -> str:
    simulated = [run.spec["simulated"] for run in runs if run.spec.get("simulated")]
    if not simulated:
        return (
            "Seconds are of training without evaluation, on the machine named above. Ranks of one machine talk "
            "over loopback, which costs little: there the seconds show the price of selecting, not the gain on a "
            "slow link."
        )
    return (
        f"{'Seconds' if len(simulated) == len(runs) else 'Some seconds'} are simulated: what ranks compute, and "
        "what a network that is not there takes for each collective. Bytes and what is learnt are those of real "
        "ranks."
    )


def notes(runs: Sequence[Run], each: int) -> str:
    """Return what the numbers mean, and what they do not."""
    seeds = sorted({str(run.seed) for run in runs if run.seed is not None})
    workers = {str(run.spec.get("workers")) for run in runs}
    said = [
        "Bytes are those that one rank handed to the collectives, headers included. How many it sent to other "
        "ranks for them depends on the backend; link_bytes_sent_per_rank in summary.json has it for gloo. Packets "
        "add to that.",
        "Ratio is the bytes of dense gradients over the bytes sent. Density is the share of entries sent; an entry "
        "sent alone has its place to tell, about log2(1 / density) + 2 bits beside its value.",
        _about_seconds(runs),
        "Clipped is the share of gradients whose norm was above the one allowed: of each rank's own where the "
        "method clips them, else of the averaged ones.",
        f"Seed{'s' if len(seeds) != 1 else ''}: {', '.join(seeds) or 'not known'}. "
        + ("One seed does not tell a small difference from chance." if len(seeds) < 2 else ""),
    ]
    if any("syncs" in line for run in runs for line in run.steps):
        said.append(
            "Syncs counts exchanges. With local steps each rank steps by itself for a round, and at its end the "
            "mean of what all have walked is exchanged. Evaluations within a round look at the mean of the ranks' "
            "models; those bytes are not counted."
        )
    if any("count" in line for run in runs for line in run.steps):
        said.append(
            "T is the number of entries that a rank is to send, chosen anew before each exchange. Where a method "
            "weighs gain against cost, gain is the share of a full step's descent, and cost is what the message "
            "takes: bits, bytes of whole packets, or the seconds of a step. On a measured link an amount may grow "
            "only so fast, so the T chosen can lie beside the best."
        )
        said.append(
            "The link is fitted from how long exchanges of unlike sizes made ranks wait. Work that goes on "
            "meanwhile hides some of that, so the link may look faster than the wire is."
        )
    if any(run.dense for run in runs):
        said.append("Against dense: final value minus that of the dense run, which has the same seed and data.")
    if len(workers) > 1:
        said.append(f"The runs differ in their number of ranks ({', '.join(sorted(workers))}).")
    if each > 1:
        said.append(f"Lines of long logs are drawn as means over up to {each} lines; evaluations are not.")
    if any(run.diverged_at is not None for run in runs):
        said.append("A run has diverged when its loss ends as no finite number; a cross marks the last that was.")
    items = "".join(f"<li>{escape(text.strip())}</li>" for text in said)
    return _section("What the numbers mean", f'<ul class="notes">{items}</ul>')


# More of them than this are folded away.
_MOST_COMMANDS = 3
_NO_SCRIPT = '<noscript><p class="note">A script in this file draws the charts; allow it to run.</p></noscript>'


def _figure(chart: Chart, *, methods: bool) -> str:
    label = escape(f"{chart.name}: {chart.note}")
    marked = ' data-methods="yes"' if methods else ""
    return (
        f"<figure><figcaption><h3>{escape(chart.name)}</h3><small>{escape(chart.note)}</small></figcaption>"
        f'<div class="chart" role="img" aria-label="{label}" data-figure="{chart.figure}"{marked}></div></figure>'
    )


def _section(name: str, body: str, *, beside: str = "") -> str:
    return f'<section>\n<div class="head"><h2>{escape(name)}</h2>{beside}</div>\n{body}\n</section>'
