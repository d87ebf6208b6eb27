"""From what ranks saw to one row a competitor."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import Any

import torch

from laconic.lab.network.step_visits import Visits

_PLAIN, _ALONE = "ddp", "alone"


def rows_of(ranks: Sequence[Sequence[Visits]], absent: dict[str, str]) -> list[dict[str, Any]]:
    """Return a row for each competitor that ran, failed or could not run; times are the first rank's.

    Bytes are means over ranks. Splits need what a step takes without any exchange, which is one of the competitors.
    """
    rows = [_row(visits) for visits in zip(*ranks, strict=True)]
    named = {row["peer"]: row for row in rows}
    plain, alone = (named.get(name, {}).get("milliseconds") for name in (_PLAIN, _ALONE))
    for row in rows:
        took = row["milliseconds"]
        row["times_faster"] = None if plain is None or took is None else plain / took
        row["split"] = None if alone is None or took is None else _split(row, alone)
    return rows + [_empty(name) | {"failed": f"not run: {why}"} for name, why in absent.items()]


def _row(visits: tuple[Visits, ...]) -> dict[str, Any]:
    first = visits[0]
    if first.failed is not None or not first.seconds:
        return _empty(first.name) | {"setting": first.setting, "failed": f"failed: {first.failed}"}
    quantiles = torch.tensor(first.seconds, dtype=torch.float64).quantile(torch.tensor([0.1, 0.5, 0.9]).double())
    p10, p50, p90 = (1e3 * quantiles).tolist()
    sent = [value for visit in visits for value in visit.interface_bytes]
    grown = [step for visit in visits for step in visit.grown]
    own = {key: mean(step[key] for step in first.grown) for key in first.grown[0]} if first.grown else {}
    counted = {key: mean(step[key] for step in grown) for key in ("wire_bytes", "link_bytes")} if grown else {}
    return _empty(first.name) | counted | {
        "setting": first.setting,
        "milliseconds": p50,
        "p10": p10,
        "p90": p90,
        "interface_bytes": mean(sent) if sent else None,
        "spent": {key: own[key] for key in ("select_seconds", "wait_seconds", "blocked_seconds")} if own else None,
        "seconds": first.seconds,
    }  # fmt: skip


def _empty(name: str) -> dict[str, Any]:
    nothing = dict.fromkeys(
        ("setting", "milliseconds", "p10", "p90", "times_faster", "interface_bytes", "wire_bytes", "link_bytes",
         "split", "spent", "failed")
    )  # fmt: skip
    return {"peer": name} | nothing | {"seconds": []}


def _split(row: dict[str, Any], alone: float) -> dict[str, float]:
    """Say in milliseconds what a step is made of.

    Others do not tell what they do: whatever a step takes longer than without an exchange counts as wire.
    """
    took, spent = row["milliseconds"], row["spent"]
    if spent is None:
        compute = min(took, alone) if row["peer"] != _ALONE else took
        return {"compute": compute, "select": 0.0, "wire": took - compute, "decode": 0.0, "rest": 0.0}
    select, blocked = 1e3 * spent["select_seconds"], 1e3 * spent["blocked_seconds"]
    decode = max(0.0, 1e3 * spent["wait_seconds"] - blocked)
    rest = took - alone - select - blocked - decode
    return {"compute": alone, "select": select, "wire": blocked, "decode": decode, "rest": rest}
