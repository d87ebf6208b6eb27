"""What a tuner weighed: how many entries it chose, the link that it saw, and what other amounts would be worth."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import plotly.graph_objects as go  # type: ignore[import-untyped]

from laconic.lab.report.amounts import number, plain, whole
from laconic.lab.report.figures import over, style
from laconic.lab.report.frontier import Name, Span
from laconic.lab.report.palette import TEXT, Look, looks_of
from laconic.lab.report.read import Run
from laconic.lab.report.sections import Chart
from laconic.lab.tuning import one_of

# Of the first, the middle and the last curve: the last is what counts.
_OPACITIES = (0.3, 0.55, 1.0)
# An axis that spans less has no number on it where amounts hardly change.
_LEAST_SPAN = 4.0
# Of the axis: labels that are nearer to each other would meet on a phone.
_LABEL_SHARE = 0.25
# Over more than so many, 1, 2 and 5 of each would stand upon each other.
_DECADES = 2.5
# Amounts below this share of the best are not worth a place in the chart.
_HARDLY = 0.01
CHARTS = (
    Chart(figure="count", name="Entries chosen", note="T, the entries that a rank is to send next, log axis"),
    Chart(
        figure="bits_per_second", name="The link, as fitted",
        note="bits of a rank's message a second, beyond the latency, log axis; a gap where size made no difference",
    ),
    Chart(
        figure="efficiency", name="What each amount would be worth",
        note="gain for the cost of sending so many entries, as a share of the best amount's; the mark is the T "
        "chosen. Faint: early in the run, and in its middle",
    ),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Moment:
    """What was weighed at a step: the efficiency of ascending amounts, and the amount chosen."""

    step: int
    counts: list[float]
    efficiency: list[float]
    chosen: float
    unit: str

    @property
    def shares(self) -> list[float]:
        """The efficiency of each amount over that of the best."""
        return [value / max(self.efficiency) for value in self.efficiency]

    @property
    def worth_seeing(self) -> list[float]:
        """The amounts from the one chosen, or the first that is worth anything, to the last."""
        shares = self.shares
        first = next(i for i, share in enumerate(shares) if share >= _HARDLY)
        return [min(self.counts[max(0, first - 1)], self.chosen), max(self.counts[-1], self.chosen)]

    @property
    def chosen_share(self) -> float:
        """The share at the amount that was chosen, between the two amounts around it."""
        shares = self.shares
        after = next((i for i, count in enumerate(self.counts) if count >= self.chosen), len(shares) - 1)
        if after == 0 or self.chosen >= self.counts[-1]:
            return shares[after]
        low, high = self.counts[after - 1], self.counts[after]
        way = math.log(self.chosen / low) / math.log(high / low)
        return shares[after - 1] + way * (shares[after] - shares[after - 1])


def weighed_figures(runs: Sequence[Run]) -> dict[str, go.Figure | None]:
    """Return the charts of what tuners weighed under their names; None where there is nothing to show."""
    figures = {key: over(runs, key, "steps") for key in ("count", "bits_per_second")}
    for key, figure in figures.items():
        if figure is not None:
            _widen(figure)
            figure.update_yaxes(tickformat="~s")
            figure.update_traces(hovertemplate="%{y:,.0f}" if key == "count" else "%{y:.3s}bit/s")
            # A number between two gaps has no line that could be seen.
            figure.update_traces(mode="lines+markers", marker_size=4, selector=_has_gaps)
    return figures | {"efficiency": efficiency(runs)}


def efficiency(runs: Sequence[Run]) -> go.Figure | None:
    """Draw what each amount would be worth, early, midway and last, with the amount that was chosen."""
    told = {place: moments for place, run in enumerate(runs) if (moments := moments_of(run))}
    if not told:
        return None
    every = [moment for moments in told.values() for moment in moments]
    across = Span.of([count for moment in every for count in moment.worth_seeing], log=True, margin=0.04)
    labels = _labels({place: moments[-1].chosen for place, moments in told.items()}, across)
    figure, looks = go.Figure(), looks_of(runs)
    for place, moments in told.items():
        for moment, opacity in zip(moments, _OPACITIES[-len(moments) :], strict=True):
            label = labels[place] if moment is moments[-1] else Name()
            figure.add_traces(_drawn(runs[place], place, looks[place], moment, label, opacity))
    style(figure, x="entries a rank", log_x=False, log_y=False, percent=True)
    many = across.last - across.first > _DECADES
    figure.update_xaxes(type="log", tickformat="~s", dtick=1 if many else "D2", range=[across.first, across.last])
    # Room for a mark at the best.
    figure.update_yaxes(range=[0, 1.1], tickvals=[0, 0.25, 0.5, 0.75, 1])
    figure.update_layout(hovermode="closest")
    return figure


def moments_of(run: Run) -> list[Moment]:
    """Return the first, the middle and the last moment of a run at which its curve was written down."""
    known = [moment for line in run.steps if (moment := _moment(line)) is not None]
    return [known[i] for i in sorted({0, len(known) // 2, len(known) - 1})] if known else []


def _moment(line: Mapping[str, Any]) -> Moment | None:
    pairs = line.get("curve")
    chosen = number(line.get("count"))
    if not isinstance(pairs, list) or not chosen or chosen < 0:
        return None
    points = [(number(pair[0]), number(pair[1])) for pair in pairs if isinstance(pair, list) and len(pair) == 2]
    known = sorted((count, worth) for count, worth in points if count and worth is not None and count > 0)
    if not known or max(worth for _, worth in known) <= 0:
        return None
    return Moment(
        step=int(line["step"]),
        counts=[count for count, _ in known],
        efficiency=[worth for _, worth in known],
        chosen=chosen,
        unit=one_of(line.get("unit")),
    )


def _labels(chosen: Mapping[int, float], across: Span) -> dict[int, Name]:
    """Return what is written at each of the last marks: nothing where it would meet another; hovering says it."""
    half, taken, labels = _LABEL_SHARE / 2, list[float](), dict[int, Name]()
    for place, count in chosen.items():
        at = across.share(count)
        # At an end of the axis a label stands towards its middle, where there is room for it.
        side = "left" if at > 1 - half else "right" if at < half else "center"
        middle = at + {"left": -half, "right": half, "center": 0.0}[side]
        free = all(abs(middle - other) >= _LABEL_SHARE for other in taken)
        labels[place] = Name(text=f"T = {whole(count)}" if free else "", side=f"top {side}")
        taken += [middle] if free else []
    return labels


def _drawn(run: Run, place: int, look: Look, moment: Moment, label: Name, opacity: float) -> list[go.Scatter]:
    name, last = escape(run.label), opacity == _OPACITIES[-1]
    where = f"{name}, step {moment.step:,}<br>"
    curve = go.Scatter(
        x=moment.counts, y=[float(f"{value:.4g}") for value in moment.shares], name=name, meta=place, mode="lines",
        line={"color": look.colour, "dash": look.dash, "width": 2 if last else 1.5}, opacity=opacity,
        text=[f"{plain(value)} a {escape(moment.unit)}" for value in moment.efficiency],
        hovertemplate=f"{where}%{{x:,.0f}} entries: gain %{{text}}<extra></extra>",
    )  # fmt: skip
    chosen = go.Scatter(
        x=[moment.chosen], y=[float(f"{moment.chosen_share:.4g}")], name=f"{name} chosen", meta=place,
        mode="markers+text", marker={"color": look.colour, "symbol": look.mark, "size": 10 if last else 7},
        text=[label.text], textposition=label.side, textfont={"color": TEXT, "size": 11}, cliponaxis=False,
        hovertemplate=f"{where}chosen: T = {whole(moment.chosen)}<extra></extra>", opacity=opacity,
    )  # fmt: skip
    return [curve, chosen]


def _has_gaps(trace: go.Scatter) -> bool:
    return None in trace.y


def _widen(figure: go.Figure) -> None:
    """Give a logarithmic axis the span that it needs to have numbers on it."""
    seen = [math.log10(value) for trace in figure.data for value in trace.y if value]
    low, high = min(seen), max(seen)
    more = max(0.05 * (high - low), (math.log10(_LEAST_SPAN) - (high - low)) / 2)
    figure.update_yaxes(range=[low - more, high + more])
