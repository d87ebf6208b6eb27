"""``laconic bench network target``, small: tuned and raced on loopback, each by a crew of one rank.

Two ranks that race together are in tests/unit/lab/test_network_steps.py, with a crew that is there anyhow.
"""

from __future__ import annotations

import json

from laconic.lab.network.target import BenchTarget
from laconic.lab.tasks import Lm


def test_tuned_and_raced_on_loopback(tmp_path, capsys):
    tuned, raced, page = (tmp_path / name for name in ("tuned.json", "race.json", "race.html"))
    shared = {
        "task": Lm(hidden=16, embedding=8, length=8), "batch": 2, "steps": 16, "eval_every": 8, "tuned": tuned,
        "peers": (), "methods": ("spartan",), "rates_grid": (2.0,), "valid_examples": 400, "data_home": tmp_path,
        "hosts": 1,
    }  # fmt: skip
    # With more than one job, crews have a process of their own.
    BenchTarget(**shared, stage="tune", jobs=2).run()
    [run] = json.loads(tuned.read_text())["runs"]
    curve = [point[1:] for point in run["curve"]]
    assert (run["competitor"], [step for step, _ in curve]) == ("spartan", [8, 16])
    target = curve[1][1]
    assert curve[0][1] > target
    BenchTarget(**shared, stage="race", loopback=True, target=target, json=raced, page=page).run()
    [row] = json.loads(raced.read_text())["rows"]
    assert (row["competitor"], row["reached"], row["steps"]) == ("spartan", True, 16)
    # The same seed, the same ranks: the course of training is the same.
    assert [point[1:] for point in row["curve"]] == curve
    assert row["interface_bytes"] is None
    assert row["link_bytes"] is not None
    assert "to bits per character" in capsys.readouterr().out
    assert "Plotly.newPlot(" in page.read_text()
