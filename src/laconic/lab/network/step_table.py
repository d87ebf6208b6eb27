"""The table of one pair of hosts and rate."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

_SPLIT = ("compute", "select", "wire", "decode", "rest")


def table(rows: list[dict[str, Any]], link: dict[str, Any]) -> Table:
    """Lay out rows that were measured at the same place."""
    out = Table(title=_title(link), box=box.SIMPLE, padding=(0, 1, 0, 0))
    out.add_column("peer or method", no_wrap=True)
    counted = any(row["interface_bytes"] is not None for row in rows)
    sent = "interface bytes\na step and rank" if counted else "link bytes\na step and rank"
    for heading in ("ms", "p10", "p90", "times faster\nthan ddp", sent, *_SPLIT):
        out.add_column(heading, justify="right")
    for row in rows:
        if row["milliseconds"] is None:
            continue
        times = [f"{row[key]:.1f}" for key in ("milliseconds", "p10", "p90")]
        carried = row["interface_bytes"] if counted else row["link_bytes"]
        split = ["-" if row["split"] is None else f"{row['split'][key]:.1f}" for key in _SPLIT]
        faster = "-" if row["times_faster"] is None else f"{row['times_faster']:.2f}"
        out.add_row(escape(row["peer"]), *times, faster, "-" if carried is None else f"{carried:,.0f}", *split)
    return out


def floor(rows: list[dict[str, Any]]) -> str:
    """Say what no exchange at all takes, what that allows at most, and who did not come to the end."""
    named = {row["peer"]: row["milliseconds"] for row in rows}
    plain, alone = named.get("ddp"), named.get("alone")
    lines = [f"{row['peer']}: {row['failed']}" for row in rows if row["failed"] is not None]
    if plain is not None and alone is not None:
        lines.insert(
            0,
            f"the floor: {alone:.1f} ms a step without any exchange, {plain / alone:.2f} times faster than ddp; no "
            f"exchange of gradients or models can be faster.",
        )
    return "\n".join(lines)


def _title(link: dict[str, Any]) -> str:
    where = (
        "loopback"
        if link["loopback"]
        else "no limit"
        if link["megabits"] is None
        else f"{link['megabits']:g} Mbit/s"
    )
    found = ""
    if "bits_per_second" in link:
        found = (
            f" (a plain transfer: {link['bits_per_second'] / 1e6:,.1f} Mbit/s, "
            f"{1e6 * link['latency_seconds']:.0f} µs for 8 bytes)"
        )
    return f"one step, {link['hosts']} ranks, {where}{found}"
